"""One class of units in one stage, while it is laid out."""

from collections.abc import Sequence

import numpy as np

from jaxjuice.compiler._tables import lists
from jaxjuice.compiler._units import SumUnit


class Layer:
    """Units of one shape in steps, padded where a step has fewer than others.

    Args:
        steps: the units of each step. Those that read most come first here, see
            `SlotTable.entries`.
    """

    def __init__(self, steps: Sequence[Sequence[SumUnit]]):
        self.steps = [sorted(step, key=lambda unit: -unit.arity) for step in steps]
        self.quota = max(map(len, steps))
        self.shape = shape_of(self.units[0])
        # Elements of a unit, and its flow slots: the distinct ones, unless some unit has no others.
        places = self.shape[1] * self.shape[3]
        self.num_elements = max(unit.num_elements for unit in self.units)
        self.shares_elements = self.num_elements < places
        self.value_start = np.zeros(len(steps), np.int64)
        self.flow_start = np.zeros(len(steps), np.int64)
        self.rows = np.zeros((len(steps), self.quota), np.int32)
        self.real = np.zeros((len(steps), self.quota), bool)
        self.group = ""
        self.kind = ""

    @property
    def out_width(self) -> int:
        return self.shape[0]

    @property
    def width(self) -> int:
        return self.shape[4]

    @property
    def units(self) -> list[SumUnit]:
        return [unit for step in self.steps for unit in step]

    @property
    def units_by_row(self) -> list[SumUnit]:
        """The units in the order in which their parameters are to lie: full steps come last.

        So a step reads as many rows as any other from its first on, for its padding those behind.
        """
        full_last = sorted(self.steps, key=lambda step: len(step) == self.quota)
        return [unit for step in full_last for unit in step]

    def set_rows(self, name: str, rows: np.ndarray, size: int) -> None:
        """Takes parameter rows, one of each of `units_by_row`, of a group of `size`."""
        self.group = name
        counts = np.array([len(step) for step in self.steps])
        order = np.argsort(counts == self.quota, kind="stable")  # that of `units_by_row`
        starts = np.zeros_like(counts)
        starts[order] = np.cumsum(counts[order]) - counts[order]
        consecutive = bool((np.diff(rows) == 1).all())
        if consecutive:
            self.rows[:] = rows[0] + starts[:, None] + np.arange(self.quota)
        for r, (start, count) in enumerate(zip(starts, counts, strict=True)):
            self.rows[r, :count] = rows[start : start + count]
            self.real[r, :count] = True
        full = bool(self.real.all())
        if full and consecutive and len(rows) == size:
            self.kind = "all"
        elif full and (self.rows == self.rows[:1]).all():
            self.kind = "fixed"
        else:
            self.kind = "slice" if consecutive else "gather"

    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """Factor units (-1: none) and offsets, `[steps, quota, num_elements, arity]`."""
        read = [self._factors(unit) for unit in self.units]
        arity = max(unit.arity for unit in self.units)
        shape = (len(self.steps), self.quota, self.num_elements, arity)
        factors, offsets = np.full(shape, -1, np.int64), np.zeros(shape, np.int64)
        if all(units.shape == shape[2:] for units, _ in read):
            factors[self.real] = np.stack([units for units, _ in read])
            offsets[self.real] = np.stack([starts for _, starts in read])
            return factors, offsets
        for place, (units, starts) in zip(np.argwhere(self.real), read, strict=True):
            own = (*place, slice(units.shape[0]), slice(units.shape[1]))
            factors[own], offsets[own] = units, starts
        return factors, offsets

    def _factors(self, unit: SumUnit) -> tuple[np.ndarray, np.ndarray]:
        if self.shares_elements or unit.num_blocks == 1:
            return unit.factor_units, unit.factor_offsets
        every = unit.selection.reshape(-1)
        return unit.factor_units[every], unit.factor_offsets[every]

    def selection(self) -> tuple[np.ndarray, np.ndarray] | tuple[None, None]:
        """`selection` and `selected_by` of a `SumLayer`."""
        blocks, size = self.shape[1], self.shape[3]
        if blocks == 1:
            return None, None
        places = blocks * size
        grid = (len(self.steps), self.quota)
        selection = np.tile(np.arange(places, dtype=np.int32) % self.num_elements, (*grid, 1))
        if self.shares_elements:
            selection[self.real] = np.stack([unit.selection.reshape(-1) for unit in self.units])
        chosen = selection[self.real]
        elements = np.flatnonzero(self.real)[:, None] * self.num_elements + chosen
        selected_by = lists(
            elements.reshape(-1),
            np.tile(np.arange(places), len(chosen)),
            int(np.prod(grid)) * self.num_elements,
            fill=places,
        )
        return (
            selection.reshape(*grid, blocks, size),
            selected_by.reshape(*grid, self.num_elements, -1),
        )

    def grid(self) -> np.ndarray:
        """Unit indices `[steps, quota]`, -1 where padded."""
        grid = np.full((len(self.steps), self.quota), -1, np.int64)
        for r, step in enumerate(self.steps):
            grid[r, : len(step)] = [unit.index for unit in step]
        return grid


def shape_of(unit: SumUnit) -> tuple[int, int, int, int, int]:
    return unit.num_nodes, unit.num_blocks, unit.block_nodes, unit.block_elements, unit.width


def arity_class(arity: int) -> int:
    """Units whose arities share a class are padded to one another's: up to 4, 8, 16, ..."""
    return max(4, 1 << (arity - 1).bit_length())
