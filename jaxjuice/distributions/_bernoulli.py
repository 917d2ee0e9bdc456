"""Bernoulli leaves."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxjuice.distributions import _categories as categories
from jaxjuice.distributions._base import Distribution, LeafGroup
from jaxjuice.distributions._checks import probs_between_0_and_1
from jaxjuice.distributions._moments import weighted_sums
from jaxjuice.distributions._numerics import log_probability
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
class Bernoulli(Distribution):
    """A binary variable, 0 or 1 (False or True).

    - Probability: `p` at 1, `1 - p` at 0.
    - Parameters: `prob`, the probability p of 1.
    - Statistics: `ones` and `zeros`, the flow of either value.
    - M-step: `p <- (1 - step) p + step (F1 + m / 2) / (F0 + F1 + m)`, m the pseudocount. With
      `keep_zero_params` a p of exactly 0 or 1 stays.
    - Unconstrained: the logit `log(p / (1 - p))`.
    """

    @property
    def is_discrete(self) -> bool:
        return True

    def param_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"prob": ()}

    def stat_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"ones": (), "zeros": ()}

    def _check_values(
        self, params: dict[str, np.ndarray], constants: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        return {"prob": probs_between_0_and_1(self, "prob", params["prob"])}

    def validate(self, column: np.ndarray) -> str | None:
        return whole_number_problem(column, 1, repr(self))

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
        value, legal = whole_numbers(x, 1)
        prob = leaf.spread(leaf.params["prob"])[:, None]
        chosen = jnp.where((value == 1)[:, :, None], prob, 1 - prob)
        return nan_where_illegal(log_probability(chosen), legal)

    def statistics(self, leaf: LeafGroup, x: Observations, flows: LeafFlows) -> LeafArrays:
        value, legal = whole_numbers(x, 1)
        ones, zeros = weighted_sums(leaf, flows, [legal & (value == 1), legal & (value == 0)])
        return {"ones": ones, "zeros": zeros}

    def expected_statistics(self, leaf: LeafGroup) -> LeafArrays:
        return {"ones": leaf.params["prob"], "zeros": 1 - leaf.params["prob"]}

    def m_step(
        self,
        leaf: LeafGroup,
        stats: LeafArrays,
        *,
        step_size: Scalar,
        pseudocount: Scalar,
        keep_zero_params: bool = False,
    ) -> LeafArrays:
        return {
            "prob": categories.success_m_step(
                leaf.params["prob"],
                stats["ones"],
                stats["zeros"],
                step_size=step_size,
                pseudocount=pseudocount,
                keep_zero_params=keep_zero_params,
            )
        }

    def sample(self, key: PRNGKeyArray, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        prob = leaf.at_nodes(leaf.params["prob"], nodes)
        return (jax.random.uniform(key, nodes.shape, prob.dtype) < prob).astype(jnp.int32)

    def mode(self, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        return (leaf.at_nodes(leaf.params["prob"], nodes) > 0.5).astype(jnp.int32)

    def to_unconstrained(self, params: LeafArrays, constants: Constants) -> LeafArrays:
        return {"prob": log_probability(params["prob"]) - log_probability(1 - params["prob"])}

    def from_unconstrained(self, raw: LeafArrays, constants: Constants) -> LeafArrays:
        return {"prob": jax.nn.sigmoid(raw["prob"])}
