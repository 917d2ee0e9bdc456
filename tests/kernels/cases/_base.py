"""Random problems for every kernel, with answers in float64 that share no code with the package.

Tables are of three steps of which the second runs, and the last of several units of a step is
padding (it has no place in what is kept).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxjuice.ops.kernels import Units

LOWEST = -1e30
STEPS, STEP = 3, 1
# The largest relative errors of single products in a mode: two roundings to 8 bits; what three
# products leave out, thrice 2^-16; of float32 ones, rounding.
_ERROR = {"bf16": 8e-3, "tf32": 1e-3, "bf16x3": 5e-5, "fp32": 3e-6}


def tolerance(precision: str, terms: int) -> float:
    """Of a sum of so many terms in float32: rounding errors add up like a random walk."""
    return _ERROR[precision] + 3e-7 * terms**0.5


class Case(NamedTuple):
    """A call, and what must come out.

    Attributes:
        op: takes `arrays`, then the implementation.
        arrays: what is no static argument.
        expected: the outputs in float64: masked where anything may be written, NaN where NaN must
            be, None for None. A function of what came out where outputs hang together.
        tolerance: relative; of logarithms, absolute. Of all outputs, or of each.
        is_log: for each output, whether it is a logarithm.
    """

    op: Callable[..., Any]
    arrays: tuple[Any, ...]
    expected: tuple[np.ndarray | None, ...] | Callable[..., tuple[np.ndarray | None, ...]]
    tolerance: float | tuple[float, ...]
    is_log: tuple[bool, ...]

    def run(self, implementation: str) -> Any:
        return self.op(*self.arrays, implementation)

    def check(self, implementation: str, transform: Callable = lambda function: function) -> None:
        """Runs `transform` of the op, and compares."""
        found = transform(lambda *arrays: self.op(*arrays, implementation))(*self.arrays)
        found = found if isinstance(found, tuple) else (found,)
        expected = self.expected(*found) if callable(self.expected) else self.expected
        each = self.tolerance
        each = each if isinstance(each, tuple) else (each,) * len(found)
        for got, wanted, tolerance, is_log in zip(found, expected, each, self.is_log, strict=True):
            if wanted is None:
                assert got is None
                continue
            got = np.asarray(got)
            assert got.dtype == np.float32 and got.shape == wanted.shape
            told = ~np.ma.getmaskarray(wanted)
            got, wanted = got[told].astype(np.float64), np.ma.getdata(wanted)[told]
            np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
            np.testing.assert_array_equal(np.isneginf(got), np.isneginf(wanted))
            finite = np.isfinite(wanted)
            error = np.abs(got[finite] - wanted[finite])
            size = np.abs(wanted[finite])
            bound = tolerance + 2e-7 * size if is_log else tolerance * size + 1e-30
            assert (error <= bound).all(), f"{np.max(error / bound):.3g} times the tolerance"


def keep_alone(rng, x: np.ndarray, axis: int) -> None:
    """Leaves one number of each sum over `axis`: what a product loses then has nowhere to hide."""
    kept = rng.integers(0, x.shape[axis], [1 if i == axis else n for i, n in enumerate(x.shape)])
    x[np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)]) != kept] = 0


def as_finite(x: np.ndarray, huge: bool) -> np.ndarray:
    """Sums as float32 holds them: its largest number for those beyond, if such may come.

    Masked where the sum of an operand's parts may be beyond it and the whole is not.
    """
    largest = float(np.finfo(np.float32).max)
    assert (np.abs(x) > largest).any() == huge
    clipped = np.clip(x, -largest, largest)
    return np.ma.masked_where(np.abs(np.abs(x) / largest - 1) < 0.01, clipped) if huge else clipped


def as_array(x: Any) -> np.ndarray:
    x = np.asarray(x)
    return np.ascontiguousarray(x, np.int32 if x.dtype.kind in "iu" else np.float32)


def as_parts(x: np.ndarray, count: int = 3) -> np.ndarray:
    """bfloat16 numbers that add up to x, `[count, *x.shape]`."""
    rest, found = x.astype(np.float32), []
    for _ in range(count):
        found.append(rest.astype(ml_dtypes.bfloat16))
        rest = rest - found[-1].astype(np.float32)
    return np.stack(found)


def sum_of_parts(parts: Any) -> Any:
    assert parts.dtype == "bfloat16"
    return parts.astype("float32").sum(0)


def as_arrays(*arrays: Any) -> tuple:
    return tuple(None if x is None else as_array(x) for x in arrays)


def this_step(count: int) -> Units:
    """The units of the step that runs, as a loop that counts down by threes has them."""
    return Units(jnp.asarray(2, jnp.int32), -3 * count, (6 + STEP) * count, count)


def by_unit(table: np.ndarray) -> np.ndarray:
    """A table `[STEPS, units, ...]` as the kernels take it."""
    return as_array(table.reshape(-1, *table.shape[2:]))


def make_slots(rng, first: int, units: int, each: int = 1) -> np.ndarray:
    """The first of `each` slots of each unit, from slot `first` on and in no order."""
    return first + each * rng.permutation(STEPS * units).reshape(STEPS, units)


def slots_of_step(starts: np.ndarray, each: int) -> np.ndarray:
    """All slots of the step that runs, by unit."""
    return (starts[STEP][:, None] + np.arange(each)).reshape(-1)


def make_places(rng, units: int) -> np.ndarray:
    places = rng.permutation(STEPS * units).reshape(STEPS, units)
    if units > 1:
        places[:, -1] = -1
    return places


def written(before: np.ndarray, update: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """A copy in float64 with some slots replaced; masked values stay so."""
    after = np.ma.array(before.astype(np.float64))
    after[slots] = update
    return after


def with_kept(before: np.ndarray, update: np.ndarray, places: np.ndarray) -> np.ndarray:
    after = np.ma.array(before.astype(np.float64))
    for place, new in zip(places, update, strict=True):
        if place >= 0:
            after[place] = new
    return after


def make_factors(rng, gradient: np.ndarray, multiply: bool):
    """Factors `[P, M, N]` or None, and which of them each row of a gradient takes."""
    factors = as_array(rng.random((len(gradient) + 2, *gradient.shape[1:])))
    factors[rng.random(factors.shape) < 0.3] = 0
    rows = as_array(rng.permutation(len(factors))[: len(gradient)])
    return factors if multiply else None, rows
