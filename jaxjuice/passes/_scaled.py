"""Layers whose weights tensors of a call scale: what their steps read, and what they sum up.

Their parts (`Parameterization.unit_indices`) come as one array for each layer, `[R, quota * blocks,
B, ...]` (without R where all steps read the same), and gradients go back in the same form. The
statistics plus and minus are summed inside the loops: kept apart for every step, they would be as
large as the parameters times the steps.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from jaxjuice import ops
from jaxjuice.compiler import SumLayer
from jaxjuice.parameterizations._base import Unit
from jaxjuice.passes._walk import LayerScale, Walk

Parts = Sequence[Sequence[tuple[Array, ...] | None]]
"""By stage and layer; empty where nothing is scaled."""


class Statistics(NamedTuple):
    """Sums over samples, steps and tied copies of a layer's scaled and plain units.

    Attributes:
        plus: `[P, blocks, M, N]`; theta times it are the parameter flows.
        minus: `[P, blocks, M, N / w]`, of scaled units: d LL / d theta is plus - minus.
        unscaled: `[P, blocks, M]`, the node flows of units that are plain sums in the call.
    """

    plus: Array
    minus: Array
    unscaled: Array


def add_inputs(
    inputs: list[dict[str, Any]],
    scales: Sequence[LayerScale | None],
    parts: Parts,
    stage: int,
) -> None:
    """Adds what scaled layers read to the inputs of a stage's scan."""
    for place, scale in enumerate(scales):
        if scale is None:
            continue
        tables = {"active": scale.active, "nodes": scale.nodes, "children_of": scale.children}
        inputs[place]["scale"] = {
            name: jnp.asarray(x) for name, x in tables.items() if x is not None
        }
        if not scale.fixed:
            inputs[place]["scale"]["parts"] = parts[stage][place]


def bind_fixed(
    tables: list[dict[str, Any]],
    scales: Sequence[LayerScale | None],
    parts: Parts,
    stage: int,
) -> list[dict[str, Any]]:
    """The tables of one step, with the parts that all steps share."""
    return [
        {**table, "scale": {**table["scale"], "parts": parts[stage][place]}}
        if scale is not None and scale.fixed
        else table
        for place, (scale, table) in enumerate(zip(scales, tables, strict=True))
    ]


def forward(
    walk: Walk, layer: SumLayer, scale: LayerScale, table, e: Array, theta: Array
) -> ops.ScaledSums:
    """The sums of one step, from child values `[quota * blocks, B, N]`."""
    parts, active = table["scale"]["parts"], _active(layer, table)
    if _is_mixture(walk, layer):
        a, b = parts
        return ops.mixture_forward(a, b, e, theta, active, walk.precision)
    log_scale, per_sample = _log_scale(walk, layer, scale, table, e.shape[1])
    return ops.scaled_forward(
        log_scale, parts, e, theta, active, walk.propagation, walk.precision, per_sample
    )


def backward(
    walk: Walk,
    layer: SumLayer,
    scale: LayerScale,
    table,
    e: Array,
    theta: Array,
    f: Array,
    for_flows: bool,
) -> ops.ScaledGradients:
    """What node flows `[quota * blocks, B, M]` do; plus and minus are of this step."""
    parts, active, sums = table["scale"]["parts"], _active(layer, table), table["saved"]
    if _is_mixture(walk, layer):
        assert layer.scaled is not None
        a, b = parts
        in_bits = getattr(layer.scaled.parameterization, "flow_precision", None)
        return ops.mixture_backward(
            a, b, e, theta, active, sums, f, walk.precision, in_bits if for_flows else None
        )
    log_scale, per_sample = _log_scale(walk, layer, scale, table, e.shape[1])
    return ops.scaled_backward(
        log_scale, parts, e, theta, active, sums, f, walk.propagation, walk.precision, per_sample
    )


def zero_statistics(layer: SumLayer, theta: Array) -> Statistics:
    """The start of a layer's sums; theta `[P, blocks, M, N]`."""
    assert layer.scaled is not None
    shared = layer.scaled.parameterization.children_per_scale
    columns = (*theta.shape[:3], theta.shape[3] // shared)
    zero = jnp.zeros_like(theta)
    return Statistics(
        zero, jnp.zeros_like(theta, shape=columns), jnp.zeros_like(theta, shape=theta.shape[:3])
    )


def add_step(
    layer: SumLayer, total: Statistics, step: ops.ScaledGradients, f: Array, table
) -> Statistics:
    """Adds the statistics of one step, with node flows f `[quota * blocks, B, M]`."""
    active = _active(layer, table)
    unscaled = jnp.zeros_like(f, shape=(f.shape[0], f.shape[2]))
    if active is not None:
        flows = jnp.where(table["saved"].log_n > -jnp.inf, f, jnp.zeros_like(f)).sum(1)
        unscaled = jnp.where(active[:, None], jnp.zeros_like(flows), flows)
    new = Statistics(step.plus, step.minus, unscaled)
    rows = table["statistic_rows"]

    def add(old: Array, more: Array) -> Array:
        more = more.reshape(layer.quota, *old.shape[1:])
        return old.at[rows].add(more, mode="promise_in_bounds", wrap_negative_indices=False)

    return Statistics(*(add(old, more) for old, more in zip(total, new, strict=True)))


def row_log_scale(
    walk: Walk, layer: SumLayer, scale: LayerScale, table, place: Array, node: Array
) -> Array:
    """log g `[X, B, N]` of one node of each unit and sample: node `node` of block `place`, both int
    `[X, B]`; 0 in units that are not scaled."""
    assert layer.scaled is not None
    parameterization = layer.scaled.parameterization
    sample = jnp.arange(place.shape[1])[None]
    parts = [part[place, sample] for part in table["scale"]["parts"]]
    unit = _unit(walk, scale, table, place.shape[1])
    if parameterization.reads_positions:
        # Positions differ from sample to sample: each is a unit of its own, with one sample.
        flat = [part.reshape(-1, 1, *part.shape[2:]) for part in parts]
        assert unit.nodes is not None and unit.children is not None
        every = place.reshape(-1)
        unit = unit._replace(nodes=unit.nodes[every], children=unit.children[every])
        rows = parameterization.row_log_scale(flat, node.reshape(-1, 1), layer.block_nodes, unit)
        rows = rows.reshape(*place.shape, rows.shape[2])
    else:
        rows = parameterization.row_log_scale(parts, node, layer.block_nodes, unit)
    rows = jnp.repeat(rows, layer.num_children // rows.shape[2], axis=2)
    active = table["scale"].get("active")
    if active is None:
        return rows
    return jnp.where(active[:, None, None], rows, jnp.zeros_like(rows))


def _active(layer: SumLayer, table) -> Array | None:
    active = table["scale"].get("active")
    return None if active is None else jnp.repeat(active, layer.num_blocks)


def _is_mixture(walk: Walk, layer: SumLayer) -> bool:
    assert layer.scaled is not None
    return layer.scaled.parameterization.is_mixture and walk.propagation.algorithm == "LL"


def _log_scale(walk: Walk, layer: SumLayer, scale: LayerScale, table, num_samples: int):
    assert layer.scaled is not None
    parameterization = layer.scaled.parameterization
    unit = _unit(walk, scale, table, num_samples)
    per_sample = 0
    if parameterization.reads_positions:
        per_sample = layer.quota * layer.num_blocks * scale.num_nodes * scale.num_ch_nodes
    return lambda parts: parameterization.unit_log_scale(parts, unit), per_sample


def _unit(walk: Walk, scale: LayerScale, table, num_samples: int) -> Unit:
    nodes, children = (table["scale"].get(name) for name in ("nodes", "children_of"))
    size = scale.num_nodes, scale.num_ch_nodes
    return Unit(*size, nodes, children, walk.precision, num_samples)
