"""Cases of products of units of one block, and of splitting their operands."""

from typing import Any, NamedTuple

import numpy as np

from jaxjuice.ops import kernels
from tests.kernels.cases._base import (
    STEP,
    STEPS,
    Case,
    as_array,
    as_arrays,
    as_finite,
    as_parts,
    by_unit,
    keep_alone,
    make_factors,
    make_places,
    make_slots,
    slots_of_step,
    this_step,
    tolerance,
    written,
)


class _Dense(NamedTuple):
    """Random units of one block: p, q `[places, B, N or M]`, theta, and tables of three steps."""

    p: np.ndarray
    q: np.ndarray
    weights: np.ndarray
    rows: np.ndarray
    places: np.ndarray

    def of_step(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """p, q, theta of the units that are none of padding, in float64, and which these are."""
        real = self.places[STEP] >= 0
        place = self.places[STEP][real]
        arrays = self.p[place], self.q[place], self.weights[self.rows[STEP][real]]
        return *(x.astype(float) for x in arrays), real


def _dense(rng, units: int, nodes: int, children: int, batch: int, *, zeros: bool) -> _Dense:
    p, q = rng.random((STEPS * units, batch, children)), rng.random((STEPS * units, batch, nodes))
    weights = rng.random((STEPS * units + 1, nodes, children))
    if zeros:
        p[rng.random(p.shape) < 0.5] = 0
        p[:, :1] = 0
        weights[rng.random(weights.shape) < 0.5] = 0
        weights[:, 0] = 0
        q[rng.random(q.shape) < 0.5] = 0
    rows = rng.permutation(len(weights))[: STEPS * units].reshape(STEPS, units)
    return _Dense(*as_arrays(p, q, weights, rows, make_places(rng, units)))


DENSE: dict[str, Any] = dict(units=2, nodes=24, batch=17)


def dense_forward(
    seed: int = 0, precision: str = "fp32", zeros=False, alone=False, whole=False, elements=1,
    width=33, **shape,
) -> Case:  # fmt: skip
    """`whole`: weights are float32, split where they are read."""
    rng = np.random.default_rng(seed)
    shape = DENSE | shape
    made = _dense(
        rng, shape["units"], shape["nodes"], elements * width, shape["batch"], zeros=zeros
    )
    if alone:
        keep_alone(rng, made.p, 2)
    p, _, theta, real = made.of_step()
    v = np.ma.masked_all((shape["units"], shape["batch"], shape["nodes"]))
    with np.errstate(divide="ignore"):
        v[real] = np.log(np.einsum("ubj,uij->ubi", p, theta))
    starts = make_slots(rng, 2, shape["units"])
    before = as_array(rng.normal(size=(3 + STEPS * shape["units"], *v.shape[1:])))

    def op(*arrays):
        return kernels.dense_forward(*arrays[:-1], precision, arrays[-1])

    arrays = (
        as_parts(made.p), made.weights[None] if whole else as_parts(made.weights),
        *map(by_unit, (made.rows, made.places, starts)), this_step(shape["units"]), before,
    )  # fmt: skip
    expected = written(before, v, starts[STEP])
    terms = 1 if alone else elements * width
    return Case(op, arrays, (expected,), tolerance(precision, terms), (True,))


def dense_backward(
    seed: int = 0, precision: str = "fp32", zeros=False, alone=False, huge=False, elements=1,
    width=33, **shape,
) -> Case:  # fmt: skip
    rng = np.random.default_rng(seed)
    shape = DENSE | shape
    units, batch = shape["units"], shape["batch"]
    made = _dense(rng, units, shape["nodes"], elements * width, batch, zeros=zeros)
    if alone:
        keep_alone(rng, made.q, 2)
    if huge:
        made.q[...] *= 3.3e38
    p, q, theta, real = made.of_step()
    f = np.ma.masked_all((units, elements, batch, width))
    product = p * as_finite(np.einsum("ubi,uij->ubj", q, theta), huge)
    f[real] = product.reshape(len(p), batch, elements, width).swapaxes(1, 2)
    starts = make_slots(rng, 3, units, elements)
    before = as_array(rng.normal(size=(4 + STEPS * units * elements, batch, width)))

    def op(*arrays):
        return kernels.dense_backward(*arrays[:-1], precision, arrays[-1])

    arrays = (
        as_parts(made.q), as_parts(made.p), as_parts(made.weights),
        *map(by_unit, (made.rows, made.places, starts)), this_step(units), before,
    )  # fmt: skip
    f = f.reshape(units * elements, batch, width)
    expected = written(before, f, slots_of_step(starts, elements))
    terms = 1 if alone else shape["nodes"]
    return Case(op, arrays, (expected,), tolerance(precision, terms), (False,))


def dense_gradient(
    seed: int = 0, precision: str = "fp32", zeros=False, alone=False, width=33, tied=False,
    multiply=False, huge=False, **shape,
) -> Case:  # fmt: skip
    """`tied`: all units but one share a row. If not, each has its own."""
    rng = np.random.default_rng(seed)
    shape = DENSE | shape
    made = _dense(rng, shape["units"], shape["nodes"], width, shape["batch"], zeros=zeros)
    if alone:
        keep_alone(rng, made.q, 1)
    if huge:
        made.q[...] *= 3.3e38
    used = rng.permutation(len(made.p))[:-1]
    for array in (made.p, made.q):
        array[np.setdiff1d(np.arange(len(array)), used)] = np.nan
    copies = used[None] if tied else used[:, None]
    copies = np.concatenate([copies, np.full((len(copies), 1), -1)], 1)
    each = np.einsum("ubi,ubj->uij", made.q[used].astype(float), made.p[used].astype(float))

    def op(*arrays):
        return kernels.dense_gradient(*arrays[:-1], precision, arrays[-1])

    terms = (1 if alone else shape["batch"]) * (len(used) if tied else 1)
    expected = as_finite(each.sum(0, keepdims=True) if tied else each, huge)
    factors, rows = make_factors(rng, expected, multiply)
    if factors is not None:
        expected = expected * factors[rows]
    arrays = as_parts(made.q), as_parts(made.p), as_array(copies), factors, rows
    return Case(op, arrays, (expected,), tolerance(precision, terms), (False,))


def split(seed: int = 0, *, parts=2, shape=(3, 5, 7)) -> Case:
    """Parts add up to what was split; each but the last is a rounding of what was left."""
    rng = np.random.default_rng(seed)
    x = as_array(rng.normal(size=shape) * np.exp(rng.normal(0, 20, shape)))
    x.reshape(-1)[:1] = 0

    def op(x, implementation):
        found = kernels.split(x, parts, implementation)
        assert found.dtype == "bfloat16"
        return found.astype("float32")

    expected = as_parts(x, parts).astype(np.float64)
    return Case(op, (x,), (expected,), 0.0, (False,))


def transpose(seed: int = 0, *, shape=(2, 70, 130)) -> Case:
    x = as_array(np.random.default_rng(seed).normal(size=shape))
    return Case(kernels.transpose, (x,), (x.swapaxes(1, 2),), 0.0, (False,))
