"""Schedules: every unit once and after what it needs, within quotas, without much padding."""

from itertools import pairwise

import numpy as np
import pytest

from jaxjuice.compiler._schedule import schedule


def random_dag(seed, num_units=300, num_classes=3):
    rng = np.random.default_rng(seed)
    dependencies = [
        sorted({int(unit) for unit in rng.integers(max(0, i - 40), i, rng.integers(0, 4))})
        if i
        else []
        for i in range(num_units)
    ]
    classes = rng.integers(0, num_classes, num_units).tolist()
    return classes, dependencies, (1.0 + 9.0 * rng.random(num_classes)).tolist()


def random_tree(seed, num_leaves):
    """Pairs of nodes are joined at random until one is left: units are the inner nodes."""
    rng = np.random.default_rng(seed)
    nodes: list[int | None] = [None] * num_leaves
    dependencies: list[list[int]] = []
    while len(nodes) > 1:
        pair = [nodes.pop(int(rng.integers(len(nodes)))) for _ in range(2)]
        nodes.append(len(dependencies))
        dependencies.append(sorted(unit for unit in pair if unit is not None))
    return [0] * len(dependencies), dependencies, [1.0]


def balanced_tree(depth):
    dependencies: list[list[int]] = [[] for _ in range(2**depth)]
    below = list(range(2**depth))
    while len(below) > 1:
        above = []
        for pair in zip(below[::2], below[1::2], strict=True):
            above.append(len(dependencies))
            dependencies.append(list(pair))
        below = above
    return [0] * len(dependencies), dependencies, [1.0]


def check(stages, classes, dependencies):
    """Every unit once, in its class, in a later step than what it needs, within the quota."""
    time = {}
    now = 0
    for stage in stages:
        assert all(quota >= 1 for quota in stage.quota.values())
        for step in stage.steps:
            for c, units in step.items():
                assert len(units) <= stage.quota.get(c, 0)
                for unit in units:
                    assert classes[unit] == c and unit not in time
                    time[unit] = now
            now += 1
    assert sorted(time) == list(range(len(classes)))
    for unit, needed in enumerate(dependencies):
        assert all(time[other] < time[unit] for other in needed)


def padding(stages, classes, work):
    padded = sum(
        len(stage.steps) * sum(n * work[c] for c, n in stage.quota.items()) for stage in stages
    )
    return padded / sum(work[c] for c in classes)


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs(seed):
    classes, dependencies, work = random_dag(seed)
    check(schedule(classes, dependencies, work), classes, dependencies)


def test_nothing_and_one_unit():
    assert schedule([], [], []) == []
    (stage,) = schedule([0], [[]], [1.0])
    assert stage.quota == {0: 1} and stage.steps == [{0: [0]}]


def test_a_chain_of_equal_levels_is_one_stage():
    """Two units of class 0 and one of class 1 in every level."""
    length = 10_000
    classes = [0, 0, 1] * length
    dependencies = [[]] * 3 + [
        list(range(3 * i - 3, 3 * i)) for i in range(1, length) for _ in "abc"
    ]
    (stage,) = schedule(classes, dependencies, [1.0, 2.0])
    assert stage.quota == {0: 2, 1: 1} and len(stage.steps) == length
    check([stage], classes, dependencies)


def test_a_wide_head_does_not_pad_a_long_chain():
    """A hundred units below a chain of a thousand: the chain's steps do not carry their places."""
    dependencies = [[] for _ in range(100)]
    dependencies.append(list(range(100)))
    dependencies += [[unit] for unit in range(100, 1099)]
    classes = [0] * len(dependencies)
    stages = schedule(classes, dependencies, [1.0])
    check(stages, classes, dependencies)
    assert padding(stages, classes, [1.0]) <= 1.25
    assert len(stages) <= 3


TREES = {
    **{f"random tree of {n} leaves": (random_tree, (n, n)) for n in (20, 200, 1000)},
    **{f"balanced tree of depth {n}": (balanced_tree, (n,)) for n in (4, 7, 10)},
}


@pytest.mark.parametrize("name", TREES)
def test_trees_take_few_stages_and_little_padding(name):
    build, arguments = TREES[name]
    classes, dependencies, work = build(*arguments)
    stages = schedule(classes, dependencies, work)
    check(stages, classes, dependencies)
    assert padding(stages, classes, work) <= 1.25
    levels = [0] * len(classes)
    for unit, needed in enumerate(dependencies):
        levels[unit] = 1 + max((levels[other] for other in needed), default=0)
    assert len(stages) <= max(levels)
    if max(levels) > 8:
        assert len(stages) < max(levels) - 2


def test_stages_of_equal_quotas_are_not_cut():
    classes, dependencies, work = balanced_tree(6)
    stages = schedule(classes, dependencies, work)
    assert all(a.quota != b.quota for a, b in pairwise(stages))


def test_schedules_are_reproducible():
    graph = random_dag(1)
    assert schedule(*graph) == schedule(*graph)


@pytest.mark.parametrize("seed", range(4))
def test_classes_of_a_family_share_places(seed):
    _, dependencies, _ = random_tree(seed, 300)
    # One in ten reads more.
    classes = (np.random.default_rng(seed).random(len(dependencies)) < 0.1).astype(int).tolist()
    work = [1.0, 1.3]
    stages = schedule(classes, dependencies, work, [0, 0])
    check(stages, [0] * len(classes), dependencies)
    apart = schedule(classes, dependencies, work)
    check(apart, classes, dependencies)
    assert sum(len(stage.quota) for stage in stages) < sum(len(stage.quota) for stage in apart)


def test_quotas_are_multiples_of_what_runs_at_a_time():
    classes, dependencies, work = random_tree(0, 456)
    stages = schedule(classes, dependencies, work, grains=[4])
    check(stages, classes, dependencies)
    assert padding(stages, classes, work) <= 1.25
    widest = max(stages, key=lambda stage: stage.quota[0] * len(stage.steps))
    assert widest.quota[0] % 4 == 0
    plain = max(schedule(classes, dependencies, work), key=lambda stage: len(stage.steps))
    assert plain.quota[0] % 4, "or this test shows nothing"
