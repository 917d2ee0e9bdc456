"""An HCLT trained on MNIST digits: seconds an epoch, and test bits per dimension."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import jax
import numpy as np
import optax

import jaxjuice as juice
from bench._rows import Row
from bench._timing import Timing
from bench.cpu._contest import Settings
from bench.cpu._dag import float64_log_likelihood
from jaxjuice.data import Dataset, digits, mnist5k

NAME = "mnist"
# Found by a search on 3500 of the training rows, validated on the other 500; see results/README.md.
EPOCHS, BATCH = 20, 100
FIRST_STEP_SIZE, LAST_STEP_SIZE = 1.0, 0.02
PSEUDOCOUNT = 0.1
CHECKED_ROWS = 20
# Nats a variable, as in the contests.
TOLERANCE = 1e-5


def run(settings: Settings) -> Iterator[Row]:
    """Trains once, and evaluates the test rows once, at the end."""
    data = digits() if settings.quick else mnist5k()
    train, test = data.split(0.2, seed=0)
    latents, num_cats, epochs = (4, 17, 3) if settings.quick else (32, 256, EPOCHS)
    begin = time.perf_counter()
    root = juice.structures.HCLT(
        train.values, latents, input_dist=juice.distributions.Categorical(num_cats=num_cats)
    )
    tree_s = time.perf_counter() - begin
    begin = time.perf_counter()
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    build_s = time.perf_counter() - begin
    steps = epochs * math.ceil(train.num_rows / BATCH)
    tx = juice.optim.mini_batch_em(
        pc,
        step_size=optax.linear_schedule(FIRST_STEP_SIZE, LAST_STEP_SIZE, steps),
        pseudocount=PSEUDOCOUNT,
    )
    fit = juice.fit(pc, params, train.values, tx, epochs=epochs, batch_size=BATCH, progress=False)
    parity, tolerance = _check(pc, fit.params, test)
    evaluation = juice.evaluate(pc, fit.params, test.values)
    epoch_s = [record.seconds for record in fit.history]
    yield Row(
        NAME,
        f"HCLT, {latents} latents, {train.num_rows} rows, {epochs} epochs of batches of {BATCH}",
        "epoch",
        "jaxjuice",
        build_s=build_s,
        first_s=epoch_s[0],
        timing=Timing.of(epoch_s[1:]),
        parity=parity,
        tolerance=tolerance,
        figures={
            "test bits per dimension": round(evaluation.bits_per_dimension, 4),
            "impossible test rows": evaluation.num_impossible,
            "train bits per dimension, last epoch": round(
                fit.history[-1].train_bits_per_dimension, 4
            ),
            "seconds for the Chow-Liu tree": round(tree_s, 2),
            "seconds for all epochs": round(sum(epoch_s), 1),
            "parameters": pc.num_parameters,
        },
    )


def _check(pc: juice.Circuit, params: dict, test: Dataset) -> tuple[float, float]:
    """Asserts that some test rows have the log-likelihoods that the definition gives in float64."""
    rows = test.values[:CHECKED_ROWS]
    ours = np.asarray(pc.log_likelihood(params, rows), np.float64)
    parity = float(np.abs(ours - float64_log_likelihood(pc, params, rows)).max())
    tolerance = TOLERANCE * rows.shape[1]
    if not parity <= tolerance:
        raise RuntimeError(f"Log-likelihoods are off by {parity:.2g} nats.")
    return parity, tolerance
