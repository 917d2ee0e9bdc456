"""Anemone against its formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_circuits import FAST_COMPILE, categorical_data, chain, flows_of, initial, updated

import jaxjuice as juice


def _data(num_rows=24, seed=0):
    return categorical_data(num_rows, num_vars=4, num_cats=5, seed=seed)


def _to_numpy(tree):
    return jax.tree.map(lambda a: np.asarray(a, np.float64), tree)


def _normalized(counts, axis):
    return counts / counts.sum(axis, keepdims=True)


def _categorical_m_step(params, flows, pseudocount):
    """A full M-step of a circuit with categorical leaves, written anew."""
    sums = {
        name: _normalized(flows.sums[name] + pseudocount / theta.shape[-1], -1)
        for name, theta in params["sums"].items()
    }
    inputs = {}
    for name, leaf in params["inputs"].items():
        (counts,) = flows.inputs[name].values()
        inputs[name] = {"probs": _normalized(counts + pseudocount / leaf["probs"].shape[1], 1)}
    return {"sums": sums, "inputs": inputs}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_equals_a_loop_by_hand(momentum):
    _, pc = chain()
    step_size, pseudocount = 0.4, 1e-3
    with jax.enable_x64(True):
        params = initial(pc, dtype=jnp.float64)
        by_hand, average = _to_numpy(params), None
        tx = juice.optim.anemone(pc, step_size, momentum, pseudocount)
        state = tx.init(params)
        for t in range(1, 6):
            flows = flows_of(pc, params, _data(seed=t))
            params, state = updated(tx, flows, state, params)

            f = _to_numpy(flows_of(pc, by_hand, _data(seed=t)))
            num_samples = len(_data())
            fresh = jax.tree.map(lambda a: (1 - momentum) * a, f)
            average = (
                fresh
                if average is None
                else jax.tree.map(lambda a, b: momentum * a + b, average, fresh)
            )
            anchor = _to_numpy(pc.top_down_flows(by_hand))
            scale = step_size / num_samples / (1 - momentum**t)
            mixed = jax.tree.map(
                lambda a, b, scale=scale: scale * a + (1 - step_size) * b, average, anchor
            )
            by_hand = _categorical_m_step(by_hand, mixed, pseudocount)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), params, by_hand)
        assert state.count == 5


def test_momentum_does_not_bias_the_first_update():
    _, pc = chain()
    params = initial(pc)
    flows = flows_of(pc, params, _data())
    with_momentum = juice.optim.anemone(pc, momentum=0.9)
    without = juice.optim.anemone(pc, momentum=0.0)
    a, state = with_momentum.update(flows, with_momentum.init(params), params)
    b, plain_state = without.update(flows, without.init(params), params)
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, atol=1e-6), a, b)
    assert state.count == 1
    assert plain_state.momentum is None
    jax.tree.map(
        lambda m, f: np.testing.assert_allclose(m, 0.1 * np.asarray(f), rtol=1e-5),
        state.momentum,
        flows,
    )


def test_the_anchor_is_a_fixed_point():
    """Flows that are just what the circuit itself sends down change nothing."""
    _, pc = chain()
    params = initial(pc)
    flows = jax.tree.map(lambda a: 50 * a, pc.top_down_flows(params))
    tx = juice.optim.anemone(pc, pseudocount=0.0)
    updates, _ = tx.update(flows, tx.init(params), params)
    jax.tree.map(lambda u: np.testing.assert_allclose(u, 0, atol=1e-6), updates)


def test_step_size_one_without_momentum_is_full_batch_em():
    _, pc = chain()
    params = initial(pc)
    flows = flows_of(pc, params, _data())
    tx, full = juice.optim.anemone(pc, 1.0, 0.0, 0.0), juice.optim.full_batch_em(pc)
    a, _ = tx.update(flows, tx.init(params), params)
    b, _ = full.update(flows, full.init(params), params)
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, atol=1e-6), a, b)


def test_a_node_moves_as_much_as_it_is_visited():
    root, pc = chain()
    params = initial(pc)
    step_size, num_samples = 0.4, len(_data())
    flows = flows_of(pc, params, _data())
    anchor = pc.top_down_flows(params)
    tx = juice.optim.anemone(pc, step_size, 0.0, 0.0)
    new, _ = updated(tx, flows, tx.init(params), params)
    for name, theta in _to_numpy(params["sums"]).items():
        f = np.asarray(flows.sums[name], np.float64)
        visits = step_size * f.sum(-1, keepdims=True) / num_samples
        expected = (1 - step_size) * np.asarray(anchor.sums[name]).sum(-1, keepdims=True)
        rate = visits / (visits + expected)
        wanted = (1 - rate) * theta + rate * _normalized(f, -1)
        np.testing.assert_allclose(new["sums"][name], wanted, rtol=1e-4)


def test_unequal_batches_count_by_their_samples():
    """Two batches with momentum: their flows and their sizes are averaged alike."""
    _, pc = chain()
    params = initial(pc)
    momentum, step_size = 0.5, 0.4
    tx = juice.optim.anemone(pc, step_size, momentum, 0.0)
    state = tx.init(params)
    large = flows_of(pc, params, _data(40))
    small = flows_of(pc, params, _data(4, seed=1))
    # The parameters stay, so that both batches meet the same anchor.
    _, state = tx.update(large, state, params)
    updates, _ = tx.update(small, state, params)
    new = optax.apply_updates(params, updates)
    average = jax.tree.map(lambda a, b: (a / 4 + b / 2) / 0.75, *map(_to_numpy, (large, small)))
    np.testing.assert_allclose(average.weight, 16)
    anchor = _to_numpy(pc.top_down_flows(params))
    mixed = jax.tree.map(
        lambda a, b: step_size / average.weight * a + (1 - step_size) * b, average, anchor
    )
    wanted = _categorical_m_step(_to_numpy(params), mixed, 0.0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), new, wanted)


def test_a_batch_of_weight_zero_changes_nothing():
    _, pc = chain()
    params = initial(pc)
    tx = juice.optim.anemone(pc)
    flows = flows_of(pc, params, _data())
    _, state = tx.update(flows, tx.init(params), params)
    empty = flows_of(pc, params, _data(), weights=jnp.zeros(len(_data())))
    updates, after = tx.update(empty, state, params)
    assert not any(u.any() for u in jax.tree.leaves(updates))
    jax.tree.map(np.testing.assert_array_equal, after, state)


def _circuit_of_all_families():
    """A variable a family, with two, three and four nodes in blocks of different sizes."""
    d = juice.distributions
    rng = np.random.default_rng(0)
    leaves = [
        juice.inputs(0, num_nodes=4, dist=d.Categorical(num_cats=3), block_size=2),
        juice.inputs(1, num_nodes=4, dist=d.Bernoulli(), block_size=4),
        juice.inputs(2, num_nodes=2, dist=d.Gaussian()),
        juice.inputs(3, num_nodes=2, dist=d.DiscreteLogistic(val_range=(-1.0, 1.0), num_cats=5)),
        juice.inputs(
            4, num_nodes=3, dist=d.MaskedCategorical(num_cats=3), mask=~np.eye(3, dtype=bool)
        ),
        juice.inputs(5, num_nodes=3, dist=d.Poisson(), block_size=3),
        juice.inputs(6, num_nodes=2, dist=d.Binomial(4)),
        juice.inputs(7, num_nodes=2, dist=d.Indicator(num_states=2), state=np.arange(2)),
    ]
    pairs = [
        juice.summate(juice.multiply(leaves[i], leaves[i + 1]), num_nodes=4, block_size=size)
        for i, size in ((0, 1), (2, 2), (4, 4), (6, 2))
    ]
    root = juice.summate(juice.multiply(*pairs), num_nodes=1, block_size=1)
    x = np.stack(
        [
            rng.integers(0, 3, 60),
            rng.integers(0, 2, 60),
            rng.normal(2, 1, 60),
            rng.integers(0, 5, 60),
            rng.integers(0, 3, 60),
            rng.poisson(3, 60),
            rng.integers(0, 5, 60),
            rng.integers(0, 2, 60),
        ],
        axis=1,
    )
    return juice.compile(root), x, rng.random(x.shape) < 0.2


def test_every_family_and_mixed_block_sizes():
    pc, x, mask = _circuit_of_all_families()
    params = initial(pc)
    tx = juice.optim.anemone(pc)

    def step(carry, _):
        params, state = carry
        lls, flows = pc.log_likelihood_and_flows(params, x, mask)
        updates, state = tx.update(flows, state, params)
        return (optax.apply_updates(params, updates), state), lls.mean()

    def run(params):
        return jax.lax.scan(step, (params, tx.init(params)), length=15)

    end, means = jax.jit(run, compiler_options=FAST_COMPILE)(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(end))
    assert (np.diff(means) > 0).all()
    for new, old in zip(jax.tree.leaves(end[0]), jax.tree.leaves(params), strict=True):
        assert (new != old).any()
