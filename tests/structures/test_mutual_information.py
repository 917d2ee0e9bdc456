"""Mutual information: exact where it is said to be, and close where it is not."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxjuice import DataError, StructureError
from jaxjuice.structures import _binning, _mutual_information, mutual_information


def by_counting(a, b):
    """The empirical mutual information of two columns, by dictionaries."""
    rows = list(zip(a.tolist(), b.tolist(), strict=True))
    joint = {pair: rows.count(pair) / len(rows) for pair in set(rows)}
    first = {v: sum(p for (x, _), p in joint.items() if x == v) for v in set(a.tolist())}
    second = {v: sum(p for (_, y), p in joint.items() if y == v) for v in set(b.tolist())}
    return sum(p * np.log(p / (first[x] * second[y])) for (x, y), p in joint.items())


def related_columns(rng, num_samples, num_vars, num_values):
    hidden = rng.integers(0, num_values, num_samples)
    columns = []
    for _ in range(num_vars):
        noise = rng.integers(0, num_values, num_samples)
        columns.append(np.where(rng.random(num_samples) < 0.5, hidden, noise))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("num_values", [1, 2, 5, 32])
def test_exact_for_few_whole_numbers(num_values):
    x = related_columns(np.random.default_rng(0), 200, 4, num_values)
    information = mutual_information(x)
    for i in range(4):
        for j in range(4):
            wanted = 0.0 if i == j else by_counting(x[:, i], x[:, j])
            np.testing.assert_allclose(information[i, j], wanted, atol=1e-12)


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.astype(np.uint8),
        lambda x: x.astype(np.float32),
        lambda x: x - 2,
        lambda x: 1000 * x,
        jnp.asarray,
        lambda x: jnp.asarray(x, jnp.bfloat16),
        lambda x: x.tolist(),
        lambda x: np.asfortranarray(x),
    ],
)
def test_dtypes_and_labels_do_not_matter(convert):
    x = related_columns(np.random.default_rng(1), 300, 5, 4)
    np.testing.assert_array_equal(mutual_information(convert(x)), mutual_information(x))


def test_booleans():
    x = np.random.default_rng(2).random((100, 3)) < 0.5
    np.testing.assert_array_equal(mutual_information(x), mutual_information(x.astype(int)))


@pytest.mark.parametrize("kind", ["few", "many", "mixed"])
@pytest.mark.parametrize("num_samples", [1, 37, 5000])
def test_chunk_size_changes_no_bit(kind, num_samples):
    rng = np.random.default_rng(3)
    few = related_columns(rng, num_samples, 7, 5)
    many = rng.normal(size=(num_samples, 7)) + few
    x = {"few": few, "many": many, "mixed": np.where(np.arange(7) % 2, few, many)}[kind]
    wanted = mutual_information(x, chunk_size=64)
    for chunk_size in (1, 2, 3, 5, 7):
        np.testing.assert_array_equal(mutual_information(x, chunk_size=chunk_size), wanted)
    assert (wanted >= 0).all() and (wanted == wanted.T).all()


def test_chosen_pairs_equal_all_pairs_bit_for_bit():
    rng = np.random.default_rng(4)
    few = related_columns(rng, 5000, 6, 5)
    x = np.concatenate([few, rng.normal(size=(5000, 4)) + few[:, :4]], axis=1)
    x[rng.random(x.shape) < 0.1] = np.nan
    binned = _binning.bin_data(x, 32, 0.5 / 32)
    pairs = np.stack(np.triu_indices(10, 1), axis=1)
    everything = _mutual_information.all_pairs(binned, 64)
    chosen = _mutual_information.chosen_pairs(binned, pairs)
    np.testing.assert_array_equal(chosen, everything[pairs[:, 0], pairs[:, 1]])
    assert _mutual_information.chosen_pairs(binned, pairs[:0]).shape == (0,)
    many = np.concatenate([pairs, pairs[::-1, ::-1]])
    np.testing.assert_array_equal(
        _mutual_information.chosen_pairs(binned, many), np.concatenate([chosen, chosen[::-1]])
    )


def test_gaussians_come_close_to_the_closed_form():
    rng = np.random.default_rng(5)
    for correlation in (0.0, 0.6, 0.9):
        a = rng.normal(size=50_000)
        b = correlation * a + np.sqrt(1 - correlation**2) * rng.normal(size=50_000)
        got = mutual_information(np.stack([a, 100 * b + 7], axis=1))[0, 1]
        wanted = -0.5 * np.log(1 - correlation**2)
        # Soft bins blur (down), and few samples a bin bias (up).
        assert abs(got - wanted) < 0.02 + 0.15 * wanted


def test_scale_and_shift_of_a_column_do_not_matter():
    rng = np.random.default_rng(6)
    a = rng.random(2000)
    x = np.stack([a, a + 0.1 * rng.random(2000)], axis=1)
    scaled = x * [1024.0, 0.25]
    np.testing.assert_array_equal(mutual_information(scaled), mutual_information(x))


def test_soft_bins_follow_their_formula():
    table = _binning.soft_bin_table(64, 8, 0.1)
    assert table.dtype == np.float32
    np.testing.assert_array_equal(table.sum(axis=1), _binning.WEIGHT_UNIT)
    np.testing.assert_array_equal(table, np.round(table))
    places = (np.arange(64) + 0.5) / 64
    weights = np.exp(-0.5 * ((places[:, None] - np.linspace(0, 1, 8)) / 0.1) ** 2)
    weights /= weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(table / _binning.WEIGHT_UNIT, weights, atol=1 / 64)
    # However narrow, each value lies somewhere.
    np.testing.assert_array_equal(_binning.soft_bin_table(64, 8, 1e-6).max(axis=1), 64)


def test_missing_values_are_left_out_of_their_pairs():
    rng = np.random.default_rng(7)
    x = related_columns(rng, 400, 3, 4).astype(float)
    x[rng.random(x.shape) < 0.2] = np.nan
    information = mutual_information(x)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        both = ~np.isnan(x[:, i]) & ~np.isnan(x[:, j])
        wanted = by_counting(x[both, i], x[both, j])
        np.testing.assert_allclose(information[i, j], wanted, atol=1e-12)
    x[:, 1] = np.nan
    assert not mutual_information(x)[1].any()


def test_constant_and_independent_columns_have_none():
    x = np.array([[0, 0, 5], [0, 1, 5], [1, 0, 5], [1, 1, 5]])
    np.testing.assert_array_equal(mutual_information(x), np.zeros((3, 3)))
    np.testing.assert_allclose(mutual_information(x + 0.5), np.zeros((3, 3)), atol=1e-12)


def test_no_rows_and_one_row():
    with pytest.raises(DataError, match=r"shape \(0, 3\)"):
        mutual_information(np.zeros((0, 3)))
    assert not mutual_information([[0.5, 1, 2]]).any()


def test_quantile_bins():
    rng = np.random.default_rng(8)
    skewed = np.where(rng.random(4000) < 0.8, 0, rng.integers(1, 200, 4000))
    x = np.stack([rng.normal(size=4000), np.exp(5 * rng.normal(size=4000)), skewed], axis=1)
    x[:40, 0] = np.nan
    binned = _binning.bin_by_quantiles(x, 8)
    assert binned.row_ids.min() == 0 and binned.row_ids.max() <= 8
    assert (binned.row_ids[0][:40] == 0).all() and (binned.row_ids[1:] > 0).all()
    for variable in range(2):
        counts = np.bincount(binned.row_ids[variable][40:], minlength=9)[1:]
        assert counts.min() > 350
    # The frequent value has its own bin, and the rest is divided.
    counts = np.bincount(binned.row_ids[2])[1:]
    assert counts[0] == (skewed == 0).sum() and len(counts) >= 6
    for ids, column in zip(binned.row_ids, x.T, strict=True):
        order = np.argsort(column[40:], kind="stable")
        assert (np.diff(ids[40:][order]) >= 0).all()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(3), r"shape \(3,\)"),
        (np.zeros((3, 0)), r"shape \(3, 0\)"),
        (np.zeros((1, 2, 3)), r"shape \(1, 2, 3\)"),
        (np.array([["a", "b"]]), "numbers"),
        (np.array([[0.0, np.inf]]), "column 1 of x holds an infinity"),
        (np.array([[1j, 2j]]), "complex128, and real numbers"),
    ],
)
def test_bad_data_are_refused(x, message):
    with pytest.raises(DataError, match=message):
        mutual_information(x)


@pytest.mark.parametrize(
    "options", [{"num_bins": 0}, {"num_bins": 600}, {"sigma": 0.0}, {"chunk_size": 0}]
)
def test_bad_options_are_refused(options):
    with pytest.raises(StructureError):
        mutual_information(np.zeros((3, 2)), **options)
