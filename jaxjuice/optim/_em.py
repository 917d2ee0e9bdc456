"""Full-batch and mini-batch expectation maximization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxjuice._parameters import params_dtype
from jaxjuice.optim._m_step import as_updates, m_step
from jaxjuice.optim._transformation import (
    FlowTransformation,
    StepSize,
    check_fraction,
    check_params_given,
    check_pseudocount,
    increment,
    step_size_at,
)

if TYPE_CHECKING:
    from jaxjuice.circuit import Circuit


class EMState(NamedTuple):
    """State of `full_batch_em` and `mini_batch_em`.

    Attributes:
        count: Number of updates so far, int32 scalar.
    """

    count: jax.Array


def full_batch_em(
    pc: Circuit, pseudocount: float = 0.0, keep_zero_params: bool = False
) -> FlowTransformation:
    """Expectation maximization with a full M-step: the parameters become the normalized flows.

    Give it the flows of *all* data: with pseudocount 0 such a step never lowers their likelihood.
    `juice.fit` with this transformation sums the flows of all batches of an epoch and updates once
    an epoch, so the batch size only bounds the memory.

    Args:
        pc: The circuit.
        pseudocount: Mass added to each node, spread evenly over its edges or categories. It is in
            units of samples.
        keep_zero_params: Whether parameters of exactly 0 stay 0 in spite of a pseudocount.

    Returns:
        A transformation of flows into updates.

    Raises:
        TrainingError: If the pseudocount is negative.
    """
    check_pseudocount("full_batch_em(...)", pseudocount)
    return _em("full_batch_em(...)", pc, 1.0, pseudocount, keep_zero_params, full_batch=True)


def mini_batch_em(
    pc: Circuit,
    step_size: StepSize = 0.1,
    pseudocount: float = 0.0,
    keep_zero_params: bool = False,
) -> FlowTransformation:
    """Expectation maximization in steps: a blend of old parameters and normalized batch flows.

    For a sum node with C children, edge flows F of the batch and pseudocount a

        theta <- (1 - step_size) * theta + step_size * (F + a / C) / (sum F + a);

    leaves blend the expectation parameters of their family in the same way. A node without flow
    in the batch keeps its parameters when the pseudocount is 0.

    Args:
        pc: The circuit.
        step_size: A number above 0 and at most 1, or an optax schedule of the number of updates
            (its values are clipped to [0, 1]).
        pseudocount: Mass added to each node, spread evenly over its edges or categories. It is in
            units of samples of one batch.
        keep_zero_params: Whether parameters of exactly 0 stay 0 in spite of a pseudocount.

    Returns:
        A transformation of flows into updates.

    Raises:
        TrainingError: If the step size or the pseudocount is out of range.
    """
    check_fraction("mini_batch_em(...)", "step_size", step_size, positive=True)
    check_pseudocount("mini_batch_em(...)", pseudocount)
    return _em("mini_batch_em(...)", pc, step_size, pseudocount, keep_zero_params, full_batch=False)


def _em(
    call: str,
    pc: Circuit,
    step_size: StepSize,
    pseudocount: float,
    keep_zero_params: bool,
    *,
    full_batch: bool,
) -> FlowTransformation:
    def init(params: Any) -> EMState:
        del params
        return EMState(count=jnp.zeros((), jnp.int32))

    def update(
        flows: Any, state: EMState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, EMState]:
        del extra_args
        check_params_given(call, params)
        new_params = m_step(
            pc,
            params,
            flows,
            step_size=step_size_at(step_size, state.count, params_dtype(params)),
            pseudocount=pseudocount,
            keep_zero_params=keep_zero_params,
        )
        return as_updates(params, new_params), EMState(increment(state.count))

    return FlowTransformation(init, update, pc, full_batch)
