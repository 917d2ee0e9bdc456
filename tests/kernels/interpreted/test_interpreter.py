"""What the interpreter of these tests gives, and what it refuses."""

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl

from tests.kernels.interpreter import OutOfBounds, Race, ReadOnly, Tensor, launch, unwritten


@triton.jit
def _copy(x, out, N, ADD: tl.constexpr, MASK: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (i < N) if MASK else (i >= 0)
    value = tl.load(x + i, mask=mask)
    if ADD:
        tl.atomic_add(out + i % 2, value, mask=mask)
    else:
        tl.store(out + i, value, mask=mask)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_, ml_dtypes.bfloat16])
def test_dtypes(dtype) -> None:
    x = (np.arange(20) % 3).astype(dtype)
    out = unwritten((20,), dtype)
    launch(_copy, (3,), x, out, 20, ADD=False, MASK=True, BLOCK=8)
    np.testing.assert_array_equal(out, x)


def test_a_tensor_is_written_in_place() -> None:
    out = np.zeros(8, np.float32)
    kernel = _copy[(1,)]
    kernel(Tensor(np.arange(8, dtype=np.float32)), Tensor(out), 8, False, True, 8)
    np.testing.assert_array_equal(out, np.arange(8))


@pytest.mark.parametrize("short", ["x", "out"])
def test_an_access_outside_an_array_is_an_error(short: str) -> None:
    arrays = {name: np.zeros(17 if name == short else 24, np.float32) for name in ("x", "out")}
    with pytest.raises(OutOfBounds, match=rf"Program \(2, 0, 0\) of _copy .* 7 of 8 .*'{short}'"):
        launch(_copy, (3,), *arrays.values(), 17, ADD=False, MASK=False, BLOCK=8)


def test_programs_may_add_to_the_same_place_atomically() -> None:
    out = np.zeros(2, np.float32)
    launch(_copy, (3,), np.arange(20, dtype=np.float32), out, 20, ADD=True, MASK=True, BLOCK=8)
    np.testing.assert_array_equal(out, [90, 100])


@triton.jit
def _shift(x, x_again, STEP: tl.constexpr):
    i = tl.program_id(0)
    tl.store(x_again + i, tl.load(x + i + STEP) + 1)


def test_what_depends_on_the_order_of_programs_is_an_error() -> None:
    x = np.zeros(9, np.float32)
    launch(_shift, (8,), x, x, STEP=0)
    np.testing.assert_array_equal(x, [1] * 8 + [0])
    with pytest.raises(Race, match=r"Program \(1, 0, 0\) of _shift stores what another"):
        launch(_shift, (8,), x, x, STEP=1)
    launch(_shift, (8,), x, x, STEP=1, races=True)


@triton.jit
def _same_place(x, out):
    tl.store(out, tl.load(x + tl.program_id(0)))


def test_two_programs_may_not_write_to_one_place() -> None:
    with pytest.raises(Race, match=r"Program \(1, 0, 0\) of _same_place stores what"):
        launch(_same_place, (2,), np.zeros(2, np.float32), np.zeros(1, np.float32))


def test_a_read_only_array_is_not_written_to() -> None:
    x = np.zeros(8, np.float32)
    x.flags.writeable = False
    with pytest.raises(ReadOnly, match="read-only array 'x'"):
        launch(_shift, (8,), x, x, STEP=0)


@triton.jit
def _to_bf16(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i).to(tl.bfloat16))


def test_bfloat16_is_rounded_as_elsewhere() -> None:
    x = np.random.default_rng(0).normal(size=1024).astype(np.float32)
    out = unwritten((1024,), ml_dtypes.bfloat16)
    launch(_to_bf16, (1,), x, out, BLOCK=1024)
    np.testing.assert_array_equal(out, x.astype(ml_dtypes.bfloat16))
