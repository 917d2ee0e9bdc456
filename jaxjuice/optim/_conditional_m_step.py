"""The M-step of weights that tensors of the call scale."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def conditional_m_step(
    theta: jax.Array,
    flows: jax.Array,
    denominators: jax.Array,
    *,
    step_size: jax.Array | float,
    pseudocount: jax.Array | float,
    zero_mask: np.ndarray | None = None,
) -> jax.Array:
    """New weights of sum nodes whose weights in sample b are theta g_b / Z_b.

    Z_b depends on theta, so normalized flows are no M-step here, and may lower the likelihood. With
    edge flows F+, statistic W = sum_b f_b g_b / Z_b, C children and pseudocount a (the mass of the
    whole node)

        r = theta (F+ + a / C) / (theta W + a theta) = (F+ + a / C) / (W + a)
        theta <- normalize((1 - step_size) theta + step_size r).

    log Z is concave in theta, so its tangent bounds it: sum_b f_b log Z_b <= sum_j W_j theta_j + a
    constant. What is left, sum F+ log theta - sum W theta, is largest at F+ / W and grows on the
    way there, and normalizing changes no effective weight. So no step lowers the log-likelihood of
    the batch plus sum (a / C) log theta.

    A weight of 0 stays 0. A weight whose W and pseudocount are 0 (all samples have closed its edge)
    keeps its value before normalization, and a node of such weights keeps them bit for bit.

    Args:
        theta: Weights, `[..., C]`, normalized over the last axis.
        flows: F+ of the same shape, not negative.
        denominators: W, `[..., C / w]`, one number for w consecutive children.
        step_size: Between 0 and 1.
        pseudocount: Not negative.
        zero_mask: `[..., C]`, true where an edge is structurally absent and not counted in C.

    Returns:
        The new weights: shape and dtype of `theta`, normalized over the last axis.
    """
    dtype = theta.dtype
    step_size, pseudocount = (jnp.asarray(value, dtype) for value in (step_size, pseudocount))
    num_children = np.asarray(theta.shape[-1])
    if zero_mask is not None:
        num_children = np.maximum(np.sum(~np.asarray(zero_mask), axis=-1, keepdims=True), 1)
    counted = flows.astype(dtype) + pseudocount / jnp.asarray(num_children, dtype)
    shared = theta.shape[-1] // denominators.shape[-1]
    divisor = jnp.repeat(denominators.astype(dtype), shared, axis=-1) + pseudocount
    # Below the smallest normal number, a device that flushes subnormals divides 0 by 0.
    is_alive = (divisor >= jnp.finfo(dtype).tiny) & (theta > 0)
    ratio = counted / jnp.where(is_alive, divisor, jnp.ones((), dtype))
    # Up to where their sum is finite. Any weight between theta and r leads upwards, too.
    largest = float(jnp.finfo(dtype).max) / (2 * theta.shape[-1])
    ratio = jnp.minimum(ratio, jnp.asarray(largest, dtype))
    target = jnp.where(is_alive, ratio, theta)
    blended = (1 - step_size) * theta + step_size * target
    total = jnp.sum(blended, axis=-1, keepdims=True)
    moves = jnp.any(is_alive, axis=-1, keepdims=True) & (total >= jnp.finfo(dtype).tiny)
    return jnp.where(moves, blended / jnp.where(moves, total, jnp.ones((), dtype)), theta)
