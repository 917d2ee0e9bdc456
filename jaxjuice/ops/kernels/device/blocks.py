"""Products of sum units whose blocks read some of the unit's elements each.

Letters as in `jaxjuice.ops`, operands in parts (`arithmetic.py`). Every element c has a shift m_c
of its own, every block k the largest of those it reads, M_k; what an element adds to a block is
multiplied by r = exp(m_c - M_k) <= 1. So an element is evaluated once for all blocks, and no block
drowns in what only others read.
"""

import triton
import triton.language as tl

from jaxjuice.ops.kernels.device.arithmetic import (
    dot,
    finite,
    first_unit,
    load_parts,
    load_sum,
    split,
)


@triton.jit
def block_shifts_kernel(
    shifts,  # [elements, B]: m
    places,  # int32 [units]: where in block_shifts a unit is, and in shifts with all its elements
    selection,  # int32 [units, BLOCKS, OWN]: which of the unit's elements a block reads
    starts,  # int32 [units]: the slot of a unit
    counter,  # int32 [1]: which units run, see `first_unit`
    scales_before,  # the same memory as scales
    block_shifts_before,  # the same memory as block_shifts
    stride,
    offset,
    B,
    elements,  # of a unit
    blocks,
    scales,  # [slots, B]: the largest M of a unit
    block_shifts,  # [units with elements in shifts, blocks, B]: M
    OWN: tl.constexpr,
    OWN_ROOM: tl.constexpr,  # a power of two, not below OWN
    AT_ONCE: tl.constexpr,  # how many blocks are read at a time
    ROWS: tl.constexpr,
):
    """M, and the scale, of units of so many blocks that `forward_kernel` would read them too often.

    Grid: units * tiles of ROWS samples.
    """
    tiles = tl.cdiv(B, ROWS)
    entry = first_unit(counter, stride, offset) + tl.program_id(0) // tiles
    b = (tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)
    real = b < B
    unit = tl.load(places + entry).to(tl.int64)
    selection += entry * blocks * OWN
    scale = tl.full([ROWS], float("-inf"), tl.float32)
    place = tl.arange(0, AT_ONCE * OWN_ROOM)
    for start in range(0, blocks, AT_ONCE):
        k = start + place // OWN_ROOM
        inside = (k < blocks) & (place % OWN_ROOM < OWN)
        c = tl.load(selection + k * OWN + place % OWN_ROOM, mask=inside, other=0)
        m = tl.load(
            shifts + (unit * elements + c)[:, None] * B + b[None, :],
            mask=inside[:, None] & real[None, :], other=float("-inf"),
        )  # fmt: skip
        most = tl.max(tl.reshape(m, [AT_ONCE, OWN_ROOM, ROWS]), axis=1)
        block = start + tl.arange(0, AT_ONCE)
        out = (unit * blocks + block)[:, None] * B + b[None, :]
        tl.store(block_shifts + out, most, mask=(block < blocks)[:, None] & real[None, :])
        scale = tl.maximum(scale, tl.max(most, axis=0))
    slot = tl.load(starts + entry).to(tl.int64)
    tl.store(scales + slot * B + b, scale, mask=real)


@triton.jit
def forward_kernel(
    p,  # [parts, elements, B, WIDTH]
    shifts,  # [elements, B]: m
    places,  # int32 [units]: where in block_shifts a unit is; in p, shifts with all its elements
    weights,  # [parts, rows, BLOCKS, SIZE, OWN * WIDTH]
    rows,  # int32 [units]
    selection,  # int32 [units, BLOCKS, OWN]: which of the unit's elements a block reads
    starts,  # int32 [units]: the slot of a unit
    counter,  # int32 [1]: which units run, see `first_unit`
    values_before,  # the same memory as values
    scales_before,  # the same memory as scales
    block_shifts_before,  # the same memory as block_shifts
    stride,
    offset,
    num_elements,  # in p
    num_rows,
    B,
    elements,  # of a unit
    values,  # [slots, B, BLOCKS * SIZE]
    scales,  # [slots, B]: the largest M of a unit, to which its values are relative
    block_shifts,  # [units with elements in p, BLOCKS, B]: M
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
    OWN: tl.constexpr,
    OWN_ROOM: tl.constexpr,  # a power of two, not below OWN
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    FOUND: tl.constexpr,  # whether scales and block_shifts are there, or are found here
    AT_ONCE: tl.constexpr,  # how many elements are looked at to find them
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """v = log(sum over c of r (p_c @ theta_c^T)) + M - scale; M; and the scale.

    Grid: units * BLOCKS * tiles of ROWS samples * tiles of COLUMNS nodes of a block.
    """
    TILES: tl.constexpr = (SIZE + COLUMNS - 1) // COLUMNS
    STEPS: tl.constexpr = (WIDTH + DEPTH - 1) // DEPTH
    tiles = tl.cdiv(B, ROWS) * TILES
    tile = tl.program_id(0) % tiles
    block = tl.program_id(0) // tiles
    entry = first_unit(counter, stride, offset) + block // BLOCKS
    b = (tile // TILES) * ROWS + tl.arange(0, ROWS)
    i = (tile % TILES) * COLUMNS + tl.arange(0, COLUMNS)
    real, inside = b < B, i < SIZE
    unit = tl.load(places + entry)
    first = unit * elements
    selection += entry * (BLOCKS * OWN)
    slot = tl.load(starts + entry).to(tl.int64)
    block_shifts += (unit.to(tl.int64) * BLOCKS + block % BLOCKS) * B
    scales += slot * B
    if FOUND:
        most = tl.load(block_shifts + b, mask=real, other=0.0)
        scale = tl.load(scales + b, mask=real, other=0.0)
    else:
        most = tl.full([ROWS], float("-inf"), tl.float32)
        scale = most
        for start in range(0, BLOCKS * OWN, AT_ONCE):
            place = start + tl.arange(0, AT_ONCE)
            c = tl.load(selection + place, mask=place < BLOCKS * OWN, other=0)
            m = tl.load(
                shifts + (first + c).to(tl.int64)[:, None] * B + b[None, :],
                mask=(place < BLOCKS * OWN)[:, None] & real[None, :], other=float("-inf"),
            )  # fmt: skip
            scale = tl.maximum(scale, tl.max(m, axis=0))
            mine = place // OWN == block % BLOCKS
            most = tl.maximum(most, tl.max(tl.where(mine[:, None], m, float("-inf")), axis=0))
        if tile % TILES == 0:
            tl.store(block_shifts + b, most, mask=real)
            if block % BLOCKS == 0:
                tl.store(scales + b, scale, mask=real)
    row = tl.load(rows + entry).to(tl.int64) * BLOCKS + block % BLOCKS
    weights += row * (SIZE * OWN * WIDTH)
    p_size = tl.full([], num_elements, tl.int64) * B * WIDTH
    w_size = tl.full([], num_rows, tl.int64) * (BLOCKS * SIZE * OWN * WIDTH)
    # Read before the loop: loads whose addresses were just loaded would not run ahead of it.
    place = tl.arange(0, OWN_ROOM)
    chosen = tl.load(selection + (block % BLOCKS) * OWN + place, mask=place < OWN, other=0)
    s = tl.zeros([ROWS, COLUMNS], tl.float32)
    for n in range(OWN * STEPS):
        own = n // STEPS
        c = tl.sum(tl.where(place == own, chosen, 0))
        element = (first + c).to(tl.int64) * B + b
        j = (n % STEPS) * DEPTH + tl.arange(0, DEPTH)
        within = j < WIDTH
        ratio = tl.exp(tl.load(shifts + element, mask=real, other=0.0) - most)
        x, x_middle, x_low = load_parts(
            p, p_size, element[:, None] * WIDTH + j[None, :], real[:, None] & within[None, :], PARTS
        )
        w, w_middle, w_low = load_parts(
            weights, w_size, i[None, :] * (OWN * WIDTH) + own * WIDTH + j[:, None],
            inside[None, :] & within[:, None], PARTS,
        )  # fmt: skip
        none = tl.zeros([ROWS, COLUMNS], tl.float32)
        more = dot(x, x_middle, x_low, w, w_middle, w_low, none, PARTS, False)
        s += ratio[:, None] * more
    v = tl.log(s) + (most - scale)[:, None]
    out = (slot * B + b)[:, None] * (BLOCKS * SIZE) + (block % BLOCKS) * SIZE + i[None, :]
    tl.store(values + out, v, mask=real[:, None] & inside[None, :])


@triton.jit
def element_flows_kernel(
    p,  # [P_PARTS, elements of all units, B, WIDTH]
    shifts,  # [elements of all units, B]: m
    block_shifts,  # [units, BLOCKS, B]: M
    q,  # [units, B, BLOCKS * SIZE]; if APART, r q [PARTS, units, BLOCKS, OWN, B, SIZE]
    weights,  # [parts, rows, BLOCKS, SIZE, OWN * WIDTH]
    rows,  # int32 [units]
    readers,  # int32 [units, elements, 1 + most]: how many, and block * OWN + place of each
    starts,  # int32 [units]: the slot in flows of a unit's first element
    counter,  # int32 [1]: which units run, see `first_unit`
    flows_before,  # the same memory as flows
    stride,
    offset,
    num_elements,  # of all units
    num_readers,  # of all units, if APART
    num_rows,
    B,
    elements,
    most_readers,
    flows,  # [slots, B, WIDTH]
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
    OWN: tl.constexpr,
    APART: tl.constexpr,
    READERS_ROOM: tl.constexpr,  # a power of two, not below most_readers
    WIDTH: tl.constexpr,
    P_PARTS: tl.constexpr,
    PARTS: tl.constexpr,
    ROUNDED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """p_c * sum over the blocks that read c of (r q) @ theta_c.

    Grid: units * elements * tiles of ROWS samples * tiles of COLUMNS children. An element that no
    block reads is padding, and nothing is written for it.
    """
    TILES: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    STEPS: tl.constexpr = (SIZE + DEPTH - 1) // DEPTH
    tiles = tl.cdiv(B, ROWS) * TILES
    tile = tl.program_id(0) % tiles
    begin = first_unit(counter, stride, offset)
    here = tl.program_id(0) // tiles
    entry = begin + here // elements
    element = begin * elements + here
    readers += element * (1 + most_readers)
    count = tl.load(readers)
    if count == 0:
        return
    b = (tile // TILES) * ROWS + tl.arange(0, ROWS)
    j = (tile % TILES) * COLUMNS + tl.arange(0, COLUMNS)
    real, within = b < B, j < WIDTH
    row = tl.load(rows + entry).to(tl.int64) * BLOCKS
    place = element.to(tl.int64) * B + b
    p_size = tl.full([], num_elements, tl.int64) * B * WIDTH
    w_size = tl.full([], num_rows, tl.int64) * (BLOCKS * SIZE * OWN * WIDTH)
    y_size = tl.full([], num_readers, tl.int64) * B * SIZE
    m = tl.load(shifts + place, mask=real, other=0.0)
    # Read before the loop: loads whose addresses were just loaded would not run ahead of it.
    number = tl.arange(0, READERS_ROOM)
    found = tl.load(readers + 1 + number, mask=number < count, other=0)
    back = tl.zeros([ROWS, COLUMNS], tl.float32)
    for n in range(count * STEPS):
        reader = tl.sum(tl.where(number == n // STEPS, found, 0))
        block = reader // OWN
        i = (n % STEPS) * DEPTH + tl.arange(0, DEPTH)
        inside = i < SIZE
        if APART:
            place_y = ((entry * (BLOCKS * OWN) + reader).to(tl.int64) * B + b)[:, None] * SIZE
            y, y_middle, y_low = load_parts(
                q, y_size, place_y + i[None, :], real[:, None] & inside[None, :], PARTS
            )
        else:
            most = tl.load(
                block_shifts + (entry * BLOCKS + block).to(tl.int64) * B + b, mask=real, other=0.0
            )
            y = tl.load(
                q + ((entry.to(tl.int64) * B + b)[:, None] * BLOCKS + block) * SIZE + i[None, :],
                mask=real[:, None] & inside[None, :], other=0.0,
            )  # fmt: skip
            y, y_middle, y_low = split(y * tl.exp(m - most)[:, None], PARTS)
        w, w_middle, w_low = load_parts(
            weights, w_size,
            (((row + block) * SIZE + i) * OWN + reader % OWN)[:, None] * WIDTH + j[None, :],
            inside[:, None] & within[None, :], PARTS,
        )  # fmt: skip
        back = dot(y, y_middle, y_low, w, w_middle, w_low, back, PARTS, ROUNDED)
    mask = real[:, None] & within[None, :]
    factor = load_sum(p, p_size, place[:, None] * WIDTH + j[None, :], mask, P_PARTS)
    slot = (tl.load(starts + entry) + here % elements).to(tl.int64)
    out = (slot * B + b)[:, None] * WIDTH + j[None, :]
    tl.store(flows + out, factor * finite(back), mask=mask)


@triton.jit
def weight_gradient_kernel(
    p,  # [parts, elements of all units, B, WIDTH]
    shifts,  # [elements of all units, B]: m
    block_shifts,  # [units, BLOCKS, B]: M
    q,  # as element_flows_kernel takes it
    readers,  # int32 [units, elements, 1 + most], as element_flows_kernel takes them
    copies,  # int32 [rows, number]: the units that share a row of parameters; -1 for none
    factors,  # [.., BLOCKS, SIZE, OWN * WIDTH], if MULTIPLY
    rows,  # int32 [rows]: the factors of each row, if MULTIPLY
    num_elements,  # of all units
    num_readers,  # of all units, if APART
    B,
    elements,
    most_readers,
    number,
    groups,  # of READERS readers of an element
    gradient,  # [rows, BLOCKS, SIZE, OWN * WIDTH]
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
    OWN: tl.constexpr,
    APART: tl.constexpr,
    WIDTH: tl.constexpr,
    MULTIPLY: tl.constexpr,
    PARTS: tl.constexpr,
    ROUNDED: tl.constexpr,
    READERS: tl.constexpr,
    ROOM: tl.constexpr,  # for nodes of a reader: READERS * ROOM columns
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The sum over copies of p_c^T @ (r q), children first, perhaps times factors.

    Tied copies select elements alike. An element is read once for all readers of a group.

    Grid: rows * elements * groups of readers * tiles of ROWS children * tiles of ROOM nodes of a
    block.
    """
    TILES: tl.constexpr = (SIZE + ROOM - 1) // ROOM
    ALL_TILES: tl.constexpr = ((WIDTH + ROWS - 1) // ROWS) * TILES
    tile = tl.program_id(0) % ALL_TILES
    group = (tl.program_id(0) // ALL_TILES) % groups
    c = (tl.program_id(0) // ALL_TILES) // groups % elements
    row = (tl.program_id(0) // ALL_TILES) // groups // elements
    alike = tl.load(copies + row * number)  # the first is there always
    readers += (alike * elements + c) * (1 + most_readers)
    if group * READERS >= tl.load(readers):
        return
    j = (tile // TILES) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, READERS * ROOM)
    which = group * READERS + column // ROOM
    i = (tile % TILES) * ROOM + column % ROOM
    within = j < WIDTH
    inside = (which < tl.load(readers)) & (i < SIZE)
    reader = tl.load(readers + 1 + which, mask=inside, other=0)
    block = reader // OWN
    p_size = tl.full([], num_elements, tl.int64) * B * WIDTH
    y_size = tl.full([], num_readers, tl.int64) * B * SIZE
    total = tl.zeros([ROWS, READERS * ROOM], tl.float32)
    for copy in range(number):
        unit = tl.load(copies + row * number + copy).to(tl.int64)
        if unit >= 0:
            element = (unit * elements + c) * B
            for first in range(0, B, DEPTH):
                b = first + tl.arange(0, DEPTH)
                real = b < B
                x, x_middle, x_low = load_parts(
                    p, p_size, (element + b)[None, :] * WIDTH + j[:, None],
                    real[None, :] & within[:, None], PARTS,
                )  # fmt: skip
                mask = real[:, None] & inside[None, :]
                if APART:
                    place_y = (unit * (BLOCKS * OWN) + reader)[None, :] * B + b[:, None]
                    y, y_middle, y_low = load_parts(
                        q, y_size, place_y * SIZE + i[None, :], mask, PARTS
                    )
                else:
                    m = tl.load(shifts + element + b, mask=real, other=0.0)
                    most = tl.load(
                        block_shifts + (unit * BLOCKS + block)[None, :] * B + b[:, None],
                        mask=mask, other=0.0,
                    )  # fmt: skip
                    y = tl.load(
                        q + (unit * B + b)[:, None] * (BLOCKS * SIZE) + (block * SIZE + i)[None, :],
                        mask=mask, other=0.0,
                    )  # fmt: skip
                    # Of what is masked m - most is no ratio, its exponential perhaps infinite.
                    y = tl.where(mask, y * tl.exp(m[:, None] - most), 0.0)
                    y, y_middle, y_low = split(y, PARTS)
                total = dot(x, x_middle, x_low, y, y_middle, y_low, total, PARTS, ROUNDED)
    mask = inside[None, :] & within[:, None]
    place = ((block * SIZE + i) * OWN + reader % OWN)[None, :] * WIDTH + j[:, None]
    ROW: tl.constexpr = BLOCKS * SIZE * OWN * WIDTH
    total = finite(total)
    if MULTIPLY:
        factors += tl.load(rows + row).to(tl.int64) * ROW
        total *= tl.load(factors + place, mask=mask, other=0.0)
    tl.store(gradient + row.to(tl.int64) * ROW + place, total, mask=mask)
