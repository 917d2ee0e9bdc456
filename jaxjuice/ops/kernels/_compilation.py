"""Kernels are compiled by other processes, side by side, while JAX still traces.

jax-triton compiles one kernel after the other when JAX lowers a function, and Triton holds Python's
lock meanwhile, so threads would gain nothing. `_launch.launch` requests what it traces; lowering
finds it compiled, or waits. Whatever goes wrong here, jax-triton compiles as ever.
"""

import atexit
import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from jaxjuice.ops.kernels import _worker

Answer = dict[str, Any] | None

# A step has some twenty kernels. A process takes 130 MB.
MAX_WORKERS = 16
EARLY_WORKERS = 8
IDLE_SECONDS = 10.0
# No kernel takes a tenth of it.
PATIENCE_SECONDS = 120.0


def describe(
    kernel: Any,
    types: Sequence[str],
    numbers: dict[int, Any],
    constants: dict[str, Any],
    capability: int,
    num_warps: int,
    num_stages: int,
) -> str | None:
    """What a worker needs to compile a kernel, as JSON; None where it can't be said so.

    Args:
        kernel: a function under `triton.jit` from `jaxjuice.ops.kernels.device`.
        types: Triton's types of its run-time arguments, in order.
        numbers: by position in `types`, the arguments that are numbers. Those that are 1 become
            constants, as jax-triton has it.
        constants: the compile-time arguments.
        capability, num_warps, num_stages: see `_worker.compile_kernel`.
    """
    if not getattr(kernel, "__module__", "").startswith(_worker.PACKAGE):
        return None
    names = kernel.arg_names
    ones = {names[i]: 1 for i, number in numbers.items() if number == 1}
    try:
        return json.dumps(
            {
                "module": kernel.__module__,
                "name": kernel.__name__,
                "types": {n: t for n, t in zip(names, types, strict=False) if n not in ones},
                "constants": dict(sorted({**constants, **ones}.items())),
                "capability": capability,
                "num_warps": num_warps,
                "num_stages": num_stages,
            }
        )
    except TypeError:  # a constant that JSON does not know
        return None


class Pool:
    """Worker processes, started as requests come and ended when none has come for a while.

    Args:
        limit: of processes at a time; with 0 nothing is compiled here.
        command: runs a worker.
    """

    def __init__(self, limit: int, command: Sequence[str]) -> None:
        self._limit = limit
        self._command = command
        self._changed = threading.Condition()
        self._futures: dict[str, Future[Answer]] = {}
        self._waiting: deque[tuple[str, Future[Answer]]] = deque()
        self._workers = 0
        self._idle = 0

    def request(self, text: str) -> Future[Answer] | None:
        """Has `text` compiled, once, in the background: the answer, for the first request only."""
        with self._changed:
            if self._limit < 1 or text in self._futures:
                return None
            future: Future[Answer] = Future()
            self._futures[text] = future
            self._waiting.append((text, future))
            if self._idle < len(self._waiting):
                self._add_worker()
            self._changed.notify()
        return future

    def start(self, count: int) -> None:
        """Starts workers before the first request: they take a while to import Triton."""
        with self._changed:
            while self._workers < min(count, self._limit):
                self._add_worker()

    def _add_worker(self) -> None:
        if self._workers < self._limit:
            self._workers += 1
            # As it is now: jax-triton empties TRITON_CACHE_DIR, for a moment or, if somebody else
            # imported it, for good.
            environment = dict(os.environ)
            if not environment.get("TRITON_CACHE_DIR"):
                environment.pop("TRITON_CACHE_DIR", None)
            threading.Thread(
                target=self._serve, args=(environment,), daemon=True, name="jaxjuice-compile"
            ).start()

    def answer(self, text: str) -> Answer:
        """What became of a request: waits for it. None if it was not made, or failed."""
        future = self._futures.get(text)
        try:
            return None if future is None else future.result(PATIENCE_SECONDS)
        except TimeoutError:
            return None

    def _serve(self, environment: dict[str, str]) -> None:
        """Starts a worker and passes requests on to it."""
        is_done = False
        try:
            with subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C is for this process
            ) as worker:
                forget = atexit.register(worker.kill)
                try:
                    is_done = self._converse(worker)
                finally:
                    atexit.unregister(forget)
                    worker.kill()
        except Exception:  # no such program, no memory, no pipe
            pass
        if is_done:
            return
        with self._changed:  # jax-triton compiles
            self._workers -= 1
            self._limit = 0
            while not self._workers and self._waiting:
                self._waiting.popleft()[1].set_result(None)

    def _converse(self, worker: subprocess.Popen[str]) -> bool:
        """Until no request comes (True), or the worker is gone (False)."""
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdin.write(json.dumps([str(path) for path in sys.path]) + "\n")
        worker.stdin.flush()
        while (task := self._next()) is not None:
            text, future = task
            answer = None
            try:
                worker.stdin.write(text + "\n")
                worker.stdin.flush()
                line = worker.stdout.readline()
                answer = json.loads(line) if line else None
            finally:
                future.set_result(None if answer is None or "error" in answer else answer)
            if answer is None:
                return False
        return True

    def _next(self) -> tuple[str, Future[Answer]] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._waiting, IDLE_SECONDS)
            self._idle -= 1
            if self._waiting:
                return self._waiting.popleft()
            self._workers -= 1  # at once: from now on requests need another worker
            return None


def spare_cores() -> int:
    """One core is left to this process; Python must be able to start itself."""
    if not sys.executable or not hasattr(os, "sched_getaffinity"):
        return 0
    return min(MAX_WORKERS, len(os.sched_getaffinity(0)) - 1)


# -P: the folder of the script is no place to import from.
POOL = Pool(spare_cores(), (sys.executable, "-P", str(_worker.__file__)))


def make_kernel(library: Any, answer: dict[str, Any], num_warps: int, capability: int) -> Any:
    """A worker's answer as jaxlib's `TritonKernel`, without its TTIR, which nobody reads.

    Args:
        library: jaxlib's module for Triton, `gpu_triton`.
        answer: see `_worker.compile_kernel`.
        num_warps: see Triton.
        capability: the GPU's compute capability, 90 for 9.0.
    """
    return library.TritonKernel(
        answer["name"], num_warps, 1, answer["shared"], answer["ptx"], "", capability
    )


def compiled_elsewhere(library: Any, capability: int) -> Callable[..., Any]:
    """jax-triton's `get_or_create_triton_kernel`, asking the workers first.

    Args:
        library: the module `jax_triton.triton_lib`.
        capability: the GPU's compute capability, 90 for 9.0.
    """
    original = library.get_or_create_triton_kernel
    found: dict[str, Any] = {}

    def get_or_create(backend, platform, kernel, types, scalars, **options: Any) -> Any:
        plain = {"num_ctas": 1, "compute_capability": None, "enable_fp_fusion": True, "dump": False}
        text = None
        if platform == "cuda" and all(options.get(key) == plain[key] for key in plain):
            text = describe(
                kernel,
                types,
                {i: number for i, _, number in scalars},
                options["metaparams"],
                capability,
                options["num_warps"],
                options["num_stages"],
            )
        answer = None if text is None else POOL.answer(text)
        if text is None or answer is None:
            return original(backend, platform, kernel, types, scalars, **options)
        if text not in found:
            found[text] = make_kernel(
                library.triton_kernel_call_lib, answer, options["num_warps"], capability
            )
        aligned = [["tt.divisibility", 16]]
        attributes = {(i,): aligned if t.startswith("*") else [] for i, t in enumerate(types)}
        return found[text], attributes

    return get_or_create
