"""The kernels on a GPU, against float64."""

import os
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from jaxjuice.ops import kernels
from jaxjuice.ops.kernels import _assembly, _compilation
from tests.kernels.suite import CASES, DENSE, PRECISIONS, PRODUCTS

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", CASES)
def test_kernel(name: str) -> None:
    CASES[name]().check("triton")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("op", PRODUCTS)
def test_precision(op: str, precision: str) -> None:
    shape = dict(units=2, blocks=8, nodes=32, elements=9, own=4, batch=200, width=256)
    for alone in (False, True):
        PRODUCTS[op](precision=precision, alone=alone, **shape).check("triton")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("units", [1, 40])
@pytest.mark.parametrize("op", DENSE)
def test_precision_of_dense_products(op: str, units: int, precision: str) -> None:
    shape = dict(units=units, nodes=270, batch=200, width=260)
    for alone in (False, True):
        DENSE[op](precision=precision, alone=alone, **shape).check("triton")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="no core for a worker")
def test_workers_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise kernels are compiled one after the other: right, and slow to start."""
    answers = []

    class Pool(_compilation.Pool):
        def answer(self, text):
            answers.append(super().answer(text))
            return answers[-1]

    assert kernels.available()
    jax.clear_caches()
    pool = _compilation.POOL
    monkeypatch.setattr(_compilation, "POOL", Pool(1, pool._command))
    assembled = []

    class Threads(ThreadPoolExecutor):
        def submit(self, *arguments):
            assembled.append(super().submit(*arguments))

    monkeypatch.setattr(_assembly, "THREADS", Threads(1))
    CASES["split-three"]().check("triton")
    assert answers and None not in answers
    assert len(assembled) == (len(answers) if _assembly.HELPS else 0)
    assert all(future.exception() is None for future in assembled)
