"""Reads edges and weights in the forms that users write them in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from jaxjuice._errors import ParameterError, StructureError


def as_integer_array(call: object, name: str, value: ArrayLike) -> np.ndarray:
    """Converts ids (array or nested sequence) to int64, refusing floats and ragged rows."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise StructureError(f"{call}: the rows of `{name}` have different lengths.") from None
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise StructureError(f"{call}: `{name}` has the dtype {array.dtype}, and ids are integers.")
    return array.astype(np.int64)


def frozen(array: np.ndarray) -> np.ndarray:
    """Returns a C-contiguous copy that cannot be written to; the array itself if it is one."""
    if not array.flags.writeable and array.flags.owndata and array.flags.c_contiguous:
        return array
    array = np.array(array, order="C", copy=True)
    array.setflags(write=False)
    return array


def full_sum_edges(num_node_blocks: int, num_ch_blocks: int) -> np.ndarray:
    """Returns the edges `[2, E]` that connect every node block to every child block, row-major."""
    return np.indices((num_node_blocks, num_ch_blocks)).reshape(2, -1).astype(np.int64)


def sum_edges(
    call: object, edge_ids: object, num_node_blocks: int, ch_blocks: Sequence[int]
) -> tuple[np.ndarray, int]:
    """Reads the edges of a sum vector in any accepted form.

    Args:
        call: the call to quote in errors.
        edge_ids: None; `[2, E]`; a boolean matrix `[num_node_blocks, num_ch_blocks]`; or a list
            with one `[2, E_i]` or boolean matrix per child, whose second row counts that child's
            own blocks.
        num_node_blocks: the number of node blocks, or 0 to take it from the edges.
        ch_blocks: the number of blocks of each child.

    Returns:
        The edges int64 `[2, E]` over the concatenation of the children, and the number of node
        blocks.

    Raises:
        StructureError: if the edges have another form, are out of range, repeated, or leave a node
            block without a child.
    """
    if edge_ids is None:
        if num_node_blocks < 1:
            raise StructureError(
                f"{call}: how many nodes? Give num_nodes=, num_node_blocks=, or edge_ids=."
            )
        return full_sum_edges(num_node_blocks, sum(ch_blocks)), num_node_blocks
    if (
        isinstance(edge_ids, (list, tuple))
        and edge_ids
        and all(_ndim(part) == 2 for part in edge_ids)
    ):
        edges, least_blocks = _edges_by_child(call, edge_ids, num_node_blocks, ch_blocks)
    else:
        edges, least_blocks = _edges_of_array(
            call, edge_ids, num_node_blocks, sum(ch_blocks), "edge_ids"
        )
    if num_node_blocks < 1:
        num_node_blocks = least_blocks
    _check_sum_edges(call, edges, num_node_blocks, sum(ch_blocks))
    return edges, num_node_blocks


def _ndim(part: object) -> int:
    try:
        return np.ndim(part)  # pyright: ignore[reportArgumentType]
    except ValueError:
        return -1


def _edges_by_child(
    call: object, parts: Sequence, num_node_blocks: int, ch_blocks: Sequence[int]
) -> tuple[np.ndarray, int]:
    """Reads a list with the edges of one child each, and shifts each to that child's place."""
    if len(parts) != len(ch_blocks):
        raise StructureError(
            f"{call}: `edge_ids` is a list for {len(parts)} of {len(ch_blocks)} children."
        )
    shifted = []
    least_blocks = 0
    first_block = 0
    for index, (part, blocks) in enumerate(zip(parts, ch_blocks, strict=True)):
        name = f"edge_ids[{index}]"
        edges, needed = _edges_of_array(call, part, num_node_blocks, blocks, name)
        outside = (edges[1] < 0) | (edges[1] >= blocks)
        if outside.any():
            raise StructureError(
                f"{call}: `{name}` names block {edges[1][outside][0]} of child {index}, "
                f"which has blocks 0 to {blocks - 1}."
            )
        shifted.append(edges + np.array([[0], [first_block]]))
        least_blocks = max(least_blocks, needed)
        first_block += blocks
    return np.concatenate(shifted, axis=1), least_blocks


def _edges_of_array(
    call: object, value: object, num_node_blocks: int, num_ch_blocks: int, name: str
) -> tuple[np.ndarray, int]:
    """Reads `[2, E]` or a boolean matrix; returns edges and how many node blocks they imply."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise StructureError(f"{call}: the rows of `{name}` have different lengths.") from None
    if array.dtype == np.bool_:
        rows = num_node_blocks or (array.shape[0] if array.ndim == 2 else 0)
        if array.shape != (rows, num_ch_blocks):
            raise StructureError(
                f"{call}: the boolean matrix `{name}` has the shape {array.shape}, and "
                f"[node blocks, child blocks] = ({rows or '?'}, {num_ch_blocks}) is wanted."
            )
        return np.stack(np.nonzero(array)).astype(np.int64), rows
    if array.ndim != 2 or array.shape[0] != 2:
        raise StructureError(
            f"{call}: `{name}` has the shape {array.shape}; wanted are [2, E] (node block, child "
            "block), a boolean matrix [node blocks, child blocks], or a list of these by child."
        )
    edges = as_integer_array(call, name, array)
    return edges, int(edges[0].max()) + 1 if edges.shape[1] else 0


def _check_sum_edges(
    call: object, edges: np.ndarray, num_node_blocks: int, num_ch_blocks: int
) -> None:
    for row, limit, what in ((0, num_node_blocks, "node"), (1, num_ch_blocks, "child")):
        outside = (edges[row] < 0) | (edges[row] >= limit)
        if outside.any():
            raise StructureError(
                f"{call}: `edge_ids[{row}]` names {what} block {edges[row][outside][0]}, "
                f"and the {what} blocks are 0 to {limit - 1}."
            )
    childless = np.flatnonzero(np.bincount(edges[0], minlength=num_node_blocks) == 0)
    if childless.size or not edges.shape[1]:
        raise StructureError(
            f"{call}: `edge_ids` leaves {childless.size} of {num_node_blocks} node blocks without "
            f"a child (first: block {childless[:1].sum()}), and each wants at least one."
        )
    keys = edges[0] * num_ch_blocks + edges[1]
    distinct, counts = np.unique(keys, return_counts=True)
    if distinct.size != keys.size:
        node_block, child_block = divmod(int(distinct[counts > 1][0]), num_ch_blocks)
        raise StructureError(
            f"{call}: `edge_ids` connects node block {node_block} with child block {child_block} "
            f"{int(counts.max())} times; an edge is written once."
        )


def product_edges(
    call: object, edge_ids: ArrayLike, by_node: bool, block_size: int, ch_nodes: Sequence[int]
) -> np.ndarray:
    """Reads the edges `[rows, num_chs]` of a product vector: blocks, or nodes if `by_node`.

    Raises:
        StructureError: if the shape or an id does not fit the children, whose sizes are `ch_nodes`.
    """
    edges = as_integer_array(call, "edge_ids", edge_ids)
    unit = "node" if by_node else "block"
    if edges.ndim != 2 or edges.shape[1] != len(ch_nodes) or not edges.shape[0]:
        raise StructureError(
            f"{call}: `edge_ids` has the shape {edges.shape}, and [product {unit}s, children] = "
            f"(any, {len(ch_nodes)}) is wanted."
        )
    for index, num_nodes in enumerate(ch_nodes):
        limit = num_nodes if by_node else num_nodes // block_size
        outside = (edges[:, index] < 0) | (edges[:, index] >= limit)
        if outside.any():
            raise StructureError(
                f"{call}: `edge_ids[:, {index}]` names {unit} {edges[outside, index][0]} of child "
                f"{index}, which has {unit}s 0 to {limit - 1}."
            )
    return edges


def as_float_array(call: object, value: ArrayLike) -> np.ndarray:
    """Converts weights to float32 or float64; those two stay as they are."""
    array = np.asarray(value)
    if array.dtype in (np.float32, np.float64):
        return array
    try:
        # bfloat16 and float16 are exact in float32; integers and booleans go to float64.
        return array.astype(np.float64 if array.dtype.kind in "iub" else np.float32)
    except (TypeError, ValueError):
        raise ParameterError(
            f"{call}: parameters of dtype {array.dtype} are not numbers."
        ) from None


def to_edge_layout(
    call: object,
    array: np.ndarray,
    edge_ids: np.ndarray,
    block_sizes: tuple[int, int],
    num_blocks: tuple[int, int],
) -> np.ndarray:
    """Brings weights (or a mask over them) to the DAG's layout `[E, block_size, ch_block_size]`.

    Args:
        call: the call to quote in errors.
        array: `[E]` (both block sizes 1), `[num_nodes, num_ch_nodes]`, `[E, block_size,
            ch_block_size]` or `[num_node_blocks, num_ch_blocks, block_size, ch_block_size]`.
        edge_ids: `[2, E]`.
        block_sizes: those of the nodes and of their children.
        num_blocks: those of the nodes and of their children.

    Raises:
        ParameterError: if the shape is none of these, or a matrix of nodes has a nonzero entry
            where there is no edge.
    """
    (size, ch_size), (blocks, ch_blocks) = block_sizes, num_blocks
    num_edges = edge_ids.shape[1]
    if array.ndim == 1 and array.shape[0] == num_edges and size == ch_size == 1:
        return array.reshape(num_edges, 1, 1)
    if array.shape == (num_edges, size, ch_size):
        return array
    if array.shape == (blocks, ch_blocks, size, ch_size):
        return array[edge_ids[0], edge_ids[1]]
    if array.shape == (blocks * size, ch_blocks * ch_size):
        tiles = array.reshape(blocks, size, ch_blocks, ch_size).transpose(0, 2, 1, 3)
        off_edges = (tiles != 0).any(axis=(2, 3))
        off_edges[edge_ids[0], edge_ids[1]] = False
        if off_edges.any():
            node_block, child_block = np.argwhere(off_edges)[0]
            raise ParameterError(
                f"{call}: the matrix is nonzero between node block {node_block} and child block "
                f"{child_block}, which no edge connects."
            )
        return tiles[edge_ids[0], edge_ids[1]]
    edge_form = f"[{num_edges}], " if size == ch_size == 1 else ""
    raise ParameterError(
        f"{call}: the shape is {array.shape}; wanted is {edge_form}[nodes, child nodes] = "
        f"[{blocks * size}, {ch_blocks * ch_size}], [edges, block size, child block size] = "
        f"[{num_edges}, {size}, {ch_size}] or [{blocks}, {ch_blocks}, {size}, {ch_size}]."
    )
