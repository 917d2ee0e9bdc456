"""The two passes as differentiable functions, with the backward pass as their rule."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero

from jaxjuice import ops
from jaxjuice.passes._backward import backward
from jaxjuice.passes._forward import forward
from jaxjuice.passes._walk import Walk


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _values(walk: Walk, weights, leaf_values):
    return forward(walk, weights, leaf_values, save=False)[0]


def _values_forward(walk: Walk, weights, leaf_values):
    lls, values, saved = forward(walk, weights, leaf_values, save=True)
    return lls, (weights, values, saved, lls)


def _values_backward(walk: Walk, residuals, cotangent):
    weights, values, saved, lls = residuals
    return backward(walk, weights, values, saved, lls, cotangent)


_values.defvjp(_values_forward, _values_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _values_and_flows(walk: Walk, weights, leaf_values, root_flows):
    return _both_forward(walk, weights, leaf_values, root_flows)[0]


def _both_forward(walk: Walk, weights, leaf_values, root_flows):
    lls, values, saved = forward(walk, weights, leaf_values, save=True)
    gradients, leaf_flows = backward(walk, weights, values, saved, lls, root_flows)
    return (lls, gradients, leaf_flows), (weights, values, saved, lls)


def _both_backward(walk: Walk, residuals, cotangents):
    weights, values, saved, lls = residuals
    cotangent, *of_flows = cotangents
    if not all(
        isinstance(leaf, SymbolicZero)
        for leaf in jax.tree.leaves(of_flows, is_leaf=lambda x: isinstance(x, SymbolicZero))
    ):
        raise TypeError(
            "log_likelihood_and_flows: a gradient of the flows was asked for, and only the "
            "log-likelihoods have one; differentiate log_likelihood, or stop the flows' gradient."
        )
    if isinstance(cotangent, SymbolicZero):
        cotangent = jnp.zeros_like(lls)
    gradients, leaf_flows = backward(walk, weights, values, saved, lls, cotangent)
    return gradients, leaf_flows, jnp.zeros_like(lls)


def _both_forward_rule(walk: Walk, weights, leaf_values, root_flows):
    plain = jax.tree.map(lambda x: x.value, (weights, leaf_values, root_flows))
    return _both_forward(walk, *plain)


_values_and_flows.defvjp(_both_forward_rule, _both_backward, symbolic_zeros=True)


def root_values(walk: Walk, weights: dict[str, Array], leaf_values: Sequence[Array]) -> Array:
    """Log-likelihoods `[B, num_roots]`, differentiable in `weights` and `leaf_values`."""
    weights, leaf_values = _matched(weights, list(leaf_values))
    return _values(walk, weights, leaf_values)


def root_values_and_flows(
    walk: Walk, weights: dict[str, Array], leaf_values: Sequence[Array], root_flows: Array
) -> tuple[Array, dict[str, Array], list[Array]]:
    """The same with d LL / d theta by group and leaf flows, for root flows `[B, num_roots]`."""
    weights, leaf_values, root_flows = _matched(weights, list(leaf_values), root_flows)
    return _values_and_flows(walk, weights, leaf_values, root_flows)


def _matched(*trees):
    """Under `shard_map`, all arguments vary alike: cotangents are then summed as they must."""
    return ops.match_varying(trees, ops.varying_axes(trees))
