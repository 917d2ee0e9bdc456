"""Contract of every family: log-densities, their gradients, what illegal and strange data do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from leaf_cases import (
    CASES,
    LEARNING,
    ONE_EACH,
    TIED,
    Case,
    cases,
    cases_and_dtypes,
    jitted,
    make_leaf,
    reference_log_prob,
)

from jaxjuice.distributions import LeafGroup

WITH_TABLES = [
    case for case in LEARNING if case.name in ("categorical_7", "binomial_certain", "logistic")
]
"""Cases whose functions of few observations and of many are computed in different ways."""


def draw_values(case: Case, shape, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).choice(case.values, shape)


@cases_and_dtypes()
@pytest.mark.parametrize("param_ids", [None, TIED], ids=["own", "tied"])
def test_log_prob_is_the_density(case, param_ids, dtype):
    leaf = make_leaf(case, param_ids=param_ids, dtype=dtype)
    num_leaves = 3 if param_ids is None else 5
    # Small and large batches take different ways through tables.
    for batch in (16,) if param_ids is None else (0, 1) if dtype == jnp.float64 else (7, 17):
        x = draw_values(case, (num_leaves, batch))
        log_probs = jitted(case.dist, "log_prob")(leaf, jnp.asarray(x))
        expected = reference_log_prob(case, leaf, x)
        assert log_probs.shape == expected.shape == (num_leaves, batch, 3)
        assert log_probs.dtype == dtype
        tolerance = 3e-6 if dtype == jnp.float32 else 1e-12
        np.testing.assert_allclose(log_probs, expected, rtol=tolerance, atol=4 * tolerance)


@cases()
def test_probabilities_sum_to_one(case, x64):
    leaf = make_leaf(case, dtype=jnp.float64)
    if case.support is None:
        grid = np.linspace(-12, 12, 4001)
        mu, sigma = (np.asarray(leaf.params[name])[0, 0] for name in ("mu", "sigma"))
        x = np.broadcast_to(mu + sigma * grid, (3, grid.size))
        density = np.exp(np.asarray(jitted(case.dist, "log_prob")(leaf, jnp.asarray(x)))[0, :, 0])
        np.testing.assert_allclose(np.trapezoid(density, x[0]), 1, atol=1e-10)
    else:
        x = jnp.broadcast_to(jnp.asarray(case.support), (3, case.support.size))
        total = jnp.exp(jitted(case.dist, "log_prob")(leaf, x)).sum(axis=1)
        certain = not case.dist.param_shapes()
        expected = reference_log_prob(case, leaf, np.asarray(x)) if certain else None
        wanted = np.exp(expected).sum(axis=1) if certain else np.ones((3, 3))
        np.testing.assert_allclose(total, wanted, atol=1e-12)
        np.testing.assert_allclose(wanted, 1)


@pytest.mark.parametrize(
    ("case", "batch"),
    [(case, 40) for case in LEARNING] + [(case, 2) for case in LEARNING if case in WITH_TABLES],
    ids=lambda value: getattr(value, "name", value),
)
def test_gradient_is_that_of_finite_differences(case, batch, x64):
    leaf = make_leaf(case, param_ids=TIED, dtype=jnp.float64)
    x = jnp.asarray(draw_values(case, (5, batch)))
    weight = np.random.default_rng(1).normal(size=(5, batch, 3))
    weight = jnp.where(
        jnp.isfinite(jitted(case.dist, "log_prob")(leaf, x)), jnp.asarray(weight), 0.0
    )

    def objective(params):
        log_probs = case.dist.log_prob(LeafGroup(params, leaf.constants, leaf.param_ids), x)
        return jnp.sum(jnp.where(weight == 0, 0.0, weight * log_probs))

    gradient = jax.jit(jax.grad(objective))(leaf.params)
    evaluate = jax.jit(objective)
    for name, array in leaf.params.items():
        assert gradient[name].shape == array.shape
        for index in np.ndindex(*array.shape):
            if name == "prob" and float(array[index]) in (0.0, 1.0):
                assert np.isfinite(gradient[name][index])  # one-sided: see the next test
                continue
            step = 1e-6 if name == "mu" else 1e-5 * float(array[index])
            if name == "probs" and array[index] == 0:
                assert gradient[name][index] == 0
                continue
            above = evaluate({**leaf.params, name: array.at[index].add(step)})
            below = evaluate({**leaf.params, name: array.at[index].add(-step)})
            slope = (above - below) / (2 * step)
            np.testing.assert_allclose(gradient[name][index], slope, rtol=2e-5, atol=2e-5)


@cases([case for case in LEARNING if case.name in ("categorical_zero", "masked_rev_range")])
@pytest.mark.parametrize("batch", [2, 40])
def test_zero_cotangents_give_zero_gradients(case, batch):
    leaf = make_leaf(case)
    x = jnp.asarray(draw_values(case, (3, batch)))

    @jax.jit
    def pull_back(params, cotangent):
        rule = jax.vjp(lambda p: case.dist.log_prob(LeafGroup(p, leaf.constants), x), params)[1]
        return rule(cotangent)[0]

    for array in pull_back(leaf.params, jnp.zeros((3, batch, 3))).values():
        np.testing.assert_array_equal(array, 0)


@cases()
def test_illegal_values_are_nan_in_their_own_entries_only(case):
    leaf = make_leaf(case)
    x = draw_values(case, (3, 7)).astype(np.float32)
    good = jitted(case.dist, "log_prob")(leaf, jnp.asarray(x))
    bad = x.copy()
    bad[0, 0], bad[1, 2], bad[2, 5] = np.nan, np.inf, -np.inf
    spoiled = np.zeros((3, 7), bool)
    spoiled[[0, 1, 2], [0, 2, 5]] = True
    if case.dist.is_discrete and "literal" not in case.name:
        bad[0, 3], bad[1, 1], bad[1, 4], bad[2, 0] = -1, 0.5, 3e9, 1e30
        spoiled[[0, 1, 1, 2], [3, 1, 4, 0]] = True
    log_probs = np.asarray(jitted(case.dist, "log_prob")(leaf, jnp.asarray(bad)))
    assert np.isnan(log_probs[spoiled]).all()
    np.testing.assert_array_equal(log_probs[~spoiled], np.asarray(good)[~spoiled])
    if case in ONE_EACH:

        def total(params):
            found = case.dist.log_prob(LeafGroup(params, leaf.constants), jnp.asarray(bad))
            return jnp.sum(jnp.where(jnp.isfinite(found), found, 0))

        for array in jax.jit(jax.grad(total))(leaf.params).values():
            assert np.isfinite(array).all()


@cases([case for case in ONE_EACH if case.name[:7] not in ("gaussia", "poisson", "literal")])
def test_first_value_out_of_range_is_illegal(case):
    leaf = make_leaf(case)
    top = case.support.max()
    for number_type in (np.uint8, np.float32):
        if top + 1 > 255:
            continue
        x = jnp.asarray(np.full((3, 7), [top] + 6 * [top + 1], number_type))
        log_probs = jitted(case.dist, "log_prob")(leaf, x)
        assert not np.isnan(log_probs[:, 0]).any()
        assert np.isnan(log_probs[:, 1:]).all()


@cases(ONE_EACH)
def test_small_dtypes_read_the_same(case):
    leaf = make_leaf(case)
    x = np.asarray([[0, 1, 1, 0, 1, 0, 0], [1, 0, 0, 0, 1, 0, 1], [0, 0, 1, 0, 0, 1, 0]])
    x = np.minimum(x, case.values.max()) if case.support is not None else x
    expected = jitted(case.dist, "log_prob")(leaf, jnp.asarray(x, jnp.int32))
    for name in ("bool", "uint8"):  # all others: test_values.py
        found = jitted(case.dist, "log_prob")(leaf, jnp.asarray(x).astype(name))
        assert found.dtype == jnp.float32
        np.testing.assert_array_equal(found, expected, err_msg=name)


@cases(ONE_EACH)
def test_wide_integers_are_not_cut(case, x64):
    leaf = make_leaf(case)
    huge = jnp.full((3, 1), 2**32)  # 0, if it were cut to 32 bits
    found = jitted(case.dist, "log_prob")(leaf, huge)
    if case.support is None:
        assert (found < -1e15).all()
    else:
        assert not np.any(found > -np.inf)


@cases([case for case in CASES if case.name in ("categorical_7", "gaussian")])
def test_without_jit(case):
    leaf = make_leaf(case, param_ids=TIED)
    x = jnp.asarray(draw_values(case, (5, 7)))
    eager = case.dist.log_prob(leaf, x)
    compiled = jitted(case.dist, "log_prob")(leaf, x)
    np.testing.assert_allclose(compiled, eager, rtol=1e-6, atol=1e-6)


@cases([case for case in ONE_EACH if case in LEARNING])
def test_vmap_over_parameters(case):
    leaf = make_leaf(case, param_ids=TIED)
    x = jnp.asarray(draw_values(case, (5, 7)))
    other = make_leaf(case, param_ids=TIED, seed=10)
    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), leaf.params, other.params)

    def objective(params):
        log_probs = case.dist.log_prob(LeafGroup(params, leaf.constants, leaf.param_ids), x)
        return jnp.sum(jnp.where(jnp.isfinite(log_probs), log_probs, 0))

    single = jax.jit(jax.value_and_grad(objective))
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(objective)))(both)
    for index, params in enumerate((leaf.params, other.params)):
        value, gradient = single(params)
        np.testing.assert_allclose(values[index], value, rtol=1e-5)
        for name in gradient:
            np.testing.assert_allclose(gradients[name][index], gradient[name], rtol=1e-4, atol=1e-5)
