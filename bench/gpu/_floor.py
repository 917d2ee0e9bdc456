"""What a pass must cost: its arithmetic and its bytes over what the machine was seen to do."""

from __future__ import annotations

from typing import NamedTuple

import jaxjuice as juice
from jaxjuice.compiler import LeafLayer, SumLayer

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
            those that read it. What a program may keep or compute again counts as neither: p, q,
            and the values of leaves, for which rows of tables are read. Nor does padding.
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
    # Weights and rows of leaf tables are read; values of sums are written once and read once.
    numbers = pc.num_sum_parameters + _rows_read(pc, batch) + batch * 2 * _sum_values(pc)
    return Floor(milliseconds * 1e-9, 4 * numbers / TERABYTES * 1e-9)


def training_floor(pc: juice.Circuit, batch: int) -> Floor:
    """Of log-likelihoods and flows."""
    forward = forward_floor(pc, batch)
    milliseconds = sum(
        2 * _flops(layer, batch) / TFLOPS[layer.backward] for layer in pc.plan(batch).layers
    )
    # Weights and leaves are read again, and the flows of all parameters written; values are read
    # again, and the flows of all elements written and read.
    parameters = 2 * pc.num_sum_parameters + _rows_read(pc, batch) + pc.num_input_parameters
    numbers = parameters + batch * (_sum_values(pc) + 2 * _element_flows(pc))
    memory = forward.memory + 4 * numbers / TERABYTES * 1e-9
    return Floor(forward.arithmetic + milliseconds * 1e-9, memory)


def _flops(layer, batch: int) -> float:
    return 2.0 * batch * layer.num_products * layer.num_children * layer.num_nodes


def _sum_values(pc: juice.Circuit) -> int:
    """Values of sum nodes of a sample."""
    layers = (layer for stage in pc.program.stages for layer in stage)
    return sum(int(layer.weights.real.sum()) * layer.num_nodes for layer in layers)


def _element_flows(pc: juice.Circuit) -> int:
    """Flows of a sample: each unit has one for every node of its distinct elements."""
    root = pc.program.root
    layers = (layer for stage in pc.program.stages for layer in stage)
    return root.num_elements * root.width + sum(
        _num_elements(layer) * layer.width for layer in layers
    )


def _num_elements(layer: SumLayer) -> int:
    """Of all units; an element without factors is padding."""
    found = sum((table.slots != 0).any(-1) for table in layer.children.values())
    return int(((found > 0) & layer.weights.real[..., None]).sum())


def _rows_read(pc: juice.Circuit, batch: int) -> float:
    """Numbers in the rows of tables that uniform data are expected to hit."""
    return sum(_hit(leaf, batch) * leaf.num_nodes * leaf.num_params for leaf in pc.program.leaves)


def _hit(leaf: LeafLayer, batch: int) -> float:
    """Distinct categories of a table, if its leaves and samples are drawn uniformly."""
    categories = leaf.dist.num_parameters
    draws = batch * leaf.num_leaves / leaf.num_params
    return categories * (1 - (1 - 1 / categories) ** draws)
