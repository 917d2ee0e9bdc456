"""Hidden Chow-Liu trees: the circuit follows the tree."""

import itertools

import numpy as np
import oracle
import pytest
from random_circuits import randomize_params

from jaxjuice import DataError, StructureError, distributions
from jaxjuice.nodes import InputNodes, ProductNodes, SumNodes
from jaxjuice.structures import HCLT, chow_liu_tree

BINARY = {"input_dist": distributions.Bernoulli()}


def walk(num_samples=500, num_vars=8, seed=0):
    rng = np.random.default_rng(seed)
    flips = rng.random((num_samples, num_vars)) < 0.2
    return flips.cumsum(axis=1) % 2


def test_scopes_are_the_subtrees_of_the_tree():
    x = walk()
    tree = chow_liu_tree(x)
    below = {v: {v} for v in range(8)}
    for v in reversed(tree.order().tolist()):
        if tree.parents[v] >= 0:
            below[int(tree.parents[v])] |= below[v]
    inner = {v for v in range(8) if len(below[v]) > 1}
    root = HCLT(x, 4, **BINARY)
    products = [ns for ns in root if isinstance(ns, ProductNodes)]
    assert sorted(map(sorted, (ns.scope for ns in products))) == sorted(
        sorted(below[v]) for v in inner
    )
    sums = [ns for ns in root if isinstance(ns, SumNodes)]
    assert len(sums) == len(inner)
    assert len([ns for ns in root if isinstance(ns, InputNodes)]) == 8
    # Every pair of neighbors meets in a product: the parent's input with the child's region.
    for ns in products:
        own = [child for child in ns.chs if isinstance(child, InputNodes)]
        assert own


def test_likelihood_equals_that_of_the_latent_tree():
    """Sums all states of all hidden variables, on a chain of three."""
    x = walk(2000, 3, seed=1)
    tree = chow_liu_tree(x)
    assert tree.root == 1 and tree.parents.tolist() == [1, -1, 1]
    root = HCLT(x, 2, **BINARY)
    randomize_params(np.random.default_rng(0), root)
    params = oracle.dag_params(root)
    leaves = {ns.var: params[ns]["prob"] for ns in root if isinstance(ns, InputNodes)}
    prior = params[root][0, 0]
    for row in itertools.product([0, 1], repeat=3):
        wanted = 0.0
        for z in range(2):
            emissions = [leaves[v][z] if row[v] else 1 - leaves[v][z] for v in range(3)]
            wanted += prior[z] * np.prod(emissions)
        got = oracle.log_likelihood(root, params, np.array([row]))[0, 0]
        np.testing.assert_allclose(got, np.log(wanted), rtol=1e-12)


def test_sizes():
    root = HCLT(walk(), 6, block_size=3, **BINARY)
    inner = [ns for ns in root if isinstance(ns, SumNodes) and ns is not root]
    assert {(ns.num_nodes, ns.block_size) for ns in inner} == {(6, 3)}
    assert (root.num_nodes, root.block_size) == (1, 1)
    roots = HCLT(walk(), 6, num_root_ns=4, **BINARY)
    assert roots.num_nodes == 4


def test_tied_inputs():
    root = HCLT(walk(), 3, tie_input_params=True, **BINARY)
    leaves = [ns for ns in root if isinstance(ns, InputNodes)]
    assert len({ns.get_source() for ns in leaves}) == 1
    assert sum(ns.is_tied for ns in leaves) == 7


def test_constant_columns():
    x = walk()
    x[:, 2] = 0
    x[:, 5] = 1
    root = HCLT(x, 3, **BINARY)
    assert list(root.scope) == list(range(8))


def test_continuous_columns_and_missing_values():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 5)).cumsum(axis=1)
    x[rng.random(x.shape) < 0.1] = np.nan
    root = HCLT(x, 3, input_dist=distributions.Gaussian())
    assert list(root.scope) == list(range(5))


def test_a_long_chain_is_deep_and_built():
    x = walk(4000, 150, seed=4)
    root = HCLT(x, 2, **BINARY)
    assert list(root.scope) == list(range(150))


@pytest.mark.parametrize(
    "x",
    [np.zeros(3), np.zeros((3, 0)), np.zeros((0, 3)), [["a"]], np.full((2, 2), np.inf)],
)
def test_bad_data_are_refused(x):
    with pytest.raises(DataError, match=r"^HCLT\(x, \.\.\.\): "):
        HCLT(x, 2, **BINARY)


def test_bad_options_are_refused():
    with pytest.raises(StructureError, match="num_root_ns=0"):
        HCLT(walk(), 2, num_root_ns=0, **BINARY)
    with pytest.raises(StructureError, match="chunk_size=0"):
        HCLT(walk(), 2, chunk_size=0, **BINARY)
