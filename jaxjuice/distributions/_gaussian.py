"""Gaussian leaves."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxjuice._errors import StructureError
from jaxjuice.distributions._base import Distribution, LeafGroup
from jaxjuice.distributions._checks import at_least, finite_float
from jaxjuice.distributions._moments import location_scale_m_step, location_scale_statistics
from jaxjuice.distributions._numerics import exp_at_least, log_probability
from jaxjuice.distributions._types import (
    Constants,
    LeafArrays,
    LeafFlows,
    LogProbs,
    NodeIndices,
    Observations,
    Scalar,
)
from jaxjuice.distributions._values import nan_where_illegal, real_number_problem, real_numbers

_HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


@dataclasses.dataclass(frozen=True)
class Gaussian(Distribution):
    """A normal distribution over the real numbers.

    - Density: `exp(-((x - mu) / sigma)^2 / 2) / (sigma sqrt(2 pi))`.
    - Parameters: `mu` and `sigma`, mean and standard deviation; sigma is at least `min_sigma`.
    - Constants: `center`, a fixed number c near the data, the same for all nodes of a vector. It
      changes no density. `inputs(..., center=)` sets it; its default is the mean of the `mu` that
      the user gives to the nodes, else `mu` of the family, else 0.
    - Statistics: `flow` = sum f, `first` = sum f (x - c), `second` = sum f (x - c)^2.
    - M-step: with the weighted mean m = c + first / flow and variance v = second / flow - (m -
      c)^2, `mu <- (1 - step) mu + step m` and
      `sigma^2 <- (1 - step) sigma^2 + step v + step (1 - step) (m - mu)^2`,
      which is the mix of the mean parameters E[x] and E[x^2], written without their cancellation.
      sigma is then lifted to `min_sigma`. The pseudocount is ignored, as in PyJuice: a variance has
      no natural prior here, and `min_sigma` already keeps it from collapsing.
    - Unconstrained: `mu`, and `log sigma`.

    The variance is computed from sums around c, so in float32 its relative error is about
    1e-7 (1 + ((m - c) / sigma)^2): choose `center` (or `mu`) within some 100 standard deviations of
    the data. c is a constant, not the current mean, because statistics of several batches and
    steps are added while the mean moves.

    Attributes:
        mu: around which initial means are drawn; None for the center.
        sigma: the spread of initial means and the size of initial sigmas; None for 1.
        min_sigma: the smallest sigma.

    Raises:
        StructureError: if an argument is not finite, or `sigma` or `min_sigma` not positive.
    """

    mu: float | None = None
    sigma: float | None = None
    min_sigma: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_sigma", finite_float(self, "min_sigma", above=0))
        if self.mu is not None:
            object.__setattr__(self, "mu", finite_float(self, "mu"))
        if self.sigma is not None:
            object.__setattr__(self, "sigma", finite_float(self, "sigma", above=0))
            if self.sigma < self.min_sigma:
                raise StructureError(
                    f"Gaussian(sigma={self.sigma}, min_sigma={self.min_sigma}): sigma must be at "
                    f"least min_sigma."
                )

    @property
    def is_discrete(self) -> bool:
        return False

    def param_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"mu": (), "sigma": ()}

    def constant_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"center": ()}

    def stat_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"flow": (), "first": (), "second": ()}

    def _check_values(
        self, params: dict[str, np.ndarray], constants: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        sigma = at_least(self, "sigma", params["sigma"], self.min_sigma)
        return {"mu": params["mu"], "sigma": sigma}

    def check_constants(
        self, num_nodes: int, constants: Mapping[str, Any], params: Mapping[str, Any] | None = None
    ) -> dict[str, np.ndarray]:
        if "center" not in constants:
            default = 0.0 if self.mu is None else self.mu
            if params is not None and np.size(params.get("mu", ())):
                default = float(np.mean(params["mu"]))
            constants = {**constants, "center": default}
        checked = super().check_constants(num_nodes, constants, params)
        # All nodes of a vector see the same data, so they share one center.
        center = np.full(num_nodes, np.mean(checked["center"]) if num_nodes else 0.0)
        return {**checked, "center": center}

    def validate(self, column: np.ndarray) -> str | None:
        return real_number_problem(column, repr(self))

    def init_params(
        self,
        key: PRNGKeyArray,
        constants: Constants,
        num_params: int,
        num_nodes: int,
        perturbation: Scalar,
        dtype: Any,
    ) -> LeafArrays:
        key_mu, key_sigma = jax.random.split(key)
        spread = 1.0 if self.sigma is None else self.sigma
        noise = jax.random.normal(key_mu, (num_params, num_nodes), dtype)
        uniform = jax.random.uniform(key_sigma, (num_params, num_nodes), dtype)
        shrink = jnp.exp(-0.04 * jnp.asarray(perturbation, dtype) * uniform)
        middle = self._center(constants, dtype) if self.mu is None else self.mu
        return {
            "mu": middle + spread * noise,
            "sigma": jnp.maximum(spread * shrink, self.min_sigma),
        }

    def _center(self, constants: Constants, dtype: Any) -> Array:
        """The center of every parameter set, `[P, 1]`: that of the first node, which all share."""
        return constants["center"][:, :1].astype(dtype)

    def log_prob(self, leaf: LeafGroup, x: Observations) -> LogProbs:
        sigma = leaf.params["sigma"]
        value, legal = real_numbers(x, sigma.dtype)
        mu = leaf.spread(leaf.params["mu"])[:, None]
        scaled = (value[:, :, None] - mu) / leaf.spread(sigma)[:, None]
        offset = leaf.spread(-log_probability(sigma) - _HALF_LOG_2_PI)[:, None]
        # A square that overflows is -inf, as it should be; its gradient would be inf * 0.
        finite = jnp.isfinite(scaled * scaled)
        scaled = jnp.where(finite, scaled, jnp.zeros_like(scaled))
        log_probs = offset - 0.5 * (scaled * scaled)
        log_probs = jnp.where(finite, log_probs, jnp.full_like(log_probs, -jnp.inf))
        return nan_where_illegal(log_probs, legal)

    def statistics(self, leaf: LeafGroup, x: Observations, flows: LeafFlows) -> LeafArrays:
        value, legal = real_numbers(x, flows.dtype)
        center = leaf.spread(self._center(leaf.constants, flows.dtype))
        return location_scale_statistics(leaf, value - center, legal, flows)

    def expected_statistics(self, leaf: LeafGroup) -> LeafArrays:
        mu, sigma = leaf.params["mu"], leaf.params["sigma"]
        shift = mu - self._center(leaf.constants, mu.dtype)
        return {"flow": jnp.ones_like(mu), "first": shift, "second": sigma**2 + shift**2}

    def m_step(
        self,
        leaf: LeafGroup,
        stats: LeafArrays,
        *,
        step_size: Scalar,
        pseudocount: Scalar,
        keep_zero_params: bool = False,
    ) -> LeafArrays:
        mu, sigma = leaf.params["mu"], leaf.params["sigma"]
        mu, sigma = location_scale_m_step(
            mu,
            sigma,
            stats,
            center=self._center(leaf.constants, mu.dtype),
            step_size=step_size,
            min_deviation=self.min_sigma,
        )
        return {"mu": mu, "sigma": sigma}

    def sample(self, key: PRNGKeyArray, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        mu = leaf.at_nodes(leaf.params["mu"], nodes)
        sigma = leaf.at_nodes(leaf.params["sigma"], nodes)
        return mu + sigma * jax.random.normal(key, nodes.shape, mu.dtype)

    def mode(self, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        return leaf.at_nodes(leaf.params["mu"], nodes)

    def to_unconstrained(self, params: LeafArrays, constants: Constants) -> LeafArrays:
        return {"mu": params["mu"], "sigma": jnp.log(params["sigma"])}

    def from_unconstrained(self, raw: LeafArrays, constants: Constants) -> LeafArrays:
        return {"mu": raw["mu"], "sigma": exp_at_least(raw["sigma"], self.min_sigma)}
