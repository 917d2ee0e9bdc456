"""Samples against exact probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxjuice as juice
from tests import oracle
from tests.circuit.test_against_oracle import STRUCTURES

NUM_SAMPLES = 20_000


@pytest.mark.parametrize(
    "name", ("HMM of three", "tied HMM", "PD", "picking chains", "PD with shared elements")
)
def test_pairs_of_variables_come_as_often_as_they_should(name: str) -> None:
    pc = juice.compile(STRUCTURES[name]())
    params = pc.init(jax.random.key(1), perturbation=4.0)
    x = np.asarray(juice.queries.sample(pc, params, jax.random.key(2), NUM_SAMPLES))
    assert x.shape == (NUM_SAMPLES, pc.num_vars) and x.dtype == np.int32
    assert set(np.unique(x)) <= {0, 1}
    for i, j in [(0, 1), (0, pc.num_vars - 1), (1, 2)]:
        pair = np.zeros((4, pc.num_vars), int)
        pair[:, i], pair[:, j] = [0, 0, 1, 1], [0, 1, 0, 1]
        missing = np.ones(pc.num_vars, bool)
        missing[[i, j]] = False
        values = pc.node_params(params)
        expected = np.exp(oracle.log_likelihood(pc.root, values, pair, missing)[:, 0])
        observed = np.bincount(2 * x[:, i] + x[:, j], minlength=4) / NUM_SAMPLES
        error = (observed - expected) / np.sqrt(expected * (1 - expected) / NUM_SAMPLES)
        assert (np.abs(error) < 5).all(), (i, j, error)


def test_the_same_key_gives_the_same_samples() -> None:
    pc = juice.compile(STRUCTURES["tied HMM"]())
    params = pc.init(jax.random.key(0))
    first, again, other = (
        juice.queries.sample(pc, params, jax.random.key(seed), 50) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert juice.queries.sample(pc, params, jax.random.key(0), 0).shape == (0, 9)


def test_families_mix_in_samples() -> None:
    a = juice.inputs(0, num_nodes=2, dist=juice.distributions.Categorical(3))
    b = juice.inputs(2, num_nodes=2, dist=juice.distributions.Gaussian(mu=5.0, sigma=1.0))
    pc = juice.compile(juice.summate(juice.multiply(a, b), num_nodes=1))
    x = juice.queries.sample(pc, pc.init(jax.random.key(0)), jax.random.key(0), 4000)
    assert x.dtype == jnp.float32 and x.shape == (4000, 3)
    assert set(np.unique(x[:, 0])) == {0.0, 1.0, 2.0}
    assert np.all(x[:, 1] == 0), "a variable that the circuit does not have"
    assert abs(float(x[:, 2].mean()) - 5) < 2


def test_several_roots_and_external_leaves_are_errors() -> None:
    leaf = juice.inputs(0, num_nodes=2, dist=juice.distributions.Bernoulli())
    pc = juice.compile(juice.summate(leaf, num_nodes=2))
    with pytest.raises(juice.StructureError, match="2 roots"):
        juice.queries.sample(pc, pc.init(jax.random.key(0)), jax.random.key(0), 1)
    leaf = juice.inputs(0, num_nodes=2, dist=juice.distributions.External())
    pc = juice.compile(juice.summate(leaf, num_nodes=1))
    with pytest.raises(juice.StructureError, match="External"):
        juice.queries.sample(pc, pc.init(jax.random.key(0)), jax.random.key(0), 1)
