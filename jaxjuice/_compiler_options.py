"""Options of XLA's compiler that suit circuits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

T = TypeVar("T")

_OFF_ON_GPUS = "xla_gpu_enable_triton_gemm", "xla_gpu_experimental_enable_fusion_autotuner"


def compiler_options() -> dict[str, bool]:
    """XLA's options for circuits on the default backend, to be passed to the outermost `jax.jit`.

    On GPUs matrix products go to cuBLAS alone. Left to itself, XLA writes and times kernels of its
    own for each of them, so compiling takes several times as long, and the program is slower. Nor
    does it time several kernels for what lies between products, which gains nothing here.
    `juice.fit` and `juice.evaluate` pass them themselves.

    Returns:
        `{}` on other backends than GPUs. JAX refuses options, but not `{}`, for a `jit` within
        another.
    """
    return dict.fromkeys(_OFF_ON_GPUS, False) if jax.default_backend() == "gpu" else {}


def jit_with_options(**arguments: Any) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """A decorator: `jax.jit` with these arguments and with `compiler_options()`.

    It asks for them when the function is first called, for an import must not start a backend.
    """

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        @functools.cache
        def jitted() -> Callable[..., T]:
            return jax.jit(function, compiler_options=compiler_options(), **arguments)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> T:
            return jitted()(*args, **kwargs)

        return call

    return decorate
