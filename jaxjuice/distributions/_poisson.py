"""Poisson leaves."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxjuice._errors import StructureError
from jaxjuice.distributions._base import Distribution, LeafGroup
from jaxjuice.distributions._checks import at_least, finite_float
from jaxjuice.distributions._counts import deviance, log_factorial_rest
from jaxjuice.distributions._moments import enough_flow, weighted_sums
from jaxjuice.distributions._numerics import blend, exp_at_least
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
class Poisson(Distribution):
    """A distribution over the counts 0, 1, 2, ...

    - Probability: `rate^x exp(-rate) / x!`.
    - Parameters: `rate`, the mean, at least `min_rate`.
    - Statistics: `flow` = sum f, `total` = sum f x.
    - M-step: `rate <- (1 - step) rate + step (total + m rate0) / (flow + m)`, lifted to `min_rate`.
      The pseudocount m counts samples of mean `rate0`, the family's `rate`: a gamma prior. Where
      the family has none (`rate=None`), m is ignored.
    - Unconstrained: `log rate`.

    Attributes:
        rate: around which initial rates are drawn, and the mean of the prior; None for 1 and no
        prior.
        min_rate: the smallest rate.

    Raises:
        StructureError: if an argument is not finite and positive, or `rate` is below `min_rate`.
    """

    rate: float | None = None
    min_rate: float = 1e-6

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_rate", finite_float(self, "min_rate", above=0))
        if self.rate is not None:
            object.__setattr__(self, "rate", finite_float(self, "rate", above=0))
            if self.rate < self.min_rate:
                raise StructureError(
                    f"Poisson(rate={self.rate}, min_rate={self.min_rate}): rate must be at least "
                    f"min_rate."
                )

    @property
    def is_discrete(self) -> bool:
        return True

    def param_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"rate": ()}

    def stat_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"flow": (), "total": ()}

    def _check_values(
        self, params: dict[str, np.ndarray], constants: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        return {"rate": at_least(self, "rate", params["rate"], self.min_rate)}

    def validate(self, column: np.ndarray) -> str | None:
        return whole_number_problem(column, None, repr(self))

    def init_params(
        self,
        key: PRNGKeyArray,
        constants: Constants,
        num_params: int,
        num_nodes: int,
        perturbation: Scalar,
        dtype: Any,
    ) -> LeafArrays:
        middle = 1.0 if self.rate is None else self.rate
        uniform = jax.random.uniform(key, (num_params, num_nodes), dtype)
        rate = middle * jnp.exp(jnp.asarray(perturbation, dtype) * (uniform - 0.5))
        return {"rate": jnp.maximum(rate, self.min_rate)}

    def log_prob(self, leaf: LeafGroup, x: Observations) -> LogProbs:
        rate = leaf.spread(leaf.params["rate"])[:, None]
        count, legal = whole_numbers(x)
        value = count.astype(rate.dtype)
        shape = (*x.shape, leaf.num_nodes)
        value_at_nodes = jnp.broadcast_to(value[:, :, None], shape)
        excess = deviance(value_at_nodes, jnp.broadcast_to(rate, shape))
        return nan_where_illegal(-log_factorial_rest(value)[:, :, None] - excess, legal)

    def statistics(self, leaf: LeafGroup, x: Observations, flows: LeafFlows) -> LeafArrays:
        count, legal = whole_numbers(x)
        flow, total = weighted_sums(leaf, flows, [legal, count])
        return {"flow": flow, "total": total}

    def expected_statistics(self, leaf: LeafGroup) -> LeafArrays:
        rate = leaf.params["rate"]
        return {"flow": jnp.ones_like(rate), "total": rate}

    def m_step(
        self,
        leaf: LeafGroup,
        stats: LeafArrays,
        *,
        step_size: Scalar,
        pseudocount: Scalar,
        keep_zero_params: bool = False,
    ) -> LeafArrays:
        rate = leaf.params["rate"]
        flow, total = stats["flow"], stats["total"]
        if self.rate is not None:
            prior = jnp.asarray(pseudocount, rate.dtype)
            flow, total = flow + prior, total + prior * self.rate
        alive = enough_flow(flow)
        target = total / jnp.where(alive, flow, jnp.ones_like(flow))
        moved = blend(rate, target, jnp.asarray(step_size, rate.dtype))
        return {"rate": jnp.where(alive, jnp.maximum(moved, self.min_rate), rate)}

    def sample(self, key: PRNGKeyArray, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        rate = leaf.at_nodes(leaf.params["rate"], nodes)
        return jax.random.poisson(portable_key(key), rate, nodes.shape, jnp.int32)

    def mode(self, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        rate = leaf.at_nodes(leaf.params["rate"], nodes)
        return jnp.maximum(jnp.ceil(rate) - 1, 0).astype(jnp.int32)

    def to_unconstrained(self, params: LeafArrays, constants: Constants) -> LeafArrays:
        return {"rate": jnp.log(params["rate"])}

    def from_unconstrained(self, raw: LeafArrays, constants: Constants) -> LeafArrays:
        return {"rate": exp_at_least(raw["rate"], self.min_rate)}
