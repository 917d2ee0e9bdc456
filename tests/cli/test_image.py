"""Samples as PNG files: the bytes are read back by an independent reader."""

import io

import numpy as np
import pytest

from jaxjuice.cli._image import encode_png, image_grid, image_range

Image = pytest.importorskip("PIL.Image")


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (4, 6, 3), (4, 6, 4), (4, 6, 1)])
def test_png_round_trip(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    read = np.asarray(Image.open(io.BytesIO(encode_png(pixels))))
    np.testing.assert_array_equal(read, pixels.reshape(read.shape))


@pytest.mark.parametrize("channels", [(), (1,), (3,), (4,)])
def test_grid_places_every_image(channels):
    images = np.arange(5)[:, None, None].repeat(40, 1).repeat(50, 2)
    images = (
        images.reshape(5, 40, 50, *[1] * len(channels)).repeat((channels or (1,))[0], -1)
        if (channels)
        else images
    )
    grid = image_grid(images.reshape(5, -1), (40, 50, *channels), (0, 4))
    assert grid.shape[:2] == (2 + 2 * 42, 2 + 3 * 52)
    for index in range(5):
        row, column = divmod(index, 3)
        tile = grid[2 + row * 42 : 42 + row * 42, 2 + column * 52 : 52 + column * 52]
        assert np.all(tile == round(index * 255 / 4))
    assert np.all(grid[:2, :, ...].reshape(2, grid.shape[1], -1)[..., 0] == 96)


def test_small_images_are_magnified_and_values_clipped():
    grid = image_grid(np.array([[-5.0, 0.0, 1.0, np.nan]]), (2, 2), (0.0, 1.0))
    assert grid.shape == (68, 68)
    assert grid[2, 2] == 0 and grid[2, 65] == 0 and grid[65, 2] == 255 and grid[65, 65] == 0


def test_range_of_values():
    values = np.array([[3, 9]])
    assert image_range({"value_range": [0, 16]}, values) == (0.0, 16.0)
    assert image_range({}, values) == (3.0, 9.0)
    assert image_range({"value_range": [5, 5]}, values) == (3.0, 9.0)
