"""Elements, exponentiated where they lie, and their flows."""

import jax
import jax.numpy as jnp
from jax import Array

from jaxjuice.ops.kernels import _launch, _reference as reference
from jaxjuice.ops.kernels._tiles import power_of_two, row_tile
from jaxjuice.ops.kernels._units import Units

# How many reads of a thread are in flight. A table's length is no constant of a kernel: every
# constant costs a compilation.
_CHUNK = 4


def exponentiate(
    values: Array,
    scales: Array,
    table: Array | None,
    logs: bool,
    lookups: Array | None,
    slots: Array,
    offsets: Array | None,
    unit_scales: Array | None,
    starts: Array,
    units: Units,
    places: Array,
    kept: Array | None,
    after: Array,
    width: int,
    by_sample: bool,
    implementation: str,
) -> tuple[Array | None, Array | None, Array]:
    """p = exp(e - m) of some units, with one shift for all elements of a unit.

    Args:
        values, scales: `[S, B, K]` relative to `[S, B]`.
        table: `[rows, K]`, probabilities of leaves that have no slot; None where there are none.
        logs: whether the table holds their logarithms.
        lookups: int32 `[V, B]`, the row of every such leaf; -1 for a value of 0, -2 for NaN.
        slots: int32 `[all units, elements, factors]`: where factors are; 0 for none, -1 - v for
            leaf v.
        offsets: the same shape, where in its slot a factor starts; None where `width` is K.
        unit_scales: the array of the units' scales; None where it is `scales`.
        starts: int32 `[all units]`, the slot of each unit.
        units: which units.
        places: int32 `[all units]`: where in `kept` each unit goes; -1 for nowhere.
        kept: `[number, B, elements * width]`, or bfloat16 `[parts, number, B, elements * width]`;
            None if no p is kept.
        after: an array of whatever must have run before. XLA copies what it does not know to be
            read before it is written to again.
        width: nodes of an element.
        by_sample: whether programs that run at a time read few samples of many elements, so that
            what several elements read is in the cache; else, many samples of few elements.

    Returns:
        p `[count, B, elements * width]`, or None if it is kept in parts; the new `kept`; and the
        new array of the units' scales, which are m; finite even where all children are -inf.
    """
    elements = slots.shape[1]
    in_parts = kept is not None and kept.ndim == 4
    p = None if in_parts else (units.count, values.shape[1], elements * width)
    arrays = (
        values, scales, table, lookups, slots, offsets, starts, units, places, kept, unit_scales,
        after,
    )  # fmt: skip
    p, kept_now, scales = _exponentiate(arrays, p, width, logs, True, by_sample, implementation)
    return None if in_parts else p, None if kept is None else kept_now, scales


def exponentiate_apart(
    values: Array,
    scales: Array,
    table: Array | None,
    logs: bool,
    lookups: Array | None,
    slots: Array,
    offsets: Array | None,
    places: Array,
    units: Units,
    p: Array,
    shifts: Array,
    after: Array,
    by_sample: bool,
    implementation: str,
) -> tuple[Array, Array]:
    """p = exp(e - m) of some units, with a shift for each element.

    Args:
        values, scales, table, logs, lookups, slots, offsets, units, after, by_sample: as in
            `exponentiate`.
        places: int32 `[all units]`: where in p and shifts each unit goes, with all its elements.
        p: bfloat16 `[parts, number, B, width]`.
        shifts: `[number, B]`.

    Returns:
        The new p and shifts. What is written for an element without factors is left open.
    """
    slots = slots.reshape(-1, 1, slots.shape[2])
    offsets = None if offsets is None else offsets.reshape(slots.shape)
    arrays = (
        values, scales, table, lookups, slots, offsets, places, units, places, p, shifts, after,
    )  # fmt: skip
    _, p, shifts = _exponentiate(arrays, None, p.shape[3], logs, False, by_sample, implementation)
    return p, shifts


def _exponentiate(
    arrays, p, width: int, logs: bool, joint: bool, by_sample: bool, implementation: str
):
    """Both of the above; `p` is the shape of the first output, if there is one.

    Elements are groups if not joint.
    """
    values, scales, table, lookups, slots, offsets, starts, units, places, kept, shifts, after = (
        arrays
    )
    has_table, has_offsets, keeps = table is not None, offsets is not None, kept is not None
    all_groups, elements, factors = slots.shape
    per_unit = all_groups // len(places)
    groups = units.count * per_unit
    batch, k = values.shape[1:]
    in_place = shifts is None
    parts = kept.shape[0] if keeps and kept.ndim == 4 else 0
    none, none_int = jnp.zeros(1, jnp.float32), jnp.zeros((1, 1), jnp.int32)

    def plain(
        values, scales, table, lookups, slots, offsets, starts, units, places, kept, shifts, after
    ):
        del after
        table, lookups = (table, lookups) if has_table else (None, None)
        return reference.exponentiate(
            values, scales, table, lookups, slots, offsets if has_offsets else None, starts, units,
            places, kept, scales if in_place else shifts, width=width, logs=logs, joint=joint,
            writes=p is not None, keeps=keeps,
        )  # fmt: skip

    def kernel(*arrays):
        from jaxjuice.ops.kernels.device.children import exponentiate_kernel

        one_tile = elements == 1 and power_of_two(width) <= 4096
        tile = row_tile(batch, width)
        before = kept if keeps else none
        now = none if p is None else jax.ShapeDtypeStruct(p, jnp.float32)
        outputs = now, before, scales if in_place else shifts
        return _launch.launch(
            exponentiate_kernel, *arrays, batch, groups, per_unit, elements, factors,
            before.shape[-3] if keeps else 1,
            out=tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs),
            aliases=({1: 2} if in_place else {10: 2}) | ({9: 1} if keeps else {}),
            grid=(groups * -(-batch // tile.rows),), num_warps=tile.warps,
            K=k, WIDTH=width, CHUNK=min(factors, _CHUNK), HAS_LOOKUPS=has_table,
            LOGS=logs and has_table, HAS_OFFSETS=has_offsets, JOINT=joint, BY_SAMPLE=by_sample,
            WRITE=p is not None, KEEP=keeps, PARTS=parts, ONE_TILE=one_tile, ROWS=tile.rows,
            COLUMNS=tile.columns,
        )  # fmt: skip

    return _launch.dispatch(
        implementation, kernel, plain, values, scales,
        none if table is None else table, none_int if lookups is None else lookups, slots,
        none_int if offsets is None else offsets, starts, units, places,
        none if kept is None else kept, none if shifts is None else shifts, after,
    )  # fmt: skip


def scale_flows(
    kept: Array,
    back: Array,
    places: Array,
    starts: Array,
    units: Units,
    flows: Array,
    implementation: str,
) -> Array:
    """The element flows of some units that are one product each.

    Args:
        kept: p, as `exponentiate` keeps it.
        back: q theta of these units, `[count, B, elements * width]`.
        places, units: as in `exponentiate`.
        starts: int32 `[all units]`, the slot of each unit's first element.
        flows: `[S, B, width]`.

    Returns:
        The new flows. What is written for units without a place is left open.
    """
    count, batch, children = back.shape
    width = flows.shape[2]

    def kernel(*arrays):
        from jaxjuice.ops.kernels.device.children import scale_kernel

        tile = row_tile(batch, width, 1024)
        elements = children // width
        return _launch.launch(
            scale_kernel, *arrays, batch, elements,
            out=jax.ShapeDtypeStruct(flows.shape, jnp.float32), aliases={5: 0},
            grid=(count * elements * -(-batch // tile.rows) * -(-width // tile.columns),),
            num_warps=tile.warps, WIDTH=width, ROWS=tile.rows,
            COLUMNS=tile.columns,
        )  # fmt: skip

    return _launch.dispatch(
        implementation, kernel, reference.scale_flows, kept, back, places, starts, units, flows
    )
