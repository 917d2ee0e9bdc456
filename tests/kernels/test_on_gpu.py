"""The kernels on a GPU, against float64."""

import pytest

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
