"""A process that compiles Triton kernels: a line of JSON in, a line of JSON out.

`_compilation` runs this file as a script. The process imports Triton and the kernels; it imports
neither jaxjuice nor JAX, which would take longer than the compilation.
"""

import importlib
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

PACKAGE = "jaxjuice.ops.kernels.device"
MODULES = ("blocks", "children", "dense", "flows")


def main() -> None:
    """Answers requests until its input ends. The first line is the `sys.path` to import from."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever Triton prints is no answer
    sys.path[:] = json.loads(sys.stdin.readline())
    _without_init_files(PACKAGE, Path(__file__).resolve().parents[2])
    _stop_at_ptx()
    for module in MODULES:  # now, not with the first request
        importlib.import_module(f"{PACKAGE}.{module}")
    for line in sys.stdin:
        try:
            answer = compile_kernel(**json.loads(line))
        except Exception as error:  # the process that asked compiles it anew and raises
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _without_init_files(package: str, folder: Path) -> None:
    """Makes `package` importable while the packages around it, from `folder` on, stay empty."""
    parts = package.split(".")
    for i in range(1, len(parts)):
        module = types.ModuleType(".".join(parts[:i]))
        module.__path__ = [str(folder.joinpath(*parts[1:i]))]
        sys.modules[module.__name__] = module


def _stop_at_ptx() -> None:
    """Leaves out Triton's last step, machine code: XLA makes it from PTX itself.

    What Triton keeps on the disk is incomplete then, and goes into a folder of its own.
    """
    knobs = importlib.import_module("triton").knobs
    knobs.cache.dir = os.path.join(knobs.cache.dir, "jaxjuice")

    def leave_out(*arguments: Any) -> tuple[str, str] | None:
        if not arguments:  # Triton 3.7 asks for a part of its cache's key
            return "jaxjuice", "jaxjuice"
        arguments[1]["cubin"] = lambda ptx, metadata: b""
        return None

    knobs.runtime.add_stages_inspection_hook = leave_out


def compile_kernel(
    module: str,
    name: str,
    types: dict[str, str],
    constants: dict[str, Any],
    capability: int,
    num_warps: int,
    num_stages: int,
) -> dict[str, Any]:
    """Compiles a kernel as jax-triton does: pointers are aligned to 16 bytes, no number is.

    Triton keeps what it compiled in its cache on the disk: the next process finds it there.

    Args:
        module, name: of the function under `triton.jit`.
        types: of its run-time arguments: "*fp32", "*bf16", "*i32", "*i1", "i32".
        constants: its other arguments.
        capability: the GPU's compute capability, 90 for 9.0.
        num_warps, num_stages: see Triton.

    Returns:
        The kernel's "name", "ptx", and "shared", bytes of shared memory.
    """
    triton = importlib.import_module("triton")
    compiler = importlib.import_module("triton.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget
    kernel = getattr(importlib.import_module(module), name)
    signature = {arg: types.get(arg, "constexpr") for arg in kernel.arg_names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, dtype in enumerate(signature.values())
        if dtype.startswith("*")
    }
    compiled = triton.compile(
        compiler.ASTSource(kernel, signature, constants, aligned),
        target=target("cuda", capability, 32),
        options={"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True},
    )
    return {
        "name": compiled.metadata.name,
        "shared": compiled.metadata.shared,
        "ptx": compiled.asm["ptx"],
    }


if __name__ == "__main__":
    main()
