"""The pass bottom-up: values of all leaves and sums, in one array for each width."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from jaxjuice import ops
from jaxjuice.compiler import SumLayer
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
        factor: `[R, quota * blocks, B, N]`, as `ops.exponentiate` returns it, or for maxima
            `[R, quota * blocks, B, M]`, as `ops.choose_children` does.
        correction: `[R, quota * blocks, B]`, what the relative values of a unit's blocks gained
            when they took one scale; None where units are single blocks.
    """

    factor: Array
    correction: Array | None


def forward(
    walk: Walk, weights: dict[str, Array], leaf_values: Sequence[Array], *, save: bool
) -> tuple[Array, Values, list[list[Saved]]]:
    """Log-likelihoods and all values.

    Args:
        walk: the program and its settings.
        weights: sum parameters by group.
        leaf_values: log-densities `[V, B, K]` of each leaf layer.
        save: whether a backward pass follows.

    Returns:
        `[B, num_roots]`, the values, and, with `save`, what was saved of each layer of each stage.
    """
    program = walk.program
    values = _with_leaves(walk, weights, leaf_values)
    saved = []
    for stage in program.stages:
        inputs = [layer_inputs(layer, weights[layer.weights.group]) for layer in stage]

        def step(values: Values, tables, stage=stage):
            kept = []
            for layer, table in zip(stage, tables, strict=True):
                theta = layer_weights(layer, table, weights[layer.weights.group])
                values, more = _run_layer(walk, layer, values, table, theta, save)
                kept.append(more)
            return values, kept

        values, kept = run_stage(step, values, inputs)
        saved.append(kept)
    return root_elements(walk, values), values, saved


def root_elements(walk: Walk, values: Values) -> Array:
    """The root's log-likelihoods `[B, num_roots]`."""
    root = walk.program.root
    e, scale = read_children(values.relative, values.scale, root_tables(walk.program), root.width)
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
    e, scale = read_children(values.relative, values.scale, table["children"], layer.width)
    p, shift = ops.exponentiate(e, scale, walk.propagation)
    v = ops.sum_layer_forward(p, theta, walk.propagation, walk.precision)
    correction = None
    if layer.num_blocks > 1:
        shift, correction = _common_scale(layer, shift)
        v = v + correction[..., None]
    v = join_blocks(layer, v)
    k = layer.num_nodes
    values = Values(
        {**values.relative, k: ops.write_slots(values.relative[k], v, table["value_start"])},
        {**values.scale, k: ops.write_slots(values.scale[k], shift, table["value_start"])},
    )
    if not save:
        return values, None
    factor = ops.choose_children(p, theta) if walk.propagation.is_max else p
    return values, Saved(factor, correction)


def _common_scale(layer: SumLayer, shift: Array) -> tuple[Array, Array]:
    """One scale a unit from those of its blocks `[units * blocks, B]`.

    Returns:
        The units' scales `[units, B]`, and what their blocks' relative values gain.
    """
    blocks = shift.reshape(len(shift) // layer.num_blocks, layer.num_blocks, *shift.shape[1:])
    most = blocks.max(1)
    return most, (blocks - most[:, None]).reshape(shift.shape)
