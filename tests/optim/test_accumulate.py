"""Several batches an update."""

import jax
import numpy as np
import optax
import pytest
from small_circuits import categorical_data, flows_of, initial, mixture, updated

import jaxjuice as juice


def _data():
    return categorical_data(30)


def _optimizers(pc):
    return {
        "em": juice.optim.mini_batch_em(pc, 0.3, pseudocount=0.5),
        "anemone": juice.optim.anemone(pc, momentum=0.9),
    }


@pytest.mark.parametrize("name", ["em", "anemone"])
def test_equals_one_large_batch(name):
    _, pc = mixture()
    params = initial(pc)
    inner = _optimizers(pc)[name]
    tx = juice.optim.accumulate(inner, 3)
    state, large_state = tx.init(params), inner.init(params)
    split, whole = params, params
    for _ in range(2):
        for i in range(3):
            flows = flows_of(pc, split, _data()[10 * i : 10 * i + 10])
            new, state = updated(tx, flows, state, split)
            if i < 2:
                jax.tree.map(np.testing.assert_array_equal, new, split)
                assert state.count == i + 1
            split = new
        assert state.count == 0
        assert not any(f.any() for f in jax.tree.leaves(state.flows))
        flows = flows_of(pc, whole, _data())
        whole, large_state = updated(inner, flows, large_state, whole)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), split, whole)
        np.testing.assert_array_equal(state.inner.count, large_state.count)


def test_every_batch_is_the_inner_transformation():
    _, pc = mixture()
    params = initial(pc)
    inner = juice.optim.mini_batch_em(pc, 0.3)
    tx = juice.optim.accumulate(inner, 1)
    flows = flows_of(pc, params, _data())
    a, _ = tx.update(flows, tx.init(params), params)
    b, _ = inner.update(flows, inner.init(params), params)
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, atol=1e-7), a, b)


def test_wrong_arguments():
    _, pc = mixture()
    with pytest.raises(juice.TrainingError, match="MultiSteps"):
        juice.optim.accumulate(optax.adam(0.1), 2)
    for every in (0, 1.5, True):
        with pytest.raises(juice.TrainingError, match="whole number"):
            juice.optim.accumulate(juice.optim.full_batch_em(pc), every)
