"""Triton kernels on numpy arrays, in Triton's interpreter: no GPU and no PyTorch.

Works only where TRITON_INTERPRET is 1 before Triton is imported, as in `interpreted/`. What the
interpreter would let pass is an error here: an access outside a kernel's arrays, and one whose
result depends on the order of programs, which a GPU leaves open. What it gets wrong (bfloat16) or
lacks (rounding to TF32, lg2) is put right; arithmetic is float32's otherwise.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

Grid = tuple[int, ...]

# What jax-triton calls the dtypes of arrays.
_DTYPES = {
    "bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64", "bool": "i1",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
}  # fmt: skip
_ONE_AT_A_TIME = Lock()  # XLA calls back from several threads; the interpreter has one grid
_GUARD = 2**20  # bytes between arrays: what runs over the end of one does not reach the next


class OutOfBounds(AssertionError):
    """A kernel loads from or stores to an address outside its arrays."""


class Race(AssertionError):
    """What a kernel reads or writes depends on the order in which its programs run."""


class ReadOnly(AssertionError):
    """A kernel stores to an array that is read-only."""


class Tensor:
    """A C-contiguous array with the methods of a PyTorch tensor that the interpreter calls.

    `kernel[grid](Tensor(x), ...)` writes to `x`. `launch` wraps by itself, and checks more.
    """

    def __init__(self, array: np.ndarray) -> None:
        if not array.flags.c_contiguous:
            raise ValueError(f"JAX hands over row-major arrays; strides here: {array.strides}.")
        self.array = array
        self.dtype = _DTYPES[array.dtype.name]

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(stride // self.array.itemsize for stride in self.array.strides)

    def storage_offset(self) -> int:
        return 0

    # The interpreter copies storages to the CPU and back. Here they are there.
    def untyped_storage(self) -> "Tensor":
        return self

    def cpu(self) -> "Tensor":
        return self

    def copy_(self, other: "Tensor") -> None:
        assert other.array is self.array

    def new_empty(self, *_: Any, **__: Any) -> "Tensor":
        return Tensor(np.empty(0, self.array.dtype))

    def set_(self, storage: "Tensor", *_: Any) -> None:
        self.array = storage.array


def unwritten(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """An array for a kernel to fill: NaN, or the lowest integer, shows what it left out."""
    dtype = np.dtype(dtype)
    if dtype.name == "bool":
        return np.ones(shape, bool)
    return np.full(shape, np.nan if dtype.kind not in "iu" else np.iinfo(dtype).min, dtype)


def launch(kernel: Any, grid: Grid, *args: Any, races: bool = False, **constants: Any) -> None:
    """Runs a kernel for all programs of a grid; it writes to the arrays among its arguments.

    Args:
        kernel: a function under `triton.jit`.
        grid: number of programs along each axis.
        args: its arguments: arrays (C-contiguous, numpy) and whole numbers. An array that is given
            twice is the same memory twice. One that is read-only must not be written to.
        races: whether programs may read or overwrite what others wrote, other than atomically.
        constants: its compile-time arguments; `num_warps` and `num_stages` are ignored.

    Raises:
        OutOfBounds, Race, ReadOnly: see there. Any other error of a kernel comes out as it is.
    """
    buffers: dict[int, _Buffer] = {}
    tensors = []
    for name, arg in zip(kernel.arg_names, args, strict=False):
        if isinstance(arg, np.ndarray):
            tensors.append(buffers.setdefault(arg.ctypes.data, _Buffer(name, arg)).tensor)
        elif isinstance(arg, int):
            tensors.append(arg)
        else:  # jax-triton would make a float64 of a Python float
            raise TypeError(f"{name}={arg!r} is neither a numpy array nor a whole number.")
    memory = _Memory(interpreter._interpreter, kernel.__name__, list(buffers.values()), races)
    with _patched(memory), np.errstate(all="ignore"):
        try:
            kernel[grid](*tensors, **constants)
        except InterpreterError as error:
            cause: BaseException = error
            while isinstance(cause, InterpreterError) and cause.__cause__ is not None:
                cause = cause.__cause__
            raise cause from None
    for buffer in buffers.values():
        buffer.copy_back()


def call(
    kernel: Any,
    *arguments: Any,
    out: Any,
    grid: Grid,
    aliases: dict[int, int] | None = None,
    num_warps: int = 4,
    num_stages: int = 2,
    races: bool = False,
    **constants: Any,
) -> Any:
    """Takes the place of `jaxjuice.ops.kernels._launch.call`, also under `jit`.

    Outputs that no input is an alias of start out as NaN (see `unwritten`).
    """
    del num_warps, num_stages
    outs = out if isinstance(out, tuple) else (out,)
    is_array = [hasattr(argument, "shape") for argument in arguments]

    def run(*arrays: Any) -> tuple[np.ndarray, ...]:
        remaining = iter(arrays)
        inputs = [
            np.array(next(remaining)) if array else argument
            for array, argument in zip(is_array, arguments, strict=True)
        ]
        results = [unwritten(o.shape, o.dtype) for o in outs]
        for i, argument in enumerate(inputs):
            if i in (aliases or {}):
                assert argument.shape == outs[aliases[i]].shape, (i, argument.shape, out)
                results[aliases[i]] = argument
            elif is_array[i]:
                argument.flags.writeable = False
        with _ONE_AT_A_TIME:
            launch(kernel, grid, *inputs, *results, races=races, **constants)
        return tuple(results)

    arrays = [argument for array, argument in zip(is_array, arguments, strict=True) if array]
    if any(isinstance(array, jax.core.Tracer) for array in arrays):
        results = jax.pure_callback(run, outs, *arrays)
    else:  # an error comes out as it is
        results = tuple(map(jnp.asarray, run(*arrays)))
    return results if isinstance(out, tuple) else results[0]


class _Buffer:
    """A copy of an array with free space around, and which programs touched its elements."""

    NOBODY, SEVERAL = -1, -2

    def __init__(self, name: str, array: np.ndarray) -> None:
        self.name = name
        self._original = array
        self._memory = np.empty(array.nbytes + 2 * _GUARD + 64, np.uint8)
        first = _GUARD + -(self._memory.ctypes.data + _GUARD) % 64  # aligned, as JAX's arrays are
        bytes_ = self._memory[first : first + array.nbytes]
        self._copy = bytes_.view(array.dtype).reshape(array.shape)
        self._copy[...] = array
        self.tensor = Tensor(self._copy)
        self.start, self.end = self._copy.ctypes.data, self._copy.ctypes.data + array.nbytes
        self._writers = np.full(array.size, self.NOBODY)
        self._readers = np.full(array.size, self.NOBODY)

    def touch(self, action: str, addresses: np.ndarray, program: int) -> bool:
        """Notes an access of a program; returns whether it clashes with one of another."""
        index = (addresses - np.uint64(self.start)).astype(np.int64) // self._copy.itemsize
        writers, readers = self._writers[index], self._readers[index]
        clash = (writers != self.NOBODY) & (writers != program)
        if action == "adds to":
            clash &= writers != self.SEVERAL
        if action == "loads":
            self._readers[index] = np.where(
                (readers == self.NOBODY) | (readers == program), program, self.SEVERAL
            )
        else:
            clash |= (readers != self.NOBODY) & (readers != program)
            self._writers[index] = self.SEVERAL if action == "adds to" else program
        return bool(clash.any())

    @property
    def writeable(self) -> bool:
        return self._original.flags.writeable

    def copy_back(self) -> None:
        if self.writeable:
            self._original[...] = self._copy


class _Memory:
    """Stands in front of the functions by which the interpreter touches memory."""

    def __init__(self, native: Any, kernel: str, buffers: list[_Buffer], races: bool) -> None:
        self._native = native
        self._kernel = kernel
        self._buffers = buffers
        self._races = races

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        self._touch("loads", pointers, mask, np.dtype(dtype).itemsize)
        return self._native.load(pointers, mask, other, dtype)

    def store(self, pointers: Any, value: Any, mask: Any) -> Any:
        self._touch("stores", pointers, mask, value.dtype.itemsize)
        return self._native.store(pointers, value, mask)

    def atomic_rmw(self, operation: Any, pointers: Any, value: Any, mask: Any, order: Any) -> Any:
        self._touch("adds to", pointers, mask, value.dtype.itemsize)
        return self._native.atomic_rmw(operation, pointers, value, mask, order)

    def atomic_cas(self, pointers: Any, expected: Any, value: Any, order: Any) -> Any:
        self._touch("adds to", pointers, True, value.dtype.itemsize)
        return self._native.atomic_cas(pointers, expected, value, order)

    def _touch(self, action: str, pointers: np.ndarray, mask: Any, size: int) -> None:
        # Scalars are spread as whole numbers.
        addresses = pointers[np.broadcast_to(mask, pointers.shape).astype(bool)]
        at, of = interpreter.interpreter_builder.grid_idx, interpreter.interpreter_builder.grid_dim
        program = int(np.ravel_multi_index(at, of))
        who = f"Program {at} of {self._kernel} {action}"
        outside = np.ones(addresses.shape, bool)
        for buffer in self._buffers:
            inside = (addresses >= buffer.start) & (addresses + np.uint64(size) <= buffer.end)
            if not inside.any():
                continue
            outside &= ~inside
            if action != "loads" and not buffer.writeable:
                raise ReadOnly(f"{who} the read-only array {buffer.name!r}.")
            if buffer.touch(action, addresses[inside], program) and not self._races:
                raise Race(f"{who} what another program stores or loads in {buffer.name!r}.")
        if outside.any():
            address = int(addresses[outside][0])
            near = min(self._buffers, key=lambda b: max(b.start - address, address - b.end))
            raise OutOfBounds(
                f"{who} {outside.sum()} of {outside.size} elements outside its arrays, the first "
                f"at byte {address - near.start} of {near.name!r}, which has "
                f"{near.end - near.start} bytes."
            )


@contextmanager
def _patched(memory: _Memory) -> Iterator[None]:
    builder = interpreter.InterpreterBuilder
    if not issubclass(type(tl.sum), interpreter.InterpretedFunction):
        raise RuntimeError("TRITON_INTERPRET was not 1 when Triton was imported.")
    with (
        mock.patch.object(interpreter, "_interpreter", memory),
        mock.patch.object(
            interpreter, "_patch_lang_tensor", _index(interpreter._patch_lang_tensor)
        ),
        mock.patch.object(builder, "cast_impl", _cast(builder.cast_impl)),
        mock.patch.object(builder, "create_dot", _dot(builder.create_dot)),
        mock.patch.object(builder, "create_inline_asm", _inline_asm),
    ):
        yield


def _index(original: Callable[..., None]) -> Callable[..., None]:
    """Numbers as limits of loops; Triton 3.6 lets numpy >= 2.4 refuse them."""

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patch


def _cast(original: Callable[..., Any]) -> Callable[..., Any]:
    """Rounds to the nearest bfloat16, as GPUs do; the interpreter's own cuts digits off."""

    def cast(self: Any, src: Any, dtype: Any) -> Any:
        if (src.dtype.scalar, dtype.scalar) != (tl.float32, tl.bfloat16):
            return original(self, src, dtype)
        bits = np.asarray(src.data.astype(ml_dtypes.bfloat16)).view(np.uint16)
        return interpreter.TensorHandle(bits, tl.bfloat16)

    return cast


def _dot(original: Callable[..., Any]) -> Callable[..., Any]:
    """A product that takes bfloat16, too; the interpreter's own multiplies its bits as integers."""

    def widen(operand: Any) -> Any:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        return interpreter.TensorHandle(
            (operand.data.astype(np.uint32) << 16).view(np.float32), tl.float32
        )

    return lambda self, a, b, *rest: original(self, widen(a), widen(b), *rest)


def _inline_asm(_: Any, asm: str, constraints: str, values: list[Any], *rest: Any) -> Any:
    """Rounding to TF32 and logarithms to base 2; no other assembly."""
    del constraints, rest
    (x,) = values
    data = np.ascontiguousarray(x.data)
    match asm.split(";")[0].split():
        case ["cvt.rna.tf32.f32", "$0,", "$1"]:
            bits = data.view(np.uint32)
            rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
            result = np.where(np.isfinite(data), rounded, data)
        case ["lg2.approx.f32", "$0,", "$1"]:
            result = np.log2(data)
        case _:
            raise NotImplementedError(f"No emulation of {asm!r}.")
    return mock.Mock(get_result=lambda _: interpreter.TensorHandle(result, tl.float32))
