"""The sizes of tiles: a fixed table by class of shape and architecture, never by timing.

Which tile runs changes rounding errors, so that a measurement must not choose it. The numbers for
Hopper were found by timing on an H200; those for other GPUs only keep compiled kernels within their
registers and shared memory (`tests/kernels/test_compile_kernels.py`).
"""

from typing import NamedTuple


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


def product_tile(rows: int, columns: int, depth: int, mode: str, capability: int) -> Tile:
    """For products `[rows, depth] x [depth, columns]` in a mode of `_arithmetic.dot`."""
    # From Hopper to datacenter Blackwell, operands and sums of products need fewer registers, and
    # shared memory is large. Full float32 runs on the ordinary units everywhere.
    is_large = 90 <= capability < 110
    most_rows = 128 if mode == "bf16" or (is_large and mode != "ieee") else 64
    tile_columns = min(max(16, power_of_two(columns)), 64)
    # Three products of split operands have registers for a deep tile only if it is narrow.
    is_deep = is_large and (mode == "tf32" or (mode == "tf32x3" and tile_columns <= 32))
    deepest = 64 if depth >= 256 and is_deep else 32
    return Tile(
        rows=min(max(16, power_of_two(rows)), most_rows),
        columns=tile_columns,
        depth=min(max(16, power_of_two(depth)), deepest),
        warps=4,
        stages=3 if is_large else 2,
    )


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()
