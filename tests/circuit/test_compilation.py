"""What XLA makes of a circuit: one compilation a shape, loops, no copies, every platform."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxjuice as juice
from jaxjuice import _calls
from jaxjuice._batch import make_batch
from tests.circuit.test_against_oracle import shared_pd, tree


def _lowered(pc, params, x):
    batch = make_batch("test", pc.program, x, None, None, True)
    walk = pc._walk("LL", 1.0, None)
    return _calls.log_likelihood_and_flows.lower(pc, walk, (), params, batch, (), None)


def _hmm(length: int):
    pc = juice.compile(juice.structures.HMM(length, 16, 4))
    x = np.random.default_rng(0).integers(0, 4, (8, length))
    return pc, pc.init(jax.random.key(0)), x


def test_equal_shapes_compile_once() -> None:
    pc, params, x = _hmm(5)
    traces = 0

    @jax.jit
    def run(params, x):
        nonlocal traces
        traces += 1
        return pc.log_likelihood_and_flows(params, x)

    run(params, x)
    run(params, 3 - x)
    assert traces == 1
    before = _calls.log_likelihood._cache_size()
    pc.log_likelihood(params, x)
    pc.log_likelihood(params, 3 - x)
    pc.with_precision("auto").log_likelihood(params, x)
    assert _calls.log_likelihood._cache_size() == before + 1


def test_a_long_chain_compiles_to_the_same_kernels_as_a_short_one() -> None:
    texts = [_lowered(*_hmm(length)).compile().as_text() for length in (10, 1000)]
    short, long = [len(set(re.findall(r"calls=(%[\w.]+)", text))) for text in texts]
    assert long <= short
    assert " while(" in texts[1]


@pytest.mark.parametrize("name", ("chain", "tree", "shared elements"))
def test_arrays_are_written_in_place(name: str) -> None:
    """No copy of a value or flow array stands in a loop: it would cost as much as all steps."""
    if name == "chain":
        pc, params, x = _hmm(200)
    else:
        pc = juice.compile(tree(120, 16, 0) if name == "tree" else shared_pd(16))
        params, x = pc.init(jax.random.key(0)), np.zeros((8, pc.num_vars), np.int32)
    program = pc.program
    loops = [layer for stage in program.stages for layer in stage if layer.num_steps > 1]
    assert any(layer.shares_elements == (name == "shared elements") for layer in loops)
    text = _lowered(pc, params, x).compile().as_text()
    for slots, kind in ((program.value_slots, "value"), (program.flow_slots, "flow")):
        shape = f"f32[{slots[16]},8,16]"
        pattern = re.escape(shape) + r"\S* copy(-start)?\("
        # One copy may bring a fresh array into a loop's layout; none may stand in a loop's body.
        entry = text.split("ENTRY ")[1]
        assert len(re.findall(pattern, text)) == len(re.findall(pattern, entry)) <= 1, kind


@pytest.mark.parametrize("platform", ("cuda", "rocm", "tpu"))
def test_lowers_for_every_platform(platform: str) -> None:
    pc = juice.compile(tree(30, 8, 0))
    params, x = pc.init(jax.random.key(0)), jnp.zeros((32, 30), jnp.int32)

    def step(params, x):
        return jax.value_and_grad(lambda p: pc.log_likelihood(p, x).sum())(params)

    for function in (pc.log_likelihood, pc.log_likelihood_and_flows, step):
        text = jax.jit(function).trace(params, x).lower(lowering_platforms=(platform,)).as_text()
        assert "dot_general" in text
        # A product whose precision is left open would run in one that nobody chose.
        for line in text.splitlines():
            if "stablehlo.dot_general" in line:
                assert "HIGHEST" in line or "algorithm" in line, line
