"""An HCLT and a RAT-SPN on MNIST digits: training steps beside libcirkit and SPFlow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

import jaxjuice as juice
from bench._rows import Row
from bench.cpu import _libcirkit, _spflow
from bench.cpu._contest import Settings, contest
from bench.cpu._jaxjuice import circuit_tasks
from jaxjuice.data import digits, mnist5k
from jaxjuice.nodes import CircuitNodes

NAME = "circuits"
BATCH = 100
LEARNING_RATE = 0.01
# libcirkit clamps log-values at log(2.2e-308) = -708, and an untrained circuit is far below. So
# the contest starts from parameters fitted to its batch.
WARM_STEPS, WARM_PSEUDOCOUNT = 12, 0.1
# Nats a variable: float32 rounding. SPFlow's EM adds 1e-12 to flows and 1e-10 to probabilities, and
# Adam divides gradients by their size, rounding errors and all.
TOLERANCES = {"log-likelihood": 1e-5, "EM step": 1e-4, "Adam step": 1e-4}


def run(settings: Settings) -> Iterator[Row]:
    """Measures both structures."""
    data = digits() if settings.quick else mnist5k()
    train, _ = data.split(0.2, seed=0)
    latents, num_cats = (4, 17) if settings.quick else (32, 256)
    leaves = juice.distributions.Categorical(num_cats=num_cats)
    hclt = juice.structures.HCLT(train.values, latents, input_dist=leaves)
    yield from _contest(f"HCLT, {latents} latents, batch {BATCH}", hclt, train.values, settings)
    depth, repetitions = (2, 2) if settings.quick else (5, 8)
    num_vars = train.values.shape[1]
    rat_spn = juice.structures.RAT_SPN(num_vars, latents, depth, repetitions, input_dist=leaves)
    case = f"RAT-SPN, {latents} latents, depth {depth}, {repetitions} repetitions, batch {BATCH}"
    yield from _contest(case, rat_spn, train.values, settings)


def _contest(case: str, root: CircuitNodes, rows: np.ndarray, settings: Settings) -> Iterator[Row]:
    x = rows[:BATCH].astype("int32")
    handed_over = juice.compile(root)
    params = _fitted(handed_over, x)

    def build():
        # Compiled anew, for the time that it takes; equal DAGs compile to equal parameters.
        pc = juice.compile(root)
        return circuit_tasks(pc, params, x, juice.optim.full_batch_em(pc), LEARNING_RATE)

    yield from contest(
        NAME,
        case,
        {
            "jaxjuice": build,
            "libcirkit": partial(
                _libcirkit.build,
                handed_over,
                params,
                x,
                step_size=1.0,
                pseudocount=0.0,
                learning_rate=LEARNING_RATE,
            ),
            "spflow": partial(_spflow.build, handed_over, params, x, LEARNING_RATE),
        },
        {task: tolerance * x.shape[1] for task, tolerance in TOLERANCES.items()},
        settings,
    )


def _fitted(pc: juice.Circuit, x: np.ndarray) -> Any:
    tx = juice.optim.full_batch_em(pc, pseudocount=WARM_PSEUDOCOUNT)
    params = pc.init(jax.random.key(0))
    return juice.fit(pc, params, x, tx, epochs=WARM_STEPS, batch_size=None, progress=False).params
