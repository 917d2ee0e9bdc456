"""What a layer of a fused pass reads in its steps, and what it keeps of them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxjuice import ops
from jaxjuice.compiler import SumLayer
from jaxjuice.ops import kernels
from jaxjuice.ops.kernels import Step
from jaxjuice.passes._lookup import ValueSlots
from jaxjuice.passes._walk import Walk, layer_weights, parameter_copies, weight_tables


class FusedSaved(NamedTuple):
    """What one layer keeps, for the backward pass of all its R steps or within one step.

    Attributes:
        p: of XLA's products, `[number, B, N]`, or None if nothing is kept; of the kernels', in
            parts: `[parts, number, B, N]`, of units of several blocks `[parts, number of elements,
            B, width]`. In the order of `_kept_rows` if a backward pass follows, else of one step.
        shifts: None; of units of several blocks `[number of elements, B]`.
        block_shifts: None; of units of several blocks `[number of units, blocks, B]`.
    """

    p: Array | None
    shifts: Array | None
    block_shifts: Array | None


def multiplies_in_parts(layer: SumLayer, precision: str, batch: int) -> bool:
    """Whether a layer's products run in the kernels, of operands in parts, or as XLA's own."""
    tied = layer.weights.kind == "fixed"
    size = layer.num_nodes, layer.num_children
    return layer.num_blocks > 1 or kernels.in_parts(*size, tied, precision, batch)


def forward_role(layer: SumLayer, batch: int) -> ops.Role:
    """What the layer's product is when it computes values."""
    dense = ops.is_dense(layer.block_nodes, layer.num_children, batch, ops.LL)
    return "dense_forward" if dense else "forward"


class Empty:
    """Makes arrays of any values, each with a label of its own."""

    def __init__(self, walk: Walk, first: int):
        self.walk, self.label = walk, first

    def __call__(self, *shape: int) -> Array:
        return self._make(shape, jnp.float32)

    def parts(self, *shape: int) -> Array:
        return self._make(shape, jnp.bfloat16)

    def _make(self, shape, dtype) -> Array:
        self.label += 1
        return kernels.empty(shape, dtype, self.label, self.walk.kernels)


def start_saved(walk: Walk, layer: SumLayer, batch: int, save: bool, empty: Empty) -> FusedSaved:
    parts = kernels.stored_parts(walk.precision, forward_role(layer, batch), batch, save)
    units = layer.quota * (layer.num_steps if save else 1)
    p = shifts = block_shifts = None
    if layer.num_blocks > 1:
        p = empty.parts(parts, units * layer.num_elements, batch, layer.width)
        shifts = empty(units * layer.num_elements, batch)
        block_shifts = empty(units, layer.num_blocks, batch)
    elif multiplies_in_parts(layer, walk.precision, batch):
        number = gradient_lists(layer)[1] if save else units
        p = empty.parts(parts, number, batch, layer.num_children)
    elif save and not _keeps_whole_step(layer):
        p = empty(gradient_lists(layer)[1], batch, layer.num_children)
    return FusedSaved(p, shifts, block_shifts)


def _keeps_whole_step(layer: SumLayer) -> bool:
    """Whether p and q of the only step are what is kept."""
    places = _kept_rows(layer)
    return layer.num_steps == 1 and np.array_equal(places[0], np.arange(layer.quota))


def gradient_lists(layer: SumLayer) -> tuple[list[tuple[np.ndarray, np.ndarray]], int]:
    """`parameter_copies`, with entries in place of which there are places in a list of p or q.

    If all rows have equally many copies, places follow the rows, so that p and q are the operands
    of the gradient's product as they are; if not, they are the entries themselves.
    """
    lists = parameter_copies(layer)
    if len(lists) == 1 and (lists[0][1] >= 0).all():
        rows, copies = lists[0]
        return [(rows, np.arange(copies.size, dtype=np.int32).reshape(copies.shape))], copies.size
    return lists, layer.num_steps * layer.quota


def _kept_rows(layer: SumLayer) -> np.ndarray:
    """Int32 `[R, quota]`: where p and q of a unit are kept for the gradient.

    -1 for padding, which units of several blocks keep, too.
    """
    entries = np.arange(layer.num_steps * layer.quota, dtype=np.int32)
    if layer.num_blocks > 1:
        return entries.reshape(layer.num_steps, layer.quota)
    lists = parameter_copies(layer)
    kept = gradient_lists(layer)[0]
    places = np.full(entries.size, -1, np.int32)
    for (_, copies), (_, where) in zip(lists, kept, strict=True):
        places[copies[copies >= 0]] = where[copies >= 0]
    return places.reshape(layer.num_steps, layer.quota)


def layer_tables(
    walk: Walk, places: ValueSlots, layer: SumLayer, batch: int, save: bool
) -> dict[str, Any]:
    """Everything that a layer reads in its steps, arrays `[R, ...]`."""
    ((width, children),) = layer.children.items()
    ((_, parents),) = layer.parents.items()
    tables: dict[str, Any] = {
        "children": (places.slots(width, children.slots), children.offsets),
        "parents": (parents.slots, parents.offsets),
        "value_start": places.slots(layer.num_nodes, layer.value_start),
        "flow_start": layer.flow_start,
        "places": _kept_rows(layer),
    }
    if not save:  # p of a step lies where that of the step before did
        now = np.arange(layer.quota, dtype=np.int32)
        tables["places"] = np.where(layer.weights.real, now, -1).astype(np.int32)
    if layer.num_blocks > 1:
        tables["selection"] = layer.selection
        tables["readers"] = readers_of(layer)
        tables["rows"] = layer.weights.rows
        steps = np.arange(layer.num_steps, dtype=np.int32)
        tables["firsts"] = steps * (layer.quota * layer.num_elements if save else 0)
    elif multiplies_in_parts(layer, walk.precision, batch):
        tables["rows"] = layer.weights.rows
    elif layer.weights.kind == "all":
        tables["row"] = np.arange(layer.num_steps, dtype=np.int32) * layer.quota
    else:
        tables |= weight_tables(layer)
    # As constants they would make each step of a stage a kernel of its own.
    return lax.optimization_barrier(jax.tree.map(jnp.asarray, tables))


def shares_children(layer: SumLayer) -> bool:
    """Whether the elements of a step read most of their factors more than once. A fixed rule."""
    ((_, children),) = layer.children.items()
    read = np.sort(children.slots.reshape(layer.num_steps, -1), axis=1)  # 0, which is none, first
    distinct = np.diff(read, axis=1, prepend=0) > 0
    return bool(np.count_nonzero(read) > 2 * np.count_nonzero(distinct))  # Triton takes no numpy's


def step_weights(layer: SumLayer, tables: dict[str, Any], weights: Array, i: Step) -> Array:
    """theta `[quota, M, N]` of step i of units that are one product each."""
    step = {name: tables[name][i.number] for name in ("row", "rows") if name in tables}
    return layer_weights(layer, step, weights)


def readers_of(layer: SumLayer) -> np.ndarray:
    """Int32 `[R, quota, elements, 1 + most]`: `selected_by`, with how many there are in front."""
    places = layer.selected_by
    assert places is not None
    count = (places < layer.num_blocks * layer.block_elements).sum(-1, keepdims=True)
    return np.concatenate([count.astype(np.int32), places], axis=-1)


def keeps_apart(layer: SumLayer) -> bool:
    """Whether q is kept for every element that a block reads. It depends on the layer alone."""
    own = layer.block_elements
    return kernels.keeps_apart(
        layer.num_blocks, layer.num_nodes, own, layer.num_elements, layer.width
    )


def start_ratios(walk: Walk, layer: SumLayer, batch: int, empty: Empty) -> Array | None:
    """Where q is kept: `[number, B, M]`, in parts for dense products of the kernels and apart."""
    parts = kernels.products(walk.precision, "backward", batch).parts
    if keeps_apart(layer):
        readers = layer.num_steps * layer.quota * layer.num_blocks * layer.block_elements
        q = empty.parts(parts, readers, batch, layer.block_nodes)
    elif layer.num_blocks > 1:
        q = empty(layer.num_steps * layer.quota, batch, layer.num_nodes)
    elif multiplies_in_parts(layer, walk.precision, batch):
        q = empty.parts(parts, gradient_lists(layer)[1], batch, layer.num_nodes)
    elif _keeps_whole_step(layer):
        return None
    else:
        q = empty(gradient_lists(layer)[1], batch, layer.num_nodes)
    return q
