"""Plans of layers whose blocks are products of their own."""

import pytest

import jaxjuice as juice
from jaxjuice.distributions import Categorical
from jaxjuice.parameterizations import BlockScale, LowRank
from jaxjuice.passes import _fused_layers
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


def test_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a stage; of fused ones, those that depend on one another, cut to what has room."""
    root = juice.structures.RAT_SPN(64, 64, 3, 2, input_dist=Categorical(4))

    def launches(**options) -> list[tuple[int, int]]:
        layers = juice.compile(root, **options).plan(64).layers
        return [(layer.launches, layer.launches_with_flows) for layer in layers]

    steps = [stage[0].num_steps for stage in juice.compile(root).program.stages]
    assert launches(implementation="xla") == [(n, n) for n in steps] == [(1, 1), (3, 3), (1, 1)]
    # 16 units are sums of leaves; 8 and 4 lie above them, on two levels.
    assert launches() == [(1, 1), (2, 2), (1, 1)]
    monkeypatch.setattr(_fused_layers, "_SCRATCH_BYTES", 5 * (2 * 64 * 64))
    assert launches() == [(4, 1), (3, 2), (1, 1)]
    assert "4, with flows 1" in str(juice.compile(root).plan(64))


def test_where_weights_are_split() -> None:
    """Where they are read: of few samples, before flows, of units of one block, by the kernels."""

    def splits(root, batch: int = 64, **options) -> list[bool]:
        layers = juice.compile(root, **options).plan(batch).layers
        return [layer.splits_weights for layer in layers if layer.num_nodes > 1]

    apart, tied = juice.structures.HMM(5, 64, 4, homogeneous=False), juice.structures.HMM(5, 64, 4)
    assert splits(apart) == [True]
    assert splits(apart, 15) == splits(apart, implementation="xla") == [False]
    assert splits(tied, 1024, precision="fp32") == [False]
    assert splits(tied, 64, precision="fp32") == [True]
    assert not any(splits(picking()))


def test_the_plan_tells_whether_steps_are_fused() -> None:
    root = padded_tree()
    assert juice.compile(root).plan(16).fused
    assert "fused steps" in str(juice.compile(root).plan(16))
    for implementation, propagation in (("xla", "LL"), ("auto", "MPE")):
        plan = juice.compile(root, implementation=implementation).plan(16, propagation=propagation)
        assert not plan.fused and "XLA's own operations" in str(plan)


def test_scaled_layers_have_products_of_their_own() -> None:
    def layer(kind, batch: int = 64, size: int = 64, **options):
        root = juice.structures.HMM(3, size, 4, parameterization=kind)
        ns = next(ns for ns in root if getattr(ns, "parameterization", None))
        pc = juice.compile(root).register_external_params_group("transition", [ns])
        plan = pc.plan(batch, external_params=["transition"], **options)
        assert str(plan) == str(pc.plan(batch, external_params={ns: None}, **options))
        assert not plan.fused and pc.plan(batch).fused
        found = plan.layers[0]
        assert found.runs_on == "XLA" and type(kind).__name__ in str(plan)
        return found.num_products, found.num_rows, found.num_nodes, found.path, found.forward

    mixture = LowRank(4, "sum_exp")
    assert layer(LowRank(4)) == (2, 64, 64, "by pair", "BF16_BF16_F32_X3")
    assert layer(LowRank(4), precision="fp32")[4] == "TF32_TF32_F32_X3"
    assert layer(mixture) == (2, 512, 64, "sparse", "BF16_BF16_F32")
    assert layer(mixture, size=1024) == (2, 512, 1024, "dense", "TF32_TF32_F32")
    assert layer(mixture, propagation="MPE")[3:] == ("by pair", "")
    assert layer(BlockScale(32, 1)) == (4, 64, 32, "sparse", "BF16_BF16_F32")
    assert layer(BlockScale(1, 1)) == (2, 64, 64, "by pair", "")
    pc = juice.compile(juice.structures.HMM(3, 4, 4))
    for given, words in (("g", "no list"), (["g"], "'g', and the groups"), (3, "no list")):
        with pytest.raises(juice.DataError, match=words):
            pc.plan(16, external_params=given)
