"""Samples as a PNG file, with nothing but the standard library and numpy."""

from __future__ import annotations

import math
import os
import struct
import zlib

import numpy as np

# Small images are magnified by a whole factor until a side has about as many pixels.
_TILE_PIXELS = 64
_GAP_PIXELS = 2
_GAP_LEVEL = 96


def image_grid(
    values: np.ndarray, image_shape: tuple[int, ...], value_range: tuple[float, float]
) -> np.ndarray:
    """Lays flattened images out in a grid.

    Args:
        values: `[num_images, num_pixels]`.
        image_shape: `(height, width)` or `(height, width, channels)` with 1, 3 or 4 channels.
        value_range: the values that become black and white; others are clipped to them.

    Returns:
        uint8 `[height, width]` or `[height, width, channels]`.
    """
    low, high = value_range
    scaled = (values.astype(np.float64) - low) / max(high - low, 1e-12)
    levels = np.rint(np.clip(np.nan_to_num(scaled), 0.0, 1.0) * 255).astype(np.uint8)
    images = levels.reshape(len(values), *image_shape)
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    zoom = max(1, _TILE_PIXELS // max(image_shape[:2]))
    images = images.repeat(zoom, axis=1).repeat(zoom, axis=2)
    height, width = images.shape[1:3]
    num_columns = math.ceil(math.sqrt(len(images)))
    num_rows = math.ceil(len(images) / num_columns)
    shape = (
        num_rows * (height + _GAP_PIXELS) + _GAP_PIXELS,
        num_columns * (width + _GAP_PIXELS) + _GAP_PIXELS,
        *images.shape[3:],
    )
    grid = np.full(shape, _GAP_LEVEL, np.uint8)
    if grid.shape[2:] == (4,):
        grid[..., 3] = 255
    for index, image in enumerate(images):
        row, column = divmod(index, num_columns)
        top = _GAP_PIXELS + row * (height + _GAP_PIXELS)
        left = _GAP_PIXELS + column * (width + _GAP_PIXELS)
        grid[top : top + height, left : left + width] = image
    return grid


def encode_png(pixels: np.ndarray) -> bytes:
    """A PNG file (ISO/IEC 15948) of 8-bit pixels.

    Args:
        pixels: uint8 `[height, width]`, or `[height, width, channels]` with 3 or 4 channels.
    """
    height, width, *channels = pixels.shape
    color_type = {1: 0, 3: 2, 4: 6}[channels[0] if channels else 1]
    # Each line begins with the number of its filter: 0, none.
    lines = np.pad(pixels.reshape(height, -1), ((0, 0), (1, 0)))
    header = struct.pack(">IIBBBBB", width, height, 8, color_type, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def image_range(metadata: dict, values: np.ndarray) -> tuple[float, float]:
    """The values to show as black and white: those of the training data, else of these values."""
    saved = metadata.get("value_range")
    if isinstance(saved, (list, tuple)) and len(saved) == 2 and saved[0] < saved[1]:
        return float(saved[0]), float(saved[1])
    return float(values.min()), float(values.max())


def is_png(path: str | os.PathLike[str]) -> bool:
    """Whether a file's name asks for a PNG."""
    return os.fspath(path).lower().endswith(".png")
