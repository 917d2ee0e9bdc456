"""Ancestral sampling: top-down, one child for every sum node that a sample passes through."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PRNGKeyArray

from jaxjuice import ops
from jaxjuice._errors import StructureError
from jaxjuice._external_params import check_external, make_parts, plan_of
from jaxjuice._parameters import Params, params_dtype
from jaxjuice.circuit import Circuit
from jaxjuice.compiler import SumLayer
from jaxjuice.passes import LayerScale, Walk
from jaxjuice.passes._scaled import add_inputs, bind_fixed, row_log_scale
from jaxjuice.passes._walk import layer_inputs, layer_weights, leaf_tables, run_stage

# A choice is stored in the slot of each element, as the index of the chosen node in it, or this.
_NONE = -1


def sample(
    pc: Circuit,
    params: Params,
    key: PRNGKeyArray,
    num_samples: int,
    *,
    external_params: Mapping[Any, Any] | None = None,
) -> Array:
    """Draws independent samples.

    Args:
        pc: a circuit with one root.
        params: its parameters.
        key: a JAX key; the same key gives the same samples.
        num_samples: how many, static under `jit`.
        external_params: as in `Circuit.log_likelihood`, with tensors `[num_samples, ...]`: each
            sample is drawn with its own weights.

    Returns:
        `[num_samples, num_vars]`: int32 where all leaves are discrete, else the parameters' dtype.
        Columns of variables that the circuit does not have are 0.

    Raises:
        StructureError: if there are several roots, or leaves that are `External`.
        DataError: if external parameters do not fit.
    """
    if pc.num_roots != 1:
        raise StructureError(f"sample: the circuit has {pc.num_roots} roots, and one is wanted.")
    if any(leaf.dist.is_external for leaf in pc.program.leaves):
        raise StructureError("sample: External leaves have no distribution to sample from.")
    external = check_external("sample", pc, external_params, num_samples)
    return _sample(pc, params, key, num_samples, external.keys, external.tensors)


@partial(jax.jit, static_argnums=(0, 3, 4))
def _sample(
    pc: Circuit, params: Params, key: PRNGKeyArray, num_samples: int, keys, tensors
) -> Array:
    program, weights = pc.program, params["sums"]
    walk, parts = Walk(program, ops.LL, "fp32"), []
    plan = plan_of(pc, keys)
    if plan is not None:
        walk = replace(walk, scales=plan.scales)
        parts = make_parts(plan, tensors, params_dtype(params))
    walk_key, leaf_key = jax.random.split(key)
    choices = {
        width: jnp.full((slots, num_samples), _NONE, jnp.int32)
        for width, slots in program.flow_slots.items()
    }
    choices[program.root.width] = choices[program.root.width].at[1].set(0)
    for index, stage in enumerate(reversed(program.stages)):
        inputs = [layer_inputs(layer, weights[layer.weights.group]) for layer in stage]
        forward_index = len(program.stages) - 1 - index
        scales = walk.layer_scales(forward_index)
        add_inputs(inputs, scales, parts, forward_index)
        for table in inputs:
            table["step"] = jnp.arange(stage[0].num_steps)
        stage_key = jax.random.fold_in(walk_key, index)

        def step(
            choices,
            tables,
            stage=stage,
            stage_key=stage_key,
            scales=scales,
            forward_index=forward_index,
        ):
            tables = bind_fixed(tables, scales, parts, forward_index)
            for place, (layer, table) in reversed(list(enumerate(zip(stage, tables, strict=True)))):
                theta = layer_weights(layer, table, weights[layer.weights.group])
                step_key = jax.random.fold_in(jax.random.fold_in(stage_key, place), table["step"])
                choices = _run_layer(walk, layer, scales[place], choices, table, theta, step_key)
            return choices, []

        choices, _ = run_stage(step, choices, inputs, reverse=True)
    columns = []
    for index, (leaf, tables) in enumerate(zip(program.leaves, leaf_tables(program), strict=True)):
        nodes = _chosen_nodes(choices, tables, leaf.num_leaves, leaf.num_nodes, leaf.pieces)
        group = pc.input_groups[leaf.name].leaf(params["inputs"][leaf.name])
        key = jax.random.fold_in(leaf_key, index)
        columns.append((leaf, nodes, leaf.dist.sample(key, group, jnp.maximum(nodes, 0))))
    return _join(pc, params, columns, num_samples)


def _run_layer(
    walk: Walk,
    layer: SumLayer,
    scale: LayerScale | None,
    choices,
    table,
    theta: Array,
    key: PRNGKeyArray,
):
    """Draws a child for every unit that is passed through, and writes it to the elements' slots."""
    nodes = _chosen_nodes(
        choices, table["parents"], layer.quota, layer.num_nodes, layer.pieces
    )  # [quota, B]
    blocks, size = layer.num_blocks, layer.block_nodes
    block = jnp.maximum(nodes, 0) // size
    place = jnp.arange(layer.quota, dtype=jnp.int32)[:, None] * blocks + block
    rows = theta[place, jnp.maximum(nodes, 0) % size]  # [quota, B, N]
    logits = jnp.log(rows)
    if scale is not None:
        node = jnp.maximum(nodes, 0) % size
        logits = logits + row_log_scale(walk, layer, scale, table, place, node)
    child = jax.random.categorical(key, logits, axis=-1).astype(jnp.int32)
    slots = jnp.arange(layer.num_elements, dtype=jnp.int32)[None, :, None]
    element = block * layer.block_elements + child // layer.width  # [quota, B]
    if layer.shares_elements:
        selection = table["selection"].reshape(layer.quota, blocks * layer.block_elements)
        element = jnp.take_along_axis(selection, element, axis=1)
    taken = (element[:, None] == slots) & (nodes >= 0)[:, None]
    chosen = jnp.where(taken, (child % layer.width)[:, None], _NONE)
    update = chosen.reshape(layer.quota * layer.num_elements, chosen.shape[-1])
    new = ops.write_slots(choices[layer.width], update, table["flow_start"])
    return {**choices, layer.width: new}


def _chosen_nodes(choices, parents, num_units: int, num_nodes: int, pieces: int) -> Array:
    """The node of each unit that is passed through `[num_units, B]`, or -1.

    Decomposability lets at most one of a unit's elements be taken.
    """
    size = num_nodes // pieces
    found = None
    for array, (slots, offsets) in parents.items():
        chosen = choices[array].at[slots].get(mode="promise_in_bounds")  # [U, pieces, n, B]
        first = jnp.zeros_like(slots) if offsets is None else offsets
        within = chosen - first[..., None]
        piece = jnp.arange(pieces, dtype=jnp.int32)[None, :, None, None]
        hit = (chosen != _NONE) & (within >= 0) & (within < size)
        node = jnp.where(hit, piece * size + within, _NONE).max((1, 2))
        found = node if found is None else jnp.maximum(found, node)
    if found is None:
        batch = next(iter(choices.values())).shape[1]
        return jnp.full((num_units, batch), _NONE, jnp.int32)
    return found


def _join(pc: Circuit, params: Params, columns, num_samples: int) -> Array:
    """Puts together leaves' draws: of the leaves of one variable, a sample passes through one."""
    discrete = all(leaf.dist.is_discrete for leaf, _, _ in columns)
    leaves = jax.tree.leaves(params)
    dtype = jnp.int32 if discrete else max((a.dtype for a in leaves), key=lambda d: d.itemsize)
    x = jnp.zeros((pc.num_vars, num_samples), dtype)
    for leaf, nodes, values in columns:
        drawn = jnp.where(nodes >= 0, values.astype(dtype), jnp.zeros((), dtype))
        x = x.at[leaf.variables].add(drawn)
    return x.T
