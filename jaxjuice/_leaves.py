"""The leaf layers of a circuit: their values for the passes, and statistics from their flows."""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import Array

from jaxjuice import ops
from jaxjuice._batch import Batch, leaf_log_probs, missing_of, observations
from jaxjuice._parameters import Params, params_dtype
from jaxjuice.compiler import LeafLayer
from jaxjuice.distributions import LeafGroup
from jaxjuice.passes import Lookup, LookupFlows, Walk, can_look_up

if TYPE_CHECKING:
    from jaxjuice.circuit import Circuit


def leaf_values(pc: "Circuit", walk: Walk, params: Params, batch: Batch) -> list[Array | Lookup]:
    """Log-densities of each leaf layer; in fused passes, one layer of each width is looked up."""
    dtype, values, looked_up = params_dtype(params), [], set()
    axes = ops.varying_axes(batch, params)
    batch = ops.match_varying(batch, axes)
    for leaf in pc.program.leaves:
        group = pc.input_groups[leaf.name].leaf(params["inputs"][leaf.name])
        group = ops.match_varying(group, axes)
        value = None
        if walk.kernels and leaf.num_nodes not in looked_up:
            value = _lookup(leaf, group, batch, dtype)
        if value is None:
            values.append(leaf_log_probs(leaf, group, batch, dtype))
        else:
            looked_up.add(leaf.num_nodes)
            values.append(value)
    return values


def _lookup(leaf: LeafLayer, group: LeafGroup, batch: Batch, dtype: Any) -> Lookup | None:
    found = None if leaf.dist.is_external else leaf.dist.lookup(group, observations(leaf, batch))
    if found is None or not can_look_up(leaf, found[0].shape[1], batch.x.shape[0]):
        return None
    table, category, legal = found
    table = table.astype(dtype)
    category = jnp.where(legal, category, -2)
    missing = missing_of(leaf, batch)
    return Lookup(table, category if missing is None else jnp.where(missing[..., 0], -1, category))


def statistics(
    pc: "Circuit", params: Params, leaf: LeafLayer, batch: Batch, flows: Array | LookupFlows
):
    """The family's sufficient statistics: observed values as they are, missing ones expected."""
    axes = ops.varying_axes(batch, flows)
    group = pc.input_groups[leaf.name].leaf(params["inputs"][leaf.name])
    group, batch = ops.match_varying((group, batch), axes)
    missing = missing_of(leaf, batch)
    if isinstance(flows, LookupFlows):
        if flows.missing is None:
            return {"counts": flows.counts}
        expected = leaf.dist.expected_statistics(group)["counts"]
        return {"counts": flows.counts + expected * flows.missing[:, None]}
    zero = jnp.zeros_like(flows)
    observed = flows if missing is None else jnp.where(missing, zero, flows)
    x = observations(leaf, batch)
    counted = leaf.dist.statistics(group, x, observed)
    if missing is None:
        return counted
    total = jnp.where(missing, flows, zero).sum(1)
    return add_expected(group, leaf, counted, total)


def add_expected(group: LeafGroup, leaf: LeafLayer, statistics, total: Array):
    """Adds the expected statistics of flows `total` `[V, K]` of unobserved leaves."""
    expected = leaf.dist.expected_statistics(group)
    if not expected:
        return {}
    pooled = group.pool(total)

    def add(name: str) -> Array:
        per_node = pooled.reshape(pooled.shape[0], *[1] * (expected[name].ndim - 2), -1)
        more = expected[name] * per_node
        return more if statistics is None else statistics[name] + more

    return {name: add(name) for name in expected}
