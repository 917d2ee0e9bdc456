"""hmmlearn's CategoricalHMM: numpy and C++, float64, one thread."""

from __future__ import annotations

import numpy as np

from bench.cpu._contest import Contender, Task
from bench.cpu._hmm_problem import HMMProblem


def build(problem: HMMProblem) -> Contender:
    """Hands the problem over. Of its two implementations takes "scaling", the faster one."""
    from hmmlearn.hmm import CategoricalHMM

    num_latents, num_symbols = problem.emission.shape
    model = CategoricalHMM(
        num_latents,
        n_features=num_symbols,
        implementation="scaling",
        init_params="",
        n_iter=1,
    )
    rows, length = problem.x.shape
    symbols, lengths = problem.x.reshape(-1, 1), np.full(rows, length)

    def reset() -> None:
        model.startprob_ = problem.initial.copy()
        model.transmat_ = problem.transition.copy()
        model.emissionprob_ = problem.emission.copy()

    def outcome() -> np.ndarray:
        return np.array([model.score(row.reshape(-1, 1)) for row in problem.x])

    reset()
    tasks = {
        "log-likelihood": Task(lambda: model.score(symbols, lengths), outcome, reset),
        "EM step": Task(lambda: model.fit(symbols, lengths), outcome, reset),
    }
    return Contender(tasks)
