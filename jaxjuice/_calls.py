"""What a circuit's methods run, under `jit`; arguments are checked by then."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxjuice import ops
from jaxjuice._batch import Batch
from jaxjuice._external_params import External, make_parts, plan_of
from jaxjuice._flows import Flows, sum_flows
from jaxjuice._leaves import add_expected, leaf_values, statistics
from jaxjuice._parameters import Params, params_dtype
from jaxjuice.ops import kernels
from jaxjuice.passes import Walk, is_fusable, root_values, root_values_and_flows, top_down

if TYPE_CHECKING:
    from jaxjuice.circuit import Circuit


def _is_on_cpu() -> bool:
    """Whether the user has made a CPU the default device."""
    device = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    return getattr(device, "platform", device) == "cpu"


def _fused(pc: "Circuit", walk: Walk, params: Params, batch: Batch) -> Walk:
    """The walk in fused steps, by fixed rules: see `compile`."""
    wanted = pc.implementation == "triton"
    if pc.implementation == "auto" and not _is_on_cpu() and kernels.available():
        # Outside shard_map, a batch sharded over devices would be gathered for every kernel.
        wanted = kernels.num_devices() == 1 or bool(ops.varying_axes(params, batch))
    fits = walk.propagation == ops.LL and params_dtype(params) == jnp.float32
    if not (wanted and fits and is_fusable(pc.program)):
        return walk
    implementation = "triton" if kernels.available() else "xla"
    return replace(walk, kernels=implementation, has_missing=batch.missing is not None)


def _weights(params: Params) -> dict[str, Array]:
    dtype = params_dtype(params)
    return {name: weights.astype(dtype) for name, weights in params["sums"].items()}


def _scaled(
    pc: "Circuit", walk: Walk, external: External, params: Params, batch: Batch
) -> tuple[Walk, Any]:
    """The walk of a call, fused only where nothing is scaled, and the parts of scaled layers."""
    plan = plan_of(pc, external.keys)
    if plan is None:
        return _fused(pc, walk, params, batch), ()
    return replace(walk, scales=plan.scales), make_parts(
        plan, external.tensors, params_dtype(params)
    )


@partial(jax.jit, static_argnums=(0, 1, 2))
def log_likelihood(pc: "Circuit", walk: Walk, keys, params: Params, batch: Batch, tensors) -> Array:
    walk, parts = _scaled(pc, walk, External(keys, tensors), params, batch)
    lls = root_values(walk, _weights(params), leaf_values(pc, walk, params, batch), parts)
    return lls[:, 0] if pc.num_roots == 1 else lls


@partial(jax.jit, static_argnums=(0, 1, 2))
def log_likelihood_and_flows(
    pc: "Circuit", walk: Walk, keys, params: Params, batch: Batch, tensors, weights: Array | None
) -> tuple[Array, Flows]:
    walk, parts = _scaled(pc, walk, External(keys, tensors), params, batch)
    leaves, theta = leaf_values(pc, walk, params, batch), _weights(params)
    shape = (batch.x.shape[0], pc.num_roots)
    if weights is None:
        root_flows = jnp.ones(shape, params_dtype(params))
    else:
        weights = weights.astype(params_dtype(params))
        weights = weights[:, None] if weights.ndim == 1 else weights
        root_flows = jnp.broadcast_to(weights, shape)
    lls, plain, scaled, leaf_flows = root_values_and_flows(walk, theta, leaves, root_flows, parts)
    sums, denominators = sum_flows(pc.sum_groups, theta, plain, scaled)
    inputs = {
        leaf.name: statistics(pc, params, leaf, batch, flows)
        for leaf, flows in zip(pc.program.leaves, leaf_flows, strict=True)
    }
    flows = Flows(sums, inputs, root_flows.sum(), denominators)
    return (lls[:, 0] if pc.num_roots == 1 else lls), flows


@partial(jax.jit, static_argnums=(0, 1))
def top_down_flows(pc: "Circuit", walk: Walk, params: Params) -> Flows:
    theta = _weights(params)
    totals, leaf_totals = top_down(walk, theta)
    sums = {name: total[..., None] * theta[name] for name, total in totals.items()}
    denominators = {
        name: jnp.broadcast_to(totals[name][..., None], group.denominator_shape)
        for name, group in pc.sum_groups.items()
        if group.denominator_shape is not None
    }
    inputs = {
        leaf.name: add_expected(
            pc.input_groups[leaf.name].leaf(params["inputs"][leaf.name]), leaf, None, total
        )
        for leaf, total in zip(pc.program.leaves, leaf_totals, strict=True)
    }
    return Flows(sums, inputs, jnp.ones((), params_dtype(params)), denominators)
