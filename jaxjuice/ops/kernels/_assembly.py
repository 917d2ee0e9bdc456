"""PTX becomes machine code in the background, while JAX still traces.

From jax 0.11 on, XLA runs ptxas when it compiles a program, for one kernel after another, and
jaxlib keeps what it returned for the whole process. So each kernel is compiled in a program of its
own, in a thread, as soon as a worker has its PTX: the program that follows finds the machine code.
Whatever goes wrong here, XLA runs ptxas as ever. (jax 0.10 does so when the program first runs.)

Python waits at its end for what is left to do here, a second or two: to end threads while XLA
compiles would be unsafe.
"""

import importlib
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
from jax.stages import Traced

from jaxjuice.ops.kernels._compilation import make_kernel, spare_cores

# Whether jaxlib runs ptxas for a program that is compiled and not run.
HELPS = jax.__version_info__ >= (0, 11)
THREADS = ThreadPoolExecutor(max(1, spare_cores()), "jaxjuice-assemble")


def assemble_later(answer: Future[dict[str, Any] | None], num_warps: int, capability: int) -> None:
    """Has a kernel assembled once a worker has compiled it.

    Args:
        answer: the worker's, see `_worker.compile_kernel`.
        num_warps: see Triton.
        capability: the GPU's compute capability, 90 for 9.0.
    """

    if not HELPS:
        return

    def start(answer: Future[dict[str, Any] | None]) -> None:
        if (found := answer.result()) is not None:
            with suppress(RuntimeError):  # Python is ending
                THREADS.submit(assemble, found, num_warps, capability)

    answer.add_done_callback(start)


def assemble(answer: dict[str, Any], num_warps: int, capability: int) -> None:
    """Compiles a program that calls a kernel. It is never run.

    Args:
        answer: a worker's, see `_worker.compile_kernel`.
        num_warps, capability: see `assemble_later`.
    """
    with jax.default_device(jax.local_devices(backend="cuda")[0]):
        library = importlib.import_module("jax_triton.triton_lib").triton_kernel_call_lib
        program(library, answer, num_warps, capability).lower().compile()


def program(library: Any, answer: dict[str, Any], num_warps: int, capability: int) -> Traced:
    """What `assemble` compiles.

    Args:
        library: jaxlib's module for Triton, `gpu_triton`.
        answer, num_warps, capability: see `assemble`.
    """
    kernel = make_kernel(library, answer, num_warps, capability)
    proto = library.TritonKernelCall(kernel, 1, 1, 1, []).to_proto(answer["name"], b"")
    out = jax.ShapeDtypeStruct((1,), jnp.uint8)

    def jaxjuice_assemble() -> jax.Array:
        return jax.ffi.ffi_call("triton_kernel_call_ffi", out)(opaque=zlib.compress(proto))

    return jax.jit(jaxjuice_assemble).trace()
