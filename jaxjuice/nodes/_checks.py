"""Structural properties of a whole circuit, as questions (`is_...`) and demands (`check_...`)."""

from __future__ import annotations

from jaxjuice._errors import StructureError
from jaxjuice.nodes._base import CircuitNodes
from jaxjuice.nodes._product import ProductNodes
from jaxjuice.nodes._scope import Scope
from jaxjuice.nodes._sum import SumNodes


def is_smooth(root: CircuitNodes) -> bool:
    """Tells whether the children of every sum under `root` have one scope."""
    return _first_nonsmooth(root) is None


def is_decomposable(root: CircuitNodes) -> bool:
    """Tells whether the children of every product under `root` have disjoint scopes."""
    return _first_nondecomposable(root) is None


def is_structured_decomposable(root: CircuitNodes) -> bool:
    """Tells whether the circuit is decomposable and all products of one scope split it alike.

    Products with a single child split nothing and are passed over. The definition is that of
    Choi, Vergari and Van den Broeck, "Probabilistic Circuits: A Unifying Framework for Tractable
    Probabilistic Modeling" (2020).
    """
    return is_decomposable(root) and _first_unlike_splits(root) is None


def check_smooth(root: CircuitNodes) -> None:
    """Demands what `is_smooth` tells.

    Raises:
        StructureError: if it is not so; names the sum and two children of different scopes.
    """
    found = _first_nonsmooth(root)
    if found is None:
        return
    ns, first, other = found
    raise StructureError(
        f"check_smooth(root): {ns!r} has children of different scopes, {first!r} and {other!r}."
    )


def check_decomposable(root: CircuitNodes) -> None:
    """Demands what `is_decomposable` tells.

    Raises:
        StructureError: if it is not so; names the product and two children that share variables.
    """
    _check_decomposable("check_decomposable(root)", root)


def check_structured_decomposable(root: CircuitNodes) -> None:
    """Demands what `is_structured_decomposable` tells.

    Raises:
        StructureError: if it is not so; names the two products that split a scope differently and
            the scopes of their children, or a product that is not decomposable.
    """
    call = "check_structured_decomposable(root)"
    _check_decomposable(call, root)
    found = _first_unlike_splits(root)
    if found is None:
        return
    first, other = found
    raise StructureError(
        f"{call}: two products split one scope differently: {first!r} into {_split_text(first)}, "
        f"and {other!r} into {_split_text(other)}."
    )


def _check_decomposable(call: str, root: CircuitNodes) -> None:
    found = _first_nondecomposable(root)
    if found is None:
        return
    ns, first, other = found
    raise StructureError(
        f"{call}: children of {ns!r} share the variables {first.scope & other.scope}: "
        f"{first!r} and {other!r}."
    )


def _first_nonsmooth(root: CircuitNodes) -> tuple[CircuitNodes, CircuitNodes, CircuitNodes] | None:
    """A sum and two of its children that have different scopes; None if there is none."""
    for ns in root:
        if isinstance(ns, SumNodes):
            for child in ns.chs:
                if child.scope != ns.chs[0].scope:
                    return ns, ns.chs[0], child
    return None


def _first_nondecomposable(
    root: CircuitNodes,
) -> tuple[CircuitNodes, CircuitNodes, CircuitNodes] | None:
    """A product and two of its children that share variables; None if there is none."""
    for ns in root:
        if not isinstance(ns, ProductNodes):
            continue
        if sum(len(child.scope) for child in ns.chs) == len(ns.scope):
            continue
        for index, child in enumerate(ns.chs):
            for earlier in ns.chs[:index]:
                if not child.scope.isdisjoint(earlier.scope):
                    return ns, earlier, child
    return None


def _first_unlike_splits(root: CircuitNodes) -> tuple[CircuitNodes, CircuitNodes] | None:
    """Two products that split one scope differently; None if there are none."""
    seen: dict[Scope, tuple[frozenset[Scope], CircuitNodes]] = {}
    for ns in root:
        if isinstance(ns, ProductNodes) and ns.num_chs > 1:
            split = frozenset(child.scope for child in ns.chs)
            first_split, first = seen.setdefault(ns.scope, (split, ns))
            if first_split != split:
                return first, ns
    return None


def _split_text(ns: CircuitNodes, most: int = 8) -> str:
    shown = [str(child.scope) for child in ns.chs[:most]]
    return ", ".join(shown) + (", ..." if len(ns.chs) > most else "")
