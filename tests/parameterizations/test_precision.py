"""What the products of scaled layers run on NVIDIA GPUs, and that fused passes stay apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scaled_cases import BINARY, random_tensors

import jaxjuice as juice
from jaxjuice.parameterizations import LowRank
from jaxjuice.passes import _fused
from tests.circuit.test_precision import _algorithms


def _layer(kind, rows: int = 16):
    """One scaled vector over an input, and nothing else that has products."""
    leaf = juice.inputs(0, num_nodes=4, dist=BINARY)
    ns = juice.summate(leaf, num_nodes=4, block_size=2, parameterization=kind)
    pc = juice.compile(ns)
    params = pc.init(jax.random.key(0))
    tensors = random_tensors(np.random.default_rng(0), ns, rows)
    return pc, params, jnp.zeros((rows, 1), jnp.int32), jax.tree.map(jnp.float32, tensors)


def _products(pc, params, x, tensors, mode: str):
    """Of the pass forward, of flows, and of gradients."""

    def forward(params, x, tensors):
        return pc.log_likelihood(params, x, external_params=tensors, precision=mode)

    def flows(params, x, tensors):
        return pc.log_likelihood_and_flows(params, x, external_params=tensors, precision=mode)

    def gradient(params, x, tensors):
        return jax.grad(lambda *both: forward(both[0], x, both[1]).sum(), (0, 1))(params, tensors)

    return [_algorithms(f, params, x, tensors) for f in (forward, flows, gradient)]


def test_factors_of_exp_sum() -> None:
    case = _layer(LowRank(3))
    for mode, wanted in {
        "auto": ("bf16", 3),  # hi + lo
        "bf16": ("bf16", 3),
        "bf16x3": ("bf16", 3),
        "fp32": ("tf32", 3),
    }.items():
        forward, _, gradient = _products(*case, mode)
        assert forward == [wanted], mode
        assert gradient.count(wanted) >= 1
    assert _products(*_layer(LowRank(3), 15), "auto") == [[], [], []]


def test_products_of_sum_exp() -> None:
    case = _layer(LowRank(3, "sum_exp"))
    forward, flows, gradient = _products(*case, "auto")
    assert forward == [("bf16", 1)]
    # The pass forward, and again in the pass back; the flows back; two statistics.
    assert sorted(gradient) == [("bf16", 1)] * 2 + [("tf32", 1)] * 3
    # For an M-step the statistics are of bf16, too (equal products may be lowered once).
    assert flows.count(("tf32", 1)) == 1 and {*flows} == {("bf16", 1), ("tf32", 1)}
    assert {*_products(*case, "fp32")[1]} == {("tf32", 3)}


@pytest.mark.parametrize("mode", ("auto", "fp32"))
def test_eight_bits_are_for_flows_alone(mode: str) -> None:
    pc, *arguments = _layer(LowRank(3, "sum_exp", flow_precision="fp8"))

    def flows(params, x, tensors):
        return pc.log_likelihood_and_flows(params, x, external_params=tensors, precision=mode)[1]

    def gradient(params, x, tensors):
        def total(params, tensors):
            lls = pc.log_likelihood(params, x, external_params=tensors, precision=mode)
            return lls.sum()

        return jax.grad(total, (0, 1))(params, tensors)

    def has_eight_bits(function) -> bool:
        traced = jax.jit(function).trace(*arguments)
        return "f8E4M3FN" in traced.lower(lowering_platforms=("cuda",)).as_text()

    assert has_eight_bits(flows) == (mode == "auto")
    assert not has_eight_bits(gradient)


def test_fused_passes_run_where_nothing_is_scaled(monkeypatch) -> None:
    kind = LowRank(2, "sum_exp")
    fused = []
    original = _fused.forward
    monkeypatch.setattr(
        _fused, "forward", lambda walk, *a, **k: (fused.append(1), original(walk, *a, **k))[1]
    )
    root = juice.structures.HMM(4, 4, 3, block_size=2, parameterization=kind)
    pc, plain = juice.compile(root, implementation="triton"), juice.compile(root)
    params = pc.init(jax.random.key(0))
    x = np.random.default_rng(0).integers(0, 3, (17, 4))
    tensors = jax.tree.map(np.float32, random_tensors(np.random.default_rng(1), root, len(x)))
    for given, runs in ((None, 1), (tensors, 0)):
        fused.clear()
        found = pc.log_likelihood_and_flows(params, x, external_params=given)
        assert len(fused) == runs
        wanted = plain.log_likelihood_and_flows(params, x, external_params=given)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, wanted
        )
        assert found[1].denominators
