"""Sum layers whose weights are scaled for each sample: theta g / Z, Z = sum_j theta_j g_j.

Letters as in `_sum_layer`; L = log g. A node's value is log n - log Z, with n = sum_j theta_j g_j
exp(e_j). Both sums take exponents relative to the largest of their own terms, so that neither a
scale nor a child value of hundreds of nats hides what is large in their sum. The effective weights
exist for a part of the batch at a time.

With node flows f, the flow of an edge is f theta g exp(e) / n, and d LL / d L = f (theta g exp(e) /
n - theta g / Z): what the node's children are after the sample is seen, less what they were before.
With q = f / n: d LL / d theta = plus - minus, plus = sum_b f g exp(e) / n, minus = sum_b f g / Z.

A scale is one number for m nodes and w children of a unit. Nodes that share their scales share
their exponentials too, and only then are the sums over children products of matrices.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxjuice.ops._precision import dot
from jaxjuice.ops._samples import map_samples, sum_samples
from jaxjuice.ops._slots import match_varying, varying_axes
from jaxjuice.ops._sum_layer import Propagation, finite

LogScale = Callable[[Any], Array]

LOWEST = -1e30


class ScaledSums(NamedTuple):
    """log n and log Z, both `[X, B, M]`; log n relative to the shift of the child values."""

    log_n: Array
    log_z: Array

    def values(self) -> Array:
        """Node values, exactly -inf where n or Z is 0."""
        return jnp.where(self.log_n > -jnp.inf, self.log_n - self.log_z, self.log_n)


class ScaledGradients(NamedTuple):
    """What the flows of scaled nodes do.

    Attributes:
        element_flows: `[X, B, N]`.
        parts: cotangents of the parts that the scales are made of.
        plus: `[X, M, N]`, summed over samples; theta times it are the parameter flows.
        minus: `[X, M, N / w]`, the statistic W of the scaled units, one number a scale.
    """

    element_flows: Array
    parts: Any
    plus: Array
    minus: Array


def scaled_forward(
    log_scale: LogScale,
    parts: Any,
    e: Array,
    weights: Array,
    active: Array | None,
    propagation: Propagation,
    precision: str,
    per_sample: int,
) -> ScaledSums:
    """The sums of scaled units.

    Args:
        log_scale: from parts `[X, samples, ...]` to L `[X, samples, M / m, N / w]`.
        parts: a tree of arrays `[X, B, ...]`.
        e: child values `[X, B, N]`, relative to a shift of each unit and sample.
        weights: theta `[X, M, N]`.
        active: bool `[X]`, False for units that are plain sums; None where all are scaled.
        propagation: how children are combined.
        precision: of products.
        per_sample: the size of the largest array inside `log_scale` for each sample.
    """
    batch = e.shape[1]

    def step(carry: None, part: Any) -> tuple[None, ScaledSums]:
        scale = _active_scale(log_scale(part[0]), active)
        layer = _Layer(scale, part[1], weights, propagation, precision, batch)
        log_z = layer.log_z()
        if active is not None:
            log_z = jnp.where(active[:, None, None], log_z, jnp.zeros_like(log_z))
        return carry, ScaledSums(layer.log_n(), log_z)

    size = _step_size(log_scale, parts, e, weights, propagation, per_sample)
    return map_samples(step, None, (parts, e), size)[1]


def scaled_backward(
    log_scale: LogScale,
    parts: Any,
    e: Array,
    weights: Array,
    active: Array | None,
    sums: ScaledSums,
    f: Array,
    propagation: Propagation,
    precision: str,
    per_sample: int,
) -> ScaledGradients:
    """What the node flows f `[X, B, M]` do; the other arguments as in `scaled_forward`."""
    batch = e.shape[1]

    def step(carry: tuple[Array, Array], part: Any):
        parts, e, sums, f = part
        scale, pull = jax.vjp(lambda p: _active_scale(log_scale(p), active), parts)
        layer = _Layer(scale, e, weights, propagation, precision, batch)
        live = (f != 0) & (sums.log_n > -jnp.inf)
        f = jnp.where(live, f, jnp.zeros_like(f))
        prior = f
        if active is not None:
            prior = jnp.where(active[:, None, None], f, jnp.zeros_like(f))
        edge_flows, plus = layer.posterior(f, sums.log_n)
        prior_flows, minus = layer.prior(prior, sums.log_z)
        shared = e.shape[2] // scale.shape[3]
        of_scale = edge_flows.reshape(*scale.shape, shared).sum(-1) - prior_flows
        (of_parts,) = pull(of_scale)
        return (carry[0] + plus, carry[1] + minus), (edge_flows.sum(2), of_parts)

    units, nodes, children = weights.shape
    columns = jax.eval_shape(log_scale, parts).shape[3]
    zeros = (
        jnp.zeros((units, nodes, children), e.dtype),
        jnp.zeros((units, nodes, columns), e.dtype),
    )
    zeros = match_varying(zeros, varying_axes(parts, e, weights, f))
    size = _step_size(log_scale, parts, e, weights, propagation, per_sample)
    (plus, minus), (element_flows, of_parts) = map_samples(step, zeros, (parts, e, sums, f), size)
    return ScaledGradients(element_flows, of_parts, plus, minus)


class _Layer:
    """The terms of both sums for some samples.

    Where maxima or powers are propagated, every node has a row of scales of its own.
    """

    def __init__(
        self,
        scale: Array,
        e: Array,
        weights: Array,
        propagation: Propagation,
        precision: str,
        num_samples: int,
    ):
        units, nodes, children = weights.shape
        rows, columns = scale.shape[2:]
        self.e, self.propagation = e, propagation
        self.precision, self.num_samples = precision, num_samples
        self.nodes, self.rows, self.columns = nodes, rows, columns
        by_scale = weights.reshape(units, rows, nodes // rows, columns, children // columns)
        self.scale = scale
        self.column_weights = by_scale.sum(-1)  # [X, rows, m, columns]
        self.weights = by_scale.reshape(units, rows, nodes // rows, children)

    def log_n(self) -> Array:
        if self.propagation.algorithm == "LL":
            return self._log_sum(self._terms(), self.weights)
        terms = self._weighted_terms()
        shift = _shift(terms, 3)
        if self.propagation.is_max:
            return jnp.where(shift > LOWEST, shift, jnp.full_like(shift, -jnp.inf))
        alpha = jnp.asarray(self.propagation.alpha, terms.dtype)
        return jnp.log(jnp.exp(alpha * (terms - shift[..., None])).sum(-1)) / alpha + shift

    def log_z(self) -> Array:
        return self._log_sum(self.scale, self.column_weights)

    def posterior(self, f: Array, log_n: Array) -> tuple[Array, Array]:
        """Edge flows summed over the nodes of a row of scales `[X, B, rows, N]`, and plus."""
        if self.propagation.algorithm == "LL":
            return self._shares(self._terms(), self.weights, f, log_n)
        terms = self._weighted_terms()
        if self.propagation.is_max:
            first = jnp.argmax(terms, axis=-1)[..., None]
            share = (jnp.arange(terms.shape[-1]) == first).astype(terms.dtype)
        else:
            alpha = jnp.asarray(self.propagation.alpha, terms.dtype)
            finite = jnp.where(log_n > -jnp.inf, log_n, jnp.zeros_like(log_n))
            share = jnp.exp(alpha * (terms - finite[..., None]))
        flows = f[..., None] * share  # [X, B, M, N]
        counts = sum_samples(flows)
        theta = self.weights.reshape(counts.shape)
        safe = jnp.where(theta > 0, theta, jnp.ones_like(theta))
        plus = jnp.where(theta > 0, counts / safe, jnp.zeros_like(counts))
        shape = (*flows.shape[:2], self.rows, self.nodes // self.rows, flows.shape[3])
        return flows.reshape(shape).sum(3), plus

    def prior(self, f: Array, log_z: Array) -> tuple[Array, Array]:
        """The same of Z, by column of scales."""
        return self._shares(self.scale, self.column_weights, f, log_z)

    def _terms(self) -> Array:
        """L + e `[X, B, rows, N]`."""
        units, batch, children = self.e.shape
        e = self.e.reshape(units, batch, 1, self.columns, children // self.columns)
        terms = self.scale[..., None] + e
        return terms.reshape(units, batch, self.rows, children)

    def _weighted_terms(self) -> Array:
        """log theta + L + e `[X, B, M, N]`."""
        terms = jnp.repeat(self._terms(), self.nodes // self.rows, axis=2)
        theta = self.weights.reshape(self.weights.shape[0], self.nodes, -1)
        return terms + jnp.log(theta)[:, None]

    def _exponentials(self, terms: Array, weights: Array) -> tuple[Array, Array]:
        """p = exp(terms - shift) `[X, B, rows, N]`, and the shifts `[X, B, rows]`."""
        possible = (weights > 0).any(2)[:, None]
        shift = _shift(jnp.where(possible, terms, jnp.full_like(terms, -jnp.inf)), 3)
        return below_shift(terms, shift), shift

    def _log_sum(self, terms: Array, weights: Array) -> Array:
        """log sum_j theta_j exp(terms_j) `[X, B, M]`."""
        if weights.shape[2] == 1:
            terms = terms + jnp.log(weights)[:, None, :, 0]
            shift = _shift(terms, 3)
            return jnp.log(jnp.exp(terms - shift[..., None]).sum(-1)) + shift
        p, shift = self._exponentials(terms, weights)
        s = self._dot(p, weights, (3, 3), "forward").swapaxes(1, 2)
        return (jnp.log(s) + shift[..., None]).reshape(*terms.shape[:2], self.nodes)

    def _shares(
        self, terms: Array, weights: Array, f: Array, log_sum: Array
    ) -> tuple[Array, Array]:
        """f theta exp(terms) / sum, over the nodes of a row; and that over theta, over samples."""
        # Where f is 0 the sum may be, too.
        log_sum = jnp.where(f != 0, log_sum, jnp.zeros_like(log_sum))
        if weights.shape[2] == 1:
            q = flow_ratios(f[..., None], terms - log_sum[..., None])
            return q * weights[:, None, :, 0], finite(sum_samples(q))
        p, shift = self._exponentials(terms, weights)
        by_row = (*f.shape[:2], self.rows, self.nodes // self.rows)
        q = flow_ratios(f.reshape(by_row), shift[..., None] - log_sum.reshape(by_row))
        flows = p * finite(self._dot(q, weights, (3, 2), "backward")).swapaxes(1, 2)
        total = finite(self._dot(q, p, (1, 1), "backward"))  # [X, rows, m, N]
        return flows, total.reshape(total.shape[0], self.nodes, -1)

    def _dot(self, a: Array, b: Array, contract: tuple[int, int], role) -> Array:
        """A product of each unit and row; a is `[X, B, rows, ...]`, b too or `[X, rows, ...]`."""
        row_axis = 2 if contract == (1, 1) else 1
        return dot(
            a,
            b,
            ((contract[0],), (contract[1],)),
            batch=((0, 2), (0, row_axis)),
            precision=self.precision,
            role=role,
            num_samples=self.num_samples,
        )


def below_shift(terms: Array, shift: Array) -> Array:
    """exp(terms - shift), finite: terms far above the shift belong to weights of 0 alone."""
    largest = jnp.asarray(0.3 * float(jnp.finfo(terms.dtype).maxexp), terms.dtype)
    return jnp.exp(jnp.minimum(terms - shift[..., None], largest))


def flow_ratios(f: Array, exponent: Array) -> Array:
    """f exp(exponent), finite: what would overflow belongs to weights of 0 alone."""
    largest = jnp.asarray(0.69 * float(jnp.finfo(exponent.dtype).maxexp), exponent.dtype)
    return finite(f * jnp.exp(jnp.minimum(exponent, largest)))


def _active_scale(scale: Array, active: Array | None) -> Array:
    if active is None:
        return scale
    return jnp.where(active[:, None, None, None], scale, jnp.zeros_like(scale))


def _shift(terms: Array, axis: int) -> Array:
    """The largest term; finite where all are -inf."""
    return jnp.max(terms, axis=axis, initial=LOWEST)


def _step_size(
    log_scale: LogScale, parts: Any, e: Array, weights: Array, propagation, per_sample: int
) -> int:
    rows = jax.eval_shape(log_scale, parts).shape[2]
    units, nodes, children = weights.shape
    rows = rows if propagation.algorithm == "LL" else nodes
    return max(units * rows * children, per_sample)
