"""Compiles Triton kernels for NVIDIA GPUs on a machine without one."""

import contextlib
import io
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from jaxjuice.ops.kernels._launch import TYPES

CAPABILITIES = (80, 90, 100, 120)  # A100, H100 and H200, B200, RTX 50

# Bytes of shared memory that a program may have, and columns of tensor memory.
# https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities
SHARED_LIMIT = {
    80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024
}  # fmt: skip
TENSOR_MEMORY_LIMIT = 512

# NVIDIA's instructions for products of tiles.
_MATRIX_INSTRUCTIONS = ("wgmma.mma_async", "tcgen05.mma", "mma.sync")


@dataclass(frozen=True)
class Compiled:
    """A kernel for one GPU.

    Attributes:
        ptx: its assembly.
        ttgir: Triton's last representation before LLVM's: layouts, pipelines.
        shared: bytes of shared memory of a program.
        tensor_memory: columns of tensor memory (capability 100).
        registers: of a thread.
        spills: bytes of registers that are kept in memory instead, stores and loads.
    """

    ptx: str = field(repr=False)
    ttgir: str = field(repr=False)
    shared: int
    tensor_memory: int
    registers: int
    spills: int
    capability: int

    @property
    def products(self) -> set[str]:
        """Kinds of matrix instructions, with shapes and dtypes: "mma.sync.aligned.m16n8k8..."."""
        kinds = "|".join(re.escape(kind) for kind in _MATRIX_INSTRUCTIONS)
        return set(re.findall(rf"(?:{kinds})[\w.:]*", self.ptx))

    @property
    def fits(self) -> bool:
        """Whether a GPU of this capability has the memory that a program needs."""
        return (
            self.shared <= SHARED_LIMIT[self.capability]
            and self.tensor_memory <= TENSOR_MEMORY_LIMIT
        )


def compile_kernel(
    fn: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    capability: int,
    num_warps: int = 4,
    num_stages: int = 2,
) -> Compiled:
    """Compiles a kernel as jax-triton does: all pointers are aligned to 16 bytes, no number is.

    Args:
        fn: a function under `triton.jit`, made while TRITON_INTERPRET was not set.
        signature: dtypes of its run-time arguments: "*fp32", "*bf16", "*i32", "*i1", "i32".
        constexprs: all its other arguments. jax-triton counts whole numbers that are 1 among them.
        capability: 90 for 9.0.
        num_warps, num_stages: see Triton.
    """
    if not isinstance(fn, triton.JITFunction):
        raise TypeError(f"{fn} is no triton.JITFunction. Is TRITON_INTERPRET set?")
    if {*signature, *constexprs} != set(fn.arg_names):
        raise ValueError(f"{fn.__name__} takes {fn.arg_names}, got {[*signature, *constexprs]}.")
    types = {name: signature.get(name, "constexpr") for name in fn.arg_names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, dtype in enumerate(types.values())
        if dtype.startswith("*")
    }
    source = ASTSource(fn, types, dict(constexprs), aligned)
    log = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as cache,
        knobs.cache.scope(),
        knobs.nvidia.scope(),
        contextlib.redirect_stdout(log),
    ):
        knobs.cache.dir = cache  # nothing is found there, so ptxas runs and tells what it used
        knobs.nvidia.dump_ptxas_log = True
        kernel = triton.compile(
            source,
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True},
        )
        ptx, ttgir = str(kernel.asm["ptx"]), str(kernel.asm["ttgir"])
    spilled = re.findall(r"(\d+) bytes spill (?:stores|loads)", log.getvalue())
    (registers,) = re.findall(r"Used (\d+) registers", log.getvalue())
    return Compiled(
        ptx=ptx,
        ttgir=ttgir,
        shared=kernel.metadata.shared,
        tensor_memory=getattr(kernel.metadata, "tmem_size", 0) or 0,
        registers=int(registers),
        spills=sum(map(int, spilled)),
        capability=capability,
    )


def compile_call(
    capability: int,
    kernel: Any,
    *arguments: Any,
    out: Any,
    num_warps: int = 4,
    num_stages: int = 2,
    grid: Any = None,
    aliases: Any = None,
    **constants: Any,
) -> Compiled:
    """Compiles what `jaxjuice.ops.kernels._launch.call` would call, from its arguments.

    Of arrays only dtypes count: `jax.ShapeDtypeStruct` and tracers do.
    """
    del grid, aliases
    signature: dict[str, str] = {}
    outs = out if isinstance(out, tuple) else (out,)
    for name, argument in zip(kernel.arg_names, (*arguments, *outs), strict=False):
        if hasattr(argument, "dtype"):
            signature[name] = TYPES[jnp.dtype(argument.dtype).name]
        elif argument == 1:
            constants[name] = 1
        elif isinstance(argument, int) and abs(argument) < 2**31:
            signature[name] = "i32"
        else:
            raise TypeError(f"{kernel.__name__}: {name}={argument!r} is no 32-bit integer.")
    return compile_kernel(kernel, signature, constants, capability, num_warps, num_stages)
