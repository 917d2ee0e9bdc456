"""Chow-Liu trees: against networkx and enumeration of all trees; ties, screening, speed."""

import itertools
import time

import networkx as nx
import numpy as np
import pytest

from jaxjuice.structures import _chow_liu, chow_liu_tree, mutual_information
from jaxjuice.structures._chow_liu import maximum_spanning_tree, rooted_at_center


def markov_chain(rng, num_samples, num_vars, num_values=3):
    x = np.empty((num_samples, num_vars), int)
    x[:, 0] = rng.integers(0, num_values, num_samples)
    for v in range(1, num_vars):
        noise = rng.integers(0, num_values, num_samples)
        x[:, v] = np.where(rng.random(num_samples) < 0.7, x[:, v - 1], noise)
    return x


def edges_of(tree):
    pairs = [(v, int(p)) for v, p in enumerate(tree.parents) if p >= 0]
    return {tuple(sorted(pair)) for pair in pairs}


def check_tree(tree, num_vars):
    assert tree.parents.shape == (num_vars,)
    assert tree.parents[tree.root] == -1 and (tree.parents < 0).sum() == 1
    graph = nx.Graph(list(edges_of(tree)))
    graph.add_nodes_from(range(num_vars))
    assert nx.is_tree(graph)
    assert tree.root == min(nx.center(graph))
    order = tree.order().tolist()
    assert sorted(order) == list(range(num_vars))
    place = {v: i for i, v in enumerate(order)}
    assert all(place[p] < place[v] for v, p in enumerate(tree.parents.tolist()) if p >= 0)
    below = tree.children()
    assert all(tree.parents[c] == v for v in range(num_vars) for c in below[v])


@pytest.mark.parametrize("seed", range(5))
def test_a_chain_is_found(seed):
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(9)
    tree = chow_liu_tree(markov_chain(rng, 5000, 9)[:, np.argsort(shuffled)])
    wanted = {tuple(sorted((int(a), int(b)))) for a, b in itertools.pairwise(shuffled)}
    assert edges_of(tree) == wanted
    assert tree.root == shuffled[4]
    check_tree(tree, 9)


@pytest.mark.parametrize("seed", range(5))
def test_no_tree_has_more_information(seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 3, (60, 5)) * rng.integers(0, 2, (60, 1))
    information = mutual_information(x)
    mine = sum(information[edge] for edge in edges_of(chow_liu_tree(x)))
    # All 125 trees over 5 variables, by their Pruefer sequences.
    trees = [nx.from_prufer_sequence(list(s)) for s in itertools.product(range(5), repeat=3)]
    best = max(sum(information[edge] for edge in tree.edges) for tree in trees)
    np.testing.assert_allclose(mine, best, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_spanning_tree_against_networkx(seed):
    rng = np.random.default_rng(seed)
    weights = rng.random((20, 20))
    weights = weights + weights.T
    tree = nx.maximum_spanning_tree(nx.from_numpy_array(weights))
    wanted = {tuple(sorted(edge)) for edge in tree.edges if edge[0] != edge[1]}
    assert {tuple(sorted(edge)) for edge in maximum_spanning_tree(weights).tolist()} == wanted


@pytest.mark.parametrize("num_vars", [1, 2, 3, 7, 30])
def test_center_against_networkx(num_vars):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        edges = [(int(rng.integers(v)), v) for v in range(1, num_vars)]
        check_tree(rooted_at_center(np.array(edges, int).reshape(-1, 2)), num_vars)


@pytest.mark.parametrize("num_vars", [1, 2, 3])
@pytest.mark.parametrize("num_samples", [1, 50])
def test_few_variables_and_samples(num_vars, num_samples):
    x = np.random.default_rng(0).integers(0, 2, (num_samples, num_vars))
    check_tree(chow_liu_tree(x), num_vars)


def test_constant_and_independent_columns_are_spanned():
    for x in (np.zeros((10, 6)), np.full((10, 6), np.nan), np.arange(10)[:, None] * np.eye(6)[0]):
        tree = chow_liu_tree(x)
        check_tree(tree, 6)
        # Ties go to the lower variables: a star.
        assert edges_of(tree) == {(0, v) for v in range(1, 6)}
    cube = np.array(list(itertools.product([0, 1], repeat=6)))
    assert edges_of(chow_liu_tree(cube)) == {(0, v) for v in range(1, 6)}


@pytest.mark.parametrize("kind", ["whole", "real"])
def test_chunk_size_does_not_change_the_tree(kind):
    rng = np.random.default_rng(1)
    x = markov_chain(rng, 3000, 20)
    # Equal columns, so that there are ties to break.
    x[:, 10:13] = x[:, [3]]
    if kind == "real":
        x = x + rng.normal(size=(3000, 1))
    trees = [chow_liu_tree(x, chunk_size=chunk_size) for chunk_size in (1, 3, 7, 20, 64)]
    for tree in trees[1:]:
        assert tree.root == trees[0].root
        np.testing.assert_array_equal(tree.parents, trees[0].parents)


def test_screening_loses_little(monkeypatch):
    rng = np.random.default_rng(2)
    noise = rng.normal(size=(3000, 8, 8))
    for _ in range(3):
        noise = noise + sum(np.roll(noise, s, axis) for s in (1, -1) for axis in (1, 2)) / 4
    x = np.clip(128 + 20 * noise.reshape(3000, 64), 0, 255).astype(np.uint8)
    information = mutual_information(x)
    exact = chow_liu_tree(x)
    monkeypatch.setattr(_chow_liu, "_MAX_WORK", 1e6)
    screened = chow_liu_tree(x)
    check_tree(screened, 64)
    total, reached = (
        sum(information[edge] for edge in edges_of(tree)) for tree in (exact, screened)
    )
    assert reached <= total + 1e-9
    assert reached > 0.999 * total
    again = chow_liu_tree(x, chunk_size=5)
    np.testing.assert_array_equal(again.parents, screened.parents)


@pytest.mark.parametrize("num_vars", [1, 2, 30])
def test_screening_spans(monkeypatch, num_vars):
    monkeypatch.setattr(_chow_liu, "_MAX_WORK", 0)
    rng = np.random.default_rng(3)
    for x in (np.zeros((50, num_vars)), rng.normal(size=(50, num_vars))):
        check_tree(chow_liu_tree(x), num_vars)
    x = markov_chain(rng, 5000, num_vars)
    if num_vars > 1:
        screened = edges_of(chow_liu_tree(x))
        assert screened == {(v, v + 1) for v in range(num_vars - 1)}


@pytest.mark.slow
def test_a_data_set_of_the_size_of_mnist_takes_less_than_a_minute():
    rng = np.random.default_rng(4)
    base = rng.normal(size=(60_000, 28, 28)).astype(np.float32)
    base += np.roll(base, 1, 1) + np.roll(base, 1, 2)
    x = np.clip(128 + 50 * base.reshape(60_000, 784), 0, 255).astype(np.uint8)
    # Time of this process: the bar must not depend on what else runs on the machine.
    start = time.process_time()
    tree = chow_liu_tree(x)
    assert time.process_time() - start < 100
    check_tree(tree, 784)
