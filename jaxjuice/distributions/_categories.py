"""Tables over categories `[P, C, K]`: rows looked up, flows counted, the M-step, sampling.

A row is what one category has at all K nodes, so that an observation reads (or adds to) K
neighbours in memory.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxjuice.distributions._base import LeafGroup
from jaxjuice.distributions._numerics import blend, log_probability
from jaxjuice.distributions._types import (
    CategoryMask,
    CategoryTable,
    LeafFlows,
    Legal,
    LogProbs,
    NodeArray,
    NodeIndices,
    ParamIds,
    Scalar,
    WholeNumbers,
)

_MAX_ONE_HOT_CATEGORIES = 8
"""Up to here (and to K / 2) counting by a product with one-hot columns beats a scatter on a CPU."""


# ------------------------------------------------------------------------------ rows of a table


def table_pays(leaf: LeafGroup, num_categories: int, x: Array) -> bool:
    """Whether a function is cheaper to evaluate for all categories than for all observations."""
    return leaf.num_params * num_categories <= x.size


def log_rows(leaf: LeafGroup, probs: CategoryTable, category: WholeNumbers) -> LogProbs:
    """The log-probability of every observation.

    Args:
        leaf: the leaves.
        probs: the probability of every category.
        category: legal categories.
    """
    if table_pays(leaf, probs.shape[1], category):
        return rows_of(leaf, log_probability(probs), category)
    return log_probability(rows_of(leaf, probs, category))


def rows_of(leaf: LeafGroup, table: CategoryTable, category: WholeNumbers) -> LogProbs:
    """The table's row of every observation; its gradient adds up the cotangents of every row.

    Args:
        leaf: the leaves.
        table: any numbers.
        category: legal categories.
    """
    return _rows_of(table, _table_ids(leaf.param_ids, category), category)


@jax.custom_vjp
def _rows_of(table: CategoryTable, table_ids: ParamIds, category: WholeNumbers) -> LogProbs:
    num_categories, num_nodes = table.shape[1:]
    rows = table_ids[:, None] * num_categories + category
    # Not `table[rows]`, which spends a comparison and a select on negative indices.
    dimensions = lax.GatherDimensionNumbers(
        offset_dims=(2,), collapsed_slice_dims=(0,), start_index_map=(0,)
    )
    return lax.gather(
        table.reshape(-1, num_nodes),
        rows[:, :, None],
        dimensions,
        slice_sizes=(1, num_nodes),
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )


def _rows_of_forward(table: CategoryTable, table_ids: ParamIds, category: WholeNumbers) -> Any:
    # Of the table only the shape is needed later; an empty array carries it through the residuals.
    shape = jnp.zeros((*table.shape, 0), table.dtype)
    return _rows_of(table, table_ids, category), (shape, table_ids, category)


def _rows_of_backward(residuals: Any, cotangent: LeafFlows) -> tuple[Array, None, None]:
    shape, table_ids, category = residuals
    return _count(shape.shape[:3], table_ids, category, None, cotangent), None, None


_rows_of.defvjp(_rows_of_forward, _rows_of_backward)


def count_rows(
    leaf: LeafGroup, num_categories: int, category: WholeNumbers, legal: Legal, flows: LeafFlows
) -> CategoryTable:
    """Adds up the flows of every category, over samples and tied leaves.

    Args:
        leaf: the leaves.
        num_categories: C.
        category: the observations.
        legal: which observations count.
        flows: the weight of each at each node.
    """
    shape = (leaf.num_params, num_categories, flows.shape[-1])
    return _count(shape, _table_ids(leaf.param_ids, category), category, legal, flows)


def _count(
    shape: tuple[int, ...],
    table_ids: ParamIds,
    category: WholeNumbers,
    legal: Legal | None,
    flows: LeafFlows,
) -> CategoryTable:
    """Counts by a product with one-hot columns where C is small, else by scattering rows.

    With C <= K / 2 the one-hot columns are smaller than the flows, so memory stays bounded.
    """
    num_params, num_categories, num_nodes = shape
    if num_categories <= max(1, min(_MAX_ONE_HOT_CATEGORIES, num_nodes // 2)):
        every_category = jnp.arange(num_categories, dtype=category.dtype)[None, :, None]
        one_hot = category[:, None, :] == every_category
        if legal is not None:
            one_hot = one_hot & legal[:, None, :]
        one_hot = one_hot.astype(flows.dtype)
        counts = jnp.einsum("vcb,vbk->vck", one_hot, flows, precision=lax.Precision.HIGHEST)
        return jax.ops.segment_sum(counts, table_ids, num_segments=num_params)
    rows = table_ids[:, None] * num_categories + category
    if legal is not None:
        rows = jnp.where(legal, rows, num_params * num_categories)  # out of bounds: dropped
    table = jnp.zeros((num_params * num_categories, num_nodes), flows.dtype)
    counts = table.at[rows.reshape(-1)].add(flows.reshape(-1, num_nodes), mode="drop")
    return counts.reshape(shape)


def _table_ids(param_ids: ParamIds | None, category: WholeNumbers) -> ParamIds:
    return jnp.arange(category.shape[0], dtype=jnp.int32) if param_ids is None else param_ids


# ------------------------------------------------------------------------------ initial values


def random_probs(
    key: PRNGKeyArray,
    shape: tuple[int, int, int],
    perturbation: Scalar,
    dtype: Any,
    allowed: CategoryMask | None = None,
) -> CategoryTable:
    """Random probabilities: `exp(-perturbation * U[0, 1))` where allowed, normalized per node."""
    # One axis: over several, XLA's generator takes three times as long to compile.
    uniform = jax.random.uniform(key, (math.prod(shape),), dtype).reshape(shape)
    table = jnp.exp(-jnp.asarray(perturbation, dtype) * uniform)
    if allowed is not None:
        table = jnp.where(allowed, table, jnp.zeros_like(table))
    return table / jnp.sum(table, axis=1, keepdims=True)


# ------------------------------------------------------------------------------ the M-step


def table_m_step(
    probs: CategoryTable,
    counts: CategoryTable,
    *,
    step_size: Scalar,
    pseudocount: Scalar,
    allowed: CategoryMask | None = None,
    keep_zero_params: bool = False,
) -> CategoryTable:
    """Moves probabilities towards the frequencies of smoothed counts.

    With F the counts of a node, A its allowed categories and m the pseudocount:
    `p <- (1 - step) p + step (F + m / |A|) / (sum F + m)`. With `keep_zero_params`, categories of
    probability 0 get nothing, and the denominator is the sum over the others.

    Args:
        probs: current probabilities.
        counts: flows of every category.
        step_size: how far to go.
        pseudocount: prior mass of a whole node, spread evenly over its allowed categories.
        allowed: where a node may have mass; None for everywhere.
        keep_zero_params: whether zeros stay.
    """
    step_size = jnp.asarray(step_size, probs.dtype)
    pseudocount = jnp.asarray(pseudocount, probs.dtype)
    if allowed is None:
        mass = counts + pseudocount / probs.shape[1]
    else:
        num_allowed = jnp.sum(allowed, axis=1, keepdims=True).astype(probs.dtype)
        mass = jnp.where(allowed, counts + pseudocount / num_allowed, jnp.zeros_like(counts))
    if keep_zero_params:
        mass = jnp.where(probs > 0, mass, jnp.zeros_like(mass))
    total = jnp.sum(mass, axis=1, keepdims=True)
    alive = total >= jnp.finfo(probs.dtype).tiny
    target = mass / jnp.where(alive, total, jnp.ones_like(total))
    return jnp.where(alive, blend(probs, target, step_size), probs)


def success_m_step(
    prob: NodeArray,
    successes: NodeArray,
    failures: NodeArray,
    *,
    step_size: Scalar,
    pseudocount: Scalar,
    keep_zero_params: bool,
) -> NodeArray:
    """`table_m_step` for success and failure, given by the probability of success."""
    new = table_m_step(
        jnp.stack([prob, 1 - prob], axis=1),
        jnp.stack([successes, failures], axis=1),
        step_size=step_size,
        pseudocount=pseudocount,
        keep_zero_params=keep_zero_params,
    )
    return new[:, 0]


# ------------------------------------------------------------------------------ sampling


def sample_rows(
    key: PRNGKeyArray, leaf: LeafGroup, probs: CategoryTable, nodes: NodeIndices
) -> WholeNumbers:
    """Draws a category from node `nodes[v, b]` of leaf v, by its inverse distribution function.

    A category of probability 0 is never drawn: running sums are taken in order, so that it adds
    exactly nothing, and what is drawn lies below the last of them.

    Args:
        key: a JAX key.
        leaf: the leaves.
        probs: the probability of every category.
        nodes: the node of every draw.
    """
    num_params, num_categories, num_nodes = probs.shape
    ids = _table_ids(leaf.param_ids, nodes)[:, None]
    by_category = probs.transpose(1, 0, 2)
    if nodes.size <= num_params * num_nodes:
        sums = _running_sums(by_category[:, ids, nodes])  # [C, V, B]

        def running_sum(category: Array) -> Array:
            return jnp.take_along_axis(sums, category[None], axis=0)[0]

    else:
        sums = _running_sums(by_category)  # [C, P, K]

        def running_sum(category: Array) -> Array:
            return sums[category, ids, nodes]

    total = running_sum(jnp.full(nodes.shape, num_categories - 1, jnp.int32))
    below_total = jnp.nextafter(total, jnp.zeros_like(total))
    uniform = jax.random.uniform(key, nodes.shape, probs.dtype)
    threshold = jnp.minimum(uniform * total, below_total)
    return _first_above(running_sum, threshold, num_categories)


def _running_sums(table: Array) -> Array:
    """Cumulative sums over the first axis, in order: `jnp.cumsum` associates them as it likes."""

    def add(total: Array, row: Array) -> tuple[Array, Array]:
        total = total + row
        return total, total

    return lax.scan(add, jnp.zeros_like(table[0]), table)[1]


def _first_above(
    running_sum: Callable[[Array], Array], threshold: Array, num_categories: int
) -> WholeNumbers:
    """The first category whose running sum exceeds the threshold, by bisection."""

    def halve(_: Scalar, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds  # the answer lies in low..high
        middle = (low + high) // 2
        above = running_sum(middle) > threshold
        return jnp.where(above, low, middle + 1), jnp.where(above, middle, high)

    low = jnp.zeros(threshold.shape, jnp.int32)
    high = jnp.full(threshold.shape, num_categories - 1, jnp.int32)
    num_steps = (num_categories - 1).bit_length()
    return lax.fori_loop(0, num_steps, halve, (low, high))[1]
