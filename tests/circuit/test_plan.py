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


def test_where_products_run() -> None:
    """Of tied layers in TF32 by XLA, of all others in the kernels; small ones by XLA."""
    tied, apart = juice.structures.HMM(5, 64, 4), juice.structures.HMM(5, 64, 4, homogeneous=False)

    def runs_on(root, batch: int = 64, implementation: str = "auto", **options) -> set[str]:
        pc = juice.compile(root, implementation=implementation)
        return {layer.runs_on for layer in pc.plan(batch, **options).layers if layer.num_nodes > 1}

    assert runs_on(tied) == {"XLA"}
    assert runs_on(tied, precision="fp32") == {"Triton, 6 and 6"}
    assert runs_on(apart) == {"Triton, 1 and 3"}
    assert runs_on(apart, precision="tf32") == {"Triton, 3 and 3"}
    assert runs_on(apart, precision="bf16") == {"Triton, 1 and 1"}
    assert runs_on(apart, 15) == runs_on(juice.structures.HMM(5, 31, 4)) == {"XLA"}
    assert runs_on(apart, implementation="xla") == {"XLA"}
    assert runs_on(apart, propagation="GeneralLL", alpha=2.0) == {"XLA"}
    assert runs_on(picking()) == {"Triton, 1 and 3", "XLA"}


def test_the_plan_tells_whether_steps_are_fused() -> None:
    root = padded_tree()
    assert juice.compile(root).plan(16).fused
    assert "fused steps" in str(juice.compile(root).plan(16))
    for implementation, propagation in (("xla", "LL"), ("auto", "MPE")):
        plan = juice.compile(root, implementation=implementation).plan(16, propagation=propagation)
        assert not plan.fused and "XLA's own operations" in str(plan)
