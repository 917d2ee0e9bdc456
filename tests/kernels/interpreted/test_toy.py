"""Toy kernels in the interpreter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.kernels.interpreter import call, launch, unwritten
from tests.kernels.toy import logsumexp_kernel, matmul_kernel

TOLERANCE = {"ieee": 1e-5, "tf32": 2e-3, "bf16": 2e-2}


@pytest.mark.parametrize("n", [1, 7, 16, 100])
def test_logsumexp(n: int) -> None:
    x = np.random.default_rng(n).normal(0, 30, (3, n)).astype(np.float32)
    x[1] = -np.inf
    out = unwritten((3,))
    launch(logsumexp_kernel, (3,), x, n, out, BLOCK=16)
    np.testing.assert_allclose(out, np.logaddexp.reduce(x, axis=1), rtol=1e-6)


@pytest.mark.parametrize("mode", ["ieee", "tf32", "bf16"])
def test_matmul(mode: str) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((40, 50), np.float32), rng.random((50, 20), np.float32)
    out = unwritten((40, 20))
    tiles = dict(ROWS=32, COLUMNS=16, DEPTH=16)
    launch(matmul_kernel, (2, 2), a, b, 40, out, N=20, K=50, MODE=mode, **tiles)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    error = np.abs(out / exact - 1).max()
    assert error < TOLERANCE[mode]
    assert mode == "ieee" or error > TOLERANCE["ieee"]


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_from_jax(transform) -> None:
    def logsumexp(x):
        out = jax.ShapeDtypeStruct((x.shape[0],), jnp.float32)
        return call(logsumexp_kernel, x, 5, out=out, grid=(x.shape[0],), BLOCK=8)

    x = jax.random.normal(jax.random.key(0), (2, 5))
    np.testing.assert_allclose(transform(logsumexp)(x), jax.nn.logsumexp(x, axis=1), rtol=1e-6)
