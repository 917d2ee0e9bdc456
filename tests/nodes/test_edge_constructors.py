"""Sparse connections of sums."""

import numpy as np
import pytest

from jaxjuice import StructureError, distributions
from jaxjuice.nodes import (
    block_diagonal_edge_constructor,
    block_sparse_rnd_blk_edge_constructor,
    inputs,
    summate,
)

BERNOULLI = distributions.Bernoulli()


def test_block_diagonal():
    edges = block_diagonal_edge_constructor(3, [3, 3])
    np.testing.assert_array_equal(edges, [[0, 0, 1, 1, 2, 2], [0, 3, 1, 4, 2, 5]])


@pytest.mark.parametrize("num_node_blocks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("ch_blocks", [[1], [4], [3, 6], [7]])
def test_block_diagonal_leaves_nothing_out(num_node_blocks, ch_blocks):
    edges = block_diagonal_edge_constructor(num_node_blocks, ch_blocks)
    assert set(edges[0]) == set(range(num_node_blocks))
    assert set(edges[1]) == set(range(sum(ch_blocks)))
    assert len({tuple(edge) for edge in edges.T}) == edges.shape[1]
    start = 0
    for blocks in ch_blocks:
        own = edges[:, (edges[1] >= start) & (edges[1] < start + blocks)]
        assert set(own[0]) == set(range(num_node_blocks))
        if blocks == num_node_blocks:
            np.testing.assert_array_equal(own[0], own[1] - start)
        assert own.shape[1] < num_node_blocks + blocks
        start += blocks


@pytest.mark.parametrize("degree", [1, 2, 5, 9, 20])
@pytest.mark.parametrize("num_node_blocks", [1, 4, 9])
def test_random_blocks(num_node_blocks, degree):
    edges = block_sparse_rnd_blk_edge_constructor(degree, seed=3)(num_node_blocks, [4, 5])
    assert len({tuple(edge) for edge in edges.T}) == edges.shape[1]
    assert (np.bincount(edges[0], minlength=num_node_blocks) == min(degree, 9)).all()
    if num_node_blocks * min(degree, 9) >= 9:
        assert set(edges[1]) == set(range(9))


def test_random_blocks_follow_the_seed():
    calls = [(5, [6]), (5, [6]), (3, [2, 2])]
    first, again, other = (
        [block_sparse_rnd_blk_edge_constructor(2, seed=seed)] * 3 for seed in (1, 1, 2)
    )
    draw = [[c(*call) for c, call in zip(cs, calls, strict=True)] for cs in (first, again, other)]
    for mine, same in zip(draw[0], draw[1], strict=True):
        np.testing.assert_array_equal(mine, same)
    assert not np.array_equal(draw[0][0], draw[2][0])
    # One constructor gives several sums different edges.
    assert not np.array_equal(draw[0][0], draw[0][1])


def test_constructors_in_summate():
    child = inputs(0, num_nodes=6, dist=BERNOULLI, block_size=2)
    diagonal = summate(
        child,
        num_nodes=6,
        block_size=2,
        sum_edge_ids_constructor=block_diagonal_edge_constructor,
    )
    np.testing.assert_array_equal(diagonal.edge_ids, [[0, 1, 2], [0, 1, 2]])
    sparse = summate(
        child,
        num_node_blocks=4,
        sum_edge_ids_constructor=block_sparse_rnd_blk_edge_constructor(
            2, seed=np.random.default_rng(0)
        ),
    )
    assert sparse.edge_ids.shape == (2, 8)
    # Edges that are given go first.
    given = summate(
        child, edge_ids=[[0], [1]], sum_edge_ids_constructor=block_diagonal_edge_constructor
    )
    np.testing.assert_array_equal(given.edge_ids, [[0], [1]])


def test_bad_arguments_are_refused():
    for degree in (0, 1.5):
        with pytest.raises(StructureError, match="num_chs_per_block"):
            block_sparse_rnd_blk_edge_constructor(degree)
    child = inputs(0, num_nodes=6, dist=BERNOULLI, block_size=2)
    for constructor in (block_diagonal_edge_constructor, block_sparse_rnd_blk_edge_constructor(1)):
        with pytest.raises(StructureError, match="how many nodes"):
            summate(child, sum_edge_ids_constructor=constructor)
