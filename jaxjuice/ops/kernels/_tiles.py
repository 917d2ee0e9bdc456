"""The sizes of tiles: a fixed table by class of shape and architecture, never by timing.

Which tile runs changes rounding errors, so that a measurement must not choose it. The numbers for
Hopper were found by timing on an H200; those for other GPUs only keep compiled kernels within their
registers and shared memory (`tests/kernels/test_compile_kernels.py`).
"""

from typing import NamedTuple

from jaxjuice.ops.kernels import _launch

_PROGRAMS = 128  # enough to give almost every processor of a Hopper one


class Tile(NamedTuple):
    """`rows` x `columns` of a result, summed `depth` at a time, by `warps` x 32 threads."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def row_tile(batch: int, width: int, most_columns: int = 4096) -> Tile:
    """For kernels that go through rows of `width` numbers, one after another.

    A thread has 8 numbers in hand: with more, reads that wait for memory run out of registers.
    """
    columns = min(power_of_two(width), most_columns)
    rows = max(1, min(power_of_two(batch), 1024 // columns))
    return Tile(rows, columns, 1, min(16, max(1, rows * columns // 256)), 1)


def dense_forward_tile(
    units: int, nodes: int, batch: int, children: int, parts: int, in_parts: bool
) -> Tile:
    """For `units` products `[nodes, children] x [children, batch]` of operands in `parts`.

    `in_parts`: whether the left operand comes so, or as float32 and is split where it is read.
    """
    if not _is_large(units, nodes, batch):
        return _small_tile(nodes, batch, children, parts)
    if parts == 1:
        tile = Tile(128, 128, 64, 8, 3) if children > 512 else Tile(64, 128, 32, 4, 4)
    elif parts == 2:
        tile = Tile(128, 128, 64 if in_parts and children > 256 else 32, 8, 3)
    else:
        tile = Tile(128, 128 if in_parts else 64, 32, 8, 3)
    return _fit(tile, nodes, batch, children)


def dense_backward_tile(units: int, children: int, batch: int, nodes: int, parts: int) -> Tile:
    """For `units` products `[children, nodes] x [nodes, batch]` of operands in `parts`."""
    if not _is_large(units, children, batch):
        return _small_tile(children, batch, nodes, parts)
    if parts > 2:
        return _fit(Tile(128, 64, 32, 8, 3), children, batch, nodes)
    if nodes > 256:
        return _fit(Tile(128, 128, 64, 8, 3), children, batch, nodes)
    return _fit(Tile(128, 64, 32, 4, 3), children, batch, nodes)


def dense_gradient_tile(
    units: int, nodes: int, children: int, batch: int, parts: int, rounded: bool
) -> Tile:
    """For `units` products `[nodes, batch] x [batch, children]` of operands in `parts`."""
    if not _is_large(units, nodes, children):
        return _small_tile(nodes, children, batch, parts)
    tiles = units * -(-nodes // 256) * -(-children // 128)
    if tiles >= _PROGRAMS and parts < 3 and not rounded:
        return _fit(Tile(256, 128, 32, 8, 4), nodes, children, batch)
    return _fit(Tile(128, 128, 64 if parts < 3 else 32, 8, 3), nodes, children, batch)


def _is_large(units: int, rows: int, columns: int) -> bool:
    """Whether tiles of 128 x 128 give almost every processor of a Hopper one."""
    return _is_hopper() and units * -(-rows // 128) * -(-columns // 128) >= _PROGRAMS


def _small_tile(rows: int, columns: int, depth: int, parts: int) -> Tile:
    if not _is_hopper():
        return _fit(Tile(64, 64, 32, 4 if parts < 3 else 8, 2), rows, columns, depth)
    return _fit(Tile(64, 64, 64 if parts < 3 else 32, 4, 3), rows, columns, depth)


def block_forward_tile(batch: int, size: int, width: int, parts: int) -> Tile:
    """For products `[batch, width] x [width, size]` of blocks of few nodes."""
    if not _is_hopper():
        return _fit(Tile(64, 32, 32, 4, 2), batch, size, width)
    rows, stages = (256, 3) if parts == 1 else (256, 2) if parts == 2 else (128, 2)
    return _fit(Tile(rows, 64, 64, 8, stages), batch, size, width)


def element_flows_tile(batch: int, width: int, size: int, parts: int) -> Tile:
    """For products `[batch, size] x [size, width]` with blocks of few nodes."""
    if not _is_hopper():
        return _fit(Tile(64, 64, 32, 4, 2), batch, width, size)
    return _fit(Tile(64, 128, 32, 4, 3 if parts < 3 else 2), batch, width, size)


def block_gradient_tile(width: int, size: int, batch: int, parts: int, apart: bool) -> Tile:
    """For products `[width, batch] x [batch, size]`, of several blocks of few nodes at once.

    `apart`: both operands are read as they lie; else, one is computed where it is multiplied with.
    """
    if not _is_hopper():
        return _fit(Tile(64, 64, 32, 8 if apart and parts > 2 else 4, 2), width, size, batch)
    if parts < 3 and apart:
        return _fit(Tile(128, 64, 32, 4, 4), width, size, batch)
    if parts < 3:
        return _fit(Tile(256, 64, 16, 8, 4), width, size, batch)
    return _fit(Tile(128, 64, 32, 4, 3), width, size, batch)


def _fit(tile: Tile, rows: int, columns: int, depth: int) -> Tile:
    """No larger than the product, nor smaller than what matrix units take."""

    def fit(most: int, size: int) -> int:
        return min(most, max(16, power_of_two(size)))

    return Tile(fit(tile.rows, rows), fit(tile.columns, columns), fit(tile.depth, depth), *tile[3:])


def _is_hopper() -> bool:
    return (_launch.compute_capability() or 90) // 10 == 9


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()
