"""Anemone: mini-batch EM whose step follows how often each node is visited."""

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


class AnemoneState(NamedTuple):
    """State of `anemone`.

    Attributes:
        count: Number of updates so far, int32 scalar.
        momentum: Running average of the flows, a tree like them with their total weight among it;
            None where the momentum is 0.
    """

    count: jax.Array
    momentum: Any


def anemone(
    pc: Circuit,
    step_size: StepSize = 0.4,
    momentum: float = 0.9,
    pseudocount: float = 1e-6,
    keep_zero_params: bool = False,
) -> FlowTransformation:
    """Anemone, the mini-batch EM that moves rarely visited nodes slowly.

    With flows F of a batch of total weight N, step size s and the flows TD that the circuit sends
    down without any data (`pc.top_down_flows`, total weight 1), the parameters become the full
    M-step of

        (s / N) * F + (1 - s) * TD.

    So a node n with flow F_n takes an EM step of size `s F_n / N` relative to
    `s F_n / N + (1 - s) TD_n`: about s where the node is visited as often as the circuit itself
    predicts, almost 0 where it is hardly visited.

    Before that, flows *and their weight* pass through a running average that starts at 0,

        average <- momentum * average + (1 - momentum) * F,

    and the average takes the place of F and N. Batches of unequal size so count by their samples.
    The usual correction of the start, `average / (1 - momentum^t)` at update t, would multiply F
    and N alike and cancels in F / N: the first update equals that without momentum as it is.

    A batch of weight 0 changes neither parameters nor state.

    Args:
        pc: The circuit. Every leaf family and every mix of block sizes works.
        step_size: A number above 0 and at most 1, or an optax schedule of the number of updates
            (its values are clipped to [0, 1]).
        momentum: At least 0 and below 1.
        pseudocount: Mass added to each node, spread evenly over its edges or categories. It is
            relative to a total flow of 1 at the root, whatever the batch size.
        keep_zero_params: Whether parameters of exactly 0 stay 0 in spite of the pseudocount.

    Returns:
        A transformation of flows into updates.

    Raises:
        TrainingError: If an argument is out of range.
    """
    call = "anemone(...)"
    check_fraction(call, "step_size", step_size, positive=True)
    check_fraction(call, "momentum", momentum, positive=False)
    check_pseudocount(call, pseudocount)
    has_momentum = isinstance(momentum, jax.Array) or momentum > 0

    def init(params: Any) -> AnemoneState:
        average = None
        if has_momentum:
            shapes = jax.eval_shape(pc.top_down_flows, params)
            average = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        return AnemoneState(count=jnp.zeros((), jnp.int32), momentum=average)

    def update(
        flows: Any, state: AnemoneState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, AnemoneState]:
        del extra_args
        check_params_given(call, params)
        dtype = params_dtype(params)
        is_empty = flows.weight <= 0
        next_count = increment(state.count)
        average = None
        if has_momentum:
            average = flows = _averaged(flows, state.momentum, momentum)
        scale = step_size_at(step_size, state.count, dtype)
        mixed = _anchored(flows, pc.top_down_flows(params), scale)
        new_params = m_step(
            pc,
            params,
            mixed,
            step_size=1.0,
            pseudocount=pseudocount,
            keep_zero_params=keep_zero_params,
        )
        updates, new_state = as_updates(params, new_params), AnemoneState(next_count, average)
        updates = jax.tree.map(lambda u: jnp.where(is_empty, jnp.zeros_like(u), u), updates)
        return updates, jax.tree.map(lambda o, n: jnp.where(is_empty, o, n), state, new_state)

    return FlowTransformation(init, update, pc)


def _averaged(flows: Any, average: Any, momentum: Any) -> Any:
    """The new running average of the flows."""

    def blend(old: jax.Array, new: jax.Array) -> jax.Array:
        rate = jnp.asarray(momentum).astype(old.dtype)
        return rate * old + (1 - rate) * new.astype(old.dtype)

    return jax.tree.map(blend, average, flows)


def _anchored(flows: Any, top_down_flows: Any, step_size: jax.Array) -> Any:
    """`(step_size / N) * flows + (1 - step_size) * top_down_flows`."""

    def mix(data: jax.Array, anchor: jax.Array) -> jax.Array:
        rate = step_size.astype(anchor.dtype)
        weight = flows.weight.astype(anchor.dtype)
        safe_weight = jnp.where(weight > 0, weight, jnp.ones_like(weight))
        return data.astype(anchor.dtype) * (rate / safe_weight) + (1 - rate) * anchor

    return jax.tree.map(mix, flows, top_down_flows)
