"""Discretized logistic leaves: the far tails, and what moment matching does."""

import decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from leaf_cases import jitted

from jaxjuice.distributions import DiscreteLogistic, LeafGroup


def one_leaf(mu, scale):
    return LeafGroup({"mu": jnp.asarray([[mu]]), "scale": jnp.asarray([[scale]])}, {}, None)


def exact_log_prob(dist, mu, scale, number):
    """The difference of distribution functions itself, in 400 digits."""
    with decimal.localcontext(prec=400):
        exact = decimal.Decimal
        low, high = (exact(bound) for bound in dist.val_range)
        width = (high - low) / dist.num_cats

        def below(bin_number):
            z = (low + bin_number * width - exact(float(mu))) / exact(float(scale))
            return 1 / (1 + (-z).exp())

        upper = exact(1) if number == dist.num_cats - 1 else below(number + 1)
        lower = exact(0) if number == 0 else below(number)
        return float((upper - lower).ln())


@pytest.mark.parametrize(
    ("mu", "scale"),
    [(0.1, 0.3), (0.0, 0.0056), (-0.999, 0.0056), (0.7, 100.0), (3.0, 0.0056), (-3.0, 0.0056)],
)
def test_every_bin_is_right_however_far(mu, scale):
    # In float32 the distribution functions of far bins are equal; log-probabilities reach -700.
    dist = DiscreteLogistic((-1.0, 1.0), 16)
    leaf = one_leaf(mu, scale)
    numbers = list(range(16))
    found = np.asarray(jitted(dist, "log_prob")(leaf, jnp.asarray([numbers])))[0, :, 0]
    mu, scale = leaf.params["mu"][0, 0], leaf.params["scale"][0, 0]
    expected = [exact_log_prob(dist, mu, scale, number) for number in numbers]
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)
    # One bin at a time there is no table to look up.
    alone = np.asarray(jitted(dist, "log_prob")(leaf, jnp.asarray([[3]])))[0, 0, 0]
    np.testing.assert_allclose(alone, expected[3], rtol=2e-6)


def test_far_tails_are_not_clipped():
    dist = DiscreteLogistic((0.0, 1.0), 100, min_std=1e-4)
    leaf = one_leaf(0.0, 1e-4)
    found = jitted(dist, "log_prob")(leaf, jnp.asarray([[99]]))[0, 0, 0]
    np.testing.assert_allclose(found, -9900, rtol=1e-5)  # PyJuice stops at -1000
    gradient = jax.grad(
        lambda p: jitted(dist, "log_prob")(LeafGroup(p, {}), jnp.asarray([[99]]))[0, 0, 0]
    )(leaf.params)
    np.testing.assert_allclose(gradient["mu"][0, 0], 1e4, rtol=1e-5)
    np.testing.assert_allclose(gradient["scale"][0, 0], 9900 / 1e-4, rtol=1e-5)


def test_one_bin_is_certain():
    dist = DiscreteLogistic((0.0, 2.0), 1)
    leaf = one_leaf(5.0, 0.3)
    np.testing.assert_array_equal(jitted(dist, "log_prob")(leaf, jnp.zeros((1, 3), jnp.int32)), 0)
    assert (
        jitted(dist, "sample")(jax.random.key(0), leaf, jnp.zeros((1, 3), jnp.int32)) == 0
    ).all()


def test_expected_statistics_are_near_those_of_the_bins():
    # Apart from the ends, binning adds width^2 / 12 to the variance and nothing to the mean.
    with jax.enable_x64(True):
        dist = DiscreteLogistic((-20.0, 20.0), 80)
        leaf = one_leaf(0.4, 1.0)
        log_probs = jitted(dist, "log_prob")(leaf, jnp.arange(80)[None])[0, :, 0]
        probs = np.exp(np.asarray(log_probs))
        middles = -20 + 0.5 * (np.arange(80) + 0.5)
        expected = dist.expected_statistics(leaf)
        np.testing.assert_allclose(expected["first"][0, 0], probs @ middles, atol=1e-6)
        second = probs @ middles**2 - 0.5**2 / 12
        np.testing.assert_allclose(expected["second"][0, 0], second, rtol=1e-5)
        assert expected["flow"][0, 0] == 1


def test_m_step_recovers_the_parameters_of_samples():
    dist = DiscreteLogistic((-10.0, 10.0), 200)
    truth, start = one_leaf(1.5, 0.8), one_leaf(-4.0, 3.0)
    nodes = jnp.zeros((1, 50_000), jnp.int32)
    x = jitted(dist, "sample")(jax.random.key(0), truth, nodes)
    found = jitted(dist, "statistics")(start, x, jnp.ones((1, 50_000, 1)))
    new = jitted(dist, "m_step")(start, found, step_size=1.0, pseudocount=0.0)
    np.testing.assert_allclose(new["mu"][0, 0], 1.5, atol=0.03)
    np.testing.assert_allclose(new["scale"][0, 0], 0.8, rtol=0.03)


def test_scale_stops_at_its_floor():
    dist = DiscreteLogistic((0.0, 256.0), 256, min_std=2.0)
    leaf = one_leaf(100.0, 10.0)
    found = jitted(dist, "statistics")(leaf, jnp.full((1, 8), 7), jnp.ones((1, 8, 1)))
    new = jitted(dist, "m_step")(leaf, found, step_size=1.0, pseudocount=0.0)
    np.testing.assert_allclose(new["mu"][0, 0], 7.5, rtol=1e-6)
    np.testing.assert_allclose(new["scale"][0, 0], 2.0 * np.sqrt(3) / np.pi, rtol=1e-6)


def test_modes_at_the_ends():
    dist = DiscreteLogistic((0.0, 1.0), 10)
    leaf = LeafGroup(
        {
            "mu": jnp.asarray([[-1.0, 2.0, 0.55, 0.1, 0.999]]),
            "scale": jnp.asarray([[0.1, 0.1, 0.01, 5.0, 5.0]]),
        },
        {},
        None,
    )
    modes = jitted(dist, "mode")(leaf, jnp.arange(5, dtype=jnp.int32)[None])
    np.testing.assert_array_equal(modes, [[0, 9, 5, 0, 9]])
    table = jitted(dist, "log_prob")(leaf, jnp.arange(10)[None])
    np.testing.assert_array_equal(np.argmax(table, axis=1), modes)


def test_initial_parameters_cover_the_range():
    dist = DiscreteLogistic((0.0, 8.0), 4)
    drawn = dist.init_params(jax.random.key(0), {}, 4, 500, 2.0, jnp.float32)
    np.testing.assert_allclose(drawn["mu"].mean(), 4, atol=0.2)
    np.testing.assert_allclose(drawn["mu"].std(), 2, atol=0.1)
    largest = 2.0 * np.sqrt(3) / np.pi
    assert 0.9 * largest < drawn["scale"].min() < drawn["scale"].max() <= largest
