"""The example runs, and its three ways of training agree."""

import pathlib
import runpy

import jax

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "train_adam.py"


def test_train_adam():
    with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
        scores = runpy.run_path(str(EXAMPLE))["main"](epochs=3)
    assert len(scores) == 3
    # Uniform symbols would score -12 log(4) = -16.6.
    assert all(-14 < score < -8 for score in scores.values()), scores
