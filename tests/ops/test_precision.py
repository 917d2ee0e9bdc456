"""Products in the precision of a mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxjuice.ops._precision import PRECISIONS, dot

# Shapes, and dimension numbers: what is summed, what is a batch.
NOTHING_SUMMED = [
    ((5, 1), (7, 1), ((1,), (1,)), ((), ())),
    ((3, 1, 5), (3, 7, 1), ((1,), (2,)), ((0,), (0,))),
    ((5, 3, 1, 2), (1, 7, 3, 1), ((2,), (3,)), ((1,), (2,))),
    ((1, 4, 3, 1, 5), (3, 1, 4, 1), ((3, 0), (1, 3)), ((2, 1), (0, 2))),
    ((2, 0, 1), (2, 1, 3), ((2,), (1,)), ((0,), (0,))),
]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", NOTHING_SUMMED)
def test_where_nothing_is_summed_nothing_is_rounded(case: tuple, precision: str) -> None:
    *shapes, contract, batch = case
    a, b = (
        jax.random.uniform(jax.random.key(i), shape, jnp.float32) for i, shape in enumerate(shapes)
    )

    def product(a, b):
        return dot(a, b, contract, batch=batch, precision=precision, role="forward", num_samples=64)

    found = jax.jit(product)(a, b)
    wide = [np.asarray(x, np.float64) for x in (a, b)]
    with jax.enable_x64(True):
        wanted = lax.dot_general(*wide, (contract, batch), precision=lax.Precision.HIGHEST)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, np.asarray(wanted, np.float32))
    text = jax.jit(product).lower(a, b).as_text()
    assert "dot_general" not in text


def test_the_rest_is_a_dot() -> None:
    a, b = jnp.ones((3, 2)), jnp.ones((2, 5))

    def product(a, b):
        return dot(
            a, b, ((1,), (0,)), batch=((), ()), precision="fp32", role="forward", num_samples=64
        )

    assert "dot_general" in jax.jit(product).lower(a, b).as_text()
    np.testing.assert_array_equal(product(a, b), np.full((3, 5), 2))
