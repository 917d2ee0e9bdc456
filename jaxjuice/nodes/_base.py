"""What input, product and sum vectors have in common."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from jaxjuice._errors import StructureError
from jaxjuice.nodes._scope import Scope

_serial_numbers = itertools.count()


class CircuitNodes:
    """A vector of circuit nodes with one scope: a vertex of the DAG that defines a circuit.

    Vectors are equal only to themselves. They are ordered as they were built, so that a dict with
    vectors as keys is a pytree for JAX. The compiler reads them and never changes them.
    Build them with `inputs`, `multiply` and `summate`.

    Attributes:
        chs: the child vectors, empty for inputs.
        num_node_blocks: how many blocks of nodes the vector has.
        block_size: nodes a block.
        scope: the variables under these nodes.
        source: the vector that holds the parameters of this one if they are tied, else None.
            A source is never tied itself.
    """

    chs: tuple[CircuitNodes, ...]
    num_node_blocks: int
    block_size: int
    scope: Scope
    source: CircuitNodes | None

    def __init__(
        self,
        chs: tuple[CircuitNodes, ...],
        num_node_blocks: int,
        block_size: int,
        scope: Scope,
        source: CircuitNodes | None = None,
    ) -> None:
        self.chs = chs
        self.num_node_blocks = num_node_blocks
        self.block_size = block_size
        self.scope = scope
        self.source = None if source is None else source.get_source()
        self._serial = next(_serial_numbers)

    # JAX sorts the keys of dicts, such as `external_params`: vectors by age, before names.

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, CircuitNodes):
            return True if isinstance(other, str) else NotImplemented
        return self._serial < other._serial

    def __gt__(self, other: object) -> bool:
        if not isinstance(other, CircuitNodes):
            return False if isinstance(other, str) else NotImplemented
        return self._serial > other._serial

    @property
    def num_nodes(self) -> int:
        """How many nodes the vector has."""
        return self.num_node_blocks * self.block_size

    @property
    def num_chs(self) -> int:
        """How many child vectors there are."""
        return len(self.chs)

    @property
    def is_tied(self) -> bool:
        """Whether the parameters are those of another vector, `source`."""
        return self.source is not None

    def get_source(self) -> CircuitNodes:
        """Returns the vector that holds the parameters: `source` if tied, else this vector."""
        return self if self.source is None else self.source

    def num_own_parameters(self) -> int:
        """How many parameters the vector holds itself: 0 if tied, fixed zeros not counted."""
        return 0

    def num_own_edges(self) -> int:
        """How many node-to-node edges lead from this vector to its children."""
        return 0

    def num_parameters(self, count_input_params: bool = False, recursive: bool = True) -> int:
        """Counts parameters, tied ones once and weights fixed at 0 not at all.

        Args:
            count_input_params: whether the parameters of input nodes count too.
            recursive: whether to count the whole circuit under this vector, or this vector alone
                (0 if it is tied).
        """
        if not recursive:
            return self.num_own_parameters() if self.chs or count_input_params else 0
        holders = {ns.get_source() for ns in self}
        return sum(ns.num_own_parameters() for ns in holders if ns.chs or count_input_params)

    def num_edges(self) -> int:
        """Counts the node-to-node edges of the whole circuit under this vector."""
        return sum(ns.num_own_edges() for ns in self)

    def __iter__(self) -> Iterator[CircuitNodes]:
        """Iterates over the DAG under this vector in post-order: children first, each once."""
        visited: set[CircuitNodes] = {self}
        # An explicit stack, as circuits are deeper than Python's recursion limit.
        stack: list[tuple[CircuitNodes, Iterator[CircuitNodes]]] = [(self, iter(self.chs))]
        while stack:
            ns, remaining_chs = stack[-1]
            for child in remaining_chs:
                if child not in visited:
                    visited.add(child)
                    stack.append((child, iter(child.chs)))
                    break
            else:
                stack.pop()
                yield ns

    def __reversed__(self) -> Iterator[CircuitNodes]:
        """Iterates over the DAG under this vector, every parent before its children."""
        return reversed(list(self))

    def __repr__(self) -> str:
        tied = ", tied" if self.is_tied else ""
        return (
            f"{type(self).__name__}(num_nodes={self.num_nodes}, block_size={self.block_size}, "
            f"num_chs={self.num_chs}, scope={self.scope}{tied})"
        )


class CallOn:
    """A method call on a vector, put into words only when an error quotes it.

    (Writing out the scope takes longer than building the vector.)
    """

    def __init__(self, method: str, ns: CircuitNodes) -> None:
        self.method = method
        self.ns = ns

    def __str__(self) -> str:
        return f"{self.method} of {self.ns!r}"


def check_replacements(
    call: object, ns: CircuitNodes, new_chs: tuple[CircuitNodes, ...]
) -> tuple[CircuitNodes, ...]:
    """Returns `new_chs` (the children of `ns` if there are none) after checking that they fit."""
    if not new_chs:
        return ns.chs
    if len(new_chs) != len(ns.chs):
        raise StructureError(f"{call}: {len(new_chs)} children came, and it has {len(ns.chs)}.")
    for index, (new, old) in enumerate(zip(new_chs, ns.chs, strict=True)):
        if not isinstance(new, CircuitNodes):
            raise StructureError(f"{call}: child {index} is {new!r}, not a node vector.")
        if (new.num_nodes, new.block_size) != (old.num_nodes, old.block_size):
            raise StructureError(
                f"{call}: the new child {index}, {new!r}, does not have the number of nodes and "
                f"block size of {old!r}."
            )
    return new_chs
