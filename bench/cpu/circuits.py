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
from bench.cpu._contest import Builder, Contender, Settings, contest
from bench.cpu._jaxjuice import contender
from jaxjuice.data import digits, mnist5k
from jaxjuice.nodes import CircuitNodes

NAME = "circuits"
BATCH, TREE_ROWS = 100, 1000
# libcirkit clamps log-values at log(2.2e-308) = -708, and an untrained circuit is far below. So
# the contest starts from parameters fitted to its batch.
FITTING_STEPS, FITTING_PSEUDOCOUNT = 12, 0.1
# libcirkit divides 0 by 0 at a node without flow. SPFlow knows no pseudocount; this one is too
# small to matter.
PSEUDOCOUNT = 1e-6
LEARNING_RATE = 0.01
# Nats a variable. The first is float32 rounding; SPFlow's EM also adds 1e-12 to flows and 1e-10 to
# probabilities, and Adam divides gradients by their size, rounding errors and all.
TOLERANCES = {"log-likelihood": 1e-5, "EM step": 1e-4, "Adam step": 1e-4}


def run(settings: Settings) -> Iterator[Row]:
    """Measures both structures."""
    data = digits() if settings.quick else mnist5k()
    train, _ = data.split(0.2, seed=0)
    latents, num_cats = (4, 17) if settings.quick else (32, 256)
    leaves = juice.distributions.Categorical(num_cats=num_cats)
    x = train.values[:BATCH].astype(np.int32)

    hclt = juice.structures.HCLT(train.values[:TREE_ROWS], latents, input_dist=leaves)
    case = f"HCLT, {latents} latents, batch {BATCH}"
    yield from _contest(case, hclt, x, settings, with_spflow=True)

    depth, repetitions = (2, 2) if settings.quick else (5, 8)
    rat_spn = juice.structures.RAT_SPN(x.shape[1], latents, depth, repetitions, input_dist=leaves)
    case = f"RAT-SPN, {latents} latents, depth {depth}, {repetitions} repetitions, batch {BATCH}"
    # SPFlow's own RAT-SPN shares no leaves between repetitions, and node by node, as an HCLT is
    # built there too, is not how it means a RAT-SPN to be written.
    yield from _contest(case, rat_spn, x, settings, with_spflow=False)


def _contest(
    case: str, root: CircuitNodes, x: np.ndarray, settings: Settings, *, with_spflow: bool
) -> Iterator[Row]:
    pc = juice.compile(root)
    params = _fitted(pc, x)

    def build() -> Contender:
        # Compiled anew, for the time that it takes; equal DAGs compile to equal parameters.
        fresh = juice.compile(root)
        em = juice.optim.full_batch_em(fresh, pseudocount=PSEUDOCOUNT)
        return contender(fresh, params, x, em, LEARNING_RATE)

    peers: dict[str, Builder] = {
        "libcirkit": partial(_libcirkit.build, pc, params, x, PSEUDOCOUNT, LEARNING_RATE)
    }
    if with_spflow:
        peers["spflow"] = partial(_spflow.build, pc, params, x, LEARNING_RATE)
    tolerances = {task: tolerance * x.shape[1] for task, tolerance in TOLERANCES.items()}
    yield from contest(NAME, case, {"jaxjuice": build, **peers}, tolerances, settings)


def _fitted(pc: juice.Circuit, x: np.ndarray) -> Any:
    """Parameters after some EM steps on the batch."""
    tx = juice.optim.full_batch_em(pc, pseudocount=FITTING_PSEUDOCOUNT)
    params = pc.init(jax.random.key(0))
    fit = juice.fit(pc, params, x, tx, epochs=FITTING_STEPS, batch_size=None, progress=False)
    return fit.params
