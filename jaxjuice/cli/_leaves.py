"""Which family of leaves suits a data set, and where continuous leaves start."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxjuice import distributions
from jaxjuice._errors import DataError
from jaxjuice.cli._options import InputName
from jaxjuice.data import Dataset

# Whole numbers up to here are taken for categories unless the user says otherwise.
_MAX_CATEGORY = 1023


def choose_family(name: InputName, data: Dataset) -> distributions.Distribution:
    """The family of leaves for a data set.

    Args:
        name: what the user asked for; "auto" is categorical for whole numbers, Gaussian for others.
        data: all rows, those set apart for validation and testing too, so that none of them holds a
            category that the circuit lacks. Only the kind and the range of the values are read.

    Raises:
        DataError: the data do not suit the family; the sentence names the first bad value.
    """
    if name is InputName.AUTO:
        few_values = data.is_integral and data.values.max() <= _MAX_CATEGORY
        name = InputName.CATEGORICAL if few_values else InputName.GAUSSIAN
    if name is InputName.GAUSSIAN:
        return distributions.Gaussian()
    if not data.is_integral:
        _refuse(data, data.values != np.floor(data.values), name, "whole numbers")
    low, high = int(data.values.min()), int(data.values.max())
    if name is InputName.DISCRETE_LOGISTIC:
        return distributions.DiscreteLogistic(
            val_range=(float(low), float(high)), num_cats=high - low + 1
        )
    if low < 0:
        _refuse(data, data.values < 0, name, "whole numbers from 0 on")
    if name is InputName.BERNOULLI:
        _refuse(data, data.values > 1, name, "0 and 1")
        return distributions.Bernoulli()
    if name is InputName.POISSON:
        return distributions.Poisson()
    if name is InputName.BINOMIAL:
        return distributions.Binomial(num_trials=max(high, 1))
    return distributions.Categorical(num_cats=high + 1)


def init_continuous(pc: Any, params: Any, data: Dataset, seed: int) -> Any:
    """Starts Gaussian leaves at the data: means at random rows, spreads as wide as the columns.

    Leaves that start far from the data, in its units, would have to find it first.

    Args:
        pc: the circuit.
        params: freshly drawn parameters.
        data: the training data.
        seed: of the choice of rows.

    Returns:
        Parameters with those of the Gaussian leaves replaced.
    """
    leaves = dict(params["inputs"])
    rng = np.random.default_rng(seed)
    for name, group in pc.input_groups.items():
        if not isinstance(group.dist, distributions.Gaussian):
            continue
        old = leaves[name]["mu"]
        means, spreads = np.empty(old.shape), np.empty(old.shape)
        owners = np.arange(len(group.variables)) if group.param_ids is None else group.param_ids
        for variable, row in zip(group.variables, owners, strict=True):
            column = data.values[:, variable].astype(np.float64)
            if data.missing is not None:
                column = column[~data.missing[:, variable]]
            if column.size == 0:
                column = np.zeros(1)
            spread = column.std()
            means[row] = rng.choice(column, size=group.num_nodes)
            spreads[row] = spread if spread > 0 else 1.0
        leaves[name] = {
            "mu": jnp.asarray(means, old.dtype),
            "sigma": jnp.asarray(spreads, old.dtype),
        }
    return {**params, "inputs": leaves}


def with_nan(data: Dataset) -> np.ndarray:
    """The values with NaN in place of missing ones, which is what structure learning takes."""
    if data.missing is None:
        return data.values
    return np.where(data.missing, np.nan, data.values).astype(np.float32)


def describe_values(data: Dataset) -> str:
    """A few words about the values, for the report."""
    low, high = data.values.min(), data.values.max()
    kind = "whole numbers" if data.is_integral else "numbers"
    text = f"{kind} from {low:g} to {high:g}"
    if data.missing is not None:
        text += f", {data.missing.mean():.1%} missing"
    return text


def _refuse(data: Dataset, bad: np.ndarray, name: InputName, wanted: str) -> None:
    if data.missing is not None:
        bad = bad & ~data.missing
    if bad.any():
        row, column = divmod(int(np.argmax(bad)), data.num_vars)
        raise DataError(
            f"{data.source} holds {data.values[row, column]} in row {row}, "
            f"{data.column_label(column)}, and {name} leaves take {wanted}; "
            "for measurements say --input gaussian."
        )
