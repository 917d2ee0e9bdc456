"""Scheduling: from a dependency graph of units to stages, runs of equal steps.

Compile time grows with the number of distinct step shapes, run time with padded work and with the
number of steps. A *step* runs up to `quota[c]` units of every class c at once (units of one class
have one shape); a *stage* is a run of steps with equal quotas, one `lax.scan` later. The levels of
the graph are cut into segments by dynamic programming over estimated costs, then every segment is
list-scheduled.

Classes of one *family* differ in how much their units read, and may share the places of a step.
Those that read most come first: a place costs what the most expensive unit costs that it ever has.
"""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from operator import itemgetter

import numpy as np

# The three prices, relative to the work of the circuit itself (1.0).
_BODY = 0.04  # a distinct step shape: about a second of XLA's compile time
_STEP = 0.002  # a class in a step: some kernel launches
_UNEVEN = 0.05  # quotas that leave a GPU partly idle, see `schedule`
_MAX_PADDING = 1.25  # work with padded units over work, beyond which a plan is hardly ever taken
_MAX_SPAN = 48  # runs of levels that one segment may span when there are very many


@dataclass(frozen=True)
class Stage:
    """`steps[r][c]`: the units that step r runs of class c, or c's family, at most `quota[c]`."""

    quota: dict[int, int]
    steps: list[dict[int, list[int]]]


def schedule(
    classes: Sequence[int],
    dependencies: Sequence[Sequence[int]],
    work: Sequence[float],
    families: Sequence[int] | None = None,
    grains: Sequence[int] | None = None,
) -> list[Stage]:
    """Cuts a DAG of units into stages.

    Args:
        classes: the class of every unit; units of one class may share a step's batched product.
        dependencies: for every unit, the units that must have run in an earlier step.
        work: the cost of one unit of every class, in any unit.
        families: for every class, one that stands for its family; None where each has its own.
        grains: for every class, how many units are run at a time: multiples of it are the better
            quotas. None where it makes no difference.

    Returns:
        The stages in order; every unit is in exactly one step, after its dependencies.
    """
    if not classes:
        return []
    families = range(len(work)) if families is None else families
    grains = (1,) * len(work) if grains is None else grains
    levels = _levels(dependencies)
    heights = _heights(dependencies)
    members: list[list[int]] = [[] for _ in range(max(levels) + 1)]
    for unit, level in enumerate(levels):
        members[level].append(unit)
    counts = np.zeros((len(members), len(work)), np.int64)
    np.add.at(counts, (levels, classes), 1)
    prices = np.asarray(work, float)
    runs = _equal_runs(counts)
    stages = []
    for first, last in _segments(counts, runs, prices, float((counts @ prices).sum())):
        low, high = runs[first][0], runs[last][1]
        if first == last:
            steps = [_by_class(members[level], classes) for level in range(low, high)]
            stages.append(_joined(steps, families))
        else:
            units = [unit for level in members[low:high] for unit in level]
            graph = _Graph(classes, dependencies, heights, families, grains)
            stages.append(_list_stage(units, graph, prices, counts[low:high]))
    return stages


def _joined(steps: Sequence[dict[int, list[int]]], families: Sequence[int]) -> Stage:
    """Steps by class as a stage of steps by family."""
    joined = []
    for step in steps:
        by_family: dict[int, list[int]] = defaultdict(list)
        for c, units in step.items():
            by_family[families[c]] += units
        joined.append(dict(by_family))
    every = sorted({family for step in joined for family in step})
    return Stage({f: max(len(step.get(f, ())) for step in joined) for f in every}, joined)


def _levels(dependencies: Sequence[Sequence[int]]) -> list[int]:
    levels: list[int] = []
    for needed in dependencies:  # children come before parents
        levels.append(1 + max((levels[unit] for unit in needed), default=-1))
    return levels


def _heights(dependencies: Sequence[Sequence[int]]) -> list[int]:
    """The longest path from every unit to the end."""
    heights = [0] * len(dependencies)
    for unit in reversed(range(len(dependencies))):
        for needed in dependencies[unit]:
            heights[needed] = max(heights[needed], heights[unit] + 1)
    return heights


def _equal_runs(counts: np.ndarray) -> list[tuple[int, int]]:
    """Maximal runs `[first level, last level + 1)` of levels with equal counts."""
    changes = 1 + np.flatnonzero((np.diff(counts, axis=0) != 0).any(axis=1))
    bounds = [0, *changes.tolist(), len(counts)]
    return list(zip(bounds[:-1], bounds[1:], strict=True))


def _segments(counts: np.ndarray, runs, work: np.ndarray, total: float) -> list[tuple[int, int]]:
    """The cheapest cut of the runs into segments `(first run, last run)`."""
    best = [0.0] + [np.inf] * len(runs)
    cut = [0] * (len(runs) + 1)
    many = len(runs) > 2 * _MAX_SPAN
    span, factors = (_MAX_SPAN, (1, 1.5)) if many else (len(runs), (1, 1.3, 2, 4))
    left = np.cumsum(counts[::-1], axis=0)[::-1]
    left = np.concatenate([left, np.zeros_like(left[:1])])
    for stop in range(1, len(runs) + 1):
        for start in range(max(0, stop - span), stop):
            low, high = runs[start][0], runs[stop - 1][1]
            if stop - start == 1:
                real = float(counts[low] @ work) * (high - low)
                bodies = np.count_nonzero(counts[low])
                cost = real / total + (_BODY + _STEP * (high - low)) * bodies
            else:
                cost = _list_cost(left[low:high] - left[high], work, total, factors)
            if best[start] + cost < best[stop]:
                best[stop], cut[stop] = best[start] + cost, start
    segments, stop = [], len(runs)
    while stop:
        segments.append((cut[stop], stop - 1))
        stop = cut[stop]
    return segments[::-1]


def _quotas(left: np.ndarray, steps: int) -> np.ndarray:
    """The smallest quotas with which `steps` steps can do: level l cannot start before step l.

    `left` `[levels, classes]`: the units of every class in level l or above.
    """
    return np.ceil(left / (steps - np.arange(len(left)))[:, None]).max(axis=0).astype(int)


def _step_candidates(left: np.ndarray, factors=(1, 1.1, 1.3, 1.6, 2, 3, 5)) -> list[int]:
    depth = len(left)
    most = max(depth + 1, int(left[0].sum()))
    return sorted({min(most, int(np.ceil(depth * factor))) for factor in factors})


def _price(padded: float, real: float, bodies: int, steps: int, total: float) -> float:
    excess = max(0.0, padded / real - _MAX_PADDING) if real else 0.0
    return padded / total + (_BODY + _STEP * steps) * bodies + 4 * excess * real / total


def _list_cost(left: np.ndarray, work: np.ndarray, total: float, factors) -> float:
    real = float(left[0] @ work)
    bodies = int(np.count_nonzero(left[0]))
    return min(
        _price(steps * float(_quotas(left, steps) @ work), real, bodies, steps, total)
        for steps in _step_candidates(left, factors)
    )


@dataclass(frozen=True)
class _Graph:
    """See `schedule`, and `_heights`."""

    classes: Sequence[int]
    dependencies: Sequence[Sequence[int]]
    heights: Sequence[int]
    families: Sequence[int]
    grains: Sequence[int]


def _list_stage(units: Sequence[int], graph: _Graph, work: np.ndarray, counts: np.ndarray) -> Stage:
    """The cheapest of several schedules of a segment, with places for classes or for families."""
    real = float(counts.sum(0) @ work)
    found: list[tuple[float, Stage]] = []

    def attempt(families: Sequence[int], quota: dict[int, int]) -> float:
        steps = _list_schedule(units, graph, families, quota)
        stage = _joined(steps, graph.families)
        padded = _padded_work(stage, graph, work)
        # Prices are relative to this segment here: only the choice of its quotas is open.
        price = _price(padded, real, len(stage.quota), len(steps), real)
        even = all(_whole(n, graph.grains[f]) == n for f, n in stage.quota.items())
        found.append((price + (0.0 if even else _UNEVEN), stage))
        return price

    apart = tuple(range(len(work)))
    for families in sorted({apart, tuple(graph.families)}):
        by_family = np.zeros_like(counts)
        np.add.at(by_family.T, np.asarray(families), counts.T)
        left = np.cumsum(by_family[::-1], axis=0)[::-1]
        tried = []
        for steps in _step_candidates(left):
            quotas = np.minimum(np.maximum(_quotas(left, steps), 1), left[0])
            quota = {c: int(n) for c, n in enumerate(quotas) if n}
            tried.append((attempt(families, quota), quota))
        best = min(tried, key=itemgetter(0))[1]
        for more in (0, 1):
            even = {c: _whole(n, graph.grains[c], more) for c, n in best.items()}
            if even != best:
                attempt(families, even)
    return min(found, key=itemgetter(0))[1]


def _whole(quota: int, grain: int, more: int = 0) -> int:
    """The multiple of `grain` below a quota, or with `more` the one above; small ones stay."""
    if quota < grain or quota % grain == 0:
        return quota
    return (quota // grain + more) * grain


def _padded_work(stage: Stage, graph: _Graph, work: np.ndarray) -> float:
    """What the places of all steps cost."""
    total = 0.0
    for family in stage.quota:
        costs = [
            sorted((work[graph.classes[unit]] for unit in step.get(family, ())), reverse=True)
            for step in stage.steps
        ]
        total += sum(map(max, zip_longest(*costs, fillvalue=0.0)))
    return len(stage.steps) * total


def _list_schedule(
    units: Sequence[int], graph: _Graph, families: Sequence[int], quota: dict[int, int]
) -> list[dict[int, list[int]]]:
    """Greedy: every step takes the ready units with the longest way to go, up to the quotas.

    Quotas and steps are by `families`.
    """
    dependencies, heights = graph.dependencies, graph.heights
    here = set(units)
    classes = {unit: families[graph.classes[unit]] for unit in units}
    missing = {unit: sum(needed in here for needed in dependencies[unit]) for unit in units}
    parents: dict[int, list[int]] = defaultdict(list)
    for unit in units:
        for needed in dependencies[unit]:
            if needed in here:
                parents[needed].append(unit)
    ready: dict[int, list[tuple[int, int]]] = {c: [] for c in quota}
    for unit in units:
        if not missing[unit]:
            heapq.heappush(ready[classes[unit]], (-heights[unit], unit))
    steps = []
    while any(ready.values()):
        step = {
            c: [heapq.heappop(heap)[1] for _ in range(min(quota[c], len(heap)))]
            for c, heap in ready.items()
        }
        steps.append(step)
        for unit in [unit for taken in step.values() for unit in taken]:
            for parent in parents[unit]:
                missing[parent] -= 1
                if not missing[parent]:
                    heapq.heappush(ready[classes[parent]], (-heights[parent], parent))
    return steps


def _by_class(units, classes) -> dict[int, list[int]]:
    step: dict[int, list[int]] = defaultdict(list)
    for unit in units:
        step[classes[unit]].append(unit)
    return dict(step)
