"""Several batches an update."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxjuice._errors import TrainingError
from jaxjuice.optim._transformation import FlowTransformation, check_params_given, increment


class AccumulateState(NamedTuple):
    """State of `accumulate`.

    Attributes:
        count: Batches in the window so far, int32 scalar.
        flows: Their summed flows.
        inner: State of the wrapped transformation.
    """

    count: jax.Array
    flows: Any
    inner: Any


def accumulate(tx: FlowTransformation, every: int) -> FlowTransformation:
    """Sums the flows of `every` batches, then makes one update with `tx`.

    In between, the updates are 0 and the parameters keep every bit. The result is that of one
    batch of all their samples, up to rounding: flows are sums, so they add. (`optax.MultiSteps`
    does not fit flows: it averages them, which multiplies the weight of a pseudocount by `every`,
    and it expects a tree like the parameters.)

    Args:
        tx: An optimizer of this package.
        every: Number of batches an update, at least 1.

    Returns:
        A transformation of flows into updates.

    Raises:
        TrainingError: If `tx` is no optimizer of flows, or `every` is below 1.
    """
    call = f"accumulate(tx, every={every!r})"
    if not isinstance(tx, FlowTransformation):
        raise TrainingError(
            f"{call} got a {type(tx).__name__} that takes gradients, and it can only wrap the "
            "optimizers of jaxjuice.optim; wrap others with optax.MultiSteps."
        )
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise TrainingError(f"{call} needs a whole number of batches, 1 or more.")

    def init(params: Any) -> AccumulateState:
        shapes = jax.eval_shape(tx.pc.top_down_flows, params)
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        return AccumulateState(jnp.zeros((), jnp.int32), zeros, tx.init(params))

    def update(
        flows: Any, state: AccumulateState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, AccumulateState]:
        check_params_given(call, params)
        total = jax.tree.map(lambda a, b: a + b.astype(a.dtype), state.flows, flows)
        count = increment(state.count)

        def finish() -> tuple[Any, AccumulateState]:
            updates, inner = tx.update(total, state.inner, params, **extra_args)
            zeros = jax.tree.map(jnp.zeros_like, total)
            return updates, AccumulateState(jnp.zeros_like(count), zeros, inner)

        def wait() -> tuple[Any, AccumulateState]:
            updates = jax.tree.map(jnp.zeros_like, params)
            return updates, AccumulateState(count, total, state.inner)

        return jax.lax.cond(count >= every, finish, wait)

    return FlowTransformation(init, update, tx.pc)
