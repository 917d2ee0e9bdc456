"""The compiled form of a circuit: what `Circuit` walks. numpy only, and it prints as a table.

Two kinds of arrays hold a pass over a batch of B samples. The *value array* of width K is
`[slots, B, K]`: slot 0 is log 1, then the leaves, then the sums in the order of the schedule.
The *flow array* of width w is `[slots, B, w]`: slot 0 is zero, then the root's elements, then the
elements of every sum from the root down, so that a pass writes both arrays front to back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxjuice.distributions import Distribution
from jaxjuice.nodes import CircuitNodes, InputNodes, SumNodes
from jaxjuice.parameterizations import Parameterization


@dataclass(frozen=True, eq=False)
class SlotTable:
    """Which runs of `width` nodes to read from one array, and sum over the last axis.

    Attributes:
        slots: int32 `[..., n]`; slot 0 where there are fewer than n.
        offsets: the same shape, where in the slot each run starts; None when runs are whole slots.
        entries: of children `[R, quota, elements, n]`: read j is none but in so many first places
            of the quota. Empty where nothing is known.
    """

    slots: np.ndarray
    offsets: np.ndarray | None
    entries: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class WeightRows:
    """Which parameters a layer reads, for every step.

    Attributes:
        group: name of the parameter group, an array `[P, num_blocks, block_nodes, num_children]`.
        kind: "all", entry i of the layer reads row i; "fixed", every step reads `rows[0]`;
            "slice", step r reads `quota` rows from `rows[r, 0]` on; "gather", it reads `rows[r]`.
        rows: int32 `[steps, quota]`.
        real: bool `[steps, quota]`, False for padded entries.
    """

    group: str
    kind: str
    rows: np.ndarray
    real: np.ndarray


@dataclass(frozen=True, eq=False)
class ScaledUnits:
    """The units of a layer whose weights tensors of a call may scale.

    Attributes:
        parameterization: theirs, resolved.
        vectors: the node vectors that they belong to.
        vector: int32 `[R, quota]`, index of each unit's vector, -1 for padding.
        first_node: int32 `[R, quota]`, the unit's first node in its vector.
        children: int32 `[D, num_blocks, num_children]`, distinct lists of the children of each
            block, in the order in which it reads them, counted over all children of the vector.
        child_list: int32 `[R, quota]`, which of these lists each unit has.
    """

    parameterization: Parameterization
    vectors: tuple[SumNodes, ...]
    vector: np.ndarray
    first_node: np.ndarray
    children: np.ndarray
    child_list: np.ndarray


@dataclass(frozen=True, eq=False)
class SumLayer:
    """Up to `quota` sum units of one shape in every step of a stage.

    Attributes:
        num_blocks, block_nodes: a unit has `num_blocks * block_nodes` nodes; every block has a
            product of its own.
        num_elements, width: a unit reads up to `num_elements` distinct runs of `width` nodes.
        block_elements: how many of them are the children of one block.
        children: by width of the value array, the factors, slots `[R, quota, num_elements, n]`.
        parents: by width of the flow array, the elements that a unit is a factor of, slots
            `[R, quota, pieces, n]`; a unit is cut into `pieces` equal runs.
        value_start, flow_start: int32 `[R]`, the first slot that a step writes.
        weights: the parameters.
        selection: int32 `[R, quota, num_blocks, block_elements]`, which elements are the children
            of each block; None where there is one block, which reads all.
        selected_by: int32 `[R, quota, num_elements, n]`, where in a unit's `selection` (its blocks
            one after the other) an element is; `num_blocks * block_elements` where there are fewer
            than n places. None where `selection` is.
        scaled: which nodes the units are, where they have a parameterization.
    """

    num_blocks: int
    block_nodes: int
    num_elements: int
    block_elements: int
    width: int
    quota: int
    children: dict[int, SlotTable]
    parents: dict[int, SlotTable]
    pieces: int
    value_start: np.ndarray
    flow_start: np.ndarray
    weights: WeightRows
    selection: np.ndarray | None = None
    selected_by: np.ndarray | None = None
    scaled: ScaledUnits | None = None

    @property
    def num_nodes(self) -> int:
        return self.num_blocks * self.block_nodes

    @property
    def num_children(self) -> int:
        """Children of a node."""
        return self.block_elements * self.width

    @property
    def shares_elements(self) -> bool:
        """Whether blocks read elements of others; if not, each the next `block_elements`."""
        return self.num_elements < self.num_blocks * self.block_elements

    @property
    def num_steps(self) -> int:
        return len(self.value_start)


@dataclass(frozen=True, eq=False)
class LeafLayer:
    """All leaves of one distribution and one width. `parents` slots are `[V, pieces, n]`."""

    name: str
    dist: Distribution
    num_nodes: int
    vectors: tuple[InputNodes, ...]
    variables: np.ndarray
    param_ids: np.ndarray | None
    constants: dict[str, np.ndarray]
    num_params: int
    value_start: int
    parents: dict[int, SlotTable]
    pieces: int

    @property
    def num_leaves(self) -> int:
        return len(self.variables)


@dataclass(frozen=True, eq=False)
class Root:
    """The root's elements: `children` slots `[1, 1, elements, n]`, flow slots 1, 2, ..."""

    num_nodes: int
    num_elements: int
    width: int
    children: dict[int, SlotTable]


@dataclass(frozen=True)
class SumRow:
    """Where the parameters of some nodes of a sum vector are: row `row` of group `group`.

    They are the nodes from `start` on; `edges` as in `SumUnit`.
    """

    group: str
    row: int
    start: int
    edges: tuple[np.ndarray, ...] = field(compare=False)


@dataclass(frozen=True, eq=False)
class SumGroup:
    """One array of sum parameters `[num_params, num_blocks, block_nodes, num_children]`.

    `zero_mask` (bool, that shape, or None): True where the user forbids a weight.
    `parameterization`: that of all its nodes, resolved, or None.
    """

    num_params: int
    num_blocks: int
    block_nodes: int
    num_children: int
    zero_mask: np.ndarray | None
    parameterization: Parameterization | None = None

    @property
    def denominator_shape(self) -> tuple[int, int, int, int] | None:
        """The shape of the statistic W: one number a scale; None where it is not kept."""
        if self.parameterization is None or not self.parameterization.apply_z_correction:
            return None
        return *self.shape[:3], self.num_children // self.parameterization.children_per_scale

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.num_params, self.num_blocks, self.block_nodes, self.num_children


@dataclass(frozen=True, eq=False)
class Program:
    """A circuit as stages of layers. See the module's text for the two kinds of arrays."""

    leaves: tuple[LeafLayer, ...]
    stages: tuple[tuple[SumLayer, ...], ...]
    root: Root
    value_slots: dict[int, int]
    flow_slots: dict[int, int]
    sum_groups: dict[str, SumGroup]
    sum_rows: dict[CircuitNodes, tuple[SumRow, ...]]
    leaf_rows: dict[CircuitNodes, tuple[str, int]]
    num_vars: int

    def table(self, describe_path: Callable[[SumLayer], str] = lambda layer: "") -> str:
        """One line a layer: how often it runs, its shapes, its parameters, its path, its padding.

        Args:
            describe_path: which way the products of a layer are computed, in a few words.
        """
        rows: list[tuple[str, ...]] = [
            ("layer", "steps", "units", "product", "arity", "parameters", "path", "padding")
        ]
        for leaf in self.leaves:
            size = f"{leaf.num_leaves} x {leaf.num_nodes}"
            tied = f"{leaf.num_params} x {leaf.num_nodes}"
            rows.append((f"{leaf.name}: {leaf.dist}", "1", size, "", "", tied, "", ""))
        for index, stage in enumerate(self.stages):
            for layer in stage:
                rows.append(self._layer_row(index, layer, describe_path(layer)))
        root = self.root
        arity = sum(table.slots.shape[-1] for table in root.children.values())
        rows.append(("root", "1", f"1 x {root.num_nodes}", "", str(arity), "", "", ""))
        return align_columns(rows)

    def _layer_row(self, index: int, layer: SumLayer, path: str) -> tuple[str, ...]:
        real = int(layer.weights.real.sum())
        padded = layer.num_steps * layer.quota / real - 1
        blocks = f"{layer.num_blocks} x " if layer.num_blocks > 1 else ""
        shared = f" of {layer.num_elements}" if layer.shares_elements else ""
        children = f"{layer.block_elements}{shared} x {layer.width}"
        tied = " tied" if layer.weights.kind in ("fixed", "gather") else ""
        group = self.sum_groups[layer.weights.group]
        return (
            f"sum, stage {index}",
            str(layer.num_steps),
            f"{layer.quota} x {layer.num_nodes}",
            f"{blocks}[B, {children}] x [{layer.num_children}, {layer.block_nodes}]",
            str(sum(table.slots.shape[-1] for table in layer.children.values())),
            f"{layer.weights.group}{tied} {group.num_params} x {int(np.prod(group.shape[1:]))}"
            f"{_scale_name(layer)}",
            path,
            f"{padded:.0%}" if padded else "",
        )


def _scale_name(layer: SumLayer) -> str:
    return "" if layer.scaled is None else f", {type(layer.scaled.parameterization).__name__}"


def align_columns(rows: Sequence[tuple[str, ...]]) -> str:
    """A table as text."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
