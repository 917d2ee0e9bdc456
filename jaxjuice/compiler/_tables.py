"""Index arrays: lists of different lengths as tables, weights by edge and by unit."""

from collections.abc import Sequence

import numpy as np

from jaxjuice.compiler._program import SlotTable


def joined(sets: Sequence[set]) -> list[list[int]]:
    """Groups the indices of sets that are connected by common members, in order."""
    parent = list(range(len(sets)))

    def find(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    seen: dict = {}
    for i, members in enumerate(sets):
        for member in members:
            first, second = sorted((find(seen.setdefault(member, i)), find(i)))
            parent[second] = first
    groups: dict[int, list[int]] = {}
    for i in range(len(sets)):
        groups.setdefault(find(i), []).append(i)
    return list(groups.values())


def padded_table(rows, slots, offsets, shape: tuple[int, ...]) -> SlotTable:
    """Lists of slots by row (`rows`, flat in `shape`), padded with slot 0 to the longest."""
    count = int(np.prod(shape))
    table = lists(rows, slots, count).reshape(*shape, -1)
    if offsets is None:
        return SlotTable(table, None)
    return SlotTable(table, lists(rows, offsets, count).reshape(*shape, -1))


def lists(rows: np.ndarray, items: np.ndarray, count: int, fill: int = 0) -> np.ndarray:
    """The `items` of every row, in order: int32 `[count, most]`, `fill` where there are fewer."""
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
    table = np.full((count, int(rank.max()) + 1), fill, np.int32)
    table[rows, rank] = items[order]
    return table


def weights_from_edges(array: np.ndarray, edges: tuple[np.ndarray, ...]) -> np.ndarray:
    """A unit's `[blocks, block_nodes, num_children]` out of `[E, block_size, ch_block_size]`."""
    blocks = []
    for block in edges:  # [node blocks, child blocks] edge indices
        values = np.asarray(array)[block].transpose(0, 2, 1, 3)
        blocks.append(values.reshape(values.shape[0] * values.shape[1], -1))
    return np.stack(blocks)


def edges_from_weights(weights: np.ndarray, edges: tuple[np.ndarray, ...], out: np.ndarray) -> None:
    """The inverse of `weights_from_edges`: writes a unit's weights into `out` `[E, bs, cbs]`."""
    _, size, ch_size = out.shape
    for values, block in zip(weights, edges, strict=True):
        grid = values.reshape(block.shape[0], size, block.shape[1], ch_size)
        out[block] = grid.transpose(0, 2, 1, 3)
