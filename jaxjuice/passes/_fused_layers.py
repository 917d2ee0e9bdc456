"""What a layer of a fused pass reads in its launches, and what it keeps of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxjuice import ops
from jaxjuice.compiler import SumLayer
from jaxjuice.ops import kernels
from jaxjuice.ops.kernels import Units
from jaxjuice.passes._launches import LaunchedStage, UnitList, launch_stage
from jaxjuice.passes._lookup import ValueSlots
from jaxjuice.passes._walk import Walk, parameter_copies

# What a launch may need for a while, of each part of operands in parts: with so little for all
# three, launches do not fill a GPU. One unit may need more.
_SCRATCH_BYTES = 64 * 2**20


class FusedSaved(NamedTuple):
    """What one layer keeps, for the backward pass of all its units or within one launch.

    Attributes:
        p: of XLA's products, `[number, B, N]`, or None if nothing is kept; of the kernels', in
            parts: `[parts, number, B, N]`, of units of several blocks `[parts, number of elements,
            B, width]`. In the order of `_kept_rows` if a backward pass follows, else of one launch.
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


def layers_in_parts(walk: Walk, batch: int) -> dict[str, list[SumLayer]]:
    """The layers whose products run in the kernels, by parameter group."""
    found: dict[str, list[SumLayer]] = {}
    for layer in (layer for stage in walk.program.stages for layer in stage):
        if multiplies_in_parts(layer, walk.precision, batch):
            found.setdefault(layer.weights.group, []).append(layer)
    return found


def splits_where_read(walk: Walk, layers: Sequence[SumLayer], batch: int, save: bool) -> bool:
    """Whether the kernels' products split the weights of a group, which these layers share."""
    group = walk.program.sum_groups[layers[0].weights.group]
    blocks = max(layer.num_blocks for layer in layers)
    units = sum(int(np.count_nonzero(layer.weights.real)) for layer in layers)
    return kernels.splits_where_read(blocks, units * batch // group.num_params, save)


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


def plan_launches(walk: Walk, stage: Sequence[SumLayer], batch: int, save: bool) -> LaunchedStage:
    """The launches of a stage, of which none needs more than `_SCRATCH_BYTES` for a while.

    Args:
        save: whether a backward pass follows or this is one.
    """
    joins = all(multiplies_in_parts(layer, walk.precision, batch) for layer in stage)
    sizes = (_scratch(walk, layer, batch, save) for layer in stage)
    return launch_stage(stage, joins, [_SCRATCH_BYTES // size if size else None for size in sizes])


def _scratch(walk: Walk, layer: SumLayer, batch: int, save: bool) -> int:
    """Bytes of what a unit has during its launch alone.

    That is a part of p, where it is not kept until the pass backward; of XLA's products, an operand
    and the result.
    """
    if not multiplies_in_parts(layer, walk.precision, batch):
        return 4 * (layer.num_children + layer.num_nodes) * batch
    return 0 if save else 2 * layer.num_elements * layer.width * batch


def start_saved(walk: Walk, units: UnitList, batch: int, save: bool, empty: Empty) -> FusedSaved:
    layer = units.layer
    parts = kernels.stored_parts(walk.precision, forward_role(layer, batch), batch, save)
    count = layer.quota if save else units.most
    p = shifts = block_shifts = None
    if layer.num_blocks > 1:
        p = empty.parts(parts, count * layer.num_elements, batch, layer.width)
        shifts = empty(count * layer.num_elements, batch)
        block_shifts = empty(count, layer.num_blocks, batch)
    elif multiplies_in_parts(layer, walk.precision, batch):
        number = gradient_lists(layer)[1] if save else count
        p = empty.parts(parts, number, batch, layer.num_children)
    elif save and not _keeps_only_launch(units):
        p = empty(gradient_lists(layer)[1], batch, layer.num_children)
    return FusedSaved(p, shifts, block_shifts)


def _keeps_only_launch(units: UnitList) -> bool:
    """Whether p and q of the only launch are what is kept."""
    places = _kept_rows(units.layer)
    return units.num_launches == 1 and np.array_equal(places, np.arange(len(places)))


def gradient_lists(layer: SumLayer) -> tuple[list[tuple[np.ndarray, np.ndarray]], int]:
    """`parameter_copies`, with entries in place of which there are places in a list of p or q.

    If all rows have equally many copies, places follow the rows, so that p and q are the operands
    of the gradient's product as they are; if not, they are the entries themselves.
    """
    lists = parameter_copies(layer)
    if len(lists) == 1 and (lists[0][1] >= 0).all():
        rows, copies = lists[0]
        return [(rows, np.arange(copies.size, dtype=np.int32).reshape(copies.shape))], copies.size
    return lists, layer.quota


def _kept_rows(layer: SumLayer) -> np.ndarray:
    """Int32 `[U]`: where p and q of a unit are kept for the gradient.

    -1 for padding, which units of several blocks keep, too.
    """
    entries = np.arange(layer.quota, dtype=np.int32)
    if layer.num_blocks > 1:
        return entries
    lists = parameter_copies(layer)
    kept = gradient_lists(layer)[0]
    places = np.full(entries.size, -1, np.int32)
    for (_, copies), (_, where) in zip(lists, kept, strict=True):
        places[copies[copies >= 0]] = where[copies >= 0]
    return places


def layer_tables(
    walk: Walk, places: ValueSlots, units: UnitList, batch: int, save: bool
) -> dict[str, Any]:
    """Everything that the units of a layer read, arrays `[U, ...]`."""
    layer = units.layer
    real = layer.weights.real[0]
    ((width, children),) = layer.children.items()
    ((_, parents),) = layer.parents.items()
    tables: dict[str, Any] = {
        "children": _of_units(places.slots(width, children.slots), children.offsets),
        "parents": _of_units(parents.slots, parents.offsets),
        "value_slots": places.slots(layer.num_nodes, units.value_slots),
        "flow_slots": units.flow_slots,
        "rows": layer.weights.rows[0],
        "places": _kept_rows(layer),
    }
    if not save:  # p of a launch lies where that of the launch before did
        keeps = real | (layer.num_blocks > 1)
        tables["places"] = np.where(keeps, units.in_launch, -1).astype(np.int32)
    if layer.num_blocks > 1:
        assert layer.selection is not None
        tables["selection"] = layer.selection[0]
        tables["readers"] = readers_of(layer)
    # As constants they would make each step of a stage a kernel of its own.
    return lax.optimization_barrier(jax.tree.map(jnp.asarray, tables))


def _of_units(slots: np.ndarray, offsets: np.ndarray | None) -> tuple[Any, Any]:
    return slots[0], None if offsets is None else offsets[0]


def unit_weights(units: UnitList, tables: dict[str, Any], weights: Array, now: Units) -> Array:
    """theta `[count, M, N]` of the units of a launch that are one product each, as XLA takes it."""
    kind = units.layer.weights.kind
    if kind == "fixed":
        first = now.first % len(units.first_rows)  # whole steps lie between launches
        rows = units.first_rows[first : first + now.count]
        theta = weights if np.array_equal(rows, np.arange(len(weights))) else weights[rows]
    elif kind == "gather":
        rows = now.take(tables["rows"])
        theta = weights.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False)
    else:
        theta = lax.dynamic_slice_in_dim(weights, tables["rows"][now.start], now.count)
    return theta.reshape(-1, *weights.shape[2:])


def readers_of(layer: SumLayer) -> np.ndarray:
    """Int32 `[U, elements, 1 + most]`: `selected_by`, with how many there are in front."""
    assert layer.selected_by is not None
    places = layer.selected_by[0]
    count = (places < layer.num_blocks * layer.block_elements).sum(-1, keepdims=True)
    return np.concatenate([count.astype(np.int32), places], axis=-1)


def keeps_apart(layer: SumLayer) -> bool:
    """Whether q is kept for every element that a block reads. It depends on the layer alone."""
    own = layer.block_elements
    return kernels.keeps_apart(
        layer.num_blocks, layer.num_nodes, own, layer.num_elements, layer.width
    )


def start_ratios(walk: Walk, units: UnitList, batch: int, empty: Empty) -> Array | None:
    """Where q is kept: `[number, B, M]`, in parts for dense products of the kernels and apart."""
    layer = units.layer
    parts = kernels.products(walk.precision, "backward", batch).parts
    if keeps_apart(layer):
        readers = layer.quota * layer.num_blocks * layer.block_elements
        q = empty.parts(parts, readers, batch, layer.block_nodes)
    elif layer.num_blocks > 1:
        q = empty(layer.quota, batch, layer.num_nodes)
    elif multiplies_in_parts(layer, walk.precision, batch):
        q = empty.parts(parts, gradient_lists(layer)[1], batch, layer.num_nodes)
    elif _keeps_only_launch(units):
        return None
    else:
        q = empty(gradient_lists(layer)[1], batch, layer.num_nodes)
    return q
