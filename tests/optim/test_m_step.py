"""The M-step of sum nodes, and the updates that carry new parameters through optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxjuice.optim import sum_m_step
from jaxjuice.optim._m_step import as_updates

DTYPES = ["float32", "float64"]


def _weights(rng, shape, dtype):
    theta = rng.random(shape)
    return jnp.asarray(theta / theta.sum(-1, keepdims=True), dtype)


def _reference(theta, flows, step_size, pseudocount):
    theta, flows = np.asarray(theta, np.float64), np.asarray(flows, np.float64)
    share = pseudocount / theta.shape[-1]
    total = flows.sum(-1, keepdims=True) + pseudocount
    return (1 - step_size) * theta + step_size * (flows + share) / total


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_children", [1, 7, 1000])
@pytest.mark.parametrize(("step_size", "pseudocount"), [(1.0, 0.0), (0.3, 0.0), (0.24, 0.01)])
def test_equals_the_formula(dtype, num_children, step_size, pseudocount):
    rng = np.random.default_rng(0)
    with jax.enable_x64(dtype == "float64"):
        theta = _weights(rng, (2, 3, 4, num_children), dtype)
        flows = jnp.asarray(rng.random(theta.shape) * 10, dtype)
        new = sum_m_step(theta, flows, step_size=step_size, pseudocount=pseudocount)
        assert new.dtype == theta.dtype
        tolerance = 1e-6 if dtype == "float32" else 1e-14
        np.testing.assert_allclose(
            new, _reference(theta, flows, step_size, pseudocount), rtol=tolerance
        )
        np.testing.assert_allclose(new.sum(-1), 1, rtol=tolerance)


def test_a_node_without_flow_keeps_every_bit():
    rng = np.random.default_rng(1)
    theta = _weights(rng, (1, 2, 3, 5), "float32")
    flows = jnp.asarray(rng.random(theta.shape), "float32").at[0, 1, 2].set(0)
    new = sum_m_step(theta, flows, step_size=0.7, pseudocount=0.0)
    assert (new[0, 1, 2] == theta[0, 1, 2]).all()
    assert (new[0, 0] != theta[0, 0]).all()


def test_a_node_without_flow_becomes_uniform_under_a_pseudocount():
    theta = jnp.asarray([[0.1, 0.9]])
    new = sum_m_step(theta, jnp.zeros_like(theta), step_size=1.0, pseudocount=0.5)
    np.testing.assert_allclose(new, [[0.5, 0.5]])


def test_subnormal_flows_count_as_none():
    theta = jnp.asarray([[0.1, 0.9]])
    new = sum_m_step(theta, jnp.full_like(theta, 1e-42), step_size=1.0, pseudocount=0.0)
    assert (new == theta).all()


def test_pseudocount_is_the_mass_of_the_whole_node():
    theta = jnp.asarray([[0.25, 0.25, 0.25, 0.25]])
    flows = jnp.asarray([[4.0, 0.0, 0.0, 0.0]])
    new = sum_m_step(theta, flows, step_size=1.0, pseudocount=4.0)
    np.testing.assert_allclose(new, [[5 / 8, 1 / 8, 1 / 8, 1 / 8]])


def test_masked_edges_are_no_children():
    mask = np.array([[False, False, True, True], [True, True, True, True]])
    theta = jnp.asarray([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    flows = jnp.asarray([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    new = sum_m_step(theta, flows, step_size=1.0, pseudocount=1.0, zero_mask=mask)
    np.testing.assert_array_equal(new, [[0.75, 0.25, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])


def test_keep_zero_params():
    theta = jnp.asarray([[0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    flows = jnp.asarray([[3.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    kept = sum_m_step(theta, flows, step_size=0.5, pseudocount=2.0, keep_zero_params=True)
    # C counts all four edges: each live one receives 2 / 4.
    np.testing.assert_allclose(
        kept, [[0.25 + 0.5 * 3.5 / 5, 0.25 + 0.5 * 1.5 / 5, 0, 0], [1, 0, 0, 0]]
    )
    filled = sum_m_step(theta, flows, step_size=0.5, pseudocount=2.0)
    assert (filled > 0).all()


def _applied(old, new):
    update = as_updates({"w": old}, {"w": new})
    return optax.apply_updates({"w": old}, update)["w"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("jit", [False, True])
def test_updates_keep_positive_values_positive_and_zeros_zero(dtype, jit):
    with jax.enable_x64(dtype == "float64"):
        values = [0.0, 1e-30, 1e-20, 1e-9, 3e-8, 1e-3, 0.4999999, 0.5, 1.0, 3e7]
        old, new = (jnp.asarray(a.ravel(), dtype) for a in np.meshgrid(values, values))
        arrived = (jax.jit(_applied) if jit else _applied)(old, new)
        epsilon = jnp.finfo(dtype).eps
        assert ((arrived > 0) == (new > 0)).all()
        assert (arrived[new == 0] == 0).all()
        assert (jnp.abs(arrived - new) <= epsilon * jnp.maximum(old, new)).all()


def test_updates_reach_tiny_values_in_a_second_step():
    old, new = jnp.asarray([0.5]), jnp.asarray([1e-9])
    first = _applied(old, new)
    assert 0 < first[0] < 1e-7
    np.testing.assert_allclose(_applied(first, new), new, rtol=1e-6)


def test_updates_between_negative_values():
    old, new = jnp.asarray([-3.0, -3.0, 2.0, 0.0]), jnp.asarray([-1.0, 0.0, -2.5, -1e-3])
    np.testing.assert_allclose(_applied(old, new), new)


def test_adding_the_plain_difference_would_lose_a_category():
    old, new = jnp.asarray(0.5), jnp.asarray(1e-9)
    assert old + (new - old) == 0
