"""The log-likelihood of a data set, in batches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from jaxjuice._parameters import params_dtype
from jaxjuice.training._data import ArraySource, StreamSource, open_source
from jaxjuice.training._steps import Totals, evaluation_step, pair_value, zero_totals

if TYPE_CHECKING:
    from jaxjuice.circuit import Circuit


@dataclass(frozen=True)
class Evaluation:
    """How well a circuit explains a data set.

    Attributes:
        log_likelihood: Weighted mean over the possible rows, in nats; -inf if there are none.
        bits_per_dimension: `-log_likelihood / log(2)` per observed value; None if the circuit has
            a continuous variable.
        num_impossible: Number of rows with probability 0, which the means leave out.
    """

    log_likelihood: float
    bits_per_dimension: float | None
    num_impossible: int


def evaluate(
    pc: Circuit,
    params: Any,
    data: Any,
    *,
    batch_size: int | None = 512,
    missing_mask: Any = None,
    weights: Any = None,
    external_params: Any = None,
) -> Evaluation:
    """Computes the mean log-likelihood of a data set batch by batch.

    Args:
        pc: The circuit.
        params: Its parameters.
        data: What `juice.fit` takes: an array `[rows, num_vars]`, a `Batch`, or an iterable of
            batches.
        batch_size: Rows a batch; the last one is padded with rows of weight 0. None takes all rows
            at once.
        missing_mask: True where a value is missing, `[num_vars]` or `[rows, num_vars]`.
        weights: `[rows]`, not negative.
        external_params: Tensors that scale sum weights, a dict as `pc.log_likelihood` takes it,
            with a row for each row of the data.

    Returns:
        Means over the data set.

    Raises:
        DataError: If the data do not fit the circuit.
    """
    source = open_source(
        "evaluate(pc, params, data, ...)",
        pc,
        data,
        batch_size=batch_size,
        weight_dtype=params_dtype(params),
        missing_mask=missing_mask,
        weights=weights,
        external_params=external_params,
    )
    return evaluate_source(pc, params, source)


def evaluate_source(pc: Circuit, params: Any, source: ArraySource | StreamSource) -> Evaluation:
    """Runs over an opened source once."""
    totals = zero_totals(params_dtype(params))
    for batch, _ in source.batches(0):
        totals = evaluation_step(pc, params, totals, batch)
    return summary(pc, totals)


def summary(pc: Circuit, totals: Totals) -> Evaluation:
    """Means from totals. Waits for the device."""
    totals = jax.device_get(totals)
    total = pair_value(totals.log_likelihood)
    weight = pair_value(totals.weight)
    num_values = pair_value(totals.num_values)
    bits = None
    if all(group.dist.is_discrete for group in pc.input_groups.values()):
        bits = -total / (math.log(2) * num_values) if num_values > 0 else math.nan
    mean = total / weight if weight > 0 else -math.inf
    return Evaluation(mean, bits, int(totals.num_impossible))
