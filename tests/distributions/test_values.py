"""Reading data of every dtype."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxjuice.distributions._values import (
    LARGEST_WHOLE,
    real_number_problem,
    real_numbers,
    whole_number_problem,
    whole_numbers,
)

SMALL = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16", "float32"]
WIDE = ["int64", "uint64", "float64"]


@pytest.mark.parametrize("name", SMALL + WIDE)
def test_whole_numbers_of_every_dtype(name):
    with jax.enable_x64(name in WIDE):
        x = jnp.asarray([[0, 1, 100, 101, 127]]).astype(name)
        value, legal = whole_numbers(x, 100)
        assert value.dtype == jnp.int32
        np.testing.assert_array_equal(value, [[0, 1, 100, 0, 0]])
        np.testing.assert_array_equal(legal, [[True, True, True, False, False]])
        if "u" not in name:
            np.testing.assert_array_equal(whole_numbers(-x, 100)[1], [[True] + 4 * [False]])
        # A bound that the dtype cannot hold bounds nothing.
        np.testing.assert_array_equal(whole_numbers(x, 70_000)[1], True)
        np.testing.assert_array_equal(whole_numbers(x)[0], x.astype(jnp.int32))
        real, legal = real_numbers(x, jnp.float32)
        assert real.dtype == jnp.float32
        np.testing.assert_array_equal(real, [[0, 1, 100, 101, 127]])
        np.testing.assert_array_equal(legal, True)


def test_bool_is_0_and_1():
    x = jnp.asarray([[True, False]])
    np.testing.assert_array_equal(whole_numbers(x, 1)[0], [[1, 0]])
    np.testing.assert_array_equal(whole_numbers(x, 0)[1], [[False, True]])
    np.testing.assert_array_equal(real_numbers(x, jnp.float32)[0], [[1, 0]])


def test_strange_floats():
    x = jnp.asarray([[np.nan, np.inf, -np.inf, 0.5, -1.0, -0.0, 2.0**31, 2.0**31 - 128, 3.0]])
    value, legal = whole_numbers(x)
    np.testing.assert_array_equal(legal, [[False] * 5 + [True, False, True, True]])
    np.testing.assert_array_equal(value, [[0] * 7 + [LARGEST_WHOLE, 3]])
    real, legal = real_numbers(x, jnp.float32)
    np.testing.assert_array_equal(legal, [[False] * 3 + [True] * 6])
    assert np.isfinite(real).all()
    limit = jnp.asarray([[2.0**61, 2.0**62, -(2.0**62), 1e38]])
    np.testing.assert_array_equal(
        real_numbers(limit, jnp.float32)[1], [[True, False, False, False]]
    )


def test_wide_integers_are_not_cut():
    with jax.enable_x64(True):
        x = jnp.asarray([[2**31, 2**32, 2**32 + 1, 2**31 - 200]])
        value, legal = whole_numbers(x)
        np.testing.assert_array_equal(legal, [[False, False, False, True]])
        np.testing.assert_array_equal(value, [[0, 0, 0, 2**31 - 200]])


def test_unsigned_data_above_the_range():
    x = jnp.asarray([[4_000_000_000, 3]], jnp.uint32)
    np.testing.assert_array_equal(whole_numbers(x, 5)[1], [[False, True]])


def test_messages_about_whole_numbers():
    def problem(values, dtype, high=9):
        return whole_number_problem(np.array(values, dtype), high, "Leaf()")

    wanted = ", and a Leaf() takes whole numbers from 0 to 9"
    assert problem([0, 9, 7.5, 11], float) == "holds 7.5" + wanted
    assert problem([3, 12.0], np.float32) == "holds 12" + wanted
    assert problem([3, -1], int) == "holds -1" + wanted
    assert problem([3, 250], np.uint8) == "holds 250" + wanted
    assert problem([3, np.nan], float) == "holds nan" + wanted
    assert problem([3, -np.inf], float) == "holds -inf" + wanted
    assert problem([True], bool, 0) == "holds 1, and a Leaf() takes whole numbers from 0 to 0"
    assert problem(["a"], str) == "has dtype <U1" + wanted
    assert problem([1 + 1j], complex) == "has dtype complex128" + wanted
    assert problem([-1], int, None) == "holds -1, and a Leaf() takes whole numbers from 0 on"
    assert problem([2**31], np.int64, None).startswith("holds 2147483648, and a Leaf()")
    for values, dtype in [([0, 9], np.uint8), ([0.0, 9.0], float), ([], float), ([True], bool)]:
        assert problem(values, dtype) is None
    assert whole_number_problem(np.array([[-1]]), 9, "Indicator()").startswith("holds -1, and an ")


def test_messages_about_real_numbers():
    def problem(values, dtype=float):
        return real_number_problem(np.array(values, dtype), "Leaf()")

    wanted = ", and a Leaf() takes finite numbers below 2**62 in magnitude"
    assert problem([0.5, np.nan]) == "holds nan" + wanted
    assert problem([0.5, -np.inf], np.float32) == "holds -inf" + wanted
    assert problem([1e30]) == "holds 1e+30" + wanted
    assert problem([2**63], np.uint64) == "holds 9223372036854775808" + wanted
    assert problem(["a"], str) == "has dtype <U1" + wanted
    assert problem([-5, 7], int) is None
    assert problem([True], bool) is None
    assert problem([], float) is None
    assert problem([-1e18, 0.5]) is None
