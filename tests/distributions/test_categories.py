"""Tables over categories: both ways to look up, both ways to count, draws, the M-step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxjuice.distributions import Categorical, LeafGroup, _categories as categories


def make_probs(num_params, num_cats, num_nodes, seed=0):
    probs = np.random.default_rng(seed).dirichlet(np.ones(num_cats), (num_params, num_nodes))
    return jnp.asarray(probs.transpose(0, 2, 1), jnp.float32)


@pytest.mark.parametrize("num_nodes", [1, 4, 17])
@pytest.mark.parametrize("num_cats", [1, 2, 8, 9])
@pytest.mark.parametrize("tied", [False, True])
def test_counts_of_both_ways(num_nodes, num_cats, tied):
    # One-hot products up to min(8, K / 2) categories, scattered rows above.
    rng = np.random.default_rng(0)
    ids = np.array([1, 0, 1, 1]) if tied else np.arange(4)
    num_params = 2 if tied else 4
    category = rng.integers(0, num_cats, (4, 9))
    legal = rng.uniform(size=(4, 9)) < 0.8
    flows = rng.uniform(size=(4, 9, num_nodes)).astype(np.float32)
    leaf = LeafGroup(
        {"probs": make_probs(num_params, num_cats, num_nodes)},
        {},
        jnp.asarray(ids, jnp.int32) if tied else None,
    )
    count = jax.jit(categories.count_rows, static_argnums=1)
    found = count(leaf, num_cats, jnp.asarray(category), jnp.asarray(legal), jnp.asarray(flows))
    expected = np.zeros((num_params, num_cats, num_nodes))
    for v, b in np.ndindex(4, 9):
        expected[ids[v], category[v, b]] += legal[v, b] * flows[v, b]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("batch", [1, 50])
def test_gradient_of_a_lookup_counts(batch):
    # With few observations the rows' logarithms are taken, with many the table's.
    leaf = LeafGroup({"probs": make_probs(2, 5, 3)}, {}, jnp.asarray([1, 1, 0], jnp.int32))
    assert categories.table_pays(leaf, 5, jnp.zeros((3, batch))) == (batch == 50)
    x = jnp.asarray(np.random.default_rng(0).integers(0, 5, (3, batch)))
    flows = jnp.asarray(np.random.default_rng(1).uniform(size=(3, batch, 3)), jnp.float32)

    def objective(params):
        return jnp.sum(flows * Categorical(5).log_prob(LeafGroup(params, {}, leaf.param_ids), x))

    gradient = jax.jit(jax.grad(objective))(leaf.params)["probs"]
    counts = Categorical(5).statistics(leaf, x, flows)["counts"]
    np.testing.assert_allclose(leaf.params["probs"] * gradient, counts, rtol=1e-5, atol=1e-6)


def test_opposite_cotangents_of_a_zero_probability_cancel():
    leaf = LeafGroup({"probs": jnp.asarray([[[0.0], [1.0]]])}, {}, None)
    x = jnp.zeros((1, 4), jnp.int32)
    _, pull_back = jax.vjp(lambda p: Categorical(2).log_prob(LeafGroup(p, {}), x), leaf.params)
    cotangent = jnp.asarray([[[1.0], [-1.0], [0.0], [0.0]]])
    np.testing.assert_array_equal(pull_back(cotangent)[0]["probs"], 0)


def test_second_derivatives():
    probs = jnp.asarray([[[0.25], [0.75]]])
    x = jnp.asarray([[0, 1, 1]])

    def objective(probs):
        return jnp.sum(Categorical(2).log_prob(LeafGroup({"probs": probs}, {}), x))

    curvature = jax.jit(jax.grad(lambda p: jnp.sum(jax.grad(objective)(p))))(probs)
    np.testing.assert_allclose(curvature[0, :, 0], [-1 / 0.25**2, -2 / 0.75**2], rtol=1e-5)


@pytest.mark.parametrize("num_samples", [2, 4000])
def test_draws_avoid_zeros_at_both_ends_and_rounding(num_samples):
    # Probabilities whose float32 sum is off 1, between categories that must not come.
    probs = np.zeros((1, 1003, 1), np.float32)
    probs[0, 1:1001, 0] = np.float32(0.001)
    leaf = LeafGroup({"probs": jnp.asarray(probs)}, {}, None)
    nodes = jnp.zeros((1, num_samples), jnp.int32)
    keys = jax.random.split(jax.random.key(0), 8000 // num_samples)
    drawn = jax.jit(jax.vmap(lambda key: Categorical(1003).sample(key, leaf, nodes)))(keys)
    assert 1 <= drawn.min() <= 10
    assert 990 <= drawn.max() <= 1000


def test_bisection_finds_every_category():
    def find(sums, threshold):
        return categories._first_above(lambda category: sums[category], threshold, sums.size)

    for num_cats in (1, 2, 3, 5, 8, 9):
        sums = jnp.arange(1, num_cats + 1, dtype=jnp.float32)
        threshold = jnp.arange(num_cats, dtype=jnp.float32)[None]
        found = jax.jit(find)(sums, threshold)
        np.testing.assert_array_equal(found[0], np.arange(num_cats))


def test_large_tables_are_not_transposed_into_rows():
    # Sampling one image from wide leaves must not build [C, P, K] running sums, nor many images
    # from narrow ones [C, V, B].
    def largest(num_nodes, batch):
        probs = jax.ShapeDtypeStruct((6, 50, num_nodes), jnp.float32)
        nodes = jax.ShapeDtypeStruct((6, batch), jnp.int32)
        key = jax.eval_shape(lambda: jax.random.key(0))

        def draw(key, probs, nodes):
            return Categorical(50).sample(key, LeafGroup({"probs": probs}, {}), nodes)

        return jax.jit(draw).lower(key, probs, nodes).compile().memory_analysis().temp_size_in_bytes

    assert largest(400, 1) < 2.5 * 4 * 6 * 50 * 400
    assert largest(2, 4000) < 0.5 * 4 * 6 * 50 * 4000
