"""Full-batch and mini-batch EM on whole circuits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import orbax.checkpoint as ocp
import pytest
import random_circuits
from small_circuits import categorical_data, flows_of, initial, mixture, updated

import jaxjuice as juice


def _data(num_rows=40):
    return categorical_data(num_rows)


def _assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def _assert_close(a, b, rtol=1e-6):
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, rtol=rtol, atol=rtol), a, b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_mini_batch_em_is_the_formula(dtype):
    _, pc = mixture()
    step_size, pseudocount = 0.24, 0.01
    with jax.enable_x64(dtype == "float64"):
        params = initial(pc, dtype=dtype)
        flows = flows_of(pc, params, _data())
        tx = juice.optim.mini_batch_em(pc, step_size, pseudocount=pseudocount)
        new, _ = updated(tx, flows, tx.init(params), params)
        assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(new))
        rtol = 1e-5 if dtype == "float32" else 1e-12
        for name, theta in params["sums"].items():
            f = np.asarray(flows.sums[name], np.float64)
            share = pseudocount / theta.shape[-1]
            target = (f + share) / (f.sum(-1, keepdims=True) + pseudocount)
            wanted = (1 - step_size) * np.asarray(theta) + step_size * target
            np.testing.assert_allclose(new["sums"][name], wanted, rtol=rtol)
        for name, leaf in params["inputs"].items():  # [P, C, K]
            f = np.asarray(next(iter(flows.inputs[name].values())), np.float64)
            target = (f + pseudocount / 3) / (f.sum(1, keepdims=True) + pseudocount)
            wanted = (1 - step_size) * np.asarray(leaf["probs"]) + step_size * target
            np.testing.assert_allclose(new["inputs"][name]["probs"], wanted, rtol=rtol)


def test_full_batch_em_is_a_full_step():
    _, pc = mixture()
    params = initial(pc)
    flows = flows_of(pc, params, _data())
    full = juice.optim.full_batch_em(pc, pseudocount=0.3)
    mini = juice.optim.mini_batch_em(pc, 1.0, pseudocount=0.3)
    _assert_equal(
        full.update(flows, full.init(params), params)[0],
        mini.update(flows, mini.init(params), params)[0],
    )


def test_a_schedule_sets_the_step_size_of_each_update():
    _, pc = mixture()
    scheduled = initial(pc)
    fixed = scheduled
    tx = juice.optim.mini_batch_em(pc, optax.linear_schedule(0.9, 0.1, 2))
    state = tx.init(scheduled)
    for count, step_size in enumerate([0.9, 0.5, 0.1, 0.1]):
        assert state.count == count
        flows = flows_of(pc, scheduled, _data())
        scheduled, state = updated(tx, flows, state, scheduled)
        one = juice.optim.mini_batch_em(pc, step_size)
        fixed, _ = updated(one, flows, one.init(fixed), fixed)
        _assert_close(scheduled, fixed)


def test_a_schedule_beyond_one_is_clipped():
    _, pc = mixture()
    params = initial(pc)
    flows = flows_of(pc, params, _data())
    tx = juice.optim.mini_batch_em(pc, lambda count: 1.5)
    full = juice.optim.full_batch_em(pc)
    _assert_equal(
        tx.update(flows, tx.init(params), params)[0],
        full.update(flows, full.init(params), params)[0],
    )


@pytest.mark.parametrize("step_size", [0.3, 1.0])
def test_a_dead_node_keeps_its_parameters(step_size):
    root, pc = mixture()
    params = initial(pc, 1)
    # Nothing ever flows into component 2.
    weights = pc.get_node_params(params, root).copy()  # [children, 1, 1]
    weights[2] = 0.0
    params = pc.set_node_params(params, root, weights)
    tx = juice.optim.mini_batch_em(pc, step_size)
    flows = flows_of(pc, params, _data())
    new, _ = updated(tx, flows, tx.init(params), params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(new))
    for leaf in root.chs[0].chs:
        old_probs = pc.get_node_params(params, leaf)["probs"]
        new_probs = pc.get_node_params(new, leaf)["probs"]
        np.testing.assert_array_equal(new_probs[2], old_probs[2])
        assert (new_probs[0] != old_probs[0]).all()


def test_zeros_without_pseudocount_and_with_keep_zero_params():
    rng = np.random.default_rng(5)
    root = random_circuits.random_circuit(rng, zero_weights=True, num_vars=3)
    pc = juice.compile(root)
    params = pc.params_from_nodes(oracle.dag_params(root))
    x = random_circuits.random_data(rng, root, 30)
    zeros = jax.tree.map(lambda a: np.asarray(a) == 0, params)
    assert any(z.any() for z in jax.tree.leaves(zeros))
    for pseudocount, keep in ((0.0, False), (1.0, True)):
        tx = juice.optim.mini_batch_em(pc, 0.7, pseudocount=pseudocount, keep_zero_params=keep)
        flows = flows_of(pc, params, x)
        new, _ = updated(tx, flows, tx.init(params), params)
        jax.tree.map(lambda a, z: np.testing.assert_array_equal(np.asarray(a)[z], 0), new, zeros)
        assert all((np.asarray(leaf) >= 0).all() for leaf in jax.tree.leaves(new["sums"]))


def test_structural_zeros_stay_zero_under_a_pseudocount():
    dist = juice.distributions.Categorical(num_cats=3)
    leaves = [juice.inputs(v, num_nodes=3, dist=dist) for v in range(3)]
    mask = np.array([[False, True, False], [False, False, False], [True, True, False]])
    inner = juice.summate(
        juice.multiply(*leaves[:2]),
        num_node_blocks=1,
        block_size=3,
        edge_ids=np.array([[0, 0, 0], [0, 1, 2]]),
        zero_param_mask=mask.T.reshape(3, 3, 1),
    )
    root = juice.summate(juice.multiply(inner, leaves[2], edge_ids=None), num_nodes=1)
    pc = juice.compile(root)
    params = initial(pc)
    flows = flows_of(pc, params, _data())
    for tx in (juice.optim.full_batch_em(pc, 1.0), juice.optim.anemone(pc, pseudocount=1.0)):
        new, _ = updated(tx, flows, tx.init(params), params)
        weights = pc.get_node_params(new, inner)[:, :, 0].T
        assert ((weights == 0) == mask).all()
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


def test_a_rare_category_survives_in_float32():
    _, pc = mixture(num_components=1, num_vars=1, num_cats=2)
    (name,) = pc.input_groups
    params = pc.init(jax.random.key(0), perturbation=0.0)
    tx = juice.optim.full_batch_em(pc)
    x = np.array([[0], [1]])
    weights = jnp.asarray([1.0, 1e-9])
    for _ in range(2):
        flows = flows_of(pc, params, x, weights=weights)
        params, _ = updated(tx, flows, tx.init(params), params)
    np.testing.assert_allclose(params["inputs"][name]["probs"][0, 1], 1e-9, rtol=1e-5)


def test_one_compilation_with_donated_buffers():
    _, pc = mixture()
    tx = juice.optim.mini_batch_em(pc, optax.constant_schedule(0.3), pseudocount=0.1)
    num_traces = 0

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, x):
        nonlocal num_traces
        num_traces += 1
        lls, flows = pc.log_likelihood_and_flows(params, x)
        updates, state = tx.update(flows, state, params)
        return optax.apply_updates(params, updates), state, lls.mean()

    params = initial(pc)
    state = tx.init(params)
    means = []
    for _ in range(5):
        params, state, mean = step(params, state, _data())
        means.append(float(mean))
    assert num_traces == 1
    assert means[-1] > means[0]
    assert state.count == 5


@pytest.mark.parametrize("make", [juice.optim.mini_batch_em, juice.optim.anemone])
def test_orbax_keeps_the_state(tmp_path, make):
    _, pc = mixture()
    tx = juice.optim.accumulate(make(pc, 0.3), 3)
    params = initial(pc)
    flows = flows_of(pc, params, _data())
    _, state = tx.update(flows, tx.init(params), params)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", tx.init(params))
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    _assert_equal(restored, state)


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (juice.optim.mini_batch_em, {"step_size": 0.0}),
        (juice.optim.mini_batch_em, {"step_size": 1.5}),
        (juice.optim.mini_batch_em, {"pseudocount": -1.0}),
        (juice.optim.full_batch_em, {"pseudocount": float("nan")}),
        (juice.optim.anemone, {"momentum": 1.0}),
        (juice.optim.anemone, {"step_size": -0.1}),
    ],
)
def test_arguments_out_of_range(make, arguments):
    _, pc = mixture()
    (name,) = arguments
    with pytest.raises(juice.TrainingError, match=name):
        make(pc, **arguments)


def test_an_update_needs_parameters():
    _, pc = mixture()
    params = initial(pc)
    flows = flows_of(pc, params, _data())
    for tx in (juice.optim.full_batch_em(pc), juice.optim.anemone(pc)):
        with pytest.raises(juice.TrainingError, match="without parameters"):
            tx.update(flows, tx.init(params))
