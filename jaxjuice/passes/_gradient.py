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
from jaxjuice.passes._backward import Gradients, backward
from jaxjuice.passes._forward import forward
from jaxjuice.passes._lookup import Lookup, LookupFlows
from jaxjuice.passes._scaled import Parts, Statistics
from jaxjuice.passes._walk import Walk

Leaves = Sequence[Array | Lookup]


def _run_forward(walk: Walk, weights, leaves: Leaves, parts: Parts, *, save: bool):
    if walk.kernels:
        return _fused.forward(walk, weights, leaves, save=save)
    arrays = [leaf for leaf in leaves if not isinstance(leaf, Lookup)]
    return forward(walk, weights, arrays, parts, save=save)


def _run_backward(
    walk: Walk, residuals, root_flows: Array, *, for_flows: bool = False
) -> Gradients:
    """With `for_flows`, `Gradients.weights` are parameter flows, theta dLL / dtheta."""
    weights, leaves, parts, values, saved, lls = residuals
    if walk.kernels:
        sums, flows = _fused.backward(
            walk, weights, leaves, values, saved, lls, root_flows, as_flows=for_flows
        )
        return Gradients(sums, {}, flows, ())
    found = backward(walk, weights, parts, values, saved, lls, root_flows, for_flows)
    # Of many nodes far below others, the gradients of weights of 0 may be infinite.
    plain = {group: ops.finite(total) for group, total in found.weights.items()}
    if for_flows:
        plain = {group: weights[group] * total for group, total in plain.items()}
    return found._replace(weights=plain)


def _weight_cotangents(weights, found: Gradients) -> dict[str, Array]:
    """d LL / d theta by group: finite, for weights of 0 take part in products with it."""
    gradients = dict(found.weights)
    for group, total in found.scaled.items():
        shared = total.plus.shape[3] // total.minus.shape[3]
        own = ops.finite(total.plus) - jnp.repeat(ops.finite(total.minus), shared, axis=3)
        gradients[group] = ops.finite(gradients[group] + own) if group in gradients else own
    return {group: gradients[group] for group in weights}


def _residuals(walk: Walk, weights, leaves: Leaves, parts: Parts, lls: Array, values, saved):
    # Log-densities can be large, and only lookups are needed again.
    kept = leaves if walk.kernels else [None] * len(leaves)
    kept = [leaf if isinstance(leaf, Lookup) else None for leaf in kept]
    return weights, kept, parts, values, saved, lls


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
def _values(walk: Walk, weights, leaves, parts):
    return _run_forward(walk, weights, leaves, parts, save=False)[0]


def _values_forward(walk: Walk, weights, leaves, parts):
    lls, values, saved = _run_forward(walk, weights, leaves, parts, save=True)
    return lls, _residuals(walk, weights, leaves, parts, lls, values, saved)


def _values_backward(walk: Walk, residuals, cotangent):
    found = _run_backward(walk, residuals, cotangent)
    weights = _weight_cotangents(residuals[0], found)
    return weights, _leaf_cotangents(residuals[1], found.leaves), found.parts


_values.defvjp(_values_forward, _values_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _values_and_flows(walk: Walk, weights, leaves, parts, root_flows):
    return _both_forward(walk, weights, leaves, parts, root_flows)[0]


def _both_forward(walk: Walk, weights, leaves, parts, root_flows):
    lls, values, saved = _run_forward(walk, weights, leaves, parts, save=True)
    residuals = _residuals(walk, weights, leaves, parts, lls, values, saved)
    found = _run_backward(walk, residuals, root_flows, for_flows=True)
    return (lls, found.weights, found.scaled, found.leaves), residuals


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
    found = _run_backward(walk, residuals, cotangent)
    weights = _weight_cotangents(residuals[0], found)
    return weights, _leaf_cotangents(residuals[1], found.leaves), found.parts, jnp.zeros_like(lls)


def _both_forward_rule(walk: Walk, weights, leaves, parts, root_flows):
    plain = jax.tree.map(lambda x: x.value, (weights, leaves, parts, root_flows))
    return _both_forward(walk, *plain)


_values_and_flows.defvjp(_both_forward_rule, _both_backward, symbolic_zeros=True)


def root_values(walk: Walk, weights: dict[str, Array], leaves: Leaves, parts: Parts = ()) -> Array:
    """Log-likelihoods `[B, num_roots]`, differentiable in `weights`, `leaves` and `parts`.

    Args:
        walk: the program and its settings.
        weights: sum parameters by group.
        leaves: log-densities `[V, B, K]` of each leaf layer, or, in fused passes, a `Lookup`.
        parts: of the layers that `walk.scales` names.
    """
    weights, leaves, parts = _matched(weights, list(leaves), parts)
    return _values(walk, weights, leaves, parts)


def root_values_and_flows(
    walk: Walk, weights: dict[str, Array], leaves: Leaves, root_flows: Array, parts: Parts = ()
) -> tuple[Array, dict[str, Array], dict[str, Statistics], list[Array | LookupFlows]]:
    """The same with flows, for root flows `[B, num_roots]`.

    Returns:
        Log-likelihoods; by group, the parameter flows of the layers that ran as plain sums and the
        statistics of those that ran scaled; leaf flows.
    """
    weights, leaves, root_flows, parts = _matched(weights, list(leaves), root_flows, parts)
    return _values_and_flows(walk, weights, leaves, parts, root_flows)


def _matched(*trees):
    """Under `shard_map`, all arguments vary alike: cotangents are then summed as they must."""
    return ops.match_varying(trees, ops.varying_axes(trees))
