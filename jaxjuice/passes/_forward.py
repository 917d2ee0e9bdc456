"""The pass bottom-up: values of all leaves and sums, in one array for each width."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from jaxjuice import ops
from jaxjuice.compiler import SumLayer
from jaxjuice.ops import Propagation
from jaxjuice.passes import _scaled
from jaxjuice.passes._walk import (
    Arrays,
    Walk,
    join_blocks,
    layer_inputs,
    layer_weights,
    read_children,
    root_tables,
    run_stage,
)


class Values(NamedTuple):
    """Values `[S, B, K]` relative to their slots' scales `[S, B]`, by width K."""

    relative: Arrays
    scale: Arrays


class Saved(NamedTuple):
    """What the backward pass would have to compute again, of one layer and all its R steps.

    Attributes:
        factor: `[R, quota * blocks, B, N]`, as `ops.exponentiate` returns it; where blocks share
            elements `[R, quota, E, B, width]`, as `ops.exponentiate_elements` does; for maxima
            `[R, quota * blocks, B, M]`, as `ops.choose_children` does.
        shift: `[R, quota, E, B]`, of the elements that blocks share; None where they share none,
            and for maxima.
        block_shift: `[R, quota, blocks, B]`; None where units are single blocks.
    """

    factor: Array
    shift: Array | None
    block_shift: Array | None


def forward(
    walk: Walk,
    weights: dict[str, Array],
    leaf_values: Sequence[Array],
    parts: _scaled.Parts = (),
    *,
    save: bool,
) -> tuple[Array, Values, list[list[Any]]]:
    """Log-likelihoods and all values.

    Args:
        walk: the program and its settings.
        weights: sum parameters by group.
        leaf_values: log-densities `[V, B, K]` of each leaf layer.
        parts: of the scaled layers, see `_scaled`.
        save: whether a backward pass follows.

    Returns:
        `[B, num_roots]`, the values, and, with `save`, what was saved of each layer of each stage:
        `Saved` or, of scaled layers, `ops.ScaledSums` `[R, ...]`.
    """
    program = walk.program
    values = _with_leaves(walk, weights, leaf_values)
    saved = []
    for index, stage in enumerate(program.stages):
        inputs = [layer_inputs(layer, weights[layer.weights.group]) for layer in stage]
        scales = walk.layer_scales(index)
        _scaled.add_inputs(inputs, scales, parts, index)

        def step(values: Values, tables, stage=stage, scales=scales, index=index):
            tables, kept = _scaled.bind_fixed(tables, scales, parts, index), []
            for layer, scale, table in zip(stage, scales, tables, strict=True):
                theta = layer_weights(layer, table, weights[layer.weights.group])
                run = _run_layer if scale is None else partial(_run_scaled_layer, scale)
                values, more = run(walk, layer, values, table, theta, save)
                kept.append(more)
            return values, kept

        values, kept = run_stage(step, values, inputs)
        saved.append(kept)
    return root_elements(walk, values), values, saved


def root_elements(walk: Walk, values: Values) -> Array:
    """The root's log-likelihoods `[B, num_roots]`."""
    root = walk.program.root
    e, scale = read_children(
        values.relative,
        values.scale,
        root_tables(walk.program),
        root.children,
        root.num_elements,
        root.width,
    )
    return (e + scale[..., None]).reshape(e.shape[1], root.num_nodes)


def _with_leaves(walk: Walk, weights, leaf_values: Sequence[Array]) -> Values:
    program = walk.program
    axes = ops.varying_axes(weights, leaf_values)
    batch, dtype = leaf_values[0].shape[1], leaf_values[0].dtype
    relative = {k: jnp.zeros((s, batch, k), dtype) for k, s in program.value_slots.items()}
    scale = {k: jnp.zeros((s, batch), dtype) for k, s in program.value_slots.items()}
    values = ops.match_varying(Values(relative, scale), axes)
    for leaf, value in zip(program.leaves, leaf_values, strict=True):
        array = values.relative[leaf.num_nodes]
        value = ops.match_varying(value, axes)
        values.relative[leaf.num_nodes] = ops.write_slots(array, value, leaf.value_start)
    return values


def _run_layer(
    walk: Walk, layer: SumLayer, values: Values, table, theta: Array, save: bool
) -> tuple[Values, Saved | None]:
    operand, kept = read_operand(walk.propagation, layer, values, table)
    v = ops.sum_layer_forward(operand, theta, walk.propagation, walk.precision)
    values = _write_values(layer, values, table, v, kept.block_shift)
    if layer.num_blocks == 1:
        kept = kept._replace(block_shift=None)
    if not save:
        return values, None
    if walk.propagation.is_max:
        kept = kept._replace(factor=ops.choose_children(operand, theta), shift=None)
    return values, kept


def _run_scaled_layer(
    scale, walk: Walk, layer: SumLayer, values: Values, table, theta: Array, save: bool
) -> tuple[Values, ops.ScaledSums | None]:
    # Maxima are propagated with children as they are, not exponentiated.
    e, kept = read_operand(Propagation("MPE"), layer, values, table)
    sums = _scaled.forward(walk, layer, scale, table, e, theta)
    values = _write_values(layer, values, table, sums.values(), kept.block_shift)
    return values, sums if save else None


def _write_values(
    layer: SumLayer, values: Values, table, v: Array, block_shift: Array | None
) -> Values:
    """Stores `v` `[quota * blocks, B, M]`, relative to the shifts of blocks."""
    assert block_shift is not None
    scale = block_shift.max(1)
    if layer.num_blocks > 1:
        v = v + block_corrections(block_shift)
    v = join_blocks(layer, v)
    k = layer.num_nodes
    return Values(
        {**values.relative, k: ops.write_slots(values.relative[k], v, table["value_start"])},
        {**values.scale, k: ops.write_slots(values.scale[k], scale, table["value_start"])},
    )


def read_operand(
    propagation: Propagation, layer: SumLayer, values: Values, table
) -> tuple[Array, Saved]:
    """The operand of the blocks' products `[quota * blocks, B, N]`, and what it is made of."""
    reads = values.relative, values.scale, table["children"], layer.children
    if not layer.shares_elements:
        e, scale = read_children(*reads, layer.block_elements, layer.width)
        p, shift = ops.exponentiate(e, scale, propagation)
        block_shift = shift.reshape(layer.quota, layer.num_blocks, shift.shape[1])
        return p, Saved(p, None, block_shift)
    e, scale = read_children(*reads, layer.num_elements, layer.width, batch_axis=2)
    p, shift = ops.exponentiate_elements(e, scale, propagation)
    block_shift = ops.block_shifts(shift, table["selection"])
    operand = ops.select_elements(p, shift, block_shift, table["selection"], propagation)
    return operand, Saved(p, shift, block_shift)


def block_corrections(block_shift: Array) -> Array:
    """What the relative values of a unit's blocks gain when they take one scale, the largest.

    From shifts `[units, blocks, B]` to `[units * blocks, B, 1]`.
    """
    units, blocks, batch = block_shift.shape
    correction = block_shift - block_shift.max(1)[:, None]
    return correction.reshape(units * blocks, batch, 1)
