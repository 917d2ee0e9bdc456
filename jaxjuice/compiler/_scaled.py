"""Units whose weights tensors of a call may scale: which may share a layer, what they read."""

from collections.abc import Hashable, Sequence

import numpy as np

from jaxjuice.compiler._program import ScaledUnits
from jaxjuice.compiler._units import SumUnit
from jaxjuice.nodes import SumNodes


def sum_vector(unit: SumUnit) -> SumNodes:
    assert isinstance(unit.vector, SumNodes)
    return unit.vector


def scale_key(unit: SumUnit) -> Hashable:
    """Equal for units that may share a layer: those with the same parameterization, or none."""
    vector = sum_vector(unit)
    parameterization = vector.resolved_parameterization()
    if parameterization is None:
        return None
    return parameterization, parameterization.layer_key(vector.num_nodes, vector.num_ch_nodes)


def scaled_units(units: Sequence[SumUnit], real: np.ndarray) -> ScaledUnits | None:
    """The units of a layer, in the places where `real` `[steps, quota]` is True."""
    parameterization = sum_vector(units[0]).resolved_parameterization()
    if parameterization is None:
        return None
    vectors: dict[SumNodes, int] = {}
    rows: dict[tuple[SumNodes, int], int] = {}
    lists = []
    vector, first, child_list = (np.full(real.shape, fill, np.int32) for fill in (-1, 0, 0))
    for place, unit in zip(np.argwhere(real), units, strict=True):
        key = sum_vector(unit).get_source(), unit.start
        if key not in rows:
            rows[key] = len(lists)
            lists.append(_child_ids(unit))
        at = tuple(place)
        vector[at] = vectors.setdefault(sum_vector(unit), len(vectors))
        first[at], child_list[at] = unit.start, rows[key]
    lists = np.stack(lists)
    return ScaledUnits(parameterization, tuple(vectors), vector, first, lists, child_list)


def _child_ids(unit: SumUnit) -> np.ndarray:
    """`[num_blocks, num_children]`: the children of each block in the order of its weights."""
    vector = sum_vector(unit)
    size = vector.ch_block_size
    blocks = np.stack([vector.edge_ids[1, edges[0]] for edges in unit.edges])
    return (blocks[..., None] * size + np.arange(size)).reshape(len(blocks), -1).astype(np.int32)
