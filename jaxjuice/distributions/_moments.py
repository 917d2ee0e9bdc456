"""Weighted sums of functions of the observations: the statistics of numeric families."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxjuice.distributions._base import LeafGroup
from jaxjuice.distributions._numerics import blend
from jaxjuice.distributions._types import LeafFlows, Scalar


def weighted_sums(leaf: LeafGroup, flows: LeafFlows, features: Sequence[Array]) -> list[Array]:
    """Sums `flow * feature` over samples and tied leaves, in one pass over the flows.

    Args:
        leaf: the leaves.
        flows: the weight of each sample at each node, `[V, B, K]`.
        features: finite arrays `[V, B]`, so that a zero flow contributes exactly 0.

    Returns:
        One `[P, K]` for every feature.
    """
    stacked = jnp.stack([feature.astype(flows.dtype) for feature in features], axis=1)
    sums = jnp.einsum("vsb,vbk->vsk", stacked, flows, precision=lax.Precision.HIGHEST)
    pooled = leaf.pool(sums)
    return [pooled[:, index] for index in range(len(features))]


def enough_flow(total: Array) -> Array:
    """Whether a node's flow is so large that small moments divided by it keep their digits."""
    limits = jnp.finfo(total.dtype)
    return total > limits.tiny / limits.eps


def location_scale_statistics(
    leaf: LeafGroup, deviation: Array, legal: Array, flows: LeafFlows
) -> dict[str, Array]:
    """Sums of f, f d and f d^2 for deviations d from a constant; illegal values count 0."""
    deviation = jnp.where(legal, deviation, jnp.zeros_like(deviation))
    features = [legal, deviation, deviation * deviation]
    flow, first, second = weighted_sums(leaf, flows, features)
    return {"flow": flow, "first": first, "second": second}


def location_scale_m_step(
    mean: Array,
    deviation: Array,
    stats: dict[str, Array],
    *,
    center: Array,
    step_size: Scalar,
    min_deviation: float,
) -> tuple[Array, Array]:
    """Moves mean and standard deviation towards those of the statistics.

    The mixed distribution's moments are E = (1 - s) mean + s m and, by the law of total variance,
    V = (1 - s) deviation^2 + s v + s (1 - s) (m - mean)^2, which equals the mix of second moments
    minus E^2 without subtracting large numbers.

    Args:
        mean: current means, `[P, K]`.
        deviation: current standard deviations.
        stats: from `location_scale_statistics`.
        center: `[P, 1]` (or a scalar), what deviations in the statistics are taken from.
        step_size: s.
        min_deviation: the smallest standard deviation.

    Returns:
        New means and standard deviations; nodes without flow keep theirs.
    """
    step = jnp.asarray(step_size, mean.dtype)
    alive = enough_flow(stats["flow"])
    flow = jnp.where(alive, stats["flow"], jnp.ones_like(mean))
    shift = stats["first"] / flow
    variance = jnp.maximum(stats["second"] / flow - shift**2, 0)
    move = shift - (mean - center)
    new_mean = mean + step * move
    new_variance = blend(deviation**2, variance, step) + step * (1 - step) * move**2
    new_deviation = jnp.sqrt(jnp.maximum(new_variance, min_deviation**2))
    new_deviation = jnp.maximum(new_deviation, min_deviation)
    return jnp.where(alive, new_mean, mean), jnp.where(alive, new_deviation, deviation)
