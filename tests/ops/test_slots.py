"""Reads of runs of nodes from arrays of slots, against numpy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxjuice.ops import read_runs, read_scales, write_slots

SLOTS, BATCH, NODES = 9, 5, 12


def wanted_runs(array, slots, offsets, width):
    blocks, elements, reads = slots.shape
    result = np.zeros((blocks, BATCH, elements, width))
    for x, c, j in np.ndindex(blocks, elements, reads):
        start = 0 if offsets is None else offsets[x, c, j]
        result[x, :, c] += array[slots[x, c, j], :, start : start + width]
    return result


# Up to 16 reads are unrolled, more are a loop.
@pytest.mark.parametrize("reads", [1, 16, 17, 40])
@pytest.mark.parametrize("width, dtype", [(12, "float32"), (4, "float64"), (1, "float32")])
def test_read_runs(reads, width, dtype):
    rng = np.random.default_rng(reads)
    with jax.enable_x64(True):
        # Whole numbers add up exactly in any order.
        array = rng.integers(-9, 9, (SLOTS, BATCH, NODES)).astype(dtype)
        slots = rng.integers(0, SLOTS, (3, 2, reads)).astype(np.int32)
        offsets = None
        if width < NODES:
            offsets = rng.integers(0, NODES - width + 1, slots.shape).astype(np.int32)
        got = jax.jit(read_runs, static_argnums=3)(
            array, jnp.asarray(slots), None if offsets is None else jnp.asarray(offsets), width
        )
        assert got.dtype == dtype and got.shape == (3, BATCH, 2, width)
        np.testing.assert_array_equal(got, wanted_runs(array, slots, offsets, width))


@pytest.mark.parametrize("entries", [(3, 3, 2), (3, 1, 1), (3, *[2] * 20, *[1] * 18)])
def test_reads_of_the_first_entries_alone(entries):
    rng = np.random.default_rng(0)
    array = rng.integers(-9, 9, (SLOTS, BATCH, NODES)).astype(np.float32)
    slots = rng.integers(0, SLOTS, (3, 2, len(entries))).astype(np.int32)
    got = jax.jit(partial(read_runs, offsets=None, width=NODES, entries=entries))(array, slots)
    for j, count in enumerate(entries):
        slots[count:, :, j] = SLOTS  # nothing
    padded = np.concatenate([array, np.zeros_like(array[:1])])
    np.testing.assert_array_equal(got, wanted_runs(padded, slots, None, NODES))


def test_only_many_reads_are_a_loop():
    def text(reads):
        slots = jax.ShapeDtypeStruct((3, 2, reads), jnp.int32)
        array = jax.ShapeDtypeStruct((SLOTS, BATCH, NODES), jnp.float32)
        return jax.jit(read_runs, static_argnums=3).lower(array, slots, None, NODES).as_text()

    assert "stablehlo.while" not in text(17)  # the first read, and 16 that are added to it
    assert "stablehlo.while" in text(18)


def test_minus_infinity_is_read_as_it_is():
    array = jnp.full((3, 2, 2), -jnp.inf).at[1].set(1.0)
    slots = jnp.asarray([[[0, 1]], [[1, 1]]], jnp.int32)
    got = read_runs(array, slots, None, 2)
    np.testing.assert_array_equal(got[0], np.full((2, 1, 2), -np.inf))
    np.testing.assert_array_equal(got[1], np.full((2, 1, 2), 2.0))


@pytest.mark.parametrize("reads", [1, 3, 20])
def test_read_scales(reads):
    rng = np.random.default_rng(reads)
    scales = rng.integers(-9, 9, (SLOTS, BATCH)).astype(np.float32)
    slots = rng.integers(0, SLOTS, (3, 2, reads)).astype(np.int32)
    got = read_scales(jnp.asarray(scales), jnp.asarray(slots))
    np.testing.assert_array_equal(got, scales[slots].sum(2).transpose(0, 2, 1))


def test_write_slots():
    array = jnp.zeros((5, 2, 3))
    got = write_slots(array, jnp.ones((2, 2, 3)), jnp.int32(2))
    np.testing.assert_array_equal(got[:, 0, 0], [0, 0, 1, 1, 0])


def test_reads_with_the_batch_behind_and_factors():
    rng = np.random.default_rng(0)
    array = rng.integers(-9, 9, (SLOTS, BATCH, NODES)).astype(np.float32)
    slots = rng.integers(0, SLOTS, (3, 2, 4)).astype(np.int32)
    offsets = rng.integers(0, NODES - 2, slots.shape).astype(np.int32)
    got = read_runs(array, jnp.asarray(slots), jnp.asarray(offsets), 3, batch_axis=2)
    wanted = wanted_runs(array, slots, offsets, 3).swapaxes(1, 2)
    np.testing.assert_array_equal(got, wanted)
    factors = jnp.zeros((3, 2, 4, BATCH)).at[:, :, 2, 1].set(3.0)
    got = read_runs(
        array, jnp.asarray(slots), jnp.asarray(offsets), 3, batch_axis=2, factors=factors
    )
    one = wanted_runs(array, slots[:, :, 2:3], offsets[:, :, 2:3], 3).swapaxes(1, 2)
    np.testing.assert_array_equal(got[:, :, 1], 3 * one[:, :, 1])
    np.testing.assert_array_equal(got[:, :, 2], np.zeros((3, 2, 3)))
    scales = array[..., 0]
    got = read_scales(jnp.asarray(scales), jnp.asarray(slots), batch_axis=2)
    np.testing.assert_array_equal(got, scales[slots].sum(2))
