"""EM never lowers the likelihood of the full batch: float64, random circuits."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
import random_circuits
from small_circuits import FAST_COMPILE

import jaxjuice as juice
from jaxjuice.nodes import InputNodes, SumNodes

NUM_CIRCUITS = 50
NUM_STEPS = 20
# Families whose M-step maximizes their likelihood (DiscreteLogistic matches moments instead).
FAMILIES = (
    "categorical",
    "bernoulli",
    "gaussian",
    "indicator",
    "masked_categorical",
    "poisson",
    "binomial",
)


def _run(pc, params, x, mask, weights):
    """Parameters after `NUM_STEPS` full EM steps, and the log-likelihood before each of them."""
    tx = juice.optim.full_batch_em(pc)

    def step(carry, _):
        params, state = carry
        lls, flows = pc.log_likelihood_and_flows(params, x, mask, weights=weights)
        updates, state = tx.update(flows, state, params)
        # Under zero weights some rows are impossible; they stay so, and take no part.
        total = jnp.sum(lls * weights, where=lls > -jnp.inf)
        impossible = jnp.sum(lls == -jnp.inf)
        return (optax.apply_updates(params, updates), state), (total, impossible)

    def run(params):
        (params, _), curves = jax.lax.scan(step, (params, tx.init(params)), length=NUM_STEPS)
        return params, curves

    return jax.jit(run, compiler_options=FAST_COMPILE)(params)


def _circuit(seed):
    """A random circuit, and the generator for its data."""
    rng = np.random.default_rng(seed)
    root = random_circuits.random_circuit(
        rng,
        num_vars=int(rng.integers(2, 4)),
        families=FAMILIES,
        zero_masks=seed % 4 == 0,
        zero_weights=seed % 5 == 0,
    )
    return root, rng


def test_the_circuits_hold_what_they_should():
    circuits = [list(_circuit(seed)[0]) for seed in range(NUM_CIRCUITS)]

    def count(holds):
        return sum(any(holds(ns) for ns in circuit) for circuit in circuits)

    def is_block_sparse(ns):
        if not isinstance(ns, SumNodes):
            return False
        blocks = ns.num_node_blocks * (ns.num_ch_nodes // ns.ch_block_size)
        return ns.edge_ids.shape[1] < blocks

    assert count(lambda ns: isinstance(ns, SumNodes) and ns.is_tied) >= 5
    assert count(lambda ns: isinstance(ns, InputNodes) and ns.is_tied) >= 10
    assert count(is_block_sparse) >= 10
    for family in FAMILIES:
        name = family.replace("_", "")
        assert count(
            lambda ns, name=name: (
                isinstance(ns, InputNodes) and type(ns.dist).__name__.lower() == name
            )
        ), family


@pytest.mark.parametrize("seed", range(NUM_CIRCUITS))
def test_full_batch_em_never_lowers_the_likelihood(seed):
    root, rng = _circuit(seed)
    pc = juice.compile(root)
    x = random_circuits.random_data(rng, root, 25)
    mask = rng.random(x.shape) < 0.25 if seed % 3 else None
    weights = rng.random(len(x)) if seed % 2 else np.ones(len(x))
    with jax.enable_x64(True):
        params = pc.params_from_nodes(oracle.dag_params(root), jnp.float64)
        params, (lls, impossible) = _run(pc, params, x, mask, weights)
    lls = np.asarray(lls)
    assert np.isfinite(lls).all()
    assert (np.diff(lls) >= -1e-9 * np.abs(lls[1:])).all()
    assert (impossible == impossible[0]).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
