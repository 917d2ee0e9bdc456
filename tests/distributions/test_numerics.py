"""Functions of probabilities at the ends of their range."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxjuice.distributions._numerics import (
    blend,
    divide_flow,
    exp_at_least,
    log1m_exp,
    log_probability,
)


def test_log_probability():
    p = jnp.asarray([0.0, 0.0, 0.5, 1.0])
    value, pull_back = jax.vjp(log_probability, p)
    np.testing.assert_allclose(value, [-np.inf, -np.inf, np.log(0.5), 0], rtol=1e-6)
    (gradient,) = pull_back(jnp.asarray([0.0, 2.0, 2.0, 0.0]))
    np.testing.assert_array_equal(gradient, [0, np.inf, 4, 0])


def test_divide_flow():
    found = divide_flow(jnp.asarray([0.0, 0.0, 3.0, -1.0]), jnp.asarray([0.0, 2.0, 2.0, 0.0]))
    np.testing.assert_array_equal(found, [0, 0, 1.5, -np.inf])


def test_log1m_exp():
    x = np.array([1e-30, 1e-6, 0.1, 0.6, math.log(2), 0.8, 5.0, 40.0, 200.0], np.float32)
    found, pull_back = jax.vjp(log1m_exp, jnp.asarray(x))
    exact = np.log(-np.expm1(-x.astype(np.float64)))
    exact = np.where(x > 30, -np.exp(-x.astype(np.float64)), exact)
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-38)
    (gradient,) = pull_back(jnp.ones_like(found))
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(
            gradient, 1 / np.expm1(x.astype(np.float64)), rtol=2e-6, atol=1e-38
        )


def test_exp_at_least():
    raw = jnp.asarray([-50.0, -1.0, 2.0])
    value, pull_back = jax.vjp(lambda r: exp_at_least(r, 0.1), raw)
    np.testing.assert_allclose(value, [0.1, np.exp(-1), np.exp(2)], rtol=1e-6)
    np.testing.assert_allclose(pull_back(jnp.ones(3))[0], value, rtol=1e-6)


def test_blend_keeps_the_old_exactly_at_step_0():
    old, new = jnp.asarray([0.1, 1e20]), jnp.asarray([0.7, -3.0])
    np.testing.assert_array_equal(blend(old, new, jnp.float32(0)), old)
    np.testing.assert_allclose(blend(old, new, jnp.float32(0.5)), [0.4, 5e19], rtol=1e-6)
