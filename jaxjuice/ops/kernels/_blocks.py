"""Products of units whose blocks read some of the unit's elements each."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxjuice.ops._precision import Role
from jaxjuice.ops._sum_layer import LL, is_dense
from jaxjuice.ops.kernels import _launch, _reference as reference
from jaxjuice.ops.kernels._parts import product_of, products
from jaxjuice.ops.kernels._tiles import (
    block_forward_tile,
    block_gradient_tile,
    element_flows_tile,
    power_of_two,
)
from jaxjuice.ops.kernels._units import Units

# Columns of the gradient's product: nodes of so many readers of an element are summed at once.
_AT_ONCE = 64
# So many shifts of a sample are looked at together, by the product's kernel and by their own.
_SHIFTS_AT_ONCE = 16
_SHIFTS_ALONE = 32
# Each block of a unit looks at what all of them read, up to so much; then that takes longer than
# the start of a kernel.
_FEW_SHIFTS = 64


def forward(
    p: Array,
    shifts: Array,
    places: Array,
    weights: Array,
    rows: Array,
    selection: Array,
    starts: Array,
    units: Units,
    values: Array,
    scales: Array,
    block_shifts: Array,
    elements: int,
    precision: str,
    implementation: str,
) -> tuple[Array, Array, Array]:
    """The values of units whose blocks read some of the unit's elements each.

    Args:
        p, shifts, places: as `exponentiate_apart` returns and takes them.
        weights: theta `[parts, P, M, own * width]`, as `split` returns it.
        rows: int32 `[all units]`, the parameters of each unit.
        selection: int32 `[all units, blocks, own]`: which of its unit's elements a block reads.
        starts: int32 `[all units]`, the slot of each unit.
        units: which units.
        values: `[S, B, M]`.
        scales: `[S, B]`, of the same slots.
        block_shifts: `[number, blocks, B]`: as many units as p has elements for.
        elements: of a unit.
        precision: one of `ops.PRECISIONS`.

    Returns:
        The new values, scales and block shifts. M is the largest shift m of those that a block
        reads, the scale the largest M of a unit, and a value the log of the sum over elements of
        r p theta^T, + M - scale, with r = exp(m - M).
    """
    _, blocks, own = selection.shape
    _, num_elements, batch, width = p.shape
    size = values.shape[2] // blocks
    dense = is_dense(size, own * width, batch, LL)
    role: Role = "dense_forward" if dense else "forward"
    parts, _ = products(precision, role, batch)

    found = blocks * own > _FEW_SHIFTS

    def kernel(*arrays):
        from jaxjuice.ops.kernels.device.blocks import forward_kernel

        if found:
            arrays = (*arrays[:-2], *_block_shifts(arrays, elements))
        tile = block_forward_tile(batch, size, width, parts)
        tiles = -(-batch // tile.rows) * -(-size // tile.columns)
        out = values, scales, block_shifts
        return _launch.launch(
            forward_kernel, *arrays, num_elements, weights.shape[1], batch, elements,
            out=tuple(jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in out),
            aliases={8: 0, 9: 1, 10: 2},
            grid=(tiles * units.count * blocks,), num_warps=tile.warps, num_stages=tile.stages,
            SIZE=size, BLOCKS=blocks, OWN=own, OWN_ROOM=power_of_two(own), WIDTH=width, PARTS=parts,
            FOUND=found, AT_ONCE=min(_SHIFTS_AT_ONCE, power_of_two(blocks * own)),
            ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth,
        )  # fmt: skip

    product = product_of(precision, role, batch)
    plain = partial(reference.forward, elements=elements, product=product)
    return _launch.dispatch(
        implementation, kernel, plain, p, shifts, places, weights, rows, selection, starts, units,
        values, scales, block_shifts,
    )  # fmt: skip


def _block_shifts(arrays: tuple[Any, ...], elements: int) -> tuple[Array, Array]:
    """The new scales and block shifts, from the arrays that `forward` takes."""
    from jaxjuice.ops.kernels.device.blocks import block_shifts_kernel

    _, shifts, places, _, _, selection, starts, units, _, *out = arrays
    _, blocks, own = selection.shape
    batch, own_room = shifts.shape[1], power_of_two(own)
    rows = min(32, power_of_two(batch))
    return _launch.launch(
        block_shifts_kernel, shifts, places, selection, starts, units, *out, batch, elements,
        blocks,
        out=tuple(jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in out),
        aliases={5: 0, 6: 1}, grid=(units.count * -(-batch // rows),), num_warps=4,
        OWN=own, OWN_ROOM=own_room,
        AT_ONCE=max(1, min(power_of_two(blocks), _SHIFTS_ALONE // own_room)), ROWS=rows,
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
    units: Units,
    flows: Array,
    blocks: int,
    precision: str,
    implementation: str,
) -> Array:
    """What the flows of such units do to their elements.

    Args:
        p, shifts, block_shifts, weights, rows, units: as in `forward`, of all units.
        q: as `flow_ratio` keeps it: `[all units, B, M]`, or r q, in parts, for every element
            that a block reads.
        readers: int32 `[all units, elements, 1 + most]`: how many blocks read an element, and of
            each of them, block * own + the element's place among those that the block reads.
        starts: int32 `[all units]`, the slot of each unit's first element.
        flows: `[S, B, width]`.
        blocks: of a unit.

    Returns:
        The new flows, p times the sum over blocks of (r q) theta. What is written for an element
        that no block reads is left open.
    """
    _, elements, most = readers.shape
    p_parts, num_elements, batch, width = p.shape
    own = weights.shape[3] // width
    apart = q.ndim == 4
    size = q.shape[3] if apart else q.shape[2] // blocks
    parts, rounded = products(precision, "backward", batch)

    def kernel(*arrays):
        from jaxjuice.ops.kernels.device.blocks import element_flows_kernel

        tile = element_flows_tile(batch, width, size, parts)
        tiles = -(-batch // tile.rows) * -(-width // tile.columns)
        return _launch.launch(
            element_flows_kernel, *arrays, num_elements, q.shape[-3], weights.shape[1], batch,
            elements, most - 1,
            out=jax.ShapeDtypeStruct(flows.shape, jnp.float32), aliases={9: 0},
            grid=(tiles * units.count * elements,), num_warps=tile.warps, num_stages=tile.stages,
            SIZE=size, BLOCKS=blocks, OWN=own, APART=apart, READERS_ROOM=power_of_two(most - 1),
            WIDTH=width, P_PARTS=p_parts, PARTS=parts, ROUNDED=rounded,
            ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth,
        )  # fmt: skip

    product = product_of(precision, "backward", batch)
    plain = partial(reference.element_flows, blocks=blocks, product=product)
    return _launch.dispatch(
        implementation, kernel, plain, p, shifts, block_shifts, q, weights, rows, readers,
        starts, units, flows,
    )  # fmt: skip


def weight_gradient(
    p: Array,
    shifts: Array,
    block_shifts: Array,
    q: Array,
    selection: Array,
    readers: Array,
    copies: Array,
    factors: Array | None,
    rows: Array,
    precision: str,
    implementation: str,
) -> Array:
    """d LL / d theta of such units, summed over samples.

    Args:
        p, shifts: as in `forward`.
        block_shifts, q, selection, readers: `[all units, ...]`, as in `forward` and
            `element_flows`.
        copies: int32 `[number, copies]`, the units that share each row of parameters, the first of
            them in front; -1 for none.
        factors: `[P, M, own * width]`, what to multiply the result with; None for 1.
        rows: int32 `[number]`, which of the factors.

    Returns:
        `[number, M, own * width]`.
    """
    _, blocks, own = selection.shape
    _, num_elements, batch, width = p.shape
    count, number = copies.shape
    _, elements, most = readers.shape
    apart = q.ndim == 4
    size = q.shape[3] if apart else q.shape[2] // blocks
    nodes = blocks * size
    parts, rounded = products(precision, "backward", batch)
    multiplies = factors is not None

    def kernel(*arrays):
        from jaxjuice.ops.kernels.device.blocks import weight_gradient_kernel

        arrays = (*arrays[:4], *arrays[5:])  # the readers tell what blocks select
        tile = block_gradient_tile(width, size, batch, parts, apart)
        at_once = max(1, min(_AT_ONCE // tile.columns, power_of_two(most - 1)))
        groups = -(-(most - 1) // at_once)
        tiles = -(-width // tile.rows) * -(-size // tile.columns)
        return _launch.launch(
            weight_gradient_kernel, *arrays, num_elements, q.shape[-3], batch, elements, most - 1,
            number, groups,
            out=jax.ShapeDtypeStruct((count, nodes, own * width), jnp.float32),
            grid=(tiles * count * elements * groups,),
            num_warps=tile.warps, num_stages=tile.stages,
            SIZE=size, BLOCKS=blocks, OWN=own, APART=apart, WIDTH=width, MULTIPLY=multiplies,
            PARTS=parts,
            ROUNDED=rounded, READERS=at_once, ROOM=tile.columns, ROWS=tile.rows, DEPTH=tile.depth,
        )  # fmt: skip

    def plain(p, shifts, block_shifts, q, selection, readers, copies, factors, rows):
        del readers
        out = reference.weight_gradient(
            p, shifts, block_shifts, q, selection, copies, elements=elements,
            product=product_of(precision, "backward", batch),
        )  # fmt: skip
        return out * factors[rows] if multiplies else out

    return _launch.dispatch(
        implementation, kernel, plain, p, shifts, block_shifts, q, selection, readers, copies,
        jnp.zeros((1, 1, 1), jnp.float32) if factors is None else factors, rows,
    )  # fmt: skip
