"""Cases of products of units of several blocks."""

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
    make_slots,
    slots_of_step,
    this_step,
    tolerance,
    written,
)


class _Blocks(NamedTuple):
    """Random units of several blocks, of all steps: everything that their kernels take."""

    p: np.ndarray
    shifts: np.ndarray
    block_shifts: np.ndarray
    weights: np.ndarray
    rows: np.ndarray
    positions: np.ndarray  # [units, blocks, elements]: the inverse of selection, -1 for none
    selection: np.ndarray
    q: np.ndarray

    def readers(self) -> np.ndarray:
        """What `kernels.element_flows` calls readers, without the axis of steps."""
        units, blocks, elements = self.positions.shape
        own = self.selection.shape[2]
        readers = np.full((units, elements, 1 + blocks), blocks * own)
        for x, c in np.ndindex(units, elements):
            found = [k * own + o for k, o in enumerate(self.positions[x, :, c]) if o >= 0]
            readers[x, c, : 1 + len(found)] = [len(found), *found]
        return readers

    def element_values(self) -> np.ndarray:
        """p `[units, elements, B, width]`; 0 where no block reads an element."""
        units, _, elements = self.positions.shape
        p = self.p.reshape(units, elements, *self.p.shape[1:]).astype(float)
        return np.where((self.positions >= 0).any(1)[..., None, None], p, 0)

    def ratios(self) -> np.ndarray:
        """r `[units, blocks, elements, B]`, 0 where a block does not read an element."""
        units, _, elements = self.positions.shape
        m = self.shifts.reshape(units, 1, elements, -1).astype(float)
        r = np.exp(np.minimum(m - self.block_shifts[:, :, None].astype(float), 0))
        return np.where((self.positions >= 0)[..., None], r, 0)

    def by_reader(self, parts: int = 3) -> np.ndarray:
        """r q for every element that a block reads, in parts `[parts, units * .., B, nodes]`."""
        units, blocks, own = self.selection.shape
        r = np.take_along_axis(self.ratios(), self.selection[..., None], 2)[..., None]
        q = self.q.reshape(units, self.q.shape[1], blocks, 1, -1).transpose(0, 2, 3, 1, 4)
        y = q.astype(float) * r
        return as_parts(y.reshape(units * blocks * own, *y.shape[3:]), parts)

    def theta(self, width: int) -> np.ndarray:
        """Weights by distinct element, zeros for those of others `[units, blocks, M, E, width]`."""
        units, blocks, elements = self.positions.shape
        own = self.selection.shape[2]
        theta = self.weights[self.rows].astype(float).reshape(units, blocks, -1, own, width)
        full = np.zeros((*theta.shape[:3], elements, width))
        for x, k, o in np.ndindex(units, blocks, own):
            full[x, k, :, self.selection[x, k, o]] = theta[x, k, :, o]
        return full

    def of_step(self) -> "_Blocks":
        """What the oracle needs of the step that runs."""
        units = len(self.rows) // STEPS
        elements = units * self.positions.shape[2]
        chosen = slice(STEP * units, (STEP + 1) * units)
        chosen_elements = slice(STEP * elements, (STEP + 1) * elements)
        return _Blocks(
            self.p[chosen_elements], self.shifts[chosen_elements], self.block_shifts[chosen],
            self.weights, self.rows[chosen], self.positions[chosen], self.selection[chosen],
            self.q[chosen],
        )  # fmt: skip


def _blocks(
    rng, units: int, blocks: int, nodes: int, elements: int, own: int, batch: int, width: int, *,
    spread: float = 3.0, zeros: bool = False, tied: bool = False,
) -> _Blocks:  # fmt: skip
    """`nodes` of a block. Shifts of elements `spread` nats apart. NaN where no block reads."""
    units *= STEPS
    p = rng.random((units * elements, batch, width))
    if zeros:
        p[rng.random(p.shape) < 0.5] = 0
        p[::elements] = 0
    shifts = rng.normal(-500, spread, (units * elements, batch)).astype(np.float32)
    selection = np.array(
        [[np.sort(rng.permutation(elements)[:own]) for _ in range(blocks)] for _ in range(units)]
    )
    params = units + 1
    rows = rng.permutation(params)[:units]
    if tied:
        selection[:] = selection[0]
    positions = np.full((units, blocks, elements), -1)
    np.put_along_axis(positions, selection, np.broadcast_to(np.arange(own), selection.shape), 2)
    m = shifts.reshape(units, 1, elements, batch)
    block_shifts = np.where((positions >= 0)[..., None], m, -np.inf).max(2)
    unread = (positions < 0).all(1).reshape(-1)
    p[unread], shifts[unread] = np.nan, np.nan
    weights = rng.random((params, blocks * nodes, own * width))
    if zeros:
        weights[rng.random(weights.shape) < 0.5] = 0
        weights[:, 0] = 0
    q = rng.random((units, batch, blocks * nodes))
    q[rng.random(q.shape) < 0.2] = 0
    return _Blocks(*as_arrays(p, shifts, block_shifts, weights, rows, positions, selection, q))


def _at_places(x: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Arrays `[units * elements, ...]` with each unit where its place is."""
    after = np.empty_like(x).reshape(len(places), len(x) // len(places), *x.shape[1:])
    after[places] = x.reshape(after.shape)
    return after.reshape(x.shape)


SHAPE: dict[str, Any] = dict(units=2, blocks=3, nodes=6, elements=5, own=3, batch=17, width=33)


def forward(
    seed: int = 0, precision: str = "fp32", spread: float = 3.0, zeros=False, alone=False,
    one_step=False, **shape,
) -> Case:  # fmt: skip
    """`one_step`: elements and what they are relative to are those of the step that runs alone."""
    rng = np.random.default_rng(seed)
    shape = SHAPE | shape
    made = _blocks(rng, **shape, spread=spread, zeros=zeros)
    if alone:
        keep_alone(rng, made.p, 2)
    now = made.of_step()
    units, batch, width, own = (shape[name] for name in ("units", "batch", "width", "own"))
    nodes, elements = shape["blocks"] * shape["nodes"], shape["elements"]
    s = np.einsum(
        "xkcb,xcbj,xkicj->xbki", now.ratios(), now.element_values(), now.theta(width), optimize=True
    )
    unit_shifts = now.block_shifts.max(1)
    with np.errstate(divide="ignore"):
        gained = now.block_shifts.astype(float) - unit_shifts[:, None]
        v = np.log(s) + gained.swapaxes(1, 2)[..., None]
    starts = make_slots(rng, 2, units)
    values = as_array(rng.normal(size=(3 + STEPS * units, batch, nodes)))
    scales = as_array(rng.normal(size=values.shape[:2]))
    places = rng.permutation(STEPS * units).reshape(STEPS, units)
    if one_step:
        places[STEP] = rng.permutation(units)
    here = places[STEP] if one_step else places.reshape(-1)
    p, shifts = (_at_places(x, here) for x in (now if one_step else made)[:2])
    kept = as_array(rng.normal(size=(len(shifts) // elements, shape["blocks"], batch)))
    expected = (
        written(values, v.reshape(units, batch, nodes), starts[STEP]),
        written(scales, unit_shifts, starts[STEP]),
        written(kept, now.block_shifts, places[STEP]),
    )

    def op(*arrays):
        return kernels.forward(*arrays[:-1], elements, precision, arrays[-1])

    arrays = (
        as_parts(p), shifts, by_unit(places), as_parts(made.weights), made.rows, made.selection,
        by_unit(starts), this_step(units), values, scales, kept,
    )  # fmt: skip
    terms = own * (1 if alone else width)
    of_values = tolerance(precision, terms)  # the largest of some numbers is one of these
    return Case(op, arrays, expected, (of_values, 0.0, 0.0), (True, False, False))


def element_flows(
    seed: int = 0, precision: str = "fp32", spread: float = 3.0, zeros=False, alone=False,
    huge=False, by_reader=False, **shape,
) -> Case:  # fmt: skip
    """`huge`: sums of ratios are beyond float32, and what they are multiplied with may be 0."""
    rng = np.random.default_rng(seed)
    shape = SHAPE | shape
    made = _blocks(rng, **shape, spread=spread, zeros=zeros)
    if alone:
        keep_alone(rng, made.q, 2)
    if huge:
        made.q[...] *= 3.3e38
    now = made.of_step()
    units, blocks, batch, width = (shape[name] for name in ("units", "blocks", "batch", "width"))
    elements = units * shape["elements"]
    q = now.q.reshape(units, batch, blocks, shape["nodes"]).astype(float)
    back = np.einsum("xkcb,xbki,xkicj->xcbj", now.ratios(), q, now.theta(width), optimize=True)
    f = np.ma.array(as_finite(back, huge) * now.element_values())
    f[(now.positions < 0).all(1)] = np.ma.masked
    starts = make_slots(rng, 3, units, shape["elements"])
    before = as_array(rng.normal(size=(4 + STEPS * elements, batch, width)))
    f = f.reshape(elements, batch, width)
    expected = written(before, f, slots_of_step(starts, shape["elements"]))

    def op(*arrays):
        return kernels.element_flows(*arrays[:-1], blocks, precision, arrays[-1])

    arrays = (
        as_parts(made.p), made.shifts, made.block_shifts, made.by_reader() if by_reader else made.q,
        as_parts(made.weights), made.rows, as_array(made.readers()), by_unit(starts),
        this_step(units), before,
    )  # fmt: skip
    terms = 1 if alone else blocks * shape["nodes"]
    return Case(op, arrays, (expected,), tolerance(precision, terms), (False,))


def weight_gradient(
    seed: int = 0, precision: str = "fp32", spread: float = 3.0, tied=False, multiply=False,
    alone=False, huge=False, by_reader=False, **shape,
) -> Case:  # fmt: skip
    """`tied`: all units of all steps but the padding share a row. If not, each has its own."""
    rng = np.random.default_rng(seed)
    shape = SHAPE | shape
    made = _blocks(rng, **shape, spread=spread, tied=tied)
    if alone:
        keep_alone(rng, made.q, 1)
    if huge:
        made.q[...] *= 3.3e38
    batch, width, own = (shape[name] for name in ("batch", "width", "own"))
    elements, blocks, units = shape["elements"], shape["blocks"], len(made.rows)
    q = made.q.reshape(units, batch, blocks, shape["nodes"]).astype(float)
    each = np.einsum("xkcb,xbki,xcbj->xkicj", made.ratios(), q, made.element_values())
    index = made.selection[:, :, None, :, None]
    each = np.take_along_axis(each, index, 3).reshape(units, -1, own * width)
    used = rng.permutation(units)[:-1]
    padding = np.setdiff1d(np.arange(units), used)
    made.p.reshape(units, elements, batch, width)[padding] = np.nan
    for array in (made.q, made.block_shifts, made.shifts.reshape(units, elements, batch)):
        array[padding] = np.nan
    copies = used[None] if tied else used[:, None]
    copies = np.concatenate([copies, np.full((len(copies), 1), -1)], 1)
    expected = as_finite(each[used].sum(0, keepdims=True) if tied else each[used], huge)
    factors, rows = make_factors(rng, expected, multiply)
    if factors is not None:
        expected = expected * factors[rows]

    def op(*arrays):
        return kernels.weight_gradient(*arrays[:-1], precision, arrays[-1])

    arrays = (
        as_parts(made.p), made.shifts, made.block_shifts, made.by_reader() if by_reader else made.q,
        made.selection, as_array(made.readers()), as_array(copies), factors, rows,
    )  # fmt: skip
    terms = (1 if alone else batch) * (len(used) if tied else 1)
    return Case(op, arrays, (expected,), tolerance(precision, terms), (False,))
