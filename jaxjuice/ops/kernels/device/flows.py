"""Pulls the flows of nodes from where they lie: ratios of sum nodes, counts of leaves."""

import triton
import triton.language as tl

from jaxjuice.ops.kernels.device.arithmetic import first_unit, store_parts

LARGEST_EXPONENT = tl.constexpr(88.3)  # exp of it is finite in float32
LAST = tl.constexpr(2**31 - 1)  # above every key
LARGEST_RATIO = tl.constexpr(3.38e38)  # what bfloat16 does not round to infinity


@triton.jit
def flow_ratio_kernel(
    values,  # [slots, B, NODES]
    flows,  # [slots, B, WIDTH]
    slots,  # int32 [units, PIECES, reads]; 0 for none
    offsets,  # int32, the same shape
    block_shifts,  # [units, BLOCKS, B]: M, if BLOCKS > 1
    scales,  # [slots, B]: what the values are relative to, if BLOCKS > 1
    shifts,  # [elements of all units, B]: m, if OWN
    selection,  # int32 [units, BLOCKS, OWN]: which of the unit's elements a block reads
    starts,  # int32 [units]: the slot of a unit
    counter,  # int32 [1]: which units run, see `first_unit`
    places,  # int32 [units]: where in kept a unit goes; -1 for nowhere
    kept_before,  # the same memory as kept
    after,  # not read
    stride,
    offset,
    B,
    reads,
    elements,  # of a unit, if OWN
    num_places,  # of kept
    q,  # [units that run, B, NODES], if WRITE
    # With KEEP [places, B, NODES]; with PARTS [PARTS, places, B, NODES]; with OWN
    # [PARTS, units, BLOCKS, OWN, B, NODES / BLOCKS].
    kept,
    NODES: tl.constexpr,
    BLOCKS: tl.constexpr,
    OWN: tl.constexpr,  # elements that a block reads, if r q is kept for each of them; 0 if q is
    PIECES: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    WRITE: tl.constexpr,
    KEEP: tl.constexpr,
    PARTS: tl.constexpr,  # of what is kept; 0 for float32
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """q = f / s, 0 where f or s is; or r q for every element that a block reads, r = exp(m - M).

    Grid: units * PIECES * tiles of ROWS samples * tiles of COLUMNS nodes of a piece.
    """
    SIZE: tl.constexpr = NODES // PIECES
    TILES: tl.constexpr = (SIZE + COLUMNS - 1) // COLUMNS
    tiles = tl.cdiv(B, ROWS) * TILES
    tile = tl.program_id(0) % tiles
    unit = (tl.program_id(0) // tiles) // PIECES
    here = first_unit(counter, stride, offset) + unit
    piece = (tl.program_id(0) // tiles) % PIECES
    b = (tile // TILES) * ROWS + tl.arange(0, ROWS)
    j = (tile % TILES) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (b < B)[:, None] & (j < SIZE)[None, :]
    f = tl.zeros([ROWS, COLUMNS], tl.float32)
    entry = (here * PIECES + piece) * reads
    f = _pull(
        f, flows, slots + entry, offsets + entry, reads, b, j, mask, B, WIDTH, CHUNK, HAS_OFFSETS
    )
    node = piece * SIZE + j
    slot = tl.load(starts + here).to(tl.int64)
    v = tl.load(values + (slot * B + b)[:, None] * NODES + node[None, :], mask=mask, other=0.0)
    if BLOCKS > 1:
        block = here.to(tl.int64) * BLOCKS + node // (NODES // BLOCKS)
        scale = tl.load(scales + slot * B + b, mask=b < B, other=0.0)
        most = tl.load(block_shifts + block[None, :] * B + b[:, None], mask=mask, other=0.0)
        v -= most - scale[:, None]  # as it was added
    live = (f != 0) & (v > float("-inf"))
    ratio = tl.where(live, f * tl.exp(tl.minimum(-v, LARGEST_EXPONENT)), 0.0)
    ratio = tl.where(ratio > LARGEST_RATIO, LARGEST_RATIO, ratio)
    if WRITE:
        now = (unit.to(tl.int64) * B + b)[:, None] * NODES + node[None, :]
        tl.store(q + now, ratio, mask=mask)
    if OWN > 0:
        size = tl.full([], num_places, tl.int64) * B * (NODES // BLOCKS)
        column = node % (NODES // BLOCKS)
        for own in range(OWN):
            reader = block * OWN + own
            c = tl.load(selection + reader, mask=j < SIZE, other=0)
            element = (here * elements + c).to(tl.int64)
            m = tl.load(shifts + element[None, :] * B + b[:, None], mask=mask, other=0.0)
            # Of what is masked m - most is no ratio, and its exponential may be infinite.
            y = tl.where(mask, ratio * tl.exp(m - most), 0.0)
            out = (reader[None, :] * B + b[:, None]) * (NODES // BLOCKS) + column[None, :]
            store_parts(kept, size, out, y, mask, PARTS)
    elif KEEP:
        place = tl.load(places + here)
        out = (place.to(tl.int64) * B + b)[:, None] * NODES + node[None, :]
        mask = mask & (place >= 0)
        if PARTS == 0:
            tl.store(kept + out, ratio, mask=mask)
        else:
            size = tl.full([], num_places, tl.int64) * B * NODES
            store_parts(kept, size, out, ratio, mask, PARTS)


@triton.jit
def leaf_counts_kernel(
    flows,  # [slots, B, WIDTH]
    slots,  # int32 [leaves, PIECES, reads]; 0 for none
    offsets,  # int32, the same shape
    keys,  # int32 [tables, members]: ascending, category * members + member
    leaves,  # int32 [tables, members // B]: which leaf
    members,  # of a table: its leaves times B; member v * B + b of table p is leaf leaves[p, v]
    first,  # the first category to count
    categories,  # how many
    B,
    reads,
    counts,  # [tables, categories, NODES]
    NODES: tl.constexpr,
    PIECES: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    AT_ONCE: tl.constexpr,  # categories of a program
    COLUMNS: tl.constexpr,
):
    """The flows of every category, added up over samples and tied leaves in a fixed order.

    Grid: (tables * groups of AT_ONCE categories, tiles of COLUMNS nodes).
    """
    SIZE: tl.constexpr = NODES // PIECES
    groups = tl.cdiv(categories, AT_ONCE)
    node = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = node < NODES
    pid = tl.program_id(0) // groups
    start = (tl.program_id(0) % groups) * AT_ONCE
    keys += pid.to(tl.int64) * members
    low = (first + start) * members
    # The first key not below `low`, by bisection.
    i = tl.zeros([], tl.int32)
    stop = i + members
    while i < stop:
        middle = (i + stop) // 2
        below = tl.load(keys + middle) < low
        i = tl.where(below, middle + 1, i)
        stop = tl.where(below, stop, middle)
    key = tl.load(keys + i, mask=i < members, other=LAST)
    for category in range(start, min(start + AT_ONCE, categories)):
        low = (first + category) * members
        total = tl.zeros([1, COLUMNS], tl.float32)
        while key < low + members:
            member = key - low
            leaf = tl.load(leaves + pid * (members // B) + member // B)
            b = member % B
            if PIECES == 1:
                total = _pull(
                    total, flows, slots + leaf * reads, offsets + leaf * reads, reads,
                    b + tl.zeros([1], tl.int32), node, mask[None, :], B, WIDTH, CHUNK, HAS_OFFSETS,
                )  # fmt: skip
            else:
                entry = (leaf * PIECES + node // SIZE) * reads
                for n in range(reads):
                    slot = tl.load(slots + entry + n, mask=mask, other=0)
                    place = (slot.to(tl.int64) * B + b) * WIDTH + node % SIZE
                    if HAS_OFFSETS:
                        place += tl.load(offsets + entry + n, mask=mask, other=0)
                    more = tl.load(flows + place, mask=mask & (slot > 0), other=0.0)
                    total += more[None, :]
            i += 1
            key = tl.load(keys + i, mask=i < members, other=LAST)
        place = (pid.to(tl.int64) * categories + category) * NODES + node
        tl.store(counts + place[None, :], total, mask=mask[None, :])


@triton.jit
def _pull(
    total, flows, slots, offsets, reads, b, j, mask, B, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
):  # fmt: skip
    """Adds to `total` a run of flows at samples b and nodes j from every slot."""
    for first in range(0, reads, CHUNK):
        # No branches around loads: masked ones cost little, and CHUNK of them are in flight.
        for r in tl.static_range(CHUNK):  # pyright: ignore
            slot = tl.load(slots + first + r, mask=first + r < reads, other=0)
            column = j[None, :]
            if HAS_OFFSETS:
                column += tl.load(offsets + first + r, mask=first + r < reads, other=0)
            place = (slot.to(tl.int64) * B + b)[:, None] * WIDTH + column
            total += tl.load(flows + place, mask=mask & (slot > 0), other=0.0)
    return total
