"""The kernels in the interpreter, against float64."""

import pytest

from jaxjuice.ops.kernels import _launch
from tests.kernels.interpreter import call
from tests.kernels.suite import CASES, DENSE, PRECISIONS, PRODUCTS


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_launch, "call", call)
    monkeypatch.setattr(_launch, "dispatch", lambda _, kernel, __, *arrays: kernel(*arrays))


@pytest.mark.parametrize("name", CASES)
def test_kernel(name: str) -> None:
    CASES[name]().check("triton")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("op", PRODUCTS)
def test_precision(op: str, precision: str) -> None:
    shape = dict(units=2, blocks=2, nodes=16, elements=5, own=2, batch=40, width=128)
    for alone in (False, True):
        PRODUCTS[op](precision=precision, alone=alone, **shape).check("triton")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("op", DENSE)
def test_precision_of_dense_products(op: str, precision: str) -> None:
    shape = dict(units=2, nodes=40, batch=40, width=140)
    for alone in (False, True):
        DENSE[op](precision=precision, alone=alone, **shape).check("triton")
