"""Sparse connections for sums: functions of (node blocks, blocks of each child) that return edges.

A constructor goes to `summate(..., sum_edge_ids_constructor=)` and to the structures that take one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jaxjuice._errors import StructureError

EdgeConstructor = Callable[[int, Sequence[int]], np.ndarray]


def block_diagonal_edge_constructor(num_node_blocks: int, ch_blocks: Sequence[int]) -> np.ndarray:
    """Connects node block i with block i of every child.

    Where a child has another number of blocks, both are laid side by side at equal length and
    blocks that overlap are connected, so that no node and no child block is left out.

    Args:
        num_node_blocks: the number of node blocks.
        ch_blocks: the number of blocks of each child.

    Returns:
        Edges int64 `[2, E]` over the concatenation of the children, by node block.
    """
    _check_num_node_blocks("block_diagonal_edge_constructor", num_node_blocks)
    edges = []
    first_block = 0
    for blocks in ch_blocks:
        nodes, chs = np.indices((num_node_blocks, blocks)).reshape(2, -1)
        # Node block i covers [i / n, (i + 1) / n) and child block j [j / m, (j + 1) / m).
        overlap = (nodes * blocks < (chs + 1) * num_node_blocks) & (
            chs * num_node_blocks < (nodes + 1) * blocks
        )
        edges.append(np.stack([nodes[overlap], first_block + chs[overlap]]))
        first_block += blocks
    joined = np.concatenate(edges, axis=1).astype(np.int64)
    return joined[:, np.lexsort((joined[1], joined[0]))]


def block_sparse_rnd_blk_edge_constructor(
    num_chs_per_block: int, seed: int | np.random.Generator = 0
) -> EdgeConstructor:
    """Returns a constructor that connects each node block with randomly chosen, distinct child
    blocks.

    The first choices of the node blocks go through the child blocks in random order, so that no
    child block is left out as long as there are edges enough.

    Args:
        num_chs_per_block: child blocks for each node block; all of them where there are fewer.
        seed: of the random choices: the same seed and the same sequence of calls give the same
            edges. One constructor used for several sums gives each of them its own.

    Raises:
        StructureError: if `num_chs_per_block` is not an integer >= 1.
    """
    if not hasattr(num_chs_per_block, "__index__") or num_chs_per_block < 1:
        raise StructureError(
            f"block_sparse_rnd_blk_edge_constructor(num_chs_per_block={num_chs_per_block!r}): "
            "an integer >= 1 is wanted."
        )
    rng = np.random.default_rng(seed)

    def constructor(num_node_blocks: int, ch_blocks: Sequence[int]) -> np.ndarray:
        _check_num_node_blocks("block_sparse_rnd_blk_edge_constructor", num_node_blocks)
        num_ch_blocks = sum(ch_blocks)
        degree = min(int(num_chs_per_block), num_ch_blocks)
        chosen = np.zeros((num_node_blocks, num_ch_blocks), dtype=bool)
        deck: list[int] = []
        for row in chosen:
            while row.sum() < degree:
                if not deck:
                    deck = rng.permutation(num_ch_blocks).tolist()
                fresh = next((card for card in deck if not row[card]), None)
                if fresh is None:
                    deck = rng.permutation(num_ch_blocks).tolist()
                    continue
                deck.remove(fresh)
                row[fresh] = True
        return np.stack(np.nonzero(chosen)).astype(np.int64)

    return constructor


def _check_num_node_blocks(function: str, num_node_blocks: int) -> None:
    if num_node_blocks < 1:
        raise StructureError(
            f"{function}: how many nodes? Give summate num_nodes= or num_node_blocks=."
        )
