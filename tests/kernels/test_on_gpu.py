"""The kernels on a GPU, against float64."""

import pytest

from tests.kernels.suite import CASES, PRECISIONS, PRODUCTS

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", CASES)
def test_kernel(name: str) -> None:
    CASES[name]().check("triton")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("op", PRODUCTS)
def test_precision(op: str, precision: str) -> None:
    shape = dict(units=2, blocks=8, nodes=32, elements=9, own=4, batch=200, width=256)
    PRODUCTS[op](precision=precision, **shape).check("triton")
