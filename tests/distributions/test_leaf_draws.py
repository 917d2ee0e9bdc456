"""Contract of every family: samples, modes, unconstrained parameters, configs, host checks."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from leaf_cases import (
    CASES,
    LEARNING,
    ONE_EACH,
    TIED,
    cases,
    cases_and_dtypes,
    dag_arrays,
    jitted,
    make_leaf,
    node_of,
)
from scipy import stats

from jaxjuice import distributions as dists
from jaxjuice._errors import ParameterError, StructureError

# ------------------------------------------------------------------------------ samples


@pytest.mark.parametrize(
    ("case", "num_samples"),
    [(case, 6000) for case in CASES] + [(case, 4) for case in CASES if "categ" in case.name],
    ids=lambda value: getattr(value, "name", value),
)
def test_samples_follow_the_chosen_nodes(case, num_samples):
    # Few and many samples take different ways to the running sums; few are repeated by vmap.
    leaf = make_leaf(case, param_ids=TIED)
    repeats = 6000 // num_samples
    nodes = jnp.asarray(np.tile([0, 2], (5, num_samples // 2)), jnp.int32)
    keys = jax.random.split(jax.random.key(0), repeats)
    draw = jax.jit(jax.vmap(lambda key: case.dist.sample(key, leaf, nodes)))
    drawn = draw(keys)
    assert drawn.shape == (repeats, 5, num_samples)
    assert drawn.dtype == (jnp.int32 if case.dist.is_discrete else jnp.float32)
    drawn = np.asarray(drawn, np.float64).transpose(1, 0, 2).reshape(5, -1)
    for v in range(5):
        for place, k in enumerate((0, 2)):
            values = drawn[v, place::2]
            params = node_of(leaf.params, TIED[v], k)
            constants = node_of(leaf.constants, TIED[v], k)
            if case.support is None:
                cdf = stats.norm(params["mu"], params["sigma"]).cdf
                assert stats.kstest(values, cdf).pvalue > 1e-5
                continue
            with np.errstate(divide="ignore"):
                probs = np.exp(case.log_prob(params, constants, case.support.astype(float)))
            counts = (values[:, None] == case.support).sum(axis=0)
            assert counts.sum() == values.size
            assert (counts[probs == 0] == 0).all()
            likely = probs * values.size >= 5
            observed = np.append(counts[likely], counts[~likely].sum())
            expected = np.append(probs[likely], probs[~likely].sum()) * values.size
            excess = (observed - expected) ** 2 / np.maximum(expected, 1e-9)
            chi_square = excess[expected > 1e-6].sum()
            degrees = max(1, (expected > 1e-6).sum() - 1)
            assert stats.chi2.sf(chi_square, degrees) > 1e-5
            expected_counts = expected[expected > 1e-6]
            assert expected_counts.size > 0


@cases(ONE_EACH)
def test_same_key_same_sample(case):
    leaf = make_leaf(case)
    nodes = jnp.zeros((3, 50), jnp.int32)
    one = jitted(case.dist, "sample")(jax.random.key(1), leaf, nodes)
    np.testing.assert_array_equal(jitted(case.dist, "sample")(jax.random.key(1), leaf, nodes), one)
    params = node_of(leaf.params, 0, 0)
    fixed = not params or "_1" in case.name or "certain" in case.name
    if not fixed or case.name == "binomial_1":
        assert (jitted(case.dist, "sample")(jax.random.key(2), leaf, nodes) != one).any()
        leaves_differ = one[0] != one[1]
        assert leaves_differ.any()  # leaves do not share their random numbers


def test_no_samples():
    for case in CASES:
        if case.name in ("categorical_7", "gaussian", "poisson"):
            drawn = case.dist.sample(
                jax.random.key(1), make_leaf(case), jnp.zeros((3, 0), jnp.int32)
            )
            assert drawn.shape == (3, 0)


@cases([case for case in CASES if case.name in ("poisson", "binomial_300", "categorical_zero")])
def test_other_generators_sample_too(case):
    leaf = make_leaf(case)
    nodes = jnp.zeros((3, 4), jnp.int32)
    for key in (jax.random.key(0, impl="rbg"), jax.random.PRNGKey(0)):
        drawn = jitted(case.dist, "sample")(key, leaf, nodes)
        assert not np.isnan(jitted(case.dist, "log_prob")(leaf, drawn)).any()


@cases()
def test_mode_is_the_most_probable_value(case):
    leaf = make_leaf(case, param_ids=TIED)
    nodes = jnp.asarray(np.tile([0, 1, 2], (5, 1)), jnp.int32)
    modes = jitted(case.dist, "mode")(leaf, nodes)
    assert modes.dtype == (jnp.int32 if case.dist.is_discrete else jnp.float32)
    for v, k in np.ndindex(5, 3):
        params, constants = node_of(leaf.params, TIED[v], k), node_of(leaf.constants, TIED[v], k)
        mode = float(modes[v, k])
        if case.support is None:
            assert mode == params["mu"]
            continue
        with np.errstate(divide="ignore"):
            log_probs = case.log_prob(params, constants, case.support.astype(float))
        assert mode == case.support[np.argmax(log_probs)]


def test_the_lowest_of_tied_modes_wins():
    nodes = jnp.zeros((1, 1), jnp.int32)
    one_node = [
        (dists.Categorical(4), {"probs": [[[0.2], [0.4], [0.4], [0.0]]]}, 1),
        (dists.Bernoulli(), {"prob": [[0.5]]}, 0),
        (dists.Binomial(3), {"prob": [[0.5]]}, 1),
        (dists.Poisson(), {"rate": [[4.0]]}, 3),
        (dists.DiscreteLogistic((0.0, 2.0), 2), {"mu": [[1.0]], "scale": [[0.3]]}, 0),
    ]
    for dist, params, expected in one_node:
        leaf = dists.LeafGroup({n: jnp.asarray(a) for n, a in params.items()}, {})
        assert dist.mode(leaf, nodes)[0, 0] == expected, dist


# ------------------------------------------------------------------------------ unconstrained


@cases_and_dtypes()
def test_unconstrained_round_trip(case, dtype):
    leaf = make_leaf(case, dtype=dtype)
    raw = jitted(case.dist, "to_unconstrained")(leaf.params, leaf.constants)
    assert {n: a.shape for n, a in raw.items()} == {n: a.shape for n, a in leaf.params.items()}
    back = jitted(case.dist, "from_unconstrained")(raw, leaf.constants)
    tolerance = 2e-6 if dtype == jnp.float32 else 1e-13
    for name, array in leaf.params.items():
        assert back[name].dtype == dtype
        np.testing.assert_allclose(back[name], array, rtol=tolerance, atol=tolerance)
        if name in ("prob", "probs"):
            extreme = (array == 0) | (array == 1)
            np.testing.assert_array_equal(back[name][extreme], array[extreme])


@cases(LEARNING)
def test_unconstrained_gradients_are_finite(case):
    leaf = make_leaf(case)
    raw = jitted(case.dist, "to_unconstrained")(leaf.params, leaf.constants)
    x = jnp.asarray(np.random.default_rng(0).choice(case.values, (3, 20)))

    def objective(raw):
        params = jitted(case.dist, "from_unconstrained")(raw, leaf.constants)
        log_probs = jitted(case.dist, "log_prob")(dists.LeafGroup(params, leaf.constants), x)
        return jnp.sum(jnp.where(jnp.isfinite(log_probs), log_probs, 0))

    gradient = jax.jit(jax.grad(objective))(raw)
    for name, array in gradient.items():
        assert np.isfinite(array).all()
        if name == "probs":
            np.testing.assert_array_equal(array[leaf.params[name] == 0], 0)
            np.testing.assert_allclose(array.sum(axis=1), 0, atol=1e-4)
    _, pull_back = jax.vjp(lambda p: case.dist.to_unconstrained(p, leaf.constants), leaf.params)
    (gradient,) = pull_back(jax.tree.map(jnp.zeros_like, raw))
    for array in gradient.values():
        np.testing.assert_array_equal(array, 0)


@cases([case for case in ONE_EACH if case in LEARNING])
def test_any_raw_values_are_legal(case):
    leaf = make_leaf(case)
    rng = np.random.default_rng(0)
    for scale in (1.0, 30.0):
        raw = {
            n: jnp.asarray(scale * rng.normal(size=a.shape), jnp.float32)
            for n, a in leaf.params.items()
        }
        params = jitted(case.dist, "from_unconstrained")(raw, leaf.constants)
        for p in range(3):
            dag = {n: np.moveaxis(np.asarray(a)[p], -1, 0) for n, a in params.items()}
            constants = {n: np.moveaxis(np.asarray(a)[p], -1, 0) for n, a in leaf.constants.items()}
            checked = case.dist.check_params(dag, constants)
            for name in dag:
                np.testing.assert_allclose(checked[name], dag[name], rtol=1e-5)


# ------------------------------------------------------------------------------ identity


@cases()
def test_config_round_trip(case):
    config = json.loads(json.dumps(case.dist.to_config()))
    again = dists.from_config(config)
    assert again == case.dist
    assert type(again) is type(case.dist)
    assert hash(again) == hash(case.dist)
    assert repr(again) == repr(case.dist)
    assert type(case.dist).from_config(config) == case.dist


def test_families_differ_from_each_other():
    different = {case.dist for case in CASES}
    assert len(different) == len({repr(case.dist) for case in CASES}) > 12
    with pytest.raises(dataclasses.FrozenInstanceError):
        dists.Categorical(3).num_cats = 4  # pyright: ignore[reportAttributeAccessIssue]


@cases()
def test_numbers_of_parameters(case):
    params, _ = dag_arrays(case, 3, 0)
    assert case.dist.num_parameters * 3 == sum(array.size for array in params.values())


@cases()
def test_constants_survive_a_second_check(case):
    _, constants = dag_arrays(case, 3, 0)
    again = case.dist.check_constants(3, constants)
    assert again.keys() == constants.keys() == case.dist.constant_shapes().keys()
    for name, array in again.items():
        assert array.shape == (3, *case.dist.constant_shapes()[name])
        assert array.dtype == constants[name].dtype
        np.testing.assert_array_equal(array, constants[name])


@cases(LEARNING)
def test_parameters_as_one_array(case):
    params, constants = dag_arrays(case, 3, 0)
    flat = np.concatenate([a.reshape(3, -1) for a in params.values()], axis=1)
    for array in (flat, flat.ravel(), list(flat.ravel())):
        found = case.dist.check_params(case.dist.params_from_array(array, 3), constants)
        for name in params:
            np.testing.assert_allclose(found[name], params[name], rtol=1e-12)
    with pytest.raises(ParameterError, match=r"params of 4 nodes of .* numbers are wanted"):
        case.dist.params_from_array(flat, 4)


@cases(LEARNING)
def test_wrong_parameters_are_refused(case):
    params, constants = dag_arrays(case, 3, 0)
    name = next(iter(params))
    wrong = [
        ({}, "came as"),
        ({**params, "extra": params[name]}, "'extra'"),
        ({**params, name: params[name][0]}, "num_nodes"),
        ({**params, name: params[name][..., None]}, "num_nodes"),
        ({**params, name: np.full_like(params[name], np.nan)}, "NaN"),
        ({**params, name: params[name].astype(str)}, "dtype"),
    ]
    if name != "mu":
        wrong.append(({**params, name: -params[name] - 1}, "wanted"))
    else:
        other = [n for n in params if n != "mu"][0]
        wrong.append(({**params, other: 0 * params[other]}, "at least"))
    for given, message in wrong:
        with pytest.raises(ParameterError, match=message):
            case.dist.check_params(given, constants)


@cases()
def test_unknown_constants_are_refused(case):
    with pytest.raises(ParameterError, match="strange"):
        case.dist.check_constants(3, {**case.constants, "strange": 1.0})


@cases()
def test_validate_accepts_what_is_legal(case):
    assert case.dist.validate(case.values) is None
    assert case.dist.validate(case.values.astype(np.float64)) is None
    assert case.dist.validate(np.zeros((0,), np.uint8)) is None
    assert case.dist.validate(np.zeros((0,), np.float32)) is None
    if case.values.max() >= 1 and case.values.min() <= 0:
        assert case.dist.validate(np.array([True, False])) is None
        assert case.dist.validate(np.array([0, 1], np.uint8)) is None


@cases()
def test_validate_agrees_with_log_prob(case):
    leaf = make_leaf(case, num_params=1)
    strange = [
        -1.0,
        0.0,
        0.5,
        1.0,
        3.0,
        6.0,
        7.0,
        8.0,
        9.0,
        30.0,
        301.0,
        2.0**31,
        1e20,
        np.nan,
        np.inf,
    ]
    for value in strange:
        column = np.array([value], np.float32)
        problem = case.dist.validate(column)
        illegal = np.isnan(jitted(case.dist, "log_prob")(leaf, jnp.asarray(column[None]))).all()
        assert (problem is not None) == illegal, value
        if problem is not None:
            assert problem.startswith("holds ")
            assert repr(case.dist) in problem
            assert " takes " in problem


def test_constructors_refuse_nonsense():
    wrong = [
        (dists.Categorical, (0,)),
        (dists.Categorical, (2.5,)),
        (dists.Categorical, (True,)),
        (dists.MaskedCategorical, (3, "sideways")),
        (dists.MaskedCategorical, (-1,)),
        (dists.Gaussian, (np.nan,)),
        (dists.Gaussian, (0.0, -1.0)),
        (dists.Gaussian, (0.0, 0.001)),
        (dists.Gaussian, (0.0, 1.0, 0.0)),
        (dists.DiscreteLogistic, ((1.0, 1.0), 4)),
        (dists.DiscreteLogistic, ((1.0,), 4)),
        (dists.DiscreteLogistic, (3.0, 4)),
        (dists.DiscreteLogistic, ((0.0, np.inf), 4)),
        (dists.DiscreteLogistic, ((0.0, 1.0), 0)),
        (dists.DiscreteLogistic, ((0.0, 1.0), 4, 0.0)),
        (dists.Indicator, (0,)),
        (dists.Literal, ("x",)),
        (dists.Literal, (2.0**40,)),
        (dists.Poisson, (0.0,)),
        (dists.Poisson, (1e-9,)),
        (dists.Binomial, (0,)),
    ]
    for family, arguments in wrong:
        with pytest.raises(StructureError, match=family.__name__):
            family(*arguments)


def test_numpy_numbers_make_the_same_family():
    assert dists.Categorical(np.int64(5)) == dists.Categorical(5)
    assert dists.Gaussian(np.float32(2), np.int64(1)) == dists.Gaussian(2.0, 1.0)
    assert dists.DiscreteLogistic([0, 1], 4) == dists.DiscreteLogistic((0.0, 1.0), 4)
    assert dists.Literal(True) == dists.Literal(1)
    json.dumps(dists.Gaussian(np.float32(2)).to_config())
