"""Categorical leaves some of whose categories are forbidden."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxjuice._errors import ParameterError, StructureError
from jaxjuice.distributions import _categories as categories
from jaxjuice.distributions._base import Distribution, LeafGroup
from jaxjuice.distributions._checks import normalized_probs, positive_int
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

_MASK_MODES = ("range", "full_mask", "rev_range")


@dataclasses.dataclass(frozen=True)
class MaskedCategorical(Distribution):
    """A distribution over those of the categories 0 to `num_cats - 1` that a node's mask allows.

    - Probability: `p[x]`, 0 outside of the mask. (PyJuice gives forbidden categories 1e-10.)
    - Parameters: `probs [num_cats]`, exactly 0 outside of the mask, with sum 1.
    - Constants: `mask [num_cats]`, bool, True where allowed. `inputs(..., mask=)` takes, for each
      node or once for all:
        - `mask_mode="full_mask"`: the mask itself, `[num_cats]`;
        - `mask_mode="range"`: two whole numbers (low, high); low, ..., high - 1 are allowed;
        - `mask_mode="rev_range"`: two whole numbers (low, high); all others are allowed.
      A boolean array of the full shape is taken in every mode.
    - Statistics: `counts [num_cats]`, the flow of every category.
    - M-step: that of `Categorical` over the allowed categories, among which the pseudocount is
    spread.
    - Unconstrained: logits; -inf outside of the mask.

    Attributes:
        num_cats: the number of categories, forbidden ones included.
        mask_mode: how `mask=` is read.

    Raises:
        StructureError: if `num_cats` is not a positive whole number, or the mode is unknown.
    """

    num_cats: int
    mask_mode: str = "full_mask"

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_cats", positive_int(self, "num_cats"))
        if self.mask_mode not in _MASK_MODES:
            raise StructureError(
                f"MaskedCategorical(mask_mode={self.mask_mode!r}): one of {_MASK_MODES} is wanted."
            )

    @property
    def is_discrete(self) -> bool:
        return True

    def param_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"probs": (self.num_cats,)}

    def constant_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"mask": (self.num_cats,)}

    def stat_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"counts": (self.num_cats,)}

    def check_constants(
        self, num_nodes: int, constants: Mapping[str, Any], params: Mapping[str, Any] | None = None
    ) -> dict[str, np.ndarray]:
        if "mask" not in constants:
            raise ParameterError(
                f"inputs(dist={self}) came without `mask=`, and a mask for every node is wanted."
            )
        given = np.asarray(constants["mask"])
        full_shapes = ((self.num_cats,), (num_nodes, self.num_cats))
        if self.mask_mode == "full_mask" or (given.dtype == bool and given.shape in full_shapes):
            mask = given
        else:
            mask = self._mask_of_ranges(given, num_nodes)
        checked = super().check_constants(num_nodes, {**constants, "mask": mask}, params)["mask"]
        allowed = checked != 0
        if not np.array_equal(allowed, checked):
            raise ParameterError(f"inputs(dist={self}, mask=) has entries other than 0 and 1.")
        if not np.all(allowed.any(axis=1)):
            node = int(np.argmin(allowed.any(axis=1)))
            raise ParameterError(
                f"inputs(dist={self}, mask=) allows no category at node {node}, and at least one "
                f"is wanted at every node."
            )
        return {"mask": allowed}

    def _mask_of_ranges(self, ranges: np.ndarray, num_nodes: int) -> np.ndarray:
        """The mask `[num_nodes, num_cats]` of ranges (low, high)."""
        if ranges.shape not in ((2,), (num_nodes, 2)) or ranges.dtype.kind not in "iuf":
            raise ParameterError(
                f"inputs(dist={self}, mask=) came with shape {ranges.shape} and dtype "
                f"{ranges.dtype}, and (low, high) or {num_nodes} rows of (low, high) are wanted."
            )
        bounds = np.broadcast_to(ranges, (num_nodes, 2))
        low, high = bounds[:, :1], bounds[:, 1:]
        legal = (low >= 0) & (low <= high) & (high <= self.num_cats) & (bounds == np.floor(bounds))
        if not np.all(legal):
            raise ParameterError(
                f"inputs(dist={self}, mask=) holds a range that is not 0 <= low <= high <= "
                f"{self.num_cats} in whole numbers."
            )
        category = np.arange(self.num_cats)
        inside = (category >= low) & (category < high)
        return inside if self.mask_mode == "range" else ~inside

    def _check_values(
        self, params: dict[str, np.ndarray], constants: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        inside = np.where(constants["mask"], params["probs"], 0.0)
        return {"probs": normalized_probs(self, inside)}

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
        probs = categories.random_probs(
            key, shape, perturbation, dtype, constants["mask"].astype(bool)
        )
        return {"probs": probs}

    def log_prob(self, leaf: LeafGroup, x: Observations) -> LogProbs:
        category, legal = whole_numbers(x, self.num_cats - 1)
        return nan_where_illegal(categories.log_rows(leaf, leaf.params["probs"], category), legal)

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
            allowed=leaf.constants["mask"].astype(bool),
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
        mask = constants["mask"].astype(bool)
        logits = jnp.where(mask, raw["probs"], jnp.full_like(raw["probs"], -jnp.inf))
        return {"probs": jax.nn.softmax(logits, axis=1)}
