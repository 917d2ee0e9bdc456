"""Scaled circuits against effective weights written out for every sample, in float64."""

import numpy as np
import pytest
from scaled_cases import RANKS, STRUCTURES, check, random_case, random_tensors, scaled_vectors

import jaxjuice as juice
from jaxjuice.nodes import SumNodes
from jaxjuice.parameterizations import BlockScale, LowRank

# Of 120, those with few layers (they compile fast) that have everything between them.
SEEDS = (0, 2, 3, 5, 12, 17, 29, 38, 51, 57, 67, 70, 74, 89, 91, 107, 113)
KINDS = {
    "tied HMM": (LowRank(5), LowRank(16, "sum_exp")),
    "HMM with one scale": (
        LowRank(5, tie_external=True),
        LowRank(2, "sum_exp", tie_external=True),
        BlockScale(2, 1, tie_external=True),
    ),
    "HMM": (LowRank(64, "sum_exp"), BlockScale(1, 1)),
    "HCLT": (LowRank(2), BlockScale(2, 1)),
    "PD": (LowRank(16),),
    "tied PD": (LowRank(1, "sum_exp", tie_external=True), BlockScale(1, tie_external=True)),
    "RAT-SPN": (LowRank(64), LowRank(5, "sum_exp"), BlockScale(1, 2)),
    "PDHCLT": (LowRank(2, "sum_exp"),),
    "padded tree": (LowRank(5), LowRank(2, "sum_exp")),
}
PARTLY = ("HMM", "tied HMM", "padded tree")
CASES = [(name, kind) for name, kinds in KINDS.items() for kind in kinds]


def test_the_circuits_hold_what_they_should() -> None:
    circuits = [random_case(seed)[0] for seed in SEEDS]
    circuits += [STRUCTURES[name](kind) for name, kind in CASES]
    assert len(circuits) >= 30
    vectors = [[ns for ns in root if isinstance(ns, SumNodes)] for root in circuits]
    scaled = [[ns for ns in sums if ns.parameterization is not None] for sums in vectors]

    def count(circuits, holds) -> int:
        return sum(any(holds(ns, ns.parameterization) for ns in sums) for sums in circuits)

    for form in ("exp_sum", "sum_exp"):
        for rank in RANKS:
            want = form, rank
            assert count(
                scaled,
                lambda _, kind, want=want: (
                    isinstance(kind, LowRank) and (kind.form, kind.rank) == want
                ),
            ), want
    assert count(scaled, lambda _, kind: isinstance(kind, BlockScale)) >= 5
    assert count(vectors, lambda _, kind: kind is None) >= 15
    assert count(scaled, lambda ns, kind: ns.is_tied and kind.tie_external) >= 3
    assert count(scaled, lambda ns, kind: ns.is_tied and not kind.tie_external) >= 3
    assert count(scaled, lambda _, kind: not kind.apply_z_correction) >= 3
    layers = [
        layer
        for root in circuits
        for stage in juice.compile(root).program.stages
        for layer in stage
        if layer.scaled is not None
    ]
    assert any(layer.shares_elements for layer in layers)
    assert any(layer.num_blocks > 1 and not layer.shares_elements for layer in layers)
    assert any(layer.num_steps > 2 and layer.weights.kind == "fixed" for layer in layers)
    assert any((layer.scaled.vector < 0).any() for layer in layers), "padded units"


@pytest.mark.parametrize("seed", SEEDS)
def test_random_circuits(seed: int) -> None:
    root, x, missing = random_case(seed)
    rng = np.random.default_rng(seed)
    tensors = random_tensors(rng, root, len(x))
    if seed % 2 and len(tensors) > 1:  # a vector that is left out is a plain sum
        tensors.pop(next(iter(tensors)))
    check(root, x, missing, tensors, seed=seed)


@pytest.mark.parametrize(("name", "kind"), CASES, ids=str)
def test_structures(name: str, kind) -> None:
    root = STRUCTURES[name](kind)
    assert scaled_vectors(root)
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2, (4, max(root.scope) + 1))
    tensors = random_tensors(rng, root, len(x))
    if name in PARTLY:  # every third vector is a plain sum, in layers with others that are scaled
        for ns in list(tensors)[::3]:
            del tensors[ns]
    check(root, x, None, tensors)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("tied HMM", LowRank(16)),
        ("tied HMM", LowRank(64, "sum_exp")),
        ("HCLT", BlockScale(2, 1)),
        ("RAT-SPN", LowRank(5, "sum_exp")),
    ],
    ids=str,
)
def test_in_float32(name: str, kind) -> None:
    root = STRUCTURES[name](kind)
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2, (4, max(root.scope) + 1))
    check(root, x, None, random_tensors(rng, root, len(x)), dtype="float32", tolerance=1e-5)
