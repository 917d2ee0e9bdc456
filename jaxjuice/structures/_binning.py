"""Puts data into (soft) bins with exactly representable weights, for counting joint occurrences.

Every value becomes the number of a row of a small table, whose `num_bins` entries say how much of
the value lies in each bin. Rows of soft bins are multiples of 1 / 64 that sum to 1, so joint counts
are whole numbers of 1 / 4096 and come out the same in whatever order they are added.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jaxjuice._errors import DataError, StructureError

WEIGHT_UNIT = 64
"""The entries of a table's row sum to this many units."""

EXACT_ROWS = 2**24 // WEIGHT_UNIT**2
"""How many rows a product of two float32 tables may add up without rounding."""

CELLS_PER_BIN = 8
"""How finely a value's place among the soft bins is resolved."""


class BinnedData(NamedTuple):
    """Data as rows of a table.

    Attributes:
        row_ids: int16 `[num_vars, num_samples]`.
        table: float32 `[rows, num_bins]`, whole numbers that sum to `WEIGHT_UNIT`; row 0 is all 0,
            for missing values.
        num_bins: int64 `[num_vars]`, how many bins each variable uses: 1 for constants.
    """

    row_ids: np.ndarray
    table: np.ndarray
    num_bins: np.ndarray


def check_data(call: str, x: Any) -> np.ndarray:
    """Returns `x` as a numeric numpy array `[num_samples, num_vars]`.

    Raises:
        DataError: if it is not a matrix of numbers, has no rows or no columns, or holds an
            infinity.
    """
    array = np.asarray(x)
    if array.ndim != 2 or not array.size:
        raise DataError(
            f"{call}: x has the shape {array.shape}, and [samples, variables] is wanted, at least "
            "one of each."
        )
    if array.dtype.kind == "c":
        raise DataError(f"{call}: x has the dtype {array.dtype}, and real numbers are wanted.")
    if array.dtype.kind not in "biuf":
        # bfloat16 and its like have the kind of an object; numbers convert, strings do not.
        try:
            array = array.astype(np.float32)
        except (TypeError, ValueError):
            raise DataError(f"{call}: x has the dtype {array.dtype}, not one of numbers.") from None
    if array.dtype.kind == "f":
        infinite = np.isinf(array).any(axis=0)
        if infinite.any():
            raise DataError(f"{call}: column {np.flatnonzero(infinite)[0]} of x holds an infinity.")
    return array


def bin_data(x: np.ndarray, num_bins: int, sigma: float) -> BinnedData:
    """Bins each column: exactly if it has few values, softly if it has many.

    A column of at most `num_bins` different whole numbers gets one bin a value. Any other column is
    scaled to [0, 1] by its own least and greatest value, and a value x has the weight
    exp(-((x - b) / sigma)^2 / 2) in the bin at b, for `num_bins` equidistant b from 0 to 1,
    normalized over the bins and rounded to 64ths. NaN is missing.

    Args:
        x: `[num_samples, num_vars]`, numeric.
        num_bins: at most 512.
        sigma: the width of the soft bins.
    """
    if not 1 <= num_bins <= 512 or not sigma > 0:
        raise StructureError(
            f"Soft binning with num_bins={num_bins}, sigma={sigma}: num_bins from 1 to 512 and a "
            "positive sigma are wanted."
        )
    num_cells = CELLS_PER_BIN * num_bins
    one_hot = WEIGHT_UNIT * np.eye(num_bins, dtype=np.float32)
    table = np.concatenate(
        [np.zeros((1, num_bins), np.float32), one_hot, soft_bin_table(num_cells, num_bins, sigma)]
    )
    row_ids = np.empty((x.shape[1], x.shape[0]), dtype=np.int16)
    used = np.empty(x.shape[1], dtype=np.int64)
    for variable, column in enumerate(x.T):
        row_ids[variable], used[variable] = _bin_column(column, num_bins, num_cells)
    return BinnedData(row_ids, table, used)


def _bin_column(column: np.ndarray, num_bins: int, num_cells: int) -> tuple[np.ndarray, int]:
    """Returns the rows of a column's values and how many bins it uses."""
    missing = np.isnan(column) if column.dtype.kind == "f" else np.zeros(column.shape, bool)
    observed = column[~missing]
    if not observed.size:
        return np.zeros(column.shape, np.int16), 1
    if column.dtype.kind != "f" or np.array_equal(observed, np.floor(observed)):
        distinct = np.unique(observed)
        if distinct.size <= num_bins:
            rows = 1 + np.searchsorted(distinct, column)
            return np.where(missing, 0, rows), distinct.size
    low, high = float(observed.min()), float(observed.max())
    if low == high:
        return np.where(missing, 0, 1), 1
    place = (np.where(missing, low, column).astype(np.float64) - low) / (high - low)
    cell = np.minimum((place * num_cells).astype(np.int64), num_cells - 1)
    return np.where(missing, 0, 1 + num_bins + cell), num_bins


def soft_bin_table(num_cells: int, num_bins: int, sigma: float) -> np.ndarray:
    """Returns the bin weights of values in the middle of each of `num_cells` cells of [0, 1].

    Returns:
        float32 `[num_cells, num_bins]`, whole numbers; rows sum to `WEIGHT_UNIT`.
    """
    places = (np.arange(num_cells) + 0.5) / num_cells
    log_weights = -0.5 * ((places[:, None] - np.linspace(0, 1, num_bins)) / sigma) ** 2
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    shares = WEIGHT_UNIT * weights / weights.sum(axis=1, keepdims=True)
    units = np.floor(shares)
    # Largest remainders, so that rounding keeps the sum.
    lacking = (WEIGHT_UNIT - units.sum(axis=1)).astype(np.int64)
    rank = np.argsort(np.argsort(units - shares, axis=1, kind="stable"), axis=1)
    return (units + (rank < lacking[:, None])).astype(np.float32)


def bin_by_quantiles(x: np.ndarray, num_bins: int) -> BinnedData:
    """Bins each column into at most `num_bins` bins of about equally many samples, equal values
    together.

    Args:
        x: `[num_samples, num_vars]`, numeric.
        num_bins: at most 512.
    """
    table = np.concatenate([np.zeros((1, num_bins)), WEIGHT_UNIT * np.eye(num_bins)])
    row_ids = np.empty((x.shape[1], x.shape[0]), dtype=np.int16)
    used = np.empty(x.shape[1], dtype=np.int64)
    for variable, column in enumerate(x.T):
        missing = np.isnan(column) if column.dtype.kind == "f" else np.zeros(column.shape, bool)
        edges = _quantile_edges(column[~missing], num_bins)
        row_ids[variable] = np.where(missing, 0, 1 + np.searchsorted(edges, column, side="right"))
        used[variable] = edges.size + 1
    return BinnedData(row_ids, table.astype(np.float32), used)


def _quantile_edges(observed: np.ndarray, num_bins: int) -> np.ndarray:
    """Returns the least values of the bins from the second on, ascending."""
    distinct, counts = np.unique(observed, return_counts=True)
    if distinct.size <= num_bins:
        return distinct[1:]
    # A value more frequent than an even share gets a bin of its own, or a column that is mostly 0
    # would have hardly a bin left for the rest. It may also cut a bin of the others in two.
    heavy = counts * num_bins > counts.sum()
    light = np.where(heavy, 0, counts)
    light_bins = max(1, num_bins - 2 * int(heavy.sum()))
    middles = np.cumsum(light) - light / 2
    light_ids = np.floor(middles * light_bins / light.sum()).astype(np.int64)
    begins = (light_ids[1:] != light_ids[:-1]) | heavy[1:] | heavy[:-1]
    return distinct[1:][begins][: num_bins - 1]
