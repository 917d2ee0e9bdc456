"""Circuits that compile in a moment, for tests of what happens around a circuit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxjuice as juice


@functools.cache
def mixture(num_components=4, num_vars=3, num_cats=3):
    """A mixture of fully factorized categorical distributions: (root, circuit)."""
    dist = juice.distributions.Categorical(num_cats=num_cats)
    leaves = [juice.inputs(v, num_nodes=num_components, dist=dist) for v in range(num_vars)]
    root = juice.summate(juice.multiply(*leaves), num_nodes=1)
    return root, juice.compile(root)


@functools.cache
def chain(length=4, num_latents=3, num_cats=5):
    """A homogeneous hidden Markov model, its sums and leaves tied: (root, circuit)."""
    dist = juice.distributions.Categorical(num_cats=num_cats)
    leaf = juice.inputs(length - 1, num_nodes=num_latents, dist=dist)
    nodes, step = leaf, None
    for var in reversed(range(length - 1)):
        step = (
            juice.summate(nodes, num_nodes=num_latents)
            if step is None
            else step.duplicate(nodes, tie_params=True)
        )
        nodes = juice.multiply(leaf.duplicate(var, tie_params=True), step)
    root = juice.summate(nodes, num_nodes=1)
    return root, juice.compile(root)


@functools.cache
def gaussian_mixture(num_components=3, num_vars=2):
    """A mixture of Gaussians with diagonal covariances: (root, circuit)."""
    dist = juice.distributions.Gaussian()
    leaves = [juice.inputs(v, num_nodes=num_components, dist=dist) for v in range(num_vars)]
    root = juice.summate(juice.multiply(*leaves), num_nodes=1)
    return root, juice.compile(root)


def categorical_data(num_rows=100, num_vars=3, num_cats=3, seed=0, dtype=np.uint8):
    """Rows of two clusters, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    cluster = rng.integers(0, 2, (num_rows, 1))
    noise = rng.integers(0, num_cats, (num_rows, num_vars))
    is_noise = rng.random((num_rows, num_vars)) < 0.2
    return np.where(is_noise, noise, cluster).astype(dtype)


@functools.partial(jax.jit, static_argnames="tx")
def updated(tx, flows, state, params):
    """One update: (new parameters, new state)."""
    updates, state = tx.update(flows, state, params)
    return optax.apply_updates(params, updates), state


@functools.partial(jax.jit, static_argnames=("pc", "dtype"))
def initial(pc, seed=0, dtype=jnp.float32):
    """`pc.init`, compiled as a whole (eagerly it compiles every operation)."""
    return pc.init(jax.random.key(seed), dtype=dtype)
