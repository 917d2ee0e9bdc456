"""The pass top-down: flows of all elements, leaves and parameters.

Every unit *pulls* its flow from the elements that it is a factor of, so nothing is scattered and
the result does not depend on an order of execution. Parameter gradients are products of two factors
that
the walk leaves behind, one product over all steps of a stage: a batch that is sharded over devices
is reduced once for every parameter, never inside a loop.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxjuice import ops
from jaxjuice.compiler import SumLayer
from jaxjuice.passes._forward import Values, block_shifts
from jaxjuice.passes._walk import (
    Arrays,
    Walk,
    layer_inputs,
    layer_weights,
    leaf_tables,
    read_children,
    read_flows,
    run_stage,
    split_blocks,
)


def backward(
    walk: Walk, weights: dict[str, Array], values: Values, lls: Array, root_flows: Array
) -> tuple[dict[str, Array], list[Array]]:
    """Gradients by hand.

    Args:
        walk: the program and its settings.
        weights: sum parameters by group.
        values, lls: what `forward` returned.
        root_flows: `[B, num_roots]`, any sign; counts as 0 where the root is -inf.

    Returns:
        d LL / d theta by group, and the flows `[V, B, K]` of each leaf layer.
    """
    program = walk.program
    # All reads of the values below are reads of one finished array, so none of it is copied.
    values = lax.optimization_barrier(values)
    root_flows = jnp.where(lls > -jnp.inf, root_flows, jnp.zeros_like(root_flows))
    flows = _with_root(walk, values, root_flows)
    gradients = _Gradients(weights)
    for stage in reversed(program.stages):
        inputs = [layer_inputs(layer, weights[layer.weights.group]) for layer in stage]
        single = stage[0].num_steps == 1

        def step(flows: Arrays, tables, stage=stage, single=single):
            factors = []
            for layer, table in reversed(list(zip(stage, tables, strict=True))):
                theta = layer_weights(layer, table, weights[layer.weights.group])
                flows, factor = _run_layer(walk, layer, values, flows, table, theta)
                factors.append(factor if single else None)
            return flows, factors[::-1]

        flows, factors = run_stage(step, flows, inputs, reverse=True)
        if single:
            for layer, (q, p) in zip(stage, factors, strict=True):
                gradients.add_entries(walk, layer, q[0], p[0])
    # A barrier, or XLA would fuse these reads with the walk's and keep copies of the flows.
    finished = lax.optimization_barrier((values, flows))
    for layer in (layer for stage in program.stages for layer in stage if layer.num_steps > 1):
        for rows, copies in _copies(layer):
            entries = copies.reshape(-1)
            q, p = _factors(walk, layer, finished, weights[layer.weights.group], entries)
            gradients.add(walk, layer, rows, copies.shape[1], q, p)
    leaf_flows = [
        read_flows(flows, tables, leaf.num_leaves, leaf.num_nodes, leaf.pieces)
        for leaf, tables in zip(program.leaves, leaf_tables(program), strict=True)
    ]
    return gradients.by_group, leaf_flows


def _with_root(walk: Walk, values: Values, root_flows: Array) -> Arrays:
    root, batch = walk.program.root, root_flows.shape[0]
    f = root_flows.reshape(batch, root.num_elements, root.width).transpose(1, 0, 2)
    axes = ops.varying_axes(values, f)
    flows = {w: jnp.zeros((s, batch, w), f.dtype) for w, s in walk.program.flow_slots.items()}
    flows = ops.match_varying(flows, axes)
    flows[root.width] = ops.write_slots(flows[root.width], ops.match_varying(f, axes), 1)
    return flows


def _run_layer(walk: Walk, layer: SumLayer, values: Values, flows: Arrays, table, theta: Array):
    p, v, f = _read_layer(walk, layer, values, flows, table, layer.quota)
    q = ops.flow_ratio(v, f, walk.propagation)
    # All reads of the flows end here, or XLA would keep a copy of the array for a second one.
    q, flows = lax.optimization_barrier((q, flows))
    element_flows, p = ops.sum_layer_backward(p, q, theta, walk.propagation, walk.precision)
    w = layer.width
    update = split_elements(layer, element_flows)
    return {**flows, w: ops.write_slots(flows[w], update, table["flow_start"])}, (q, p)


def _read_layer(walk: Walk, layer: SumLayer, values: Values, flows: Arrays, table, count: int):
    """p `[count * blocks, B, N]`, and the nodes' values and flows `[count * blocks, B, M]`.

    `table["slots"]`, or `count` slots from `table["value_start"]` on, are the units.
    """
    e, scale = read_children(values.relative, values.scale, table["children"], layer.width)
    p, shift = ops.exponentiate(e, scale, walk.propagation)
    v = values.relative[layer.num_nodes]
    if "slots" in table:
        v = v.at[table["slots"]].get(mode="promise_in_bounds", wrap_negative_indices=False)
    else:
        v = lax.dynamic_slice_in_dim(v, table["value_start"], count)
    v = split_blocks(layer, v)
    if layer.num_blocks > 1:
        v = v - block_shifts(layer, shift)[1][..., None]
    f = read_flows(flows, table["parents"], count, layer.num_nodes, layer.pieces)
    return p, v, split_blocks(layer, f)


def split_elements(layer: SumLayer, flows: Array) -> Array:
    """Element flows `[X, B, N]` as slots `[X * elements, B, width]`."""
    if layer.num_elements == 1:
        return flows
    blocks, batch, _ = flows.shape
    flows = flows.reshape(blocks, batch, layer.num_elements, layer.width).transpose(0, 2, 1, 3)
    return flows.reshape(blocks * layer.num_elements, batch, layer.width)


class _Gradients:
    """d LL / d theta by group, gathered from products over the entries of layers."""

    def __init__(self, weights: dict[str, Array]):
        self.weights = weights
        self.by_group: dict[str, Array] = {}

    def add_entries(self, walk: Walk, layer: SumLayer, q: Array, p: Array) -> None:
        """From the factors of a single step, `[quota * blocks, B, ...]`."""
        for rows, copies in _copies(layer):
            chosen = [_choose(layer, x, copies.reshape(-1)) for x in (q, p)]
            self.add(walk, layer, rows, copies.shape[1], *chosen)

    def add(self, walk: Walk, layer: SumLayer, rows: np.ndarray, copies: int, q: Array, p: Array):
        """From factors `[len(rows) * copies * blocks, B, ...]`: tied copies are more samples."""
        theta = self.weights[layer.weights.group]
        own = theta if np.array_equal(rows, np.arange(len(theta))) else theta[rows]
        q, p = (_stack_copies(layer, x, len(rows), copies) for x in (q, p))
        more = ops.sum_layer_weight_gradient(q, p, _flat(own), walk.propagation, walk.precision)
        more = more.reshape(own.shape)
        if len(rows) != len(theta):
            more = jnp.zeros_like(theta).at[rows].add(more)
        group = layer.weights.group
        self.by_group[group] = self.by_group[group] + more if group in self.by_group else more


def _choose(layer: SumLayer, x: Array, entries: np.ndarray) -> Array:
    """Entries of `[quota * blocks, B, D]`; zeros for -1."""
    if np.array_equal(entries, np.arange(len(x) // layer.num_blocks)):
        return x
    blocks = x.reshape(len(x) // layer.num_blocks, layer.num_blocks, *x.shape[1:])[entries]
    real = jnp.asarray((entries >= 0)[:, None, None, None])
    return jnp.where(real, blocks, jnp.zeros_like(blocks)).reshape(-1, *x.shape[1:])


def _factors(
    walk: Walk, layer: SumLayer, arrays: tuple[Values, Arrays], theta: Array, entries: np.ndarray
) -> tuple[Array, Array]:
    """The two factors of the parameter gradient, for `entries` (-1: none) of a layer's steps."""
    values, flows = arrays
    tables = {
        "children": _take_entries(layer.children, entries),
        "parents": _take_entries(layer.parents, entries),
        "slots": _value_slots(layer)[entries],
    }
    tables = lax.optimization_barrier(jax.tree.map(jnp.asarray, tables))
    p, v, f = _read_layer(walk, layer, values, flows, tables, len(entries))
    q = ops.flow_ratio(v, f, walk.propagation)
    if walk.propagation.is_max:
        own = theta[layer.weights.rows.reshape(-1)[entries]]
        _, p = ops.sum_layer_backward(p, q, _flat(own), walk.propagation, walk.precision)
    return q, p


def _flat(weights: Array) -> Array:
    return weights.reshape(-1, *weights.shape[2:])


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


def _copies(layer: SumLayer) -> list[tuple[np.ndarray, np.ndarray]]:
    """The tied copies of every row: rows, and their entries `[rows, copies]`, -1 for none.

    Rows come in several lists if their numbers of copies differ by more than a factor of 2.
    """
    rows = layer.weights.rows.reshape(-1)
    real = np.flatnonzero(layer.weights.real.reshape(-1))
    order = real[np.argsort(rows[real], kind="stable")]
    used, counts = np.unique(rows[real], return_counts=True)
    copies = np.full((used.size, counts.max()), -1, np.int32)
    rank = np.arange(real.size) - np.repeat(np.cumsum(counts) - counts, counts)
    copies[np.repeat(np.arange(used.size), counts), rank] = order
    sizes = np.ceil(np.log2(counts)).astype(int)
    lists = [np.flatnonzero(sizes == size) for size in np.unique(sizes)]
    return [(used[chosen], copies[chosen, : counts[chosen].max()]) for chosen in lists]


def _stack_copies(layer: SumLayer, x: Array, rows: int, copies: int) -> Array:
    """`[rows * copies * blocks, B, D]` to `[rows * blocks, copies, B, D]`."""
    _, batch, size = x.shape
    if layer.num_blocks > 1:
        x = x.reshape(rows, copies, layer.num_blocks, batch, size).transpose(0, 2, 1, 3, 4)
    return x.reshape(rows * layer.num_blocks, copies, batch, size)
