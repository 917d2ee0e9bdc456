"""Leaves whose log-densities come with every call."""

import dataclasses
from typing import ClassVar

import numpy as np
from jaxtyping import PRNGKeyArray

from jaxjuice._errors import StructureError
from jaxjuice.distributions._base import FixedDistribution, LeafGroup
from jaxjuice.distributions._types import LogProbs, NodeIndices, Observations


@dataclasses.dataclass(frozen=True)
class External(FixedDistribution):
    """Leaves that another model computes: their log-densities are an argument of every call.

    - Density: whatever comes; its logarithm is passed on as it is, and the gradient comes back
    whole.
    - Parameters, constants and statistics: none.

    The variable's column in the data is ignored. Such leaves cannot be sampled and have no mode.
    """

    is_external: ClassVar[bool] = True

    @property
    def is_discrete(self) -> bool:
        return False

    def validate(self, column: np.ndarray) -> str | None:
        return None

    def log_prob(self, leaf: LeafGroup, x: LogProbs) -> LogProbs:
        """Returns the log-densities `x [V, B, K]` of this call."""
        return x

    def sample(self, key: PRNGKeyArray, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        raise StructureError(
            "External leaves cannot be sampled: their distribution is not part of the circuit."
        )

    def mode(self, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        raise StructureError(
            "External leaves have no mode: their distribution is not part of the circuit."
        )
