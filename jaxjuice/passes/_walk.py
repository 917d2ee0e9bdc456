"""What the passes share: the static settings, and how a layer's tables and weights are read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxjuice import ops
from jaxjuice.compiler import Program, SlotTable, SumLayer
from jaxjuice.ops import Propagation

Arrays = dict[int, Array]  # by width
Tables = dict[int, tuple[Array, Array | None]]  # by width of the array: slots, offsets


@dataclass(frozen=True)
class Walk:
    """A program and how to run it; static, and equal only to itself (programs are not compared)."""

    program: Program
    propagation: Propagation
    precision: str


def layer_inputs(layer: SumLayer, weights: Array) -> dict[str, Any]:
    """Everything that a layer reads in its steps, arrays `[R, ...]`, the shape of a scan's inputs.

    The tables pass through a barrier: as constants they would make each step a kernel of its own.
    """
    rows = layer.weights
    tables: dict[str, Any] = {
        "children": _arrays(layer.children),
        "parents": _arrays(layer.parents),
        "value_start": layer.value_start,
        "flow_start": layer.flow_start,
    }
    if rows.kind == "slice":
        tables["row"] = rows.rows[:, 0]
    elif rows.kind == "gather":
        tables["rows"] = rows.rows
    inputs = lax.optimization_barrier(jax.tree.map(jnp.asarray, tables))
    if rows.kind == "all":
        inputs["weights"] = weights.reshape(layer.num_steps, layer.quota, *weights.shape[1:])
    return inputs


def layer_weights(layer: SumLayer, step: dict[str, Any], weights: Array) -> Array:
    """theta `[quota * blocks, M, N]` of one step."""
    if "weights" in step:
        rows = step["weights"]
    elif "row" in step:
        rows = lax.dynamic_slice_in_dim(weights, step["row"], layer.quota)
    elif "rows" in step:
        rows = weights.at[step["rows"]].get(mode="promise_in_bounds", wrap_negative_indices=False)
    elif np.array_equal(layer.weights.rows[0], np.arange(len(weights))):
        rows = weights
    else:
        rows = weights[layer.weights.rows[0]]
    return rows.reshape(-1, *weights.shape[2:])


def read_children(values: Arrays, scales: Arrays, children: Tables, width: int):
    """The elements of a layer: `[X, B, C, width]` and their scales `[X, B, C]`."""
    e, scale = None, None
    for array, (slots, offsets) in children.items():
        slots = slots.reshape(int(np.prod(slots.shape[:-2])), *slots.shape[-2:])
        offsets = None if offsets is None else offsets.reshape(slots.shape)
        more = ops.read_runs(values[array], slots, offsets, width)
        more_scale = ops.read_scales(scales[array], slots)
        e = more if e is None else e + more
        scale = more_scale if scale is None else scale + more_scale
    assert e is not None and scale is not None
    return e, scale


def read_flows(
    flows: Arrays, parents: Tables, num_units: int, num_nodes: int, pieces: int
) -> Array:
    """The flows of units: `[num_units, B, num_nodes]`, from tables `[num_units, pieces, n]`."""
    f = None
    for array, (slots, offsets) in parents.items():
        more = ops.read_runs(flows[array], slots, offsets, num_nodes // pieces)
        f = more if f is None else f + more
    if f is None:  # nothing reads these units
        any_flows = next(iter(flows.values()))
        return jnp.zeros_like(any_flows, shape=(num_units, any_flows.shape[1], num_nodes))
    return f.reshape(num_units, f.shape[1], num_nodes)


def join_blocks(layer: SumLayer, x: Array) -> Array:
    """`[units * blocks, B, M]` to `[units, B, blocks * M]`."""
    if layer.num_blocks == 1:
        return x
    units = len(x) // layer.num_blocks
    x = x.reshape(units, layer.num_blocks, *x.shape[1:]).transpose(0, 2, 1, 3)
    return x.reshape(*x.shape[:2], layer.num_nodes)


def split_blocks(layer: SumLayer, x: Array) -> Array:
    """The inverse of `join_blocks`."""
    if layer.num_blocks == 1:
        return x
    x = x.reshape(*x.shape[:2], layer.num_blocks, layer.block_nodes).transpose(0, 2, 1, 3)
    return x.reshape(len(x) * layer.num_blocks, *x.shape[2:])


def run_stage(
    step: Callable, carry, inputs: list[dict[str, Any]], *, reverse: bool = False
) -> tuple[Any, list]:
    """Runs `step(carry, inputs of one step) -> (carry, outputs)` over a stage: one scan.

    A stage of one step is run in place, with outputs `[1, ...]` like a scan's.
    """
    if len(inputs[0]["value_start"]) > 1:
        return lax.scan(step, carry, inputs, reverse=reverse)
    carry, outputs = step(carry, jax.tree.map(lambda x: x[0], inputs))
    return carry, jax.tree.map(lambda x: x[None], outputs)


def root_tables(program: Program) -> Tables:
    return lax.optimization_barrier(jax.tree.map(jnp.asarray, _arrays(program.root.children)))


def leaf_tables(program: Program) -> list[Tables]:
    tables = [_arrays(leaf.parents) for leaf in program.leaves]
    return lax.optimization_barrier(jax.tree.map(jnp.asarray, tables))


def _arrays(tables: dict[int, SlotTable]) -> dict[int, tuple[np.ndarray, np.ndarray | None]]:
    return {array: (table.slots, table.offsets) for array, table in tables.items()}
