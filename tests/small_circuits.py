"""Circuits that compile in a moment, for tests of what happens around a circuit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import random_circuits

import jaxjuice as juice
from jaxjuice.nodes import InputNodes, SumNodes

# A program that runs for milliseconds is not worth optimizing: so it compiles four times faster.
FAST_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
if jax.__version_info__ < (0, 11):  # later versions do not know this option
    FAST_COMPILE["xla_cpu_use_fusion_emitters"] = False


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


@functools.partial(jax.jit, static_argnames="tx", compiler_options=FAST_COMPILE)
def updated(tx, flows, state, params):
    """One update: (new parameters, new state)."""
    updates, state = tx.update(flows, state, params)
    return optax.apply_updates(params, updates), state


@functools.partial(jax.jit, static_argnames="pc", compiler_options=FAST_COMPILE)
def flows_of(pc, params, x, missing_mask=None, weights=None):
    """The flows of a batch."""
    return pc.log_likelihood_and_flows(params, x, missing_mask, weights=weights)[1]


def initial(pc, seed=0, dtype=jnp.float32):
    """Random parameters, made on the host: `pc.init` would compile its random numbers."""
    rng = np.random.default_rng(seed)
    values = {}
    for ns in {ns.get_source(): None for ns in pc.root}:
        if isinstance(ns, InputNodes):
            values[ns] = random_circuits.random_leaf_params(rng, ns)
        elif isinstance(ns, SumNodes):
            shape = (ns.edge_ids.shape[1], ns.block_size, ns.ch_block_size)
            free = 1.0 if ns.zero_param_mask is None else ~ns.zero_param_mask
            weights = oracle.dense_weights(ns, (rng.gamma(1.0, size=shape) + 0.1) * free)
            values[ns] = oracle.edge_layout(ns, weights / weights.sum(1, keepdims=True))
    return pc.params_from_nodes(values, dtype)
