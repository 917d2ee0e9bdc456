"""The examples run, and bring what they promise."""

import pathlib
import runpy

import jax

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def test_train_adam():
    with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
        scores = runpy.run_path(str(EXAMPLES / "train_adam.py"))["main"](epochs=3)
    assert len(scores) == 3
    # Uniform symbols would score -12 log(4) = -16.6.
    assert all(-14 < score < -8 for score in scores.values()), scores


def test_conditional_hmm():
    """Sequences whose steps depend on a context that one model sees and the other does not."""
    with jax.numpy_dtype_promotion("standard"):
        main = runpy.run_path(str(EXAMPLES / "conditional_hmm.py"))["main"]
        scores = main(epochs=10, num_rows=1000, batch_size=100)
    # Uniform symbols would score -10 log(6) = -17.9, and without the context little more is known.
    assert -18.5 < scores["unconditional"] < -17.5, scores
    assert scores["conditional"] > scores["unconditional"] + 2, scores
