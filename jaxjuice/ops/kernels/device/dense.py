"""Products of sum units of one block, and what comes before and after them, in one kernel each.

Letters as in `jaxjuice.ops`; operands in parts (`arithmetic.py`).
"""

import triton
import triton.language as tl

from jaxjuice.ops.kernels.device.arithmetic import (
    dot,
    finite,
    first_unit,
    load_and_split,
    load_parts,
    load_sum,
    store_parts,
)


@triton.jit
def split_kernel(x, size, parts, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Splits `[size]` float32 numbers into parts `[PARTS, size]`. Grid: blocks of numbers."""
    size = tl.full([], size, tl.int64)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    place = tl.arange(0, BLOCK)
    mask = place < size - first
    parts += first
    store_parts(parts, size, place, tl.load(x + first + place, mask=mask), mask, PARTS)


@triton.jit
def transpose_kernel(x, M, N, out, TILE: tl.constexpr):
    """`[X, M, N]` to `[X, N, M]`. Grid: X * tiles of rows * tiles of columns."""
    across = tl.cdiv(N, TILE)
    tiles = tl.cdiv(M, TILE) * across
    tile = tl.program_id(0) % tiles
    i = (tile // across) * TILE + tl.arange(0, TILE)
    j = (tile % across) * TILE + tl.arange(0, TILE)
    mask = (i < M)[:, None] & (j < N)[None, :]
    start = (tl.program_id(0) // tiles).to(tl.int64) * M * N
    i, j = i.to(tl.int64), j.to(tl.int64)
    block = tl.load(x + start + i[:, None] * N + j[None, :], mask=mask)
    tl.store(out + start + j[None, :] * M + i[:, None], block, mask=mask)


@triton.jit
def dense_forward_kernel(
    p,  # [parts, places, B, children]
    weights,  # [parts, rows, NODES, children]; float32 [1, rows, ...] if split where they are read
    rows,  # int32 [units]
    places,  # int32 [units]: where p of a unit is; -1 for padding
    starts,  # int32 [units]: the slot of a unit
    counter,  # int32 [1]: which units run, see `first_unit`
    values_before,  # the same memory as values
    stride,
    offset,
    num_places,
    num_rows,
    B,
    children,
    values,  # [slots, B, NODES]
    NODES: tl.constexpr,
    WIDTH: tl.constexpr,  # children are a multiple of it
    PARTS: tl.constexpr,
    ROUNDED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """v = log(p @ theta^T), nodes first: only the left operand can come from registers.

    Grid: units * tiles of ROWS nodes * tiles of COLUMNS samples. Nothing is written for padding.
    """
    column_tiles = tl.cdiv(B, COLUMNS)
    tiles = column_tiles * ((NODES + ROWS - 1) // ROWS)
    entry = first_unit(counter, stride, offset) + tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    place = tl.load(places + entry).to(tl.int64)
    if place < 0:
        return
    row = tl.load(rows + entry).to(tl.int64)
    i = (tile // column_tiles) * ROWS + tl.arange(0, ROWS)
    b = (tile % column_tiles) * COLUMNS + tl.arange(0, COLUMNS)
    inside, real = i < NODES, b < B
    CHILDREN = children // WIDTH * WIDTH  # so that the compiler knows it to be one
    p += place * B * CHILDREN
    weights += row * NODES * CHILDREN
    p_size = tl.full([], num_places, tl.int64) * B * CHILDREN
    w_size = tl.full([], num_rows, tl.int64) * NODES * CHILDREN
    # Products that add to one sum wait for each other, which shows where weights are split in
    # between: so each gets a sum of its own. Three parts would need six: too many registers.
    APART: tl.constexpr = weights.dtype.element_ty == tl.float32 and PARTS == 2 and not ROUNDED
    s = tl.zeros([ROWS, COLUMNS], tl.float32)
    s_middle, s_low = s, s
    for first in range(0, CHILDREN, DEPTH):
        j = first + tl.arange(0, DEPTH)
        within = j < CHILDREN
        w, w_middle, w_low = load_and_split(
            weights, w_size, i[:, None] * CHILDREN + j[None, :],
            inside[:, None] & within[None, :], PARTS,
        )  # fmt: skip
        x, x_middle, x_low = load_parts(
            p, p_size, b[None, :] * CHILDREN + j[:, None], real[None, :] & within[:, None], PARTS
        )
        if APART:
            s_middle = tl.dot(w_middle, x, s_middle)
            s_low = tl.dot(w, x_middle, s_low)
            s = tl.dot(w, x, s)
        else:
            s = dot(w, w_middle, w_low, x, x_middle, x_low, s, PARTS, ROUNDED)
    if APART:
        s += s_middle + s_low
    slot = tl.load(starts + entry).to(tl.int64)
    out = (slot * B + b)[None, :] * NODES + i[:, None]
    tl.store(values + out, tl.log(s), mask=real[None, :] & inside[:, None])


@triton.jit
def dense_backward_kernel(
    q,  # [parts, places, B, NODES]
    p,  # [P_PARTS, places, B, elements * WIDTH]
    weights,  # [parts, rows, NODES, elements * WIDTH]
    rows,  # int32 [units]
    places,  # int32 [units]: where q and p of a unit are; -1 for padding
    starts,  # int32 [units]: the slot of a unit's first element
    counter,  # int32 [1]: which units run, see `first_unit`
    flows_before,  # the same memory as flows
    stride,
    offset,
    num_places,
    num_rows,
    B,
    children,
    flows,  # [slots, B, WIDTH]
    NODES: tl.constexpr,
    WIDTH: tl.constexpr,  # children are a multiple of it
    P_PARTS: tl.constexpr,
    PARTS: tl.constexpr,
    ROUNDED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """p * (q @ theta), children first.

    Grid: units * tiles of ROWS children * tiles of COLUMNS samples. Nothing is written for padding.
    """
    elements = children // WIDTH
    CHILDREN = elements * WIDTH
    column_tiles = tl.cdiv(B, COLUMNS)
    tiles = column_tiles * ((CHILDREN + ROWS - 1) // ROWS)
    entry = first_unit(counter, stride, offset) + tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    place = tl.load(places + entry).to(tl.int64)
    if place < 0:
        return
    row = tl.load(rows + entry).to(tl.int64)
    j = (tile // column_tiles) * ROWS + tl.arange(0, ROWS)
    b = (tile % column_tiles) * COLUMNS + tl.arange(0, COLUMNS)
    within, real = j < CHILDREN, b < B
    q += place * B * NODES
    p += place * B * CHILDREN
    weights += row * NODES * CHILDREN
    q_size = tl.full([], num_places, tl.int64) * B * NODES
    p_size = tl.full([], num_places, tl.int64) * B * CHILDREN
    w_size = tl.full([], num_rows, tl.int64) * NODES * CHILDREN
    back = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, NODES, DEPTH):
        i = first + tl.arange(0, DEPTH)
        inside = i < NODES
        w, w_middle, w_low = load_parts(
            weights, w_size, i[None, :] * CHILDREN + j[:, None],
            inside[None, :] & within[:, None], PARTS,
        )  # fmt: skip
        y, y_middle, y_low = load_parts(
            q, q_size, b[None, :] * NODES + i[:, None], real[None, :] & inside[:, None], PARTS
        )
        back = dot(w, w_middle, w_low, y, y_middle, y_low, back, PARTS, ROUNDED)
    mask = real[None, :] & within[:, None]
    factor = load_sum(p, p_size, b[None, :] * CHILDREN + j[:, None], mask, P_PARTS)
    slot = (tl.load(starts + entry) + j // WIDTH).to(tl.int64)
    out = (slot[:, None] * B + b[None, :]) * WIDTH + (j % WIDTH)[:, None]
    tl.store(flows + out, factor * finite(back), mask=mask)


@triton.jit
def dense_gradient_kernel(
    q,  # [parts, places, B, NODES]
    p,  # [parts, places, B, children]
    copies,  # int32 [rows, number]: places of the units that share a row; -1 for none
    factors,  # [.., NODES, children], if MULTIPLY
    rows,  # int32 [rows]: the factors of each row, if MULTIPLY
    num_places,
    B,
    number,
    children,
    gradient,  # [rows, NODES, children]
    NODES: tl.constexpr,
    WIDTH: tl.constexpr,  # children are a multiple of it
    MULTIPLY: tl.constexpr,
    PARTS: tl.constexpr,
    ROUNDED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The sum over copies of q^T @ p, perhaps times factors.

    Grid: rows * tiles of COLUMNS children * tiles of ROWS nodes.
    """
    CHILDREN = children // WIDTH * WIDTH  # so that the compiler knows it to be one
    ROW_TILES: tl.constexpr = (NODES + ROWS - 1) // ROWS
    tiles = ROW_TILES * ((CHILDREN + COLUMNS - 1) // COLUMNS)
    row = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    i = (tile % ROW_TILES) * ROWS + tl.arange(0, ROWS)
    j = (tile // ROW_TILES) * COLUMNS + tl.arange(0, COLUMNS)
    inside, within = i < NODES, j < CHILDREN
    q_size = tl.full([], num_places, tl.int64) * B * NODES
    p_size = tl.full([], num_places, tl.int64) * B * CHILDREN
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for copy in range(number):
        place = tl.load(copies + row * number + copy).to(tl.int64)
        if place >= 0:
            q_here = q + place * B * NODES
            p_here = p + place * B * CHILDREN
            for first in range(0, B, DEPTH):
                b = first + tl.arange(0, DEPTH)
                real = b < B
                y, y_middle, y_low = load_parts(
                    q_here, q_size, b[None, :] * NODES + i[:, None],
                    real[None, :] & inside[:, None], PARTS,
                )  # fmt: skip
                x, x_middle, x_low = load_parts(
                    p_here, p_size, b[:, None] * CHILDREN + j[None, :],
                    real[:, None] & within[None, :], PARTS,
                )  # fmt: skip
                total = dot(y, y_middle, y_low, x, x_middle, x_low, total, PARTS, ROUNDED)
    mask = inside[:, None] & within[None, :]
    place = i[:, None] * CHILDREN + j[None, :]
    total = finite(total)
    if MULTIPLY:
        factors += tl.load(rows + row).to(tl.int64) * NODES * CHILDREN
        total *= tl.load(factors + place, mask=mask, other=0.0)
    gradient += row.to(tl.int64) * NODES * CHILDREN
    tl.store(gradient + place, total, mask=mask)
