"""Parameters between the compiled layout and that of the DAG."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxjuice as juice
from jaxjuice.distributions import Bernoulli, Categorical, Gaussian
from jaxjuice.nodes import InputNodes, SumNodes
from tests import oracle
from tests.circuit.test_against_oracle import STRUCTURES, random_case


@pytest.mark.parametrize("seed", (6, 7, 15, 19))
def test_init_takes_what_the_nodes_carry(seed: int) -> None:
    root, _, _ = random_case(seed)
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    for ns in root:
        source = ns.get_source()
        if isinstance(source, SumNodes):
            np.testing.assert_allclose(pc.get_node_params(params, ns), source.params, rtol=1e-6)
        elif isinstance(source, InputNodes):
            for name, value in source.params.items():
                np.testing.assert_allclose(pc.get_node_params(params, ns)[name], value, rtol=1e-6)


@pytest.mark.parametrize("seed", (3, 11, 14))
def test_all_parameters_go_to_the_nodes_and_back(seed: int) -> None:
    root, _, _ = random_case(seed)
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    back = pc.params_from_nodes(pc.node_params(params))
    jax.tree.map(np.testing.assert_array_equal, params, back)


def test_drawn_parameters_are_normalized_and_masks_hold() -> None:
    leaf = juice.inputs(0, num_node_blocks=3, block_size=2, dist=Categorical(4))
    mask = np.zeros((9, 2, 2), bool)
    mask[0, 0, :] = True
    root = juice.summate(leaf, num_node_blocks=3, block_size=2, zero_param_mask=mask)
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0), perturbation=3.0)
    weights = pc.get_node_params(params, root)
    assert isinstance(weights, np.ndarray)
    np.testing.assert_array_equal(weights == 0, mask)
    for group in params["sums"].values():
        np.testing.assert_allclose(group.sum(-1), 1, rtol=1e-6)
    np.testing.assert_allclose(params["inputs"]["categorical0"]["probs"].sum(1), 1, rtol=1e-6)
    equal = pc.init(jax.random.key(0), perturbation=0.0)
    np.testing.assert_allclose(pc.get_node_params(equal, root)[1, 1], 1 / 6, rtol=1e-6)
    np.testing.assert_allclose(pc.get_node_params(equal, root)[1, 0], 1 / 4, rtol=1e-6)
    assert pc.num_sum_parameters == 36 - 2


def test_set_node_params() -> None:
    leaf = juice.inputs(0, num_nodes=4, dist=Bernoulli())
    inner = juice.summate(leaf, num_node_blocks=2, block_size=2)
    other = juice.inputs(1, num_nodes=4, dist=Gaussian(mu=0.0, sigma=1.0))
    root = juice.summate(juice.multiply(inner, other), num_nodes=1)
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    matrix = np.arange(16.0).reshape(4, 4) + 1
    new = pc.set_node_params(params, inner, matrix)
    edges = pc.get_node_params(new, inner)
    assert isinstance(edges, np.ndarray)
    again = pc.set_node_params(params, inner, edges)
    np.testing.assert_allclose(pc.get_node_params(again, inner), edges, rtol=1e-6)
    normalized = matrix / matrix.sum(1, keepdims=True)
    np.testing.assert_allclose(oracle.dense_weights(inner, edges), normalized, rtol=1e-6)
    np.testing.assert_array_equal(pc.get_node_params(params, root), pc.get_node_params(new, root))
    new = pc.set_node_params(new, other, {"mu": np.arange(4.0), "sigma": np.full(4, 2.0)})
    found = pc.get_node_params(new, other)
    assert isinstance(found, dict)
    np.testing.assert_array_equal(found["mu"], np.arange(4))


def test_values_that_do_not_fit_are_errors() -> None:
    leaf = juice.inputs(0, num_nodes=4, dist=Bernoulli())
    root = juice.summate(leaf, num_nodes=2)
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    with pytest.raises(juice.ParameterError, match=r"shape \(3, 3\)"):
        pc.set_node_params(params, root, np.ones((3, 3)))
    with pytest.raises(juice.ParameterError, match="only weights of 0"):
        pc.set_node_params(params, root, np.zeros((2, 4)))
    with pytest.raises(juice.ParameterError, match="finite"):
        pc.set_node_params(params, root, -np.ones((2, 4)))
    stranger = juice.summate(juice.inputs(0, num_nodes=4, dist=Bernoulli()), num_nodes=2)
    with pytest.raises(juice.ParameterError, match="not in this circuit"):
        pc.get_node_params(params, stranger)
    with pytest.raises(juice.ParameterError, match="has no parameters"):
        pc.get_node_params(params, juice.multiply(leaf))


@pytest.mark.parametrize("name", ("tied HMM", "PD"))
def test_unconstrained_and_back(name: str) -> None:
    pc = juice.compile(STRUCTURES[name]())
    params = pc.init(jax.random.key(0))
    back = pc.from_unconstrained(pc.to_unconstrained(params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6), params, back)


def test_zero_weights_stay_zero_through_logits() -> None:
    leaf = juice.inputs(0, num_nodes=3, dist=Bernoulli())
    root = juice.summate(leaf, num_nodes=1, params=np.array([[0.5, 0.0, 0.5]]))
    pc = juice.compile(root)
    raw = pc.to_unconstrained(pc.init(jax.random.key(0)))
    x = np.array([[0], [1]])

    def loss(raw):
        return -pc.log_likelihood(pc.from_unconstrained(raw), x).sum()

    gradient = jax.grad(loss)(raw)
    assert all(bool(jnp.isfinite(g).all()) for g in jax.tree.leaves(gradient))
    assert pc.from_unconstrained(raw)["sums"]["sum0"][0, 0, 0, 1] == 0
