"""Toy kernels, compiled for the GPUs that jaxjuice supports."""

import jax
import jax.numpy as jnp
import pytest

from tests.kernels.compile import CAPABILITIES, compile_call, compile_kernel
from tests.kernels.toy import logsumexp_kernel, matmul_kernel

MATMUL = {"a": "*fp32", "b": "*fp32", "M": "i32", "out": "*fp32"}
TILES = {"N": 4096, "K": 4096, "ROWS": 128, "COLUMNS": 128, "DEPTH": 32}
KIND = {80: "mma.sync", 90: "wgmma", 100: "tcgen05", 120: "mma.sync"}


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_bf16_runs_on_matrix_units(capability: int) -> None:
    kernel = compile_kernel(
        matmul_kernel, MATMUL, {**TILES, "MODE": "bf16"}, capability, num_warps=8, num_stages=3
    )
    assert kernel.products
    assert all(name.startswith(KIND[capability]) for name in kernel.products)
    assert kernel.fits
    assert kernel.spills == 0


@pytest.mark.parametrize("mode", ["ieee", "tf32"])
def test_float32(mode: str) -> None:
    tiles = {**TILES, "ROWS": 64, "COLUMNS": 64}
    kernel = compile_kernel(matmul_kernel, MATMUL, {**tiles, "MODE": mode}, 90)
    assert (mode == "tf32") == ("cvt.rna.tf32.f32" in kernel.ptx)
    assert (mode == "tf32") == any("tf32" in name for name in kernel.products)


def test_aligned_rows_are_read_sixteen_bytes_at_a_time() -> None:
    signature = {"x": "*fp32", "out": "*fp32"}
    constants = {"N": 4096, "BLOCK": 1024}
    assert "ld.global.v4" in compile_kernel(logsumexp_kernel, signature, constants, 80).ptx
    constants["N"] = 4095
    assert "ld.global.v4" not in compile_kernel(logsumexp_kernel, signature, constants, 80).ptx


def test_every_argument_wants_a_type_or_a_value() -> None:
    with pytest.raises(ValueError, match="takes"):
        compile_kernel(logsumexp_kernel, {"x": "*fp32", "out": "*fp32"}, {"BLOCK": 16}, 80)


def test_a_call_is_compiled_from_its_arguments() -> None:
    x, out = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((3, 100), (3,)))
    signature = {"x": "*fp32", "N": "i32", "out": "*fp32"}
    direct = compile_kernel(logsumexp_kernel, signature, {"BLOCK": 64}, 90, num_warps=2)
    call = compile_call(90, logsumexp_kernel, x, 100, out=out, grid=(3,), BLOCK=64, num_warps=2)
    assert call == direct
    one = compile_call(90, logsumexp_kernel, x, 1, out=out, grid=(3,), BLOCK=64, num_warps=2)
    assert len(one.ptx) < len(direct.ptx)
    with pytest.raises(TypeError, match="N=2.5 is no"):
        compile_call(90, logsumexp_kernel, x, 2.5, out=out, BLOCK=64)
