"""Training of circuits with live scales: how often a step leads down, and 16 steps of Anemone.

What `bench.m_step` tells, and tests/parameterizations/test_m_step.py asserts. All in float64.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxjuice as juice
from jaxjuice.nodes import CircuitNodes, InputNodes, SumNodes
from jaxjuice.parameterizations import BlockScale, LowRank, Parameterization

LENGTH, ROWS, SYMBOLS, INSTANCES, STEPS, BATCHES = 4, 12, 3, 100, 8, 16
KINDS = {
    "exp_sum": LowRank(3),
    "sum_exp": LowRank(2, "sum_exp"),
    "BlockScale": BlockScale(1, 1),
}


class Way(NamedTuple):
    """How to train.

    Attributes:
        step_size, pseudocount: of the M-step.
        trains_leaves: whether leaves move, too.
        is_conditional: whether the M-step is F+ / W; normalize(F+) if not.
    """

    step_size: float
    trains_leaves: bool
    pseudocount: float
    is_conditional: bool


WAYS = [
    Way(step_size, trains_leaves, pseudocount, is_conditional)
    for step_size in (1.0, 0.4)
    for trains_leaves in (True, False)
    for pseudocount in (0.0, 0.5)
    for is_conditional in (True, False)
]


def hidden_markov_model(kind: Parameterization | None) -> SumNodes:
    """Four states, four steps, three symbols."""
    return juice.structures.HMM(LENGTH, 4, SYMBOLS, block_size=2, parameterization=kind)


def num_falling(kind: Parameterization, options: Any = None) -> dict[Way, int]:
    """For each way, how many instances have a step that lowers the objective beyond rounding.

    The objective is LL + sum (a / C) log theta, leaves included, with pseudocount a.

    Args:
        kind: how transitions are scaled.
        options: of the compiler.
    """
    with jax.enable_x64(True):
        curves = _curves(kind, options)
    counts = {}
    for way, curve in curves.items():
        if not np.isfinite(curve).all():
            raise FloatingPointError(f"{kind}, {way}: an objective is not finite.")
        falls = (np.diff(curve) < -1e-10 * np.abs(curve[:, 1:])).any(1)
        counts[way] = int(falls.sum())
    return counts


def _curves(kind: Parameterization, options: Any) -> dict[Way, np.ndarray]:
    """Objectives `[instances, STEPS + 1]` for every way to train, by one compilation."""
    root = hidden_markov_model(kind)
    pc = juice.compile(root)

    def climb(params, x, tensors, way: Way):
        def step(params, _):
            lls, flows = pc.log_likelihood_and_flows(params, x, external_params=tensors)
            sizes = {"step_size": way.step_size, "pseudocount": way.pseudocount}
            new = juice.optim.m_step(pc, params, flows, **sizes)
            normalized = juice.Flows(flows.sums, flows.inputs, flows.weight)
            other = juice.optim.m_step(pc, params, normalized, **sizes)
            new = jax.tree.map(lambda a, b: jnp.where(way.is_conditional, a, b), new, other)
            inputs = jax.tree.map(
                lambda a, b: jnp.where(way.trains_leaves, a, b), new["inputs"], params["inputs"]
            )
            objective = _objective(lls, params, way.pseudocount)
            return {"sums": new["sums"], "inputs": inputs}, objective

        params, curve = jax.lax.scan(step, params, length=STEPS)
        lls = pc.log_likelihood(params, x, external_params=tensors)
        return jnp.append(curve, _objective(lls, params, way.pseudocount))

    run = jax.jit(jax.vmap(climb, in_axes=(0, 0, 0, None)), compiler_options=options)
    instances = _instances(root, pc)
    return {way: np.asarray(run(*instances, way)) for way in WAYS}


def _instances(root: CircuitNodes, pc: juice.Circuit):
    """Parameters, data and tensors, each with a leading axis of instances."""
    rng = np.random.default_rng(0)
    keys = jax.random.split(jax.random.key(0), INSTANCES)
    params = jax.vmap(lambda key: pc.init(key, perturbation=5.0, dtype=jnp.float64))(keys)
    x = rng.integers(0, SYMBOLS, (INSTANCES, ROWS, LENGTH))
    tensors = {}
    for ns in scaled_vectors(root):
        kind = ns.resolved_parameterization()
        assert kind is not None
        # Products of rank k have a spread that grows with its root.
        spread = 1 / getattr(kind, "rank", 1) ** 0.25
        drawn = [
            rng.normal(scale=spread, size=(INSTANCES, ROWS, *shape))
            for shape in kind.tensor_shapes(ns.num_nodes, ns.num_ch_nodes)
        ]
        # A part that all samples of an instance share.
        tensors[ns] = tuple(t + 1.5 * t[:, :1] for t in drawn)
    return params, x, tensors


def _objective(lls, params, pseudocount):
    total = lls.sum()
    for theta in params["sums"].values():
        total += pseudocount / theta.shape[-1] * jnp.log(theta).sum()
    for leaf in params["inputs"].values():
        total += pseudocount / leaf["probs"].shape[1] * jnp.log(leaf["probs"]).sum()
    return total


def scaled_vectors(root: CircuitNodes) -> list[SumNodes]:
    return [ns for ns in root if isinstance(ns, SumNodes) and ns.parameterization is not None]


class SixteenSteps(NamedTuple):
    """Largest differences of parameters after 16 updates of Anemone with momentum 0.9.

    Attributes:
        forms: between gates, and factors of a low rank that make the same scale.
        averages: between averages of W, and of F- = theta W in its place.
    """

    forms: float
    averages: float


def sixteen_steps(options: Any = None) -> SixteenSteps:
    """Trains with gates of 2 nodes by 1 child, and with what equals them."""
    ends = []
    with jax.enable_x64(True):
        for kind, of_f_minus in (
            (BlockScale(2, 1), False),
            (LowRank(4), False),
            (LowRank(4), True),
        ):
            pc = juice.compile(hidden_markov_model(kind))
            ends.append(_train(pc, _equal_tensors(pc.root), of_f_minus, options))
    gates, factors, other = ends
    return SixteenSteps(distance(gates, factors), distance(factors[0], other[0]))


def distance(a: Any, b: Any) -> float:
    """The largest difference of two trees of one structure."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.abs(x - y).max()) for x, y in pairs)


def _equal_tensors(root: CircuitNodes):
    """Gates for 16 batches, as they are or as factors of rank 4."""
    rng = np.random.default_rng(1)
    tensors = {}
    for ns in scaled_vectors(root):
        phi = rng.normal(size=(BATCHES, ROWS, 2, 4))
        if isinstance(ns.parameterization, BlockScale):
            tensors[ns] = (phi,)
        else:
            child = np.broadcast_to(np.eye(4), (BATCHES, ROWS, 4, 4))
            tensors[ns] = np.repeat(phi, 2, axis=2), child
    return tensors


def _train(pc: juice.Circuit, tensors, of_f_minus: bool, options: Any):
    """Parameters (sums, inputs) after 16 updates.

    If F- is averaged in place of W, Anemone runs on flows that hold theta W, and what it makes of
    them is divided by the present theta.
    """
    x = np.random.default_rng(2).integers(0, SYMBOLS, (BATCHES, ROWS, LENGTH))
    momentum, step_size = 0.9, 0.4
    tx = juice.optim.anemone(pc, step_size, momentum, pseudocount=1e-6)

    def times(flows, params, power):
        w = {n: w * params["sums"][n] ** power for n, w in flows.denominators.items()}
        return juice.Flows(flows.sums, flows.inputs, flows.weight, w)

    def mix(weight, a, b):
        return jax.tree.map(lambda x, y: weight * x + (1 - weight) * y, a, b)

    def step(carry, batch):
        params, state = carry
        _, flows = pc.log_likelihood_and_flows(params, batch[0], external_params=batch[1])
        if not of_f_minus:
            updates, state = tx.update(flows, state, params)
            return (optax.apply_updates(params, updates), state), None
        average = mix(momentum, state.momentum, times(flows, params, 1))
        of_one = jax.tree.map(lambda a: a / average.weight, times(average, params, -1))
        mixed = mix(step_size, of_one, pc.top_down_flows(params))
        params = juice.optim.m_step(pc, params, mixed, pseudocount=1e-6)
        return (params, state._replace(momentum=average)), None

    @functools.partial(jax.jit, compiler_options=options)
    def run(params):
        return jax.lax.scan(step, (params, tx.init(params)), (x, tensors))[0][0]

    end = run(equal_params(pc))
    return end["sums"], end["inputs"]


def equal_params(pc: juice.Circuit):
    """The same for circuits whose vectors differ in their parameterization alone."""
    rng = np.random.default_rng(3)
    values = {}
    for ns in pc.node_params(pc.init(jax.random.key(0), dtype=jnp.float64)):
        is_leaf = isinstance(ns, InputNodes)
        weights = rng.gamma(1.0, size=(ns.num_nodes, SYMBOLS if is_leaf else ns.num_ch_nodes)) + 0.1
        weights /= weights.sum(1, keepdims=True)
        if is_leaf:
            values[ns] = {"probs": weights}
        else:
            tiles = weights.reshape(ns.num_node_blocks, ns.block_size, -1, ns.ch_block_size)
            values[ns] = tiles.transpose(0, 2, 1, 3)[tuple(ns.edge_ids)]
    return pc.params_from_nodes(values, jnp.float64)
