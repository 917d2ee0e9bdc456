"""Poon-Domingos circuits: which boxes there are, how deep, how they are connected and tied."""

import numpy as np
import pytest

from jaxjuice import DataError, StructureError, distributions
from jaxjuice.nodes import InputNodes, ProductNodes, SumNodes, inputs, multiply, summate
from jaxjuice.structures import PD, PDHCLT

BINARY = {"input_dist": distributions.Bernoulli()}


def scopes(root):
    return {tuple(ns.scope) for ns in root if isinstance(ns, SumNodes)}


def longest_chain_of_splits(root):
    """The most products of two sums on a path from the root down."""
    depth = {}
    for ns in root:
        below = max((depth[child] for child in ns.chs), default=0)
        is_split = isinstance(ns, ProductNodes) and ns.num_chs == 2
        is_split = is_split and isinstance(ns.chs[0], SumNodes)
        depth[ns] = below + is_split
    return depth[root]


def test_variables_are_numbered_in_row_major_order():
    root = PD((2, 3), 2, split_points=[[1], []], **BINARY)
    assert scopes(root) == {(0, 1, 2), (3, 4, 5), (0, 1, 2, 3, 4, 5)}
    root = PD((2, 3), 2, split_points=[[], [1]], **BINARY)
    assert scopes(root) == {(0, 3), (1, 2, 4, 5), (0, 1, 2, 3, 4, 5)}


def test_all_boxes_of_all_splits():
    root = PD((4,), 2, split_intervals=1, **BINARY)
    wanted = {tuple(range(a, b)) for a in range(4) for b in range(a + 1, 5)}
    assert scopes(root) == wanted
    products = [
        tuple(ns.chs[0].scope) + tuple(ns.chs[1].scope)
        for ns in root
        if isinstance(ns, ProductNodes)
    ]
    # Each box of n variables is cut at n - 1 places, and every half is one vector.
    assert len(products) == sum(len(scope) - 1 for scope in wanted)
    assert len([ns for ns in root if isinstance(ns, SumNodes)]) == len(wanted)


def test_intervals_are_points():
    by_interval = PD((6, 5), 2, split_intervals=(2, 3), **BINARY)
    by_points = PD((6, 5), 2, split_points=[[2, 4], [3]], **BINARY)
    unordered = PD((6, 5), 2, split_points=[[4, 2, 2], np.array([3])], **BINARY)
    assert [repr(ns) for ns in by_interval] == [repr(ns) for ns in by_points]
    assert [repr(ns) for ns in by_interval] == [repr(ns) for ns in unordered]


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 5])
def test_max_split_depth_bounds_every_path(depth):
    root = PD((6,), 2, split_intervals=1, max_split_depth=depth, **BINARY)
    assert longest_chain_of_splits(root) == min(depth, 5)
    counts = len(list(root))
    unlimited = len(list(PD((6,), 2, split_intervals=1, **BINARY)))
    assert (counts == unlimited) == (depth == 5)


def test_a_generous_depth_changes_nothing():
    limited = PD((3, 4), 2, split_intervals=1, max_split_depth=5, **BINARY)
    unlimited = PD((3, 4), 2, split_intervals=1, **BINARY)
    assert [repr(ns) for ns in limited] == [repr(ns) for ns in unlimited]


def test_leaves_are_block_diagonal_sums_over_products():
    root = PD((2, 2), 6, split_points=[[1], []], block_size=2, **BINARY)
    leaves = [ns for ns in root if isinstance(ns, SumNodes) and ns is not root]
    for ns in leaves:
        np.testing.assert_array_equal(ns.edge_ids, [[0, 1, 2], [0, 1, 2]])
        (product,) = ns.chs
        assert all(isinstance(child, InputNodes) for child in product.chs)


@pytest.mark.parametrize("max_conns", [1, 2, 3])
def test_blocks_are_connected_with_whole_random_products(max_conns):
    root = PD((5,), 8, split_intervals=1, max_prod_block_conns=max_conns, block_size=2, **BINARY)
    for ns in root:
        if isinstance(ns, SumNodes) and ns is not root and len(ns.scope) > 1:
            num_splits = len(ns.scope) - 1
            wanted = min(num_splits, max_conns)
            matrix = np.zeros((4, ns.num_chs, 4), bool)
            matrix[ns.edge_ids[0], ns.edge_ids[1] // 4, ns.edge_ids[1] % 4] = True
            assert (matrix.all(axis=2) == matrix.any(axis=2)).all()
            assert (matrix[:, :, 0].sum(axis=1) == wanted).all()
            # No product without a parent.
            assert matrix.any(axis=(0, 2)).all()
    assert root.num_chs == 4


def test_random_connections_follow_the_seed():
    def edges(seed):
        root = PD(
            (6,), 8, split_intervals=1, max_prod_block_conns=2, block_size=2, seed=seed, **BINARY
        )
        return [ns.edge_ids.tolist() for ns in root if isinstance(ns, SumNodes)]

    assert edges(1) == edges(1)
    assert edges(1) != edges(2)


def test_product_dominated_copies_are_not_shared():
    shared = PD((4,), 2, split_intervals=1, **BINARY)
    own = PD((4,), 2, split_intervals=1, structure_type="prod_dominated", **BINARY)
    parents = {}
    for ns in own:
        for child in ns.chs:
            parents[child] = parents.get(child, 0) + 1
    assert all(count == 1 for ns, count in parents.items() if isinstance(ns, SumNodes))
    assert own.num_parameters() > shared.num_parameters()
    assert scopes(own) == scopes(shared)


def test_homogeneous_parameters_are_tied_by_shape():
    root = PD((4,), 3, split_intervals=1, tie_homogeneous_params=True, **BINARY)
    sources = {}
    for ns in root:
        if isinstance(ns, SumNodes) and ns is not root:
            sources.setdefault(len(ns.scope), set()).add(ns.get_source())
    assert {length: len(found) for length, found in sources.items()} == {1: 1, 2: 1, 3: 1}
    untied = PD((4,), 3, split_intervals=1, **BINARY)
    assert scopes(root) == scopes(untied)
    # Leaves, pairs, triples (two splits) and the root (three).
    assert root.num_parameters() == 9 + 9 + 18 + 9
    assert not any(ns.is_tied for ns in root if isinstance(ns, InputNodes))


def test_default_block_size():
    def block_size(num_latents):
        return next(iter(PD((2,), num_latents, split_intervals=1, **BINARY))).block_size

    sizes = {8: 8, 16: 16, 32: 16, 64: 32, 256: 32, 12: 12, 50: 25, 7: 7, 37: 37, 1: 1}
    assert {n: block_size(n) for n in sizes} == sizes


def test_own_leaves():
    dist = distributions.Bernoulli()
    calls = []

    def leaf(scope, num_latents, block_size):
        calls.append(tuple(scope))
        vectors = [
            inputs(v, dist=dist, num_nodes=num_latents, block_size=block_size) for v in scope
        ]
        if len(vectors) == 1:
            return vectors[0]
        return (
            multiply(*vectors)
            if len(vectors) == 2
            else summate(multiply(*vectors), num_nodes=num_latents, block_size=block_size)
        )

    root = PD((1, 6), 4, split_points=[[], [1, 3]], input_ns_fn=leaf)
    assert sorted(calls) == [(0,), (1, 2), (3, 4, 5)]
    assert list(root.scope) == list(range(6))
    with pytest.raises(StructureError, match="input_ns_fn"):
        PD(
            (4,),
            4,
            split_intervals=2,
            input_ns_fn=lambda s, n, b: inputs(0, dist=dist, num_nodes=n),
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either split_intervals= or split_points="),
        ({"split_intervals": 1, "split_points": [[1], [1]]}, "either"),
        ({"split_intervals": 0}, "split interval"),
        ({"split_intervals": (1,)}, "1 of 2 axes"),
        ({"split_points": [[1], [1], [1]]}, "3 of 2 axes"),
        ({"split_points": [[3], []]}, "split point 3 of axis 0 is not between 0 and 3"),
        ({"split_points": [[], [0]]}, "split point 0 of axis 1"),
        ({"split_intervals": 1, "max_split_depth": -1}, "max_split_depth=-1"),
        ({"split_intervals": 1, "max_prod_block_conns": 0}, "max_prod_block_conns=0"),
        ({"split_intervals": 1, "structure_type": "sum"}, "'sum_dominated' nor 'prod_dominated'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(StructureError, match=message):
        PD((3, 4), 2, **options, **BINARY)
    for shape in ((), (0, 3), (2.5,)):
        with pytest.raises(StructureError, match="data_shape"):
            PD(shape, 2, split_intervals=1, **BINARY)


def test_the_size_of_images():
    root = PD((28, 28), 64, split_intervals=(4, 4))
    assert len(list(root)) == 4414
    assert list(root.scope) == list(range(784))


def test_hclt_leaves():
    rng = np.random.default_rng(0)
    data = rng.integers(0, 2, (50, 12))
    root = PDHCLT(data, (3, 4), 4, split_points=[[1], []], hclt_kwargs={"num_bins": 8}, **BINARY)
    assert {(0, 1, 2, 3), tuple(range(4, 12)), tuple(range(12))} <= scopes(root)
    with pytest.raises(DataError, match="12 columns"):
        PDHCLT(data, (3, 5), 4, split_intervals=1, **BINARY)
    with pytest.raises(DataError, match="shape"):
        PDHCLT(data[0], (3, 4), 4, split_intervals=1, **BINARY)
