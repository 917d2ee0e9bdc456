"""Whether Triton kernels can run here, and how they are called from JAX."""

import functools
import importlib
import os
import warnings
from collections.abc import Callable
from itertools import chain
from typing import Any

import jax
from jax import lax
from jax.custom_batching import custom_vmap
from jax.extend import backend
from jax.extend.core import jaxpr_as_fun

from jaxjuice.ops._slots import match_varying, varying_axes
from jaxjuice.ops.kernels import _assembly, _compilation, _worker
from jaxjuice.ops.kernels._late import late
from jaxjuice.ops.kernels._units import Units


class KernelWarning(UserWarning):
    """Triton kernels cannot run where they should: XLA computes the same, more slowly."""


@functools.cache
def compute_capability() -> int | None:
    """Of this process's first NVIDIA GPU, 90 for 9.0; None where there is none."""
    try:
        if "cuda" not in backend.get_backend().platform_version.lower():
            return None
        device = jax.local_devices(backend="cuda")[0]
    except RuntimeError:
        return None
    major, minor = str(getattr(device, "compute_capability", "0.0")).split(".")
    return 10 * int(major) + int(minor)


@functools.cache
def num_devices() -> int:
    """The NVIDIA GPUs that JAX sees in this process or its group."""
    return 0 if compute_capability() is None else jax.device_count("cuda")


@functools.cache
def available() -> bool:
    """Whether kernels can run in this process. Warns once where a GPU goes unused for want of it.

    They need an NVIDIA GPU from compute capability 8.0 (Ampere) on, and jax-triton.
    """
    capability = compute_capability()
    if capability is None:
        return False
    if capability < 80:
        problem = f"the GPU has compute capability {capability / 10}, and 8.0 is wanted"
    else:
        _compilation.POOL.start(_compilation.EARLY_WORKERS)
        problem = _import_problem()
    if problem is None:
        return True
    warnings.warn(
        f"jaxjuice runs without its Triton kernels, by XLA alone: {problem}.",
        KernelWarning,
        stacklevel=2,
    )
    return False


def _import_problem() -> str | None:
    cache = os.environ.get("TRITON_CACHE_DIR")
    try:
        for name in ("triton", "jax_triton"):
            importlib.import_module(name)
        _call_through_ffi()
        _compile_elsewhere()
        for name in _worker.MODULES:
            importlib.import_module(f"{_worker.PACKAGE}.{name}")
    except Exception as error:  # a broken installation raises anything
        return f"jax-triton or triton cannot be imported ({type(error).__name__}: {error})"
    finally:
        # jax-triton empties this variable, which breaks all other users of Triton in the process.
        if cache is None:
            os.environ.pop("TRITON_CACHE_DIR", None)
        else:
            os.environ["TRITON_CACHE_DIR"] = cache
    return None


def _call_through_ffi() -> None:
    """Has jax-triton 0.3 call kernels through XLA's FFI, as 0.4 does.

    XLA records such calls in command buffers: a kernel then starts without the host. The change is
    to jax-triton itself, for everyone who uses it in this process.
    """
    library = importlib.import_module("jax_triton.triton_lib")

    class Lowering:
        @staticmethod
        def ffi_lowering(name, *, api_version, backend_config, operand_output_aliases):
            del name, api_version
            rule = jax.ffi.ffi_lowering(
                "triton_kernel_call_ffi", operand_output_aliases=operand_output_aliases
            )
            return lambda ctx, *args: rule(ctx, *args, opaque=backend_config)

    class Jax:
        ffi = Lowering

        def __getattr__(self, name):
            return getattr(jax, name)

    setattr(library, "jax", Jax())  # noqa: B010


def _compile_elsewhere() -> None:
    """Has jax-triton take kernels that worker processes compiled."""
    library = importlib.import_module("jax_triton.triton_lib")
    capability = compute_capability()
    if capability is not None:
        ours = _compilation.compiled_elsewhere(library, capability)
        setattr(library, "get_or_create_triton_kernel", ours)  # noqa: B010


def launch(
    kernel: Any,
    *arguments: Any,
    out: Any,
    grid: tuple[int, ...],
    aliases: dict[int, int] | None = None,
    num_warps: int = 4,
    num_stages: int = 2,
    **constants: Any,
) -> Any:
    """Calls a Triton kernel.

    Args:
        kernel: a function under `triton.jit` that takes `arguments`, then pointers to the outputs.
        arguments: arrays, among them `Units`, of which the kernel takes the counter here and its
            numbers behind the arrays; then whole numbers.
        out: a `jax.ShapeDtypeStruct`, or a tuple of them.
        grid: how many programs.
        aliases: by position in `arguments`, the output that takes its memory.
        num_warps, num_stages: see Triton.
        constants: the kernel's compile-time arguments.
    """
    arrays = [a for a in arguments if not isinstance(a, int)]
    numbers = [a for a in arguments if isinstance(a, int)]
    of_units = chain.from_iterable(a.numbers for a in arrays if isinstance(a, Units))
    return call(
        kernel,
        *(a.counter.reshape(1) if isinstance(a, Units) else a for a in arrays),
        *of_units,
        *numbers,
        out=out,
        grid=grid,
        aliases=aliases or {},
        num_warps=num_warps,
        num_stages=num_stages,
        **constants,
    )


def call(
    kernel: Any,
    *arguments: Any,
    out: Any,
    grid: tuple[int, ...],
    aliases: dict[int, int],
    num_warps: int,
    num_stages: int,
    **constants: Any,
) -> Any:
    """`launch` for arguments that are arrays and whole numbers alone."""
    _request(kernel, (*arguments, *jax.tree.leaves(out)), constants, num_warps, num_stages)
    triton_call = importlib.import_module("jax_triton").triton_call
    return triton_call(
        *arguments,
        kernel=kernel,
        grid=grid,
        input_output_aliases=aliases,
        num_warps=num_warps,
        num_stages=num_stages,
        out_shape=out,
        **constants,
    )


# What jax-triton calls the dtypes of arrays.
TYPES = {"float32": "*fp32", "bfloat16": "*bf16", "int32": "*i32", "bool": "*i1"}


def _request(
    kernel: Any, arguments: tuple[Any, ...], constants: dict, num_warps: int, num_stages: int
) -> None:
    """Has a kernel compiled in the background, where one can run."""
    capability = compute_capability()
    if capability is None:
        return
    types = [TYPES.get(a.dtype.name, "") if hasattr(a, "dtype") else "i32" for a in arguments]
    numbers = {i: a for i, a in enumerate(arguments) if not hasattr(a, "dtype")}
    if all(types) and all(type(n) is int and -(2**31) <= n < 2**31 for n in numbers.values()):
        text = _compilation.describe(
            kernel, types, numbers, constants, capability, num_warps, num_stages
        )
        if text is not None:
            answer = _compilation.POOL.request(text)
            if answer is not None:
                _assembly.assemble_later(answer, num_warps, capability)


def dispatch(
    implementation: str, kernel: Callable[..., Any], reference: Callable[..., Any], *arrays: Any
) -> Any:
    """`kernel(*arrays)` on NVIDIA GPUs, `reference(*arrays)` elsewhere and under `vmap`.

    Args:
        implementation: "triton", or "xla" for `reference` everywhere.
        kernel, reference: functions of arrays that return arrays, or tuples of them, of the same
            shapes.
        arrays: arrays and `Units`.
    """
    if implementation == "xla" or any(array.size == 0 for array in jax.tree.leaves(arrays)):
        return reference(*arrays)
    axes = varying_axes(arrays)
    arrays = match_varying(arrays, axes)

    @custom_vmap
    def run(*arrays):
        # Traced once, for its shapes and for the GPU's branch.
        traced, out = jax.make_jaxpr(kernel, return_shape=True)(*arrays)
        plain, structure = late(reference, out), jax.tree.structure(out)

        def on_gpu(*arrays):
            found = jaxpr_as_fun(traced)(*jax.tree.leaves(arrays))
            return match_varying(jax.tree.unflatten(structure, found), axes)

        def elsewhere(*arrays):
            return match_varying(plain(*arrays), axes)

        return lax.platform_dependent(*arrays, cuda=on_gpu, default=elsewhere)

    @run.def_vmap
    def _(size, batched, *arrays):
        in_axes = tuple(jax.tree.map(lambda b: 0 if b else None, batched))
        out = jax.vmap(reference, in_axes, axis_size=size)(*arrays)
        return out, jax.tree.map(lambda _: True, out)

    return run(*arrays)
