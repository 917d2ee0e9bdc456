"""From node vectors to units: the pieces of a circuit that are computed and stored whole.

A *unit* is a run of nodes of one stored node vector (inputs and sums; products are never stored)
that occupies one slot of the value array. A sum unit reads *elements*: runs of `width` product
nodes, each the sum (in log space) of some factors, a factor being a run of nodes inside another
unit. The user's block size only says which edges exist; the unit and element widths found here are
the widest at which all edges are whole runs, so a densely connected vector is one unit however it
was blocked.
"""

from dataclasses import dataclass, field

import numpy as np

from jaxjuice.nodes import CircuitNodes, InputNodes, ProductNodes, SumNodes


@dataclass(eq=False)
class Unit:
    """A run of nodes of one stored vector.

    Attributes:
        index: position among all units, children before parents.
        vector: the `InputNodes` or `SumNodes`.
        start: index in `vector` of the unit's first node.
        num_nodes: its width, the K of its slot.
    """

    index: int
    vector: CircuitNodes
    start: int
    num_nodes: int


@dataclass(eq=False)
class SumUnit(Unit):
    """A unit of sum nodes: `num_blocks` blocks of `num_nodes / num_blocks` nodes, a product each.

    Attributes:
        width: nodes per element.
        factor_units: int `[num_elements, arity]`, unit indices of the distinct elements of all
            blocks, -1 where an element has fewer factors.
        factor_offsets: the same shape; where in that unit the run of `width` nodes starts.
        selection: int `[num_blocks, block_elements]`, ascending: which elements each block reads.
        edges: for every block, int `[node blocks, child blocks]`: the columns of `vector.edge_ids`
            whose parameters it multiplies, in the order in which it reads the children.
    """

    num_blocks: int = 1
    width: int = 1
    factor_units: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    factor_offsets: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    selection: np.ndarray = field(default_factory=lambda: np.zeros((1, 0), np.int64))
    edges: tuple[np.ndarray, ...] = ()

    @property
    def num_elements(self) -> int:
        return self.factor_units.shape[0]

    @property
    def arity(self) -> int:
        return self.factor_units.shape[1]

    @property
    def block_elements(self) -> int:
        return self.selection.shape[1]

    @property
    def num_children(self) -> int:
        """Children of a node."""
        return self.block_elements * self.width

    @property
    def block_nodes(self) -> int:
        return self.num_nodes // self.num_blocks


@dataclass(frozen=True, eq=False)
class Elements:
    """Runs of product nodes: `factor_units`, `factor_offsets` `[num_elements, arity]`, `width`."""

    factor_units: np.ndarray
    factor_offsets: np.ndarray
    width: int


@dataclass(eq=False)
class _Pieces:
    """The maximal runs of a child vector in which every factor advances node by node.

    `bounds` `[num_pieces + 1]`; the factors `[num_pieces, arity]` at each piece's first node.
    """

    bounds: np.ndarray
    units: np.ndarray
    offsets: np.ndarray


class UnitTable:
    """All units of the DAG under `root`, and the elements that make the root's values."""

    def __init__(self, root: CircuitNodes):
        self.units: list[Unit] = []
        self._stored: dict[CircuitNodes, tuple[int, int]] = {}  # vector -> (first unit, unit width)
        self._pieces: dict[CircuitNodes, _Pieces] = {}
        self._blocks: dict[CircuitNodes, list[tuple[np.ndarray, np.ndarray]]] = {}
        self._edges: dict[tuple[CircuitNodes, int], tuple[np.ndarray, ...]] = {}
        for vector in root:
            if isinstance(vector, InputNodes):
                self._stored[vector] = (len(self.units), vector.num_nodes)
                self.units.append(Unit(len(self.units), vector, 0, vector.num_nodes))
            elif isinstance(vector, SumNodes):
                self._add_sum(vector)
        pieces = self._pieces_of(root)
        width = int(np.gcd.reduce(_cuts(pieces.bounds, 0, root.num_nodes)))
        self.root = _elements(pieces, np.arange(0, root.num_nodes, width), width)

    def units_of(self, vector: CircuitNodes) -> list[Unit]:
        """The units that hold `vector`, in the order of its nodes."""
        first, width = self._stored[vector]
        return self.units[first : first + vector.num_nodes // width]

    def _add_sum(self, vector: SumNodes) -> None:
        source = vector.get_source()  # tied copies have the edges of their source
        if source not in self._blocks:
            self._blocks[source] = _child_blocks(vector)
        blocks = self._blocks[source]
        first = len(self.units)
        if all(np.array_equal(children, blocks[0][0]) for children, _ in blocks[1:]):
            # All blocks read the same children: one product.
            self._stored[vector] = (first, vector.num_nodes)
            self._append(vector, 0, vector.num_nodes, blocks[:1], merged=blocks)
            return
        if len({len(children) for children, _ in blocks}) == 1:
            # Equal blocks: one unit, written whole. Edges alone decide, so tied copies agree.
            self._stored[vector] = (first, vector.num_nodes)
            self._append(vector, 0, vector.num_nodes, blocks)
            return
        self._stored[vector] = (first, vector.block_size)
        for i, block in enumerate(blocks):
            self._append(vector, i * vector.block_size, vector.block_size, [block])

    def _append(self, vector, start, num_nodes, blocks, *, merged=None) -> None:
        elements, selection = self._split(vector, blocks)
        key = (vector.get_source(), start)
        edges = self._edges.get(key)
        if edges is None:
            edges = (
                (np.stack([edges for _, edges in merged]),)  # [node, child blocks] of one product
                if merged is not None
                else tuple(edges[None] for _, edges in blocks)
            )
            self._edges[key] = edges
        self.units.append(
            SumUnit(
                len(self.units),
                vector,
                start,
                num_nodes,
                num_blocks=len(selection),
                width=elements.width,
                factor_units=elements.factor_units,
                factor_offsets=elements.factor_offsets,
                selection=selection,
                edges=edges,
            )
        )

    def _split(self, vector: SumNodes, blocks) -> tuple[Elements, np.ndarray]:
        """The distinct elements of equal blocks of `vector`, and each block's selection.

        The edges alone decide what is distinct, and in which order, so that tied copies agree.
        """
        size = vector.ch_block_size
        pieces = _concatenate([self._pieces_of(child) for child in vector.chs])
        lengths = pieces.bounds[1:] - pieces.bounds[:-1]
        if len(blocks) == 1 and len(blocks[0][0]) * size == pieces.bounds[-1]:
            if (lengths == lengths[0]).all():  # all of the children, as they are stored
                elements = Elements(pieces.units, pieces.offsets, int(lengths[0]))
                return elements, np.arange(len(pieces.units))[None]
        runs = [_runs(children, size) for children, _ in blocks]
        width = 0
        for block_runs in runs:
            for start, stop in block_runs:
                width = int(np.gcd.reduce(_cuts(pieces.bounds, start, stop), initial=width))
        starts = np.stack(
            [
                np.concatenate([np.arange(start, stop, width) for start, stop in block_runs])
                for block_runs in runs
            ]
        )
        distinct, selection = np.unique(starts, return_inverse=True)
        return _elements(pieces, distinct, width), selection.reshape(starts.shape)

    def _pieces_of(self, vector: CircuitNodes) -> _Pieces:
        found = self._pieces.get(vector)
        if found is None:
            found = self._product_pieces(vector) if isinstance(vector, ProductNodes) else None
            found = self._stored_pieces(vector) if found is None else found
            self._pieces[vector] = found
        return found

    def _stored_pieces(self, vector: CircuitNodes) -> _Pieces:
        first, width = self._stored[vector]
        count = vector.num_nodes // width
        return _Pieces(
            np.arange(count + 1) * width,
            first + np.arange(count)[:, None],
            np.zeros((count, 1), np.int64),
        )

    def _product_pieces(self, vector: ProductNodes) -> _Pieces:
        stored = [self._stored[child] for child in vector.chs]
        n = vector.num_nodes
        identity = not vector.sparse_edges and all(
            child.num_nodes == n and width == n
            for child, (_, width) in zip(vector.chs, stored, strict=True)
        )
        if identity and (vector.edge_ids == np.arange(len(vector.edge_ids))[:, None]).all():
            firsts = np.array([[first for first, _ in stored]], np.int64)
            return _Pieces(np.array([0, n]), firsts, np.zeros_like(firsts))
        nodes = vector.child_node_ids()
        first = np.array([first for first, _ in stored], np.int64)
        width = np.array([width for _, width in stored], np.int64)
        units, offsets = first + nodes // width, nodes % width
        follows = (np.diff(units, axis=0) == 0) & (np.diff(offsets, axis=0) == 1)
        starts = np.concatenate([[0], 1 + np.flatnonzero(~follows.all(axis=1))])
        return _Pieces(np.append(starts, n), units[starts], offsets[starts])


def _elements(pieces: _Pieces, starts: np.ndarray, width: int) -> Elements:
    """The elements that start at the nodes `starts`."""
    piece = np.searchsorted(pieces.bounds, starts, side="right") - 1
    units = pieces.units[piece]
    offsets = pieces.offsets[piece] + (starts - pieces.bounds[piece])[:, None]
    return Elements(units, np.where(units < 0, 0, offsets), width)


def _child_blocks(vector: SumNodes) -> list[tuple[np.ndarray, np.ndarray]]:
    """For every node block: its child blocks, ascending, and the edge blocks that lead to them."""
    parents, children = np.asarray(vector.edge_ids)
    order = np.lexsort((children, parents))
    cuts = np.searchsorted(parents[order], np.arange(1, vector.num_node_blocks))
    return [(children[edges], edges) for edges in np.split(order, cuts)]


def _runs(blocks: np.ndarray, size: int) -> list[tuple[int, int]]:
    """Ascending child blocks as maximal runs `(first node, last node + 1)`."""
    cuts = 1 + np.flatnonzero(np.diff(blocks) != 1)
    return [(int(run[0]) * size, (int(run[-1]) + 1) * size) for run in np.split(blocks, cuts)]


def _cuts(bounds: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Lengths of the parts into which `bounds` cuts the run `[start, stop)`."""
    low, high = np.searchsorted(bounds, [start, stop], side="right")
    inner = bounds[low:high]
    inner = inner[(inner > start) & (inner < stop)]
    return np.diff(np.concatenate([[start], inner, [stop]]))


def _concatenate(parts: list[_Pieces]) -> _Pieces:
    if len(parts) == 1:
        return parts[0]
    arity = max(part.units.shape[1] for part in parts)

    def pad(array: np.ndarray, value: int) -> np.ndarray:
        return np.pad(array, ((0, 0), (0, arity - array.shape[1])), constant_values=value)

    shifts = np.cumsum([0] + [part.bounds[-1] for part in parts])
    bounds = [part.bounds[:-1] + shift for part, shift in zip(parts, shifts, strict=False)]
    return _Pieces(
        np.concatenate([*bounds, shifts[-1:]]),
        np.concatenate([pad(part.units, -1) for part in parts]),
        np.concatenate([pad(part.offsets, 0) for part in parts]),
    )
