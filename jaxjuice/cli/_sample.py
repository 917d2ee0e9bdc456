"""`jaxjuice sample`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer

from jaxjuice._errors import DataError
from jaxjuice.circuit import Circuit
from jaxjuice.cli._guard import guarded, say
from jaxjuice.cli._image import encode_png, image_grid, image_range, is_png
from jaxjuice.cli._models import opened
from jaxjuice.cli._options import DebugOption, ModelArgument, SeedOption
from jaxjuice.io import atomic_writer, check_writable
from jaxjuice.queries import sample as draw

_FORMATS = (".png", ".npy", ".csv")


@guarded
def sample(
    model: ModelArgument,
    num: Annotated[int, typer.Option("--num", "-n", min=1, help="How many samples.")] = 64,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="A .png (images), .npy or .csv file; by default CSV on the terminal.",
        ),
    ] = None,
    seed: SeedOption = 0,
    debug: DebugOption = False,
) -> None:
    """Draw samples from MODEL."""
    del debug
    with opened(model) as (pc, params, about):
        if out is not None:
            check_output(out, about.metadata)
        values = draw_samples(pc, params, num, seed)
    if out is None:
        typer.echo(_csv(values, about.metadata.get("columns")), nl=False)
        return
    with atomic_writer(out) as file:
        file.write(encode_samples(out, values, about.metadata))
    say("samples", f"{out}: {num:,} rows of {values.shape[1]} variables")


def draw_samples(pc: Circuit, params: Any, num: int, seed: int) -> np.ndarray:
    """Samples `[num, num_vars]`."""
    return np.asarray(draw(pc, params, jax.random.key(seed), num))


def check_output(path: Path, metadata: dict[str, Any]) -> None:
    """Finds out whether samples can go to a file, before any are drawn.

    Raises:
        DataError: the format is unknown, or a picture is asked for where rows are no images.
        ModelFileError: the file cannot be written.
    """
    if path.suffix.lower() not in _FORMATS:
        raise DataError(f"Samples go to a file that ends in {', '.join(_FORMATS)}, not to {path}.")
    if is_png(path) and not metadata.get("image_shape"):
        raise DataError(
            f"Samples cannot be drawn as {path}, because the training data were no images "
            "(--image-shape HEIGHTxWIDTH of `jaxjuice train` says so); ask for .csv or .npy."
        )
    check_writable(path)


def encode_samples(path: Path, values: np.ndarray, metadata: dict[str, Any]) -> bytes:
    """The bytes of a file of samples, in the format of its name."""
    if is_png(path):
        shape = tuple(metadata["image_shape"])
        return encode_png(image_grid(values, shape, image_range(metadata, values)))
    if path.suffix.lower() == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, values, allow_pickle=False)
        return buffer.getvalue()
    return _csv(values, metadata.get("columns")).encode()


def _csv(values: np.ndarray, columns: list[str] | None) -> str:
    buffer = io.StringIO()
    header = ",".join(f'"{name}"' if "," in name else name for name in columns or ())
    # Nine digits tell every float32 from its neighbours.
    form = "%d" if np.issubdtype(values.dtype, np.integer) else "%.9g"
    np.savetxt(buffer, values, fmt=form, delimiter=",", header=header, comments="")
    return buffer.getvalue() if columns else buffer.getvalue().lstrip("\n")
