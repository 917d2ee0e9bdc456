"""jaxjuice's part: compilation, passes and a training step."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxjuice as juice
from bench._timing import Timing, clock

STEP_SIZE, PSEUDOCOUNT = 0.1, 0.01


class Times(NamedTuple):
    """Of equal calls.

    Attributes:
        alone: wall times of single calls, each until the GPU is done.
        queued: seconds a call takes when the host need not wait for the one before, as in training.
    """

    alone: Timing
    queued: float


class Measured(NamedTuple):
    """What a library does with a circuit.

    Attributes:
        compile_s: seconds from the DAG to the end of the first training step: the library's own
            compiler, the machine code, and the step.
        forward, both, step: times of log-likelihoods, of these with flows, and of an EM step.
        memory: bytes that a training step needs, parameters included.
        lls: log-likelihoods of the batch under the given parameters, float64.
    """

    compile_s: float
    forward: Times
    both: Times
    step: Times
    memory: int
    lls: np.ndarray


def measure(
    pc: juice.Circuit, params: Any, x: np.ndarray, rounds: int, program_s: float
) -> Measured:
    """Compiles and times a circuit on the default device; `params` are left as they are.

    Args:
        program_s: seconds that `juice.compile` took.
    """
    data = jnp.asarray(x)
    tx = juice.optim.mini_batch_em(pc, step_size=STEP_SIZE, pseudocount=PSEUDOCOUNT)

    def train(params, state, x):
        lls, flows = pc.log_likelihood_and_flows(params, x, validate=False)
        updates, state = tx.update(flows, state, params)
        return optax.apply_updates(params, updates), state, lls.mean()

    state = (jax.tree.map(jnp.copy, params), tx.init(params))
    jax.block_until_ready((state, data))
    begin = time.perf_counter()
    options = juice.compiler_options()
    step = jax.jit(train, donate_argnums=(0, 1), compiler_options=options)
    step = step.lower(*state, data).compile()
    state = jax.block_until_ready(step(*state, data))[:2]
    compile_s = program_s + time.perf_counter() - begin
    about = step.memory_analysis()
    memory = (
        about.argument_size_in_bytes
        + about.output_size_in_bytes
        + about.temp_size_in_bytes
        - about.alias_size_in_bytes
    )
    forward = jax.jit(partial(pc.log_likelihood, validate=False), compiler_options=options)
    both = jax.jit(partial(pc.log_likelihood_and_flows, validate=False), compiler_options=options)

    def advance() -> Any:
        nonlocal state
        *state, ll = step(*state, data)
        return ll

    times = [
        time_calls(action, jax.block_until_ready, rounds)
        for action in (lambda: forward(params, data), lambda: both(params, data), advance)
    ]
    lls = np.asarray(forward(params, data), np.float64)
    return Measured(compile_s, *times, memory, lls)


def time_calls(
    action: Callable[[], Any], wait: Callable[[Any], object], rounds: int, repeats: int = 3
) -> Times:
    """Times an action alone and queued, warm.

    Args:
        action: hands its work to the GPU.
        wait: until the GPU has done what returned its argument, and all before.
        rounds: calls alone, and calls in each queue.
        repeats: queues; the median counts.
    """
    for _ in range(2):
        wait(action())
    alone = Timing.of([clock(lambda: wait(action())) for _ in range(rounds)])

    def queue() -> None:
        for _ in range(rounds - 1):
            action()
        wait(action())

    return Times(alone, Timing.of([clock(queue) for _ in range(repeats)]).median / rounds)
