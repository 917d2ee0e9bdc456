"""Sum vectors: edges in all forms, checks, ties."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxjuice import ParameterError, StructureError, distributions
from jaxjuice.nodes import SumNodes, inputs, multiply, summate

BERNOULLI = distributions.Bernoulli()


def leaf(var=0, num_nodes=4, block_size=2):
    return inputs(var, num_nodes=num_nodes, dist=BERNOULLI, block_size=block_size)


def test_fully_connected():
    a, b = leaf(), leaf(0, 6)
    ns = summate(a, b, num_node_blocks=2, block_size=3)
    assert isinstance(ns, SumNodes)
    assert (ns.num_nodes, ns.block_size, ns.ch_block_size) == (6, 3, 2)
    assert (ns.num_ch_nodes, ns.num_ch_blocks) == (10, 5)
    assert ns.edge_ids.dtype == np.int64
    np.testing.assert_array_equal(ns.edge_ids, [[0] * 5 + [1] * 5, [0, 1, 2, 3, 4] * 2])
    assert ns.params is None and ns.zero_param_mask is None and ns.parameterization is None
    assert list(ns.scope) == [0]
    assert summate([a, b], num_nodes=6, block_size=3).num_node_blocks == 2


@pytest.mark.parametrize("convert", [np.array, list, jnp.array, tuple])
def test_edges_as_pairs_keep_their_order(convert):
    ns = summate(leaf(), leaf(0, 6), edge_ids=convert([[1, 0, 0], [0, 4, 1]]), block_size=3)
    assert ns.num_node_blocks == 2
    np.testing.assert_array_equal(ns.edge_ids, [[1, 0, 0], [0, 4, 1]])


@pytest.mark.parametrize("convert", [np.array, list, jnp.array])
def test_edges_as_boolean_matrix(convert):
    matrix = [[True, False, True], [False, True, True]]
    ns = summate(leaf(0, 6), edge_ids=convert(matrix))
    np.testing.assert_array_equal(ns.edge_ids, [[0, 0, 1, 1], [0, 2, 1, 2]])


def test_edges_by_child_count_each_childs_own_blocks():
    a, b = leaf(), leaf(0, 6)
    parts = [np.array([[0, 1], [1, 0]]), np.array([[0, 1], [2, 0]])]
    originals = [part.copy() for part in parts]
    ns = summate(a, b, edge_ids=parts)
    np.testing.assert_array_equal(ns.edge_ids, [[0, 1, 0, 1], [1, 0, 4, 2]])
    # The caller's arrays are left alone.
    for part, original in zip(parts, originals, strict=True):
        np.testing.assert_array_equal(part, original)
    mixed = summate(a, b, edge_ids=[jnp.array([[True, False], [False, True]]), [[0], [2]]])
    np.testing.assert_array_equal(mixed.edge_ids, [[0, 1, 0], [0, 1, 4]])
    unequal = summate(a, b, edge_ids=[[[0], [1]], [[0, 1, 1], [0, 1, 2]]], num_node_blocks=2)
    np.testing.assert_array_equal(unequal.edge_ids, [[0, 0, 1, 1], [1, 2, 3, 4]])


def test_one_child_in_a_list_of_edges():
    ns = summate(leaf(), edge_ids=[[[0, 0], [0, 1]]])
    np.testing.assert_array_equal(ns.edge_ids, [[0, 0], [0, 1]])


def test_number_of_nodes_is_checked_against_edges():
    assert summate(leaf(), edge_ids=[[0, 2, 1], [0, 1, 0]]).num_nodes == 3
    assert summate(leaf(), edge_ids=[[0, 0], [0, 1]], num_nodes=3, block_size=3).num_nodes == 3
    with pytest.raises(StructureError, match="node blocks are 0 to 1"):
        summate(leaf(), edge_ids=[[0, 2, 1], [0, 1, 0]], num_node_blocks=2)


def test_child_blocks_of_different_sizes_meet_at_the_greatest_common_divisor():
    ns = summate(leaf(0, 12, 6), leaf(0, 4, 4), num_nodes=1)
    assert (ns.ch_block_size, ns.num_ch_blocks) == (2, 8)
    assert ns.edge_ids.shape == (2, 8)
    by_child = summate(leaf(0, 12, 6), leaf(0, 4, 4), edge_ids=[[[0], [5]], [[0], [1]]])
    np.testing.assert_array_equal(by_child.edge_ids, [[0, 0], [5, 7]])


@pytest.mark.parametrize(
    ("edge_ids", "message"),
    [
        ([[0], [2]], "child block 2, and the child blocks are 0 to 1"),
        ([[0, -1], [0, 1]], "node block -1"),
        ([[0, 2], [0, 1]], r"leaves 1 of 3 node blocks without a child \(first: block 1\)"),
        ([[0, 0], [1, 1]], "connects node block 0 with child block 1 2 times"),
        ([[0, 1]], r"shape \(1, 2\)"),
        ([0, 1], r"shape \(2,\)"),
        ([[0, 1], [0]], "different lengths"),
        ([[0.0], [1.0]], "float64"),
        (np.zeros((2, 0), int), "without a child"),
        (np.zeros((0, 2), bool), "without a child|shape"),
        ([[True, False, False]], r"shape \(1, 3\), and .* = \(1, 2\)"),
        ([[True, False], [False, False]], "leaves 1 of 2 node blocks without a child"),
        ([[[0], [0]], [[0], [1]]], "a list for 2 of 1 children"),
        ([[[0], [2]]], "block 2 of child 0, which has blocks 0 to 1"),
        ("edges", "dtype|shape"),
    ],
)
def test_bad_edges_are_refused(edge_ids, message):
    with pytest.raises(StructureError, match=message):
        summate(leaf(), edge_ids=edge_ids)


def test_bad_sizes_and_children_are_refused():
    with pytest.raises(StructureError, match="how many nodes"):
        summate(leaf())
    with pytest.raises(StructureError, match="multiple of the block size 3"):
        summate(leaf(), num_nodes=4, block_size=3)
    with pytest.raises(StructureError, match="at least one child"):
        summate([], num_nodes=1)
    with pytest.raises(StructureError, match="not a node vector"):
        summate(leaf(), 3, num_nodes=1)
    a = leaf()
    with pytest.raises(StructureError, match="as a child twice"):
        summate(a, leaf(), a, num_nodes=1)


def test_sums_of_sums_are_refused():
    with pytest.raises(StructureError, match=r"child 0 is SumNodes.*products or inputs"):
        summate(summate(leaf(), num_nodes=2), num_nodes=1)


def test_different_scopes_are_refused_by_name():
    a, b = leaf(0), multiply(leaf(0), leaf(3))
    with pytest.raises(StructureError) as error:
        summate(a, b, num_nodes=1)
    message = str(error.value)
    assert "not smooth" in message and repr(a) in message and repr(b) in message
    assert "{0}" in message and "{0, 3}" in message


def test_edges_are_read_only():
    ns = summate(leaf(), num_nodes=1)
    with pytest.raises(ValueError, match="read-only"):
        ns.edge_ids[0, 0] = 1


def test_untied_duplicate_has_its_own_parameters():
    ns = summate(leaf(), num_nodes=2, params=np.arange(1, 9).reshape(2, 4))
    copy = ns.duplicate(leaf(3))
    assert list(copy.scope) == [3] and not copy.is_tied
    np.testing.assert_array_equal(copy.params, ns.params)
    before = ns.params
    copy.set_params(np.ones((2, 4)))
    np.testing.assert_array_equal(ns.params, before)


def test_tied_duplicates_share_the_ultimate_source():
    a = leaf()
    ns = summate(a, num_nodes=2, edge_ids=[[0, 1, 1], [1, 0, 1]])
    first = ns.duplicate(leaf(1), tie_params=True)
    second = first.duplicate(leaf(2), tie_params=True)
    assert second.source is ns and second.is_tied and second.get_source() is ns
    assert ns.duplicate(tie_params=True).chs == (a,)
    assert second.edge_ids is ns.edge_ids
    second.set_params(np.arange(1, 7).reshape(3, 1, 2))
    assert second.params is None and second.has_params()
    np.testing.assert_allclose(ns.params[0], [[1 / 3, 2 / 3]])
    mask = np.zeros((3, 1, 2), bool)
    mask[0, 0, 0] = True
    first.set_zero_param_mask(mask)
    np.testing.assert_array_equal(second.zero_param_mask, mask)
    np.testing.assert_array_equal(ns.params[0], [[0.0, 1.0]])
    untied = second.duplicate(leaf(4))
    np.testing.assert_array_equal(untied.params, ns.params)
    np.testing.assert_array_equal(untied.zero_param_mask, mask)


def test_source_node_argument():
    ns = summate(leaf(), num_nodes=2)
    tied = summate(leaf(1), num_nodes=2, source_node=ns)
    assert tied.source is ns and tied.edge_ids is ns.edge_ids
    again = summate(leaf(1), edge_ids=np.array(ns.edge_ids), source_node=tied)
    assert again.source is ns
    for other in (
        {"num_nodes": 3},
        {"num_nodes": 2, "block_size": 2},
        {"edge_ids": [[0, 1], [0, 1]]},
    ):
        with pytest.raises(StructureError, match="cannot be tied"):
            summate(leaf(1), source_node=ns, **other)
    with pytest.raises(StructureError, match="cannot be tied"):
        summate(leaf(1, 6), num_nodes=2, source_node=ns)
    with pytest.raises(ParameterError, match="tied"):
        summate(leaf(1), num_nodes=2, source_node=ns, params=np.ones((2, 4)))


def test_duplicate_over_unfit_children_is_refused():
    ns = summate(leaf(), num_nodes=2)
    with pytest.raises(StructureError, match="does not have the number of nodes and block size"):
        ns.duplicate(leaf(0, 4, 4))
    with pytest.raises(StructureError, match="2 children came, and it has 1"):
        ns.duplicate(leaf(), leaf())
