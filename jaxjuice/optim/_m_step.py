"""The M-step: new parameters from flows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxjuice.optim._conditional_m_step import conditional_m_step

if TYPE_CHECKING:
    from jaxjuice.circuit import Circuit, Flows

Params = dict[str, dict[str, Any]]


def sum_m_step(
    theta: jax.Array,
    flows: jax.Array,
    *,
    step_size: jax.Array | float,
    pseudocount: jax.Array | float,
    zero_mask: np.ndarray | None = None,
    keep_zero_params: bool = False,
) -> jax.Array:
    """New weights of sum nodes from their edge flows.

    For a node with C children, edge flows F and pseudocount a (the mass of the whole node)

        theta <- (1 - step_size) * theta + step_size * (F + a / C) / (sum F + a).

    A node whose flows and pseudocount are all 0 keeps its weights bit for bit.

    Args:
        theta: Weights, `[..., C]`, normalized over the last axis.
        flows: Edge flows of the same shape, not negative.
        step_size: Between 0 and 1; 1 forgets the old weights.
        pseudocount: Not negative.
        zero_mask: `[..., C]`, true where an edge is structurally absent: its weight is 0 and stays
            0, and it does not count as a child.
        keep_zero_params: Whether a weight of exactly 0 stays 0 whatever the pseudocount. Such an
            edge still counts in C, so the node's total pseudocount shrinks by its share.

    Returns:
        The new weights: shape and dtype of `theta`, normalized over the last axis.
    """
    dtype = theta.dtype
    step_size = jnp.asarray(step_size, dtype)
    pseudocount = jnp.asarray(pseudocount, dtype)
    if zero_mask is None:
        num_children = jnp.asarray(theta.shape[-1], dtype)
    else:
        counts = np.sum(~np.asarray(zero_mask), axis=-1, keepdims=True)
        num_children = jnp.asarray(np.maximum(counts, 1), dtype)
    counted = flows.astype(dtype) + pseudocount / num_children
    zero = jnp.zeros((), dtype)
    if zero_mask is not None:
        counted = jnp.where(jnp.asarray(zero_mask), zero, counted)
    if keep_zero_params:
        counted = jnp.where(theta > 0, counted, zero)
    total = jnp.sum(counted, axis=-1, keepdims=True)
    # Below the smallest normal number, a device that flushes subnormals divides 0 by 0.
    is_alive = total >= jnp.finfo(dtype).tiny
    target = counted / jnp.where(is_alive, total, jnp.ones((), dtype))
    blended = (1 - step_size) * theta + step_size * target
    return jnp.where(is_alive, blended, theta)


def m_step(
    pc: Circuit,
    params: Params,
    flows: Flows,
    *,
    step_size: jax.Array | float = 1.0,
    pseudocount: jax.Array | float = 0.0,
    keep_zero_params: bool = False,
) -> Params:
    """One M-step of a whole circuit: `sum_m_step` for its sums, `dist.m_step` for its leaves.

    Sums whose flows hold denominators (see `Flows`) take `conditional_m_step`.

    Args:
        pc: The circuit.
        params: Its parameters.
        flows: Flows of the data (or expected ones), the same tree of shapes for the sums.
        step_size: Between 0 and 1. Leaves blend their expectation parameters.
        pseudocount: Mass that each node receives, spread evenly over its edges or categories.
        keep_zero_params: Whether parameters of exactly 0 stay 0 (with denominators they do anyway).

    Returns:
        New parameters, the tree of `params`.
    """
    sums = {}
    for name, theta in params["sums"].items():
        zero_mask = pc.sum_groups[name].zero_mask
        if name in flows.denominators:
            sums[name] = conditional_m_step(
                theta,
                flows.sums[name],
                flows.denominators[name],
                step_size=step_size,
                pseudocount=pseudocount,
                zero_mask=zero_mask,
            )
            continue
        sums[name] = sum_m_step(
            theta,
            flows.sums[name],
            step_size=step_size,
            pseudocount=pseudocount,
            zero_mask=zero_mask,
            keep_zero_params=keep_zero_params,
        )
    inputs = {}
    for name, leaf_params in params["inputs"].items():
        if not leaf_params:  # families without parameters
            inputs[name] = leaf_params
            continue
        group = pc.input_groups[name]
        dtype = next(iter(leaf_params.values())).dtype
        inputs[name] = group.dist.m_step(
            group.leaf(leaf_params),
            flows.inputs[name],
            step_size=jnp.asarray(step_size, dtype),
            pseudocount=jnp.asarray(pseudocount, dtype),
            keep_zero_params=keep_zero_params,
        )
    return {"sums": sums, "inputs": inputs}


def as_updates(params: Params, new_params: Params) -> Params:
    """The tree that `optax.apply_updates` must add to `params` to arrive at `new_params`.

    `params + (new - params)` rounds to the spacing of floats near `params`, so a new value far
    smaller than the old one could come out as exactly 0, and EM never leaves 0 again. Where that
    would happen, the update is the one that leads to the smallest positive number within its
    reach (below `params` times the machine epsilon); the next steps go on from there. A new value
    of 0 is reached exactly, and nothing that should be positive or 0 turns negative: the rounded
    difference is never below `-params`.
    """

    def difference(old: jax.Array, new: jax.Array) -> jax.Array:
        update = new - old
        smallest = jnp.nextafter(-old, jnp.full_like(old, jnp.inf))
        return jnp.where((new > 0) & (update <= -old), smallest, update)

    return jax.tree.map(difference, params, new_params)
