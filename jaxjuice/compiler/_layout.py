"""From units to a `Program`: slots for values and flows, index tables, parameter rows."""

from collections.abc import Sequence

import numpy as np

from jaxjuice.compiler._layer import Layer, arity_class, shape_of
from jaxjuice.compiler._program import (
    LeafLayer,
    Program,
    Root,
    SlotTable,
    SumGroup,
    SumLayer,
    SumRow,
    WeightRows,
)
from jaxjuice.compiler._scaled import scale_key, scaled_units, sum_vector
from jaxjuice.compiler._schedule import Stage, schedule
from jaxjuice.compiler._tables import joined, padded_table, weights_from_edges
from jaxjuice.compiler._units import SumUnit, Unit, UnitTable
from jaxjuice.nodes import CircuitNodes, InputNodes, SumNodes

# A GPU of 128 or 132 processors fills them with the values of so many nodes for 512 samples.
_NODES_AT_A_TIME = 4096


def build_program(root: CircuitNodes) -> Program:
    """Lays out the circuit under `root`. Runs no jax computation."""
    return _Layout(root).program()


class _Layout:
    def __init__(self, root: CircuitNodes):
        self.root_vector = root
        self.table = UnitTable(root)
        self.units = self.table.units
        self.unit_width = np.array([unit.num_nodes for unit in self.units])
        self.value_slot = np.zeros(len(self.units), np.int64)
        self.value_slots: dict[int, int] = {}
        self.flow_slots: dict[int, int] = {}
        self.row_of: dict[tuple[CircuitNodes, int], tuple[str, int]] = {}
        self.group_units: dict[str, list[SumUnit]] = {}

    def program(self) -> Program:
        leaf_vectors = self._place_leaves()
        stages = [
            [self._layer(stage, c) for c in stage.quota]
            for stage in self._schedule()
            if stage.quota
        ]
        self._assign_parameters(stages)
        self._place_values(stages)
        root = self._root()
        self._place_flows(stages)
        self._collect_references(stages)
        leaves = tuple(
            self._leaf_layer(name, vectors, start) for name, vectors, start in leaf_vectors
        )
        sum_layers = tuple(tuple(self._sum_layer(layer) for layer in stage) for stage in stages)
        return Program(
            leaves=leaves,
            stages=sum_layers,
            root=root,
            value_slots=self.value_slots,
            flow_slots=self.flow_slots,
            sum_groups={name: _sum_group(units) for name, units in self.group_units.items()},
            sum_rows=self._sum_rows(),
            leaf_rows=self._leaf_rows(leaf_vectors),
            num_vars=max(self.root_vector.scope, default=-1) + 1,
        )

    # Leaves ---------------------------------------------------------------------------------------

    def _place_leaves(self) -> list[tuple[str, list[Unit], int]]:
        groups: dict[tuple, list[Unit]] = {}
        for unit in self.units:
            if isinstance(unit.vector, InputNodes):
                groups.setdefault((unit.vector.dist, unit.num_nodes), []).append(unit)
        placed, used = [], {}
        for (dist, width), units in groups.items():
            family = type(dist).__name__.lower()
            used[family] = used.get(family, -1) + 1
            start = self.value_slots.setdefault(width, 1)
            self.value_slots[width] += len(units)
            self.value_slot[[unit.index for unit in units]] = start + np.arange(len(units))
            placed.append((f"{family}{used[family]}", units, start))
        return placed

    def _leaf_layer(self, name: str, units: list[Unit], start: int) -> LeafLayer:
        sources, ids = _leaf_sources(units)
        tied = not np.array_equal(ids, np.arange(len(units)))
        constants = {
            key: np.moveaxis(np.stack([source.constants[key] for source in sources]), 1, -1)
            for key in sources[0].constants
        }
        pieces, parents = self._parent_tables(np.array([unit.index for unit in units]))
        return LeafLayer(
            name=name,
            dist=sources[0].dist,
            num_nodes=units[0].num_nodes,
            vectors=tuple(_leaf(unit) for unit in units),
            variables=np.array([_leaf(unit).var for unit in units], np.int32),
            param_ids=ids.astype(np.int32) if tied else None,
            constants=constants,
            num_params=len(sources),
            value_start=start,
            parents=parents,
            pieces=pieces,
        )

    def _leaf_rows(self, placed) -> dict[CircuitNodes, tuple[str, int]]:
        rows: dict[CircuitNodes, tuple[str, int]] = {}
        for name, units, _ in placed:
            _, ids = _leaf_sources(units)
            for unit, row in zip(units, ids, strict=True):
                rows[unit.vector] = name, int(row)
                rows.setdefault(unit.vector.get_source(), (name, int(row)))
        return rows

    # Sums -----------------------------------------------------------------------------------------

    def _schedule(self) -> list[Stage]:
        self.sums = [unit for unit in self.units if isinstance(unit, SumUnit)]
        place = {unit.index: i for i, unit in enumerate(self.sums)}
        keys: dict[tuple, int] = {}
        classes, dependencies = [], []
        work: list[float] = []
        families: list[int] = []
        grains: list[int] = []
        first_of: dict[tuple, int] = {}
        for unit in self.sums:
            read = set(unit.factor_units.ravel().tolist()) - {-1}
            dependencies.append([place[i] for i in sorted(read) if i in place])
            arrays = tuple(sorted({self.units[i].num_nodes for i in read}))
            family = *shape_of(unit), arrays, scale_key(unit)
            key = (*family, arity_class(unit.arity))
            if key not in keys:
                keys[key] = len(keys)
                work.append(0.0)
                families.append(first_of.setdefault(family, keys[key]))
                grains.append(max(1, _NODES_AT_A_TIME // unit.num_nodes))
            reads = unit.num_elements * unit.width * (arity_class(unit.arity) + 1)
            # A value read costs about as much as 32 multiplications on every machine tried.
            cost = unit.num_nodes * unit.num_children + 32.0 * (reads + unit.num_nodes)
            # Units are padded to the most elements of their layer.
            work[keys[key]] = max(work[keys[key]], cost)
            classes.append(keys[key])
        return schedule(classes, dependencies, work, families, grains)

    def _layer(self, stage: Stage, c: int) -> Layer:
        return Layer([[self.sums[i] for i in step.get(c, ())] for step in stage.steps])

    def _assign_parameters(self, stages: list[list[Layer]]) -> None:
        """Gives every parameter a row, in the order in which steps read them.

        Layers that share a parameter (tied copies) share a group; all others have one of their own,
        so that their gradients need not be joined.
        """
        layers = [layer for stage in stages for layer in stage]
        for members in joined([{_source(unit) for unit in layer.units} for layer in layers]):
            name = f"sum{len(self.group_units)}"
            rows: dict[tuple[CircuitNodes, int], int] = {}
            units: list[SumUnit] = []
            for layer in (layers[i] for i in members):
                for unit in layer.units_by_row:
                    if _source(unit) not in rows:
                        rows[_source(unit)] = len(units)
                        units.append(unit)
            self.group_units[name] = units
            self.row_of.update({key: (name, row) for key, row in rows.items()})
            for layer in (layers[i] for i in members):
                own = np.array([rows[_source(unit)] for unit in layer.units_by_row])
                layer.set_rows(name, own, len(units))

    def _place_values(self, stages) -> None:
        for r, layer in _steps(stages):
            units = layer.steps[r]
            start = self.value_slots.setdefault(layer.out_width, 1)
            layer.value_start[r] = start
            self.value_slot[[unit.index for unit in units]] = start + np.arange(len(units))
            # The padding behind is overwritten by the next step; the last one keeps it.
            self.value_slots[layer.out_width] = start + len(units)
        _add_slack(self.value_slots, stages, lambda layer: layer.out_width, 1)

    # Flows ----------------------------------------------------------------------------------------

    def _root(self) -> Root:
        elements = self.table.root
        self.flow_slots[elements.width] = 1 + len(elements.factor_units)
        return Root(
            num_nodes=self.root_vector.num_nodes,
            num_elements=len(elements.factor_units),
            width=elements.width,
            children=self._child_tables(
                elements.factor_units[None, None],
                elements.factor_offsets[None, None],
                elements.width,
            ),
        )

    def _place_flows(self, stages) -> None:
        for r, layer in reversed(list(_steps(stages))):
            start = self.flow_slots.setdefault(layer.width, 1)
            layer.flow_start[r] = start
            self.flow_slots[layer.width] = start + len(layer.steps[r]) * layer.num_elements
        _add_slack(self.flow_slots, stages, lambda layer: layer.width, -1)

    def _collect_references(self, stages) -> None:
        """All reads of a unit by an element: `[number, 4]` (unit, offset, width, flow slot)."""
        root = self.table.root
        slots = np.broadcast_to(
            1 + np.arange(len(root.factor_units))[:, None], root.factor_units.shape
        )
        found = [_references(root.factor_units, root.factor_offsets, root.width, slots)]
        for layer in (layer for stage in stages for layer in stage):
            factors, offsets = layer.factors()
            own = np.arange(layer.quota * layer.num_elements).reshape(factors.shape[1:3])
            slots = layer.flow_start.reshape(-1, 1, 1, 1) + own[None, ..., None]
            slots = np.broadcast_to(slots, factors.shape)
            found.append(_references(factors, offsets, layer.width, slots))
        references = np.concatenate(found)
        self.references = references[np.argsort(references[:, 0], kind="stable")]

    # Tables ---------------------------------------------------------------------------------------

    def _sum_layer(self, layer: Layer) -> SumLayer:
        grid = layer.grid()
        _, blocks, block_nodes, block_elements, width = layer.shape
        factors, offsets = layer.factors()
        selection, selected_by = layer.selection()
        pieces, parents = self._parent_tables(grid)
        return SumLayer(
            num_blocks=blocks,
            block_nodes=block_nodes,
            num_elements=layer.num_elements,
            block_elements=block_elements,
            width=width,
            quota=layer.quota,
            children=self._child_tables(factors, offsets, width),
            parents=parents,
            pieces=pieces,
            value_start=layer.value_start.astype(np.int32),
            flow_start=layer.flow_start.astype(np.int32),
            weights=WeightRows(layer.group, layer.kind, layer.rows, layer.real),
            selection=selection,
            selected_by=selected_by,
            scaled=scaled_units(layer.units, layer.real),
        )

    def _child_tables(self, factors, offsets, width: int) -> dict[int, SlotTable]:
        """Splits factors `[..., arity]` (-1: none) by the array that holds them."""
        held = np.where(factors >= 0, self.unit_width[factors], 0)
        tables = {}
        for array in sorted(set(np.unique(held).tolist()) - {0}):
            mask = held == array
            most = int(mask.sum(-1).max())
            order = np.argsort(~mask, axis=-1, kind="stable")[..., :most]
            mask = np.take_along_axis(mask, order, -1)
            unit = np.take_along_axis(factors, order, -1)
            slots = np.where(mask, self.value_slot[unit], 0).astype(np.int32)
            starts = np.where(mask, np.take_along_axis(offsets, order, -1), 0).astype(np.int32)
            tables[array] = SlotTable(
                slots, starts if width != array else None, _entries_read(mask)
            )
        return tables

    def _parent_tables(self, units: np.ndarray) -> tuple[int, dict[int, SlotTable]]:
        """Where the flows of `units` (-1: padding) are: pieces and `[*units.shape, pieces, n]`."""
        flat = units.reshape(-1)
        real = np.flatnonzero(flat >= 0)
        low = np.searchsorted(self.references[:, 0], flat[real], side="left")
        high = np.searchsorted(self.references[:, 0], flat[real], side="right")
        counts = high - low
        target = np.repeat(real, counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        _, offset, width, slot = self.references[np.repeat(low, counts) + within].T
        num_nodes = int(self.unit_width[flat[real[0]]])
        piece = int(np.gcd.reduce(np.concatenate([[num_nodes], offset, width])))
        pieces = num_nodes // piece
        tables = {}
        for w in np.unique(width).tolist():
            mine = width == w
            parts = w // piece
            part = np.tile(np.arange(parts), int(mine.sum()))
            row = np.repeat(target[mine] * pieces + offset[mine] // piece, parts) + part
            tables[w] = padded_table(
                row,
                np.repeat(slot[mine], parts),
                part * piece if w != piece else None,
                (*units.shape, pieces),
            )
        return pieces, tables

    def _sum_rows(self) -> dict[CircuitNodes, tuple[SumRow, ...]]:
        rows = {}
        for vector in self.root_vector:
            if not isinstance(vector, SumNodes):
                continue
            found = tuple(
                SumRow(*self.row_of[_source(unit)], unit.start, unit.edges)
                for unit in self.table.units_of(vector)
                if isinstance(unit, SumUnit)
            )
            rows[vector] = found
            rows.setdefault(vector.get_source(), found)
        return rows


def _steps(stages):
    """All `(step, layer)` in the order in which they run."""
    for stage in stages:
        for r in range(len(stage[0].steps)):
            for layer in stage:
                yield r, layer


def _add_slack(slots: dict[int, int], stages, width, direction: int) -> None:
    """Room behind the last slots for the padding of the steps that write there."""
    ends: dict[int, int] = {}
    for r, layer in _steps(stages):
        start = layer.value_start[r] if direction > 0 else layer.flow_start[r]
        step = layer.quota * (1 if direction > 0 else layer.num_elements)
        ends[width(layer)] = max(ends.get(width(layer), 0), int(start) + step)
    for key, end in ends.items():
        slots[key] = max(slots[key], end)


def _entries_read(real: np.ndarray) -> tuple[int, ...]:
    """See `SlotTable.entries`, of factors that are `real` `[steps, quota, elements, n]`."""
    places = 1 + np.arange(real.shape[1])[:, None]
    last = (real.any((0, 2)) * places).max(0)  # [n]
    # Powers of two, for every different number costs XLA an operation to compile.
    return tuple(min(real.shape[1], 1 << (int(n) - 1).bit_length()) for n in last)


def _source(unit: SumUnit) -> tuple[CircuitNodes, int]:
    return unit.vector.get_source(), unit.start


def _references(factors, offsets, width: int, slots) -> np.ndarray:
    real = factors >= 0
    count = int(real.sum())
    return np.stack([factors[real], offsets[real], np.full(count, width), slots[real]], axis=1)


def _leaf_sources(units: Sequence[Unit]) -> tuple[list[InputNodes], np.ndarray]:
    """The distinct parameter owners of leaves, and the index of every leaf's."""
    rows: dict[InputNodes, int] = {}
    ids = [rows.setdefault(_leaf(unit).get_source(), len(rows)) for unit in units]
    return list(rows), np.array(ids)


def _leaf(unit: Unit) -> InputNodes:
    assert isinstance(unit.vector, InputNodes)
    return unit.vector


def _sum_group(units: Sequence[SumUnit]) -> SumGroup:
    """The parameters of `units`: one row each."""
    shape = (len(units), units[0].num_blocks, units[0].block_nodes, units[0].num_children)
    masks = [getattr(unit.vector, "zero_param_mask", None) for unit in units]
    mask = None
    if any(m is not None for m in masks):
        mask = np.zeros(shape, bool)
        for row, (unit, given) in enumerate(zip(units, masks, strict=True)):
            if given is not None:
                mask[row] = weights_from_edges(given, unit.edges)
    return SumGroup(*shape, mask, sum_vector(units[0]).resolved_parameterization())
