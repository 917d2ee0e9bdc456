"""Kernels that other processes compile, and what happens when these do not."""

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from jaxjuice.ops.kernels import _assembly, _compilation, _launch, _worker
from jaxjuice.ops.kernels._compilation import Pool, compiled_elsewhere, describe
from tests.kernels.compile import compile_call
from tests.kernels.suite import CASES

WORKER = (sys.executable, "-P", str(_worker.__file__))
# Doubles numbers; says which process did; fails at 13; is gone at 17.
FAKE = """
import json, os, sys
json.loads(sys.stdin.readline())
for line in sys.stdin:
    number = json.loads(line)
    if number == 17: sys.exit()
    answer = {"twice": 2 * number, "process": os.getpid()}
    answer["cache"] = os.environ.get("TRITON_CACHE_DIR", "nowhere")
    if number == 13: answer = {"error": "13"}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(autouse=True)
def _end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compilation, "IDLE_SECONDS", 0.2)
    _wait_for_no_threads()


class Recorder:
    """A pool that only remembers what is requested."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    def request(self, text: str) -> None:
        self.requests.append(text)


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[dict]]:
    """What a GPU of capability 9.0 would have compiled, and the calls of kernels."""
    calls: list[dict] = []
    recorder = Recorder()

    def call(*arguments, kernel, out_shape, **options):
        calls.append(dict(arguments=arguments, kernel=kernel, out=out_shape, options=options))
        return jax.tree.map(lambda o: jnp.zeros(o.shape, o.dtype), out_shape)

    original = _launch.importlib.import_module
    monkeypatch.setattr(
        _launch.importlib,
        "import_module",
        lambda name, *rest: (
            SimpleNamespace(triton_call=call) if name == "jax_triton" else original(name, *rest)
        ),
    )
    monkeypatch.setattr(_launch, "compute_capability", lambda: 90)
    monkeypatch.setattr(_launch, "dispatch", lambda _, kernel, __, *arrays: kernel(*arrays))
    monkeypatch.setattr(_compilation, "POOL", recorder)
    CASES["split-three"]().run("triton")
    return recorder.requests, calls


def _lowered(call: dict) -> tuple:
    """What jax-triton hands to `get_or_create_triton_kernel` for a call."""
    types, scalars = [], []
    for i, argument in enumerate((*call["arguments"], *jax.tree.leaves(call["out"]))):
        is_array = hasattr(argument, "dtype")
        types.append(_launch.TYPES[argument.dtype.name] if is_array else "i32")
        if not is_array:
            scalars.append((i, "i32", argument))
    options = dict(call["options"])
    for name in ("grid", "input_output_aliases"):
        options.pop(name)
    keywords = dict(
        num_warps=options.pop("num_warps"),
        num_stages=options.pop("num_stages"),
        num_ctas=1,
        compute_capability=None,
        enable_fp_fusion=True,
        dump=False,
        metaparams=dict(sorted(options.items())),
    )
    return ("backend", "cuda", call["kernel"], types, tuple(scalars)), keywords


def test_what_is_traced_is_what_is_lowered(requested) -> None:
    (text,), (call,) = requested
    made: list[tuple] = []
    library = SimpleNamespace(
        get_or_create_triton_kernel=lambda *a, **k: pytest.fail("compiled here"),
        triton_kernel_call_lib=SimpleNamespace(TritonKernel=lambda *a: made.append(a) or "kernel"),
    )
    answer = {"name": "n", "shared": 7, "ptx": "p"}
    _compilation.POOL.answer = lambda asked: answer if asked == text else None
    get_or_create = compiled_elsewhere(library, 90)
    positional, keywords = _lowered(call)
    for _ in range(2):
        kernel, attributes = get_or_create(*positional, **keywords)
        assert kernel == "kernel"
    assert made == [("n", keywords["num_warps"], 1, 7, "p", "", 90)]
    aligned = [["tt.divisibility", 16]]
    assert attributes == {
        (i,): aligned if t.startswith("*") else [] for i, t in enumerate(positional[3])
    }


@pytest.mark.parametrize(
    "change", [{"platform": "rocm"}, {"num_ctas": 2}, {"dump": True}, {"failed": True}]
)
def test_jax_triton_compiles_the_rest(requested, change: dict) -> None:
    _, (call,) = requested
    _compilation.POOL.answer = lambda _: None if "failed" in change else {"name": "n"}
    (backend, platform, *others), keywords = _lowered(call)
    given = backend, change.get("platform", platform), *others
    keywords |= {key: change[key] for key in change if key in keywords}
    library = SimpleNamespace(get_or_create_triton_kernel=lambda *a, **k: (a, k))
    assert compiled_elsewhere(library, 90)(*given, **keywords) == (given, keywords)


def test_describe(requested) -> None:
    _, (call,) = requested
    kernel = call["kernel"]
    names = kernel.arg_names
    text = describe(kernel, ["*fp32", "i32", "*bf16"], {1: 1}, {"b": 2, "a": True}, 80, 4, 2)
    assert text is not None
    assert json.loads(text) == {
        "module": kernel.__module__,
        "name": kernel.__name__,
        "types": {names[0]: "*fp32", names[2]: "*bf16"},
        "constants": {names[1]: 1, "a": True, "b": 2},
        "capability": 80,
        "num_warps": 4,
        "num_stages": 2,
    }
    assert describe(kernel, [], {}, {"a": object()}, 80, 4, 2) is None, "JSON can't say it"
    elsewhere = SimpleNamespace(__module__="somebody.else", __name__="k", arg_names=[])
    assert describe(elsewhere, [], {}, {}, 80, 4, 2) is None


def test_no_gpu_no_request(requested, monkeypatch: pytest.MonkeyPatch) -> None:
    requests, _ = requested
    requests.clear()
    monkeypatch.setattr(_launch, "compute_capability", lambda: None)
    CASES["split-three"]().run("triton")
    assert not requests


def test_a_worker_compiles_what_triton_does(
    requested, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same assembly, kept on the disk beside what other users of Triton keep there."""
    (text,), (call,) = requested
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    wrong = text.replace(call["kernel"].__name__, "nothing_of_the_kind")
    pool = Pool(1, WORKER)
    for asked in (wrong, text):
        pool.request(asked)
    assert pool.answer(wrong) is None
    answer = pool.answer(text)
    assert answer is not None
    options = {k: v for k, v in call["options"].items() if k != "input_output_aliases"}
    wanted = compile_call(90, call["kernel"], *call["arguments"], out=call["out"], **options)
    assert answer["ptx"] == wanted.ptx
    assert answer["shared"] == wanted.shared
    assert f".entry {answer['name']}(" in answer["ptx"].replace("\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["jaxjuice"]


def test_a_worker_imports_neither_jaxjuice_nor_jax() -> None:
    code = """
import importlib, pathlib, runpy, sys
worker = runpy.run_path(sys.argv[1])
worker["_without_init_files"](worker["PACKAGE"], pathlib.Path(sys.argv[1]).parents[2])
importlib.import_module(worker["PACKAGE"] + ".blocks")
print(sorted({"jax", "torch", "triton"} & set(sys.modules)))
"""
    command = [sys.executable, "-P", "-c", code, str(Path(_worker.__file__).resolve())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "['triton']"


def test_what_a_worker_answers_is_assembled(requested, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, while JAX still traces, in a program that calls the kernel and nothing else."""
    _, (call,) = requested
    answers = [Future(), None]
    monkeypatch.setattr(_compilation.POOL, "request", lambda _: answers.pop(0))
    done: list[tuple] = []
    monkeypatch.setattr(_assembly, "assemble", lambda *a: done.append(a))
    monkeypatch.setattr(_assembly, "THREADS", ThreadPoolExecutor(1))
    monkeypatch.setattr(_assembly, "HELPS", True)
    given, (later, _) = call["arguments"], answers
    for _ in range(2):
        _launch._request(call["kernel"], (*given, *jax.tree.leaves(call["out"])), {}, 8, 2)
    assert not done and not answers
    answer = {"name": "n", "shared": 7, "ptx": "p"}
    later.set_result(answer)
    _assembly.THREADS.shutdown()
    assert done == [(answer, 8, 90)]

    made: list[tuple] = []

    class Call:
        def __init__(self, *arguments):
            made.append(arguments)

        def to_proto(self, name, metadata):
            return f"{name} in a program".encode()

    library = SimpleNamespace(TritonKernel=lambda *a: a, TritonKernelCall=Call)
    text = _assembly.program(library, answer, 8, 90).lower(lowering_platforms=("cuda",)).as_text()
    assert made == [(("n", 8, 1, 7, "p", "", 90), 1, 1, 1, [])]
    assert text.count("custom_call") == 1
    assert "triton_kernel_call_ffi" in text and "opaque" in text


def test_what_no_worker_compiled_is_not_assembled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor is what comes once Python ends; and what fails is nobody's trouble."""
    threads, done = ThreadPoolExecutor(1), []
    monkeypatch.setattr(_assembly, "THREADS", threads)
    monkeypatch.setattr(_assembly, "assemble", lambda *a: done.append(a) or 1 / 0)
    monkeypatch.setattr(_assembly, "HELPS", True)
    for found in (None, {"name": "a"}):
        answer: Future = Future()
        answer.set_result(found)
        _assembly.assemble_later(answer, 4, 90)
    threads.shutdown()
    _assembly.assemble_later(answer, 4, 90)
    assert done == [({"name": "a"}, 4, 90)]
    assert not caplog.records, "futures log what their callbacks raise"


def test_where_it_would_not_help_nothing_is_assembled(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, done = ThreadPoolExecutor(1), []
    monkeypatch.setattr(_assembly, "HELPS", False)
    monkeypatch.setattr(_assembly, "THREADS", threads)
    monkeypatch.setattr(_assembly, "assemble", lambda *a: done.append(a))
    answer: Future = Future()
    _assembly.assemble_later(answer, 4, 90)
    answer.set_result({"name": "a"})
    threads.shutdown()
    assert not done


def _fake(limit: int) -> Pool:
    return Pool(limit, (sys.executable, "-c", FAKE))


def test_requests_are_shared_out() -> None:
    pool = _fake(3)
    for number in range(40):
        pool.request(str(number))
        pool.request(str(number))  # once is enough
    found = [pool.answer(str(number)) for number in range(40)]
    assert [None if a is None else a["twice"] for a in found] == [
        None if number in (13, 17) else 2 * number for number in range(40)
    ]
    assert pool.answer("41") is None, "what was not requested"


def test_no_more_workers_than_the_limit() -> None:
    pool = _fake(2)
    for number in range(18, 40):
        pool.request(str(number))
    processes = {pool.answer(str(number))["process"] for number in range(18, 40)}
    assert 1 <= len(processes) <= 2
    assert os.getpid() not in processes


def test_workers_start_early_and_no_oftener_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_compilation, "IDLE_SECONDS", 2.0)
    pool = _fake(2)
    for _ in range(3):
        pool.start(5)
    count = sum(thread.name == "jaxjuice-compile" for thread in threading.enumerate())
    assert count == 2
    pool.request("1")
    assert pool.answer("1")["twice"] == 2
    _wait_for_no_threads()


@pytest.mark.parametrize(("before", "wanted"), [("/a/b", "/a/b"), ("", "nowhere")])
def test_workers_keep_the_cache_that_jax_triton_forgets(
    before: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty name would be the working folder."""
    pool = _fake(1)
    monkeypatch.setenv("TRITON_CACHE_DIR", before)
    pool.start(1)
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    pool.request("1")
    answer = pool.answer("1")
    assert answer is not None and answer["cache"] == wanted


@pytest.mark.parametrize(
    ("limit", "command"),
    [
        (0, WORKER),
        (2, (sys.executable, "-c", "pass")),
        (2, (sys.executable, "-c", "print('no JSON')")),
        (2, ("/no/such/program",)),
    ],
)
def test_without_workers_there_are_no_answers(limit: int, command: tuple[str, ...]) -> None:
    pool = Pool(limit, command)
    for number in range(5):
        pool.request(str(number))
    assert [pool.answer(str(number)) for number in range(5)] == [None] * 5
    pool.request("5")
    assert pool.answer("5") is None
    _wait_for_no_threads()


def test_a_worker_that_dies_takes_no_other_request_with_it() -> None:
    pool = _fake(1)
    pool.request("17")
    assert pool.answer("17") is None
    pool.request("18")
    assert pool.answer("18") is None, "no worker is tried again"


def test_idle_workers_end_and_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compilation, "IDLE_SECONDS", 0.05)
    pool = _fake(1)
    found = []
    for number in (1, 2):
        pool.request(str(number))
        answer = pool.answer(str(number))
        assert answer is not None
        found.append(answer["process"])
        _wait_for_no_threads()
    assert found[0] != found[1]
    for process in found:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_a_worker_that_is_ending_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    kill, ending, may_end = subprocess.Popen.kill, threading.Event(), threading.Event()

    def slow_kill(process):
        ending.set()
        may_end.wait()
        kill(process)

    monkeypatch.setattr(_compilation, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(_compilation, "PATIENCE_SECONDS", 20)
    monkeypatch.setattr(subprocess.Popen, "kill", slow_kill)
    pool = _fake(1)
    try:
        pool.request("1")
        assert pool.answer("1") is not None
        assert ending.wait(20)
        pool.request("2")
        assert pool.answer("2") is not None
    finally:
        may_end.set()


def test_nobody_waits_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compilation, "PATIENCE_SECONDS", 0.05)
    pool = Pool(1, (sys.executable, "-c", "import sys; sys.stdin.readline(); sys.stdin.read()"))
    pool.request("1")
    assert pool.answer("1") is None


def _wait_for_no_threads() -> None:
    end = time.monotonic() + 20
    while any(thread.name == "jaxjuice-compile" for thread in threading.enumerate()):
        assert time.monotonic() < end, "a worker's thread does not end"
        time.sleep(0.01)
