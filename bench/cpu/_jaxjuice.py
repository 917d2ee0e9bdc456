"""jaxjuice's part in the contests."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxjuice as juice
from bench.cpu._contest import Contender, Task


def contender(
    pc: juice.Circuit, params: Any, x: np.ndarray, em: Any, learning_rate: float | None = None
) -> Contender:
    """What jaxjuice does with a circuit.

    Args:
        pc: The circuit.
        params: Its parameters.
        x: Data, `[rows, num_vars]`.
        em: An optimizer of `juice.optim`.
        learning_rate: For the step of Adam on unconstrained parameters; None for no such task.
    """
    data = jnp.asarray(x)
    tasks = {
        "log-likelihood": Task(
            lambda: pc.log_likelihood(params, data, validate=False).block_until_ready(),
            lambda: _log_likelihoods(pc, params, data),
        ),
        "EM step": _Training(pc, params, data, em, partial(_em_step, pc, em), False).task(),
    }
    if learning_rate is not None:
        adam = optax.adam(learning_rate)
        step = partial(_gradient_step, pc, adam)
        tasks["Adam step"] = _Training(pc, params, data, adam, step, True).task()
    return Contender(tasks)


class _Training:
    """A training step from the given parameters. As in training, their buffers are given away."""

    def __init__(self, pc: juice.Circuit, params: Any, data: Any, tx: Any, step: Any, raw: bool):
        self.pc = pc
        self.data = data
        self.raw = raw
        self.step = jax.jit(step, donate_argnums=(0, 1))
        self.begin = pc.to_unconstrained(params) if raw else params
        self.tx = tx
        self.reset()

    def reset(self) -> None:
        copy = jax.tree.map(jnp.copy, self.begin)
        self.state = jax.block_until_ready((copy, self.tx.init(copy)))

    def run(self) -> None:
        self.state = jax.block_until_ready(self.step(*self.state, self.data))[:2]

    def outcome(self) -> np.ndarray:
        params = self.pc.from_unconstrained(self.state[0]) if self.raw else self.state[0]
        return _log_likelihoods(self.pc, params, self.data)

    def task(self) -> Task:
        return Task(self.run, self.outcome, self.reset)


def _em_step(pc: juice.Circuit, tx: Any, params: Any, state: Any, x: jax.Array) -> Any:
    lls, flows = pc.log_likelihood_and_flows(params, x, validate=False)
    updates, state = tx.update(flows, state, params)
    return optax.apply_updates(params, updates), state, lls.mean()


def _gradient_step(pc: juice.Circuit, tx: Any, raw: Any, state: Any, x: jax.Array) -> Any:
    def loss(raw: Any) -> jax.Array:
        return -pc.log_likelihood(pc.from_unconstrained(raw), x, validate=False).mean()

    value, gradient = jax.value_and_grad(loss)(raw)
    updates, state = tx.update(gradient, state, raw)
    return optax.apply_updates(raw, updates), state, value


def _log_likelihoods(pc: juice.Circuit, params: Any, data: jax.Array) -> np.ndarray:
    return np.asarray(pc.log_likelihood(params, data, validate=False), np.float64)
