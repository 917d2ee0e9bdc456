"""Which units fused passes run at a time."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest

import jaxjuice as juice
from jaxjuice.compiler import SumLayer
from jaxjuice.nodes import CircuitNodes
from jaxjuice.passes import _launches, is_fusable
from jaxjuice.passes._launches import LaunchedStage, launch_stage
from tests.circuit.test_against_oracle import random_case
from tests.fused import STRUCTURES

Categorical = juice.distributions.Categorical


def wide_rat_spn() -> CircuitNodes:
    return juice.structures.RAT_SPN(64, 4, 5, 10, input_dist=Categorical(2))


def wide_pd() -> CircuitNodes:
    return juice.structures.PD(
        (10, 10), 4, split_intervals=2, max_prod_block_conns=2, block_size=2,
        input_dist=Categorical(2),
    )  # fmt: skip


MANY_STEPS = {"RAT-SPN of 10 repetitions": wide_rat_spn, "PD 10 x 10": wide_pd}
SEEDS = (3, 4, 9, 16, 27, 37)


def stages_of(name: str | int) -> tuple[tuple[SumLayer, ...], ...]:
    if isinstance(name, int):
        program = juice.compile(random_case(name)[0]).program
        return program.stages if is_fusable(program) else ()
    return juice.compile((STRUCTURES | MANY_STEPS)[name]()).program.stages


def launched(stage: LaunchedStage) -> list[tuple[int, np.ndarray]]:
    """Layers and units in the order in which they run."""
    return [
        (each.layer, each.first + repeat * each.stride + np.arange(each.count))
        for run in stage.runs
        for repeat in range(run.repeats)
        for each in run.launches
    ]


def real_units(layer: SumLayer) -> list[tuple[int, ...]]:
    """Row of parameters and slots of the first step's units and all others, in order."""
    found = []
    for r, start in enumerate(layer.value_start):
        for u in np.flatnonzero(layer.weights.real[r]):
            flow = layer.flow_start[r] + u * layer.num_elements
            found.append((int(layer.weights.rows[r, u]), int(start + u), int(flow)))
    return found


@pytest.mark.parametrize("most", [None, 0, 2, 7])
@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("name", [*STRUCTURES, *MANY_STEPS, *SEEDS])
def test_every_unit_runs_once_and_after_what_it_reads(
    name: str | int, joins: bool, most: int | None
) -> None:
    for stage in stages_of(name):
        plan = launch_stage(stage, joins, [most] * len(stage))
        runs = launched(plan)
        assert all(most is None or len(units) <= max(1, most) for _, units in runs)
        for n, (layer, units) in enumerate(zip(stage, plan.lists, strict=True)):
            order = np.concatenate([u for m, u in runs if m == n])
            assert (order == np.arange(units.layer.quota)).all()
            weights = units.layer.weights
            real = np.flatnonzero(weights.real[0])
            rows = zip(
                weights.rows[0, real], units.value_slots[real], units.flow_slots[real], strict=True
            )
            assert [tuple(map(int, row)) for row in rows] == real_units(layer)
            now = [units.in_launch[u] for m, u in runs if m == n]
            assert all((place == np.arange(len(place))).all() for place in now)
            assert units.num_launches == len(now) and units.most == max(map(len, now))
        check_order(plan, runs)


def check_order(plan: LaunchedStage, runs: Sequence[tuple[int, np.ndarray]]) -> None:
    written: dict[tuple[int, int], int] = {}
    for at, (n, units) in enumerate(runs):
        layer = plan.lists[n].layer
        real = units[layer.weights.real[0, units]]
        for slot in plan.lists[n].value_slots[real]:
            assert (layer.num_nodes, int(slot)) not in written
            written[layer.num_nodes, int(slot)] = at
    for at, (n, units) in enumerate(runs):
        layer = plan.lists[n].layer
        for width, table in layer.children.items():
            for slot in np.unique(table.slots[0, units[layer.weights.real[0, units]]]):
                assert written.get((width, int(slot)), -1) < at


def test_steps_that_do_not_read_one_another_are_joined() -> None:
    stage, _ = stages_of("RAT-SPN of 10 repetitions")
    apart, joined = (launch_stage(stage, joins, [None]) for joins in (False, True))
    assert len(launched(apart)) == stage[0].num_steps > 8
    assert len(launched(joined)) <= stage[0].num_steps / 2


def test_a_chain_is_left_as_it_is() -> None:
    (stage, *_) = stages_of("tied HMM")
    plan = launch_stage(stage, True, [None])
    assert len(launched(plan)) == stage[0].num_steps
    assert [run.repeats for run in plan.runs] == [stage[0].num_steps]


@pytest.mark.parametrize("seed", range(30))
def test_no_other_choice_of_joined_steps_costs_less(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.choice([1, 1, 1, 2, 3, 6, 10], rng.integers(2, 9))
    ends = np.cumsum(sizes)
    groups = list(zip((ends - sizes).tolist(), ends.tolist(), strict=True))
    limit = int(rng.choice([2, 4, 100]))

    def pieces(low: int, high: int) -> int:
        return -(-(high - low) // limit)

    def cost(parts: Sequence[tuple[int, int, bool]]) -> int:
        total = 0
        for low, high, joined in parts:
            number = pieces(low, high) if joined else high - low
            if joined and number > 1:
                copies = _launches._copies(number - 1) + 1
            else:
                copies = _launches._copies(number)
            total += number + _launches._COPY * copies
        return total

    def parts_of(joined: Sequence[tuple[int, int]]) -> list[tuple[int, int, bool]]:
        found, at = [], 0
        for low, high in joined:
            found += [(at, low, False)] * (low > at) + [(low, high, True)]
            at = high
        return found + [(at, groups[-1][1], False)] * (groups[-1][1] > at)

    found = _launches._join(groups, pieces)
    assert [low for low, *_ in found] == [0, *(high for _, high, _ in found[:-1])]
    assert found[-1][1] == groups[-1][1]
    many = [group for group in groups if group[1] - group[0] > 1]
    every = [cost(parts_of(c)) for n in range(len(many) + 1) for c in combinations(many, n)]
    assert cost(found) == min(every)
