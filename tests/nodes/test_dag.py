"""Whole DAGs: order of iteration, depth, counts, structural properties."""

import time

import numpy as np
import pytest
import random_circuits

import jaxjuice as juice
from jaxjuice import StructureError, distributions
from jaxjuice.nodes import (
    check_decomposable,
    check_smooth,
    check_structured_decomposable,
    inputs,
    is_decomposable,
    is_smooth,
    is_structured_decomposable,
    multiply,
    structural_properties,
    summate,
)

BERNOULLI = distributions.Bernoulli()


def leaf(var, num_nodes=2):
    return inputs(var, num_nodes=num_nodes, dist=BERNOULLI)


def chain(length, num_nodes=2):
    first = leaf(length - 1, num_nodes)
    ns, step = first, None
    for var in range(length - 2, -1, -1):
        step = (
            summate(ns, num_nodes=num_nodes)
            if step is None
            else step.duplicate(ns, tie_params=True)
        )
        ns = multiply(first.duplicate(var, tie_params=True), step)
    return summate(ns, num_nodes=1)


@pytest.mark.parametrize("seed", range(10))
def test_post_order(seed):
    root = random_circuits.random_circuit(np.random.default_rng(seed), num_vars=5)
    order = list(root)
    assert len(order) == len(set(order))
    assert order[-1] is root
    place = {ns: index for index, ns in enumerate(order)}
    assert all(place[child] < place[ns] for ns in order for child in ns.chs)
    assert list(reversed(root)) == order[::-1]
    assert list(root) == order


def test_post_order_visits_children_from_left_to_right():
    a, b = leaf(0), leaf(1)
    product = multiply(a, b)
    root = summate(product, num_nodes=1)
    assert list(root) == [a, b, product, root]
    assert list(a) == [a]


def test_depth_of_twenty_thousand():
    start = time.perf_counter()
    root = chain(20_000)
    order = list(root)
    assert len(order) == 3 * 20_000 - 1
    assert order[-1] is root
    assert len(root.scope) == 20_000
    assert root.num_parameters(count_input_params=True) == 2 + 4 + 2
    assert is_smooth(root) and is_structured_decomposable(root)
    # Far less where nothing else runs; a quadratic algorithm would take minutes.
    assert time.perf_counter() - start < 60


def test_counts():
    a, b = leaf(0), leaf(1)
    root = summate(multiply(a, b, edge_ids=[[0, 1], [1, 1], [0, 0]]), num_nodes=1)
    assert root.num_edges() == 3 * 2 + 3
    assert root.num_parameters() == 3
    assert root.num_parameters(count_input_params=True) == 3 + 4
    assert root.num_parameters(recursive=False) == 3
    assert a.num_parameters(count_input_params=True, recursive=False) == 2
    tied = root.duplicate(tie_params=True)
    assert tied.num_parameters(recursive=False) == 0
    # The source holds the parameters, though it is not under the copy.
    assert tied.num_parameters() == 3


def test_vectors_are_compared_by_identity():
    a, b = leaf(0), leaf(0)
    assert a != b
    assert len({a, b, a}) == 2


def test_properties_of_a_tree():
    root = chain(5)
    assert is_smooth(root) and is_decomposable(root) and is_structured_decomposable(root)
    check_smooth(root)
    check_decomposable(root)
    check_structured_decomposable(root)


def test_products_that_split_differently_are_not_structured():
    a, b, c = leaf(0), leaf(1), leaf(2)
    ab = summate(multiply(a, b), num_nodes=2)
    bc = summate(multiply(b, c), num_nodes=2)
    root = summate(multiply(ab, c), multiply(a, bc), num_nodes=1)
    assert is_smooth(root) and is_decomposable(root) and not is_structured_decomposable(root)
    check_decomposable(root)
    with pytest.raises(StructureError) as error:
        check_structured_decomposable(root)
    first, second = root.chs
    assert f"{first!r} into {{0, 1}}, {{2}}, and {second!r} into {{0}}, {{1, 2}}" in str(
        error.value
    )
    alike = summate(
        multiply(ab, c),
        multiply(c, ab),
        multiply(summate(multiply(ab, c), num_nodes=2)),
        num_nodes=1,
    )
    assert is_structured_decomposable(alike)


def test_properties_of_other_circuits():
    a, b = leaf(0), leaf(1)
    with structural_properties(allow_nonsmooth=True, allow_nondecomposable=True):
        nonsmooth = summate(a, b, num_nodes=2)
        nondecomposable = summate(multiply(a, nonsmooth), num_nodes=1)
    assert not is_smooth(nonsmooth) and is_decomposable(nonsmooth)
    assert not is_decomposable(nondecomposable)
    assert not is_structured_decomposable(nondecomposable)
    assert list(nondecomposable.scope) == [0, 1]
    with pytest.raises(StructureError) as error:
        check_smooth(nonsmooth)
    assert all(repr(ns) in str(error.value) for ns in (nonsmooth, a, b))
    product = nondecomposable.chs[0]
    for call, check in (
        ("check_decomposable", check_decomposable),
        ("check_structured_decomposable", check_structured_decomposable),
    ):
        with pytest.raises(StructureError, match=rf"^{call}\(root\): .* variables {{0}}") as error:
            check(nondecomposable)
        assert all(repr(ns) in str(error.value) for ns in (product, a, nonsmooth))


@pytest.mark.parametrize("name", ["smooth", "decomposable", "structured_decomposable"])
def test_properties_are_public(name):
    assert getattr(juice, f"is_{name}") is getattr(juice.nodes, f"is_{name}")
    assert getattr(juice, f"check_{name}") is getattr(juice.nodes, f"check_{name}")


def test_representation_names_size_and_scope():
    root = chain(3)
    assert repr(root) == "SumNodes(num_nodes=1, block_size=1, num_chs=1, scope={0..2})"
    assert "tied" in repr([ns for ns in root if ns.is_tied][0])
