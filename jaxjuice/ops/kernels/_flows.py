"""Flows, pulled from where they lie: ratios of sum nodes, counts of leaves."""

import jax
import jax.numpy as jnp
from jax import Array

from jaxjuice.ops.kernels import _launch, _reference as reference
from jaxjuice.ops.kernels._tiles import row_tile
from jaxjuice.ops.kernels._units import Units

# How many reads of a thread are in flight. A table's length is no constant of a kernel: every
# constant costs a compilation.
_CHUNK = 4
# See `leaf_counts`.
_MANY_READS = 4


def keeps_apart(blocks: int, nodes: int, own: int, elements: int, width: int) -> bool:
    """Whether q is kept for every element that a block reads, in parts and relative to the element.

    The products of the pass backward then have both operands as they lie. A fixed rule: only where
    this is no more than p.

    Args:
        blocks, nodes: of a unit.
        own: elements that a block reads.
        elements, width: of a unit, and of an element.
    """
    return blocks > 1 and nodes * own <= elements * width


def flow_ratio(
    values: Array,
    flows: Array,
    slots: Array,
    offsets: Array | None,
    block_shifts: Array | None,
    scales: Array | None,
    apart: tuple[Array, Array] | None,
    starts: Array,
    units: Units,
    places: Array,
    kept: Array | None,
    after: Array,
    writes: bool,
    implementation: str,
) -> tuple[Array | None, Array | None]:
    """q = f / s of some units, 0 where f or s is.

    Args:
        values: `[S, B, M]`.
        flows: `[S', B, w]`.
        slots: int32 `[all units, pieces, n]`: where the flows of a piece of a unit are; 0 for
            none.
        offsets: the same shape; None where pieces are as wide as slots.
        block_shifts, scales: of units of several blocks, `[all units, blocks, B]` and `[S, B]`:
            what the sums of a block and the values of a unit are relative to; None of others.
        apart: None; if r q is kept, for every element that a block reads, shifts m and selection as
            `forward` takes them.
        starts: int32 `[all units]`, the slot of each unit.
        units: which units.
        places: int32 `[all units]`: where in `kept` each unit goes; -1 for nowhere.
        kept: `[number, B, M]`, or bfloat16 `[parts, number, B, M]`; None if no q is kept. With
            `apart` bfloat16 `[parts, all units * blocks * own, B, M / blocks]`.
        after: as in `exponentiate`.
        writes: whether q of these units is wanted by itself.

    Returns:
        q `[count, B, M]` or None, and the new `kept`.
    """
    all_units, pieces, reads = slots.shape
    _, batch, nodes = values.shape
    has_offsets = offsets is not None
    blocks = 1 if block_shifts is None else block_shifts.shape[1]
    keeps = kept is not None
    parts = kept.shape[0] if keeps and kept.ndim == 4 else 0
    shifts, selection = (None, None) if apart is None else apart
    own = 0 if selection is None else selection.shape[2]

    def plain(
        values, flows, slots, offsets, block_shifts, scales, shifts, selection, starts, units,
        places, kept, after,
    ):  # fmt: skip
        del after
        offsets = offsets if has_offsets else None
        return reference.flow_ratio(
            values, flows, slots, offsets, block_shifts, scales, shifts if own else None,
            selection, starts, units, places, kept, blocks=blocks, writes=writes, keeps=keeps,
        )  # fmt: skip

    def kernel(*arrays):
        from jaxjuice.ops.kernels.device.flows import flow_ratio_kernel

        size = nodes // pieces
        tile = row_tile(batch, size, 1024)
        *_, before, _ = arrays
        now = (units.count, batch, nodes) if writes else (1,)
        outputs = jax.ShapeDtypeStruct(now, jnp.float32), before
        return _launch.launch(
            flow_ratio_kernel, *arrays, batch, reads,
            len(shifts) // all_units if shifts is not None else 0,
            before.shape[-3] if keeps else 1,
            out=tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs),
            aliases={11: 1} if keeps else {}, num_warps=tile.warps,
            grid=(units.count * pieces * -(-batch // tile.rows) * -(-size // tile.columns),),
            NODES=nodes, BLOCKS=blocks, OWN=own, PIECES=pieces, WIDTH=flows.shape[2],
            CHUNK=min(reads, _CHUNK), HAS_OFFSETS=has_offsets, WRITE=writes, KEEP=keeps,
            PARTS=parts, ROWS=tile.rows, COLUMNS=tile.columns,
        )  # fmt: skip

    q, kept_now = _launch.dispatch(
        implementation, kernel, plain, values, flows, slots,
        jnp.zeros((1, 1, 1), jnp.int32) if offsets is None else offsets,
        jnp.zeros((1, 1, 1), jnp.float32) if block_shifts is None else block_shifts,
        jnp.zeros((1, 1), jnp.float32) if scales is None else scales,
        jnp.zeros((1, 1), jnp.float32) if shifts is None else shifts,
        jnp.zeros((1, 1, 1), jnp.int32) if selection is None else selection,
        starts, units, places,
        jnp.zeros(1, jnp.float32) if kept is None else kept, after,
    )  # fmt: skip
    return q if writes else None, kept_now if keeps else None


def leaf_counts(
    flows: Array,
    slots: Array,
    offsets: Array | None,
    keys: Array,
    leaves: Array,
    first: int,
    categories: int,
    nodes: int,
    implementation: str,
) -> Array:
    """The flows of every category of leaves, added up over samples and tied leaves.

    Args:
        flows: `[S, B, w]`.
        slots: int32 `[V, pieces, n]`: where the flows of a piece of a leaf are; 0 for none.
        offsets: the same shape; None where pieces are as wide as slots.
        keys: int32 `[P, members]`, ascending: category * members + member, where member
            v * B + b of table p is sample b of the leaf `leaves[p, v]`.
        leaves: int32 `[P, members // B]`.
        first, categories: which categories to count.
        nodes: of a leaf.

    Returns:
        `[P, categories, nodes]`, the same in every run: terms are added in the order of `keys`.
    """
    tables, members = keys.shape
    pieces, reads = slots.shape[1:]
    batch = flows.shape[1]
    has_offsets = offsets is not None
    # Flows that many leaves read are read again from the GPU's cache, if programs that run at a
    # time have few columns of all of them.
    shared = reads >= _MANY_READS
    most, at_once, chunk = (128, 4, 2 * _CHUNK) if shared else (1024, 1, _CHUNK)

    def plain(flows, slots, offsets, keys, leaves):
        offsets = offsets if has_offsets else None
        return reference.leaf_counts(
            flows, slots, offsets, keys, leaves, first=first, categories=categories, nodes=nodes
        )

    def kernel(flows, slots, offsets, keys, leaves):
        from jaxjuice.ops.kernels.device.flows import leaf_counts_kernel

        tile = row_tile(1, nodes, most)
        return _launch.launch(
            leaf_counts_kernel, flows, slots, offsets, keys, leaves, members, first, categories,
            batch, reads,
            out=jax.ShapeDtypeStruct((tables, categories, nodes), jnp.float32),
            grid=(tables * -(-categories // at_once), -(-nodes // tile.columns)),
            num_warps=tile.warps, NODES=nodes, PIECES=pieces, WIDTH=flows.shape[2],
            CHUNK=min(reads, chunk), HAS_OFFSETS=has_offsets, AT_ONCE=at_once,
            COLUMNS=tile.columns,
        )  # fmt: skip

    offsets = jnp.zeros((1, 1, 1), jnp.int32) if offsets is None else offsets
    return _launch.dispatch(implementation, kernel, plain, flows, slots, offsets, keys, leaves)
