"""Circuits inside flax models."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from small_circuits import categorical_data, chain, initial, mixture

import jaxjuice as juice
from jaxjuice.nn import CircuitModule, LinenCircuit


@pytest.fixture(autouse=True)
def _standard_promotion():
    """optax and flax mix dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def test_given_parameters_and_the_likelihood():
    _, pc = mixture()
    params = initial(pc)
    module = CircuitModule(pc, params=params)
    x = categorical_data()
    mask = np.array([True, False, False])
    for got, wanted in (
        (module(x), pc.log_likelihood(params, x)),
        (module(x, mask), pc.log_likelihood(params, x, mask)),
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert jax.tree.structure(module.params) == jax.tree.structure(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), module.params, params)


def test_random_parameters_come_from_the_key():
    _, pc = mixture()
    a, b, c = (CircuitModule(pc, rngs=nnx.Rngs(seed)) for seed in (0, 0, 1))
    leaves = [jax.tree.leaves(module.params) for module in (a, b, c)]
    assert all((u == v).all() for u, v in zip(leaves[0], leaves[1], strict=True))
    assert any((u != v).any() for u, v in zip(leaves[0], leaves[2], strict=True))


def test_parameters_can_be_replaced():
    _, pc = mixture()
    module = CircuitModule(pc, rngs=nnx.Rngs(0))
    params = initial(pc, 7)
    module.set_params(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), module.params, params)
    assert len(jax.tree.leaves(nnx.state(module, nnx.Param))) == len(jax.tree.leaves(params))


def test_rngs_or_params():
    _, pc = mixture()
    with pytest.raises(juice.ParameterError, match="neither"):
        CircuitModule(pc)
    with pytest.raises(juice.ParameterError, match="both"):
        CircuitModule(pc, rngs=nnx.Rngs(0), params=initial(pc))


def test_training_with_optax():
    _, pc = chain(num_cats=3)
    module = CircuitModule(pc, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(module, optax.adam(0.1), wrt=nnx.Param)
    x = jnp.asarray(categorical_data(num_vars=4))
    num_traces = 0

    @nnx.jit
    def step(module, optimizer):
        nonlocal num_traces
        num_traces += 1
        loss, gradient = nnx.value_and_grad(lambda module: -module(x).mean())(module)
        optimizer.update(module, gradient)
        return loss

    losses = [float(step(module, optimizer)) for _ in range(20)]
    assert losses[-1] < losses[0] - 0.2
    assert num_traces == 1
    for weights in module.params["sums"].values():
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


class _DeepMarkovModel(nnx.Module):
    """A network scores each observation under each latent; a circuit ties the scores together."""

    def __init__(self, pc, num_latents, rngs):
        self.network = nnx.Sequential(
            nnx.Linear(2, 16, rngs=rngs), nnx.tanh, nnx.Linear(16, num_latents, rngs=rngs)
        )
        self.circuit = CircuitModule(pc, rngs=rngs)

    def __call__(self, observations):
        """log p(observation | latents), up to a constant, summed over the latents."""
        scores = jax.nn.log_softmax(self.network(observations))  # [batch, time, latents]
        x = jnp.zeros(scores.shape[:2])
        return self.circuit(x, external_log_probs=scores)


def test_encoder_and_circuit_train_together():
    length, num_latents = 4, 2
    leaves = [
        juice.inputs(t, num_nodes=num_latents, dist=juice.distributions.External())
        for t in range(length)
    ]
    nodes = leaves[-1]
    for leaf in leaves[-2::-1]:
        nodes = juice.multiply(leaf, juice.summate(nodes, num_nodes=num_latents))
    pc = juice.compile(juice.summate(nodes, num_nodes=1))

    # Two kinds of sequences; the model must tell a sequence from one with shuffled time steps.
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 2, (64, 1))
    angle = np.pi * kind + np.zeros((64, length))
    points = np.stack([np.cos(angle), np.sin(angle)], -1) + 0.1 * rng.normal(size=(64, length, 2))
    real = jnp.asarray(points, jnp.float32)
    mixed = jnp.asarray(
        np.stack([rng.permutation(points[:, t]) for t in range(length)], 1), jnp.float32
    )
    model = _DeepMarkovModel(pc, num_latents, nnx.Rngs(0))
    before = jax.tree.map(jnp.copy, nnx.state(model, nnx.Param))
    optimizer = nnx.Optimizer(model, optax.adam(0.03), wrt=nnx.Param)

    def loss(model):
        logits = model(real) - model(mixed)  # noise-contrastive: the real one scores higher
        return jax.nn.softplus(-logits).mean()

    @nnx.jit
    def step(model, optimizer):
        value, gradient = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradient)
        return value

    losses = [float(step(model, optimizer)) for _ in range(60)]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0] - 0.1
    # Both parts have moved.
    after = nnx.state(model, nnx.Param)
    for part in ("network", "circuit"):
        changes = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), before[part], after[part])
        assert max(jax.tree.leaves(changes)) > 0.05, part


def test_linen():
    _, pc = mixture()
    module = LinenCircuit(pc)
    x = categorical_data()
    variables = module.init(jax.random.key(0), x)
    logits = variables["params"]["logits"]
    wanted = pc.log_likelihood(pc.from_unconstrained(logits), x)
    np.testing.assert_allclose(module.apply(variables, x), wanted, rtol=1e-6)
    gradient = jax.grad(lambda variables: module.apply(variables, x).mean())(variables)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert any(leaf.any() for leaf in jax.tree.leaves(gradient))
