"""Sum layers on arrays of slots, fused: children are read, and flows pulled, where they lie.

Every function runs as a Triton kernel on NVIDIA GPUs and as plain JAX elsewhere
(`implementation="triton"`), or as plain JAX everywhere ("xla"). Letters as in `jaxjuice.ops`: B
samples, units of M nodes in `blocks` blocks, elements of `width` product nodes. float32 alone.

Arrays that a function returns a new version of (`values`, `flows`, `p`, `shifts`) are written in
place where the caller does not use the old one again.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxjuice.ops._precision import Role, algorithm, dot
from jaxjuice.ops._sum_layer import LL, is_dense
from jaxjuice.ops.kernels import _reference as reference
from jaxjuice.ops.kernels._launch import (
    KernelWarning as KernelWarning,
    available as available,
    compute_capability,
    dispatch,
    launch,
    num_devices as num_devices,
)
from jaxjuice.ops.kernels._tiles import power_of_two, product_tile, row_tile

_Preset = lax.DotAlgorithmPreset
# What `_arithmetic.dot` calls the algorithms of `ops.algorithm`.
_MODES = {
    None: "ieee",
    _Preset.BF16_BF16_F32: "bf16",
    _Preset.TF32_TF32_F32: "tf32",
    _Preset.BF16_BF16_F32_X3: "bf16x3",
    _Preset.TF32_TF32_F32_X3: "tf32x3",
}


# How many reads of a thread are in flight. A table's length is no constant of a kernel: every
# constant costs a compilation.
_CHUNK = 4


def empty(shape: tuple[int, ...], label: int, implementation: str) -> Array:
    """float32 of any values, for arrays of which nothing is read before it is written.

    XLA makes one of two equal calls, and a copy where both are written to: every array of a program
    needs a `label` of its own.
    """

    if 0 in shape:
        return reference.empty(shape)

    def kernel(label):
        from jaxjuice.ops.kernels._children import empty_kernel

        out = jax.ShapeDtypeStruct(shape, jnp.float32)
        return launch(empty_kernel, label, out=out, grid=(1,), num_warps=1)

    return dispatch(
        implementation, kernel, lambda _: reference.empty(shape), jnp.full(1, label, jnp.int32)
    )


def exponentiate(
    values: Array,
    scales: Array,
    table: Array | None,
    lookups: Array | None,
    slots: Array,
    offsets: Array | None,
    unit_scales: Array | None,
    starts: Array,
    step: Array,
    places: Array,
    kept: Array | None,
    width: int,
    implementation: str,
) -> tuple[Array, Array | None, Array]:
    """p = exp(e - m) of one step, with one shift for all elements of a unit.

    Args:
        values, scales: `[S, B, K]` relative to `[S, B]`.
        table: `[rows, K]`, probabilities of leaves that have no slot; None where there are none.
        lookups: int32 `[V, B]`, the row of every such leaf; -1 for a value of 0, -2 for NaN.
        slots: int32 `[steps, units, elements, factors]`: where factors are; 0 for none, -1 - v for
            leaf v.
        offsets: the same shape, where in its slot a factor starts; None where `width` is K.
        unit_scales: the array of the units' scales; None where it is `scales`.
        starts: int32 `[steps]`, the slot of the first unit.
        step: int32 `[1]`.
        places: int32 `[steps, units]`: where in `kept` each unit goes; -1 for nowhere.
        kept: `[number, B, elements * width]`; None if no p is kept.
        width: nodes of an element.

    Returns:
        p `[units, B, elements * width]`, the new `kept`, and the new array of the units' scales,
        which are m; finite even where all children are -inf.
    """
    units, elements = slots.shape[1:3]
    p = units, values.shape[1], elements * width
    arrays = (
        values, scales, table, lookups, slots, offsets, starts, step, places, kept, unit_scales,
    )  # fmt: skip
    p, kept_now, scales = _exponentiate(arrays, p, width, True, implementation)
    return p, None if kept is None else kept_now, scales


def exponentiate_apart(
    values: Array,
    scales: Array,
    table: Array | None,
    lookups: Array | None,
    slots: Array,
    offsets: Array | None,
    step: Array,
    p: Array,
    shifts: Array,
    implementation: str,
) -> tuple[Array, Array]:
    """p = exp(e - m) of one step, with a shift for each element.

    Args:
        values, scales, table, lookups, slots, offsets, step: as in `exponentiate`.
        p, shifts: `[steps * units * elements, B, width]` and the same without the width.

    Returns:
        The new p and shifts. What is written for an element without factors is left open.
    """
    steps, units, elements, factors = slots.shape
    slots = slots.reshape(steps, units * elements, 1, factors)
    offsets = None if offsets is None else offsets.reshape(slots.shape)
    starts = jnp.arange(steps, dtype=jnp.int32) * (units * elements)
    arrays = values, scales, table, lookups, slots, offsets, starts, step, starts, p, shifts
    _, p, shifts = _exponentiate(arrays, (1,), p.shape[2], False, implementation)
    return p, shifts


def _exponentiate(arrays, p, width: int, joint: bool, implementation: str):
    """Both of the above; `p` is the shape of the first output. Elements are groups if not joint."""
    values, scales, table, lookups, slots, offsets, starts, step, places, kept, shifts = arrays
    has_table, has_offsets, keeps = table is not None, offsets is not None, kept is not None
    _, groups, elements, factors = slots.shape
    batch, k = values.shape[1:]
    in_place = shifts is None
    none, none_int = jnp.zeros(1, jnp.float32), jnp.zeros((1, 1), jnp.int32)

    def plain(values, scales, table, lookups, slots, offsets, starts, step, places, kept, shifts):
        table, lookups = (table, lookups) if has_table else (None, None)
        return reference.exponentiate(
            values, scales, table, lookups, slots, offsets if has_offsets else None, starts, step,
            places, kept, scales if in_place else shifts, width=width, joint=joint, keeps=keeps,
        )  # fmt: skip

    def kernel(*arrays):
        from jaxjuice.ops.kernels._children import exponentiate_kernel

        one_tile = elements == 1 and power_of_two(width) <= 4096
        tile = row_tile(batch, width)
        outputs = p, (kept if keeps else none).shape, (scales if in_place else shifts).shape
        return launch(
            exponentiate_kernel, *arrays, batch, groups, elements, factors,
            out=tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in outputs),
            aliases=({1: 2} if in_place else {10: 2}) | ({9: 1} if keeps else {}),
            grid=(groups * -(-batch // tile.rows),), num_warps=tile.warps,
            K=k, WIDTH=width, CHUNK=min(factors, _CHUNK), HAS_LOOKUPS=has_table,
            HAS_OFFSETS=has_offsets, JOINT=joint, KEEP=keeps, ONE_TILE=one_tile,
            ROWS=tile.rows, COLUMNS=tile.columns,
        )  # fmt: skip

    return dispatch(
        implementation, kernel, plain, values, scales,
        none if table is None else table, none_int if lookups is None else lookups, slots,
        none_int if offsets is None else offsets, starts, step, places,
        none if kept is None else kept, none if shifts is None else shifts,
    )  # fmt: skip


def forward(
    p: Array,
    shifts: Array,
    block_shifts: Array,
    unit_shifts: Array,
    weights: Array,
    rows: Array,
    selection: Array,
    starts: Array,
    step: Array,
    values: Array,
    elements: int,
    precision: str,
    implementation: str,
) -> Array:
    """The values of units whose blocks read some of the unit's elements each.

    Args:
        p, shifts: as `exponentiate_apart` returns them.
        block_shifts: M `[units, blocks, B]`, the largest shift of those that a block reads.
        unit_shifts: `[units, B]`, what the values become relative to.
        weights: theta `[P, M, own * width]`.
        rows: int32 `[steps, units]`, the parameters of each unit.
        selection: int32 `[steps, units, blocks, own]`: which of its unit's elements a block reads.
        starts: int32 `[steps]`, the slot of the first unit.
        step: int32 `[1]`.
        values: `[S, B, M]`.
        elements: of a unit.
        precision: one of `ops.PRECISIONS`.

    Returns:
        The new values: log of the sum over elements of r p theta^T, + M - unit shift, with
        r = exp(m - M).
    """
    _, units, blocks, own = selection.shape
    batch, width = p.shape[1:]
    size = values.shape[2] // blocks
    dense = is_dense(size, own * width, batch, LL)
    role: Role = "dense_forward" if dense else "forward"
    mode = _mode(precision, role, batch)

    def kernel(*arrays):
        from jaxjuice.ops.kernels._products import forward_kernel

        tile = product_tile(batch, size, width, mode, compute_capability() or 90)
        tiles = -(-batch // tile.rows) * -(-size // tile.columns)
        return launch(
            forward_kernel, *arrays, batch, units, elements,
            out=jax.ShapeDtypeStruct(values.shape, jnp.float32), aliases={9: 0},
            grid=(tiles * units * blocks,), num_warps=tile.warps, num_stages=tile.stages,
            SIZE=size, BLOCKS=blocks, OWN=own, WIDTH=width, MODE=mode,
            ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth,
        )  # fmt: skip

    product = _product(precision, role, batch)
    plain = partial(reference.forward, elements=elements, product=product)
    return dispatch(
        implementation, kernel, plain, p, shifts, block_shifts, unit_shifts, weights, rows,
        selection, starts, step, values,
    )  # fmt: skip


def element_flows(
    p: Array,
    shifts: Array,
    block_shifts: Array,
    q: Array,
    weights: Array,
    rows: Array,
    readers: Array,
    starts: Array,
    step: Array,
    flows: Array,
    blocks: int,
    precision: str,
    implementation: str,
) -> Array:
    """What the flows of such units do to their elements.

    Args:
        p, shifts, block_shifts, weights, rows, step: as in `forward`.
        q: `[units, B, M]`, as `flow_ratio` returns it.
        readers: int32 `[steps, units, elements, 1 + most]`: how many blocks read an element, and of
            each of them, block * own + the element's place among those that the block reads.
        starts: int32 `[steps]`, the slot of the first unit's first element.
        flows: `[S, B, width]`.
        blocks: of a unit.

    Returns:
        The new flows, p times the sum over blocks of (r q) theta. What is written for an element
        that no block reads is left open.
    """
    _, units, elements, most = readers.shape
    batch, width = p.shape[1:]
    size, own = q.shape[2] // blocks, weights.shape[2] // width
    mode = _mode(precision, "backward", batch)

    def kernel(*arrays):
        from jaxjuice.ops.kernels._products import element_flows_kernel

        tile = product_tile(batch, width, size, mode, compute_capability() or 90)
        tiles = -(-batch // tile.rows) * -(-width // tile.columns)
        return launch(
            element_flows_kernel, *arrays, batch, units, elements, most - 1,
            out=jax.ShapeDtypeStruct(flows.shape, jnp.float32), aliases={9: 0},
            grid=(tiles * units * elements,), num_warps=tile.warps, num_stages=tile.stages,
            SIZE=size, BLOCKS=blocks, OWN=own, WIDTH=width, MODE=mode,
            ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth,
        )  # fmt: skip

    product = _product(precision, "backward", batch)
    plain = partial(reference.element_flows, blocks=blocks, product=product)
    return dispatch(
        implementation, kernel, plain, p, shifts, block_shifts, q, weights, rows, readers,
        starts, step, flows,
    )  # fmt: skip


def weight_gradient(
    p: Array,
    shifts: Array,
    block_shifts: Array,
    q: Array,
    selection: Array,
    copies: Array,
    elements: int,
    precision: str,
    implementation: str,
) -> Array:
    """d LL / d theta of such units, summed over samples.

    Args:
        p, shifts: as in `forward`.
        block_shifts, q, selection: `[units, ...]` as in `forward`, of all steps.
        copies: int32 `[rows, number]`, the units that share each row of parameters; -1 for none.
        elements: of a unit.

    Returns:
        `[rows, M, own * width]`.
    """
    _, blocks, own = selection.shape
    batch, width = p.shape[1:]
    nodes, (count, number) = q.shape[2], copies.shape
    size = nodes // blocks
    mode = _mode(precision, "backward", batch)

    def kernel(*arrays):
        from jaxjuice.ops.kernels._products import weight_gradient_kernel

        tile = product_tile(width, size, batch, mode, compute_capability() or 90)
        tiles = -(-width // tile.rows) * -(-size // tile.columns)
        return launch(
            weight_gradient_kernel, *arrays, batch, elements, number,
            out=jax.ShapeDtypeStruct((count, nodes, own * width), jnp.float32),
            grid=(tiles * count * blocks * own,), num_warps=tile.warps, num_stages=tile.stages,
            SIZE=size, BLOCKS=blocks, OWN=own, WIDTH=width, MODE=mode,
            ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth,
        )  # fmt: skip

    product = _product(precision, "backward", batch)
    plain = partial(reference.weight_gradient, elements=elements, product=product)
    return dispatch(implementation, kernel, plain, p, shifts, block_shifts, q, selection, copies)


def flow_ratio(
    values: Array,
    flows: Array,
    slots: Array,
    offsets: Array | None,
    corrections: Array | None,
    starts: Array,
    step: Array,
    places: Array,
    kept: Array,
    implementation: str,
) -> tuple[Array, Array]:
    """q = f / s of the units of one step, 0 where f or s is.

    Args:
        values: `[S, B, M]`.
        flows: `[S', B, w]`.
        slots: int32 `[steps, units, pieces, n]`: where the flows of a piece of a unit are; 0 for
            none.
        offsets: the same shape; None where pieces are as wide as slots.
        corrections: `[units, blocks, B]`, what the relative values of blocks gained; None for 0.
        starts: int32 `[steps]`, the slot of the first unit.
        step: int32 `[1]`.
        places: int32 `[steps, units]`: where in `kept` each unit goes; -1 for nowhere.
        kept: `[number, B, M]`.

    Returns:
        q `[units, B, M]`, and the new `kept`.
    """
    _, units, pieces, reads = slots.shape
    _, batch, nodes = values.shape
    has_offsets = offsets is not None
    blocks = 1 if corrections is None else corrections.shape[1]

    def plain(values, flows, slots, offsets, corrections, starts, step, places, kept):
        offsets = offsets if has_offsets else None
        return reference.flow_ratio(
            values, flows, slots, offsets, corrections, starts, step, places, kept, blocks=blocks
        )

    def kernel(*arrays):
        from jaxjuice.ops.kernels._flows import flow_ratio_kernel

        size = nodes // pieces
        tile = row_tile(batch, size, 1024)
        shapes = (units, batch, nodes), kept.shape
        return launch(
            flow_ratio_kernel, *arrays, batch, units, reads,
            out=tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes),
            aliases={8: 1}, num_warps=tile.warps,
            grid=(units * pieces * -(-batch // tile.rows) * -(-size // tile.columns),),
            NODES=nodes, BLOCKS=blocks, PIECES=pieces, WIDTH=flows.shape[2],
            CHUNK=min(reads, _CHUNK), HAS_OFFSETS=has_offsets, ROWS=tile.rows, COLUMNS=tile.columns,
        )  # fmt: skip

    return dispatch(
        implementation, kernel, plain, values, flows, slots,
        jnp.zeros((1, 1, 1), jnp.int32) if offsets is None else offsets,
        jnp.zeros((1, 1, 1), jnp.float32) if corrections is None else corrections, starts, step,
        places, kept,
    )  # fmt: skip


def scale_flows(
    kept: Array,
    back: Array,
    places: Array,
    starts: Array,
    step: Array,
    flows: Array,
    implementation: str,
) -> Array:
    """The element flows of one step of units that are one product each.

    Args:
        kept: p, as `exponentiate` keeps it.
        back: q theta, `[units, B, elements * width]`.
        places: as in `exponentiate`.
        starts: int32 `[steps]`, the slot of the first unit's first element.
        step: int32 `[1]`.
        flows: `[S, B, width]`.

    Returns:
        The new flows. What is written for units without a place is left open.
    """
    units, batch, children = back.shape
    width = flows.shape[2]

    def kernel(*arrays):
        from jaxjuice.ops.kernels._children import scale_kernel

        tile = row_tile(batch, width, 1024)
        elements = children // width
        return launch(
            scale_kernel, *arrays, batch, units, elements,
            out=jax.ShapeDtypeStruct(flows.shape, jnp.float32), aliases={5: 0},
            grid=(units * elements * -(-batch // tile.rows) * -(-width // tile.columns),),
            num_warps=tile.warps, WIDTH=width, ROWS=tile.rows,
            COLUMNS=tile.columns,
        )  # fmt: skip

    return dispatch(
        implementation, kernel, reference.scale_flows, kept, back, places, starts, step, flows
    )


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

    def plain(flows, slots, offsets, keys, leaves):
        offsets = offsets if has_offsets else None
        return reference.leaf_counts(
            flows, slots, offsets, keys, leaves, first=first, categories=categories, nodes=nodes
        )

    def kernel(flows, slots, offsets, keys, leaves):
        from jaxjuice.ops.kernels._flows import leaf_counts_kernel

        tile = row_tile(1, nodes, 1024)
        return launch(
            leaf_counts_kernel, flows, slots, offsets, keys, members, leaves, first, categories,
            batch, reads,
            out=jax.ShapeDtypeStruct((tables, categories, nodes), jnp.float32),
            grid=(tables * categories, -(-nodes // tile.columns)), num_warps=tile.warps,
            NODES=nodes, PIECES=pieces, WIDTH=flows.shape[2], CHUNK=min(reads, _CHUNK),
            HAS_OFFSETS=has_offsets, COLUMNS=tile.columns,
        )  # fmt: skip

    offsets = jnp.zeros((1, 1, 1), jnp.int32) if offsets is None else offsets
    return dispatch(implementation, kernel, plain, flows, slots, offsets, keys, leaves)


def _mode(precision: str, role: Role, batch: int) -> str:
    return _MODES[algorithm(precision, role, batch)]


def _product(precision: str, role: Role, batch: int) -> Any:
    def product(a, b, contract, batched):
        return dot(a, b, contract, batch=batched, precision=precision, role=role, num_samples=batch)

    return product
