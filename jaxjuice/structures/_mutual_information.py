"""Mutual information between all pairs, or chosen pairs, of columns of a data set."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxjuice.structures._arguments import positive_integer
from jaxjuice.structures._binning import EXACT_ROWS, BinnedData, bin_data, check_data

# Columns (variables times bins) of one factor, at most: bounds memory.
_MAX_COLUMNS = 4096
# Pairs counted in one call.
_PAIRS = 64


def mutual_information(
    x: Any, num_bins: int = 32, sigma: float = 0.5 / 32, chunk_size: int = 64
) -> np.ndarray:
    """Estimates the mutual information of all pairs of columns, in nats.

    Between two columns of at most `num_bins` different whole numbers it is exactly that of their
    empirical joint distribution. A column with more values, or other numbers, is binned softly
    (Gaussian weights around equidistant bins, as in PyJuice), each column scaled by its own range;
    the result is then exactly the mutual information of the soft joint histogram, and an
    approximation of that of the data. Samples in which either value is NaN are left out of a pair.

    Joint histograms are products of matrices under jit and come out exactly, so neither
    `chunk_size` nor the machine changes the result. The time grows with samples * (num_vars *
    num_bins)^2; memory is bounded by `chunk_size`. (`chow_liu_tree` needs far less time on large
    data.)

    Args:
        x: `[num_samples, num_vars]`, numpy or jax array of any numeric dtype.
        num_bins: soft bins of a column, and up to how many values count as few.
        sigma: the width of the soft bins, for a column scaled to [0, 1].
        chunk_size: variables in a block.

    Returns:
        float64 `[num_vars, num_vars]`, symmetric, >= 0; the diagonal holds 0.

    Raises:
        DataError: if `x` is not a matrix of finite numbers or NaN, with a row at least.
    """
    data = check_data("mutual_information(x, ...)", x)
    chunk_size = positive_integer("mutual_information(x, ...)", "chunk_size", chunk_size)
    return all_pairs(bin_data(data, num_bins, sigma), chunk_size)


def all_pairs(binned: BinnedData, chunk_size: int) -> np.ndarray:
    """Returns the mutual information of all pairs of binned variables: float64 `[V, V]`."""
    num_vars, num_samples = binned.row_ids.shape
    # Missing values fill up the last block, so that all calls share one compiled program.
    table, num_bins = _trimmed_table(binned)
    chunk_size = min(chunk_size, num_vars, max(1, _MAX_COLUMNS // num_bins))
    num_blocks = -(-num_vars // chunk_size)
    row_ids = np.zeros((num_blocks * chunk_size, num_samples), np.int16)
    row_ids[:num_vars] = binned.row_ids
    information = np.zeros((num_blocks * chunk_size,) * 2)
    rows = min(EXACT_ROWS, max(num_samples, 1))
    blocks = [slice(i * chunk_size, (i + 1) * chunk_size) for i in range(num_blocks)]
    for i, left in enumerate(blocks):
        for right in blocks[i:]:
            counts = np.zeros((chunk_size, num_bins, chunk_size, num_bins))
            for start in range(0, num_samples, rows):
                samples = _samples(start, rows, num_samples)
                counts += np.asarray(
                    _count_block(table, row_ids[left, samples], row_ids[right, samples])
                )
            information[left, right] = _information(counts.transpose(0, 2, 1, 3))
    upper = np.triu(information[:num_vars, :num_vars], 1)
    return upper + upper.T


def chosen_pairs(binned: BinnedData, pairs: np.ndarray) -> np.ndarray:
    """Returns the mutual information of chosen pairs of binned variables.

    Equal, bit for bit, to the entries of `all_pairs`; faster for few pairs, as it counts rows of
    the table by increments and bins them afterwards.

    Args:
        binned: the data.
        pairs: int `[num_pairs, 2]`, in any order.

    Returns:
        float64 `[num_pairs]`.
    """
    num_rows = int(binned.row_ids.max(initial=0)) + 1
    table = binned.table[:num_rows, : binned.num_bins.max()].astype(np.float64)
    information = np.empty(len(pairs))
    pairs = np.sort(pairs, axis=1)
    for start in range(0, len(pairs), _PAIRS):
        batch = pairs[start : start + _PAIRS]
        padded = np.zeros((min(_PAIRS, len(pairs)), 2), np.int64)
        padded[: len(batch)] = batch
        counts = np.asarray(
            _count_pairs(binned.row_ids[padded[:, 0]], binned.row_ids[padded[:, 1]], num_rows)
        )
        # One flat product is several times faster here than a stack of small ones.
        half_binned = counts[: len(batch)].astype(np.float64).reshape(-1, num_rows) @ table
        joint = table.T @ half_binned.reshape(len(batch), num_rows, -1)
        information[start : start + _PAIRS] = _information(joint)
    return information


def _trimmed_table(binned: BinnedData) -> tuple[jax.Array, int]:
    num_bins = int(binned.num_bins.max())
    return jnp.asarray(binned.table[:, :num_bins]), num_bins


def _samples(start: int, rows: int, num_samples: int) -> slice:
    return slice(start, min(start + rows, num_samples))


@jax.jit
def _count_block(table: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
    """Counts joint bins of two blocks of variables: `[L, S]`, `[R, S]` to `[L, bins, R, bins]`."""
    num_bins = table.shape[1]
    weights_left = _lookup(table, left.T).reshape(left.shape[1], -1)
    weights_right = _lookup(table, right.T).reshape(right.shape[1], -1)
    counts = lax.dot_general(
        weights_left, weights_right, (((0,), (0,)), ((), ())), precision=lax.Precision.HIGHEST
    )
    return counts.reshape(left.shape[0], num_bins, right.shape[0], num_bins)


@functools.partial(jax.jit, static_argnums=2)
def _count_pairs(left: jax.Array, right: jax.Array, num_rows: int) -> jax.Array:
    """Counts the joint rows of pairs: `[P, S]`, `[P, S]` to int32 `[P, num_rows, num_rows]`."""

    def count(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        cells = pair[0].astype(jnp.int32) * num_rows + pair[1].astype(jnp.int32)
        zeros = jnp.zeros(num_rows**2, jnp.int32)
        return zeros.at[cells].add(1, mode="promise_in_bounds").reshape(num_rows, num_rows)

    # One pair at a time: its table of counts stays in the cache.
    return lax.map(count, (left, right))


def _lookup(table: jax.Array, row_ids: jax.Array) -> jax.Array:
    return table.at[row_ids.astype(jnp.int32)].get(mode="promise_in_bounds")


def _information(counts: np.ndarray) -> np.ndarray:
    """Returns the mutual information of joint counts `[..., bins, bins]`, float64, in nats."""
    # Sums of whole numbers are exact. The others run over the last axis of a contiguous array, in
    # an order that numpy fixes whatever the other axes are: a result depends on its pair alone.
    flat = np.ascontiguousarray(counts).reshape(*counts.shape[:-2], -1)
    total = flat.sum(axis=-1)
    joint = _x_log_x(flat).sum(axis=-1)
    rows = _x_log_x(np.ascontiguousarray(counts.sum(axis=-1))).sum(axis=-1)
    columns = _x_log_x(np.ascontiguousarray(counts.sum(axis=-2))).sum(axis=-1)
    safe_total = np.maximum(total, 1.0)
    information = (joint - rows - columns + _x_log_x(total)) / safe_total
    # Independent columns come out at plus or minus the rounding error.
    return np.where(total > 0, np.maximum(information, 0.0), 0.0)


def _x_log_x(x: np.ndarray) -> np.ndarray:
    return x * np.log(np.maximum(x, 1.0))
