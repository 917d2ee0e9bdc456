"""Cases of what pulls flows: ratios, counts of leaves; and of memory without content."""

import numpy as np

from jaxjuice.ops import kernels
from tests.kernels.cases._base import (
    STEP,
    STEPS,
    Case,
    as_array,
    as_arrays,
    as_parts,
    by_unit,
    make_places,
    make_slots,
    sum_of_parts,
    this_step,
    with_kept,
    written,
)


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
    seed: int = 0, *, units=2, nodes=24, blocks=1, own=0, pieces=1, reads=3, batch=17,
    offsets=False, keep=True, writes=True, parts=0,
) -> Case:  # fmt: skip
    """`own`: r q is kept for so many of a unit's elements by each block, in `parts`."""
    rng = np.random.default_rng(seed)
    size, places = nodes // pieces, make_places(rng, units)
    starts = make_slots(rng, 2, units)
    values = rng.normal(0, 20, (3 + STEPS * units, batch, nodes))
    values[rng.random(values.shape) < 0.1] = -np.inf
    values[starts[STEP], :1] = -95.0
    shape = 9, batch, 2 * size if offsets else size
    flows = rng.random(shape) * (rng.random(shape) < 0.8)
    flows[:, :1] *= 0.1
    flows[0] = np.nan  # slot 0 is never read
    slots, offset = _flow_tables(rng, (STEPS, units, pieces, reads), size, offsets=offsets)
    block_shifts = scales = shifts = selection = None
    if blocks > 1:
        block_shifts = rng.normal(-500, 3, (STEPS * units, blocks, batch))
        scales = rng.normal(-500, 3, (len(values), batch))
    if own:
        elements = own + 2
        shifts = rng.normal(-500, 3, (STEPS * units * elements, batch))
        choice = rng.permuted(np.tile(np.arange(elements), (STEPS * units * blocks, 1)), axis=1)
        selection = np.sort(choice[:, :own]).reshape(STEPS, units, blocks, own)
        unit = np.arange(STEPS * units).reshape(STEPS, units, 1, 1)
        chosen = as_array(shifts)[unit * elements + selection]  # [STEPS, units, blocks, own, batch]
        block_shifts = chosen.max(3).reshape(-1, blocks, batch)
    values, flows, block_shifts, scales, shifts = as_arrays(
        values, flows, block_shifts, scales, shifts
    )
    f = _pulled(flows, slots[STEP], None if offset is None else offset[STEP], size)
    now = starts[STEP]
    of_step = slice(STEP * units, (STEP + 1) * units)
    v = values[now].astype(float)
    if block_shifts is not None and scales is not None:
        most = block_shifts[of_step].astype(float)
        v -= np.repeat((most - scales[now][:, None]).swapaxes(1, 2), nodes // blocks, 2)
    # Where s is denormal, q stays finite in float32.
    q = np.where((f > 0) & (v > -np.inf), f * np.exp(np.minimum(-v, 88.3)), 0)
    count = STEPS * units * max(1, blocks * own)
    kept = rng.integers(0, 256, (count, batch, nodes // blocks if own else nodes)) if keep else None
    kept = None if kept is None else as_array(kept.astype(np.float32))
    kept_now = None if kept is None else with_kept(kept, q, places[STEP]) if not own else None
    if own and kept is not None and block_shifts is not None:
        r = np.exp(chosen[STEP].astype(float) - block_shifts[of_step][:, :, None])
        y = q.reshape(units, batch, blocks, 1, -1).transpose(0, 2, 3, 1, 4) * r[..., None]
        readers = np.arange(units * blocks * own) + STEP * units * blocks * own
        kept_now = written(kept, y.reshape(-1, *kept.shape[1:]), readers)
    arrays = (
        values, flows, by_unit(slots), None if offset is None else by_unit(offset), block_shifts,
        scales, None if selection is None else (shifts, by_unit(selection)), by_unit(starts),
        this_step(units), by_unit(places),
        as_parts(kept, parts) if kept is not None and parts else kept,
    )  # fmt: skip

    def op(*arrays):
        q, kept = kernels.flow_ratio(*arrays[:-1], arrays[0], writes, arrays[-1])
        return q, sum_of_parts(kept) if parts else kept

    return Case(op, arrays, (q if writes else None, kept_now), 2e-5, (False, False))


def leaf_counts(
    seed: int = 0, *, tables=3, copies=2, categories=5, nodes=24, pieces=1, reads=2, batch=17,
    first=0, offsets=False,
) -> Case:  # fmt: skip
    rng = np.random.default_rng(seed)
    size, members = nodes // pieces, copies * batch
    leaves = rng.permutation(tables * copies).reshape(tables, copies)
    flows = as_array(rng.random((9, batch, 2 * size if offsets else size)))
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

    arrays = (flows, *as_arrays(slots, starts, keys, leaves))
    return Case(op, arrays, (counts[:, first:categories],), 2e-6, (False,))


def empty() -> Case:
    """Whose every value may be anything."""

    def op(implementation):
        return kernels.empty((3, 5), np.dtype(np.float32), 7, implementation)

    return Case(op, (), (np.ma.masked_all((3, 5)),), 0.0, (False,))
