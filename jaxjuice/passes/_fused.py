"""Both passes in fused steps: children are read, and flows pulled, inside the kernels.

The passes of `_forward` and `_backward` gather children and flows into arrays of their own, which
CPUs do well. GPUs are short of memory traffic: here every launch is a few kernels that read slots
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
from jaxjuice.ops.kernels import Units
from jaxjuice.passes._forward import Values
from jaxjuice.passes._fused_layers import (
    Empty,
    FusedSaved,
    forward_role,
    gradient_lists,
    keeps_apart,
    layer_tables,
    layers_in_parts,
    multiplies_in_parts,
    plan_launches,
    readers_of,
    splits_where_read,
    start_ratios,
    start_saved,
    unit_weights,
)
from jaxjuice.passes._launches import Run, UnitList
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
    parameter_copies,
    read_flows,
)


class FusedPass(NamedTuple):
    """What the backward pass needs of the pass forward.

    Attributes:
        weights: theta of the groups that the kernels multiply with: in parts `[parts, P, M, N]`, or
            float32 `[1, P, M, N]`, which products split where they read it.
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
    empty = Empty(walk, 0)
    values = _start_values(walk.program, places, weights, leaves, empty)
    batch, axes = _batch_size(leaves), ops.varying_axes(values)
    parts = _split_weights(walk, weights, batch, save)
    saved = []
    for stage in walk.program.stages:
        launched = plan_launches(walk, stage, batch, save)
        tables = [layer_tables(walk, places, units, batch, save) for units in launched.lists]
        kept = [start_saved(walk, units, batch, save, empty) for units in launched.lists]
        kept = ops.match_varying(kept, axes)

        def launch(carry, n, now, stage=stage, lists=launched.lists, tables=tables):
            values, kept = carry
            after = values.relative[stage[n - 1].num_nodes]
            theta = _layer_weights(walk, stage[n], weights, parts, batch)
            values, more = _forward_layer(
                walk, places, lists[n], values, kept[n], tables[n], theta, now, after
            )
            return values, [*kept[:n], more, *kept[n + 1 :]]

        for run in launched.runs:
            values, kept = _run(run, launch, (values, kept))
        saved.append(kept)
    return _root_values(walk, places, values), values, FusedPass(parts, saved)


def _split_weights(
    walk: Walk, weights: dict[str, Array], batch: int, save: bool
) -> dict[str, Array]:
    """The weights that kernels multiply with, see `FusedPass`."""
    return {
        group: _split_group(walk, weights[group], layers, batch, save)
        for group, layers in layers_in_parts(walk, batch).items()
    }


def _split_group(
    walk: Walk, weights: Array, layers: list[SumLayer], batch: int, save: bool
) -> Array:
    weights = _as_rows(weights)
    if splits_where_read(walk, layers, batch, save):
        return weights[None]
    roles: list[ops.Role] = [forward_role(layer, batch) for layer in layers]
    if save:
        roles.append("backward")
    parts = max(kernels.products(walk.precision, role, batch).parts for role in roles)
    return kernels.split(weights, parts, walk.kernels)


def _layer_weights(
    walk: Walk, layer: SumLayer, weights: dict[str, Array], parts: dict[str, Array], batch: int
) -> Array:
    """theta as the layer's products take it."""
    in_parts = multiplies_in_parts(layer, walk.precision, batch)
    return (parts if in_parts else weights)[layer.weights.group]


def _run(run: Run, launch: Callable, carry: Any, *, reverse: bool = False) -> Any:
    """`launch(carry, layer, units)` for every launch of a run.

    Not a scan: it would hand slices of tables to the kernels and copy their outputs, in kernels of
    its own, where these can index whole arrays.
    """
    unroll, last, sign = run.unrolled, run.repeats - 1, -1 if reverse else 1
    launches = run.launches[::-1] if reverse else run.launches

    def body(i, carry):
        for n in range(unroll):
            at = last - n if reverse else n
            for each in launches:
                first, stride = each.first + at * each.stride, sign * unroll * each.stride
                carry = launch(carry, each.layer, Units(i, stride, first, each.count))
        return carry

    looped = run.repeats - run.repeats % unroll if run.repeats > 1 else 0
    if looped:
        carry = lax.fori_loop(0, looped // unroll, body, carry)
    for n in range(looped, run.repeats):
        for each in launches:
            first = each.first + (last - n if reverse else n) * each.stride
            carry = launch(carry, each.layer, Units.at(first, each.count))
    return carry


def _start_values(program: Program, places: ValueSlots, weights, leaves, empty: Empty) -> Values:
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


def _forward_layer(
    walk: Walk,
    places: ValueSlots,
    units: UnitList,
    values: Values,
    saved: FusedSaved,
    table: dict[str, Any],
    weights: Array,
    now: Units,
    after: Array,
) -> tuple[Values, FusedSaved]:
    layer = units.layer
    (width,) = layer.children
    relative, scale = values.relative, values.scale
    k, starts = layer.num_nodes, table["value_slots"]
    rows = places.table(width)
    slots, offsets = table["children"]
    if layer.num_blocks == 1:
        own = None if width == k else scale[k]
        p, kept, new_scale = kernels.exponentiate(
            relative[width], scale[width], *rows, slots, offsets, own, starts, now,
            table["places"], saved.p, after, layer.width, units.shares_children, walk.kernels,
        )  # fmt: skip
        if p is None:
            assert kept is not None
            new = kernels.dense_forward(
                kept, weights, table["rows"], table["places"], starts, now, relative[k],
                walk.precision, walk.kernels,
            )  # fmt: skip
        else:
            theta = unit_weights(units, table, weights, now)
            v = ops.sum_layer_forward(p, theta, walk.propagation, walk.precision)
            new = ops.write_slots(relative[k], v, starts[now.start])
        saved = saved._replace(p=p if kept is None and units.num_launches == 1 else kept)
    else:
        assert saved.p is not None and saved.shifts is not None
        p, shifts = kernels.exponentiate_apart(
            relative[width], scale[width], *rows, slots, offsets, table["places"], now,
            saved.p, saved.shifts, after, units.shares_children, walk.kernels,
        )  # fmt: skip
        assert saved.block_shifts is not None
        new, new_scale, block_shifts = kernels.forward(
            p, shifts, table["places"], weights, table["rows"], table["selection"], starts, now,
            relative[k], scale[k], saved.block_shifts, layer.num_elements, walk.precision,
            walk.kernels,
        )  # fmt: skip
        saved = FusedSaved(p, shifts, block_shifts)
    return Values({**relative, k: new}, {**scale, k: new_scale}), saved


def _as_rows(weights: Array) -> Array:
    """theta `[P, blocks, block_nodes, N]` as `[P, M, N]`."""
    return weights.reshape(weights.shape[0], -1, weights.shape[3])


def _root_values(walk: Walk, places: ValueSlots, values: Values) -> Array:
    root = walk.program.root
    total = None
    for width, children in root.children.items():
        rows = places.table(width)
        slots = jnp.asarray(places.slots(width, children.slots[0]))
        offsets = None if children.offsets is None else jnp.asarray(children.offsets[0])
        e, scale = kernels.read(
            values.relative[width], values.scale[width], *rows, slots, offsets, root.width
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
    places = ValueSlots.of(program, leaves, reads=False)
    root_flows = jnp.where(lls > -jnp.inf, root_flows, jnp.zeros_like(root_flows))
    empty = Empty(walk, 1_000_000)  # far from the labels of the pass forward
    flows = _start_flows(walk.program, values, root_flows, empty)
    batch, axes = len(root_flows), ops.varying_axes(root_flows)
    gradients: dict[str, Array] = {}
    for stage, kept in reversed(list(zip(program.stages, saved.layers, strict=True))):
        launched = plan_launches(walk, stage, batch, True)
        tables = [layer_tables(walk, places, units, batch, True) for units in launched.lists]
        ratios = [start_ratios(walk, units, batch, empty) for units in launched.lists]
        ratios = ops.match_varying(ratios, axes)

        def launch(carry, n, now, stage=stage, lists=launched.lists, kept=kept, tables=tables):
            flows, ratios = carry
            theta = _layer_weights(walk, stage[n], weights, saved.weights, batch)
            after = flows[stage[(n + 1) % len(stage)].width]
            flows, q = _backward_layer(
                walk, lists[n], values, flows, kept[n], ratios[n], tables[n], theta, now, after
            )
            return flows, [*ratios[:n], q, *ratios[n + 1 :]]

        for run in reversed(launched.runs):
            flows, ratios = _run(run, launch, (flows, ratios), reverse=True)
        for units, more, q in zip(launched.lists, kept, ratios, strict=True):
            layer, group = units.layer, units.layer.weights.group
            assert q is not None
            for rows, part in _gradient(walk, layer, weights[group], more, q, as_flows):
                if len(rows) != len(weights[group]):
                    part = jnp.zeros_like(weights[group]).at[rows].add(part)
                gradients[group] = gradients[group] + part if group in gradients else part
    leaf_flows = [
        _leaf_flows(walk, leaf, value, flows)
        for leaf, value in zip(program.leaves, leaves, strict=True)
    ]
    return gradients, leaf_flows


def _start_flows(program: Program, values: Values, root_flows: Array, empty: Empty) -> Arrays:
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


def _backward_layer(
    walk: Walk,
    units: UnitList,
    values: Values,
    flows: Arrays,
    saved: FusedSaved,
    ratios: Array | None,
    table: dict[str, Any],
    weights: Array,
    now: Units,
    after: Array,
) -> tuple[Arrays, Array | None]:
    layer = units.layer
    (source,) = layer.parents
    w, k, block_shifts = layer.width, layer.num_nodes, saved.block_shifts
    scales = None if block_shifts is None else values.scale[k]
    slots, offsets = table["parents"]
    in_parts = multiplies_in_parts(layer, walk.precision, flows[w].shape[1])
    apart = None
    if keeps_apart(layer):
        assert saved.shifts is not None
        apart = saved.shifts, table["selection"]
    q, ratios = kernels.flow_ratio(
        values.relative[k], flows[source], slots, offsets, block_shifts, scales, apart,
        table["value_slots"], now, table["places"], ratios, after, not in_parts, walk.kernels,
    )  # fmt: skip
    assert saved.p is not None
    if not in_parts:
        assert q is not None
        theta = unit_weights(units, table, weights, now)
        back = ops.flows_back(q, theta, walk.propagation, walk.precision)
        new = kernels.scale_flows(
            saved.p, back, table["places"], table["flow_slots"], now, flows[w], walk.kernels
        )
        return {**flows, w: new}, q if ratios is None else ratios
    assert ratios is not None
    if block_shifts is None:
        new = kernels.dense_backward(
            ratios, saved.p, weights, table["rows"], table["places"], table["flow_slots"], now,
            flows[w], walk.precision, walk.kernels,
        )  # fmt: skip
    else:
        assert saved.shifts is not None
        new = kernels.element_flows(
            saved.p, saved.shifts, block_shifts, ratios, weights, table["rows"], table["readers"],
            table["flow_slots"], now, flows[w], layer.num_blocks, walk.precision, walk.kernels,
        )  # fmt: skip
    return {**flows, w: new}, ratios


def _gradient(
    walk: Walk, layer: SumLayer, weights: Array, saved: FusedSaved, q: Array, as_flows: bool
):
    """d LL / d theta of a layer: lists of rows, and their parts `[rows, blocks, M, N]`."""
    assert saved.p is not None
    lists = parameter_copies(layer) if layer.num_blocks > 1 else gradient_lists(layer)[0]
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
    batch = q.shape[-2]
    if not multiplies_in_parts(layer, walk.precision, batch):
        q, p = (
            flat_entries(x, copies.reshape(-1)).reshape(len(rows), -1, x.shape[2]) for x in (q, p)
        )
        part = kernels.gradient_by_xla(q, p, batch, walk.precision, walk.kernels)
        part = part.reshape(len(rows), *weights.shape[1:])
        return flat_entries(weights, rows) * part if as_flows else part
    factors = _as_rows(weights) if as_flows else None
    tables = jnp.asarray(copies), factors, jnp.asarray(rows, jnp.int32)
    if layer.num_blocks == 1:
        return kernels.dense_gradient(q, p, *tables, walk.precision, walk.kernels)
    assert saved.shifts is not None and saved.block_shifts is not None
    assert layer.selection is not None
    selection, readers = jnp.asarray(layer.selection[0]), jnp.asarray(readers_of(layer))
    return kernels.weight_gradient(
        p, saved.shifts, saved.block_shifts, q, selection, readers, *tables, walk.precision,
        walk.kernels,
    )  # fmt: skip


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
