"""The kernels' plain JAX against float64: what runs where Triton does not."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxjuice import ops
from tests.kernels import cases
from tests.kernels.suite import CASES
from tests.small_circuits import FAST_COMPILE


@pytest.mark.parametrize("name", CASES)
def test_reference(name: str) -> None:
    # One small program takes less time to compile than all its operations apart.
    CASES[name]().check("xla", partial(jax.jit, compiler_options=FAST_COMPILE))


def test_ratios_of_passes_that_are_not_fused() -> None:
    arrays = cases.flow_ratio(reads=1).arrays
    values, flows, slots, _, _, _, _, starts, now, *_ = arrays
    v = jnp.asarray(values)[now.take(starts)]
    f = jnp.asarray(flows)[now.take(slots)[:, 0, 0]]
    wanted = cases.flow_ratio(reads=1).expected[0]
    found = np.asarray(ops.flow_ratio(v, f, ops.LL))
    np.testing.assert_allclose(found[:, 1:], wanted[:, 1:], rtol=2e-5)
    assert np.isfinite(found).all(), "also where s is denormal, in the first sample"
