"""Both passes in fused steps: children are read, and flows pulled, inside the kernels.

The passes of `_forward` and `_backward` gather children and flows into arrays of their own, which
CPUs do well. GPUs are short of memory traffic: here every step is a few kernels that read slots
where they lie (`jaxjuice.ops.kernels`), leaves that are rows of a table have no slots at all, and
the p of units of several blocks is kept once for all of them. Log-likelihoods in float32 alone.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxjuice import ops
from jaxjuice.compiler import LeafLayer, Program, SumLayer
from jaxjuice.ops import kernels
from jaxjuice.passes._forward import Values
from jaxjuice.passes._lookup import (
    Lookup,
    LookupFlows,
    ValueSlots,
    leaves_of_tables,
    sorted_keys,
)
from jaxjuice.passes._walk import (
    Arrays,
    Walk,
    flat_entries,
    layer_weights,
    parameter_copies,
    read_flows,
    stack_entries,
    weight_tables,
)

# XLA starts what is in the body of a loop as one graph: the host is slower than small kernels.
_UNROLLED_STEPS = 4


class FusedSaved(NamedTuple):
    """What one layer keeps, for the backward pass of all its R steps or within one step.

    Attributes:
        p: of XLA's products, `[number, B, N]`, or None if nothing is kept; of the kernels', in
            parts: `[parts, number, B, N]`, of units of several blocks `[parts, number of elements,
            B, width]`. In the order of `_kept_rows` if a backward pass follows, else of one step.
        shifts: None; of units of several blocks `[number of elements, B]`.
        block_shifts: None; of units of several blocks `[R, quota, blocks, B]`.
    """

    p: Array | None
    shifts: Array | None
    block_shifts: Array | None


class FusedPass(NamedTuple):
    """What the backward pass needs of the pass forward.

    Attributes:
        weights: theta in parts `[parts, P, M, N]`, of the groups that the kernels multiply with.
        layers: of each layer of each stage.
    """

    weights: dict[str, Array]
    layers: list[list[FusedSaved]]


def is_fusable(program: Program) -> bool:
    """Whether every layer reads its children from one array, and its flows from one array."""
    layers = [layer for stage in program.stages for layer in stage]
    readers = [layer.children for layer in layers] + [layer.parents for layer in layers]
    return all(
        len(tables) == 1 for tables in [*readers, *(leaf.parents for leaf in program.leaves)]
    )


def multiplies_in_parts(layer: SumLayer, precision: str, batch: int) -> bool:
    """Whether a layer's products run in the kernels, of operands in parts, or as XLA's own."""
    tied = layer.weights.kind == "fixed"
    size = layer.num_nodes, layer.num_children
    return layer.num_blocks > 1 or kernels.in_parts(*size, tied, precision, batch)


class _Empty:
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


def forward(
    walk: Walk, weights: dict[str, Array], leaves: Sequence[Array | Lookup], *, save: bool
) -> tuple[Array, Values, FusedPass]:
    """Log-likelihoods and all values.

    Args:
        walk: the program and its settings.
        weights: sum parameters by group.
        leaves: log-densities `[V, B, K]` of each leaf layer, or a `Lookup`.
        save: whether a backward pass follows.

    Returns:
        `[B, num_roots]`, the values, and, with `save`, what the backward pass needs besides.
    """
    places = ValueSlots.of(walk.program, leaves)
    empty = _Empty(walk, 0)
    values = _start_values(walk.program, places, weights, leaves, empty)
    parts = _split_weights(walk, weights, _batch_size(leaves), save)
    saved = []
    for stage in walk.program.stages:
        tables = [_layer_tables(walk, places, layer, values, save) for layer in stage]
        kept = [_start_saved(walk, layer, values, save, empty) for layer in stage]

        def step(carry, i, stage=stage, tables=tables):
            values, kept = carry
            kept = list(kept)
            for n, (layer, table) in enumerate(zip(stage, tables, strict=True)):
                after = values.relative[stage[n - 1].num_nodes]
                theta = _layer_weights(walk, layer, weights, parts, values)
                values, kept[n] = _forward_layer(
                    walk, places, layer, values, kept[n], table, theta, i, after
                )
            return values, kept

        values, kept = _run_steps(step, (values, kept), stage[0].num_steps)
        saved.append(kept)
    return _root_values(walk, places, values), values, FusedPass(parts, saved)


def _split_weights(
    walk: Walk, weights: dict[str, Array], batch: int, save: bool
) -> dict[str, Array]:
    """The weights that kernels multiply with, `[parts, P, M, N]` by group."""
    roles: tuple[ops.Role, ...] = "forward", "dense_forward"
    counts: dict[str, int] = {}
    for layer in (layer for stage in walk.program.stages for layer in stage):
        if not multiplies_in_parts(layer, walk.precision, batch):
            continue
        dense = ops.is_dense(layer.block_nodes, layer.num_children, batch, ops.LL)
        needed = [kernels.products(walk.precision, roles[dense], batch).parts]
        if save:
            needed.append(kernels.products(walk.precision, "backward", batch).parts)
        counts[layer.weights.group] = max(*needed, counts.get(layer.weights.group, 0))
    return {
        group: kernels.split(_as_rows(weights[group]), count, walk.kernels)
        for group, count in counts.items()
    }


def _layer_weights(
    walk: Walk, layer: SumLayer, weights: dict[str, Array], parts: dict[str, Array], values: Values
) -> Array:
    """theta as the layer's products take it."""
    in_parts = multiplies_in_parts(layer, walk.precision, _batch_of(values))
    return (parts if in_parts else weights)[layer.weights.group]


def _batch_of(values: Values) -> int:
    return next(iter(values.scale.values())).shape[1]


def _run_steps(step: Callable, carry, count: int, *, reverse: bool = False):
    """`step(carry, int32 [1])` for every step.

    Not a scan: it would hand slices of tables to the kernels and copy their outputs, in kernels of
    its own, where these can index whole arrays.
    """

    def body(i, carry):
        return step(carry, (count - 1 - i if reverse else i).reshape(1))

    if count == 1:
        return body(jnp.zeros((), jnp.int32), carry)
    return lax.fori_loop(0, count, body, carry, unroll=min(count, _UNROLLED_STEPS))


def _start_values(program: Program, places: ValueSlots, weights, leaves, empty: _Empty) -> Values:
    batch = _batch_size(leaves)
    axes = ops.varying_axes(weights, leaves)
    relative, scale = {}, {}
    for k, count in program.value_slots.items():
        shape = (places.size(k, count), batch, k)
        relative[k] = empty(*shape)
        scale[k] = jnp.zeros(shape[:2], jnp.float32)
    values = ops.match_varying(Values(relative, scale), axes)
    for leaf, value in zip(program.leaves, leaves, strict=True):
        if isinstance(value, Lookup):
            continue
        start = int(places.slots(leaf.num_nodes, np.array(leaf.value_start)))
        array = values.relative[leaf.num_nodes]
        value = ops.match_varying(value, axes)
        values.relative[leaf.num_nodes] = ops.write_slots(array, value, start)
    return values


def _batch_size(leaves: Sequence[Array | Lookup]) -> int:
    value = leaves[0]
    return (value.category if isinstance(value, Lookup) else value).shape[1]


def _start_saved(
    walk: Walk, layer: SumLayer, values: Values, save: bool, empty: _Empty
) -> FusedSaved:
    batch = _batch_of(values)
    parts = kernels.stored_parts(walk.precision, batch)
    units = layer.quota * (layer.num_steps if save else 1)
    p = shifts = block_shifts = None
    if layer.num_blocks > 1:
        p = empty.parts(parts, units * layer.num_elements, batch, layer.width)
        shifts = empty(units * layer.num_elements, batch)
        if save:
            block_shifts = empty(layer.num_steps, layer.quota, layer.num_blocks, batch)
    elif multiplies_in_parts(layer, walk.precision, batch):
        number = _gradient_lists(layer)[1] if save else units
        p = empty.parts(parts, number, batch, layer.num_children)
    elif save and not _keeps_whole_step(layer):
        p = empty(_gradient_lists(layer)[1], batch, layer.num_children)
    return ops.match_varying(FusedSaved(p, shifts, block_shifts), ops.varying_axes(values))


def _keeps_whole_step(layer: SumLayer) -> bool:
    """Whether p and q of the only step are what is kept."""
    places = _kept_rows(layer)
    return layer.num_steps == 1 and np.array_equal(places[0], np.arange(layer.quota))


def _gradient_lists(layer: SumLayer) -> tuple[list[tuple[np.ndarray, np.ndarray]], int]:
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
    kept = _gradient_lists(layer)[0]
    places = np.full(entries.size, -1, np.int32)
    for (_, copies), (_, where) in zip(lists, kept, strict=True):
        places[copies[copies >= 0]] = where[copies >= 0]
    return places.reshape(layer.num_steps, layer.quota)


def _layer_tables(
    walk: Walk, places: ValueSlots, layer: SumLayer, values: Values, save: bool
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
        tables["readers"] = _readers(layer)
        tables["rows"] = layer.weights.rows
        steps = np.arange(layer.num_steps, dtype=np.int32)
        tables["firsts"] = steps * (layer.quota * layer.num_elements if save else 0)
    elif multiplies_in_parts(layer, walk.precision, _batch_of(values)):
        tables["rows"] = layer.weights.rows
    elif layer.weights.kind == "all":
        tables["row"] = np.arange(layer.num_steps, dtype=np.int32) * layer.quota
    else:
        tables |= weight_tables(layer)
    # As constants they would make each step of a stage a kernel of its own.
    return lax.optimization_barrier(jax.tree.map(jnp.asarray, tables))


def _step_weights(layer: SumLayer, tables: dict[str, Any], weights: Array, i: Array) -> Array:
    """theta `[quota, M, N]` of step i of units that are one product each."""
    step = {name: tables[name][i[0]] for name in ("row", "rows") if name in tables}
    return layer_weights(layer, step, weights)


def _readers(layer: SumLayer) -> np.ndarray:
    """Int32 `[R, quota, elements, 1 + most]`: `selected_by`, with how many there are in front."""
    places = layer.selected_by
    assert places is not None
    count = (places < layer.num_blocks * layer.block_elements).sum(-1, keepdims=True)
    return np.concatenate([count.astype(np.int32), places], axis=-1)


def _forward_layer(
    walk: Walk,
    places: ValueSlots,
    layer: SumLayer,
    values: Values,
    saved: FusedSaved,
    table: dict[str, Any],
    weights: Array,
    i: Array,
    after: Array,
) -> tuple[Values, FusedSaved]:
    (width,) = layer.children
    relative, scale = values.relative, values.scale
    k, start = layer.num_nodes, table["value_start"]
    probs, lookups = places.table(width)
    slots, offsets = table["children"]
    if layer.num_blocks == 1:
        own = None if width == k else scale[k]
        p, kept, new_scale = kernels.exponentiate(
            relative[width], scale[width], probs, lookups, slots, offsets, own, start, i,
            table["places"], saved.p, after, layer.width, walk.kernels,
        )  # fmt: skip
        if p is None:
            assert kept is not None
            new = kernels.dense_forward(
                kept, weights, table["rows"], table["places"], start, i, relative[k],
                walk.precision, walk.kernels,
            )  # fmt: skip
        else:
            theta = _step_weights(layer, table, weights, i)
            v = ops.sum_layer_forward(p, theta, walk.propagation, walk.precision)
            new = ops.write_slots(relative[k], v, start[i[0]])
        saved = saved._replace(p=p if kept is None and layer.num_steps == 1 else kept)
    else:
        assert saved.p is not None and saved.shifts is not None
        p, shifts = kernels.exponentiate_apart(
            relative[width], scale[width], probs, lookups, slots, offsets, table["firsts"], i,
            saved.p, saved.shifts, after, walk.kernels,
        )  # fmt: skip
        block_shifts = _block_shifts(layer, shifts, table["firsts"][i[0]], table["selection"][i[0]])
        shift = block_shifts.max(1)
        new = kernels.forward(
            p, shifts, table["firsts"], block_shifts, shift, weights, table["rows"],
            table["selection"], start, i, relative[k], layer.num_elements, walk.precision,
            walk.kernels,
        )  # fmt: skip
        new_scale = ops.write_slots(scale[k], shift, start[i[0]])
        kept = saved.block_shifts
        if kept is not None:
            kept = lax.dynamic_update_index_in_dim(kept, block_shifts, i[0], 0)
        saved = FusedSaved(p, shifts, kept)
    return Values({**relative, k: new}, {**scale, k: new_scale}), saved


def _block_shifts(layer: SumLayer, shifts: Array, first: Array, selection: Array) -> Array:
    """M `[quota, blocks, B]`, the largest of the shifts of the elements that a block reads."""
    unit = jnp.arange(layer.quota, dtype=jnp.int32)[:, None, None]
    return shifts[first + unit * layer.num_elements + selection].max(2)


def _as_rows(weights: Array) -> Array:
    """theta `[P, blocks, block_nodes, N]` as `[P, M, N]`."""
    return weights.reshape(weights.shape[0], -1, weights.shape[3])


def _root_values(walk: Walk, places: ValueSlots, values: Values) -> Array:
    root = walk.program.root
    total = None
    for width, children in root.children.items():
        probs, lookups = places.table(width)
        slots = jnp.asarray(places.slots(width, children.slots[0]))
        offsets = None if children.offsets is None else jnp.asarray(children.offsets[0])
        e, scale = kernels.read(
            values.relative[width], values.scale[width], probs, lookups, slots, offsets, root.width
        )
        more = e + scale[..., None]  # [1, elements, B, width]
        total = more if total is None else total + more
    assert total is not None
    return total[0].swapaxes(0, 1).reshape(total.shape[2], root.num_nodes)


def backward(
    walk: Walk,
    weights: dict[str, Array],
    leaves: Sequence[Array | Lookup],
    values: Values,
    saved: FusedPass,
    lls: Array,
    root_flows: Array,
    *,
    as_flows: bool = False,
) -> tuple[dict[str, Array], list[Array | LookupFlows]]:
    """Gradients by hand.

    Args:
        walk: the program and its settings.
        weights: sum parameters by group.
        leaves: as `forward` took them.
        values, saved, lls: what `forward` returned.
        root_flows: `[B, num_roots]`, any sign; counts as 0 where the root is -inf.
        as_flows: whether to return theta dLL / dtheta instead of dLL / dtheta.

    Returns:
        d LL / d theta by group, and the flows of each leaf layer: `[V, B, K]`, or `LookupFlows`.
    """
    program = walk.program
    places = ValueSlots.of(program, leaves)
    root_flows = jnp.where(lls > -jnp.inf, root_flows, jnp.zeros_like(root_flows))
    empty = _Empty(walk, 1_000_000)  # far from the labels of the pass forward
    flows = _start_flows(walk.program, values, root_flows, empty)
    gradients: dict[str, Array] = {}
    for stage, kept in reversed(list(zip(program.stages, saved.layers, strict=True))):
        tables = [_layer_tables(walk, places, layer, values, True) for layer in stage]
        ratios = [_start_ratios(walk, layer, root_flows, empty) for layer in stage]

        def step(carry, i, stage=stage, kept=kept, tables=tables):
            flows, ratios = carry
            ratios = list(ratios)
            for n, (layer, more, table) in reversed(
                list(enumerate(zip(stage, kept, tables, strict=True)))
            ):
                theta = _layer_weights(walk, layer, weights, saved.weights, values)
                after = flows[stage[(n + 1) % len(stage)].width]
                flows, ratios[n] = _backward_layer(
                    walk, layer, values, flows, more, ratios[n], table, theta, i, after
                )
            return flows, ratios

        flows, ratios = _run_steps(step, (flows, ratios), stage[0].num_steps, reverse=True)
        for layer, more, q in zip(stage, kept, ratios, strict=True):
            group = layer.weights.group
            for rows, part in _gradient(walk, layer, weights[group], more, q, as_flows):
                if len(rows) != len(weights[group]):
                    part = jnp.zeros_like(weights[group]).at[rows].add(part)
                gradients[group] = gradients[group] + part if group in gradients else part
    leaf_flows = [
        _leaf_flows(walk, leaf, value, flows)
        for leaf, value in zip(program.leaves, leaves, strict=True)
    ]
    return gradients, leaf_flows


def _start_flows(program: Program, values: Values, root_flows: Array, empty: _Empty) -> Arrays:
    root, batch = program.root, root_flows.shape[0]
    f = root_flows.reshape(batch, root.num_elements, root.width).transpose(1, 0, 2)
    axes = ops.varying_axes(values, f)
    # Leaves that are not looked up read slot 0 where they have fewer readers than others.
    none = {w: jnp.zeros((1, batch, w), f.dtype) for w in program.flow_slots}
    flows = {
        w: ops.write_slots(empty(count, batch, w), none[w], 0)
        for w, count in program.flow_slots.items()
    }
    flows = ops.match_varying(flows, axes)
    flows[root.width] = ops.write_slots(flows[root.width], ops.match_varying(f, axes), 1)
    return flows


def _start_ratios(walk: Walk, layer: SumLayer, like: Array, empty: _Empty) -> Array | None:
    """Where q is kept: `[number, B, M]`, in parts for dense products of the kernels."""
    batch = like.shape[0]
    if layer.num_blocks > 1:
        q = empty(layer.num_steps * layer.quota, batch, layer.num_nodes)
    elif multiplies_in_parts(layer, walk.precision, batch):
        parts = kernels.products(walk.precision, "backward", batch).parts
        q = empty.parts(parts, _gradient_lists(layer)[1], batch, layer.num_nodes)
    elif _keeps_whole_step(layer):
        return None
    else:
        q = empty(_gradient_lists(layer)[1], batch, layer.num_nodes)
    return ops.match_varying(q, ops.varying_axes(like))


def _backward_layer(
    walk: Walk,
    layer: SumLayer,
    values: Values,
    flows: Arrays,
    saved: FusedSaved,
    ratios: Array | None,
    table: dict[str, Any],
    weights: Array,
    i: Array,
    after: Array,
) -> tuple[Arrays, Array | None]:
    (source,) = layer.parents
    w, corrections = layer.width, None
    block_shifts = None if saved.block_shifts is None else saved.block_shifts[i[0]]
    if block_shifts is not None:
        corrections = block_shifts - block_shifts.max(1)[:, None]
    slots, offsets = table["parents"]
    in_parts = multiplies_in_parts(layer, walk.precision, _batch_of(values))
    q, ratios = kernels.flow_ratio(
        values.relative[layer.num_nodes], flows[source], slots, offsets, corrections,
        table["value_start"], i, table["places"], ratios, after, not in_parts, walk.kernels,
    )  # fmt: skip
    assert saved.p is not None
    if not in_parts:
        assert q is not None
        theta = _step_weights(layer, table, weights, i)
        back = ops.flows_back(q, theta, walk.propagation, walk.precision)
        new = kernels.scale_flows(
            saved.p, back, table["places"], table["flow_start"], i, flows[w], walk.kernels
        )
        return {**flows, w: new}, q if ratios is None else ratios
    assert ratios is not None
    if block_shifts is None:
        new = kernels.dense_backward(
            ratios, saved.p, weights, table["rows"], table["places"], table["flow_start"], i,
            flows[w], walk.precision, walk.kernels,
        )  # fmt: skip
    else:
        assert saved.shifts is not None
        new = kernels.element_flows(
            saved.p, saved.shifts, block_shifts, ratios, weights, table["rows"], table["readers"],
            table["flow_start"], i, flows[w], layer.num_blocks, walk.precision, walk.kernels,
        )  # fmt: skip
    return {**flows, w: new}, ratios


def _gradient(
    walk: Walk, layer: SumLayer, weights: Array, saved: FusedSaved, q: Array, as_flows: bool
):
    """d LL / d theta of a layer: lists of rows, and their parts `[rows, blocks, M, N]`."""
    assert saved.p is not None
    lists = parameter_copies(layer) if layer.num_blocks > 1 else _gradient_lists(layer)[0]
    for rows, copies in lists:
        part = _gradient_of_rows(walk, layer, weights, saved, saved.p, q, rows, copies, as_flows)
        yield rows, part.reshape(len(rows), *weights.shape[1:])


def _gradient_of_rows(
    walk: Walk,
    layer: SumLayer,
    weights: Array,
    saved: FusedSaved,
    p: Array,
    q: Array,
    rows: np.ndarray,
    copies: np.ndarray,
    as_flows: bool,
) -> Array:
    if not multiplies_in_parts(layer, walk.precision, q.shape[-2]):
        q, p = (stack_entries(flat_entries(x, copies.reshape(-1)), *copies.shape) for x in (q, p))
        part = ops.sum_layer_weight_gradient(
            q, p, weights[:1, 0], walk.propagation, walk.precision
        ).reshape(len(rows), *weights.shape[1:])
        return flat_entries(weights, rows) * part if as_flows else part
    factors = _as_rows(weights) if as_flows else None
    tables = jnp.asarray(copies), factors, jnp.asarray(rows, jnp.int32)
    if layer.num_blocks == 1:
        return kernels.dense_gradient(q, p, *tables, walk.precision, walk.kernels)
    assert saved.shifts is not None and saved.block_shifts is not None
    assert layer.selection is not None
    by_unit = (
        x.reshape(len(q), *x.shape[2:])
        for x in (saved.block_shifts, layer.selection, _readers(layer))
    )
    block_shifts, selection, readers = map(jnp.asarray, by_unit)
    return kernels.weight_gradient(
        p, saved.shifts, block_shifts, q, selection, readers, *tables, walk.precision, walk.kernels
    )


def _leaf_flows(
    walk: Walk, leaf: LeafLayer, value: Array | Lookup, flows: Arrays
) -> Array | LookupFlows:
    ((width, parents),) = leaf.parents.items()
    tables = jax.tree.map(jnp.asarray, (parents.slots, parents.offsets))
    slots, offsets = lax.optimization_barrier(tables)
    if not isinstance(value, Lookup):
        tables = {width: (slots, offsets)}
        return read_flows(flows, tables, leaf.num_leaves, leaf.num_nodes, leaf.pieces)
    leaves = leaves_of_tables(leaf)
    categories = value.table.shape[1]
    keys = sorted_keys(value.category, leaves, categories)
    used = jnp.asarray(np.maximum(leaves, 0))

    def count(first: int, number: int) -> Array:
        return kernels.leaf_counts(
            flows[width], slots, offsets, keys, used, first, number, leaf.num_nodes, walk.kernels
        )

    missing = count(categories, 1)[:, 0] if walk.has_missing else None
    return LookupFlows(count(0, categories), missing)
