"""Gaussian leaves at the ends of float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from leaf_cases import jitted
from scipy import stats

from jaxjuice.distributions import Gaussian, LeafGroup


def one_leaf(mu, sigma, center=0.0):
    params = {"mu": jnp.asarray([[mu]]), "sigma": jnp.asarray([[sigma]])}
    return LeafGroup(params, {"center": jnp.asarray([[center]])}, None)


@pytest.mark.parametrize("x", [0.0, 1e-3, 50.0, 1e6, -1e15, 4e18])
def test_tails_are_finite_and_right(x):
    leaf = one_leaf(0.0, 0.01) if abs(x) < 1e16 else one_leaf(0.0, 1.0)
    log_prob = jitted(Gaussian(), "log_prob")(leaf, jnp.asarray([[x]]))[0, 0, 0]
    sigma = float(leaf.params["sigma"][0, 0])
    np.testing.assert_allclose(log_prob, stats.norm.logpdf(x, 0, sigma), rtol=1e-6)
    assert np.isfinite(log_prob)


def test_overflow_is_minus_infinity_without_nan_gradients():
    leaf = one_leaf(0.0, 0.01)
    x = jnp.asarray([[4e18, 0.01]])

    def log_prob(params, x):
        return jitted(Gaussian(), "log_prob")(LeafGroup(params, leaf.constants), x)

    found, pull_back = jax.vjp(log_prob, leaf.params, x)
    assert found[0, 0, 0] == -np.inf
    for cotangent in (0.0, 1.0):
        gradients = pull_back(jnp.asarray([[[cotangent], [0.0]]]))
        for array in jax.tree.leaves(gradients):
            np.testing.assert_array_equal(array, 0)


def test_gradient_in_x():
    leaf = one_leaf(1.0, 2.0)
    x = jnp.asarray([[0.0, 3.0, np.nan]])

    def objective(x):
        log_probs = jitted(Gaussian(), "log_prob")(leaf, x)
        return jnp.sum(jnp.where(jnp.isnan(log_probs), 0.0, log_probs))

    np.testing.assert_allclose(jax.grad(objective)(x), [[0.25, -0.5, 0.0]], rtol=1e-6)


@pytest.mark.parametrize("mean", [1e3, -1e4, 1e5])
def test_variance_far_from_zero_survives_with_a_center(mean):
    # In float32, E[x^2] - E[x]^2 has no digit left here.
    rng = np.random.default_rng(0)
    x = (mean + rng.normal(size=(1, 4096))).astype(np.float32)
    leaf = one_leaf(np.float32(mean) + 3, 2.0, np.float32(mean) - 2)
    found = jitted(Gaussian(), "statistics")(leaf, jnp.asarray(x), jnp.ones((1, 4096, 1)))
    new = jitted(Gaussian(), "m_step")(leaf, found, step_size=1.0, pseudocount=0.0)
    np.testing.assert_allclose(new["mu"][0, 0], x.astype(np.float64).mean(), rtol=3e-7)
    np.testing.assert_allclose(new["sigma"][0, 0], x.astype(np.float64).std(), rtol=2e-5)


def test_small_steps_far_apart_do_not_cancel():
    # Old and new means a thousand new sigmas apart, and a tiny step: the law of total variance.
    leaf = one_leaf(1000.0, 1.0)
    found = {n: jnp.asarray([[v]]) for n, v in {"flow": 1.0, "first": 0.0, "second": 1.0}.items()}
    step = 1e-6
    new = jitted(Gaussian(), "m_step")(leaf, found, step_size=step, pseudocount=0.0)
    np.testing.assert_allclose(new["mu"][0, 0], 1000 - 1000 * step, rtol=1e-6)
    np.testing.assert_allclose(new["sigma"][0, 0] ** 2, 1 + step * (1 - step) * 1e6, rtol=1e-5)


def test_statistics_of_moving_parameters_average():
    # What momentum does: statistics of two steps, taken under different parameters.
    rng = np.random.default_rng(0)
    one, two = rng.normal(3, 1, (1, 200)), rng.normal(5, 1, (1, 200))
    dist, flows = Gaussian(), jnp.ones((1, 200, 1))
    first = jitted(dist, "statistics")(one_leaf(-7.0, 1.0), jnp.asarray(one, jnp.float32), flows)
    second = jitted(dist, "statistics")(one_leaf(90.0, 4.0), jnp.asarray(two, jnp.float32), flows)
    mixed = jax.tree.map(lambda a, b: 0.25 * a + 0.75 * b, first, second)
    new = jitted(dist, "m_step")(one_leaf(90.0, 4.0), mixed, step_size=1.0, pseudocount=0.0)
    mean = 0.25 * one.mean() + 0.75 * two.mean()
    square = 0.25 * (one**2).mean() + 0.75 * (two**2).mean()
    np.testing.assert_allclose(new["mu"][0, 0], mean, rtol=1e-5)
    np.testing.assert_allclose(new["sigma"][0, 0], np.sqrt(square - mean**2), rtol=1e-4)


def test_sigma_stops_at_its_floor():
    dist = Gaussian(min_sigma=0.5)
    leaf = one_leaf(0.0, 1.0)
    found = jitted(dist, "statistics")(leaf, jnp.full((1, 8), 2.0), jnp.ones((1, 8, 1)))
    new = jitted(dist, "m_step")(leaf, found, step_size=1.0, pseudocount=0.0)
    assert new["mu"][0, 0] == 2.0
    assert new["sigma"][0, 0] == 0.5
    raw = dist.to_unconstrained(new, leaf.constants)
    low = {**raw, "sigma": raw["sigma"] - 3}
    assert dist.from_unconstrained(low, leaf.constants)["sigma"][0, 0] == 0.5

    def sigma(raw_sigma):
        return jnp.sum(dist.from_unconstrained({**raw, "sigma": raw_sigma}, {})["sigma"])

    assert jax.grad(sigma)(low["sigma"])[0, 0] == 0.5  # alive: training may raise sigma again


def test_where_the_center_comes_from():
    def center(dist, constants=None, params=None):
        return dist.check_constants(2, constants or {}, params)["center"]

    np.testing.assert_array_equal(center(Gaussian()), [0, 0])
    np.testing.assert_array_equal(center(Gaussian(mu=3.0)), [3, 3])
    params = {"mu": np.array([1.0, 4.0]), "sigma": np.ones(2)}
    np.testing.assert_array_equal(center(Gaussian(mu=3.0), None, params), [2.5, 2.5])
    np.testing.assert_array_equal(center(Gaussian(), {"center": 7.0}, params), [7, 7])


def test_initial_means_spread_around_the_center():
    constants = {"center": jnp.full((4, 500), 40.0)}
    drawn = Gaussian().init_params(jax.random.key(0), constants, 4, 500, 2.0, jnp.float32)
    np.testing.assert_allclose(drawn["mu"].mean(), 40, atol=0.1)
    np.testing.assert_allclose(drawn["mu"].std(), 1, atol=0.05)
    assert 0.9 < drawn["sigma"].min() < drawn["sigma"].max() <= 1  # exp(-0.08 U)
    dist = Gaussian(mu=-3.0, sigma=2.0, min_sigma=1.95)
    drawn = dist.init_params(jax.random.key(0), constants, 4, 500, 2.0, jnp.float32)
    np.testing.assert_allclose(drawn["mu"].mean(), -3, atol=0.2)
    np.testing.assert_allclose(drawn["mu"].std(), 2, atol=0.1)
    np.testing.assert_allclose(drawn["sigma"].min(), 1.95, rtol=1e-6)
