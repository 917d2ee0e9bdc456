"""Discretized logistic leaves."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxjuice._errors import StructureError
from jaxjuice.distributions import _categories as categories
from jaxjuice.distributions._base import Distribution, LeafGroup
from jaxjuice.distributions._checks import at_least, finite_float, positive_int
from jaxjuice.distributions._moments import (
    enough_flow,
    location_scale_m_step,
    location_scale_statistics,
)
from jaxjuice.distributions._numerics import exp_at_least, log1m_exp
from jaxjuice.distributions._types import (
    Constants,
    LeafArrays,
    LeafFlows,
    LogProbs,
    NodeIndices,
    Observations,
    Scalar,
)
from jaxjuice.distributions._values import nan_where_illegal, whole_number_problem, whole_numbers

_DEVIATION_OF_SCALE = math.pi / math.sqrt(3)
"""The standard deviation of a logistic distribution of scale 1."""


@dataclasses.dataclass(frozen=True)
class DiscreteLogistic(Distribution):
    """A logistic distribution over an interval that is cut into `num_cats` equal bins.

    - Probability of bin x, with edges a < b: `S((b - mu) / scale) - S((a - mu) / scale)`, S the
      logistic function; the first bin reaches down to -inf and the last one up to inf. It is
      computed as `log S(B) + log S(-A) + log(1 - exp(A - B))` of the scaled edges A, B: three
      numbers below 0, so that nothing cancels however far the bin is from mu.
    - Parameters: `mu`, and `scale`, both in units of `val_range`. The standard deviation of the
      continuous distribution, `scale pi / sqrt(3)`, is at least `min_std`.
    - Statistics, with d the distance of a bin's middle from the middle of the range: `flow` = sum
      f, `first` = sum f d, `second` = sum f d^2.
    - M-step: the moments of the continuous logistic are matched with those of the bins' middles, as
      `Gaussian` does it. This is PyJuice's rule; it does not maximize the likelihood exactly. The
      expected statistics are accordingly those of the continuous logistic: so they are a fixed
      point of the M-step, and differ from the bins' own moments by the width of a bin and by what
      the outer bins collect. The pseudocount is ignored, as for `Gaussian`.
    - Unconstrained: `mu`, and `log scale`.

    Attributes:
        val_range: (low, high), the interval.
        num_cats: the number of bins; data are the bins' numbers, 0 to `num_cats - 1`.
        min_std: the smallest standard deviation.

    Raises:
        StructureError: if the range is not two finite numbers in ascending order, `num_cats` not a
            positive whole number, or `min_std` not positive.
    """

    val_range: tuple[float, float]
    num_cats: int
    min_std: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_cats", positive_int(self, "num_cats"))
        object.__setattr__(self, "min_std", finite_float(self, "min_std", above=0))
        try:
            low, high = (float(bound) for bound in self.val_range)
            legal = math.isfinite(low) and math.isfinite(high) and low < high
        except (TypeError, ValueError):
            low, high, legal = 0.0, 0.0, False
        if not legal:
            raise StructureError(
                f"DiscreteLogistic(val_range={self.val_range!r}): two finite numbers (low, high) "
                f"with low < high are wanted."
            )
        object.__setattr__(self, "val_range", (low, high))

    @property
    def is_discrete(self) -> bool:
        return True

    @property
    def _bin_width(self) -> float:
        return (self.val_range[1] - self.val_range[0]) / self.num_cats

    @property
    def _middle(self) -> float:
        return (self.val_range[0] + self.val_range[1]) / 2

    @property
    def _min_scale(self) -> float:
        return self.min_std / _DEVIATION_OF_SCALE

    def param_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"mu": (), "scale": ()}

    def stat_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"flow": (), "first": (), "second": ()}

    def _check_values(
        self, params: dict[str, np.ndarray], constants: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        scale = at_least(self, "scale", params["scale"], self._min_scale)
        return {"mu": params["mu"], "scale": scale}

    def validate(self, column: np.ndarray) -> str | None:
        return whole_number_problem(column, self.num_cats - 1, repr(self))

    def init_params(
        self,
        key: PRNGKeyArray,
        constants: Constants,
        num_params: int,
        num_nodes: int,
        perturbation: Scalar,
        dtype: Any,
    ) -> LeafArrays:
        key_mu, key_scale = jax.random.split(key)
        spread = (self.val_range[1] - self.val_range[0]) / 4
        noise = jax.random.normal(key_mu, (num_params, num_nodes), dtype)
        uniform = jax.random.uniform(key_scale, (num_params, num_nodes), dtype)
        shrink = jnp.exp(-0.04 * jnp.asarray(perturbation, dtype) * uniform)
        scale = shrink * (spread / _DEVIATION_OF_SCALE)
        return {
            "mu": self._middle + spread * noise,
            "scale": jnp.maximum(scale, self._min_scale),
        }

    def log_prob(self, leaf: LeafGroup, x: Observations) -> LogProbs:
        mu, scale = leaf.params["mu"], leaf.params["scale"]
        number, legal = whole_numbers(x, self.num_cats - 1)
        if categories.table_pays(leaf, self.num_cats, x):
            numbers = jnp.arange(self.num_cats, dtype=jnp.int32)[None, :, None]
            table = self._log_mass(mu[:, None], scale[:, None], numbers)
            return nan_where_illegal(categories.rows_of(leaf, table, number), legal)
        log_probs = self._log_mass(
            leaf.spread(mu)[:, None], leaf.spread(scale)[:, None], number[:, :, None]
        )
        return nan_where_illegal(log_probs, legal)

    def _log_mass(self, mu: Array, scale: Array, number: Array) -> Array:
        """The log-probability of bins, of shapes that broadcast."""
        lower_edge = self.val_range[0] + number.astype(mu.dtype) * self._bin_width
        lower = (lower_edge - mu) / scale
        upper = (lower_edge + self._bin_width - mu) / scale
        first, last = number == 0, number == self.num_cats - 1
        inside = jnp.where(first | last, 0.0, 1.0).astype(mu.dtype)
        zero = jnp.zeros((), mu.dtype)
        below_upper = jnp.where(last, zero, jax.nn.log_sigmoid(upper))
        above_lower = jnp.where(first, zero, jax.nn.log_sigmoid(-lower))
        return below_upper + above_lower + inside * log1m_exp(self._bin_width / scale)

    def statistics(self, leaf: LeafGroup, x: Observations, flows: LeafFlows) -> LeafArrays:
        number, legal = whole_numbers(x, self.num_cats - 1)
        deviation = (number.astype(flows.dtype) + (0.5 - self.num_cats / 2)) * self._bin_width
        return location_scale_statistics(leaf, deviation, legal, flows)

    def expected_statistics(self, leaf: LeafGroup) -> LeafArrays:
        shift = leaf.params["mu"] - self._middle
        deviation = leaf.params["scale"] * _DEVIATION_OF_SCALE
        return {"flow": jnp.ones_like(shift), "first": shift, "second": deviation**2 + shift**2}

    def m_step(
        self,
        leaf: LeafGroup,
        stats: LeafArrays,
        *,
        step_size: Scalar,
        pseudocount: Scalar,
        keep_zero_params: bool = False,
    ) -> LeafArrays:
        mu, scale = leaf.params["mu"], leaf.params["scale"]
        new_mu, deviation = location_scale_m_step(
            mu,
            scale * _DEVIATION_OF_SCALE,
            stats,
            center=jnp.asarray(self._middle, mu.dtype),
            step_size=step_size,
            min_deviation=self.min_std,
        )
        # There and back is not exact, and a node without flow keeps its scale bit for bit.
        alive = enough_flow(stats["flow"])
        new_scale = jnp.where(alive, deviation / _DEVIATION_OF_SCALE, scale)
        return {"mu": new_mu, "scale": new_scale}

    def sample(self, key: PRNGKeyArray, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        mu = leaf.at_nodes(leaf.params["mu"], nodes)
        scale = leaf.at_nodes(leaf.params["scale"], nodes)
        value = mu + scale * jax.random.logistic(key, nodes.shape, mu.dtype)
        return self._bin_of(value)

    def _bin_of(self, value: Array) -> Array:
        number = jnp.floor((value - self.val_range[0]) / self._bin_width)
        return jnp.clip(number, 0, self.num_cats - 1).astype(jnp.int32)

    def mode(self, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        # Of the inner bins the one around mu is the most probable, but the outer ones have tails.
        mu, scale = leaf.params["mu"], leaf.params["scale"]
        last = self.num_cats - 1
        candidates = jnp.stack([jnp.zeros_like(mu, jnp.int32), self._bin_of(mu)], axis=1)
        candidates = jnp.concatenate([candidates, jnp.full_like(candidates[:, :1], last)], axis=1)
        log_mass = self._log_mass(mu[:, None], scale[:, None], candidates)
        best = jnp.argmax(log_mass, axis=1, keepdims=True)
        return leaf.at_nodes(jnp.take_along_axis(candidates, best, axis=1)[:, 0], nodes)

    def to_unconstrained(self, params: LeafArrays, constants: Constants) -> LeafArrays:
        return {"mu": params["mu"], "scale": jnp.log(params["scale"])}

    def from_unconstrained(self, raw: LeafArrays, constants: Constants) -> LeafArrays:
        return {"mu": raw["mu"], "scale": exp_at_least(raw["scale"], self._min_scale)}
