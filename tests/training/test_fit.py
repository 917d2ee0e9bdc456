"""`juice.fit`: batches, validation, stopping, callbacks, data of all kinds."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_circuits import (
    FAST_COMPILE,
    categorical_data,
    chain,
    gaussian_mixture,
    initial,
    mixture,
    updated,
)

import jaxjuice as juice
from jaxjuice.training import Batch, _data, _evaluate
from jaxjuice.training._steps import em_step, fresh_copy, zero_totals

NUM_VARS, NUM_CATS = 3, 3


@functools.cache
def _em():
    """One optimizer for all tests, so that equal steps compile once."""
    return juice.optim.mini_batch_em(mixture()[1], 0.2, pseudocount=0.1)


@functools.cache
def _full_batch():
    return juice.optim.full_batch_em(mixture()[1], pseudocount=0.1)


@functools.cache
def _adam():
    return optax.adam(0.1)


def _fit(data=None, tx=None, **options):
    _, pc = mixture()
    options = {"epochs": 3, "batch_size": 16, "progress": False, **options}
    data = categorical_data() if data is None else data
    return juice.fit(pc, initial(pc), data, tx or _em(), **options)


def _assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def _assert_close(a, b, atol=1e-5):
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, atol=atol), a, b)


def _recorder(pc):
    """An optimizer that changes nothing and keeps the weights of its batches; counts its traces."""
    traces = []

    def init(params):
        return jnp.zeros(()), jnp.zeros((), jnp.int32)

    def update(flows, state, params):
        traces.append(flows)
        total, count = state
        return jax.tree.map(jnp.zeros_like, params), (total + flows.weight, count + 1)

    return juice.optim.FlowTransformation(init, update, pc), traces


# ---------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("make_tx", [_em, _adam])
def test_training_raises_the_likelihood(make_tx):
    _, pc = mixture()
    valid = categorical_data(30, seed=1)
    result = _fit(tx=make_tx(), valid=valid, epochs=5)
    assert [record.epoch for record in result.history] == [1, 2, 3, 4, 5]
    for name in ("train_log_likelihood", "valid_log_likelihood"):
        curve = [getattr(record, name) for record in result.history]
        assert curve[-1] > curve[0]
    last = result.history[-1]
    wanted = float(pc.log_likelihood(result.params, valid).mean())
    np.testing.assert_allclose(last.valid_log_likelihood, wanted, rtol=1e-5)
    bits = -last.valid_log_likelihood / (NUM_VARS * math.log(2))
    np.testing.assert_allclose(last.valid_bits_per_dimension, bits, rtol=1e-6)
    assert last.samples_per_second > 0
    for weights in result.params["sums"].values():
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


def test_training_figures_are_those_of_the_parameters_that_met_the_batch():
    _, pc = mixture()
    x = categorical_data()
    result = _fit(x, batch_size=None, epochs=1)
    wanted = float(pc.log_likelihood(initial(pc), x).mean())
    np.testing.assert_allclose(result.history[0].train_log_likelihood, wanted, rtol=1e-5)
    assert result.history[0].valid_log_likelihood is None
    assert result.best_epoch == 1
    _assert_equal(result.best_params, result.params)


def test_the_callers_parameters_stay_valid():
    _, pc = mixture()
    params = initial(pc)
    before = jax.tree.map(np.array, params)
    juice.fit(pc, params, categorical_data(), _em(), epochs=1, batch_size=16, progress=False)
    _assert_equal(params, before)


def test_no_epochs():
    _, pc = mixture()
    result = _fit(epochs=0)
    _assert_equal(result.params, initial(pc))
    assert result.history == ()


def test_full_batch_em_updates_once_an_epoch_whatever_the_batch_size():
    _, pc = mixture()
    x = categorical_data()
    whole = _fit(x, _full_batch(), batch_size=None)
    split = _fit(x, _full_batch(), batch_size=16)
    _assert_close(whole.params, split.params)
    assert split.opt_state.inner.count == 3
    params, tx = initial(pc), _full_batch()
    for _ in range(3):
        _, flows = pc.log_likelihood_and_flows(params, x)
        params, _ = updated(tx, flows, tx.init(params), params)
    _assert_close(whole.params, params)


def test_weights_of_zero_stay_zero_under_gradients_and_weight_decay():
    root, pc = mixture()
    params = initial(pc)
    weights = pc.get_node_params(params, root).copy()
    weights[1] = 0
    params = pc.set_node_params(params, root, weights)
    tx = optax.adamw(0.1, weight_decay=0.1)
    result = juice.fit(pc, params, categorical_data(), tx, epochs=3, batch_size=16, progress=False)
    trained = pc.get_node_params(result.params, root)
    assert ((trained == 0) == (weights == 0)).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))
    assert result.history[-1].train_log_likelihood > result.history[0].train_log_likelihood


def test_a_step_gives_its_buffers_away():
    _, pc = mixture()
    params = fresh_copy(initial(pc))
    state = fresh_copy(_em().init(params))
    batch = Batch(jnp.asarray(categorical_data(16)), None, jnp.ones(16))
    new, _, _ = em_step(pc, _em(), params, state, zero_totals(jnp.float32), batch)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((params, state)))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(new))


def test_float64():
    with jax.enable_x64(True):
        _, pc = mixture()
        params = initial(pc, dtype=jnp.float64)
        x = categorical_data()
        result = juice.fit(pc, params, x, _em(), epochs=1, batch_size=None, progress=False)
        assert all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(result.params))
        wanted = float(pc.log_likelihood(params, x).mean())
        np.testing.assert_allclose(result.history[0].train_log_likelihood, wanted, rtol=1e-13)


def test_continuous_data_have_no_bits():
    _, pc = gaussian_mixture()
    x = np.random.default_rng(0).normal(size=(50, 2))
    tx = juice.optim.anemone(pc)
    result = juice.fit(pc, initial(pc), x, tx, epochs=3, batch_size=16, progress=False)
    assert result.history[-1].train_bits_per_dimension is None
    assert np.isfinite(result.history[-1].train_log_likelihood)


# ----------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize("num_rows", [1, 15, 16, 17, 100])
def test_no_row_is_dropped_or_counted_twice(num_rows):
    _, pc = mixture()
    tx, traces = _recorder(pc)
    result = _fit(categorical_data(num_rows), tx, epochs=3)
    total, count = result.opt_state
    assert total == 3 * num_rows
    assert count == 3 * -(-num_rows // 16)
    assert len(traces) == 1


def test_a_second_run_with_equal_shapes_compiles_nothing():
    _, pc = mixture()
    tx, traces = _recorder(pc)
    valid = categorical_data(20)
    for seed in range(2):
        _fit(categorical_data(100, seed=seed), tx, seed=seed, valid=valid)
    assert len(traces) == 1


def test_nothing_is_read_from_the_device_within_an_epoch(monkeypatch):
    reads = []
    monkeypatch.setattr(
        _evaluate.jax,
        "device_get",
        lambda tree: reads.append(tree) or jax.tree.map(np.asarray, tree),
    )
    _fit(epochs=3, batch_size=5, valid=categorical_data(20))
    assert len(reads) == 6


def test_equal_seeds_give_equal_bits():
    _assert_equal(_fit(seed=3).params, _fit(seed=3).params)
    with pytest.raises(AssertionError):
        _assert_equal(_fit(seed=3).params, _fit(seed=4).params)


def test_the_order_changes_with_the_epoch():
    _, pc = mixture()
    x = np.arange(40).reshape(-1, 1).repeat(3, 1) % 3
    orders = []

    def init(params):
        return ()

    def update(flows, state, params):
        jax.debug.callback(lambda f: orders.append(float(f.ravel()[0])), flows.sums[name])
        return jax.tree.map(jnp.zeros_like, params), state

    (name,) = pc.sum_groups
    tx = juice.optim.FlowTransformation(init, update, pc)
    _fit(x, tx, epochs=2, batch_size=10)
    jax.effects_barrier()
    first, second = orders[:4], orders[4:]
    assert len(second) == 4
    assert sorted(first) != sorted(second)
    orders.clear()
    _fit(x, tx, epochs=2, batch_size=10, shuffle=False)
    jax.effects_barrier()
    np.testing.assert_allclose(orders[:4], orders[4:], rtol=1e-6)


def test_data_too_large_for_the_device_give_the_same_bits(monkeypatch):
    x = categorical_data()
    mask = np.random.default_rng(0).random(x.shape) < 0.2
    resident = _fit(x, missing_mask=mask)
    monkeypatch.setattr(_data, "DEVICE_RESIDENT_BYTES", 0)
    _assert_equal(_fit(x, missing_mask=mask).params, resident.params)


def test_weights_count_like_repeated_rows():
    x = categorical_data(20)
    weights = np.arange(20) % 3
    repeated = _fit(np.repeat(x, weights, axis=0), _full_batch(), batch_size=None)
    weighted = _fit(x, _full_batch(), batch_size=None, weights=weights)
    _assert_close(repeated.params, weighted.params)
    np.testing.assert_allclose(
        repeated.history[-1].train_log_likelihood,
        weighted.history[-1].train_log_likelihood,
        rtol=1e-5,
    )


def test_missing_values():
    _, pc = mixture()
    x = categorical_data()
    by_row = np.zeros(x.shape, bool)
    by_row[:, 1] = True
    by_variable = np.array([False, True, False])
    hidden = np.where(by_row, 77, x)  # what stands at a missing place does not matter
    a = _fit(hidden, missing_mask=by_row, valid=hidden, valid_missing_mask=by_row)
    b = _fit(hidden, missing_mask=by_variable, valid=hidden, valid_missing_mask=by_variable)
    _assert_close(a.params, b.params)
    last = b.history[-1]
    wanted = float(pc.log_likelihood(b.params, x, by_variable).mean())
    np.testing.assert_allclose(last.valid_log_likelihood, wanted, rtol=1e-5)
    bits = -last.valid_log_likelihood / (2 * math.log(2))
    np.testing.assert_allclose(last.valid_bits_per_dimension, bits, rtol=1e-5)


# ----------------------------------------------------------------------------------- kinds of data


def test_streams_equal_arrays():
    x = categorical_data()
    batches = [x[i : i + 16] for i in range(0, len(x), 16)]
    wanted = _fit(x, shuffle=False)
    opened = []

    def open_epoch(epoch):
        opened.append(epoch)
        return iter(batches)

    for data in (batches, open_epoch, [jnp.asarray(b) for b in batches], [(b,) for b in batches]):
        result = _fit(data, valid=batches[:2])
        _assert_equal(result.params, wanted.params)
        np.testing.assert_allclose(
            [r.train_log_likelihood for r in result.history],
            [r.train_log_likelihood for r in wanted.history],
        )
    assert opened == [0, 1, 2]


def test_a_stream_may_carry_masks_and_weights():
    x = categorical_data(40)
    mask = np.random.default_rng(0).random(x.shape) < 0.3
    weights = np.linspace(0.5, 2, 40)
    wanted = _fit(x, shuffle=False, missing_mask=mask, weights=weights, batch_size=25)
    stream = [Batch(x[:25], mask[:25], weights[:25]), Batch(x[25:], mask[25:], weights[25:])]
    _assert_close(_fit(stream, batch_size=None).params, wanted.params, atol=1e-6)
    _assert_close(
        _fit(Batch(x, mask, weights), shuffle=False, batch_size=25).params, wanted.params, atol=0
    )


def test_external_log_densities_come_with_the_batches():
    dist = juice.distributions.External()
    leaves = [juice.inputs(v, num_nodes=2, dist=dist) for v in range(2)]
    pc = juice.compile(juice.summate(juice.multiply(*leaves), num_nodes=1))
    rng = np.random.default_rng(0)
    x = np.zeros((20, 2), np.float32)
    scores = rng.normal(size=(20, 2, 2)).astype(np.float32)
    by_leaf = {leaf: scores[:, v] for v, leaf in enumerate(leaves)}
    tx = juice.optim.full_batch_em(pc)
    options = {"epochs": 2, "batch_size": 8, "progress": False, "valid": None}
    results = [
        juice.fit(pc, initial(pc), Batch(x, external_log_probs=external), tx, **options)
        for external in (scores, by_leaf)
    ]
    assert results[0].history[1].train_log_likelihood > results[0].history[0].train_log_likelihood
    _assert_close(results[0].params, results[1].params, atol=1e-6)
    with pytest.raises(juice.DataError, match="first axis"):
        juice.fit(pc, initial(pc), Batch(x, external_log_probs=scores[:5]), tx, **options)


def test_external_parameters_come_with_the_rows():
    leaves = [juice.inputs(v, num_nodes=4, dist=juice.distributions.Categorical(3)) for v in (0, 1)]
    kind = juice.parameterizations.LowRank(2)
    root = juice.summate(juice.multiply(*leaves), num_nodes=1, parameterization=kind)
    pc = juice.compile(root).register_external_params_group("scales", [root])
    params, x = pc.init(jax.random.key(0)), categorical_data(20, 2)
    rng = np.random.default_rng(0)
    tensors = tuple(rng.normal(size=(20, *size)).astype(np.float32) for size in ((1, 2), (2, 4)))
    given = {"scales": tensors}
    tx = juice.optim.full_batch_em(pc)
    options = {"batch_size": 8, "external_params": given}
    fit_options = options | {"epochs": 1, "progress": False, "valid": x}
    # The rows are shuffled, and the last batch is filled up.
    result = juice.fit(pc, params, x, tx, valid_external_params=given, **fit_options)

    @functools.partial(jax.jit, compiler_options=FAST_COMPILE)
    def by_hand(params):
        lls, flows = pc.log_likelihood_and_flows(params, x, external_params={root: tensors})
        return lls, juice.optim.m_step(pc, params, flows)

    lls, wanted = by_hand(params)
    _assert_close(result.params, wanted, atol=1e-6)
    (record,) = result.history
    np.testing.assert_allclose(record.train_log_likelihood, lls.mean(), rtol=1e-5)
    found = juice.evaluate(pc, result.params, x, **options)
    assert found.log_likelihood == record.valid_log_likelihood > record.train_log_likelihood
    stream = [
        Batch(x[rows], external_params={"scales": [t[rows] for t in tensors]})
        for rows in (slice(8), slice(8, 16), slice(16, 20))
    ]
    assert juice.evaluate(pc, result.params, stream, batch_size=8) == found
    for rows, external, message in (
        (x, {root: tensors[:1]}, r"shapes \[20, 1, 2\], and \[20, 1, 2\], \[20, 2, 4\]"),
        (x[:5], given, r"\[5, 1, 2\]"),
        (x, tensors, "external_params is a tuple"),
        (stream, given, "iterable of batches together with"),
    ):
        with pytest.raises(juice.DataError, match=message):
            juice.evaluate(pc, params, rows, external_params=external)
    with pytest.raises(juice.DataError, match="valid=.*'scale', and the groups"):
        juice.fit(pc, params, x, tx, valid_external_params={"scale": tensors}, **fit_options)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (np.zeros((4, 2), int), {}, r"\[rows, 3\]"),
        (np.zeros(3, int), {}, r"\[rows, 3\]"),
        (np.zeros((0, 3), int), {}, "without any row"),
        (np.full((4, 3), "a"), {}, "dtype"),
        (np.full((4, 3), 7), {}, "column 0 .* 7"),
        (np.zeros((4, 3)), {"missing_mask": np.zeros((4, 2), bool)}, "missing_mask"),
        (np.zeros((4, 3)), {"missing_mask": np.zeros((4, 3))}, "boolean"),
        (np.zeros((4, 3)), {"weights": np.ones(5)}, "weights of shape"),
        (np.zeros((4, 3)), {"weights": -np.ones(4)}, "negative"),
        (np.zeros((4, 3)), {"valid": np.full((4, 3), 9)}, "valid"),
        (iter([np.zeros((4, 3))]), {}, "only once"),
        ([], {}, "without any batch"),
        ([np.zeros((17, 3), int)], {}, "17 rows"),
        ([np.full((4, 3), 5)], {}, "column 0"),
        ([np.zeros((4, 3), int)], {"weights": np.ones(4)}, "Batch"),
    ],
)
def test_data_that_do_not_fit(data, options, message):
    with pytest.raises(juice.DataError, match=message):
        _fit(data, **options)


# ------------------------------------------------------------------------- stopping and callbacks


def test_rows_of_probability_zero_are_counted_and_warned_of_once():
    _, pc = mixture()
    x = categorical_data(40)
    x = np.concatenate([x[x[:, 0] < 2], [[2, 0, 0], [2, 1, 1]]]).astype(np.uint8)
    params = initial(pc)
    (name,) = params["inputs"]
    probs = params["inputs"][name]["probs"].at[0, 2].set(0)  # variable 0 never takes value 2
    probs = probs / probs.sum(1, keepdims=True)
    params = {**params, "inputs": {name: {"probs": probs}}}
    tx = juice.optim.mini_batch_em(pc, 0.5)
    with pytest.warns(RuntimeWarning, match="2 rows had probability 0") as warned:
        result = juice.fit(pc, params, x, tx, epochs=3, batch_size=16, progress=False)
    assert len(warned) == 1
    assert [r.num_impossible_train for r in result.history] == [2, 2, 2]
    assert all(np.isfinite(r.train_log_likelihood) for r in result.history)
    possible = x[:-2]
    one = juice.evaluate(pc, result.params, x, batch_size=7)
    wanted = float(pc.log_likelihood(result.params, possible).mean())
    np.testing.assert_allclose(one.log_likelihood, wanted, rtol=1e-5)
    assert one.num_impossible == 2


def test_early_stopping_and_the_best_parameters():
    seen = []

    def keep(record, params):
        seen.append(params)

    # Small steps for one row overfit: the validation figures turn down at some epoch.
    tx = juice.optim.mini_batch_em(mixture()[1], 0.1, pseudocount=0.01)
    x, valid = categorical_data(4), categorical_data(50, seed=2)
    result = _fit(x, tx, valid=valid, epochs=60, patience=3, callbacks=[keep])
    assert result.stopped_early
    assert len(result.history) < 60
    curve = [(-r.num_impossible_valid, r.valid_log_likelihood) for r in result.history]
    assert result.best_epoch == 1 + curve.index(max(curve))
    assert len(result.history) == result.best_epoch + 3
    _assert_equal(result.best_params, seen[result.best_epoch - 1])
    _assert_equal(result.params, seen[-1])


def test_min_delta():
    result = _fit(epochs=10, patience=2, min_delta=1e6)
    assert len(result.history) == 3
    assert result.stopped_early


def test_a_callback_may_stop_the_run():
    result = _fit(epochs=10, callbacks=[lambda record, params: record.epoch == 2])
    assert len(result.history) == 2
    assert result.stopped_early
    assert not _fit(epochs=2).stopped_early


def test_the_progress_bar(capsys):
    _fit(progress=True, valid=categorical_data(20))
    shown = capsys.readouterr().err
    assert "epoch 3/3" in shown
    assert "300/300" in shown
    assert "valid=" in shown
    assert "bpd=" in shown
    _fit(progress=False)
    assert capsys.readouterr().err == ""


# ---------------------------------------------------------------------------------- wrong arguments


def test_optimizers():
    _, pc = mixture()
    chained = optax.chain(_em(), optax.identity())
    result = _fit(tx=chained, mode="em")
    _assert_close(result.params, _fit().params, atol=1e-6)
    with pytest.raises(juice.TrainingError, match="takes flows"):
        _fit(mode="gradient")
    with pytest.raises(juice.TrainingError, match="another circuit"):
        _fit(tx=juice.optim.anemone(chain()[1]))
    with pytest.raises(juice.TrainingError, match="must be an optimizer"):
        _fit(tx=0.1)
    with pytest.raises(juice.TrainingError, match="unknown"):
        _fit([categorical_data(10)], _full_batch())
    with_precision = juice.optim.mini_batch_em(pc.with_precision("fp32"), 0.2, pseudocount=0.1)
    _assert_close(_fit(tx=with_precision).params, _fit().params)


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": -1},
        {"epochs": 1.5},
        {"batch_size": 0},
        {"seed": -1},
        {"patience": 0},
        {"checkpoint_every": 0},
        {"mode": "newton"},
        {"resume": True},
    ],
)
def test_arguments_out_of_range(options):
    (name,) = options
    with pytest.raises(juice.TrainingError, match=name):
        _fit(**options)


def test_several_roots_are_refused():
    dist = juice.distributions.Categorical(num_cats=2)
    root = juice.summate(juice.inputs(0, num_nodes=2, dist=dist), num_nodes=2)
    pc = juice.compile(root)
    with pytest.raises(juice.TrainingError, match="2 roots"):
        juice.fit(
            pc, initial(pc), np.zeros((4, 1), int), optax.adam(0.1), epochs=1, batch_size=None
        )
