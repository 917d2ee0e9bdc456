"""Structural properties of a whole circuit."""

from __future__ import annotations

from jaxjuice.nodes._base import CircuitNodes
from jaxjuice.nodes._product import ProductNodes
from jaxjuice.nodes._scope import Scope
from jaxjuice.nodes._sum import SumNodes


def is_smooth(root: CircuitNodes) -> bool:
    """Tells whether the children of every sum under `root` have one scope."""
    return all(
        child.scope == ns.scope for ns in root if isinstance(ns, SumNodes) for child in ns.chs
    )


def is_decomposable(root: CircuitNodes) -> bool:
    """Tells whether the children of every product under `root` have disjoint scopes."""
    return all(
        sum(len(child.scope) for child in ns.chs) == len(ns.scope)
        for ns in root
        if isinstance(ns, ProductNodes)
    )


def is_structured_decomposable(root: CircuitNodes) -> bool:
    """Tells whether the circuit is decomposable and all products of one scope split it alike.

    Products with a single child split nothing and are passed over. The definition is that of
    Choi, Vergari and Van den Broeck, "Probabilistic Circuits: A Unifying Framework for Tractable
    Probabilistic Modeling" (2020).
    """
    if not is_decomposable(root):
        return False
    splits: dict[Scope, frozenset[Scope]] = {}
    for ns in root:
        if isinstance(ns, ProductNodes) and ns.num_chs > 1:
            split = frozenset(child.scope for child in ns.chs)
            if splits.setdefault(ns.scope, split) != split:
                return False
    return True
