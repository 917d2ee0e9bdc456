"""Checkpoints: a run that was interrupted continues bit for bit."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_circuits import categorical_data, chain, initial, mixture

import jaxjuice as juice
from jaxjuice.training import _fit as _fit_module


class Interrupted(Exception):
    """Stands for whatever ends a process."""


def _interrupt_at(epoch):
    def callback(record, params):
        if record.epoch == epoch:
            raise Interrupted

    return callback


def _fit(tx, **options):
    _, pc = mixture()
    valid = categorical_data(30, seed=1)
    options = {"epochs": 5, "batch_size": 16, "valid": valid, "progress": False, **options}
    return juice.fit(pc, initial(pc), categorical_data(), tx, **options)


def _without_times(history):
    return [dataclasses.replace(record, seconds=0.0, samples_per_second=0.0) for record in history]


def _assert_equal(a, b):
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    np.testing.assert_array_equal(a, b)


def _assert_same(a, b):
    for name in ("params", "best_params", "opt_state"):
        jax.tree.map(_assert_equal, getattr(a, name), getattr(b, name))
    assert _without_times(a.history) == _without_times(b.history)
    assert (a.best_epoch, a.stopped_early) == (b.best_epoch, b.stopped_early)


@functools.cache
def _optimizers():
    """The same objects for all tests, so that equal steps compile once."""
    _, pc = mixture()
    schedule = optax.linear_schedule(0.9, 0.1, 20)
    return {
        "em": juice.optim.mini_batch_em(pc, schedule, pseudocount=0.1),
        "anemone": juice.optim.accumulate(juice.optim.anemone(pc, schedule), 3),
        "full_batch": juice.optim.full_batch_em(pc, 0.1),
        "adam": optax.adam(optax.cosine_decay_schedule(0.1, 30)),
        "noise": optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(0)), optax.sgd(0.1, 0.9)),
    }


@pytest.mark.parametrize("name", ["em", "anemone", "full_batch", "adam", "noise"])
def test_a_resumed_run_equals_an_uninterrupted_one(name, tmp_path):
    tx = _optimizers()[name]
    whole = _fit(tx)
    with pytest.raises(Interrupted):
        _fit(tx, checkpoint_dir=tmp_path, callbacks=[_interrupt_at(2)])
    resumed = _fit(tx, checkpoint_dir=tmp_path, resume=True)
    _assert_same(resumed, whole)


def test_the_newest_checkpoint_may_be_older_than_the_interruption(tmp_path):
    tx = _optimizers()["em"]
    with pytest.raises(Interrupted):
        _fit(tx, checkpoint_dir=tmp_path, checkpoint_every=2, callbacks=[_interrupt_at(3)])
    epochs = []
    resumed = _fit(
        tx,
        checkpoint_dir=tmp_path,
        checkpoint_every=2,
        resume=True,
        callbacks=[lambda record, params: epochs.append(record.epoch)],
    )
    assert epochs == [3, 4, 5]
    _assert_same(resumed, _fit(tx))


def test_without_a_checkpoint_the_run_begins(tmp_path):
    tx = _optimizers()["em"]
    _assert_same(_fit(tx, checkpoint_dir=tmp_path / "new", resume=True), _fit(tx))


def test_a_finished_run_may_go_on(tmp_path):
    tx = _optimizers()["em"]
    first = _fit(tx, epochs=3, checkpoint_dir=tmp_path, checkpoint_every=100)
    again = _fit(tx, epochs=3, checkpoint_dir=tmp_path, resume=True)
    _assert_same(first, again)
    _assert_same(_fit(tx, epochs=5, checkpoint_dir=tmp_path, resume=True), _fit(tx, epochs=5))


def test_patience_survives(tmp_path):
    tx = _optimizers()["em"]
    options = {"epochs": 10, "patience": 2, "min_delta": 1e6}
    whole = _fit(tx, **options)
    assert len(whole.history) == 3
    with pytest.raises(Interrupted):
        _fit(tx, checkpoint_dir=tmp_path, callbacks=[_interrupt_at(2)], **options)
    _assert_same(_fit(tx, checkpoint_dir=tmp_path, resume=True, **options), whole)
    _assert_same(_fit(tx, checkpoint_dir=tmp_path, resume=True, **options), whole)


def test_training_without_validation_resumes(tmp_path):
    tx = _optimizers()["em"]
    with pytest.raises(Interrupted):
        _fit(tx, valid=None, checkpoint_dir=tmp_path, callbacks=[_interrupt_at(1)])
    _assert_same(_fit(tx, valid=None, checkpoint_dir=tmp_path, resume=True), _fit(tx, valid=None))


def test_checkpoints_are_not_overwritten_by_chance(tmp_path):
    tx = _optimizers()["em"]
    _fit(tx, epochs=1, checkpoint_dir=tmp_path)
    with pytest.raises(juice.TrainingError, match="resume=True"):
        _fit(tx, epochs=1, checkpoint_dir=tmp_path)


def test_a_checkpoint_of_another_format_is_refused(tmp_path, monkeypatch):
    tx = _optimizers()["em"]
    monkeypatch.setattr(_fit_module, "_FORMAT", 1)  # rows of parameters in another order
    _fit(tx, epochs=1, checkpoint_dir=tmp_path)
    monkeypatch.undo()
    with pytest.raises(juice.TrainingError, match=r"has format 1, .* reads format 2"):
        _fit(tx, checkpoint_dir=tmp_path, resume=True)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    tx = _optimizers()["em"]
    _fit(tx, epochs=1, checkpoint_dir=tmp_path)
    with pytest.raises(juice.TrainingError, match="seed 1"):
        _fit(tx, seed=1, checkpoint_dir=tmp_path, resume=True)
    with pytest.raises(juice.TrainingError, match="batch_size"):
        _fit(tx, batch_size=20, checkpoint_dir=tmp_path, resume=True)
    with pytest.raises(juice.TrainingError, match="another circuit or optimizer"):
        _fit(_optimizers()["anemone"], checkpoint_dir=tmp_path, resume=True)
    _, other = chain(length=3, num_latents=2, num_cats=3)
    with pytest.raises(juice.TrainingError, match="another circuit or optimizer"):
        juice.fit(
            other,
            initial(other),
            categorical_data(),
            juice.optim.mini_batch_em(other),
            epochs=2,
            batch_size=16,
            valid=categorical_data(30),
            checkpoint_dir=tmp_path,
            resume=True,
            progress=False,
        )


def test_other_data_of_the_same_shape_is_refused(tmp_path):
    tx = _optimizers()["em"]
    _fit(tx, epochs=1, checkpoint_dir=tmp_path)
    _, pc = mixture()
    with pytest.raises(juice.TrainingError, match="data"):
        juice.fit(
            pc,
            initial(pc),
            categorical_data(seed=5),
            tx,
            epochs=2,
            batch_size=16,
            valid=categorical_data(30, seed=1),
            checkpoint_dir=tmp_path,
            resume=True,
            progress=False,
        )
    with pytest.raises(juice.TrainingError, match="batch_size"):
        _fit(tx, epochs=2, batch_size=17, checkpoint_dir=tmp_path, resume=True)
