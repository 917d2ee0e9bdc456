"""Binomial leaves."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxjuice.distributions import _categories as categories
from jaxjuice.distributions._base import Distribution, LeafGroup
from jaxjuice.distributions._checks import positive_int, probs_between_0_and_1
from jaxjuice.distributions._counts import deviance, log_factorial_rest
from jaxjuice.distributions._moments import weighted_sums
from jaxjuice.distributions._numerics import log_probability
from jaxjuice.distributions._random import portable_key
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


@dataclasses.dataclass(frozen=True)
class Binomial(Distribution):
    """The number of successes in n = `num_trials` independent trials.

    - Probability: `n! / (x! (n - x)!) p^x (1 - p)^(n - x)`.
    - Parameters: `prob`, the probability p of success.
    - Statistics: `successes` = sum f x and `failures` = sum f (n - x).
    - M-step: `p <- (1 - step) p + step (successes + n m / 2) / (successes + failures + n m)`. The
      pseudocount m counts samples half of whose trials succeed (a beta prior), as in `Bernoulli`,
      which is the case n = 1. With `keep_zero_params` a p of exactly 0 or 1 stays.
    - Unconstrained: the logit `log(p / (1 - p))`.

    Attributes:
        num_trials: n, so that x is one of 0 to n.

    Raises:
        StructureError: if `num_trials` is not a positive whole number.
    """

    num_trials: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_trials", positive_int(self, "num_trials"))

    @property
    def is_discrete(self) -> bool:
        return True

    def param_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"prob": ()}

    def stat_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"successes": (), "failures": ()}

    def _check_values(
        self, params: dict[str, np.ndarray], constants: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        return {"prob": probs_between_0_and_1(self, "prob", params["prob"])}

    def validate(self, column: np.ndarray) -> str | None:
        return whole_number_problem(column, self.num_trials, repr(self))

    def init_params(
        self,
        key: PRNGKeyArray,
        constants: Constants,
        num_params: int,
        num_nodes: int,
        perturbation: Scalar,
        dtype: Any,
    ) -> LeafArrays:
        probs = categories.random_probs(key, (num_params, 2, num_nodes), perturbation, dtype)
        return {"prob": probs[:, 0]}

    def log_prob(self, leaf: LeafGroup, x: Observations) -> LogProbs:
        prob = leaf.params["prob"]
        count, legal = whole_numbers(x, self.num_trials)
        if categories.table_pays(leaf, self.num_trials + 1, x):
            values = jnp.arange(self.num_trials + 1, dtype=jnp.int32)[None]
            table = self._log_mass(prob[:, None], values[:, :, None])
            return nan_where_illegal(categories.rows_of(leaf, table, count), legal)
        log_probs = self._log_mass(leaf.spread(prob)[:, None], count[:, :, None])
        return nan_where_illegal(log_probs, legal)

    def _log_mass(self, prob: Array, count: Array) -> Array:
        """The log-probability of counts, of shapes that broadcast."""
        successes = count.astype(prob.dtype)
        failures = self.num_trials - successes
        n = jnp.asarray(self.num_trials, prob.dtype)
        binomial = log_factorial_rest(n)
        binomial = binomial - log_factorial_rest(successes) - log_factorial_rest(failures)
        shape = jnp.broadcast_shapes(prob.shape, count.shape)

        def excess(outcomes: Array, mean: Array) -> Array:
            return deviance(jnp.broadcast_to(outcomes, shape), jnp.broadcast_to(mean, shape))

        return binomial - excess(successes, n * prob) - excess(failures, n * (1 - prob))

    def statistics(self, leaf: LeafGroup, x: Observations, flows: LeafFlows) -> LeafArrays:
        count, legal = whole_numbers(x, self.num_trials)
        failures = jnp.where(legal, self.num_trials - count, 0)
        successes, failures = weighted_sums(leaf, flows, [count, failures])
        return {"successes": successes, "failures": failures}

    def expected_statistics(self, leaf: LeafGroup) -> LeafArrays:
        prob = leaf.params["prob"]
        return {"successes": self.num_trials * prob, "failures": self.num_trials * (1 - prob)}

    def m_step(
        self,
        leaf: LeafGroup,
        stats: LeafArrays,
        *,
        step_size: Scalar,
        pseudocount: Scalar,
        keep_zero_params: bool = False,
    ) -> LeafArrays:
        prob = leaf.params["prob"]
        moved = categories.success_m_step(
            prob,
            stats["successes"],
            stats["failures"],
            step_size=step_size,
            pseudocount=self.num_trials * jnp.asarray(pseudocount, prob.dtype),
            keep_zero_params=keep_zero_params,
        )
        return {"prob": moved}

    def sample(self, key: PRNGKeyArray, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        prob = leaf.at_nodes(leaf.params["prob"], nodes)
        n = jnp.full_like(prob, self.num_trials)
        drawn = jax.random.binomial(portable_key(key), n, prob, nodes.shape, prob.dtype)
        return drawn.astype(jnp.int32)

    def mode(self, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        prob = leaf.at_nodes(leaf.params["prob"], nodes)
        highest = jnp.ceil((self.num_trials + 1) * prob) - 1
        return jnp.clip(highest, 0, self.num_trials).astype(jnp.int32)

    def to_unconstrained(self, params: LeafArrays, constants: Constants) -> LeafArrays:
        return {"prob": log_probability(params["prob"]) - log_probability(1 - params["prob"])}

    def from_unconstrained(self, raw: LeafArrays, constants: Constants) -> LeafArrays:
        return {"prob": jax.nn.sigmoid(raw["prob"])}
