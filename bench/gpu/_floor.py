"""What a pass must cost: its arithmetic and its bytes over what the machine was seen to do."""

from __future__ import annotations

from typing import NamedTuple

import jaxjuice as juice

# One H200, measured: products of 8192^3 in TFLOP/s, the single ones through cuBLAS, those of three
# as XLA runs them; and a copy in TB/s.
TFLOPS = {
    "BF16_BF16_F32": 680.0,
    "TF32_TF32_F32": 357.0,
    "BF16_BF16_F32_X3": 204.0,
    "TF32_TF32_F32_X3": 117.0,
    "float32": 51.0,
}
TERABYTES = 4.28


class Floor(NamedTuple):
    """Milliseconds that one pass cannot do without, on an H200.

    Attributes:
        arithmetic: of its products alone.
        memory: of its bytes alone, every array touched once by those that write it and once by
            those that read it.
    """

    arithmetic: float
    memory: float

    @property
    def total(self) -> float:
        """The larger of the two: a perfect program overlaps them."""
        return max(self.arithmetic, self.memory)


def forward_floor(pc: juice.Circuit, batch: int) -> Floor:
    """Of the log-likelihoods."""
    milliseconds = sum(
        _flops(layer, batch) / TFLOPS[layer.forward] for layer in pc.plan(batch).layers
    )
    # Weights and leaf tables are read; values are written once and read once.
    numbers = pc.num_parameters + batch * 2 * _numbers(pc.program.value_slots)
    return Floor(milliseconds * 1e-9, 4 * numbers / TERABYTES * 1e-9)


def training_floor(pc: juice.Circuit, batch: int) -> Floor:
    """Of log-likelihoods and flows."""
    forward = forward_floor(pc, batch)
    milliseconds = sum(
        2 * _flops(layer, batch) / TFLOPS[layer.backward] for layer in pc.plan(batch).layers
    )
    # Weights are read again, and the flows of all parameters written; values are read again, and
    # the flows of all elements written and read.
    values, elements = _numbers(pc.program.value_slots), _numbers(pc.program.flow_slots)
    numbers = 2 * pc.num_parameters + batch * (values + 2 * elements)
    memory = forward.memory + 4 * numbers / TERABYTES * 1e-9
    return Floor(forward.arithmetic + milliseconds * 1e-9, memory)


def _flops(layer, batch: int) -> float:
    return 2.0 * batch * layer.num_products * layer.num_children * layer.num_nodes


def _numbers(slots: dict[int, int]) -> int:
    """Numbers of a sample in arrays of slots, by width."""
    return sum(width * count for width, count in slots.items())
