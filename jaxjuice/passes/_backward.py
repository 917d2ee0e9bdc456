"""The pass top-down: flows of all elements, leaves and parameters.

Every unit *pulls* its flow from the elements that it is a factor of, so nothing is scattered and
the result does not depend on an order of execution. Parameter gradients are products of two
factors, q and what the pass forward saved, taken after the loops, one product over all steps of
a layer: a batch that is sharded over devices is reduced once for every parameter, never in a loop.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxjuice import ops
from jaxjuice.compiler import SumLayer
from jaxjuice.ops import Propagation
from jaxjuice.passes import _scaled
from jaxjuice.passes._forward import Saved, Values, block_corrections, read_operand
from jaxjuice.passes._walk import (
    Arrays,
    LayerScale,
    Walk,
    flat_entries,
    layer_inputs,
    layer_weights,
    leaf_tables,
    parameter_copies,
    read_flows,
    run_stage,
    split_blocks,
    split_elements,
    stack_entries,
)


class Gradients(NamedTuple):
    """What a backward pass brings.

    Attributes:
        weights: by group, sum_b q p of the layers that ran as plain sums: theta times it are their
            parameter flows, and it is d LL / d theta.
        scaled: by group, the statistics of the layers that ran scaled.
        leaves: flows `[V, B, K]` of each leaf layer.
        parts: cotangents of the parts of scaled layers.
    """

    weights: dict[str, Array]
    scaled: dict[str, _scaled.Statistics]
    leaves: list[Any]
    parts: Any


def backward(
    walk: Walk,
    weights: dict[str, Array],
    parts: _scaled.Parts,
    values: Values,
    saved: Sequence[Sequence[Any]],
    lls: Array,
    root_flows: Array,
    for_flows: bool = False,
) -> Gradients:
    """Gradients by hand.

    Args:
        walk: the program and its settings.
        weights: sum parameters by group.
        parts: of the scaled layers, as in `forward`.
        values, saved, lls: what `forward` returned.
        root_flows: `[B, num_roots]`, any sign; counts as 0 where the root is -inf.
        for_flows: whether the statistics of scaled layers are for an M-step, and may be less exact
            than gradients.
    """
    program = walk.program
    # All reads of the values below are reads of one finished array, so none of it is copied.
    values = lax.optimization_barrier(values)
    root_flows = jnp.where(lls > -jnp.inf, root_flows, jnp.zeros_like(root_flows))
    flows = _with_root(walk, values, root_flows)
    gradients = _Gradients(weights)
    axes = ops.varying_axes(values, root_flows, parts)
    parts_out: list[list[Any]] = []
    for index, (stage, kept) in reversed(list(enumerate(zip(program.stages, saved, strict=True)))):
        inputs = [layer_inputs(layer, weights[layer.weights.group]) for layer in stage]
        scales = walk.layer_scales(index)
        _scaled.add_inputs(inputs, scales, parts, index)
        for layer, scale, table, more in zip(stage, scales, inputs, kept, strict=True):
            table["saved"] = more
            if scale is not None:
                table["statistic_rows"] = jnp.asarray(layer.weights.rows)
        totals = [
            None if scale is None else _scaled.zero_statistics(layer, weights[layer.weights.group])
            for layer, scale in zip(stage, scales, strict=True)
        ]

        def step(carry, tables, stage=stage, scales=scales, index=index):
            flows, totals, shared = carry
            tables = _scaled.bind_fixed(tables, scales, parts, index)
            totals, shared, of_parts = list(totals), list(shared), [None] * len(stage)
            for place, (layer, scale, table) in reversed(
                list(enumerate(zip(stage, scales, tables, strict=True)))
            ):
                theta = layer_weights(layer, table, weights[layer.weights.group])
                if scale is None:
                    flows = _run_layer(walk, layer, values, flows, table, theta)
                    continue
                flows, totals[place], of_parts[place] = _run_scaled_layer(
                    walk, layer, scale, values, flows, totals[place], table, theta, for_flows
                )
                if scale.fixed:
                    shared[place] = jax.tree.map(jnp.add, shared[place], of_parts[place])
                    of_parts[place] = None
            return (flows, totals, shared), of_parts

        shared = [
            jax.tree.map(jnp.zeros_like, parts[index][place])
            if scale is not None and scale.fixed
            else None
            for place, scale in enumerate(scales)
        ]
        carry = flows, *ops.match_varying((totals, shared), axes)
        (flows, totals, shared), of_parts = run_stage(step, carry, inputs, reverse=True)
        parts_out.insert(0, [a if b is None else b for a, b in zip(of_parts, shared, strict=True)])
        for layer, total in zip(stage, totals, strict=True):
            if total is not None:
                gradients.add_scaled(layer, total)
    # A barrier, or XLA would fuse these reads with the walk's and keep copies of the flows.
    finished = lax.optimization_barrier((values, flows))
    for index, (stage, kept) in enumerate(zip(program.stages, saved, strict=True)):
        for layer, scale, more in zip(stage, walk.layer_scales(index), kept, strict=True):
            if scale is not None:
                continue
            for rows, copies in parameter_copies(layer):
                q, factor = _factors(walk, layer, finished, more, copies.reshape(-1))
                gradients.add(walk, layer, rows, copies.shape[1], q, factor)
    leaf_flows = [
        read_flows(flows, tables, leaf.num_leaves, leaf.num_nodes, leaf.pieces)
        for leaf, tables in zip(program.leaves, leaf_tables(program), strict=True)
    ]
    return Gradients(
        gradients.by_group, gradients.scaled, leaf_flows, parts_out if walk.scales else ()
    )


def _with_root(walk: Walk, values: Values, root_flows: Array) -> Arrays:
    root, batch = walk.program.root, root_flows.shape[0]
    f = root_flows.reshape(batch, root.num_elements, root.width).transpose(1, 0, 2)
    axes = ops.varying_axes(values, f)
    flows = {w: jnp.zeros((s, batch, w), f.dtype) for w, s in walk.program.flow_slots.items()}
    flows = ops.match_varying(flows, axes)
    flows[root.width] = ops.write_slots(flows[root.width], ops.match_varying(f, axes), 1)
    return flows


def _run_layer(
    walk: Walk, layer: SumLayer, values: Values, flows: Arrays, table, theta: Array
) -> Arrays:
    v = lax.dynamic_slice_in_dim(
        values.relative[layer.num_nodes], table["value_start"], layer.quota
    )
    saved: Saved = table["saved"]
    q = _flow_ratio(walk, layer, v, flows, table["parents"], saved.block_shift)
    # All reads of the flows end here, or XLA would keep a copy of the array for a second one.
    q, flows = lax.optimization_barrier((q, flows))
    w = layer.width
    rule = walk.propagation, walk.precision
    if layer.shares_elements:
        assert saved.block_shift is not None
        shifts = saved.shift, saved.block_shift
        element_flows = ops.shared_elements_backward(
            saved.factor, *shifts, q, theta, table["selected_by"], w, *rule
        )
    else:
        element_flows = ops.sum_layer_backward(saved.factor, q, theta, *rule)
    update = split_elements(layer, element_flows)
    return {**flows, w: ops.write_slots(flows[w], update, table["flow_start"])}


def _run_scaled_layer(
    walk: Walk,
    layer: SumLayer,
    scale: LayerScale,
    values: Values,
    flows: Arrays,
    total: _scaled.Statistics,
    table,
    theta: Array,
    for_flows: bool,
) -> tuple[Arrays, _scaled.Statistics, Any]:
    f = read_flows(flows, table["parents"], layer.quota, layer.num_nodes, layer.pieces)
    f, flows = lax.optimization_barrier((split_blocks(layer, f), flows))
    # Child values are read again: kept for all steps, they would take as much room as all values.
    e, _ = read_operand(Propagation("MPE"), layer, values, table)
    found = _scaled.backward(walk, layer, scale, table, e, theta, f, for_flows)
    total = _scaled.add_step(layer, total, found, f, table)
    element_flows = found.element_flows
    if layer.shares_elements:
        element_flows = ops.add_selected(element_flows, table["selected_by"], layer.width)
    update = split_elements(layer, element_flows)
    w = layer.width
    flows = {**flows, w: ops.write_slots(flows[w], update, table["flow_start"])}
    return flows, total, found.parts


def _flow_ratio(
    walk: Walk, layer: SumLayer, v: Array, flows: Arrays, parents, block_shift: Array | None
) -> Array:
    """q `[units * blocks, B, M]` of units with values `v` `[units, B, blocks * M]`."""
    f = read_flows(flows, parents, len(v), layer.num_nodes, layer.pieces)
    v = split_blocks(layer, v)
    if block_shift is not None:
        v = v - block_corrections(block_shift)
    return ops.flow_ratio(v, split_blocks(layer, f), walk.propagation)


class _Gradients:
    """d LL / d theta by group, gathered from products over the entries of layers."""

    def __init__(self, weights: dict[str, Array]):
        self.weights = weights
        self.by_group: dict[str, Array] = {}
        self.scaled: dict[str, _scaled.Statistics] = {}

    def add_scaled(self, layer: SumLayer, total: _scaled.Statistics) -> None:
        group = layer.weights.group
        if group in self.scaled:
            total = jax.tree.map(jnp.add, self.scaled[group], total)
        self.scaled[group] = total

    def add(
        self, walk: Walk, layer: SumLayer, rows: np.ndarray, copies: int, q: Array, factor: Array
    ) -> None:
        """From factors `[len(rows) * copies * blocks, B, ...]`: tied copies are more samples."""
        theta = self.weights[layer.weights.group]
        own = theta if np.array_equal(rows, np.arange(len(theta))) else theta[rows]
        q, factor = (stack_entries(x, len(rows), copies) for x in (q, factor))
        more = ops.sum_layer_weight_gradient(
            q, factor, _flat(own), walk.propagation, walk.precision
        )
        more = more.reshape(own.shape)
        if len(rows) != len(theta):
            more = jnp.zeros_like(theta).at[rows].add(more)
        group = layer.weights.group
        self.by_group[group] = self.by_group[group] + more if group in self.by_group else more


def _factors(
    walk: Walk,
    layer: SumLayer,
    arrays: tuple[Values, Arrays],
    saved: Saved,
    entries: np.ndarray,
) -> tuple[Array, Array]:
    """The two factors of the parameter gradient, for `entries` (-1: none) of a layer's steps.

    q is computed again from the finished flows: taken from the walk, it would be a second read of
    flows that are about to be overwritten, for which XLA keeps a copy of the whole array.
    """
    values, flows = arrays
    parents = _take_entries(layer.parents, entries)
    slots = _value_slots(layer)[entries]
    parents = lax.optimization_barrier(jax.tree.map(jnp.asarray, parents))
    v = _take_slots(values.relative[layer.num_nodes], slots)
    factor, shift, block_shift = (
        None if x is None else _take_saved(layer, x, entries) for x in saved
    )
    assert factor is not None
    q = _flow_ratio(walk, layer, v, flows, parents, block_shift)
    if shift is not None and block_shift is not None:
        assert layer.selection is not None
        selection = _flat(layer.selection)[entries]
        selection = lax.optimization_barrier(jnp.asarray(selection))
        factor = ops.select_elements(factor, shift, block_shift, selection, walk.propagation)
    return q, factor


def _take_saved(layer: SumLayer, x: Array, entries: np.ndarray) -> Array:
    """Entries of `[R, quota * n, ...]`, zeros for -1: `[len(entries) * n, ...]`."""
    steps, size, *shape = x.shape
    n = size // layer.quota
    chosen = flat_entries(x.reshape(steps * layer.quota, n, *shape), entries)
    return chosen.reshape(len(entries) * n, *shape)


def _take_slots(array: Array, slots: np.ndarray) -> Array:
    if (np.diff(slots) == 1).all():
        return array[slots[0] : slots[-1] + 1]
    index = lax.optimization_barrier(jnp.asarray(slots))
    return array.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _flat(x):
    """Joins the first two axes."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _take_entries(tables, entries: np.ndarray):
    """Rows `entries` of tables `[steps, quota, ...]` read as one axis; -1 gives slot 0."""

    def take(array):
        if array is None:
            return None
        rows = array.reshape(-1, *array.shape[2:])[entries]
        rows[entries < 0] = 0
        return rows

    return {key: (take(table.slots), take(table.offsets)) for key, table in tables.items()}


def _value_slots(layer: SumLayer) -> np.ndarray:
    return (layer.value_start[:, None] + np.arange(layer.quota)).reshape(-1).astype(np.int32)
