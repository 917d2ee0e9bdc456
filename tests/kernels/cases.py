"""Random problems for every kernel, with answers in float64 that share no code with the package.

Tables have three steps of which the second runs, and the last of several units of a step is padding
(it has no place in what is kept).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from jaxjuice.ops import kernels

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
        tolerance: relative; of logarithms, absolute.
        is_log: for each output, whether it is a logarithm.
    """

    op: Callable[..., Any]
    arrays: tuple[Any, ...]
    expected: tuple[np.ndarray | None, ...] | Callable[..., tuple[np.ndarray | None, ...]]
    tolerance: float
    is_log: tuple[bool, ...]

    def run(self, implementation: str) -> Any:
        return self.op(*self.arrays, implementation)

    def check(self, implementation: str, transform: Callable = lambda function: function) -> None:
        """Runs `transform` of the op, and compares."""
        found = transform(lambda *arrays: self.op(*arrays, implementation))(*self.arrays)
        found = found if isinstance(found, tuple) else (found,)
        expected = self.expected(*found) if callable(self.expected) else self.expected
        for got, wanted, is_log in zip(found, expected, self.is_log, strict=True):
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
            bound = self.tolerance + 2e-7 * size if is_log else self.tolerance * size + 1e-30
            assert (error <= bound).all(), f"{np.max(error / bound):.3g} times the tolerance"


def _alone(rng, x: np.ndarray, axis: int) -> None:
    """Leaves one number of each sum over `axis`: what a product loses then has nowhere to hide."""
    kept = rng.integers(0, x.shape[axis], [1 if i == axis else n for i, n in enumerate(x.shape)])
    x[np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)]) != kept] = 0


def _finite(x: np.ndarray, huge: bool) -> np.ndarray:
    """Sums as float32 holds them: its largest number for those beyond, if such may come.

    Masked where the sum of an operand's parts may be beyond it and the whole is not.
    """
    largest = float(np.finfo(np.float32).max)
    assert (np.abs(x) > largest).any() == huge
    clipped = np.clip(x, -largest, largest)
    return np.ma.masked_where(np.abs(np.abs(x) / largest - 1) < 0.01, clipped) if huge else clipped


def _array(x: Any) -> np.ndarray:
    x = np.asarray(x)
    return np.ascontiguousarray(x, np.int32 if x.dtype.kind in "iu" else np.float32)


def _parts(x: np.ndarray, count: int = 3) -> np.ndarray:
    """bfloat16 numbers that add up to x, `[count, *x.shape]`."""
    rest, found = x.astype(np.float32), []
    for _ in range(count):
        found.append(rest.astype(ml_dtypes.bfloat16))
        rest = rest - found[-1].astype(np.float32)
    return np.stack(found)


def _sum(parts: Any) -> Any:
    assert parts.dtype == "bfloat16"
    return parts.astype("float32").sum(0)


def _arrays(*arrays: Any) -> tuple:
    return tuple(None if x is None else _array(x) for x in arrays)


def _starts(first: int, count: int) -> np.ndarray:
    """Where `count` slots of each step start, from `first` on and not in the order of steps."""
    return first + count * np.array([2, 0, 1])


def _places(rng, units: int) -> np.ndarray:
    places = rng.permutation(STEPS * units).reshape(STEPS, units)
    if units > 1:
        places[:, -1] = -1
    return places


def _written(before: np.ndarray, update: np.ndarray, start: int) -> np.ndarray:
    """A copy in float64 with the slots from `start` on replaced; masked values stay so."""
    after = np.ma.array(before.astype(np.float64))
    after[start : start + len(update)] = update
    return after


def _kept(before: np.ndarray, update: np.ndarray, places: np.ndarray) -> np.ndarray:
    after = np.ma.array(before.astype(np.float64))
    for place, new in zip(places, update, strict=True):
        if place >= 0:
            after[place] = new
    return after


class _Children(NamedTuple):
    values: np.ndarray
    scales: np.ndarray
    table: np.ndarray | None
    lookups: np.ndarray | None
    slots: np.ndarray
    offsets: np.ndarray | None

    def elements(self, width: int) -> np.ndarray:
        """Log-values of the step `[units, elements, B, width]`, scale included."""
        _, units, elements, factors = self.slots.shape
        e = np.zeros((units, elements, self.values.shape[1], width))
        for x, c, f in np.ndindex(units, elements, factors):
            slot = self.slots[STEP, x, c, f]
            start = 0 if self.offsets is None else self.offsets[STEP, x, c, f]
            run = slice(start, start + width)
            if slot > 0:
                e[x, c] += self.values[slot, :, run].astype(float)
                e[x, c] += self.scales[slot].astype(float)[:, None]
            elif slot < 0:
                assert self.table is not None and self.lookups is not None
                for b, row in enumerate(self.lookups[-1 - slot]):
                    if row >= 0:
                        with np.errstate(divide="ignore"):
                            e[x, c, b] += np.log(self.table[row, run].astype(float))
                    elif row == -2:
                        e[x, c, b] = np.nan
        return e


def _children(
    rng, units: int, elements: int, factors: int, batch: int, width: int, *, offsets: bool = False,
    lookups: bool = False, illegal: bool = False, dead: bool = False, apart: bool = True,
) -> _Children:  # fmt: skip
    """Seven slots. Their scales are hundreds of nats `apart`, or few; sums of them are exact."""
    k = 2 * width if offsets else width
    slots_in_all = 7
    values = rng.normal(0, 8, (slots_in_all, batch, k))
    values[0] = np.nan  # slot 0 is never read
    scales = rng.normal(*((-800, 300) if apart else (-40, 3)), (slots_in_all, batch))
    scales = np.round(scales * 64) / 64
    scales[0] = np.nan
    if dead:
        values[rng.random(values.shape) < 0.3] = -np.inf
        values[1] = -np.inf
    slots = rng.integers(1, slots_in_all, (STEPS, units, elements, factors))
    if dead:
        slots[STEP, 0] = 1
    table = rows = None
    if lookups:
        table = rng.random((5, k))
        table[rng.random(table.shape) < 0.1] = 0
        rows = rng.integers(-2 if illegal else -1, 5, (3, batch))
        rows[0, 0], rows[1, -1] = -1, -2 if illegal else 4
        slots = np.where(rng.random(slots.shape) < 0.5, -1 - rng.integers(0, 3, slots.shape), slots)
        slots[STEP, 0, 0, 0], slots[STEP, -1, -1, 0] = -1, -2
    if factors > 1:
        slots[..., 1:][rng.random(slots[..., 1:].shape) < 0.3] = 0
    starts = rng.integers(0, width + 1, slots.shape) if offsets else None
    return _Children(*_arrays(values, scales, table, rows, slots, starts))


def _told(p: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Masks where a float32 number would be 0 or have few digits, and anything but NaN if `bad`."""
    with np.errstate(invalid="ignore"):
        return np.ma.array(p, mask=((p < 1e-30) & (p > 0)) | (bad & ~np.isnan(p)))


def exponentiate(
    seed: int = 0, *, units=2, elements=1, factors=2, batch=17, width=33, in_place=True, keep=True,
    parts=0, **options,
) -> Case:  # fmt: skip
    rng = np.random.default_rng(seed)
    made = _children(
        rng, units, elements, factors, batch, width, apart=elements == 1, **options
    )  # fmt: skip
    e = made.elements(width)
    # A NaN may spread to all elements of a unit and to its shift, but not to other samples.
    bad = np.isnan(e).any((1, 3))
    m = np.ma.array(np.maximum(np.where(np.isnan(e), -np.inf, e).max((1, 3)), LOWEST), mask=bad)
    places, starts = _places(rng, units), _starts(len(made.scales), units)
    kept = _array(rng.random((STEPS * units, batch, elements * width))) if keep else None
    if kept is not None and parts:  # of few digits, so that the parts add up to them
        kept = _array(np.round(kept * 256) / 256)
    before_kept = _parts(kept, parts) if kept is not None and parts else kept
    room = rng.random((STEPS * units, batch))
    made = made._replace(scales=_array(np.concatenate([made.scales, room])))
    unit_scales = None if in_place else _array(rng.random(made.scales.shape))
    before = made.scales if unit_scales is None else unit_scales

    def expected(p, kept_now, scales):
        del p, kept_now
        # p is relative to m as it is stored, rounded: so nothing is lost.
        shift = np.asarray(scales)[starts[STEP] : starts[STEP] + units].astype(float)
        p = np.exp(e - shift[:, None, :, None]).swapaxes(1, 2)
        p = p.reshape(units, batch, elements * width)
        p = _told(p, bad[..., None])
        kept_now = None if kept is None else _kept(kept, p, places[STEP])
        return None if parts else p, kept_now, _written(before, m, starts[STEP])

    def op(made, unit_scales, starts, step, places, kept, implementation):
        p, kept, scales = kernels.exponentiate(
            *made, unit_scales, starts, step, places, kept, made.values, width, implementation
        )
        return p, _sum(kept) if parts else kept, scales

    arrays = (made, unit_scales, *_arrays(starts, [STEP], places), before_kept)
    return Case(op, arrays, expected, 5e-5, (False, False, True))


def exponentiate_apart(
    seed: int = 0, *, units=2, elements=3, factors=2, batch=17, width=33, parts=2, **options
) -> Case:
    rng = np.random.default_rng(seed)
    made = _children(rng, units, elements, factors, batch, width, **options)
    if elements > 1:
        made.slots[:, -1, -1] = 0  # padding
    e = made.elements(width)
    bad = np.isnan(e).any(3)
    m = np.maximum(np.where(np.isnan(e), -np.inf, e).max(3), LOWEST)
    padding = (made.slots[STEP] == 0).all(2)
    m = np.ma.array(m, mask=bad | padding[..., None])
    count = units * elements
    firsts = _starts(0, count)
    first = firsts[STEP]
    before = _arrays(
        rng.integers(0, 256, (STEPS * count, batch, width)), rng.random((STEPS * count, batch))
    )

    def expected(_, shifts):
        shift = np.asarray(shifts)[first : first + count].astype(float)
        p = np.exp(e - shift.reshape(m.shape)[..., None])
        p = _told(p, bad[..., None])
        p[padding] = np.ma.masked
        return (
            _written(before[0], p.reshape(count, batch, width), first),
            _written(before[1], m.reshape(count, batch), first),
        )

    def op(made, firsts, step, p, shifts, implementation):
        p, shifts = kernels.exponentiate_apart(
            *made, firsts, step, p, shifts, made.values, implementation
        )
        return _sum(p), shifts

    arrays = made, *_arrays(firsts, [STEP]), _parts(before[0], parts), before[1]
    return Case(op, arrays, expected, 5e-5, (False, True))


def scale_flows(seed: int = 0, *, units=2, elements=1, batch=17, width=33, infinite=False) -> Case:
    """`infinite`: so is some of what comes back, and some of p is 0."""
    rng = np.random.default_rng(seed)
    places, starts = _places(rng, units), _starts(2, units * elements)
    kept, back, before = _arrays(
        rng.random((STEPS * units, batch, elements * width)),
        rng.random((units, batch, elements * width)),
        rng.random((3 + STEPS * units * elements, batch, width)),
    )
    if infinite:
        back[rng.random(back.shape) < 0.3] = np.inf
        kept[rng.random(kept.shape) < 0.3] = 0
    f = np.ma.masked_all((units, elements, batch, width))
    for x, place in enumerate(places[STEP]):
        if place >= 0:
            product = kept[place].astype(float) * _finite(back[x].astype(float), infinite)
            f[x] = product.reshape(batch, elements, width).swapaxes(0, 1)
    expected = _written(before, f.reshape(units * elements, batch, width), starts[STEP])
    arrays = (kept, back, *_arrays(places, starts, [STEP]), before)
    return Case(kernels.scale_flows, arrays, (expected,), 1e-6, (False,))


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


def _by_step(x: np.ndarray) -> np.ndarray:
    return _array(x).reshape(STEPS, -1, *x.shape[1:])


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
    return _Blocks(*_arrays(p, shifts, block_shifts, weights, rows, positions, selection, q))


SHAPE: dict[str, Any] = dict(units=2, blocks=3, nodes=6, elements=5, own=3, batch=17, width=33)


def forward(
    seed: int = 0, precision: str = "fp32", spread: float = 3.0, zeros=False, alone=False, **shape
) -> Case:
    rng = np.random.default_rng(seed)
    shape = SHAPE | shape
    made = _blocks(rng, **shape, spread=spread, zeros=zeros)
    if alone:
        _alone(rng, made.p, 2)
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
    starts = _starts(2, units)
    before = _array(rng.normal(size=(3 + STEPS * units, batch, nodes)))
    expected = _written(before, v.reshape(units, batch, nodes), starts[STEP])

    def op(*arrays):
        return kernels.forward(*arrays[:-1], elements, precision, arrays[-1])

    firsts = np.arange(STEPS) * units * elements
    arrays = (
        _parts(made.p), made.shifts, _array(firsts), now.block_shifts, unit_shifts,
        _parts(made.weights), _by_step(made.rows), _by_step(made.selection), _array(starts),
        _array([STEP]), before,
    )  # fmt: skip
    terms = own * (1 if alone else width)
    return Case(op, arrays, (expected,), tolerance(precision, terms), (True,))


def element_flows(
    seed: int = 0, precision: str = "fp32", spread: float = 3.0, zeros=False, alone=False,
    huge=False, **shape,
) -> Case:  # fmt: skip
    """`huge`: sums of ratios are beyond float32, and what they are multiplied with may be 0."""
    rng = np.random.default_rng(seed)
    shape = SHAPE | shape
    made = _blocks(rng, **shape, spread=spread, zeros=zeros)
    if alone:
        _alone(rng, made.q, 2)
    if huge:
        made.q[...] *= 3.3e38
    now = made.of_step()
    units, blocks, batch, width = (shape[name] for name in ("units", "blocks", "batch", "width"))
    elements = units * shape["elements"]
    q = now.q.reshape(units, batch, blocks, shape["nodes"]).astype(float)
    back = np.einsum("xkcb,xbki,xkicj->xcbj", now.ratios(), q, now.theta(width), optimize=True)
    f = np.ma.array(_finite(back, huge) * now.element_values())
    f[(now.positions < 0).all(1)] = np.ma.masked
    starts = _starts(3, elements)
    before = _array(rng.normal(size=(4 + STEPS * elements, batch, width)))
    expected = _written(before, f.reshape(elements, batch, width), starts[STEP])

    def op(*arrays):
        return kernels.element_flows(*arrays[:-1], blocks, precision, arrays[-1])

    arrays = (
        _parts(made.p), made.shifts, now.block_shifts, made.q, _parts(made.weights),
        _by_step(made.rows), _by_step(made.readers()), _array(starts), _array([STEP]), before,
    )  # fmt: skip
    terms = 1 if alone else blocks * shape["nodes"]
    return Case(op, arrays, (expected,), tolerance(precision, terms), (False,))


def weight_gradient(
    seed: int = 0, precision: str = "fp32", spread: float = 3.0, tied=False, multiply=False,
    alone=False, huge=False, **shape,
) -> Case:  # fmt: skip
    """`tied`: all units of all steps but the padding share a row. If not, each has its own."""
    rng = np.random.default_rng(seed)
    shape = SHAPE | shape
    made = _blocks(rng, **shape, spread=spread, tied=tied)
    if alone:
        _alone(rng, made.q, 1)
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
    expected = _finite(each[used].sum(0, keepdims=True) if tied else each[used], huge)
    factors, rows = _factors(rng, expected, multiply)
    if factors is not None:
        expected = expected * factors[rows]

    def op(*arrays):
        return kernels.weight_gradient(*arrays[:-1], precision, arrays[-1])

    arrays = (
        _parts(made.p), made.shifts, made.block_shifts, made.q, made.selection,
        _array(made.readers()), _array(copies), factors, rows,
    )  # fmt: skip
    terms = (1 if alone else batch) * (len(used) if tied else 1)
    return Case(op, arrays, (expected,), tolerance(precision, terms), (False,))


def _factors(rng, gradient: np.ndarray, multiply: bool):
    """Factors `[P, M, N]` or None, and which of them each row of a gradient takes."""
    factors = _array(rng.random((len(gradient) + 2, *gradient.shape[1:])))
    factors[rng.random(factors.shape) < 0.3] = 0
    rows = _array(rng.permutation(len(factors))[: len(gradient)])
    return factors if multiply else None, rows


def _pulled(flows, slots, offsets, size: int) -> np.ndarray:
    """Flows `[units, B, pieces * size]` from tables `[units, pieces, reads]`."""
    f = np.zeros((*slots.shape[:2], flows.shape[1], size))
    for x, piece, r in np.ndindex(slots.shape):
        if slots[x, piece, r]:
            first = 0 if offsets is None else offsets[x, piece, r]
            f[x, piece] += flows[slots[x, piece, r], :, first : first + size]
    return f.swapaxes(1, 2).reshape(len(slots), flows.shape[1], slots.shape[1] * size)


def _flow_tables(rng, shape, width: int, *, offsets: bool):
    """Slots and offsets of runs of `width` in 8 arrays twice as wide, or just as wide."""
    slots = rng.integers(1, 9, shape)
    slots[..., 1:][rng.random(slots[..., 1:].shape) < 0.3] = 0
    return slots, rng.integers(0, width + 1, shape) if offsets else None


def flow_ratio(
    seed: int = 0, *, units=2, nodes=24, blocks=1, pieces=1, reads=3, batch=17, offsets=False,
    keep=True, writes=True, parts=0,
) -> Case:  # fmt: skip
    rng = np.random.default_rng(seed)
    size, starts, places = nodes // pieces, _starts(2, units), _places(rng, units)
    values = rng.normal(0, 20, (3 + STEPS * units, batch, nodes))
    values[rng.random(values.shape) < 0.1] = -np.inf
    values[starts[STEP], :1] = -95.0
    shape = 9, batch, 2 * size if offsets else size
    flows = rng.random(shape) * (rng.random(shape) < 0.8)
    flows[:, :1] *= 0.1
    flows[0] = np.nan  # slot 0 is never read
    slots, offset = _flow_tables(rng, (STEPS, units, pieces, reads), size, offsets=offsets)
    corrections = rng.normal(0, 3, (units, blocks, batch)) if blocks > 1 else None
    kept = rng.integers(0, 256, (STEPS * units, batch, nodes)) if keep else None
    kept = None if kept is None else _array(kept.astype(np.float32))
    values, flows, corrections = _arrays(values, flows, corrections)
    f = _pulled(flows, slots[STEP], None if offset is None else offset[STEP], size)
    v = values[starts[STEP] : starts[STEP] + units].astype(float)
    if corrections is not None:
        v = v - np.repeat(corrections.swapaxes(1, 2).astype(float), nodes // blocks, 2)
    # Where s is denormal, q stays finite in float32.
    q = np.where((f > 0) & (v > -np.inf), f * np.exp(np.minimum(-v, 88.3)), 0)
    arrays = (
        values, flows, *_arrays(slots, offset), corrections, *_arrays(starts, [STEP], places),
        _parts(kept, parts) if kept is not None and parts else kept,
    )  # fmt: skip

    def op(*arrays):
        q, kept = kernels.flow_ratio(*arrays[:-1], arrays[0], writes, arrays[-1])
        return q, _sum(kept) if parts else kept

    expected = q if writes else None, None if kept is None else _kept(kept, q, places[STEP])
    return Case(op, arrays, expected, 2e-5, (False, False))


def leaf_counts(
    seed: int = 0, *, tables=3, copies=2, categories=5, nodes=24, pieces=1, reads=2, batch=17,
    first=0, offsets=False,
) -> Case:  # fmt: skip
    rng = np.random.default_rng(seed)
    size, members = nodes // pieces, copies * batch
    leaves = rng.permutation(tables * copies).reshape(tables, copies)
    flows = _array(rng.random((9, batch, 2 * size if offsets else size)))
    flows[0] = np.nan
    slots, starts = _flow_tables(rng, (tables * copies, pieces, reads), size, offsets=offsets)
    f = _pulled(flows, slots, starts, size)
    category = rng.integers(0, categories + 2, (tables, copies, batch))
    category[0] = min(1, categories - 1)  # many of one
    counts = np.zeros((tables, categories + 2, nodes))
    for p, c, b in np.ndindex(category.shape):
        counts[p, category[p, c, b]] += f[leaves[p, c], b]
    keys = np.sort(category.reshape(tables, members) * members + np.arange(members), axis=1)

    def op(*arrays):
        return kernels.leaf_counts(*arrays[:-1], first, categories - first, nodes, arrays[-1])

    arrays = (flows, *_arrays(slots, starts, keys, leaves))
    return Case(op, arrays, (counts[:, first:categories],), 2e-6, (False,))


def empty() -> Case:
    """Whose every value may be anything."""

    def op(implementation):
        return kernels.empty((3, 5), np.dtype(np.float32), 7, implementation)

    return Case(op, (), (np.ma.masked_all((3, 5)),), 0.0, (False,))


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
    return _Dense(*_arrays(p, q, weights, rows, _places(rng, units)))


DENSE: dict[str, Any] = dict(units=2, nodes=24, batch=17)


def dense_forward(
    seed: int = 0, precision: str = "fp32", zeros=False, alone=False, elements=1, width=33, **shape
) -> Case:
    rng = np.random.default_rng(seed)
    shape = DENSE | shape
    made = _dense(
        rng, shape["units"], shape["nodes"], elements * width, shape["batch"], zeros=zeros
    )
    if alone:
        _alone(rng, made.p, 2)
    p, _, theta, real = made.of_step()
    v = np.ma.masked_all((shape["units"], shape["batch"], shape["nodes"]))
    with np.errstate(divide="ignore"):
        v[real] = np.log(np.einsum("ubj,uij->ubi", p, theta))
    starts = _starts(2, shape["units"])
    before = _array(rng.normal(size=(3 + STEPS * shape["units"], *v.shape[1:])))

    def op(*arrays):
        return kernels.dense_forward(*arrays[:-1], precision, arrays[-1])

    arrays = (
        _parts(made.p), _parts(made.weights), made.rows, made.places, *_arrays(starts, [STEP]),
        before,
    )  # fmt: skip
    expected = _written(before, v, starts[STEP])
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
        _alone(rng, made.q, 2)
    if huge:
        made.q[...] *= 3.3e38
    p, q, theta, real = made.of_step()
    f = np.ma.masked_all((units, elements, batch, width))
    product = p * _finite(np.einsum("ubi,uij->ubj", q, theta), huge)
    f[real] = product.reshape(len(p), batch, elements, width).swapaxes(1, 2)
    starts = _starts(3, units * elements)
    before = _array(rng.normal(size=(4 + STEPS * units * elements, batch, width)))

    def op(*arrays):
        return kernels.dense_backward(*arrays[:-1], precision, arrays[-1])

    arrays = (
        _parts(made.q), _parts(made.p), _parts(made.weights), made.rows, made.places,
        *_arrays(starts, [STEP]), before,
    )  # fmt: skip
    expected = _written(before, f.reshape(units * elements, batch, width), starts[STEP])
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
        _alone(rng, made.q, 1)
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
    expected = _finite(each.sum(0, keepdims=True) if tied else each, huge)
    factors, rows = _factors(rng, expected, multiply)
    if factors is not None:
        expected = expected * factors[rows]
    arrays = _parts(made.q), _parts(made.p), _array(copies), factors, rows
    return Case(op, arrays, (expected,), tolerance(precision, terms), (False,))


def split(seed: int = 0, *, parts=2, shape=(3, 5, 7)) -> Case:
    """Parts add up to what was split; each but the last is a rounding of what was left."""
    rng = np.random.default_rng(seed)
    x = _array(rng.normal(size=shape) * np.exp(rng.normal(0, 20, shape)))
    x.reshape(-1)[:1] = 0

    def op(x, implementation):
        found = kernels.split(x, parts, implementation)
        assert found.dtype == "bfloat16"
        return found.astype("float32")

    expected = _parts(x, parts).astype(np.float64)
    return Case(op, (x,), (expected,), 0.0, (False,))
