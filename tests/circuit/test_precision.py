"""The precision of products: which mode runs what, in which pass, on which path."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxjuice as juice
from jaxjuice.compiler import SumLayer, WeightRows
from jaxjuice.passes import describe_path
from tests.circuit.test_against_oracle import tree

TYPES = {"bf16": "bf16", "tf32": "tf32", "bf16x3": "bf16", "fp32": "tf32"}
PRODUCTS = {"bf16": 1, "tf32": 1, "bf16x3": 3, "fp32": 3}


def _algorithms(function, *arguments) -> list[tuple[str, int]]:
    """What each product of a function runs on CUDA: the operands' type, and how many products."""
    text = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    found = []
    for line in text.splitlines():
        if "stablehlo.dot_general" in line and "algorithm" in line:
            kind = re.search(r"lhs_precision_type = (\w+)", line)
            count = re.search(r"num_primitive_operations = (\d+)", line)
            assert kind and count, line
            assert f"rhs_precision_type = {kind[1]}" in line
            assert "accumulation_type = f32" in line
            found.append((kind[1], int(count[1])))
    return found


@pytest.mark.parametrize("mode", TYPES)
def test_a_mode_holds_in_both_passes(mode: str) -> None:
    pc = juice.compile(tree(30, 8, 0), precision=mode)
    params, x = pc.init(jax.random.key(0)), jnp.zeros((16, 30), jnp.int32)
    wanted = {(TYPES[mode], PRODUCTS[mode])}
    forward = _algorithms(pc.log_likelihood, params, x)
    both = _algorithms(pc.log_likelihood_and_flows, params, x)
    assert set(forward) == set(both) == wanted
    # Element flows and parameter flows: two products for each of the pass forward, but for the
    # root's element flows: it has one node, so nothing is summed.
    assert len(both) == 3 * len(forward) - 1
    gradient = jax.grad(lambda params, x: pc.log_likelihood(params, x).sum())
    assert len(_algorithms(gradient, params, x)) == len(both)


def test_auto_is_bf16_forward_and_tf32_backward() -> None:
    pc = juice.compile(tree(30, 8, 0))
    params, x = pc.init(jax.random.key(0)), jnp.zeros((16, 30), jnp.int32)
    forward = _algorithms(pc.log_likelihood, params, x)
    both = _algorithms(pc.log_likelihood_and_flows, params, x)
    assert set(forward) == {("bf16", 1)}
    assert both.count(("bf16", 1)) == len(forward)
    assert both.count(("tf32", 1)) == 2 * len(forward) - 1  # nothing is summed back from the root


def test_small_batches_run_in_float32_in_every_mode() -> None:
    root = tree(30, 8, 0)
    for mode in ("auto", *TYPES):
        pc = juice.compile(root, precision=mode)
        params, x = pc.init(jax.random.key(0)), jnp.zeros((15, 30), jnp.int32)
        assert _algorithms(pc.log_likelihood_and_flows, params, x) == []


@pytest.mark.parametrize(
    ("num_latents", "batch", "dense"), [(1024, 512, True), (1024, 511, False), (1023, 520, False)]
)
def test_auto_takes_tf32_where_a_layer_is_dense(num_latents: int, batch: int, dense: bool) -> None:
    pc = juice.compile(juice.structures.HMM(3, num_latents, 2))
    params = jax.eval_shape(lambda: pc.init(jax.random.key(0)))
    x = jax.ShapeDtypeStruct((batch, 3), jnp.int32)
    found = _algorithms(pc.log_likelihood, params, x)
    # The root has one node, so it is never dense.
    assert sorted(found) == [("bf16", 1), ("tf32", 1) if dense else ("bf16", 1)]
    plan = pc.plan(batch)
    assert [layer.path for layer in plan.layers] == ["dense" if dense else "sparse", "sparse"]
    assert [layer.forward[:4] for layer in plan.layers] == ["TF32" if dense else "BF16", "BF16"]
    for mode in TYPES:
        chosen = _algorithms(pc.with_precision(mode).log_likelihood, params, x)
        assert {kind for kind, _ in chosen} == {TYPES[mode]}
    if dense:
        assert {layer.path for layer in pc.plan(batch, propagation="MPE").layers} == {"maxima"}
        general = pc.plan(batch, propagation="GeneralLL", alpha=2.0)
        assert {layer.path for layer in general.layers} == {"sparse"}


def test_a_mode_is_compiled_once_and_keeps_its_cache() -> None:
    pc = juice.compile(tree(5, 3, 0))
    params, x = pc.init(jax.random.key(0)), np.zeros((16, 5), np.int32)
    traced = []

    @partial(jax.jit, static_argnums=0)
    def run(pc, params, x):
        traced.append(pc.precision)
        return pc.log_likelihood(params, x)

    for mode in ("auto", "fp32", "auto", "highest"):
        run(pc.with_precision(mode), params, x)
    assert traced == ["auto", "fp32"]


def test_former_flags_name_their_replacement() -> None:
    pc = juice.compile(tree(5, 3, 0))
    params, x = pc.init(jax.random.key(0)), np.zeros((4, 5), np.int32)
    for call in (pc, pc.log_likelihood, pc.log_likelihood_and_flows):
        with pytest.raises(TypeError, match=r"force_use_bf16=True.*precision='bf16'"):
            call(params, x, force_use_bf16=True)
        with pytest.raises(TypeError, match=r"force_use_fp32=True.*precision='fp32'"):
            call(params, x, force_use_fp32=True)
        with pytest.raises(TypeError, match="unexpected keyword argument 'force'"):
            call(params, x, force=False)
        plain = jax.tree.leaves(call(params, x))
        ignored = jax.tree.leaves(call(params, x, force_use_bf16=False, force_use_fp32=False))
        for a, b in zip(plain, ignored, strict=True):
            np.testing.assert_array_equal(a, b)


def test_an_unknown_mode_lists_the_modes() -> None:
    with pytest.raises(ValueError, match="'auto', 'bf16', 'tf32', 'bf16x3', 'fp32'"):
        juice.compile(tree(3, 2, 0), precision="fp16")
    pc = juice.compile(tree(3, 2, 0), precision=jax.lax.Precision.HIGHEST)
    assert pc.precision == "fp32"
    assert pc.with_precision("high").precision == "tf32"


def _layer(num_nodes: int, num_children: int, num_blocks: int = 1) -> SumLayer:
    zeros = np.zeros((1, 1), np.int32)
    return SumLayer(
        num_blocks=num_blocks,
        block_nodes=num_nodes,
        num_elements=num_blocks,
        block_elements=1,
        width=num_children,
        quota=1,
        children={},
        parents={},
        pieces=1,
        value_start=zeros[0],
        flow_start=zeros[0],
        weights=WeightRows("sum0", "all", zeros, zeros == 0),
    )


@pytest.mark.parametrize(
    ("num_nodes", "num_children", "path"),
    [
        (1024, 1024, "dense from batch 512"),
        (4096, 4096, "dense from batch 128"),
        (1024, 1000, "dense from batch 525"),
        (2048, 2**19, "dense from batch 1"),
        (1023, 2**19, "sparse"),
        (1, 1, "sparse"),
    ],
)
def test_paths_of_made_up_layers(num_nodes: int, num_children: int, path: str) -> None:
    for blocks in (1, 8):  # a block is a product of its own
        assert describe_path(_layer(num_nodes, num_children, blocks)) == path


def test_plans_print() -> None:
    pc = juice.compile(juice.structures.HMM(4, 1024, 2))
    lines = str(pc.plan(512, precision="fp32")).splitlines()
    columns = "layer products path why forward backward runs on launches weights are split"
    assert lines[0].split() == columns.split()
    assert "3 of [512, 1024] x [1024, 1024]" in lines[1] and "dense" in lines[1]
    assert re.search(r"TF32_TF32_F32_X3  TF32_TF32_F32_X3  Triton, 6 and 6 +3 +before$", lines[1])
    assert "1 nodes < 1024" in lines[2] and re.search(r"XLA +1$", lines[2])
    assert lines[-1].endswith("fused steps of Triton kernels")
    assert "262144 child values < 524288" in str(pc.plan(256))
    assert "float32" in str(pc.plan(15)) and "BF16" not in str(pc.plan(15))
    assert "dense from batch 512" in str(pc)
    with pytest.raises(ValueError, match="not a mode"):
        pc.plan(16, precision="fp8")
    with pytest.raises(ValueError, match="0 or more rows"):
        pc.plan(-1)
