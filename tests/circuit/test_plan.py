"""Plans of layers whose blocks are products of their own."""

import jaxjuice as juice
from tests.fused import padded_tree, picking


def test_a_block_is_a_product() -> None:
    pc = juice.compile(picking())
    found = [(layer.num_nodes, layer.num_children) for layer in pc.plan(16).layers]
    # Two blocks of two nodes, each with two elements of four children; tied sums share a product.
    assert found == [(2, 8), (4, 8), (1, 4)]


def test_padding_is_no_product() -> None:
    pc = juice.compile(padded_tree())
    layers = [layer for stage in pc.program.stages for layer in stage]
    assert sum(layer.num_steps * layer.quota for layer in layers) > 30, "some are padding"
    plan = pc.plan(16)
    assert sum(layer.num_products for layer in plan.layers) == 30
