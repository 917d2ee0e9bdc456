"""Literal leaves: every node is certain of the same value."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxjuice._errors import StructureError
from jaxjuice.distributions._base import FixedDistribution, LeafGroup
from jaxjuice.distributions._checks import finite_float
from jaxjuice.distributions._types import LogProbs, NodeIndices, Observations
from jaxjuice.distributions._values import (
    LARGEST_WHOLE,
    nan_where_illegal,
    real_number_problem,
    real_numbers,
)


@dataclasses.dataclass(frozen=True)
class Literal(FixedDistribution):
    """A variable that has the value `lit`: a literal of a logical formula.

    - Probability: 1 where x equals `lit`, else 0. Floating-point data are compared in their dtype.
    - Parameters and statistics: none; nothing is learned.
    - Constants: `literal`, which repeats `lit` at every node; users need not give it.

    Attributes:
        lit: the value; True and False are 1 and 0.

    Raises:
        StructureError: if `lit` is not a finite number, or too large for data to hold exactly.
    """

    lit: float

    def __post_init__(self) -> None:
        lit = self.lit
        if isinstance(lit, bool | np.bool_):
            object.__setattr__(self, "lit", float(lit))
        object.__setattr__(self, "lit", finite_float(self, "lit"))
        if abs(self.lit) > LARGEST_WHOLE:
            raise StructureError(f"Literal(lit={lit!r}): a value below 2**31 is wanted.")

    @property
    def is_discrete(self) -> bool:
        return self.lit.is_integer()

    def constant_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"literal": ()}

    def check_constants(
        self, num_nodes: int, constants: Mapping[str, Any], params: Mapping[str, Any] | None = None
    ) -> dict[str, np.ndarray]:
        with_default = {"literal": self.lit, **constants}
        literal = super().check_constants(num_nodes, with_default, params)["literal"]
        return {"literal": np.full_like(literal, self.lit, dtype=np.float64)}

    def validate(self, column: np.ndarray) -> str | None:
        return real_number_problem(column, repr(self))

    def log_prob(self, leaf: LeafGroup, x: Observations) -> LogProbs:
        if jnp.issubdtype(x.dtype, jnp.floating):
            legal = real_numbers(x, x.dtype)[1]
            hit = x == jnp.asarray(self.lit, x.dtype)
        else:
            legal = jnp.ones(x.shape, bool)
            whole = x.astype(jnp.int32) if x.dtype.itemsize < 4 else x
            lowest = jnp.iinfo(whole.dtype).min
            reachable = self.lit.is_integer() and self.lit >= lowest
            hit = whole == int(self.lit) if reachable else jnp.zeros(x.shape, bool)
        log_probs = jnp.where(hit, 0.0, -jnp.inf)[:, :, None]
        return nan_where_illegal(jnp.broadcast_to(log_probs, (*x.shape, leaf.num_nodes)), legal)

    def sample(self, key: PRNGKeyArray, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        return self.mode(leaf, nodes)

    def mode(self, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        if self.is_discrete:
            return jnp.full(nodes.shape, int(self.lit), jnp.int32)
        return jnp.full(nodes.shape, self.lit)
