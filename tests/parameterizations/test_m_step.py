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
from bench._conditional import (
    KINDS,
    LENGTH,
    ROWS,
    Way,
    distance,
    equal_params,
    hidden_markov_model,
    num_falling,
    sixteen_steps,
)
from jaxjuice.optim import conditional_m_step
from jaxjuice.parameterizations import LowRank


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_no_step_lowers_the_objective(kind) -> None:
    falling = num_falling(kind, FAST_COMPILE)
    assert not any(count for way, count in falling.items() if way.is_conditional), falling
    # Normalized flows, in contrast, are no M-step.
    assert falling[Way(1.0, False, 0.0, is_conditional=False)] >= 15, falling


def test_low_rank_trains_like_the_gates_it_equals() -> None:
    """Anemone with momentum, 16 steps: the same to rounding, as W is free of the parameters."""
    found = sixteen_steps(FAST_COMPILE)
    assert found.forms < 1e-13
    assert 1e-3 < found.averages < 1


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
        pc, plain = (
            juice.compile(hidden_markov_model(LowRank(2))),
            juice.compile(hidden_markov_model(None)),
        )
        x = np.random.default_rng(0).integers(0, 3, (20, LENGTH))
        for step_size in (1.0, 0.3):
            found = []
            for circuit in (pc, plain):
                params = equal_params(circuit)
                _, flows = circuit.log_likelihood_and_flows(params, x)
                options = {"step_size": step_size, "pseudocount": 0.1}
                found.append(juice.optim.m_step(circuit, params, flows, **options))
            assert distance(*found) < 1e-15


@pytest.mark.parametrize("kind", [KINDS["sum_exp"], KINDS["BlockScale"]], ids=str)
def test_top_down_flows_are_of_the_shared_weights(kind) -> None:
    """Anemone's anchor: F+ = TD theta and W = TD, the visits of each node."""
    root = hidden_markov_model(kind)
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
    root = hidden_markov_model(LowRank(2, "sum_exp"))
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
        assert distance(new["sums"], ignored["sums"]) > 1e-2
    for theta in new["sums"].values():
        np.testing.assert_allclose(theta.sum(-1), 1, rtol=1e-6)
