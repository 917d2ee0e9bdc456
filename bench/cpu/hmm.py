"""Hidden Markov models: log-likelihood and EM step beside hmmlearn and dynamax."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import jax

import jaxjuice as juice
from bench._rows import Row
from bench.cpu import _dynamax, _hmmlearn
from bench.cpu._contest import Contender, Settings, contest
from bench.cpu._hmm_problem import HMMProblem, random_problem
from bench.cpu._jaxjuice import contender

NAME = "hmm"
ROWS, SYMBOLS = 64, 32
# Hidden states, length of a sequence.
SIZES = ((16, 100), (16, 1000), (64, 100), (64, 1000))
QUICK_SIZES = ((4, 10),)
# Nats a symbol: float32 rounding, summed along a sequence.
TOLERANCE = 1e-5


def run(settings: Settings) -> Iterator[Row]:
    """Measures all sizes."""
    for latents, length in QUICK_SIZES if settings.quick else SIZES:
        problem = random_problem(latents, length, ROWS, SYMBOLS)
        yield from contest(
            NAME,
            f"{latents} latents, {ROWS} sequences of {length}",
            {
                "jaxjuice": partial(_build, problem),
                "dynamax": partial(_dynamax.build, problem),
                "hmmlearn": partial(_hmmlearn.build, problem),
            },
            dict.fromkeys(("log-likelihood", "EM step"), TOLERANCE * length),
            settings,
        )


def _build(problem: HMMProblem) -> Contender:
    latents, symbols = problem.emission.shape
    root = juice.structures.HMM(
        problem.x.shape[1],
        latents,
        symbols,
        alpha=problem.transition,
        beta=problem.emission,
        gamma=problem.initial,
    )
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    return contender(pc, params, problem.x, juice.optim.full_batch_em(pc))
