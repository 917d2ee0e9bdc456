"""Whole circuits on the kernels in the interpreter: what one kernel hands to the next.

Arrays of any values hold NaN here, so that what is read before it is written comes to light.
"""

import numpy as np
import pytest

import jaxjuice as juice
from jaxjuice.ops.kernels import _launch
from tests.fused import STRUCTURES, check, data_of, multiply_in_parts
from tests.kernels.interpreter import call


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("name", ["tied HMM", "padded tree", "picking", "picking wide"])
def test_circuit(name: str, in_parts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if in_parts:
        multiply_in_parts(monkeypatch)
    monkeypatch.setattr(_launch, "call", call)
    monkeypatch.setattr(_launch, "dispatch", lambda _, kernel, __, *arrays: kernel(*arrays))
    pc = juice.compile(STRUCTURES[name](), "fp32", implementation="triton")
    x = data_of(pc, 3)
    missing = np.random.default_rng(0).random(x.shape) < 0.2
    check(pc, x, missing, gradient=False, alone=in_parts)
