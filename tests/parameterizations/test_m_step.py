"""The conditional M-step: never down, free of past parameters, and its effect on single weights."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from scaled_cases import FAST_COMPILE, random_tensors, scaled_vectors

import jaxjuice as juice
from jaxjuice.optim import conditional_m_step
from jaxjuice.optim._anemone import _anchored, _averaged
from jaxjuice.parameterizations import BlockScale, LowRank

LENGTH, ROWS, INSTANCES, STEPS = 4, 12, 100, 8
KINDS = (LowRank(3), LowRank(2, "sum_exp"), BlockScale(1, 1))


def _hmm(kind):
    return juice.structures.HMM(LENGTH, 4, 3, block_size=2, parameterization=kind)


def _instances(root, pc):
    """Parameters, data and tensors, each with a leading axis of instances."""
    rng = np.random.default_rng(0)
    keys = jax.random.split(jax.random.key(0), INSTANCES)
    params = jax.vmap(lambda key: pc.init(key, perturbation=5.0, dtype=jnp.float64))(keys)
    x = rng.integers(0, 3, (INSTANCES, ROWS, LENGTH))
    drawn = random_tensors(rng, root, INSTANCES * ROWS, spread=1.0)
    tensors = jax.tree.map(lambda t: t.reshape(INSTANCES, ROWS, *t.shape[1:]), drawn)
    # A part that all samples of an instance share.
    tensors = jax.tree.map(lambda t: t + 1.5 * t[:, :1], tensors)
    return params, x, tensors


def _objective(lls, params, pseudocount):
    """LL + sum (a / C) log theta, leaves included."""
    total = lls.sum()
    for theta in params["sums"].values():
        total += pseudocount / theta.shape[-1] * jnp.log(theta).sum()
    for leaf in params["inputs"].values():
        total += pseudocount / leaf["probs"].shape[1] * jnp.log(leaf["probs"]).sum()
    return total


@functools.cache
def _curves(kind):
    """Objectives `[instances, STEPS + 1]` for every way to train, by one compilation.

    The ways: step size, whether leaves are trained, the pseudocount, and whether W is used.
    """
    root = _hmm(kind)
    pc = juice.compile(root)

    def climb(params, x, tensors, step_size, trains_leaves, pseudocount, is_conditional):
        def step(params, _):
            lls, flows = pc.log_likelihood_and_flows(params, x, external_params=tensors)
            options = {"step_size": step_size, "pseudocount": pseudocount}
            new = juice.optim.m_step(pc, params, flows, **options)
            normalized = juice.Flows(flows.sums, flows.inputs, flows.weight)
            other = juice.optim.m_step(pc, params, normalized, **options)
            new = jax.tree.map(lambda a, b: jnp.where(is_conditional, a, b), new, other)
            inputs = jax.tree.map(
                lambda a, b: jnp.where(trains_leaves, a, b), new["inputs"], params["inputs"]
            )
            objective = _objective(lls, params, pseudocount)
            return {"sums": new["sums"], "inputs": inputs}, objective

        params, curve = jax.lax.scan(step, params, length=STEPS)
        lls = pc.log_likelihood(params, x, external_params=tensors)
        return jnp.append(curve, _objective(lls, params, pseudocount))

    run = jax.jit(
        jax.vmap(climb, in_axes=(0, 0, 0, None, None, None, None)), compiler_options=FAST_COMPILE
    )
    instances = _instances(root, pc)
    ways = [
        (step_size, trains_leaves, pseudocount, is_conditional)
        for step_size in (1.0, 0.4)
        for trains_leaves in (True, False)
        for pseudocount in (0.0, 0.5)
        for is_conditional in (True, False)
    ]
    return {way: np.asarray(run(*instances, *way)) for way in ways}


def _num_falling(curve) -> int:
    """How many instances have a step that lowers the objective beyond rounding."""
    assert np.isfinite(curve).all()
    return int((np.diff(curve) < -1e-10 * np.abs(curve[:, 1:])).any(1).sum())


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_no_step_lowers_the_objective(kind) -> None:
    with jax.enable_x64(True):
        falling = {way: _num_falling(curve) for way, curve in _curves(kind).items()}
    for (*way, is_conditional), count in falling.items():
        print(f"{kind} {way} {'F+ / W' if is_conditional else 'normalize(F+)'}: {count} of 100")
    assert not any(count for way, count in falling.items() if way[3]), falling
    # Normalized flows, in contrast, are no M-step.
    assert falling[1.0, False, 0.0, False] >= 15, falling


def test_low_rank_trains_like_the_gates_it_equals() -> None:
    """Anemone with momentum, 16 steps: the same to rounding, as W is free of the parameters."""
    gates = BlockScale(2, 1)
    factors = LowRank(4)
    ends = {}
    with jax.enable_x64(True):
        for kind in (gates, factors):
            root = _hmm(kind)
            pc = juice.compile(root)
            ends[kind] = _train(pc, _equal_tensors(root), average_of_f_minus=False)
        other = _train(pc, _equal_tensors(root), average_of_f_minus=True)
    same = [_distance(a, b) for a, b in zip(*ends.values(), strict=True)]
    assert max(same) < 1e-13, same
    apart = _distance(ends[factors][0], other[0])
    print(f"averages of F- itself lead {apart:.1e} away")
    assert 1e-3 < apart < 1


def _distance(a, b) -> float:
    return max(
        float(np.abs(x - y).max())
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def _equal_tensors(root):
    """Gates of 2 nodes by 1 child, for 16 batches, as they are or as factors of rank 4."""
    rng = np.random.default_rng(1)
    tensors = {}
    for ns in scaled_vectors(root):
        phi = rng.normal(size=(16, ROWS, 2, 4))
        if isinstance(ns.parameterization, BlockScale):
            tensors[ns] = (phi,)
        else:
            child = np.broadcast_to(np.eye(4), (16, ROWS, 4, 4))
            tensors[ns] = np.repeat(phi, 2, axis=2), child
    return tensors


def _train(pc, tensors, *, average_of_f_minus: bool):
    """Parameters after 16 updates; by hand if F- = theta W is averaged in place of W."""
    momentum, step_size = 0.9, 0.4
    x = np.random.default_rng(2).integers(0, 3, (16, ROWS, LENGTH))
    tx = juice.optim.anemone(pc, step_size, momentum, pseudocount=1e-6)
    start = pc.params_from_nodes(_weights(pc), jnp.float64)

    def times(flows, params, power):
        w = {n: w * params["sums"][n] ** power for n, w in flows.denominators.items()}
        return juice.Flows(flows.sums, flows.inputs, flows.weight, w)

    def step(carry, batch):
        params, state = carry
        _, flows = pc.log_likelihood_and_flows(params, batch[0], external_params=batch[1])
        if not average_of_f_minus:
            updates, state = tx.update(flows, state, params)
            return (optax.apply_updates(params, updates), state), None
        average = _averaged(times(flows, params, 1), state.momentum, momentum)
        mixed = _anchored(times(average, params, -1), pc.top_down_flows(params), jnp.array(0.4))
        params = juice.optim.m_step(pc, params, mixed, pseudocount=1e-6)
        return (params, state._replace(momentum=average)), None

    @functools.partial(jax.jit, compiler_options=FAST_COMPILE)
    def run(params):
        return jax.lax.scan(step, (params, tx.init(params)), (x, tensors))[0][0]

    end = run(start)
    return end["sums"], end["inputs"]


def _weights(pc):
    """The same for circuits whose vectors differ in their parameterization alone."""
    rng = np.random.default_rng(3)
    values = {}
    for ns in pc.node_params(pc.init(jax.random.key(0), dtype=jnp.float64)):
        shape = (ns.num_nodes, 3 if isinstance(ns, juice.nodes.InputNodes) else ns.num_ch_nodes)
        weights = rng.gamma(1.0, size=shape) + 0.1
        weights /= weights.sum(1, keepdims=True)
        if isinstance(ns, juice.nodes.InputNodes):
            values[ns] = {"probs": weights}
        else:
            tiles = weights.reshape(ns.num_node_blocks, ns.block_size, -1, ns.ch_block_size)
            values[ns] = tiles.transpose(0, 2, 1, 3)[tuple(ns.edge_ids)]
    return values


def test_weights_one_by_one() -> None:
    with jax.enable_x64(True):
        theta = np.array([[0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4], [0.25] * 4])
        f = np.array([[2.0, 1.0, 0.0, 0.0], [1.0, 2.0, 0.0, 4.0], [0.0] * 4])
        w = np.array([[3.0, 4.0, 5.0, 6.0], [7.0, 1.0, 0.0, 2.0], [0.0] * 4])

        def step(step_size=1.0, pseudocount=0.0, mask=None):
            options = {"step_size": step_size, "pseudocount": pseudocount, "zero_mask": mask}
            return np.asarray(conditional_m_step(theta, f, w, **options))

        def normalized(rows):
            rows = np.asarray(rows)
            return rows / rows.sum(-1, keepdims=True)

        new = step()
        np.testing.assert_allclose(new[0], normalized([2 / 3, 1 / 4, 0, 0]), rtol=1e-14)
        # The third edge was closed in all samples: it keeps its value before normalization.
        np.testing.assert_allclose(new[1], normalized([1 / 7, 2, 0.3, 2]), rtol=1e-14)
        np.testing.assert_array_equal(new[2], theta[2])  # no flow
        blended = 0.6 * theta + 0.4 * np.array([[2 / 3, 1 / 4, 0, 0], [1 / 7, 2, 0.3, 2], theta[2]])
        np.testing.assert_allclose(step(0.4)[:2], normalized(blended)[:2], rtol=1e-14)
        ratio = (f + 2 / 4) / (w + 2)
        ratio[0, 3] = 0  # a weight of 0 stays 0
        np.testing.assert_allclose(step(pseudocount=2.0), normalized(ratio), rtol=1e-14)
        # A weight that prior samples hardly take, and all data want: r overflows.
        steep = conditional_m_step(
            np.float32([[0.5, 0.3, 0.2]]),
            np.float32([[100, 1, 1]]),
            np.float32([[1e-37, 3, 3]]),
            step_size=1.0,
            pseudocount=0.0,
        )
        np.testing.assert_allclose(steep, [[1, 0, 0]], atol=1e-30)
        mask = np.zeros((3, 4), bool)
        mask[0, 3] = True
        ratio[0, :3] = (f[0, :3] + 2 / 3) / (w[0, :3] + 2)
        np.testing.assert_allclose(step(pseudocount=2.0, mask=mask)[0], normalized(ratio[0]))


def test_w_of_node_flows_is_the_plain_m_step() -> None:
    """Without tensors W is the flow of the node, for which both M-steps agree."""
    with jax.enable_x64(True):
        pc, plain = juice.compile(_hmm(LowRank(2))), juice.compile(_hmm(None))
        x = np.random.default_rng(0).integers(0, 3, (20, LENGTH))
        for step_size in (1.0, 0.3):
            found = []
            for circuit in (pc, plain):
                params = circuit.params_from_nodes(_weights(circuit), jnp.float64)
                _, flows = circuit.log_likelihood_and_flows(params, x)
                options = {"step_size": step_size, "pseudocount": 0.1}
                found.append(juice.optim.m_step(circuit, params, flows, **options))
            assert _distance(*found) < 1e-15


@pytest.mark.parametrize("kind", KINDS[1:], ids=str)
def test_top_down_flows_are_of_the_shared_weights(kind) -> None:
    """Anemone's anchor: F+ = TD theta and W = TD, the visits of each node."""
    root = _hmm(kind)
    pc = juice.compile(root)
    with jax.enable_x64(True):
        params = pc.init(jax.random.key(0), dtype=jnp.float64)
        flows = pc.top_down_flows(params)
        expected = oracle.root_to_leaf_flows(root, pc.node_params(params))
        for ns in scaled_vectors(root):
            source, w = ns.get_source(), pc.get_node_denominators(flows, ns)
            np.testing.assert_allclose(w, expected.denominators[source], atol=1e-13)
            np.testing.assert_allclose(pc.get_node_flows(flows, ns), expected.sums[source])


@pytest.mark.parametrize("make", ("mini_batch_em", "full_batch_em", "anemone"))
def test_optimizers_take_the_statistic(make: str) -> None:
    root = _hmm(LowRank(2, "sum_exp"))
    pc = juice.compile(root)
    rng = np.random.default_rng(0)
    params = pc.init(jax.random.key(0))
    x = rng.integers(0, 3, (2, ROWS, LENGTH))
    tensors = jax.tree.map(
        lambda t: np.float32(t).reshape(2, ROWS, *t.shape[1:]),
        random_tensors(rng, root, 2 * ROWS),
    )
    tx = getattr(juice.optim, make)(pc)
    twice = juice.optim.accumulate(tx, 2)

    @functools.partial(jax.jit, compiler_options=FAST_COMPILE)
    def both(params):
        state = twice.init(params)
        for i in range(2):
            part = jax.tree.map(lambda t, i=i: t[i], tensors)
            _, flows = pc.log_likelihood_and_flows(params, x[i], external_params=part)
            updates, state = twice.update(flows, state, params)
        whole = jax.tree.map(lambda t: t.reshape(-1, *t.shape[2:]), tensors)
        _, flows = pc.log_likelihood_and_flows(params, x.reshape(-1, LENGTH), external_params=whole)
        at_once, _ = tx.update(flows, tx.init(params), params)
        without = juice.Flows(flows.sums, flows.inputs, flows.weight)
        ignored = juice.optim.m_step(pc, params, without)
        return updates, at_once, ignored

    updates, at_once, ignored = both(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), updates, at_once)
    new = optax.apply_updates(params, at_once)
    if make == "full_batch_em":
        assert _distance(new["sums"], ignored["sums"]) > 1e-2
    for theta in new["sums"].values():
        np.testing.assert_allclose(theta.sum(-1), 1, rtol=1e-6)
