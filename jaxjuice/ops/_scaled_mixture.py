"""Scaled sum layers whose scales are mixtures: g_ij = sum_r exp(A_ir) exp(B_rj).

Then n_i = sum_r exp(A_ir) sum_j theta_ij exp(B_rj + e_j): the inner sums are the plain products of
a sum layer, on a batch of samples times ranks, with a shift for each of these. Z is the same
without e, so both run as one product, on twice as many rows. See `_scaled_layer` for the letters.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from jaxjuice.ops._precision import dot
from jaxjuice.ops._samples import map_samples
from jaxjuice.ops._scaled_layer import (
    LOWEST,
    ScaledGradients,
    ScaledSums,
    below_shift,
    flow_ratios,
)
from jaxjuice.ops._slots import match_varying, varying_axes
from jaxjuice.ops._statistics import statistic_product
from jaxjuice.ops._sum_layer import LL, finite, is_dense


def mixture_forward(
    a: Array, b: Array, e: Array, weights: Array, active: Array | None, precision: str
) -> ScaledSums:
    """The sums of scaled units.

    Args:
        a: A `[X, B, M, k]`.
        b: B `[X, B, N, k]`.
        e: child values `[X, B, N]`, relative to a shift of each unit and sample.
        weights: theta `[X, M, N]`.
        active: bool `[X]`, False for units that are plain sums; None where all are scaled.
        precision: of products.
    """
    batch = e.shape[1]

    def step(carry: None, part: Any) -> tuple[None, ScaledSums]:
        a, b, e = part
        a, b = _active_factors(a, b, active)
        p, shift = _exponentials(b, e, weights)
        log_n, log_z = _log_sums(a, shift, _products(p, weights, precision, batch))
        if active is not None:
            log_z = jnp.where(active[:, None, None], log_z, jnp.zeros_like(log_z))
        return carry, ScaledSums(log_n, log_z)

    return map_samples(step, None, (a, b, e), _per_sample(a, weights))[1]


def mixture_backward(
    a: Array,
    b: Array,
    e: Array,
    weights: Array,
    active: Array | None,
    sums: ScaledSums,
    f: Array,
    precision: str,
    flow_precision: str | None,
) -> ScaledGradients:
    """What the node flows f `[X, B, M]` do.

    Args:
        sums: what `mixture_forward` returned.
        f: the flows.
        flow_precision: of plus and minus, as in `statistic_product`; None for gradients.
        (The others are those of `mixture_forward`.)
    """
    batch = e.shape[1]

    def step(carry: tuple[Array, Array], part: Any):
        given_a, given_b, e, sums, f = part
        a, b = _active_factors(given_a, given_b, active)
        p, shift = _exponentials(b, e, weights)
        s = _products(p, weights, precision, batch)
        live = (f != 0) & (sums.log_n > -jnp.inf)
        f = jnp.where(live, f, jnp.zeros_like(f))
        prior = f
        if active is not None:
            prior = jnp.where(active[:, None, None], f, jnp.zeros_like(f))
        q = jnp.concatenate(
            [
                _ratio(a, part_shift, log_sum, flow)
                for part_shift, log_sum, flow in zip(
                    jnp.split(shift, 2, axis=2), sums, (f, prior), strict=True
                )
            ],
            axis=2,
        )  # [X, B, 2k, M]
        back = dot(
            q,
            weights,
            ((3,), (1,)),
            batch=((0,), (0,)),
            precision=precision,
            role="backward",
            num_samples=batch,
        )
        flows, of_b = jnp.split(p * finite(back), 2, axis=2)  # [X, B, k, N]
        of_rank, of_a = jnp.split(q * s, 2, axis=2)  # [X, B, k, M]
        parts = [(x - y).swapaxes(2, 3) for x, y in ((of_rank, of_a), (flows, of_b))]
        if active is not None:
            # A unit that is no scaled one has read what belongs to others.
            live_unit = active[:, None, None, None]
            parts = [jnp.where(live_unit, x, jnp.zeros_like(x)) for x in parts]
        products = [
            finite(statistic_product(*pair, precision, flow_precision, batch))
            for pair in zip(jnp.split(q, 2, axis=2), jnp.split(p, 2, axis=2), strict=True)
        ]
        carry = carry[0] + products[0], carry[1] + products[1]
        return carry, (flows.sum(2), tuple(parts))

    zeros = jnp.zeros(weights.shape, e.dtype)
    zeros = match_varying((zeros, zeros), varying_axes(a, b, e, weights, f))
    arrays = a, b, e, sums, f
    totals, (element_flows, parts) = map_samples(step, zeros, arrays, _per_sample(a, weights))
    return ScaledGradients(element_flows, parts, *totals)


def _per_sample(a: Array, weights: Array) -> int:
    units, nodes, children = weights.shape
    return units * 2 * a.shape[3] * max(nodes, children)


def _active_factors(a: Array, b: Array, active: Array | None) -> tuple[Array, Array]:
    """Factors of g = 1 for units that are not scaled."""
    if active is None:
        return a, b
    one = jnp.where(jnp.arange(a.shape[3]) == 0, jnp.zeros((), a.dtype), -jnp.inf).astype(a.dtype)
    is_scaled = active[:, None, None, None]
    return jnp.where(is_scaled, a, one), jnp.where(is_scaled, b, jnp.zeros_like(b))


def _exponentials(b: Array, e: Array, weights: Array) -> tuple[Array, Array]:
    """p `[X, B, 2k, N]` of B + e and of B, and their shifts `[X, B, 2k]`."""
    b = b.swapaxes(2, 3)
    terms = jnp.concatenate([b + e[:, :, None], b], axis=2)
    possible = (weights > 0).any(1)[:, None, None]
    masked = jnp.where(possible, terms, jnp.full_like(terms, -jnp.inf))
    shift = jnp.max(masked, axis=3, initial=LOWEST)
    return below_shift(terms, shift), shift


def _products(p: Array, weights: Array, precision: str, num_samples: int) -> Array:
    """s = p theta `[X, B, 2k, M]`."""
    _, nodes, children = weights.shape
    dense = is_dense(nodes, children, num_samples * p.shape[2], LL)
    return dot(
        p,
        weights,
        ((3,), (2,)),
        batch=((0,), (0,)),
        precision=precision,
        role="dense_forward" if dense else "forward",
        num_samples=num_samples,
    )


def _log_sums(a: Array, shift: Array, s: Array) -> list[Array]:
    """log n and log Z `[X, B, M]`: log sum_r exp(A_ir + shift_r) s_ri."""
    a = a.swapaxes(2, 3)
    results = []
    for part_shift, part in zip(jnp.split(shift, 2, 2), jnp.split(s, 2, 2), strict=True):
        terms = a + part_shift[..., None] + jnp.log(part)
        largest = jnp.max(terms, axis=2, initial=LOWEST)
        results.append(jnp.log(jnp.exp(terms - largest[:, :, None]).sum(2)) + largest)
    return results


def _ratio(a: Array, shift: Array, log_sum: Array, f: Array) -> Array:
    """q_ri = f_i exp(A_ir + shift_r) / sum_i `[X, B, k, M]`, 0 where f is."""
    ratio = a.swapaxes(2, 3) + shift[..., None] - log_sum[:, :, None]
    f = f[:, :, None]
    return jnp.where(f != 0, flow_ratios(f, ratio), jnp.zeros((), f.dtype))
