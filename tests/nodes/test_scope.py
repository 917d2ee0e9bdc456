"""Scopes behave as sets of integers, and stay cheap when there are many."""

import pickle
import time

import numpy as np
import pytest

from jaxjuice.nodes import Scope


@pytest.mark.parametrize("seed", range(5))
def test_scope_behaves_as_a_set(seed):
    rng = np.random.default_rng(seed)
    a, b = (set(rng.integers(0, 200, rng.integers(0, 40)).tolist()) for _ in range(2))
    scope_a, scope_b = Scope(a), Scope(b)
    assert list(scope_a) == sorted(a)
    assert len(scope_a) == len(a)
    assert set(scope_a | scope_b) == a | b
    assert set(scope_a & scope_b) == a & b
    assert set(scope_a - scope_b) == a - b
    assert scope_a.isdisjoint(scope_b) == a.isdisjoint(b)
    assert scope_a.issubset(scope_b) == a.issubset(b)
    assert scope_a.issubset(scope_a | scope_b)
    assert all((v in scope_a) == (v in a) for v in range(200))
    assert Scope(list(a) * 2) == scope_a
    assert hash(Scope(sorted(a))) == hash(scope_a)
    assert pickle.loads(pickle.dumps(scope_a)) == scope_a


def test_scope_of_numpy_integers_and_odd_members():
    scope = Scope(np.array([3, 70]))
    assert scope.bits == 2**3 + 2**70
    assert np.int32(3) in scope
    assert -1 not in scope
    assert "3" not in scope
    assert scope != {3, 70}
    assert Scope.from_bits(9) == Scope([0, 3])


def test_empty_scope():
    assert list(Scope()) == []
    assert len(Scope()) == 0
    assert str(Scope()) == "{}"
    assert Scope().isdisjoint(Scope([0]))


def test_negative_variables_are_refused():
    with pytest.raises(ValueError, match="-1"):
        Scope([2, -1])
    with pytest.raises(ValueError, match="-2"):
        Scope.from_bits(-2)


@pytest.mark.parametrize(
    ("variables", "text"),
    [([4], "{4}"), ([1, 2], "{1, 2}"), ([0, 1, 2, 9], "{0..2, 9}"), (range(5, 10), "{5..9}")],
)
def test_scope_prints_runs(variables, text):
    assert str(Scope(variables)) == text
    assert repr(Scope(variables)) == f"Scope({text})"


def test_long_scope_prints_shortened():
    assert len(str(Scope(range(0, 1000, 2)))) < 80


def test_many_single_variable_scopes_have_distinct_hashes():
    # hash(int) would give 61 values in all.
    assert len({hash(Scope([v])) for v in range(2000)}) > 1900


def test_unions_of_many_variables_are_fast():
    start = time.perf_counter()
    scope = Scope()
    for variable in range(10_000):
        scope = scope | Scope([variable])
    assert len(scope) == 10_000
    assert time.perf_counter() - start < 5
