"""Families that learn nothing: Indicator, Literal, External."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from leaf_cases import jitted

from jaxjuice._errors import ParameterError, StructureError
from jaxjuice.distributions import External, Indicator, LeafGroup, Literal


@pytest.mark.parametrize("dist", [Indicator(3), Literal(1), External()])
def test_there_is_nothing_to_learn(dist):
    leaf = LeafGroup({}, {n: jnp.zeros((1, 2)) for n in dist.constant_shapes()}, None)
    x, flows = jnp.zeros((1, 4)), jnp.ones((1, 4, 2))
    assert dist.param_shapes() == dist.stat_shapes() == {}
    assert dist.num_parameters == 0
    assert dist.init_params(jax.random.key(0), leaf.constants, 1, 2, 2.0, jnp.float32) == {}
    assert jitted(dist, "statistics")(leaf, x, flows) == dist.expected_statistics(leaf) == {}
    assert jitted(dist, "m_step")(leaf, {}, step_size=1.0, pseudocount=1.0) == {}
    assert dist.to_unconstrained({}, leaf.constants) == {}
    assert dist.from_unconstrained({}, leaf.constants) == {}
    assert dist.check_params({}, {}) == {}
    with pytest.raises(ParameterError, match="probs"):
        dist.check_params({"probs": np.ones((2, 3))}, {})


def test_indicator_states():
    np.testing.assert_array_equal(Indicator(3).check_constants(2, {})["state"], [0, 1])
    states = Indicator(3).check_constants(4, {"state": [2, 0, 2, 1]})["state"]
    np.testing.assert_array_equal(states, [2, 0, 2, 1])
    np.testing.assert_array_equal(Indicator(3).check_constants(2, {"state": 2})["state"], [2, 2])
    with pytest.raises(ParameterError, match="more nodes than states"):
        Indicator(3).check_constants(4, {})
    for bad in (3, -1, 0.5, [0, 1, 2]):
        with pytest.raises(ParameterError, match="state"):
            Indicator(3).check_constants(2, {"state": bad})


@pytest.mark.parametrize("lit", [True, 1, 0, -3, 0.5, 0.1])
def test_literals_match_in_every_dtype(lit):
    dist = Literal(lit)
    leaf = LeafGroup({}, {"literal": jnp.full((1, 2), float(lit))}, None)
    for dtype in ("bool", "uint8", "int8", "int32", "uint32", "float32", "bfloat16"):
        x = jnp.asarray([[0, 1, 5]]).astype(dtype)
        found = np.asarray(jitted(dist, "log_prob")(leaf, x))
        hit = np.asarray(x[0], np.float64) == float(lit)
        np.testing.assert_array_equal(found[0, :, 0], np.where(hit, 0, -np.inf), err_msg=dtype)
        np.testing.assert_array_equal(found[0, :, 0], found[0, :, 1])
    x = jnp.asarray([[lit, np.nan]], jnp.float32)  # 0.1 is compared as float32
    np.testing.assert_array_equal(jitted(dist, "log_prob")(leaf, x)[0, :, 0], [0, np.nan])
    assert dist.is_discrete == (float(lit) == int(lit))
    drawn = jitted(dist, "sample")(jax.random.key(0), leaf, jnp.zeros((1, 3), jnp.int32))
    np.testing.assert_allclose(drawn, float(lit), rtol=1e-6)


def test_external_passes_on_what_comes():
    dist, leaf = External(), LeafGroup({}, {}, None)
    assert dist.is_external
    values = jnp.asarray([[[0.5, -np.inf]]])
    assert dist.log_prob(leaf, values) is values
    assert dist.validate(np.array([np.nan])) is None
    nodes = jnp.zeros((1, 1), jnp.int32)
    with pytest.raises(StructureError, match="External leaves cannot be sampled"):
        dist.sample(jax.random.key(0), leaf, nodes)
    with pytest.raises(StructureError, match="External leaves have no mode"):
        dist.mode(leaf, nodes)
    assert dist == External()
    assert External.from_config(dist.to_config()) == dist
    assert not Indicator(2).is_external
