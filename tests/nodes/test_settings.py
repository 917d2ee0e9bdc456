"""`set_block_size` and `structural_properties`: nesting, decoration, restoration."""

import pytest

import jaxjuice as juice
from jaxjuice import StructureError, distributions
from jaxjuice.nodes import inputs, multiply, set_block_size, structural_properties, summate

BERNOULLI = distributions.Bernoulli()


def test_block_size_is_one_by_default():
    assert inputs(0, num_node_blocks=3, dist=BERNOULLI).block_size == 1


def test_block_size_nests_and_is_restored():
    with set_block_size(4):
        assert inputs(0, num_nodes=8, dist=BERNOULLI).num_node_blocks == 2
        with set_block_size(3):
            assert inputs(0, num_node_blocks=2, dist=BERNOULLI).num_nodes == 6
        assert inputs(0, num_node_blocks=2, dist=BERNOULLI).num_nodes == 8
        assert inputs(0, num_node_blocks=2, dist=BERNOULLI, block_size=5).num_nodes == 10
    assert inputs(0, num_node_blocks=2, dist=BERNOULLI).num_nodes == 2


def test_block_size_is_restored_after_an_error():
    with pytest.raises(RuntimeError), set_block_size(4):
        raise RuntimeError
    assert inputs(0, num_node_blocks=1, dist=BERNOULLI).block_size == 1


def test_block_size_decorates_functions():
    @set_block_size(6)
    def build(depth):
        nested = build(depth - 1) if depth else []
        return [inputs(0, num_node_blocks=1, dist=BERNOULLI), *nested]

    assert [ns.block_size for ns in build(2)] == [6, 6, 6]
    assert inputs(0, num_node_blocks=1, dist=BERNOULLI).block_size == 1


@pytest.mark.parametrize("block_size", [0, -2, 1.5, True, "4"])
def test_bad_block_sizes_are_refused(block_size):
    with pytest.raises(StructureError, match="block size"), set_block_size(block_size):
        pass


def test_block_size_is_public():
    assert juice.set_block_size is set_block_size


def test_nonsmooth_sums_are_allowed_on_demand():
    a, b = (inputs(v, num_nodes=2, dist=BERNOULLI) for v in range(2))
    with pytest.raises(StructureError, match="not smooth"):
        summate(a, b, num_nodes=1)
    with structural_properties(allow_nonsmooth=True):
        ns = summate(a, b, num_nodes=1)
        assert list(ns.scope) == [0, 1]
        with structural_properties(), pytest.raises(StructureError, match="not smooth"):
            summate(a, b, num_nodes=1)
        summate(a, b, num_nodes=1)
    with pytest.raises(StructureError, match="not smooth"):
        summate(a, b, num_nodes=1)


def test_nondecomposable_products_are_allowed_on_demand():
    a = inputs(0, num_nodes=2, dist=BERNOULLI)
    b = summate(a, num_nodes=2)
    with pytest.raises(StructureError, match="not decomposable"):
        multiply(a, b)
    with structural_properties(allow_nondecomposable=True):
        assert list(multiply(a, b).scope) == [0]
        assert multiply(a, a).num_chs == 2
    with pytest.raises(StructureError, match="not decomposable"):
        multiply(a, b)
