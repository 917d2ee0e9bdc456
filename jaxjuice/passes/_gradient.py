"""The two passes as differentiable functions, with the backward pass as their rule."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_derivatives import SymbolicZero

from jaxjuice import ops
from jaxjuice.passes import _fused
from jaxjuice.passes._backward import backward
from jaxjuice.passes._forward import forward
from jaxjuice.passes._lookup import Lookup, LookupFlows
from jaxjuice.passes._walk import Walk

Leaves = Sequence[Array | Lookup]


def _run_forward(walk: Walk, weights, leaves: Leaves, *, save: bool):
    if walk.kernels:
        return _fused.forward(walk, weights, leaves, save=save)
    arrays = [leaf for leaf in leaves if not isinstance(leaf, Lookup)]
    return forward(walk, weights, arrays, save=save)


def _run_backward(walk: Walk, residuals, root_flows: Array, *, as_flows: bool = False):
    """With `as_flows` parameter flows, theta dLL / dtheta, instead of gradients."""
    weights, leaves, values, saved, lls = residuals
    if walk.kernels:
        return _fused.backward(
            walk, weights, leaves, values, saved, lls, root_flows, as_flows=as_flows
        )
    gradients, flows = backward(walk, weights, values, saved, lls, root_flows)
    if as_flows:
        gradients = {group: weights[group] * part for group, part in gradients.items()}
    return gradients, flows


def _residuals(walk: Walk, weights, leaves: Leaves, lls: Array, values, saved):
    # Log-densities can be large, and only lookups are needed again.
    kept = leaves if walk.kernels else [None] * len(leaves)
    kept = [leaf if isinstance(leaf, Lookup) else None for leaf in kept]
    return weights, kept, values, saved, lls


def _leaf_cotangents(leaves: Leaves, flows: Sequence[Array | LookupFlows]) -> list:
    """What `_run_backward` returns for leaves, as cotangents of their log-densities or tables."""

    def cotangent(leaf, flow):
        if not isinstance(flow, LookupFlows):
            return flow
        safe = jnp.where(leaf.table > 0, leaf.table, jnp.ones_like(leaf.table))
        gradient = jnp.where(leaf.table > 0, flow.counts / safe, jnp.zeros_like(flow.counts))
        whole: Any = np.zeros(leaf.category.shape, jax.dtypes.float0)  # of whole numbers
        return Lookup(gradient, whole)

    return [cotangent(*pair) for pair in zip(leaves, flows, strict=True)]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _values(walk: Walk, weights, leaves):
    return _run_forward(walk, weights, leaves, save=False)[0]


def _values_forward(walk: Walk, weights, leaves):
    lls, values, saved = _run_forward(walk, weights, leaves, save=True)
    return lls, _residuals(walk, weights, leaves, lls, values, saved)


def _values_backward(walk: Walk, residuals, cotangent):
    gradients, flows = _run_backward(walk, residuals, cotangent)
    return gradients, _leaf_cotangents(residuals[1], flows)


_values.defvjp(_values_forward, _values_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _values_and_flows(walk: Walk, weights, leaves, root_flows):
    return _both_forward(walk, weights, leaves, root_flows)[0]


def _both_forward(walk: Walk, weights, leaves, root_flows):
    lls, values, saved = _run_forward(walk, weights, leaves, save=True)
    residuals = _residuals(walk, weights, leaves, lls, values, saved)
    flows, leaf_flows = _run_backward(walk, residuals, root_flows, as_flows=True)
    return (lls, flows, leaf_flows), residuals


def _both_backward(walk: Walk, residuals, cotangents):
    cotangent, *of_flows = cotangents
    if not all(
        isinstance(leaf, SymbolicZero)
        for leaf in jax.tree.leaves(of_flows, is_leaf=lambda x: isinstance(x, SymbolicZero))
    ):
        raise TypeError(
            "log_likelihood_and_flows: a gradient of the flows was asked for, and only the "
            "log-likelihoods have one; differentiate log_likelihood, or stop the flows' gradient."
        )
    lls = residuals[-1]
    if isinstance(cotangent, SymbolicZero):
        cotangent = jnp.zeros_like(lls)
    gradients, flows = _run_backward(walk, residuals, cotangent)
    return gradients, _leaf_cotangents(residuals[1], flows), jnp.zeros_like(lls)


def _both_forward_rule(walk: Walk, weights, leaves, root_flows):
    plain = jax.tree.map(lambda x: x.value, (weights, leaves, root_flows))
    return _both_forward(walk, *plain)


_values_and_flows.defvjp(_both_forward_rule, _both_backward, symbolic_zeros=True)


def root_values(walk: Walk, weights: dict[str, Array], leaves: Leaves) -> Array:
    """Log-likelihoods `[B, num_roots]`, differentiable in `weights` and `leaves`.

    Args:
        walk: the program and its settings.
        weights: sum parameters by group.
        leaves: log-densities `[V, B, K]` of each leaf layer, or, in fused passes, a `Lookup`.
    """
    weights, leaves = _matched(weights, list(leaves))
    return _values(walk, weights, leaves)


def root_values_and_flows(
    walk: Walk, weights: dict[str, Array], leaves: Leaves, root_flows: Array
) -> tuple[Array, dict[str, Array], list[Array | LookupFlows]]:
    """The same with parameter flows by group and leaf flows, for root flows `[B, num_roots]`."""
    weights, leaves, root_flows = _matched(weights, list(leaves), root_flows)
    return _values_and_flows(walk, weights, leaves, root_flows)


def _matched(*trees):
    """Under `shard_map`, all arguments vary alike: cotangents are then summed as they must."""
    return ops.match_varying(trees, ops.varying_axes(trees))
