"""The jitted steps of training and evaluation, and the sums that they keep on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxjuice._compiler_options import jit_with_options
from jaxjuice.training._data import Batch

if TYPE_CHECKING:
    from jaxjuice.circuit import Circuit

Pair = tuple[jax.Array, jax.Array]


class Totals(NamedTuple):
    """Sums over batches, on the device. Each float sum is a pair (sum, rounding error).

    Attributes:
        log_likelihood: Of the rows that are possible under the circuit, times their weights.
        weight: Of the same rows.
        num_values: Their observed values, times their weights.
        num_impossible: Rows of positive weight whose log-likelihood is -inf, int32.
    """

    log_likelihood: Pair
    weight: Pair
    num_values: Pair
    num_impossible: jax.Array


def zero_totals(dtype: Any) -> Totals:
    """Totals of no batch."""

    def pair() -> Pair:
        return jnp.zeros((), dtype), jnp.zeros((), dtype)

    return Totals(pair(), pair(), pair(), jnp.zeros((), jnp.int32))


def _add(total: Pair, term: jax.Array) -> Pair:
    """Adds with the rounding error kept apart (Knuth's two-sum), so float32 sums stay exact."""
    old, error = total
    new = old + term
    added = new - old
    return new, error + ((old - (new - added)) + (term - added))


def pair_value(pair: Pair) -> float:
    """The value of a sum, on the host."""
    return float(np.asarray(pair[0], np.float64) + np.asarray(pair[1], np.float64))


def _add_rows(pc: Circuit, totals: Totals, lls: jax.Array, batch: Batch) -> Totals:
    """Adds the log-likelihoods `[rows]` of a batch. NaN passes through, -inf is counted.

    A value counts if it is observed and one of the circuit's variables, as no column without a leaf
    and no External leaf is.
    """
    weights = batch.weights
    zero = jnp.zeros((), lls.dtype)
    is_impossible = (lls == -jnp.inf) & (weights > 0)
    counted = jnp.where(is_impossible, jnp.zeros_like(weights), weights)
    # Rows of weight 0 may hold anything, and 0 * -inf is NaN.
    values = jnp.where(counted > 0, lls * counted.astype(lls.dtype), zero)
    if batch.missing_mask is None:
        num_values = jnp.sum(counted) * len(pc.observed_variables)
    else:
        observed = ~batch.missing_mask[..., pc.observed_variables]
        per_row = jnp.sum(observed, axis=-1).astype(counted.dtype)
        num_values = jnp.sum(counted * per_row)
    return Totals(
        _add(totals.log_likelihood, jnp.sum(values).astype(totals.log_likelihood[0].dtype)),
        _add(totals.weight, jnp.sum(counted)),
        _add(totals.num_values, num_values),
        totals.num_impossible + jnp.sum(is_impossible, dtype=jnp.int32),
    )


def _options(batch: Batch) -> dict[str, Any]:
    options: dict[str, Any] = {"validate": False}
    if batch.external_log_probs is not None:
        options["external_log_probs"] = batch.external_log_probs
    if batch.external_params is not None:
        options["external_params"] = batch.external_params
    return options


@jit_with_options(static_argnames=("pc", "tx"), donate_argnames=("params", "opt_state"))
def em_step(
    pc: Circuit, tx: Any, params: Any, opt_state: Any, totals: Totals, batch: Batch
) -> tuple[Any, Any, Totals]:
    """One update of probability-space parameters from the flows of a batch."""
    lls, flows = pc.log_likelihood_and_flows(
        params, batch.x, batch.missing_mask, weights=batch.weights, **_options(batch)
    )
    updates, opt_state = tx.update(flows, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, _add_rows(pc, totals, lls, batch)


@jit_with_options(static_argnames=("pc", "tx"), donate_argnames=("raw", "opt_state"))
def gradient_step(
    pc: Circuit, tx: Any, raw: Any, opt_state: Any, totals: Totals, batch: Batch
) -> tuple[Any, Any, Totals]:
    """One update of unconstrained parameters from the gradient of the mean log-likelihood."""

    def loss(raw: Any) -> tuple[jax.Array, jax.Array]:
        params = pc.from_unconstrained(raw)
        lls = pc.log_likelihood(params, batch.x, batch.missing_mask, **_options(batch))
        weights = batch.weights.astype(lls.dtype)
        is_counted = (weights > 0) & (lls != -jnp.inf)
        total = jnp.sum(jnp.where(is_counted, lls * weights, jnp.zeros_like(lls)))
        weight = jnp.sum(weights)
        return -total / jnp.where(weight > 0, weight, jnp.ones_like(weight)), lls

    (value, lls), gradient = jax.value_and_grad(loss, has_aux=True)(raw)
    # The extra arguments serve transformations with a line search; the others ignore them.
    # optax mixes dtypes (it raises floats to integer powers), so a caller's strict mode ends here.
    with jax.numpy_dtype_promotion("standard"):
        updates, opt_state = optax.with_extra_args_support(tx).update(
            gradient, opt_state, raw, value=value, grad=gradient, value_fn=lambda raw: loss(raw)[0]
        )
    # The logit of a weight of 0 is -inf and stays so: weight decay would make it -inf + inf.
    moved = jax.tree.map(
        lambda old, new: jnp.where(jnp.isneginf(old), old, new),
        raw,
        optax.apply_updates(raw, updates),
    )
    return moved, opt_state, _add_rows(pc, totals, lls, batch)


@jit_with_options(static_argnames=("pc",))
def evaluation_step(pc: Circuit, params: Any, totals: Totals, batch: Batch) -> Totals:
    """Adds the log-likelihoods of a batch to the totals."""
    lls = pc.log_likelihood(params, batch.x, batch.missing_mask, **_options(batch))
    return _add_rows(pc, totals, lls, batch)


@jit_with_options(static_argnames=("pc",))
def constrained(pc: Circuit, raw: Any) -> Any:
    """Probability-space parameters from unconstrained ones."""
    return pc.from_unconstrained(raw)


def fresh_copy(tree: Any) -> Any:
    """New buffers without weak types: safe to donate, and a second call sees the same types."""

    def copied(leaf: Any) -> jax.Array:
        return jnp.array(leaf, dtype=jnp.asarray(leaf).dtype, copy=True)

    return jax.tree.map(copied, tree)
