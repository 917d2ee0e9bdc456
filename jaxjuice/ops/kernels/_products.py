"""Products of sum units whose blocks read some of the unit's elements each.

Letters as in `jaxjuice.ops`. Every element c has a shift m_c of its own, every block k the largest
of those it reads, M_k; what an element adds to a block is multiplied by r = exp(m_c - M_k) <= 1. So
an element is evaluated once for all blocks, and no block drowns in what only others read.
"""

import triton
import triton.language as tl

from jaxjuice.ops.kernels._arithmetic import dot


@triton.jit
def forward_kernel(
    p,  # [elements of all steps, B, WIDTH]
    shifts,  # [elements of all steps, B]: m
    block_shifts,  # [units, BLOCKS, B]: M
    unit_shifts,  # [units, B]: what the values become relative to
    weights,  # [rows, BLOCKS, SIZE, OWN * WIDTH]
    rows,  # int32 [steps, units]
    selection,  # int32 [steps, units, BLOCKS, OWN]: which of the unit's elements a block reads
    starts,  # int32 [steps]: the slot of the first unit
    step,  # int32 [1]: which step this is
    values_before,  # the same memory as values
    B,
    units,
    elements,
    values,  # [slots, B, BLOCKS * SIZE]
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
    OWN: tl.constexpr,
    WIDTH: tl.constexpr,
    MODE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """v = log(sum over c of (r p_c) @ theta_c^T) + M - unit shift.

    Grid: units * BLOCKS * tiles of ROWS samples * tiles of COLUMNS nodes of a block.
    """
    TILES: tl.constexpr = (SIZE + COLUMNS - 1) // COLUMNS
    STEPS: tl.constexpr = (WIDTH + DEPTH - 1) // DEPTH
    tiles = tl.cdiv(B, ROWS) * TILES
    tile = tl.program_id(0) % tiles
    r = tl.load(step)
    block = tl.program_id(0) // tiles
    unit = block // BLOCKS
    entry = r * units + unit
    b = (tile // TILES) * ROWS + tl.arange(0, ROWS)
    i = (tile % TILES) * COLUMNS + tl.arange(0, COLUMNS)
    real, inside = b < B, i < SIZE
    most = tl.load(block_shifts + block.to(tl.int64) * B + b, mask=real, other=0.0)
    row = tl.load(rows + entry).to(tl.int64) * BLOCKS + block % BLOCKS
    theta = weights + (row * SIZE + i[:, None]) * (OWN * WIDTH)
    first = entry.to(tl.int64) * elements
    chosen = selection + (entry * BLOCKS + block % BLOCKS) * OWN
    s = tl.zeros([ROWS, COLUMNS], tl.float32)
    for n in range(OWN * STEPS):
        own = n // STEPS
        j = (n % STEPS) * DEPTH + tl.arange(0, DEPTH)
        within = j < WIDTH
        place = (first + tl.load(chosen + own)) * B + b
        ratio = tl.exp(tl.load(shifts + place, mask=real, other=0.0) - most)
        x = tl.load(
            p + place[:, None] * WIDTH + j[None, :],
            mask=real[:, None] & within[None, :], other=0.0,
        )  # fmt: skip
        w = tl.load(
            theta + own * WIDTH + j[None, :], mask=inside[:, None] & within[None, :], other=0.0
        )
        s = dot(x * ratio[:, None], tl.trans(w), s, MODE)
    common = tl.load(unit_shifts + unit.to(tl.int64) * B + b, mask=real, other=0.0)
    v = tl.log(s) + (most - common)[:, None]
    slot = (tl.load(starts + r) + unit).to(tl.int64)
    out = (slot * B + b)[:, None] * (BLOCKS * SIZE) + (block % BLOCKS) * SIZE + i[None, :]
    tl.store(values + out, v, mask=real[:, None] & inside[None, :])


@triton.jit
def element_flows_kernel(
    p,  # [elements of all steps, B, WIDTH]
    shifts,  # [elements of all steps, B]: m
    block_shifts,  # [units, BLOCKS, B]: M
    q,  # [units, B, BLOCKS * SIZE]
    weights,  # [rows, BLOCKS, SIZE, OWN * WIDTH]
    rows,  # int32 [steps, units]
    readers,  # int32 [steps, units, elements, 1 + most]: how many, and block * OWN + place of each
    starts,  # int32 [steps]: the slot in flows of the first element
    step,  # int32 [1]: which step this is
    flows_before,  # the same memory as flows
    B,
    units,
    elements,
    most_readers,
    flows,  # [slots, B, WIDTH]
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
    OWN: tl.constexpr,
    WIDTH: tl.constexpr,
    MODE: tl.constexpr,
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
    r = tl.load(step)
    here = tl.program_id(0) // tiles
    unit = here // elements
    element = r * units * elements + here
    b = (tile // TILES) * ROWS + tl.arange(0, ROWS)
    j = (tile % TILES) * COLUMNS + tl.arange(0, COLUMNS)
    real, within = b < B, j < WIDTH
    readers += element * (1 + most_readers)
    count = tl.load(readers)
    row = tl.load(rows + r * units + unit).to(tl.int64) * BLOCKS
    place = element.to(tl.int64) * B + b
    m = tl.load(shifts + place, mask=real, other=0.0)
    back = tl.zeros([ROWS, COLUMNS], tl.float32)
    for n in range(count * STEPS):
        reader = tl.load(readers + 1 + n // STEPS)
        block = reader // OWN
        i = (n % STEPS) * DEPTH + tl.arange(0, DEPTH)
        inside = i < SIZE
        most = tl.load(
            block_shifts + (unit * BLOCKS + block).to(tl.int64) * B + b, mask=real, other=0.0
        )
        x = tl.load(
            q + ((unit.to(tl.int64) * B + b)[:, None] * BLOCKS + block) * SIZE + i[None, :],
            mask=real[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        w = tl.load(
            weights
            + (((row + block) * SIZE + i) * OWN + reader % OWN)[:, None] * WIDTH
            + j[None, :],
            mask=inside[:, None] & within[None, :], other=0.0,
        )  # fmt: skip
        back = dot(x * tl.exp(m - most)[:, None], w, back, MODE)
    if count > 0:
        mask = real[:, None] & within[None, :]
        factor = tl.load(p + place[:, None] * WIDTH + j[None, :], mask=mask, other=0.0)
        slot = (tl.load(starts + r) + here).to(tl.int64)
        out = (slot * B + b)[:, None] * WIDTH + j[None, :]
        tl.store(flows + out, factor * back, mask=mask)


@triton.jit
def weight_gradient_kernel(
    p,  # [elements of all steps, B, WIDTH]
    shifts,  # [elements of all steps, B]: m
    block_shifts,  # [units of all steps, BLOCKS, B]: M
    q,  # [units of all steps, B, BLOCKS * SIZE]
    selection,  # int32 [units of all steps, BLOCKS, OWN]
    copies,  # int32 [rows, number]: the units that share a row of parameters; -1 for none
    B,
    elements,
    number,
    gradient,  # [rows, BLOCKS, SIZE, OWN * WIDTH]
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
    OWN: tl.constexpr,
    WIDTH: tl.constexpr,
    MODE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The sum over copies of p_c^T @ (r q), children first. Tied copies select elements alike.

    Grid: rows * BLOCKS * OWN * tiles of ROWS children * tiles of COLUMNS nodes of a block.
    """
    TILES: tl.constexpr = (SIZE + COLUMNS - 1) // COLUMNS
    ALL_TILES: tl.constexpr = ((WIDTH + ROWS - 1) // ROWS) * TILES
    tile = tl.program_id(0) % ALL_TILES
    row = (tl.program_id(0) // ALL_TILES) // (BLOCKS * OWN)
    place = (tl.program_id(0) // ALL_TILES) % (BLOCKS * OWN)
    block = place // OWN
    j = (tile // TILES) * ROWS + tl.arange(0, ROWS)
    i = (tile % TILES) * COLUMNS + tl.arange(0, COLUMNS)
    within, inside = j < WIDTH, i < SIZE
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for copy in range(number):
        unit = tl.load(copies + row * number + copy).to(tl.int64)
        if unit >= 0:
            c = tl.load(selection + unit * (BLOCKS * OWN) + place)
            element = (unit * elements + c) * B
            shift = (unit * BLOCKS + block) * B
            for start in range(0, B, DEPTH):
                b = start + tl.arange(0, DEPTH)
                real = b < B
                m = tl.load(shifts + element + b, mask=real, other=0.0)
                most = tl.load(block_shifts + shift + b, mask=real, other=0.0)
                y = tl.load(
                    q + ((unit * B + b)[:, None] * BLOCKS + block) * SIZE + i[None, :],
                    mask=real[:, None] & inside[None, :], other=0.0,
                )  # fmt: skip
                x = tl.load(
                    p + (element + b)[:, None] * WIDTH + j[None, :],
                    mask=real[:, None] & within[None, :], other=0.0,
                )  # fmt: skip
                total = dot(tl.trans(x), y * tl.exp(m - most)[:, None], total, MODE)
    node = (row.to(tl.int64) * BLOCKS + block) * SIZE + i
    out = (node * OWN + place % OWN)[:, None] * WIDTH + j[None, :]
    tl.store(gradient + out, tl.trans(total), mask=inside[:, None] & within[None, :])
