"""The oracle itself: against enumeration, finite differences, and integrals."""

import numpy as np
import oracle
import pytest
from random_circuits import FAMILIES, category_counts, random_circuit, random_data
from scipy import integrate, special

from jaxjuice import distributions
from jaxjuice.nodes import InputNodes, SumNodes, inputs, multiply, summate

SEEDS = range(12)
DISCRETE = ("categorical", "bernoulli", "masked_categorical", "binomial", "discrete_logistic")


def make(seed, **options):
    rng = np.random.default_rng(seed)
    options = {"num_vars": int(rng.integers(1, 6)), "num_root_nodes": 1 + seed % 3, **options}
    root = random_circuit(rng, **options)
    return rng, root, oracle.dag_params(root)


@pytest.mark.parametrize("seed", SEEDS)
def test_probabilities_of_all_assignments_sum_to_one(seed):
    options = {"zero_weights": seed % 2 == 0, "zero_masks": seed % 3 == 0}
    _, root, params = make(seed, num_vars=1 + seed % 5, families=DISCRETE, **options)
    total = oracle.total_probability(root, params, category_counts(root))
    np.testing.assert_allclose(total, 1, atol=1e-12)


def test_a_mixture_by_hand():
    dist = distributions.Categorical(num_cats=2)
    a = inputs(0, num_nodes=2, dist=dist, params=[[0.1, 0.9], [0.6, 0.4]])
    b = inputs(1, num_nodes=2, dist=dist, params=[[0.7, 0.3], [0.2, 0.8]])
    root = summate(multiply(a, b, edge_ids=[[1, 0], [0, 1]]), num_nodes=1, params=[[0.25, 0.75]])
    values = oracle.log_likelihood(root, oracle.dag_params(root), np.array([[0, 1], [1, 0]]))
    wanted = [0.25 * 0.6 * 0.3 + 0.75 * 0.1 * 0.8, 0.25 * 0.4 * 0.7 + 0.75 * 0.9 * 0.2]
    np.testing.assert_allclose(values[:, 0], np.log(wanted), rtol=1e-14)
    flows = oracle.circuit_flows(root, oracle.dag_params(root), np.array([[0, 1]]))
    share = 0.25 * 0.6 * 0.3 / wanted[0]
    np.testing.assert_allclose(flows.sums[root][:, 0, 0], [share, 1 - share], rtol=1e-14)
    np.testing.assert_allclose(flows.nodes[a], [[1 - share, share]], rtol=1e-14)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", [("LL", 1.0), ("GeneralLL", 2.5)])
def test_sum_flows_are_derivatives_by_log_weights(seed, mode):
    # No indicators and masks: a row of probability 0 has no derivative.
    families = ("categorical", "bernoulli", "gaussian", "poisson", "binomial", "discrete_logistic")
    rng, root, params = make(seed, num_vars=3, families=families)
    options = {"propagation": mode[0], "alpha": mode[1]}
    x = random_data(rng, root, 4)
    weights = rng.random((4, root.num_nodes))

    def value(changed):
        return (weights * oracle.log_likelihood(root, changed, x, **options)).sum()

    flows = oracle.circuit_flows(root, params, x, weights=weights, **options)
    for ns in [ns for ns in flows.sums if isinstance(ns, SumNodes)][:6]:
        place = tuple(int(rng.integers(size)) for size in params[ns].shape)
        step = 1e-5
        ends = []
        for sign in (1, -1):
            changed = np.array(params[ns], dtype=np.float64)
            changed[place] *= np.exp(sign * step)
            ends.append(value({**params, ns: changed}))
        numeric = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(flows.sums[ns][place], numeric, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("propagation", ["LL", "MPE"])
def test_flows_of_each_variable_sum_to_the_weights(seed, propagation):
    rng, root, params = make(seed, num_vars=4, families=("categorical", "gaussian", "poisson"))
    x = random_data(rng, root, 5)
    missing = rng.random(x.shape) < 0.3
    weights = rng.random((5, root.num_nodes))
    flows = oracle.circuit_flows(root, params, x, missing, weights, propagation)
    for var in root.scope:
        leaves = [ns for ns in root if isinstance(ns, InputNodes) and ns.var == var]
        total = sum(flows.nodes[ns].sum(axis=1) for ns in leaves)
        np.testing.assert_allclose(total, weights.sum(axis=1), atol=1e-12)
    if propagation == "MPE":
        unit = oracle.circuit_flows(root, params, x, propagation="MPE").sums
        assert all(np.array_equal(f, np.round(f)) for f in unit.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_missing_values_are_summed_out(seed):
    rng, root, params = make(seed, families=DISCRETE, zero_weights=True)
    counts = category_counts(root)
    row = random_data(rng, root, 1)[0]
    missing = rng.random(row.shape) < 0.5
    got = oracle.log_likelihood(root, params, row[None], missing[None])[0]
    completed = oracle.completions(row, missing, counts)
    with np.errstate(divide="ignore"):
        wanted = special.logsumexp(oracle.log_likelihood(root, params, completed), axis=0)
    np.testing.assert_allclose(got, wanted, atol=1e-10)
    everything = oracle.log_likelihood(root, params, row[None], np.ones(row.shape, bool))
    np.testing.assert_allclose(everything, 0, atol=1e-12)
    # What stands in a missing place does not matter, NaN included.
    garbage = np.where(missing, np.nan, row)
    np.testing.assert_array_equal(
        oracle.log_likelihood(root, params, garbage[None], missing[None])[0], got
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_general_values_lie_between_sums_and_maxima(seed):
    rng, root, params = make(seed, num_vars=3, families=("categorical", "bernoulli"))
    x = random_data(rng, root, 5)
    ll, mpe = (oracle.log_likelihood(root, params, x, propagation=p) for p in ("LL", "MPE"))
    one, three, many = (
        oracle.log_likelihood(root, params, x, propagation="GeneralLL", alpha=alpha)
        for alpha in (1.0, 3.0, 2000.0)
    )
    np.testing.assert_allclose(one, ll, atol=1e-12)
    np.testing.assert_allclose(many, mpe, atol=0.05)
    assert (mpe <= three + 1e-12).all() and (three <= ll + 1e-12).all()


def test_flows_of_impossible_rows_are_zero():
    dist = distributions.Categorical(num_cats=2)
    leaf = inputs(0, num_nodes=2, dist=dist, params=[[1.0, 0.0], [1.0, 0.0]])
    root = summate(leaf, num_nodes=1, params=[[0.5, 0.5]])
    params = oracle.dag_params(root)
    x = np.array([[1], [0]])
    for propagation in ("LL", "MPE", "GeneralLL"):
        assert oracle.log_likelihood(root, params, x, propagation=propagation)[0, 0] == -np.inf
        flows = oracle.circuit_flows(root, params, x, propagation=propagation, alpha=2.0)
        assert np.isfinite(flows.nodes[leaf]).all() and not flows.nodes[leaf][0].any()
        assert flows.nodes[leaf][1].any()


@pytest.mark.parametrize("seed", SEEDS)
def test_prior_flows_are_reaching_probabilities(seed):
    _, root, params = make(seed, families=FAMILIES, num_root_nodes=1)
    flows = oracle.root_to_leaf_flows(root, params)
    for var in root.scope:
        leaves = [ns for ns in root if isinstance(ns, InputNodes) and ns.var == var]
        np.testing.assert_allclose(sum(flows.nodes[ns].sum() for ns in leaves), 1, atol=1e-12)


@pytest.mark.parametrize("family", [*FAMILIES, "literal"])
def test_leaves_sum_or_integrate_to_one(family):
    rng = np.random.default_rng(3)
    root = random_circuit(rng, num_vars=1, families=(family,))
    params = oracle.dag_params(root)
    for ns in root:
        if not isinstance(ns, InputNodes):
            continue
        held = params[ns.get_source()]
        if family == "gaussian":
            grid = np.linspace(-20, 20, 20_001)
            density = np.exp(oracle.leaf_log_prob(ns, held, grid))
            total = integrate.simpson(density, x=grid, axis=0)
        else:
            total = np.exp(
                oracle.leaf_log_prob(
                    ns, held, np.arange(200 if family == "poisson" else category_counts(root)[0])
                )
            )
            total = total.sum(axis=0)
        np.testing.assert_allclose(total, 1, atol=1e-9)


def test_external_leaves_take_their_densities_per_call():
    leaf = inputs(0, num_nodes=3, dist=distributions.External())
    root = summate(leaf, num_nodes=1, params=[[0.2, 0.3, 0.5]])
    given = np.log(np.array([[0.1, 0.2, 0.3], [0.5, 0.5, 0.5]]))
    got = oracle.log_likelihood(
        root, oracle.dag_params(root), np.zeros((2, 1)), external={leaf: given}
    )
    np.testing.assert_allclose(np.exp(got[:, 0]), [0.02 + 0.06 + 0.15, 0.5])


def test_random_circuits_hold_what_they_promise():
    """Over some seeds, every feature occurs (and none where it is switched off)."""
    roots = [make(seed, num_vars=5, zero_masks=True)[1] for seed in range(30)]
    vectors = [ns for root in roots for ns in root]
    sums = [ns for ns in vectors if isinstance(ns, SumNodes)]
    assert any(ns.is_tied for ns in sums)
    assert any(ns.is_tied for ns in vectors if isinstance(ns, InputNodes))
    assert any(ns.edge_ids.shape[1] < ns.num_node_blocks * ns.num_ch_blocks for ns in sums)
    assert any(ns.zero_param_mask is not None for ns in sums)
    assert any(getattr(ns, "sparse_edges", False) for ns in vectors)
    assert any(len({child.block_size for child in ns.chs}) > 1 for ns in vectors)
    assert any(
        any(ns in other.chs for other in sums if other is not user)
        for user in sums
        for ns in user.chs
        if not isinstance(ns, InputNodes)
    )
    plain = [
        make(seed, num_vars=5, tied=False, block_sparse=False, by_node=False, shared=False)[1]
        for seed in range(5)
    ]
    for root in plain:
        for ns in root:
            assert not ns.is_tied and not getattr(ns, "sparse_edges", False)
            if isinstance(ns, SumNodes):
                assert ns.edge_ids.shape[1] == ns.num_node_blocks * ns.num_ch_blocks


def test_random_circuits_follow_the_generator():
    (_, first, held), (_, again, held_again) = (make(7, num_vars=5) for _ in range(2))
    for a, b in zip(first, again, strict=True):
        assert repr(a) == repr(b)
        if isinstance(a, SumNodes):
            np.testing.assert_array_equal(a.edge_ids, b.edge_ids)
            np.testing.assert_array_equal(held[a.get_source()], held_again[b.get_source()])
