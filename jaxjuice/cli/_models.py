"""What the commands that read a model share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from jaxjuice._errors import DataError
from jaxjuice.circuit import Circuit
from jaxjuice.data import Dataset
from jaxjuice.io import ModelInfo, load, model_info


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[Circuit, Any, ModelInfo]]:
    """A model with its parameters, and with JAX in double precision if the model is."""
    about = model_info(path)
    with jax.enable_x64(True) if about.dtype == "float64" else contextlib.nullcontext():
        pc, params = load(path)
        yield pc, params, about


def check_columns(path: Path, about: ModelInfo, data: Dataset) -> None:
    """Checks that data have as many columns as the model has variables.

    Raises:
        DataError: they have not.
    """
    if data.num_vars != about.num_vars:
        columns = "1 column" if data.num_vars == 1 else f"{data.num_vars} columns"
        raise DataError(
            f"{data.source} has {columns}, and the model {path} takes {about.num_vars}."
        )
