"""Statistic products from e4m3 operands: how they round, and when they run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxjuice.ops import _statistics


def factors(seed: int = 0, spread: float = 4.0):
    """Positive factors over many orders of magnitude, with zeros, a row of zeros and signs."""
    rng = np.random.default_rng(seed)
    q = np.exp(rng.normal(size=(2, 8, 3, 5)) * spread) * 10.0 ** rng.integers(-30, 30, (2, 1, 1, 5))
    p = np.exp(-np.abs(rng.normal(size=(2, 8, 3, 7))) * spread)
    q[:, :, :, 1], q[0, 0, 0, 0] = 0.0, 0.0
    return jnp.asarray(q, jnp.float32), jnp.asarray(p, jnp.float32)


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_e4m3(seed: int) -> None:
    for x in factors(seed):
        x = x * np.float32(-1 if seed == 2 else 1)
        rounded, exponent = _statistics.to_e4m3(x)
        assert rounded.dtype == jnp.float8_e4m3fn and exponent.dtype == jnp.int32
        wide = np.asarray(rounded.astype(jnp.float32), np.float64)
        scale = np.exp2(np.asarray(exponent, np.float64))[:, None, None]
        exact = np.asarray(x, np.float64)
        np.testing.assert_array_equal(wide == 0, exact == 0)
        np.testing.assert_array_equal(np.sign(wide), np.sign(exact))
        # Three bits behind the point, or the step of the smallest numbers of e4m3.
        error = np.abs(wide * scale - exact)
        assert (error <= np.maximum(np.abs(exact) / 16, 2.0**-9 * scale)).all()
        largest = np.abs(wide).max((1, 2))
        assert ((largest >= 128) & (largest <= 256) | (largest == 0)).all()


def test_products_keep_every_entry() -> None:
    q, p = factors()
    found = np.asarray(jax.jit(_statistics.e4m3_product)(q, p), np.float64)
    exact = np.einsum("xbki,xbkj->xij", np.asarray(q, np.float64), np.asarray(p, np.float64))
    np.testing.assert_array_equal(found > 0, exact > 0)
    top = exact > 0.05 * exact.max((1, 2), keepdims=True)
    assert (np.abs(found - exact)[top] < 0.15 * exact[top]).all()
    # What an operand in e4m3 can lose: a 16th of it, or a step of the smallest of its row.
    rows = np.asarray(q, np.float64), np.asarray(p, np.float64)
    step = [2.0**-16 * row.max((1, 2)) for row in rows]
    bound = (
        exact / 8
        + 24
        * (
            step[0][:, :, None] * rows[1].max((1, 2))[:, None]
            + step[1][:, None] * rows[0].max((1, 2))[:, :, None]
        )
        * 1.1
    )
    assert (np.abs(found - exact) <= bound).all()


def _runs_fp8(precision, flow_precision, rows=16, dtype=jnp.float32) -> bool:
    q, p = (jnp.zeros((1, rows, 2, n), dtype) for n in (3, 4))

    def product(q, p):
        return _statistics.statistic_product(q, p, precision, flow_precision, rows)

    text = jax.jit(product).trace(q, p).lower(lowering_platforms=("cuda",)).as_text()
    on_cpu = jax.jit(product).trace(q, p).lower(lowering_platforms=("cpu",)).as_text()
    assert "f8E4M3FN" not in on_cpu
    return "f8E4M3FN" in text


def test_when_it_runs() -> None:
    for mode in ("auto", "bf16", "tf32", "bf16x3"):
        assert _runs_fp8(mode, "fp8")
        assert not _runs_fp8(mode, "bf16")
        assert not _runs_fp8(mode, None)
    assert not _runs_fp8("fp32", "fp8")
    assert not _runs_fp8("auto", "fp8", rows=15)
    with jax.enable_x64(True):
        assert not _runs_fp8("auto", "fp8", dtype=jnp.float64)
