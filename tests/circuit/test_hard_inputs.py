"""Small inputs that break carelessly written circuits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxjuice as juice
from jaxjuice.distributions import Categorical, Gaussian
from tests import oracle


def _pair(probs_a, probs_b, weights=(0.5, 0.5)):
    """A mixture of two products over variables 0 and 1, with the given tables `[2, C]`."""
    a = juice.inputs(0, num_nodes=2, dist=Categorical(len(probs_a[0])), params=np.array(probs_a))
    b = juice.inputs(1, num_nodes=2, dist=Categorical(len(probs_b[0])), params=np.array(probs_b))
    return juice.summate(juice.multiply(a, b), num_nodes=1, params=np.array([weights]))


def _finite(tree) -> bool:
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))


def test_impossible_rows_stand_beside_possible_ones() -> None:
    root = _pair([[0.0, 1.0], [0.0, 1.0]], [[0.3, 0.7], [0.6, 0.4]])
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    x = np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
    lls, flows = pc.log_likelihood_and_flows(params, x)
    np.testing.assert_array_equal(np.isneginf(lls), [True, False, True, False])
    np.testing.assert_allclose(np.exp(lls[jnp.array([1, 3])]), [0.45, 0.55], rtol=1e-6)
    assert _finite(flows) and float(flows.weight) == 4
    np.testing.assert_allclose(flows.sums["sum0"].sum(), 2, rtol=1e-6)
    gradient = jax.grad(lambda p: jnp.where(jnp.isfinite(pc(p, x)), pc(p, x), 0.0).sum())(params)
    assert _finite(gradient)
    assert _finite(jax.grad(lambda p: pc(p, x).sum())(params)), "rows at -inf have gradient 0"


def test_zero_weights_give_exactly_minus_infinity() -> None:
    # Only the second component may make category 1, and its weight is 0.
    pc = juice.compile(_pair([[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.5, 0.5]], (1.0, 0.0)))
    params = pc.init(jax.random.key(0))
    lls, flows = pc.log_likelihood_and_flows(params, np.array([[1, 0], [0, 0]]))
    assert np.isneginf(lls[0])
    np.testing.assert_allclose(lls[1], np.log(0.5), rtol=1e-6)
    assert _finite(flows)


def test_missing_rows_and_columns() -> None:
    root = _pair([[0.2, 0.8], [0.9, 0.1]], [[0.3, 0.7], [0.6, 0.4]])
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    x = np.array([[0, 1], [1, 0], [99, -5]])  # what stands where values are missing does not matter
    row = np.array([[False, False], [False, False], [True, True]])
    lls, flows = pc.log_likelihood_and_flows(params, x, row)
    np.testing.assert_allclose(lls[2], 0.0, atol=1e-6)
    np.testing.assert_allclose(
        lls, oracle.log_likelihood(root, pc.node_params(params), x, row)[:, 0], atol=1e-6
    )
    np.testing.assert_allclose(
        flows.inputs["categorical0"]["counts"].sum((1, 2)), [3, 3], rtol=1e-6
    )
    column = np.array([False, True])
    np.testing.assert_allclose(
        pc.log_likelihood(params, x[:2], column), np.log([0.55, 0.45]), rtol=1e-6
    )
    by_row = pc.log_likelihood(params, x[:2], np.broadcast_to(column, (2, 2)))
    np.testing.assert_array_equal(by_row, pc.log_likelihood(params, x[:2], column))


def test_missing_floats_may_be_nan() -> None:
    leaves = [juice.inputs(v, num_nodes=2, dist=Gaussian(mu=0.0, sigma=1.0)) for v in range(2)]
    pc = juice.compile(juice.summate(juice.multiply(*leaves), num_nodes=1))
    params = pc.init(jax.random.key(0))
    x = np.array([[np.nan, 0.5], [1.0, np.nan]], np.float32)
    _, flows = pc.log_likelihood_and_flows(params, x, np.isnan(x))
    assert _finite(flows)
    gradient = jax.grad(lambda p: pc.log_likelihood(p, x, np.isnan(x)).sum())(params)
    assert _finite(gradient)
    with pytest.raises(juice.DataError, match="column 0 of x holds nan"):
        pc.log_likelihood(params, x)


@pytest.mark.parametrize("batch", (0, 1, 7, 16, 17))
def test_batches(batch: int) -> None:
    root = juice.structures.HMM(6, 5, 4)
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    x = np.random.default_rng(0).integers(0, 4, (batch, 6))
    lls, flows = pc.log_likelihood_and_flows(params, x)
    assert lls.shape == (batch,) and float(flows.weight) == batch
    np.testing.assert_allclose(flows.inputs["categorical0"]["counts"].sum(), 6 * batch, rtol=1e-5)
    np.testing.assert_allclose(
        lls, oracle.log_likelihood(root, pc.node_params(params), x)[:, 0], atol=1e-5
    )


@pytest.mark.parametrize("batch", (0, 1, 17))
def test_batches_of_shared_elements(batch: int) -> None:
    leaves = [juice.inputs(0, num_nodes=2, block_size=2, dist=Categorical(4)) for _ in range(3)]
    edges = np.array([[0, 0, 1, 1], [0, 1, 1, 2]])
    blocks = juice.summate(*leaves, num_nodes=4, block_size=2, edge_ids=edges)
    root = juice.summate(juice.multiply(blocks), num_nodes=1)
    pc = juice.compile(root)
    assert any(layer.shares_elements for stage in pc.program.stages for layer in stage)
    params, x = pc.init(jax.random.key(0)), np.arange(batch)[:, None] % 4
    lls, flows = pc.log_likelihood_and_flows(params, x)
    assert lls.shape == (batch,) and float(flows.weight) == batch
    expected = oracle.log_likelihood(root, pc.node_params(params), x)[:, 0]
    np.testing.assert_allclose(lls, expected, atol=1e-5)
    np.testing.assert_allclose(pc.get_node_flows(flows, blocks).sum(), batch, rtol=1e-5)
    assert pc.log_likelihood(params, x, propagation="MPE").shape == (batch,)


def test_variables_with_different_numbers_of_categories() -> None:
    root = _pair([[1.0], [1.0]], [[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]])
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    lls = pc.log_likelihood(params, np.array([[0, c] for c in range(4)], np.uint8))
    np.testing.assert_allclose(np.exp(lls), 0.25, rtol=1e-6)


def test_families_mix_and_ids_may_be_floats() -> None:
    a = juice.inputs(0, num_nodes=2, dist=Categorical(3))
    b = juice.inputs(1, num_nodes=2, dist=Gaussian(mu=0.0, sigma=1.0))
    root = juice.summate(juice.multiply(a, b), num_nodes=1)
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    x = np.array([[2.0, 0.3], [0.0, -1.0]])
    expected = oracle.log_likelihood(root, pc.node_params(params), x)[:, 0]
    np.testing.assert_allclose(pc.log_likelihood(params, x), expected, rtol=1e-5)
    with pytest.raises(juice.DataError, match=r"column 0 of x holds 1\.5"):
        pc.log_likelihood(params, np.array([[1.5, 0.3]]))


@pytest.mark.parametrize("dtype", (np.uint8, np.int8, np.int64, np.float16, jnp.bfloat16, bool))
def test_ids_of_any_type(dtype: type) -> None:
    root = _pair([[0.2, 0.8], [0.9, 0.1]], [[0.3, 0.7], [0.6, 0.4]])
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    x = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    np.testing.assert_array_equal(pc(params, x.astype(dtype)), pc(params, x))


def test_an_id_out_of_range_is_an_error_and_nan_inside_jit() -> None:
    pc = juice.compile(_pair([[0.2, 0.8], [0.9, 0.1]], [[0.3, 0.7], [0.6, 0.4]]))
    params = pc.init(jax.random.key(0))
    x = np.array([[0, 2], [0, 1], [-1, 0]])
    with pytest.raises(juice.DataError, match="column 0 of x holds -1"):
        pc.log_likelihood(params, x)
    for lls in (
        jax.jit(pc.log_likelihood)(params, x),
        pc.log_likelihood(params, x, validate=False),
    ):
        np.testing.assert_array_equal(np.isnan(lls), [True, False, True])


def test_a_long_chain_in_float32() -> None:
    """Its flows keep their digits: values of -2300 nats, stored whole, would lose four."""
    root = juice.structures.HMM(1000, 4, 10)
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    x = np.random.default_rng(0).integers(0, 10, (3, 1000))
    lls, flows = pc.log_likelihood_and_flows(params, x)
    values = pc.node_params(params)
    np.testing.assert_allclose(lls, oracle.log_likelihood(root, values, x)[:, 0], rtol=1e-6)
    expected = oracle.circuit_flows(root, values, x).sums
    for ns, flow in expected.items():
        np.testing.assert_allclose(pc.get_node_flows(flows, ns), flow, rtol=2e-5)


def test_an_untrained_image_model_is_not_clamped() -> None:
    leaves = [juice.inputs(v, num_nodes=2, dist=Categorical(256)) for v in range(784)]
    pc = juice.compile(juice.summate(juice.multiply(*leaves), num_nodes=1))
    params = pc.init(jax.random.key(0), perturbation=2.0)
    x = np.random.default_rng(0).integers(0, 256, (2, 784), dtype=np.uint8)
    lls = pc.log_likelihood(params, x)
    assert (np.abs(lls + 784 * np.log(256)) < 150).all()
    expected = oracle.log_likelihood(pc.root, pc.node_params(params), x)[:, 0]
    np.testing.assert_allclose(lls, expected, rtol=1e-6)


def test_log_likelihoods_far_below_the_range_of_exp() -> None:
    leaf = juice.inputs(0, num_nodes=2, dist=Gaussian(mu=0.0, sigma=1.0))
    pc = juice.compile(juice.summate(leaf, num_nodes=1))
    params = pc.init(jax.random.key(0))
    lls = pc.log_likelihood(params, np.array([[1e3], [1e4]]))
    assert (np.asarray(lls) < [-1e5, -1e7]).all() and np.isfinite(lls).all()


def test_a_block_is_not_drowned_by_what_only_others_read() -> None:
    # Each block reads three of four leaves, one of them hundreds of nats above the others.
    leaves = [
        juice.inputs(
            0, num_nodes=2, block_size=2, dist=Gaussian(), params={"mu": [m, m], "sigma": [1, 1]}
        )
        for m in (0.0, 30.0, 31.0, 32.0)
    ]
    picks = [[0, 1, 2], [1, 2, 3], [0, 2, 3], [0, 1, 3]]
    edges = np.array([[block, leaf] for block, row in enumerate(picks) for leaf in row]).T
    root = juice.summate(*leaves, num_nodes=8, block_size=2, edge_ids=edges)
    pc = juice.compile(root)
    assert pc.program.stages[0][0].shares_elements
    params, x = pc.init(jax.random.key(0)), np.zeros((1, 1))
    values = pc.node_params(params)
    for options in PROPAGATIONS:
        lls, flows = pc.log_likelihood_and_flows(params, x, **options)
        expected = oracle.log_likelihood(root, values, x, **options)
        assert expected[0].min() < -400 < -10 < expected[0].max()
        np.testing.assert_allclose(lls, expected, rtol=1e-5)
        wanted = oracle.circuit_flows(root, values, x, **options).sums[root]
        np.testing.assert_allclose(pc.get_node_flows(flows, root), wanted, rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(sum(f.sum() for f in flows.sums.values()), 8, rtol=1e-5)


PROPAGATIONS: list[dict[str, Any]] = [
    {},
    {"propagation": "MPE"},
    {"propagation": "GeneralLL", "alpha": 0.7},
]


def test_impossible_elements_and_blocks_beside_possible_ones() -> None:
    # Leaf i makes category i alone, and each block reads two leaves of four.
    leaves = [
        juice.inputs(0, num_nodes=2, block_size=2, dist=Categorical(5), params=np.eye(5)[[i, i]])
        for i in range(4)
    ]
    edges = np.array([[0, 0, 1, 1, 2, 2], [0, 1, 1, 2, 0, 2]])
    first = juice.summate(*leaves[:3], num_nodes=6, block_size=2, edge_ids=edges)
    second = juice.summate(juice.multiply(first), leaves[3], num_nodes=1)
    pc = juice.compile(second)
    assert any(layer.shares_elements for stage in pc.program.stages for layer in stage)
    params, x = pc.init(jax.random.key(0)), np.arange(5)[:, None]
    values = pc.node_params(params)
    for options in PROPAGATIONS:
        lls, flows = pc.log_likelihood_and_flows(params, x, **options)
        np.testing.assert_array_equal(np.isneginf(lls), [False] * 4 + [True])
        expected = oracle.log_likelihood(second, values, x, **options)[:, 0]
        np.testing.assert_allclose(lls, expected, rtol=1e-6)
        wanted = oracle.circuit_flows(second, values, x, **options).sums
        for ns in (first, second):
            np.testing.assert_allclose(pc.get_node_flows(flows, ns), wanted[ns], rtol=1e-5)
    assert _finite(jax.grad(lambda p: pc(p, x).sum())(params))


def test_a_node_without_flow_keeps_its_parameters() -> None:
    root = _pair([[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.2, 0.8]])
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    tx = juice.optim.full_batch_em(pc)
    _, flows = pc.log_likelihood_and_flows(params, np.array([[0, 0], [0, 1]]))
    updates, _ = tx.update(flows, tx.init(params), params)
    new = jax.tree.map(jnp.add, params, updates)
    probs = np.asarray(new["inputs"]["categorical0"]["probs"])
    np.testing.assert_array_equal(
        probs[1, :, 1], params["inputs"]["categorical0"]["probs"][1, :, 1]
    )
    assert _finite(new)
