"""Poisson and Binomial: large counts in float32, zero probabilities, priors."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from leaf_cases import jitted
from scipy import stats

from jaxjuice.distributions import Bernoulli, Binomial, LeafGroup, Poisson
from jaxjuice.distributions._counts import deviance, log_factorial_rest


def test_log_factorial_rest():
    with jax.enable_x64(True):
        x = np.concatenate([np.arange(40), [1e3, 1e6, 1e9]])
        found = np.asarray(log_factorial_rest(jnp.asarray(x, jnp.float64)))
        exact = [math.log(math.factorial(n)) - n * math.log(max(n, 1)) + n for n in range(40)]
        np.testing.assert_allclose(found[:40], exact, atol=5e-14)
        np.testing.assert_allclose(found[40:], 0.5 * np.log(2 * np.pi * x[40:]), atol=1e-4)


def test_deviance_at_its_ends():
    x = jnp.asarray([0.0, 0.0, 2.0, 2.0, 3.0])
    mean = jnp.asarray([0.0, 1.5, 0.0, 2.0, 1.0])
    found, pull_back = jax.vjp(deviance, x, mean)
    np.testing.assert_allclose(found, [0, 1.5, np.inf, 0, 3 * np.log(3) - 2], atol=1e-6)
    gradient = pull_back(jnp.asarray([1.0, 1.0, 0.0, 1.0, 1.0]))
    np.testing.assert_allclose(gradient[1], [1, 1, 0, 0, -2], atol=1e-6)
    np.testing.assert_array_equal(gradient[0], 0)


@pytest.mark.parametrize("rate", [1e-6, 0.3, 20.0, 1e4, 1e6])
def test_poisson_keeps_float32_digits(rate):
    # x log(rate) - rate - log x! has terms up to 1e7 here, so an error of 1.
    x = np.unique(np.rint([0, 1, rate, rate + np.sqrt(rate), rate + 5 * np.sqrt(rate), 2 * rate]))
    leaf = LeafGroup({"rate": jnp.full((1, 1), rate)}, {}, None)
    found = jitted(Poisson(), "log_prob")(leaf, jnp.asarray(x[None], jnp.float32))[0, :, 0]
    expected = stats.poisson.logpmf(x, float(np.float32(rate)))
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-5 + 6e-7 * np.sqrt(rate))


@pytest.mark.parametrize("num_trials", [10, 1000, 1_000_000])
def test_binomial_keeps_float32_digits(num_trials):
    prob = 0.3
    leaf = LeafGroup({"prob": jnp.full((1, 1), prob)}, {}, None)
    mean, deviation = num_trials * prob, np.sqrt(num_trials * prob * 0.7)
    x = np.rint([0, 1, mean, mean + 2 * deviation, mean - deviation, num_trials])
    found = jitted(Binomial(num_trials), "log_prob")(leaf, jnp.asarray(x[None], jnp.float32))
    expected = stats.binom.logpmf(x, num_trials, float(np.float32(prob)))
    np.testing.assert_allclose(np.asarray(found)[0, :, 0], expected, rtol=3e-6, atol=1e-3)


def test_certain_binomials():
    leaf = LeafGroup({"prob": jnp.asarray([[0.0, 1.0]])}, {}, None)
    found = np.asarray(jitted(Binomial(3), "log_prob")(leaf, jnp.asarray([[0, 1, 3]])))
    np.testing.assert_array_equal(found[0], [[0, -np.inf], [-np.inf, -np.inf], [-np.inf, 0]])
    nodes = jnp.asarray([[0, 1] * 50], jnp.int32)
    drawn = jitted(Binomial(3), "sample")(jax.random.key(0), leaf, nodes)
    np.testing.assert_array_equal(drawn, 3 * nodes)


def test_one_trial_is_bernoulli():
    leaf = LeafGroup({"prob": jnp.asarray([[0.2, 0.9]])}, {}, None)
    x, flows = jnp.asarray([[0, 1, 1]]), jnp.asarray([[[0.3, 1], [1, 0.2], [0.5, 0.1]]])
    both = []
    for dist in (Bernoulli(), Binomial(1)):
        found = jitted(dist, "statistics")(leaf, x, flows)
        step = jitted(dist, "m_step")(leaf, found, step_size=0.6, pseudocount=0.5)["prob"]
        counts = [found[name] for name in dist.stat_shapes()]
        both.append([jitted(dist, "log_prob")(leaf, x), *counts, step])
    for one, other in zip(*both, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6)


def test_rate_stops_at_its_floor():
    leaf = LeafGroup({"rate": jnp.asarray([[2.0]])}, {}, None)
    found = jitted(Poisson(), "statistics")(leaf, jnp.zeros((1, 5), jnp.int32), jnp.ones((1, 5, 1)))
    new = jitted(Poisson(), "m_step")(leaf, found, step_size=1.0, pseudocount=0.0)
    assert new["rate"][0, 0] == np.float32(1e-6)
    assert jitted(Poisson(), "log_prob")(LeafGroup(new, {}), jnp.asarray([[0]]))[0, 0, 0] <= 0


def test_without_a_rate_there_is_no_prior():
    leaf = LeafGroup({"rate": jnp.asarray([[2.0, 3.0]])}, {}, None)
    found = {"flow": jnp.asarray([[4.0, 0.0]]), "total": jnp.asarray([[10.0, 0.0]])}
    new = jitted(Poisson(), "m_step")(leaf, found, step_size=1.0, pseudocount=5.0)
    np.testing.assert_allclose(new["rate"], [[2.5, 3.0]])
    new = jitted(Poisson(rate=1.0), "m_step")(leaf, found, step_size=1.0, pseudocount=4.0)
    np.testing.assert_allclose(new["rate"], [[14 / 8, 1.0]])


def test_initial_rates_surround_the_family_rate():
    for dist, middle in ((Poisson(), 1.0), (Poisson(rate=40.0), 40.0)):
        rate = dist.init_params(jax.random.key(0), {}, 4, 500, 2.0, jnp.float32)["rate"]
        np.testing.assert_allclose(rate.min(), middle / np.e, rtol=0.02)
        np.testing.assert_allclose(rate.max(), middle * np.e, rtol=0.02)
