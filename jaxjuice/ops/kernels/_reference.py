"""What the kernels compute, in jax.numpy: for all other platforms, for `vmap`, and for tests."""

import jax.numpy as jnp
from jax import Array, lax

from jaxjuice.ops._sum_layer import finite

_LOWEST = -1e30


def exponentiate(
    values, scales, table, lookups, slots, offsets, starts, units, places, kept, shifts, *,
    width: int, logs: bool, joint: bool, writes: bool, keeps: bool,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """See `kernels.exponentiate`."""
    per_unit = len(slots) // len(places)
    places = units.take(places)
    slots = units.take(slots, per_unit)
    offsets = None if offsets is None else units.take(offsets, per_unit)
    groups, elements, _ = slots.shape
    batch = values.shape[1]
    e, scale = read(values, scales, table, logs, lookups, slots, offsets, width)
    most = scale.max(1)
    e = e + (scale - most[:, None])[..., None]
    # p is relative to the rounded sum, so that its rounding does not add up with depth.
    total = most + jnp.max(e, axis=(1, 3), initial=_LOWEST)
    p = jnp.exp(e - (total - most)[:, None, :, None]).swapaxes(1, 2)
    p = p.reshape(groups, batch, elements * width)
    if not joint:
        group = jnp.arange(per_unit, dtype=jnp.int32)
        places = (places[:, None] * per_unit + group).reshape(-1)
    if keeps:
        kept = _keep(kept, p, places)
    shifts = _write(shifts, total, units.take(starts) if joint else places)
    return p if writes else jnp.zeros(1, p.dtype), kept, shifts


def forward(
    p, shifts, places, weights, rows, selection, starts, units, values, scales, block_shifts, *,
    elements: int, product,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """See `kernels.forward`."""
    places, rows, selection, starts = (
        units.take(table) for table in (places, rows, selection, starts)
    )
    blocks = selection.shape[1]
    m = _by_unit(shifts, elements)[places]
    most = _selected(m, selection).max(2)
    scale = most.max(1)
    x = _operand(join(p), m, most, selection, places, elements)
    theta = join(weights[:, rows]).reshape(units.count, blocks, -1, x.shape[-1])
    s = product(x, theta, ((3,), (3,)), ((0, 1), (0, 1)))  # [units, blocks, B, size]
    v = jnp.log(s) + (most - scale[:, None])[..., None]
    v = v.swapaxes(1, 2).reshape(units.count, *values.shape[1:])
    return (
        _write(values, v, starts),
        _write(scales, scale, starts),
        _write(block_shifts, most, places),
    )


def element_flows(
    p, shifts, block_shifts, q, weights, rows, readers, starts, units, flows, *, blocks: int,
    product,
) -> Array:  # fmt: skip
    """See `kernels.element_flows`."""
    rows, readers = units.take(rows), units.take(readers)
    count, elements, _ = readers.shape
    p = join(p)
    batch, width = p.shape[1:]
    own = weights.shape[3] // width
    m = units.take(shifts, elements).reshape(count, elements, batch)
    most = units.take(block_shifts)
    theta = join(weights[:, rows]).reshape(count, blocks, -1, own, width)
    y = units.take(_by_reader(q, blocks, own))
    back = product(y, theta, ((4,), (2,)), ((0, 1, 2), (0, 1, 3)))
    back = back.reshape(count, blocks * own, batch, width)
    number, readers = readers[..., 0], readers[..., 1:]
    unit = jnp.arange(count, dtype=jnp.int32)[:, None]
    total = jnp.zeros((count, elements, batch, width), p.dtype)
    for n in range(readers.shape[2]):
        real = n < number
        reader = jnp.where(real, readers[..., n], 0)
        more = back[unit, reader]
        if q.ndim == 3:
            more = more * jnp.exp(m - most[unit, reader // own])[..., None]
        total = total + jnp.where(real[..., None, None], more, 0.0)
    f = units.take(p, elements).reshape(total.shape) * finite(total)
    return _write_elements(flows, f, units.take(starts))


def weight_gradient(
    p, shifts, block_shifts, q, selection, copies, *, elements: int, product
) -> Array:
    """See `kernels.weight_gradient`."""
    units, blocks, own = selection.shape
    p = join(p)
    batch, width = p.shape[1:]
    unit = jnp.arange(units, dtype=jnp.int32)[:, None, None]
    x = p.reshape(units, elements, batch, width)[unit, selection]
    if q.ndim == 3:
        m = shifts.reshape(units, elements, batch)
        x = x * _ratios(m, block_shifts, selection)[..., None]
    y = _by_reader(q, blocks, own)
    real = (copies >= 0)[..., None, None, None, None]
    index = jnp.maximum(copies, 0)
    x, y = (jnp.where(real, a[index], 0.0) for a in (x, y))  # [rows, copies, blocks, own, B, ...]
    # [rows, blocks, own, size, width]
    out = product(y, x, ((1, 4), (1, 4)), ((0, 2, 3), (0, 2, 3)))
    return finite(out.swapaxes(2, 3)).reshape(len(copies), -1, own * width)


def _by_reader(q, blocks: int, own: int) -> Array:
    """What multiplies each element that a block reads, `[units, blocks, own, B, size]`."""
    if q.ndim == 4:
        units = q.shape[1] // (blocks * own)
        return join(q).reshape(units, blocks, own, *q.shape[2:])
    units, batch, nodes = q.shape
    q = q.reshape(units, batch, blocks, 1, nodes // blocks).transpose(0, 2, 3, 1, 4)
    return jnp.broadcast_to(q, (units, blocks, own, batch, nodes // blocks))


def flow_ratio(
    values,
    flows,
    slots,
    offsets,
    block_shifts,
    scales,
    shifts,
    selection,
    starts,
    units,
    places,
    kept,
    *,
    blocks: int,
    writes: bool,
    keeps: bool,
) -> tuple[Array, Array]:
    """See `kernels.flow_ratio`."""
    slots, starts = units.take(slots), units.take(starts)
    offsets = None if offsets is None else units.take(offsets)
    pieces = slots.shape[1]
    nodes = values.shape[2]
    f = pull(flows, slots, offsets, nodes // pieces)
    f = f.swapaxes(1, 2).reshape(units.count, f.shape[2], nodes)
    v = values[starts]
    if blocks > 1:
        correction = units.take(block_shifts) - scales[starts][:, None]
        v = v - jnp.repeat(correction.swapaxes(1, 2), nodes // blocks, axis=2)
    live = (f != 0) & (v > -jnp.inf)
    q = jnp.where(live, f * jnp.exp(jnp.minimum(-v, 88.3)), jnp.zeros_like(f))
    q = jnp.where(q > 3.38e38, jnp.asarray(3.38e38, q.dtype), q)  # bfloat16 ends there
    if shifts is not None:
        return q, _keep_apart(kept, q, block_shifts, shifts, selection, units)
    kept = _keep(kept, q, units.take(places)) if keeps else kept
    return q if writes else jnp.zeros(1, q.dtype), kept


def _keep_apart(kept, q, block_shifts, shifts, selection, units) -> Array:
    """r q for every element that a block reads, in parts."""
    all_units, blocks, own = selection.shape
    count, batch, nodes = q.shape
    elements = len(shifts) // all_units
    m = units.take(shifts, elements).reshape(count, elements, batch)
    r = _ratios(m, units.take(block_shifts), units.take(selection))
    y = q.reshape(count, batch, blocks, 1, nodes // blocks).transpose(0, 2, 3, 1, 4) * r[..., None]
    parts = split(y.reshape(count * blocks * own, batch, nodes // blocks), len(kept))
    return lax.dynamic_update_slice_in_dim(kept, parts, units.start * (blocks * own), axis=1)


def scale_flows(kept, back, places, starts, units, flows) -> Array:
    """See `kernels.scale_flows`."""
    f = kept[jnp.maximum(units.take(places), 0)] * finite(back)
    return _write_elements(flows, _by_element(f, flows.shape[2]), units.take(starts))


def pull(flows, slots, offsets, size: int) -> Array:
    """Runs of `size` flows `[units, pieces, B, size]`, added up over slots `[..., n]`; 0: none."""
    total = 0.0
    for r in range(slots.shape[2]):
        run = _runs(flows, slots[..., r], None if offsets is None else offsets[..., r], size)
        total = total + jnp.where((slots[..., r] > 0)[..., None, None], run, 0.0)
    return jnp.asarray(total)


def leaf_counts(
    flows, slots, offsets, keys, leaves, *, first: int, categories: int, nodes: int
) -> Array:
    """See `kernels.leaf_counts`."""
    pieces = slots.shape[1]
    tables, members = keys.shape
    batch = flows.shape[1]
    f = pull(flows, slots, offsets, nodes // pieces)
    f = f.swapaxes(1, 2).reshape(len(slots), batch, nodes)
    category, member = keys // members - first, keys % members
    leaf = jnp.take_along_axis(leaves, member // batch, axis=1)
    row = jnp.arange(tables, dtype=jnp.int32)[:, None] * categories + category
    row = jnp.where((category >= 0) & (category < categories), row, tables * categories)
    counts = jnp.zeros((tables * categories, nodes), flows.dtype)
    counts = counts.at[row.reshape(-1)].add(f[leaf, member % batch].reshape(-1, nodes), mode="drop")
    return counts.reshape(tables, categories, nodes)


def read(
    values, scales, table, logs: bool, lookups, slots, offsets, width: int
) -> tuple[Array, Array]:
    """Relative values `[X, E, B, width]` and scales `[X, E, B]`."""
    e, scale = jnp.zeros((), values.dtype), jnp.zeros((), values.dtype)
    for f in range(slots.shape[2]):
        slot = slots[..., f]
        start = None if offsets is None else offsets[..., f]
        stored, looked_up = slot > 0, slot < 0
        run = _runs(values, slot, start, width)
        e = e + jnp.where(stored[..., None, None], run, 0.0)
        scale = scale + jnp.where(stored[..., None], scales[jnp.maximum(slot, 0)], 0.0)
        if lookups is None:
            continue
        row = lookups[jnp.maximum(-1 - slot, 0)]  # [X, E, B]
        column = jnp.arange(width, dtype=jnp.int32) + (
            0 if start is None else start[..., None, None]
        )
        found = table[jnp.maximum(row, 0)[..., None], column]
        found = found if logs else jnp.log(found)
        found = jnp.where((row >= 0)[..., None], found, 0.0)
        found = jnp.where((row == -2)[..., None], jnp.nan, found)
        e = e + jnp.where(looked_up[..., None, None], found, 0.0)
    return e, scale


def _runs(array, slots, offsets, width: int) -> Array:
    """Runs `[X, C, B, width]` at slots `[X, C]` of `[S, B, K]`; anything if it is none."""
    rows = array[jnp.maximum(slots, 0)]
    if offsets is None:
        return rows
    columns = jnp.arange(width, dtype=jnp.int32) + offsets[..., None, None]
    return jnp.take_along_axis(rows, jnp.broadcast_to(columns, (*rows.shape[:-1], width)), axis=-1)


def _operand(p, m, block_shifts, selection, places, elements: int) -> Array:
    """r p of every block's own elements side by side, `[units, blocks, B, own * width]`."""
    units, blocks, own = selection.shape
    batch, width = p.shape[1:]
    x = _selected(_by_unit(p, elements)[places], selection)
    x = x * _ratios(m, block_shifts, selection)[..., None]
    return x.swapaxes(2, 3).reshape(units, blocks, batch, own * width)


def _by_unit(x, elements: int) -> Array:
    """`[units * elements, ...]` as `[units, elements, ...]`."""
    return x.reshape(len(x) // elements, elements, *x.shape[1:])


def _ratios(m, block_shifts, selection) -> Array:
    """r = exp(m - M) `[units, blocks, own, B]`, m `[units, elements, B]`."""
    return jnp.exp(_selected(m, selection) - block_shifts[:, :, None])


def _selected(x, selection) -> Array:
    """What blocks read of `[units, elements, ...]`: `[units, blocks, own, ...]`."""
    return x[jnp.arange(len(x), dtype=jnp.int32)[:, None, None], selection]


def _keep(kept, update, places) -> Array:
    kept = jnp.asarray(kept)
    # Negative places count from the end; what is out of bounds is dropped.
    places = jnp.where(places < 0, kept.shape[-3], places)
    if kept.ndim == 3:
        return kept.at[places].set(update, mode="drop")
    return kept.at[:, places].set(split(update, len(kept)), mode="drop")


def split(x, parts: int) -> Array:
    """See `kernels.split`."""
    found = []
    for _ in range(parts):
        # Not a conversion there and back, which XLA may take for none.
        high = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
        found.append(high.astype(jnp.bfloat16))
        x = x - high
    return jnp.stack(found)


def join(parts) -> Array:
    """The numbers that were split."""
    return parts.astype(jnp.float32).sum(0)


def dense_forward(p, weights, rows, places, starts, units, values, *, product) -> Array:
    """See `kernels.dense_forward`."""
    rows, places = units.take(rows), jnp.maximum(units.take(places), 0)
    s = product(join(p[:, places]), join(weights[:, rows]), ((2,), (2,)), ((0,), (0,)))
    return _write(values, jnp.log(s), units.take(starts))


def dense_backward(q, p, weights, rows, places, starts, units, flows, *, product) -> Array:
    """See `kernels.dense_backward`."""
    rows, places = units.take(rows), jnp.maximum(units.take(places), 0)
    back = product(join(q[:, places]), join(weights[:, rows]), ((2,), (1,)), ((0,), (0,)))
    f = _by_element(join(p[:, places]) * finite(back), flows.shape[2])
    return _write_elements(flows, f, units.take(starts))


def dense_gradient(q, p, copies, *, product) -> Array:
    """See `kernels.dense_gradient`."""
    real, index = (copies >= 0)[..., None, None], jnp.maximum(copies, 0)
    q, p = (jnp.where(real, join(x[:, index]), 0.0) for x in (q, p))  # [rows, copies, B, ...]
    return finite(product(q, p, ((1, 2), (1, 2)), ((0,), (0,))))


def _by_element(f, width: int) -> Array:
    """`[units, B, elements * width]` as `[units, elements, B, width]`."""
    units, batch, children = f.shape
    return f.reshape(units, batch, children // width, width).swapaxes(1, 2)


def _write_elements(flows, f, starts) -> Array:
    units, elements, batch, width = f.shape
    slots = starts[:, None] + jnp.arange(elements, dtype=jnp.int32)
    return _write(flows, f.reshape(units * elements, batch, width), slots.reshape(-1))


def _write(array, update, slots) -> Array:
    return jnp.asarray(array).at[slots].set(update)


def empty(shape: tuple[int, ...], dtype) -> Array:
    """See `kernels.empty`: NaN, so that a read of what was not written shows."""
    return jnp.full(shape, jnp.nan, dtype)
