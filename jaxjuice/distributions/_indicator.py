"""Indicator leaves: node i is certain of one state."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxjuice._errors import ParameterError
from jaxjuice.distributions._base import FixedDistribution, LeafGroup
from jaxjuice.distributions._checks import positive_int
from jaxjuice.distributions._types import LogProbs, NodeIndices, Observations
from jaxjuice.distributions._values import nan_where_illegal, whole_number_problem, whole_numbers


@dataclasses.dataclass(frozen=True)
class Indicator(FixedDistribution):
    """A variable with `num_states` states, of which every node takes one for certain.

    - Probability: 1 where x is the node's state, else 0.
    - Parameters and statistics: none; nothing is learned.
    - Constants: `state`, a whole number. `inputs(..., state=)` sets it; by default node i has state
    i.

    Attributes:
        num_states: the number of states, 0 to `num_states - 1`.

    Raises:
        StructureError: if `num_states` is not a positive whole number.
    """

    num_states: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_states", positive_int(self, "num_states"))

    @property
    def is_discrete(self) -> bool:
        return True

    def constant_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"state": ()}

    def check_constants(
        self, num_nodes: int, constants: Mapping[str, Any], params: Mapping[str, Any] | None = None
    ) -> dict[str, np.ndarray]:
        if "state" not in constants:
            if num_nodes > self.num_states:
                raise ParameterError(
                    f"inputs(num_nodes={num_nodes}, dist={self}) has more nodes than states, and "
                    f"then `state=` is wanted: the state of every node."
                )
            constants = {**constants, "state": np.arange(num_nodes)}
        state = super().check_constants(num_nodes, constants, params)["state"]
        problem = whole_number_problem(state, self.num_states - 1, repr(self))
        if problem is not None:
            raise ParameterError(f"inputs(dist={self}, state=) {problem}.")
        return {"state": state.astype(np.int32)}

    def validate(self, column: np.ndarray) -> str | None:
        return whole_number_problem(column, self.num_states - 1, repr(self))

    def log_prob(self, leaf: LeafGroup, x: Observations) -> LogProbs:
        value, legal = whole_numbers(x, self.num_states - 1)
        hit = value[:, :, None] == leaf.spread(leaf.constants["state"].astype(jnp.int32))[:, None]
        return nan_where_illegal(jnp.where(hit, 0.0, -jnp.inf), legal)

    def sample(self, key: PRNGKeyArray, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        return self.mode(leaf, nodes)

    def mode(self, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        return leaf.at_nodes(leaf.constants["state"], nodes).astype(jnp.int32)
