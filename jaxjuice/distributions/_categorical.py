"""Categorical leaves."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxjuice.distributions import _categories as categories
from jaxjuice.distributions._base import Distribution, LeafGroup
from jaxjuice.distributions._checks import normalized_probs, positive_int
from jaxjuice.distributions._numerics import log_probability
from jaxjuice.distributions._types import (
    CategoryTable,
    Constants,
    LeafArrays,
    LeafFlows,
    Legal,
    LogProbs,
    NodeIndices,
    Observations,
    Scalar,
    WholeNumbers,
)
from jaxjuice.distributions._values import nan_where_illegal, whole_number_problem, whole_numbers


@dataclasses.dataclass(frozen=True)
class Categorical(Distribution):
    """A distribution over the categories 0 to `num_cats - 1`.

    - Probability: `p[x]`.
    - Parameters: `probs [num_cats]`, which sum to 1.
    - Statistics: `counts [num_cats]`, the flow of every category.
    - M-step: `p <- (1 - step) p + step (F + m / num_cats) / (sum F + m)`, m the pseudocount.
    - Unconstrained: logits, the logarithms of `probs`; a probability of 0 is -inf, and stays there.

    Attributes:
        num_cats: the number of categories.

    Raises:
        StructureError: if `num_cats` is not a positive whole number.
    """

    num_cats: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_cats", positive_int(self, "num_cats"))

    @property
    def is_discrete(self) -> bool:
        return True

    def param_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"probs": (self.num_cats,)}

    def stat_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"counts": (self.num_cats,)}

    def _check_values(
        self, params: dict[str, np.ndarray], constants: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        return {"probs": normalized_probs(self, params["probs"])}

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
        shape = (num_params, self.num_cats, num_nodes)
        return {"probs": categories.random_probs(key, shape, perturbation, dtype)}

    def log_prob(self, leaf: LeafGroup, x: Observations) -> LogProbs:
        category, legal = whole_numbers(x, self.num_cats - 1)
        log_probs = categories.log_rows(leaf, leaf.params["probs"], category)
        return nan_where_illegal(log_probs, legal)

    def lookup(
        self, leaf: LeafGroup, x: Observations
    ) -> tuple[CategoryTable, WholeNumbers, Legal] | None:
        if type(self) is not Categorical:  # a derived family may have another `log_prob`
            return None
        return leaf.params["probs"], *whole_numbers(x, self.num_cats - 1)

    def statistics(self, leaf: LeafGroup, x: Observations, flows: LeafFlows) -> LeafArrays:
        category, legal = whole_numbers(x, self.num_cats - 1)
        return {"counts": categories.count_rows(leaf, self.num_cats, category, legal, flows)}

    def expected_statistics(self, leaf: LeafGroup) -> LeafArrays:
        return {"counts": leaf.params["probs"]}

    def m_step(
        self,
        leaf: LeafGroup,
        stats: LeafArrays,
        *,
        step_size: Scalar,
        pseudocount: Scalar,
        keep_zero_params: bool = False,
    ) -> LeafArrays:
        probs = categories.table_m_step(
            leaf.params["probs"],
            stats["counts"],
            step_size=step_size,
            pseudocount=pseudocount,
            keep_zero_params=keep_zero_params,
        )
        return {"probs": probs}

    def sample(self, key: PRNGKeyArray, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        return categories.sample_rows(key, leaf, leaf.params["probs"], nodes)

    def mode(self, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        return leaf.at_nodes(jnp.argmax(leaf.params["probs"], axis=1).astype(jnp.int32), nodes)

    def to_unconstrained(self, params: LeafArrays, constants: Constants) -> LeafArrays:
        return {"probs": log_probability(params["probs"])}

    def from_unconstrained(self, raw: LeafArrays, constants: Constants) -> LeafArrays:
        return {"probs": jax.nn.softmax(raw["probs"], axis=1)}
