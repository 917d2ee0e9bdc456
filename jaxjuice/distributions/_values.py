"""Reading observed values: which are legal, as traced arrays and on the host."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxjuice.distributions._types import Legal, LogProbs, Observations, Reals, WholeNumbers

LARGEST_REAL = 2.0**62
"""Real values are smaller than this, so that their squares are finite in float32."""

LARGEST_WHOLE = 2**31 - 128
"""The largest whole number that both int32 and float32 hold."""


def whole_numbers(x: Observations, high: int = LARGEST_WHOLE) -> tuple[WholeNumbers, Legal]:
    """Reads whole numbers from data of any numeric dtype.

    Args:
        x: the data.
        high: the largest legal value; the smallest is 0.

    Returns:
        int32 values, 0 where illegal (out of range, not whole, NaN); and which are legal.
    """
    if jnp.issubdtype(x.dtype, jnp.floating):
        wide = x.astype(jnp.float32) if x.dtype.itemsize < 4 else x
        legal = (wide >= 0) & (wide <= LARGEST_WHOLE) & (jnp.floor(wide) == wide)
    else:
        # Narrow integers cannot be compared with a bound that they cannot hold.
        wide = x.astype(jnp.int32) if x.dtype.itemsize < 4 else x
        legal = (wide >= 0) & (wide <= LARGEST_WHOLE)
    whole = jnp.where(legal, wide, jnp.zeros_like(wide)).astype(jnp.int32)
    legal = legal & (whole <= high)
    return jnp.where(legal, whole, 0), legal


def real_numbers(x: Observations, dtype: Any) -> tuple[Reals, Legal]:
    """Reads real numbers from data of any numeric dtype.

    Args:
        x: the data.
        dtype: float32 or float64, of the result.

    Returns:
        The values, 0 where illegal (NaN, or at least 2**62 in magnitude); and which are legal.
    """
    values = x.astype(dtype)
    legal = jnp.abs(values) < LARGEST_REAL
    return jnp.where(legal, values, jnp.zeros_like(values)), legal


def nan_where_illegal(log_probs: LogProbs, legal: Legal) -> LogProbs:
    """Puts NaN into the entries of illegal values.

    By adding, not selecting: a select makes XLA's CPU compiler branch around the logarithm that it
    fuses with it, and the loop is no longer vectorized.
    """
    zero = jnp.zeros((), log_probs.dtype)
    return log_probs + jnp.where(legal, zero, jnp.full_like(zero, jnp.nan))[:, :, None]


def whole_number_problem(column: np.ndarray, high: int | None, family: str) -> str | None:
    """Describes the first value of a column that is no whole number from 0 to `high`.

    Args:
        column: observed values, on the host.
        high: the largest legal value, or None for all that int32 holds.
        family: how the message calls the family.

    Returns:
        The core of a sentence, or None.
    """
    top = LARGEST_WHOLE if high is None else high
    bounds = "from 0 on" if high is None else f"from 0 to {high}"
    column = np.asarray(column)
    if column.dtype == np.bool_:
        column = column.astype(np.uint8)
    if column.dtype.kind not in "iuf":
        return _problem(f"has dtype {column.dtype}", family, f"whole numbers {bounds}")
    if column.size == 0:
        return None
    low, largest = column.min(), column.max()
    if column.dtype.kind != "f" and 0 <= low and largest <= top:
        return None  # the usual case, without temporary arrays
    legal = (column >= 0) & (column <= top)
    if column.dtype.kind == "f":
        legal &= np.floor(column) == column
    if legal.all():
        return None
    value = _readable(column[~legal].flat[0])
    return _problem(f"holds {value}", family, f"whole numbers {bounds}")


def real_number_problem(column: np.ndarray, family: str) -> str | None:
    """Describes the first value of a column that is no finite real number below 2**62.

    Args:
        column: observed values, on the host.
        family: how the message calls the family.

    Returns:
        The core of a sentence, or None.
    """
    column = np.asarray(column)
    wanted = "finite numbers below 2**62 in magnitude"
    if column.dtype.kind not in "biuf":
        return _problem(f"has dtype {column.dtype}", family, wanted)
    legal = np.abs(column.astype(np.float64, copy=False)) < LARGEST_REAL
    if legal.all():
        return None
    return _problem(f"holds {_readable(column[~legal].flat[0])}", family, wanted)


def _problem(found: str, family: str, wanted: str) -> str:
    article = "an" if family[0] in "AEIOU" else "a"
    return f"{found}, and {article} {family} takes {wanted}"


def _readable(value: np.generic) -> str:
    number = value.item()
    if isinstance(number, float) and math.isfinite(number) and number == int(number):
        return str(int(number)) if abs(number) < 1e15 else f"{number:g}"
    return str(number) if isinstance(number, int) else f"{number:g}"
