"""Top-down probabilities: how often a sample drawn from the circuit passes through each node."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxjuice import ops
from jaxjuice.passes._walk import (
    Arrays,
    Walk,
    layer_inputs,
    layer_weights,
    leaf_tables,
    read_flows,
    run_stage,
    split_blocks,
    split_elements,
)


def top_down(walk: Walk, weights: dict[str, Array]) -> tuple[dict[str, Array], list[Array]]:
    """TD(root) = 1 / num_roots; TD(c) = sum of TD(n) theta[n, c] over the parents n of c.

    Returns:
        TD of sum nodes by parameter group `[P, blocks, M]`, summed over tied copies, and of the
        leaves of each leaf layer `[V, K]`.
    """
    program, root = walk.program, walk.program.root
    dtype = jnp.result_type(*jax.tree.leaves(weights)) if weights else jnp.dtype("float32")
    axes = ops.varying_axes(weights)
    flows = {w: jnp.zeros((s, 1, w), dtype) for w, s in program.flow_slots.items()}
    share = jnp.full((root.num_elements, 1, root.width), 1 / root.num_nodes, dtype)
    flows[root.width] = ops.write_slots(flows[root.width], share, 1)
    flows = ops.match_varying(flows, axes)
    totals: dict[str, Array] = {}
    for stage in reversed(program.stages):
        inputs = [layer_inputs(layer, weights[layer.weights.group]) for layer in stage]

        def step(flows: Arrays, tables, stage=stage):
            outputs = []
            for layer, table in reversed(list(zip(stage, tables, strict=True))):
                theta = layer_weights(layer, table, weights[layer.weights.group])
                f = read_flows(flows, table["parents"], layer.quota, layer.num_nodes, layer.pieces)
                f, flows = lax.optimization_barrier((f, flows))
                blocks = split_blocks(layer, f)
                children = ops.dot(
                    blocks,
                    theta,
                    ((2,), (1,)),
                    batch=((0,), (0,)),
                    precision=walk.precision,
                    role="backward",
                    num_samples=1,
                )
                if layer.shares_elements:
                    children = ops.add_selected(children, table["selected_by"], layer.width)
                update = split_elements(layer, children)
                new = ops.write_slots(flows[layer.width], update, table["flow_start"])
                flows = {**flows, layer.width: new}
                outputs.append(f)
            return flows, outputs[::-1]

        flows, found = run_stage(step, flows, inputs, reverse=True)
        for layer, f in zip(stage, found, strict=True):
            rows = layer.weights
            f = f.reshape(-1, layer.num_blocks, layer.block_nodes)
            f = f * jnp.asarray(rows.real.reshape(-1, 1, 1), f.dtype)
            size = program.sum_groups[rows.group].num_params
            total = jax.ops.segment_sum(f, rows.rows.reshape(-1), size)
            totals[rows.group] = totals[rows.group] + total if rows.group in totals else total
    leaves = [
        read_flows(flows, tables, leaf.num_leaves, leaf.num_nodes, leaf.pieces)[:, 0]
        for leaf, tables in zip(program.leaves, leaf_tables(program), strict=True)
    ]
    return totals, leaves
