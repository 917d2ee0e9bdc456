"""The options of XLA's compiler."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxjuice as juice
from jaxjuice import _compiler_options


@pytest.mark.parametrize(("backend", "is_empty"), [("cpu", True), ("gpu", False), ("tpu", True)])
def test_only_gpus_get_options(backend, is_empty, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    options = juice.compiler_options()
    assert isinstance(options, dict) and (not options) == is_empty
    # XLA refuses names that it does not know, also of other backends' options.
    product = jax.jit(lambda x: x @ x, compiler_options=options)
    np.testing.assert_array_equal(product(jnp.ones((2, 2))), 2.0)


def test_a_step_asks_for_them_when_it_first_runs(monkeypatch):
    asked = []
    monkeypatch.setattr(_compiler_options, "compiler_options", lambda: asked.append(1) or {})

    @_compiler_options.jit_with_options(static_argnames=("n",))
    def power(x, n):
        return x**n

    assert not asked
    assert (float(power(3.0, n=2)), float(power(3.0, n=3))) == (9.0, 27.0)
    assert len(asked) == 1
