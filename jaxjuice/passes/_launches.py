"""Which units a fused pass runs at a time.

A program's steps are few units each, so that they have few shapes; its passes by XLA compile each
shape. Kernels take any number of units, and each launch costs as much as some small products: here
consecutive steps that do not read one another become one launch, where the machine code of another
copy of the step is worth it; and what has no room is cut.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from jaxjuice.compiler import SlotTable, SumLayer

# What a copy of a step costs (XLA compiles it), in launches of a step. A fixed rule.
_COPY = 3
# More groups of steps that could be joined are left as they are.
_MOST_GROUPS = 64
# XLA starts what is in the body of a loop as one graph: the host is slower than small kernels. Each
# copy of a step, those after the loop too, is compiled.
_UNROLLED = (4, 3)


class Launch(NamedTuple):
    """Units `first + i * stride` and the `count - 1` behind it, of a layer, in the i-th repeat."""

    layer: int
    first: int
    count: int
    stride: int


class Run(NamedTuple):
    """Launches, one after another, and all of them so many times."""

    repeats: int
    launches: tuple[Launch, ...]

    @property
    def unrolled(self) -> int:
        """How many repeats the body of a loop has."""
        return unrolled(self.repeats)


@dataclass(frozen=True, eq=False)
class UnitList:
    """The U units of a layer, in the order in which they are launched.

    Attributes:
        layer: the layer with all its units in one step, padding only where launches have it.
        value_slots, flow_slots: int32 `[U]`, where each unit's values go, and the flows of its
            first element.
        first_rows: of tied layers whose steps read the same parameters, int32 `[quota]`, those of
            a step; units of one step follow each other.
        num_launches: how many there are.
        most: units of the largest launch.
        in_launch: int32 `[U]`, which unit of its launch each is.
        shares_children: see `shares_children`.
    """

    layer: SumLayer
    value_slots: np.ndarray
    flow_slots: np.ndarray
    first_rows: np.ndarray
    num_launches: int
    most: int
    in_launch: np.ndarray
    shares_children: bool


class LaunchedStage(NamedTuple):
    """The runs of a stage in the order of the pass forward, and its layers."""

    lists: tuple[UnitList, ...]
    runs: tuple[Run, ...]


def launch_stage(
    stage: Sequence[SumLayer], joins: bool, most: Sequence[int | None]
) -> LaunchedStage:
    """Plans the launches of a stage.

    Args:
        stage: its layers.
        joins: whether steps may become one launch.
        most: for each layer, how many units a launch may have, or None for any number. Of 0 it
            still has one.
    """
    steps = stage[0].num_steps
    limits = [None if limit is None else max(1, limit) for limit in most]
    parts = [(0, steps, False)]
    if joins and steps > 1:
        parts = _join(_groups(stage), lambda low, high: _pieces(stage, low, high, limits))
    runs: list[Run] = []
    entries: list[list[np.ndarray]] = [[] for _ in stage]
    sizes = [0 for _ in stage]
    for low, high, joined in parts:
        now: list[Launch] = []
        repeats = 1 if joined else high - low
        for n, layer in enumerate(stage):
            grid = np.arange(low * layer.quota, high * layer.quota)
            if repeats == 1:  # padding only fills up what is repeated
                grid = grid[layer.weights.real.reshape(-1)[grid]]
            entries[n].append(grid)
            if not len(grid):  # of a layer that has no units in these steps
                continue
            now.append(Launch(n, sizes[n], len(grid) // repeats, len(grid) // repeats))
            sizes[n] += len(grid)
        runs += _cut(repeats, now, limits)
    lists = tuple(
        _unit_list(layer, np.concatenate(chosen), runs, n)
        for n, (layer, chosen) in enumerate(zip(stage, entries, strict=True))
    )
    return LaunchedStage(lists, tuple(runs))


def unrolled(repeats: int) -> int:
    return min(repeats, min(_UNROLLED, key=lambda steps: steps + repeats % steps))


def _copies(repeats: int) -> int:
    body = unrolled(repeats)
    return body + repeats % body


def _groups(stage: Sequence[SumLayer]) -> list[tuple[int, int]]:
    """Maximal runs of steps `[first, last + 1)` of which none reads what another computes."""
    steps = stage[0].num_steps
    size: dict[int, int] = {}
    for layer in stage:
        last = int(layer.value_start[-1]) + layer.quota
        size[layer.num_nodes] = max(size.get(layer.num_nodes, 0), last)
    step_of = {k: np.full(count, -1) for k, count in size.items()}
    for layer in stage:
        counts = layer.weights.real.sum(1)
        for r, (start, count) in enumerate(zip(layer.value_start, counts, strict=True)):
            step_of[layer.num_nodes][start : start + count] = r
    needed = np.full(steps, -1)
    for layer in stage:
        for width, table in layer.children.items():
            if width in step_of:
                read = np.minimum(table.slots, len(step_of[width]) - 1)
                here = table.slots < len(step_of[width])
                found = np.where(here, step_of[width][read], -1).reshape(steps, -1).max(1)
                needed = np.maximum(needed, found)
    groups, low = [], 0
    for r in range(1, steps + 1):
        if r == steps or needed[r] >= low:
            groups.append((low, r))
            low = r
    return groups


def _pieces(stage: Sequence[SumLayer], low: int, high: int, most: Sequence[int | None]) -> int:
    """How many launches of its largest layer some steps need if they are joined."""
    counts = (int(layer.weights.real[low:high].sum()) for layer in stage)
    return max(
        -(-count // (limit or max(1, count))) for count, limit in zip(counts, most, strict=True)
    )


def _join(
    groups: list[tuple[int, int]], pieces: Callable[[int, int], int]
) -> list[tuple[int, int, bool]]:
    """Steps `[first, last + 1)` to be joined (True) or repeated, of the least cost in all."""
    steps = groups[-1][1]
    joined = [group for group in groups if group[1] - group[0] > 1]
    if len(joined) > _MOST_GROUPS:
        return [(0, steps, False)]

    def between(low: int, high: int) -> float:
        return high - low + _COPY * _copies(high - low) if high > low else 0.0

    def together(low: int, high: int) -> float:
        number = pieces(low, high)
        return number + _COPY * (1 if number == 1 else _copies(number - 1) + 1)

    # The least cost up to the end of each group, if it is joined, and the joined one before it.
    ends = [0, *(high for _, high in joined)]
    costs, before = [0.0], [-1]
    for low, high in joined:
        choices = [cost + between(end, low) for cost, end in zip(costs, ends, strict=False)]
        best = int(np.argmin(choices))
        costs.append(choices[best] + together(low, high))
        before.append(best)
    n = int(np.argmin([cost + between(end, steps) for cost, end in zip(costs, ends, strict=True)]))
    parts, high = [], steps
    while True:
        if ends[n] < high:
            parts.append((ends[n], high, False))
        if n == 0:
            return parts[::-1]
        low, end = joined[n - 1]
        parts.append((low, end, True))
        high, n = low, before[n]


def _cut(repeats: int, launches: list[Launch], most: Sequence[int | None]) -> list[Run]:
    """Runs of launches that are not too large."""
    limits = [most[launch.layer] or launch.count for launch in launches]
    pairs = list(zip(launches, limits, strict=True))
    if all(launch.count <= limit for launch, limit in pairs):
        return [Run(repeats, tuple(launches))]
    pieces = []
    for launch, limit in pairs:
        number = -(-launch.count // limit)
        size = -(-launch.count // number)
        pieces.append((launch, size, launch.count // size, launch.count % size))
    if repeats > 1:
        small = [
            Launch(launch.layer, launch.first + n * size, min(size, launch.count - n * size),
                   launch.stride)
            for launch, size, whole, rest in pieces for n in range(whole + (rest > 0))
        ]  # fmt: skip
        return [Run(repeats, tuple(small))]
    runs = []
    for launch, size, whole, rest in pieces:
        runs.append(Run(whole, (Launch(launch.layer, launch.first, size, size),)))
        if rest:
            runs.append(Run(1, (Launch(launch.layer, launch.first + whole * size, rest, rest),)))
    return runs


def _unit_list(layer: SumLayer, entries: np.ndarray, runs: list[Run], n: int) -> UnitList:
    steps, quota = layer.num_steps, layer.quota

    def flat(table: np.ndarray) -> np.ndarray:
        return table.reshape(steps * quota, *table.shape[2:])[entries]

    def of_step(table: np.ndarray | None) -> np.ndarray | None:
        return None if table is None else flat(table)[None]

    def tables(by_width: dict[int, SlotTable]) -> dict[int, SlotTable]:
        return {
            width: SlotTable(flat(table.slots)[None], of_step(table.offsets))
            for width, table in by_width.items()
        }

    def slots(starts: np.ndarray, each: int) -> np.ndarray:
        return flat(starts[:, None] + each * np.arange(quota)).astype(np.int32)

    weights = replace(
        layer.weights, rows=flat(layer.weights.rows)[None], real=flat(layer.weights.real)[None]
    )
    whole = replace(
        layer,
        quota=len(entries),
        children=tables(layer.children),
        parents=tables(layer.parents),
        value_start=layer.value_start[:1],
        flow_start=layer.flow_start[:1],
        weights=weights,
        selection=of_step(layer.selection),
        selected_by=of_step(layer.selected_by),
    )
    mine = [(run, launch) for run in runs for launch in run.launches if launch.layer == n]
    in_launch = np.zeros(len(entries), np.int32)
    for run, launch in mine:
        first = launch.first + launch.stride * np.arange(run.repeats)
        in_launch[first[:, None] + np.arange(launch.count)] = np.arange(launch.count)
    return UnitList(
        layer=whole,
        value_slots=slots(layer.value_start, 1),
        flow_slots=slots(layer.flow_start, layer.num_elements),
        first_rows=layer.weights.rows[0],
        num_launches=sum(run.repeats for run, _ in mine),
        most=max(launch.count for _, launch in mine),
        in_launch=in_launch,
        shares_children=shares_children(layer),
    )


def shares_children(layer: SumLayer) -> bool:
    """Whether the elements of a step read most of their factors more than once. A fixed rule."""
    ((_, children),) = layer.children.items()
    read = np.sort(children.slots.reshape(layer.num_steps, -1), axis=1)  # 0, which is none, first
    distinct = np.diff(read, axis=1, prepend=0) > 0
    return bool(np.count_nonzero(read) > 2 * np.count_nonzero(distinct))  # Triton takes no numpy's
