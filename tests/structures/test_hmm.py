"""Hidden Markov models against the forward algorithm."""

import numpy as np
import oracle
import pytest

from jaxjuice import ParameterError, StructureError, distributions
from jaxjuice.nodes import InputNodes, SumNodes, block_diagonal_edge_constructor
from jaxjuice.structures import HMM, GeneralizedHMM


def random_rows(rng, rows, columns):
    table = rng.random((rows, columns)) + 0.05
    return table / table.sum(axis=1, keepdims=True)


def forward_algorithm(x, alpha, beta, gamma):
    state = gamma * beta[:, x[0]]
    for symbol in x[1:]:
        state = (state @ alpha) * beta[:, symbol]
    return np.log(state.sum())


@pytest.mark.parametrize("length", [1, 2, 3, 8])
@pytest.mark.parametrize("homogeneous", [True, False])
@pytest.mark.parametrize("block_size", [None, 1, 2, 3])
def test_log_likelihood_equals_the_forward_algorithm(length, homogeneous, block_size):
    rng = np.random.default_rng(length)
    alpha, beta, gamma = random_rows(rng, 6, 6), random_rows(rng, 6, 4), random_rows(rng, 1, 6)[0]
    root = HMM(length, 6, 4, homogeneous, block_size, alpha, beta, gamma)
    x = rng.integers(0, 4, (5, length))
    got = oracle.log_likelihood(root, oracle.dag_params(root), x)[:, 0]
    wanted = [forward_algorithm(row, alpha, beta, gamma) for row in x]
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_generalized_with_gaussian_emissions():
    rng = np.random.default_rng(0)
    mu, sigma = rng.normal(size=3), rng.random(3) + 0.5
    root = GeneralizedHMM(
        2,
        3,
        alpha=np.eye(3),
        beta={"mu": mu, "sigma": sigma},
        gamma=[0.2, 0.3, 0.5],
        input_dist=distributions.Gaussian(),
    )
    x = rng.normal(size=(4, 2))
    density = np.exp(-0.5 * ((x[:, :, None] - mu) / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))
    wanted = np.log((density.prod(axis=1) * [0.2, 0.3, 0.5]).sum(axis=1))
    got = oracle.log_likelihood(root, oracle.dag_params(root), x)[:, 0]
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_homogeneous_steps_are_tied():
    root = HMM(5, 3, 4)
    assert root.num_parameters(count_input_params=True) == 3 + 9 + 12
    sums = [ns for ns in root if isinstance(ns, SumNodes) and ns is not root]
    leaves = [ns for ns in root if isinstance(ns, InputNodes)]
    assert len({ns.get_source() for ns in sums}) == 1 and len(sums) == 4
    assert len({ns.get_source() for ns in leaves}) == 1 and len(leaves) == 5
    untied = HMM(5, 3, 4, homogeneous=False)
    assert untied.num_parameters(count_input_params=True) == 3 + 4 * 9 + 5 * 12
    assert not any(ns.is_tied for ns in untied)


def test_sparse_transitions():
    root = HMM(3, 4, 2, block_size=2, sum_edge_ids_constructor=block_diagonal_edge_constructor)
    assert root.num_parameters() == 4 + 2 * 4
    blocks = np.kron(np.eye(2), np.ones((2, 2)))
    HMM(
        3,
        4,
        2,
        block_size=2,
        alpha=blocks,
        sum_edge_ids_constructor=block_diagonal_edge_constructor,
    )
    with pytest.raises(ParameterError, match="which no edge connects"):
        HMM(
            3,
            4,
            2,
            block_size=2,
            alpha=np.ones((4, 4)),
            sum_edge_ids_constructor=block_diagonal_edge_constructor,
        )


def test_long_models_are_built():
    root = HMM(1000, 4, 3)
    assert len(list(root)) == 2 * 1000 + 999
    assert list(root.scope) == list(range(1000))


@pytest.mark.parametrize(
    "options",
    [{"seq_length": 0}, {"num_emits": 0}, {"num_latents": 0}, {"seq_length": 1.5}],
)
def test_bad_sizes_are_refused(options):
    arguments = {"seq_length": 2, "num_latents": 2, "num_emits": 2, **options}
    with pytest.raises(StructureError, match=rf"^HMM\(...\): {next(iter(options))}="):
        HMM(**arguments)
    if arguments.pop("num_emits"):
        with pytest.raises(StructureError, match=rf"^GeneralizedHMM.*{next(iter(options))}="):
            GeneralizedHMM(**arguments)


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": np.ones((3, 3))},
        {"beta": np.ones((2, 4))},
        {"gamma": np.ones(3)},
        {"gamma": [-1.0, 2.0]},
    ],
)
def test_bad_parameters_are_refused(options):
    with pytest.raises(ParameterError):
        HMM(3, 2, 3, **options)
