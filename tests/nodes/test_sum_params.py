"""Weights of sums: forms, normalization, pseudocounts, weights fixed at zero."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxjuice import ParameterError, StructureError, distributions
from jaxjuice.nodes import inputs, summate

BERNOULLI = distributions.Bernoulli()
EDGES = np.array([[1, 0, 0], [0, 2, 1]])
"""Of 2 node blocks of 2 with 3 child blocks of 3, in no order."""


def sparse_sum(**options):
    child = inputs(0, num_nodes=9, dist=BERNOULLI, block_size=3)
    return summate(child, edge_ids=EDGES, num_nodes=4, block_size=2, **options)


def dense(ns):
    """The weights as a matrix `[num_nodes, num_ch_nodes]`, written out in loops."""
    matrix = np.zeros((ns.num_nodes, ns.num_ch_nodes))
    for edge in range(ns.edge_ids.shape[1]):
        for n in range(ns.block_size):
            for c in range(ns.ch_block_size):
                row = ns.edge_ids[0, edge] * ns.block_size + n
                matrix[row, ns.edge_ids[1, edge] * ns.ch_block_size + c] = ns.params[edge, n, c]
    return matrix


def off_edges():
    allowed = np.zeros((2, 3), bool)
    allowed[EDGES[0], EDGES[1]] = True
    return ~np.repeat(np.repeat(allowed, 2, axis=0), 3, axis=1)


def test_one_weight_per_edge():
    child = inputs(0, num_nodes=3, dist=BERNOULLI)
    ns = summate(child, edge_ids=[[0, 1, 1], [2, 0, 1]], params=[5.0, 1.0, 3.0])
    np.testing.assert_allclose(dense(ns), [[0, 0, 1], [0.25, 0.75, 0]])


def test_matrix_of_nodes():
    weights = np.random.default_rng(0).random((4, 9))
    weights[off_edges()] = 0
    ns = sparse_sum(params=weights)
    assert ns.params.shape == (3, 2, 3)
    np.testing.assert_allclose(dense(ns), weights / weights.sum(1, keepdims=True), rtol=1e-12)


def test_matrix_of_nodes_off_the_edges_is_refused():
    with pytest.raises(ParameterError, match="node block 0 and child block 0, which no edge"):
        sparse_sum(params=np.ones((4, 9)))


def test_three_and_four_dimensional_forms_agree():
    tiles = np.random.default_rng(1).random((2, 3, 2, 3))
    by_tiles = sparse_sum(params=tiles)
    by_edges = sparse_sum(params=tiles[EDGES[0], EDGES[1]])
    np.testing.assert_array_equal(by_tiles.params, by_edges.params)
    np.testing.assert_allclose(dense(by_edges).sum(axis=1), 1)


@pytest.mark.parametrize("shape", [(3,), (9, 4), (3, 3, 2), (3, 2, 2, 3), (4, 3, 2, 3, 1), ()])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ParameterError, match="the shape is"):
        sparse_sum(params=np.ones(shape))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.bool_, np.float16])
def test_dtypes(dtype):
    ns = sparse_sum(params=np.ones((3, 2, 3), dtype))
    exact = dtype in (np.float32, np.float64)
    wanted = dtype if exact else (np.float32 if dtype == np.float16 else np.float64)
    assert ns.params.dtype == wanted
    np.testing.assert_allclose(dense(ns).sum(axis=1), 1, rtol=1e-6)


def test_jax_arrays_and_lists():
    np.testing.assert_allclose(sparse_sum(params=jnp.ones((3, 2, 3))).params[0], 1 / 3, rtol=1e-6)
    half = sparse_sum(params=jnp.ones((3, 2, 3), jnp.bfloat16))
    assert half.params.dtype == np.float32
    child = inputs(0, num_nodes=2, dist=BERNOULLI)
    np.testing.assert_allclose(
        summate(child, num_nodes=1, params=[[1, 3]]).params[:, 0, 0], [0.25, 0.75]
    )


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_bad_values_are_refused(bad):
    weights = np.ones((3, 2, 3))
    weights[1, 0, 2] = bad
    with pytest.raises(ParameterError, match="finite and >= 0"):
        sparse_sum(params=weights)


def test_words_are_refused():
    with pytest.raises(ParameterError):
        sparse_sum(params=[["a"]])


def test_node_without_weight_is_refused():
    weights = np.ones((3, 2, 3))
    weights[0, 1] = 0
    with pytest.raises(ParameterError, match="all weights of node 3 are 0"):
        sparse_sum(params=weights)
    ns = sparse_sum()
    ns.set_params(weights, pseudocount=1.0)
    np.testing.assert_allclose(dense(ns)[3, :3], 1 / 3)


def test_normalize_false_keeps_values():
    weights = np.random.default_rng(2).random((3, 2, 3))
    ns = sparse_sum()
    ns.set_params(weights, normalize=False)
    np.testing.assert_array_equal(ns.params, weights)


def test_pseudocount_is_the_mass_of_a_node():
    weights = np.random.default_rng(3).random((3, 2, 3))
    ns = sparse_sum()
    ns.set_params(weights, pseudocount=0.7)
    for block, edges in ((0, [1, 2]), (1, [0])):
        for n in range(2):
            own = weights[edges, n]
            wanted = (own + 0.7 / own.size) / (own.sum() + 0.7)
            np.testing.assert_allclose(ns.params[edges, n], wanted, rtol=1e-12)
            assert block in (0, 1)
    with pytest.raises(ParameterError, match="pseudocount"):
        ns.set_params(weights, pseudocount=-1.0)


def test_parameters_are_copied_and_read_only():
    weights = np.ones((3, 2, 3))
    ns = sparse_sum(params=weights)
    ns_params = ns.params.copy()
    weights[:] = 7
    np.testing.assert_array_equal(ns.params, ns_params)
    with pytest.raises(ValueError, match="read-only"):
        ns.params[:] = 0
    ns.set_params(None)
    assert ns.params is None


def mask_of(*places):
    mask = np.zeros((3, 2, 3), bool)
    for place in places:
        mask[place] = True
    return mask


@pytest.mark.parametrize("mask_first", [True, False])
def test_mask_sets_weights_to_zero_and_normalizes(mask_first):
    mask = mask_of((0, 0, 1), (1, 1, 0), (1, 1, 1))
    weights = np.random.default_rng(4).random((3, 2, 3)) + 0.1
    if mask_first:
        ns = sparse_sum(params=weights, zero_param_mask=mask)
    else:
        ns = sparse_sum(params=weights)
        ns.set_zero_param_mask(mask)
    assert (ns.params[mask] == 0).all() and (ns.params[~mask] > 0).all()
    np.testing.assert_allclose(dense(ns).sum(axis=1), 1)
    np.testing.assert_array_equal(ns.zero_param_mask, mask)
    assert ns.num_parameters() == 18 - 3


def test_pseudocount_leaves_masked_weights_at_zero():
    mask = mask_of((0, 0, 1))
    ns = sparse_sum(zero_param_mask=mask)
    ns.set_params(np.ones((3, 2, 3)), pseudocount=1.0)
    np.testing.assert_allclose(ns.params[0, 0], [0.5, 0, 0.5])


def test_mask_forms():
    mask = mask_of((0, 0, 1), (2, 1, 2))
    tiles = np.zeros((2, 3, 2, 3), bool)
    tiles[EDGES[0], EDGES[1]] = mask
    by_tiles = sparse_sum(zero_param_mask=tiles)
    matrix = tiles.transpose(0, 2, 1, 3).reshape(4, 9)
    by_matrix = sparse_sum(zero_param_mask=jnp.asarray(matrix))
    np.testing.assert_array_equal(by_tiles.zero_param_mask, mask)
    np.testing.assert_array_equal(by_matrix.zero_param_mask, mask)
    assert sparse_sum(zero_param_mask=np.zeros((3, 2, 3), bool)).zero_param_mask is None
    ns = sparse_sum(zero_param_mask=mask)
    ns.set_zero_param_mask(None)
    assert ns.zero_param_mask is None and ns.num_parameters() == 18


def test_bad_masks_are_refused():
    with pytest.raises(StructureError, match="node 3 without an edge"):
        sparse_sum(zero_param_mask=mask_of((0, 1)))
    with pytest.raises(ParameterError, match="bool is wanted"):
        sparse_sum(zero_param_mask=np.zeros((3, 2, 3)))
    with pytest.raises(ParameterError, match="the shape is"):
        sparse_sum(zero_param_mask=np.zeros((3, 3, 2), bool))


def test_duplicate_keeps_the_mask():
    mask = mask_of((0, 0, 1))
    copy = sparse_sum(zero_param_mask=mask).duplicate()
    np.testing.assert_array_equal(copy.zero_param_mask, mask)
