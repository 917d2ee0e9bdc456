"""Families of one's own: with and without the registry."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxjuice import distributions as dists
from jaxjuice._errors import StructureError
from jaxjuice.distributions import _registry


@dataclasses.dataclass(frozen=True)
class Exponential(dists.Distribution):
    """What the docstring of `Distribution` asks a user to write."""

    initial_mean: float = 1.0

    @property
    def is_discrete(self):
        return False

    def param_shapes(self):
        return {"mean": ()}

    def stat_shapes(self):
        return {"flow": (), "total": ()}

    def init_params(self, key, constants, num_params, num_nodes, perturbation, dtype):
        uniform = jax.random.uniform(key, (num_params, num_nodes), dtype)
        return {"mean": self.initial_mean * jnp.exp(perturbation * (uniform - 0.5))}

    def log_prob(self, leaf, x):
        mean = leaf.spread(leaf.params["mean"])[:, None]
        value = x.astype(mean.dtype)[:, :, None]
        return jnp.where(value >= 0, -value / mean - jnp.log(mean), jnp.nan)

    def statistics(self, leaf, x, flows):
        value = jnp.where(x >= 0, x, 0).astype(flows.dtype)[:, :, None]
        return {
            "flow": leaf.pool(flows.sum(axis=1)),
            "total": leaf.pool((flows * value).sum(axis=1)),
        }

    def expected_statistics(self, leaf):
        return {"flow": jnp.ones_like(leaf.params["mean"]), "total": leaf.params["mean"]}

    def m_step(self, leaf, stats, *, step_size, pseudocount, keep_zero_params=False):
        old = leaf.params["mean"]
        alive = stats["flow"] > 0
        new = stats["total"] / jnp.where(alive, stats["flow"], 1)
        return {"mean": jnp.where(alive, (1 - step_size) * old + step_size * new, old)}

    def sample(self, key, leaf, nodes):
        mean = leaf.at_nodes(leaf.params["mean"], nodes)
        return mean * jax.random.exponential(key, nodes.shape, mean.dtype)

    def mode(self, leaf, nodes):
        return jnp.zeros(nodes.shape, leaf.params["mean"].dtype)

    def validate(self, column):
        return None if np.all(column >= 0) else "holds negative numbers"

    def to_unconstrained(self, params, constants):
        return {"mean": jnp.log(params["mean"])}

    def from_unconstrained(self, raw, constants):
        return {"mean": jnp.exp(raw["mean"])}


def test_a_family_works_without_the_registry():
    dist = Exponential()
    params = dist.check_params(dist.params_from_array([2.0, 3.0], 2), dist.check_constants(2, {}))
    leaf = dists.LeafGroup({"mean": jnp.asarray(params["mean"][None], jnp.float32)}, {})
    assert (leaf.num_params, leaf.num_nodes) == (1, 2)
    log_probs = dist.log_prob(leaf, jnp.asarray([[1.0]]))
    np.testing.assert_allclose(log_probs[0, 0], [-0.5 - np.log(2), -1 / 3 - np.log(3)], rtol=1e-6)
    assert dist == Exponential()
    assert dist != Exponential(2.0)
    assert Exponential.from_config(dist.to_config()) == dist
    with pytest.raises(StructureError, match=r"'Exponential'.*register"):
        dists.from_config(dist.to_config())


def test_register(monkeypatch):
    monkeypatch.setattr(_registry, "_FAMILIES", dict(_registry._FAMILIES))
    assert dists.register(Exponential) is Exponential
    assert dists.register(Exponential) is Exponential  # again: the same class
    assert dists.from_config(Exponential(2.5).to_config()) == Exponential(2.5)
    other = type("Exponential", (Exponential,), {})
    with pytest.raises(StructureError, match="name is taken"):
        dists.register(other)


def test_the_registry_knows_every_family_of_the_package():
    families = {
        family
        for family in vars(dists).values()
        if isinstance(family, type) and issubclass(family, dists.Distribution)
    }
    abstract = {dists.Distribution, dists.FixedDistribution}
    assert set(_registry._FAMILIES.values()) == families - abstract
    assert len(families - abstract) == 10


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"family": "Unknown"},
        {"family": ["Categorical"]},
        {"family": "Categorical", "num_cats": 3, "extra": 1},
        {"family": "Categorical", "num_cats": "three"},
        {"family": "Categorical"},
    ],
)
def test_bad_configs_are_refused(config):
    with pytest.raises(StructureError):
        dists.from_config(config)


def test_a_config_of_another_family_is_refused():
    with pytest.raises(StructureError, match=r"Bernoulli\.from_config"):
        dists.Bernoulli.from_config(dists.Categorical(3).to_config())


def test_a_group_without_arrays_has_no_size():
    with pytest.raises(ValueError, match="neither parameters nor constants"):
        dists.LeafGroup({}, {}).num_nodes  # noqa: B018
