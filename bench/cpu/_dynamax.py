"""dynamax's CategoricalHMM: JAX, float32."""

from __future__ import annotations

from functools import partial

import numpy as np

from bench.cpu._contest import Contender, Task
from bench.cpu._hmm_problem import HMMProblem


def build(problem: HMMProblem) -> Contender:
    """Hands the problem over, with flat priors, so that its M-step is the plain one.

    Its `fit_em` compiles anew in each call; the step here is the same made of its public parts,
    compiled once.
    """
    import jax
    import jax.numpy as jnp
    from dynamax.hidden_markov_model import CategoricalHMM

    num_latents, num_symbols = problem.emission.shape
    hmm = CategoricalHMM(
        num_latents,
        emission_dim=1,
        num_classes=num_symbols,
        initial_probs_concentration=1.0,
        transition_matrix_concentration=1.0,
        emission_prior_concentration=1.0,
    )
    params, props = hmm.initialize(
        initial_probs=jnp.asarray(problem.initial, jnp.float32),
        transition_matrix=jnp.asarray(problem.transition, jnp.float32),
        emission_probs=jnp.asarray(problem.emission[:, None], jnp.float32),
    )
    m_step_state = hmm.initialize_m_step_state(params, props)
    x = jnp.asarray(problem.x[:, :, None])
    log_likelihood = jax.jit(jax.vmap(hmm.marginal_log_prob, (None, 0)))

    @jax.jit
    def em_step(params, x):
        statistics, lls = jax.vmap(partial(hmm.e_step, params))(x)
        new_params, _ = hmm.m_step(params, props, statistics, m_step_state)
        return new_params, lls.mean()

    latest = params

    def run_em_step() -> None:
        nonlocal latest
        latest = jax.block_until_ready(em_step(params, x))[0]

    tasks = {
        "log-likelihood": Task(
            lambda: log_likelihood(params, x).block_until_ready(),
            lambda: np.asarray(log_likelihood(params, x), np.float64),
        ),
        "EM step": Task(run_em_step, lambda: np.asarray(log_likelihood(latest, x), np.float64)),
    }
    return Contender(tasks)
