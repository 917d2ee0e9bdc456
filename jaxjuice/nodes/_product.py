"""Product vectors: each node multiplies one node of every child."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from jaxjuice._errors import StructureError
from jaxjuice.nodes._base import CallOn, CircuitNodes, check_replacements
from jaxjuice.nodes._edges import frozen, product_edges
from jaxjuice.nodes._scope import Scope
from jaxjuice.nodes._settings import check_block_size, nondecomposable_allowed


class ProductNodes(CircuitNodes):
    """A vector of product nodes over sum or input vectors of disjoint scopes. Build it with
    `multiply`.

    Attributes:
        edge_ids: int64, read-only. By block, `[num_node_blocks, num_chs]`: node k of block i
            multiplies node k of block `edge_ids[i, j]` of each child j, blocks of `block_size`
            nodes. By node (`sparse_edges`), `[num_nodes, num_chs]`: node i multiplies node
            `edge_ids[i, j]` of each child j.
        sparse_edges: whether `edge_ids` is by node.
    """

    def __init__(
        self,
        chs: tuple[CircuitNodes, ...],
        edge_ids: ArrayLike | None = None,
        *,
        sparse_edges: bool = False,
        block_size: int = 0,
        call: object = "multiply(...)",
    ) -> None:
        scope = _check_children(call, chs)
        common_size = math.gcd(*(child.block_size for child in chs))
        block_size = block_size or common_size
        check_block_size(call, block_size)
        if not sparse_edges and common_size % block_size:
            raise StructureError(
                f"{call}: block_size={block_size} does not divide that of the children, which "
                f"is {common_size}."
            )
        sizes = [child.num_nodes for child in chs]
        if edge_ids is None:
            if len(set(sizes)) > 1:
                raise StructureError(
                    f"{call}: without `edge_ids` node i multiplies node i of every child, and the "
                    f"children have {', '.join(map(str, sizes))} nodes."
                )
            edges = np.arange(sizes[0] if sparse_edges else sizes[0] // block_size, dtype=np.int64)
            edges = np.repeat(edges[:, None], len(chs), axis=1)
        else:
            edges = product_edges(call, edge_ids, sparse_edges, block_size, sizes)
        if sparse_edges and edges.shape[0] % block_size:
            raise StructureError(
                f"{call}: {edges.shape[0]} product nodes do not fill blocks of {block_size}; "
                "give a block_size= that divides their number."
            )
        self.edge_ids = frozen(edges)
        self.sparse_edges = bool(sparse_edges)
        rows = edges.shape[0]
        super().__init__(chs, rows // block_size if sparse_edges else rows, block_size, scope)

    def child_node_ids(self) -> np.ndarray:
        """Returns, for each node, its node in each child: int64 `[num_nodes, num_chs]`."""
        if self.sparse_edges or self.block_size == 1:
            return self.edge_ids
        within = np.arange(self.block_size)[None, :, None]
        nodes = self.edge_ids[:, None, :] * self.block_size + within
        return nodes.reshape(self.num_nodes, self.num_chs)

    def num_own_edges(self) -> int:
        return self.num_nodes * self.num_chs

    def duplicate(self, *new_chs: CircuitNodes, tie_params: bool = False) -> ProductNodes:
        """Returns a copy of this vector over other children.

        Args:
            new_chs: as many children, with the same numbers of nodes and block sizes; none to keep
                the present ones.
            tie_params: accepted so that every kind of vector is duplicated alike; products have no
                parameters.

        Raises:
            StructureError: if the children do not fit.
        """
        del tie_params
        call = CallOn("duplicate", self)
        chs = check_replacements(call, self, new_chs)
        return ProductNodes(
            chs,
            self.edge_ids,
            sparse_edges=self.sparse_edges,
            block_size=self.block_size,
            call=call,
        )


def _check_children(call: object, chs: tuple[CircuitNodes, ...]) -> Scope:
    """Checks the children of a product and returns the union of their scopes."""
    if not chs:
        raise StructureError(f"{call}: a product wants at least one child.")
    for index, child in enumerate(chs):
        if not isinstance(child, CircuitNodes) or isinstance(child, ProductNodes):
            raise StructureError(
                f"{call}: child {index} is {child!r}, and products take sums or inputs "
                "(give its children instead, or put a `summate` between)."
            )
    bits = 0
    for index, child in enumerate(chs):
        if bits & child.scope.bits and not nondecomposable_allowed():
            first = next(i for i, ch in enumerate(chs) if not child.scope.isdisjoint(ch.scope))
            raise StructureError(
                f"{call}: not decomposable, as children {first}, {chs[first]!r}, and {index}, "
                f"{child!r}, share the variables {chs[first].scope & child.scope} "
                "(allow it by structural_properties(allow_nondecomposable=True))."
            )
        bits |= child.scope.bits
    return chs[0].scope if len(chs) == 1 else Scope.from_bits(bits)
