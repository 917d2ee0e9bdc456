"""Product vectors: edges by block and by node, sizes, checks."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxjuice import StructureError, distributions
from jaxjuice.nodes import ProductNodes, inputs, multiply, summate

BERNOULLI = distributions.Bernoulli()


def leaf(var, num_nodes=4, block_size=2):
    return inputs(var, num_nodes=num_nodes, dist=BERNOULLI, block_size=block_size)


def test_node_by_node():
    a, b, c = leaf(0), leaf(5), leaf(2)
    ns = multiply(a, b, c)
    assert isinstance(ns, ProductNodes)
    assert ns.chs == (a, b, c)
    assert list(ns.scope) == [0, 2, 5]
    assert (ns.num_nodes, ns.num_node_blocks, ns.block_size, ns.num_chs) == (4, 2, 2, 3)
    np.testing.assert_array_equal(ns.edge_ids, [[0, 0, 0], [1, 1, 1]])
    assert ns.edge_ids.dtype == np.int64
    assert not ns.sparse_edges
    np.testing.assert_array_equal(ns.child_node_ids(), np.arange(4)[:, None].repeat(3, 1))


def test_children_in_a_list():
    a, b, c = leaf(0), leaf(1), leaf(2)
    assert multiply([a, b]).chs == (a, b)
    assert multiply(ns for ns in (a, b)).chs == (a, b)
    assert multiply([a, b], c).chs == (a, b, c)


@pytest.mark.parametrize("convert", [np.array, list, jnp.array, lambda e: np.array(e, np.uint8)])
def test_edges_by_block(convert):
    a, b = leaf(0, 6), leaf(1, 4)
    ns = multiply(a, b, edge_ids=convert([[2, 0], [0, 1], [2, 1]]))
    assert (ns.num_nodes, ns.block_size) == (6, 2)
    wanted = [[4, 0], [5, 1], [0, 2], [1, 3], [4, 2], [5, 3]]
    np.testing.assert_array_equal(ns.child_node_ids(), wanted)


def test_edges_by_node():
    a, b = leaf(0, 6), leaf(1, 4)
    edges = np.array([[5, 0], [1, 3], [1, 2], [0, 0]])
    ns = multiply(a, b, edge_ids=edges, sparse_edges=True)
    assert ns.sparse_edges
    assert (ns.num_nodes, ns.block_size, ns.num_node_blocks) == (4, 2, 2)
    np.testing.assert_array_equal(ns.child_node_ids(), edges)
    np.testing.assert_array_equal(ns.edge_ids, edges)
    with pytest.raises(StructureError, match="do not fill blocks of 2"):
        multiply(a, b, edge_ids=edges[:3], sparse_edges=True)
    assert multiply(a, b, edge_ids=edges[:3], sparse_edges=True, block_size=3).block_size == 3


def test_edges_by_node_without_ids_are_node_by_node():
    ns = multiply(leaf(0), leaf(1), sparse_edges=True)
    np.testing.assert_array_equal(ns.child_node_ids(), [[0, 0], [1, 1], [2, 2], [3, 3]])


def test_unary_products():
    a = leaf(0)
    ns = multiply(a)
    assert ns.chs == (a,) and ns.num_nodes == 4
    assert multiply(summate(ns, num_nodes=3)).num_nodes == 3


def test_block_sizes_of_children_may_differ():
    a, b = leaf(0, 12, 6), leaf(1, 12, 4)
    ns = multiply(a, b)
    assert (ns.block_size, ns.num_node_blocks) == (2, 6)
    np.testing.assert_array_equal(ns.child_node_ids(), np.arange(12)[:, None].repeat(2, 1))
    by_block = multiply(a, b, edge_ids=[[5, 0]])
    np.testing.assert_array_equal(by_block.child_node_ids(), [[10, 0], [11, 1]])


def test_block_size_can_be_made_smaller():
    ns = multiply(leaf(0, 12, 6), leaf(1, 12, 6), block_size=3)
    assert (ns.block_size, ns.num_node_blocks) == (3, 4)
    with pytest.raises(StructureError, match="block_size=4 does not divide"):
        multiply(leaf(0, 12, 6), leaf(1, 12, 6), block_size=4)
    with pytest.raises(StructureError, match="block_size=4 does not divide"):
        multiply(leaf(0, 12, 6), edge_ids=[[0]], block_size=4)


def test_edges_are_copied_and_read_only():
    edges = np.array([[1, 0]])
    ns = multiply(leaf(0), leaf(1), edge_ids=edges)
    edges[:] = 0
    np.testing.assert_array_equal(ns.edge_ids, [[1, 0]])
    with pytest.raises(ValueError, match="read-only"):
        ns.edge_ids[0, 0] = 0


@pytest.mark.parametrize(
    ("edge_ids", "message"),
    [
        ([[2, 0]], "names block 2 of child 0, which has blocks 0 to 1"),
        ([[0, -1]], "names block -1 of child 1"),
        ([[0, 0, 0]], r"shape \(1, 3\)"),
        ([0, 1], r"shape \(2,\)"),
        (np.zeros((0, 2), int), r"shape \(0, 2\)"),
        ([[0, 1], [0]], "different lengths"),
        ([[0.0, 1.0]], "float64"),
        ([[True, False]], "bool"),
    ],
)
def test_bad_edges_are_refused(edge_ids, message):
    with pytest.raises(StructureError, match=message):
        multiply(leaf(0), leaf(1), edge_ids=edge_ids)


def test_bad_edges_by_node_are_refused():
    with pytest.raises(StructureError, match="names node 4 of child 1, which has nodes 0 to 3"):
        multiply(leaf(0), leaf(1), edge_ids=[[0, 4], [0, 0]], sparse_edges=True)


def test_different_numbers_of_nodes_need_edges():
    with pytest.raises(StructureError, match="4, 6 nodes"):
        multiply(leaf(0), leaf(1, 6))


def test_products_of_products_are_refused():
    product = multiply(leaf(0), leaf(1))
    with pytest.raises(StructureError, match=r"child 1 is ProductNodes.*sums or inputs"):
        multiply(leaf(2), product)


@pytest.mark.parametrize("children", [(), ([],), (3,), ([leaf(0), 3],), ("ab",), (None,)])
def test_bad_children_are_refused(children):
    with pytest.raises((StructureError, TypeError)):
        multiply(*children)


def test_overlapping_scopes_are_refused_by_name():
    a, b, c = leaf(0), leaf(1), leaf(2)
    ab = summate(multiply(a, b), num_nodes=4, block_size=2)
    bc = summate(multiply(b, c), num_nodes=4, block_size=2)
    with pytest.raises(StructureError) as error:
        multiply(ab, bc)
    message = str(error.value)
    assert "not decomposable" in message and "share the variables {1}" in message
    assert repr(ab) in message and repr(bc) in message


def test_duplicate():
    a, b, c = leaf(0, 6), leaf(1, 4), leaf(2, 4)
    ns = multiply(a, b, edge_ids=[[2, 0], [0, 1]])
    copy = ns.duplicate(a, c, tie_params=True)
    assert copy.chs == (a, c) and list(copy.scope) == [0, 2] and not copy.is_tied
    np.testing.assert_array_equal(copy.edge_ids, ns.edge_ids)
    assert ns.duplicate().chs == (a, b)
    by_node = multiply(a, b, edge_ids=[[5, 0], [1, 3]], sparse_edges=True)
    assert by_node.duplicate(a, c).sparse_edges
    with pytest.raises(StructureError, match="1 children came, and it has 2"):
        ns.duplicate(a)
    with pytest.raises(StructureError, match="does not have the number of nodes"):
        ns.duplicate(a, leaf(3, 6))
    with pytest.raises(StructureError, match="not a node vector"):
        ns.duplicate(a, 3)
    with pytest.raises(StructureError, match="not decomposable"):
        ns.duplicate(leaf(1, 6), b)
