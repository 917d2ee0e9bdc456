"""What all EM optimizers share: the marker class and the checks of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax

from jaxjuice._errors import TrainingError

if TYPE_CHECKING:
    from jaxjuice.circuit import Circuit

StepSize = float | jax.Array | Callable[[Any], Any]


class FlowTransformation(optax.GradientTransformationExtraArgs):
    """An optax transformation whose `update` takes a circuit's flows in place of gradients.

    `updates, state = tx.update(flows, state, params)` with `params` in probability space, then
    `params = optax.apply_updates(params, updates)`. `juice.fit` knows by this class that it must
    hand over flows.

    Attributes:
        pc: The circuit that the transformation was made for.
        full_batch: Whether `juice.fit` must sum the flows of a whole epoch before each update.
    """

    pc: Circuit
    full_batch: bool

    def __new__(
        cls,
        init: Callable[..., Any],
        update: Callable[..., Any],
        pc: Circuit,
        full_batch: bool = False,
    ) -> FlowTransformation:
        """Makes a transformation from its two functions."""
        self = super().__new__(cls, init, update)
        self.pc = pc
        self.full_batch = full_batch
        return self


def check_fraction(call: str, name: str, value: StepSize, *, positive: bool) -> None:
    """Raises unless a Python number lies in [0, 1] ((0, 1] if `positive`, else [0, 1))."""
    if callable(value) or isinstance(value, jax.Array):
        return
    is_legal = 0 < value <= 1 if positive else 0 <= value < 1
    if not is_legal:
        wanted = "above 0 and at most 1" if positive else "at least 0 and below 1"
        raise TrainingError(f"{call} got {name}={value!r}, and {name} must be {wanted}.")


def check_pseudocount(call: str, pseudocount: float | jax.Array) -> None:
    """Raises unless a Python number is 0 or more."""
    if not isinstance(pseudocount, jax.Array) and not pseudocount >= 0:
        raise TrainingError(
            f"{call} got pseudocount={pseudocount!r}, and a pseudocount must be 0 or more."
        )


def check_params_given(call: str, params: Any) -> None:
    """Raises where `tx.update(flows, state)` was called without parameters."""
    if params is None:
        raise TrainingError(
            f"The update of {call} was called without parameters; an M-step starts from the old "
            "ones, so call tx.update(flows, state, params)."
        )


def step_size_at(step_size: StepSize, count: jax.Array, dtype: Any) -> jax.Array:
    """The step size of update number `count` (from 0), clipped to [0, 1], in `dtype`."""
    # Schedules of optax mix dtypes, which a caller's strict promotion mode would refuse.
    with jax.numpy_dtype_promotion("standard"):
        value = step_size(count) if callable(step_size) else step_size
    # Beyond 1 the old parameters would enter with a negative weight.
    return jnp.clip(jnp.asarray(value).astype(dtype), 0, 1)


def increment(count: jax.Array) -> jax.Array:
    """The next count; it stays at the largest int32 in place of overflowing."""
    return jnp.asarray(optax.safe_increment(count))
