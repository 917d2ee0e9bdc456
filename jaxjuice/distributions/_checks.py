"""Checks of what users give to a family's constructor or to its parameters. On the host."""

import math
import numbers
from typing import Any

import numpy as np

from jaxjuice._errors import ParameterError, StructureError


def positive_int(dist: Any, field: str) -> int:
    """Reads a field that must be a positive whole number.

    Raises:
        StructureError: if it is not.
    """
    value = getattr(dist, field)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise StructureError(
            f"{type(dist).__name__}({field}={value!r}): a positive whole number is wanted."
        )
    return int(value)


def finite_float(dist: Any, field: str, above: float | None = None) -> float:
    """Reads a field that must be a finite number, and greater than `above` if that is given.

    Raises:
        StructureError: if it is not.
    """
    value = getattr(dist, field)
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    number = float(value) if is_number else math.nan
    if not math.isfinite(number) or (above is not None and number <= above):
        wanted = "a finite number" + ("" if above is None else f" above {above:g}")
        raise StructureError(f"{type(dist).__name__}({field}={value!r}): {wanted} is wanted.")
    return number


def normalized_probs(dist: Any, probs: np.ndarray) -> np.ndarray:
    """Divides each node's weights `[num_nodes, C]` by their sum.

    Raises:
        ParameterError: if a weight is negative, or all of a node are zero.
    """
    totals = probs.sum(axis=1, keepdims=True)
    if probs.size and (probs.min() < 0 or totals.min() <= 0):
        raise ParameterError(
            f"The parameter 'probs' of {dist} has a negative entry or a row of zeros, and weights "
            f"that are at least 0 with a positive sum per node are wanted."
        )
    return probs / totals


def probs_between_0_and_1(dist: Any, name: str, probs: np.ndarray) -> np.ndarray:
    """Checks probabilities that need not sum to 1.

    Raises:
        ParameterError: if one is below 0 or above 1.
    """
    if probs.size and (probs.min() < 0 or probs.max() > 1):
        raise ParameterError(
            f"The parameter '{name}' of {dist} holds values from {probs.min():g} to "
            f"{probs.max():g}, and probabilities from 0 to 1 are wanted."
        )
    return probs


def at_least(dist: Any, name: str, values: np.ndarray, minimum: float) -> np.ndarray:
    """Checks positive parameters against their floor, and lifts those that rounding put below it.

    Raises:
        ParameterError: if one is clearly below.
    """
    if values.size and values.min() < minimum * (1 - 1e-5):
        raise ParameterError(
            f"The parameter '{name}' of {dist} holds {values.min():g}, and at least {minimum:g} is "
            f"wanted."
        )
    return np.maximum(values, minimum)
