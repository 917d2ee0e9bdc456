"""Contract of every family: statistics, expected statistics, M-steps, initial parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from leaf_cases import (
    LEARNING,
    ONE_EACH,
    TIED,
    Case,
    cases,
    cases_and_dtypes,
    jitted,
    make_leaf,
    node_of,
    reference_statistics,
)

from jaxjuice.distributions import LeafGroup

FULL_STEP = {"step_size": 1.0, "pseudocount": 0.0}


def draw_values(case: Case, shape, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).choice(case.values, shape)


def draw_flows(shape, seed=1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.uniform(0, 1, shape) * (rng.uniform(size=shape) < 0.8)


def draw_statistics(case: Case, leaf, batch=40, seed=0):
    """Statistics of random data that the leaves hold possible."""
    num_leaves = leaf.num_params if leaf.param_ids is None else leaf.param_ids.shape[0]
    x = jnp.asarray(draw_values(case, (num_leaves, batch), seed))
    flows = jnp.asarray(draw_flows((num_leaves, batch, 3), seed), leaf_dtype(leaf))
    flows = jnp.where(jnp.isfinite(jitted(case.dist, "log_prob")(leaf, x)), flows, 0)
    return jitted(case.dist, "statistics")(leaf, x, flows), x, flows


def leaf_dtype(leaf):
    return next(iter(leaf.params.values())).dtype


def with_params(leaf, params):
    return LeafGroup(params, leaf.constants, leaf.param_ids)


def assert_params_close(found, expected, **tolerance):
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], err_msg=name, **tolerance)


def assert_params_equal(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name].dtype == expected[name].dtype
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


# ------------------------------------------------------------------------------ statistics


@cases_and_dtypes(LEARNING)
@pytest.mark.parametrize("param_ids", [None, TIED], ids=["own", "tied"])
def test_statistics_add_up_observations(case, param_ids, dtype):
    leaf = make_leaf(case, param_ids=param_ids, dtype=dtype)
    num_leaves = 3 if param_ids is None else 5
    for batch in (16,) if param_ids is None else (0, 1) if dtype == jnp.float64 else (7, 17):
        x = draw_values(case, (num_leaves, batch))
        flows = draw_flows((num_leaves, batch, 3))
        found = jitted(case.dist, "statistics")(leaf, jnp.asarray(x), jnp.asarray(flows, dtype))
        expected = reference_statistics(case, leaf, x, flows)
        shapes = case.dist.stat_shapes()
        assert {n: a.shape for n, a in found.items()} == {n: (3, *shapes[n], 3) for n in shapes}
        assert all(array.dtype == dtype for array in found.values())
        tolerance = 1e-5 if dtype == jnp.float32 else 1e-12
        assert_params_close(found, expected, rtol=tolerance, atol=tolerance)


@cases([case for case in ONE_EACH if case in LEARNING])
def test_statistics_do_not_depend_on_parameters(case):
    # Momentum adds statistics of several steps, between which the parameters move.
    one, other = make_leaf(case, param_ids=TIED), make_leaf(case, param_ids=TIED, seed=10)
    x, flows = jnp.asarray(draw_values(case, (5, 17))), jnp.asarray(draw_flows((5, 17, 3)))
    found = jitted(case.dist, "statistics")(with_params(one, other.params), x, flows)
    assert_params_equal(found, jitted(case.dist, "statistics")(one, x, flows))


@cases(LEARNING)
def test_zero_flow_silences_garbage(case):
    leaf = make_leaf(case, param_ids=TIED)
    x = draw_values(case, (5, 8)).astype(np.float32)
    flows = draw_flows((5, 8, 3))
    flows[:, ::2] = 0
    garbage = x.copy()
    garbage[:, ::2] = [[np.nan, np.inf, -1, 1e30], [-np.inf, 255, 0.5, -1e38]] * 2 + [[7.5] * 4]
    flows = jnp.asarray(flows)
    found = jitted(case.dist, "statistics")(leaf, jnp.asarray(garbage), flows)
    assert_params_equal(found, jitted(case.dist, "statistics")(leaf, jnp.asarray(x), flows))
    silent = jitted(case.dist, "statistics")(leaf, jnp.asarray(garbage), jnp.zeros_like(flows))
    for array in silent.values():
        np.testing.assert_array_equal(array, 0)


@cases([case for case in ONE_EACH if case in LEARNING])
def test_illegal_values_do_not_count(case):
    leaf = make_leaf(case)
    x = draw_values(case, (3, 4)).astype(np.float32)
    with_nan = np.concatenate([x, np.full((3, 2), np.nan, np.float32)], axis=1)
    flows = draw_flows((3, 6, 3))
    found = jitted(case.dist, "statistics")(leaf, jnp.asarray(with_nan), jnp.asarray(flows))
    expected = jitted(case.dist, "statistics")(leaf, jnp.asarray(x), jnp.asarray(flows[:, :4]))
    assert_params_close(found, expected, rtol=1e-5)


def expectation(case: Case, leaf) -> dict[str, np.ndarray]:
    """The mean of the statistics under every node, by summing or integrating over all values."""
    shapes = case.dist.stat_shapes()
    means = {n: np.zeros((3, *s, 3)) for n, s in shapes.items()}
    for p, k in np.ndindex(3, 3):
        params, constants = node_of(leaf.params, p, k), node_of(leaf.constants, p, k)
        if case.support is None:
            values = params["mu"] + params["sigma"] * np.linspace(-12, 12, 2001)
            measure = 0.012 * params["sigma"]
        else:
            values, measure = case.support, 1.0
        with np.errstate(divide="ignore"):
            weights = measure * np.exp(case.log_prob(params, constants, values.astype(float)))
        for value, weight in zip(values, weights, strict=True):
            for name, statistic in case.statistic(constants, value).items():
                means[name][p, ..., k] += weight * statistic
    return means


@cases([case for case in LEARNING if case.exact])  # the others: test_discrete_logistic.py
def test_expected_statistics_are_expectations(case, x64):
    leaf = make_leaf(case, dtype=jnp.float64)
    found = jitted(case.dist, "expected_statistics")(leaf)
    assert_params_close(found, expectation(case, leaf), rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------------------ M-steps


@cases_and_dtypes(LEARNING)
def test_expected_statistics_are_a_fixed_point(case, dtype):
    leaf = make_leaf(case, dtype=dtype)
    tolerance = 2e-6 if dtype == jnp.float32 else 1e-13
    for factor in (1.0, 123.0):
        stats = jax.tree.map(
            lambda a, f=factor: f * a, jitted(case.dist, "expected_statistics")(leaf)
        )
        for step in (1.0, 0.3):
            found = jitted(case.dist, "m_step")(leaf, stats, step_size=step, pseudocount=0.0)
            # The distance from the center costs sigma digits.
            assert_params_close(found, leaf.params, rtol=50 * tolerance, atol=tolerance)


@cases([case for case in LEARNING if case.exact])
def test_m_step_maximizes(case, x64):
    leaf = make_leaf(case, param_ids=TIED, dtype=jnp.float64)
    stats, x, flows = draw_statistics(case, leaf)

    def objective(params):
        log_probs = jitted(case.dist, "log_prob")(with_params(leaf, params), x)
        per_leaf = jnp.sum(jnp.where(flows == 0, 0.0, flows * log_probs), axis=1)
        return np.asarray(leaf.pool(per_leaf))

    best = jitted(case.dist, "m_step")(leaf, stats, **FULL_STEP)
    reached = objective(best)
    previous = objective(leaf.params)
    assert (reached >= previous - 1e-9).all()
    for step in (0.1, 0.4, 0.8):  # every part of the way climbs
        params = jitted(case.dist, "m_step")(leaf, stats, step_size=step, pseudocount=0.0)
        value = objective(params)
        assert (value >= previous - 1e-9).all()
        previous = value
    assert (reached >= previous - 1e-9).all()
    raw = case.dist.to_unconstrained(best, leaf.constants)
    for seed in range(5):  # and no neighbour is higher
        rng = np.random.default_rng(seed)
        noisy = {
            n: jnp.asarray(np.asarray(a) + 0.01 * rng.normal(size=a.shape)) for n, a in raw.items()
        }
        rival = case.dist.from_unconstrained(noisy, leaf.constants)
        assert (reached >= objective(rival) - 1e-9).all()


@cases(LEARNING)
def test_nodes_without_flow_keep_their_parameters(case):
    leaf = make_leaf(case)
    stats, *_ = draw_statistics(case, leaf)
    tiny = 1e-42  # a subnormal number of float32
    for nothing in (0.0, tiny):
        faint = jax.tree.map(lambda a, n=nothing: a.at[..., 1].set(n), stats)
        for keep in (False, True):
            found = jitted(case.dist, "m_step")(leaf, faint, **FULL_STEP, keep_zero_params=keep)
            for name, array in leaf.params.items():
                np.testing.assert_array_equal(found[name][..., 1], array[..., 1])
                assert np.isfinite(found[name]).all()
    moved = jitted(case.dist, "m_step")(leaf, stats, **FULL_STEP)
    if case.name != "categorical_1" and "certain" not in case.name:
        assert any((moved[n][..., 1] != leaf.params[n][..., 1]).any() for n in moved)


@cases(LEARNING)
def test_step_size_blends_mean_parameters(case, x64):
    leaf = make_leaf(case, dtype=jnp.float64)
    stats, *_ = draw_statistics(case, leaf)
    flow = case.flow({n: np.asarray(a) for n, a in stats.items()})
    old = jitted(case.dist, "expected_statistics")(leaf)
    for step in (0.0, 0.25, 1.0):
        found = jitted(case.dist, "m_step")(leaf, stats, step_size=step, pseudocount=0.0)
        new = jitted(case.dist, "expected_statistics")(with_params(leaf, found))
        for name, array in stats.items():
            per_flow = np.asarray(array) / (flow if array.ndim == 2 else flow[:, None])
            mixed = (1 - step) * np.asarray(old[name]) + step * per_flow
            np.testing.assert_allclose(new[name], mixed, rtol=1e-10, atol=1e-10)


@cases([case for case in ONE_EACH if case in LEARNING])
def test_step_size_may_be_traced(case):
    leaf = make_leaf(case)
    stats, *_ = draw_statistics(case, leaf)

    @jax.jit
    def step(step_size, pseudocount):
        return case.dist.m_step(leaf, stats, step_size=step_size, pseudocount=pseudocount)

    found = step(jnp.float32(0.3), jnp.float32(0.1))
    expected = jitted(case.dist, "m_step")(leaf, stats, step_size=0.3, pseudocount=0.1)
    assert_params_close(found, expected, rtol=1e-5, atol=1e-7)


@cases(LEARNING)
def test_pseudocount(case, x64):
    leaf = make_leaf(case, dtype=jnp.float64)
    stats, *_ = draw_statistics(case, leaf)
    flow = case.flow({n: np.asarray(a) for n, a in stats.items()})
    plain = jitted(case.dist, "m_step")(leaf, stats, **FULL_STEP)
    found = jitted(case.dist, "m_step")(leaf, stats, step_size=1.0, pseudocount=2.0)
    nothing = jax.tree.map(jnp.zeros_like, stats)
    from_nothing = jitted(case.dist, "m_step")(leaf, nothing, step_size=1.0, pseudocount=2.0)
    if case.prior is None:
        assert_params_equal(found, plain)
        assert_params_equal(from_nothing, leaf.params)
        return
    for p, k in np.ndindex(3, 3):
        for name, prior in case.prior(node_of(leaf.constants, p, k)).items():
            frequency = np.asarray(plain[name])[p, ..., k]
            smoothed = (flow[p, k] * frequency + 2 * prior) / (flow[p, k] + 2)
            if flow[p, k] == 0:
                smoothed = prior
            np.testing.assert_allclose(found[name][p, ..., k], smoothed, rtol=1e-10)
            np.testing.assert_allclose(from_nothing[name][p, ..., k], prior, rtol=1e-12)


@cases([case for case in LEARNING if case.name in ("categorical_zero", "bernoulli_certain")])
def test_zero_probabilities_stay_on_request(case):
    leaf = make_leaf(case)
    stats, *_ = draw_statistics(case, leaf)
    kept = jitted(case.dist, "m_step")(
        leaf, stats, step_size=0.7, pseudocount=3.0, keep_zero_params=True
    )
    freed = jitted(case.dist, "m_step")(leaf, stats, step_size=0.7, pseudocount=3.0)
    (name,) = leaf.params
    old = np.asarray(leaf.params[name])
    zero = old == 0
    assert zero.any()
    assert (np.asarray(kept[name])[zero] == 0).all()
    assert (np.asarray(freed[name])[zero] > 0).all()
    if name == "prob":
        assert (np.asarray(kept[name])[old == 1] == 1).all()
        assert (np.asarray(freed[name])[old == 1] < 1).all()
    else:
        np.testing.assert_allclose(kept[name].sum(axis=1), 1, rtol=1e-6)
        mass = np.where(zero, 0, np.asarray(stats["counts"]) + 3.0 / 5)
        target = 0.3 * old + 0.7 * mass / mass.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(kept[name], target, rtol=1e-5)


@cases(LEARNING)
def test_m_step_results_are_legal(case):
    leaf = make_leaf(case)
    stats, *_ = draw_statistics(case, leaf)
    for pseudocount in (0.0, 0.1):
        found = jitted(case.dist, "m_step")(leaf, stats, step_size=1.0, pseudocount=pseudocount)
        for p in range(3):
            dag = {n: np.moveaxis(np.asarray(a)[p], -1, 0) for n, a in found.items()}
            constants = {n: np.moveaxis(np.asarray(a)[p], -1, 0) for n, a in leaf.constants.items()}
            checked = case.dist.check_params(dag, constants)
            assert_params_close(checked, dag, rtol=1e-5, atol=1e-7)


# ------------------------------------------------------------------------------ initial values


@cases_and_dtypes(LEARNING)
def test_initial_parameters(case, dtype):
    leaf = make_leaf(case, dtype=dtype)

    @jax.jit
    def draw_from(key, perturbation):
        return case.dist.init_params(key, leaf.constants, 3, 3, perturbation, dtype)

    def draw(seed, perturbation):
        return draw_from(jax.random.key(seed), perturbation)

    params = draw(0, 2.0)
    shapes = case.dist.param_shapes()
    assert {n: a.shape for n, a in params.items()} == {n: (3, *shapes[n], 3) for n in shapes}
    assert all(array.dtype == dtype for array in params.values())
    assert_params_equal(draw(0, 2.0), params)
    if case.name != "categorical_1":
        assert all((draw(1, 2.0)[n] != params[n]).any() for n in params)
        first, second = (np.stack([a[..., k] for a in params.values()][:1]) for k in (0, 1))
        assert (first != second).any()
    for p in range(3):
        dag = {n: np.moveaxis(np.asarray(a)[p], -1, 0) for n, a in params.items()}
        constants = {n: np.moveaxis(np.asarray(a)[p], -1, 0) for n, a in leaf.constants.items()}
        checked = case.dist.check_params(dag, constants)
        assert_params_close(checked, dag, rtol=1e-5, atol=1e-7)
    calm = draw(0, 0.0)
    for name in ("probs", "prob", "rate", "sigma", "scale"):
        if name in calm:
            spread = np.ptp(np.asarray(calm[name]), axis=-1)
            if "mask" not in leaf.constants:
                np.testing.assert_allclose(spread, 0, atol=1e-6)
