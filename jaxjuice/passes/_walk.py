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


@dataclass(frozen=True, eq=False)
class LayerScale:
    """Which units of a layer are scaled in a call, where at least one is.

    Attributes:
        active: bool `[R, quota]`, or None where all are.
        nodes: int32 `[R, quota * blocks, M]`, the nodes of each block in its vector, and
        children: int32 `[R, quota * blocks, N]`, its children; None where the parameterization does
            not read them.
        num_nodes, num_ch_nodes: of the vectors, which are of one size where that matters.
        fixed: whether all steps read the same parts, which then come without a leading axis R:
            tied copies that share tensors do not multiply them.
    """

    active: np.ndarray | None
    nodes: np.ndarray | None
    children: np.ndarray | None
    num_nodes: int
    num_ch_nodes: int
    fixed: bool


@dataclass(frozen=True)
class Walk:
    """A program and how to run it; static. Programs are not compared, but taken as they are.

    Attributes:
        program: the program.
        propagation: how sums combine their children.
        precision: one of `ops.PRECISIONS`.
        kernels: the implementation of `ops.kernels` that fused passes use, "triton" or "xla"; empty
            for passes that are not fused.
        has_missing: whether values may be missing; of fused passes.
        scales: for every layer of every stage, what is scaled in it, or None; empty where nothing
            is.
    """

    program: Program
    propagation: Propagation
    precision: str
    kernels: str = ""
    has_missing: bool = True
    scales: tuple[tuple[LayerScale | None, ...], ...] = ()

    def layer_scales(self, index: int) -> tuple[LayerScale | None, ...]:
        """Those of the layers of stage `index`."""
        return self.scales[index] if self.scales else (None,) * len(self.program.stages[index])


def layer_inputs(layer: SumLayer, weights: Array) -> dict[str, Any]:
    """Everything that a layer reads in its steps, arrays `[R, ...]`, the shape of a scan's inputs.

    The tables pass through a barrier: as constants they would make each step a kernel of its own.
    """
    tables: dict[str, Any] = {
        "children": _arrays(layer.children),
        "parents": _arrays(layer.parents),
        "value_start": layer.value_start,
        "flow_start": layer.flow_start,
    }
    if layer.shares_elements:
        tables |= {"selection": layer.selection, "selected_by": layer.selected_by}
    tables |= weight_tables(layer)
    inputs = lax.optimization_barrier(jax.tree.map(jnp.asarray, tables))
    if layer.weights.kind == "all":
        inputs["weights"] = weights.reshape(layer.num_steps, layer.quota, *weights.shape[1:])
    return inputs


def weight_tables(layer: SumLayer) -> dict[str, np.ndarray]:
    """What `layer_weights` reads of a step, but for the weights themselves."""
    rows = layer.weights
    if rows.kind == "slice":
        return {"row": rows.rows[:, 0]}
    return {"rows": rows.rows} if rows.kind == "gather" else {}


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


def read_children(
    values: Arrays,
    scales: Arrays,
    children: Tables,
    known: dict[int, SlotTable],
    elements: int,
    width: int,
    batch_axis: int = 1,
):
    """Elements and their scales, from tables `[..., n]` read as `[X, elements, n]`.

    Args:
        values, scales: `[S, B, K]` and `[S, B]`, by width K.
        children: the tables of one step.
        known: those of all steps.
        elements: how many are to lie side by side.
        width: nodes of an element.
        batch_axis: see `ops.read_runs`.

    Returns:
        `[X, B, elements, width]` and `[X, B, elements]`, or, with `batch_axis` 2,
        `[X, elements, B, width]` and `[X, elements, B]`.
    """
    e, scale = None, None
    for array, (slots, offsets) in children.items():
        places = len(slots)
        slots = slots.reshape(-1, elements, slots.shape[-1])
        offsets = None if offsets is None else offsets.reshape(slots.shape)
        entries = tuple(n * (len(slots) // places) for n in known[array].entries)
        more = ops.read_runs(
            values[array], slots, offsets, width, batch_axis=batch_axis, entries=entries
        )
        more_scale = ops.read_scales(scales[array], slots, batch_axis=batch_axis)
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


def split_elements(layer: SumLayer, flows: Array) -> Array:
    """Flows of elements, by block `[X, B, N]` or apart `[X, E, B, width]`, as slots."""
    if flows.ndim == 3:
        if layer.block_elements == 1:
            return flows
        flows = flows.reshape(*flows.shape[:2], layer.block_elements, layer.width)
        flows = flows.transpose(0, 2, 1, 3)
    return flows.reshape(flows.shape[0] * flows.shape[1], *flows.shape[2:])


def parameter_copies(layer: SumLayer) -> list[tuple[np.ndarray, np.ndarray]]:
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


def flat_entries(x: Array, entries: np.ndarray) -> Array:
    """Entries of `[entries, ...]`; zeros for -1."""
    if np.array_equal(entries, np.arange(len(x))):
        return x
    chosen = x[entries]
    if (entries < 0).any():
        real = jnp.asarray((entries >= 0).reshape(-1, *[1] * (chosen.ndim - 1)))
        chosen = jnp.where(real, chosen, jnp.zeros_like(chosen))
    return chosen


def stack_entries(x: Array, rows: int, copies: int) -> Array:
    """`[rows * copies * blocks, B, D]` to `[rows * blocks, copies, B, D]`."""
    blocks = len(x) // (rows * copies)
    if blocks > 1:
        x = x.reshape(rows, copies, blocks, *x.shape[1:]).swapaxes(1, 2)
    return x.reshape(rows * blocks, copies, *x.shape[-2:])


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
