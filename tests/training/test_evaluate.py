"""`juice.evaluate`, and the sums that it keeps."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_circuits import categorical_data, gaussian_mixture, initial, mixture

import jaxjuice as juice
from jaxjuice.training import _steps


@pytest.mark.parametrize("batch_size", [7, 100, 1000, None])
def test_equals_the_mean_of_all_rows(batch_size):
    _, pc = mixture()
    params, x = initial(pc), categorical_data()
    lls = np.asarray(pc.log_likelihood(params, x), np.float64)
    got = juice.evaluate(pc, params, x, batch_size=batch_size)
    np.testing.assert_allclose(got.log_likelihood, lls.mean(), rtol=1e-6)
    np.testing.assert_allclose(got.bits_per_dimension, -lls.mean() / 3 / math.log(2), rtol=1e-6)
    assert got.num_impossible == 0


def test_weights_and_missing_values():
    _, pc = mixture()
    rng = np.random.default_rng(0)
    params, x = initial(pc), categorical_data()
    weights, mask = rng.random(100), rng.random(x.shape) < 0.4
    lls = np.asarray(pc.log_likelihood(params, x, mask), np.float64)
    got = juice.evaluate(pc, params, x, batch_size=32, weights=weights, missing_mask=mask)
    np.testing.assert_allclose(got.log_likelihood, (lls * weights).sum() / weights.sum(), rtol=1e-5)
    num_values = ((~mask).sum(1) * weights).sum()
    bits = -(lls * weights).sum() / num_values / math.log(2)
    np.testing.assert_allclose(got.bits_per_dimension, bits, rtol=1e-5)


def test_streams_and_continuous_data():
    _, pc = gaussian_mixture()
    params, x = initial(pc), np.random.default_rng(0).normal(size=(50, 2))
    got = juice.evaluate(pc, params, [x[:20], x[20:40], x[40:]], batch_size=20)
    wanted = float(pc.log_likelihood(params, x).mean())
    np.testing.assert_allclose(got.log_likelihood, wanted, rtol=1e-5)
    assert got.bits_per_dimension is None


def test_all_rows_impossible():
    _, pc = mixture()
    params = initial(pc)
    params = {**params, "inputs": jax.tree.map(jnp.zeros_like, params["inputs"])}
    got = juice.evaluate(pc, params, categorical_data())
    assert got.log_likelihood == -math.inf
    assert got.num_impossible == 100


def test_many_float32_terms_add_up_exactly():
    terms = np.random.default_rng(0).uniform(-800, -600, 20_000).astype(np.float32)

    @jax.jit
    def total(terms):
        start = (jnp.zeros(()), jnp.zeros(()))
        return jax.lax.scan(lambda pair, term: (_steps._add(pair, term), None), start, terms)[0]

    got = _steps.pair_value(total(terms))
    np.testing.assert_allclose(got, terms.astype(np.float64).sum(), rtol=1e-12)


def test_columns_without_a_leaf_are_no_dimensions():
    coin = juice.distributions.Bernoulli()
    leaves = [juice.inputs(v, num_nodes=2, dist=coin) for v in (0, 4)]
    pc = juice.compile(juice.summate(juice.multiply(*leaves), num_nodes=1))
    params = pc.init(jax.random.key(0))
    rows = [[0, 7, 7, 7, 1], [1, 7, 7, 7, 1]]  # plain lists are rows, not batches
    got = juice.evaluate(pc, params, rows)
    wanted = -float(pc.log_likelihood(params, rows).mean()) / 2 / math.log(2)
    np.testing.assert_allclose(got.bits_per_dimension, wanted, rtol=1e-6)
    mask = np.array([[False] * 5, [False, True, True, True, True]])
    lls = pc.log_likelihood(params, rows, mask)
    got = juice.evaluate(pc, params, rows, missing_mask=mask)
    np.testing.assert_allclose(
        got.bits_per_dimension, -float(lls.sum()) / 3 / math.log(2), rtol=1e-6
    )


def test_a_circuit_without_parameters():
    leaves = [juice.inputs(v, num_nodes=1, dist=juice.distributions.Literal(v)) for v in (0, 1)]
    pc = juice.compile(juice.multiply(*leaves))
    params = pc.init(jax.random.key(0))
    got = juice.evaluate(pc, params, np.array([[0, 1], [1, 1]]))
    assert got.log_likelihood == 0 and got.num_impossible == 1
