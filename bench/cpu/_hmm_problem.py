"""The problem of the HMM contest."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class HMMProblem:
    """Parameters and data of a hidden Markov model with categorical emissions.

    Attributes:
        initial: `[latents]`, float64.
        transition: `[latents, latents]`, the row for the state before.
        emission: `[latents, symbols]`.
        x: `[rows, length]`, int32.
    """

    initial: np.ndarray
    transition: np.ndarray
    emission: np.ndarray
    x: np.ndarray


def random_problem(latents: int, length: int, rows: int, symbols: int, seed: int = 0) -> HMMProblem:
    """Parameters uniform on their simplices, and uniform symbols."""
    rng = np.random.default_rng(seed)
    return HMMProblem(
        initial=rng.dirichlet(np.ones(latents)),
        transition=rng.dirichlet(np.ones(latents), latents),
        emission=rng.dirichlet(np.ones(symbols), latents),
        x=rng.integers(symbols, size=(rows, length), dtype=np.int32),
    )
