"""RAT-SPNs: partitions, sharing, depth."""

import numpy as np
import pytest

from jaxjuice import StructureError, distributions
from jaxjuice.nodes import InputNodes, ProductNodes, SumNodes, is_structured_decomposable
from jaxjuice.structures import RAT_SPN

BINARY = {"input_dist": distributions.Bernoulli()}


@pytest.mark.parametrize("num_pieces", [2, 3])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_splits_are_nearly_even(num_pieces, depth):
    root = RAT_SPN(17, 3, depth, 2, num_pieces=num_pieces, **BINARY)
    splits = [ns for ns in root if isinstance(ns, ProductNodes) and isinstance(ns.chs[0], SumNodes)]
    assert splits
    for ns in splits:
        sizes = [len(child.scope) for child in ns.chs]
        assert len(sizes) == num_pieces and max(sizes) - min(sizes) <= 1
    leaves = [
        ns
        for ns in root
        if isinstance(ns, SumNodes)
        and not any(isinstance(c, SumNodes) for p in ns.chs for c in p.chs)
    ]
    smallest = 17 // num_pieces**depth
    assert all(
        len(ns.scope) < num_pieces or len(ns.scope) in (smallest, smallest + 1) for ns in leaves
    )


def test_repetitions_share_inputs_and_meet_in_the_root():
    root = RAT_SPN(9, 4, 2, 5, **BINARY)
    assert root.num_chs == 5 and root.num_nodes == 1
    assert len([ns for ns in root if isinstance(ns, InputNodes)]) == 9
    assert not is_structured_decomposable(root)
    assert is_structured_decomposable(RAT_SPN(9, 4, 2, 1, **BINARY))


def test_one_variable_has_one_product():
    root = RAT_SPN(1, 4, 2, 5, **BINARY)
    assert len(list(root)) == 2


@pytest.mark.parametrize(
    "options",
    [{"num_vars": 0}, {"depth": -1}, {"num_repetitions": 0}, {"num_pieces": 1}, {"depth": 1.5}],
)
def test_bad_options_are_refused(options):
    given = {"num_vars": 4, "num_latents": 2, "depth": 1, "num_repetitions": 1, **options}
    with pytest.raises(StructureError, match=next(iter(options))):
        RAT_SPN(**given, **BINARY)


def test_seeded_by_a_generator_that_moves_on():
    rng = np.random.default_rng(0)
    first, second = (
        [str(ns.scope) for ns in RAT_SPN(8, 2, 2, 1, seed=rng, **BINARY)] for _ in range(2)
    )
    assert first != second
