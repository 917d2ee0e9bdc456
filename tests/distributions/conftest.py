"""Fixtures of the leaf tests."""

import jax
import jax.numpy as jnp
import pytest


@pytest.fixture
def dtype(request):
    """The dtype that `leaf_cases.cases_and_dtypes` names, with float64 enabled where it is that."""
    with jax.enable_x64(request.param == "float64"):
        yield jnp.dtype(request.param)


@pytest.fixture
def x64():
    """Enables float64."""
    with jax.enable_x64(True):
        yield
