"""Reads children where they lie, adds up the factors of products, and exponentiates."""

import triton
import triton.language as tl

from jaxjuice.ops.kernels.device.arithmetic import fast_log, finite, first_unit, store_parts

LOWEST = tl.constexpr(-1e30)  # below every log-density, and finite


@triton.jit
def exponentiate_kernel(
    values,  # [slots, B, K], relative to
    scales,  # [slots, B]; perhaps the same memory as shifts
    table,  # [rows, K]: probabilities of leaves that have no slot of their own; if LOGS, their logs
    lookups,  # int32 [leaves, B]: their rows; -1 for a value of 0, -2 for NaN
    slots,  # int32 [groups, elements, factors]; 0: none, -1 - v: leaf v of `lookups`
    offsets,  # int32, the same shape
    starts,  # int32 [groups], if JOINT: where in shifts a group goes
    counter,  # int32 [1]: which units run, see `first_unit`
    places,  # int32 [units]: where in kept a unit goes, and, if not JOINT, in shifts; -1: nowhere
    kept_before,  # the same memory as kept
    shifts_before,  # perhaps the same memory as shifts
    after,  # not read
    stride,
    offset,
    B,
    groups,  # that run
    per_unit,  # groups of a unit: 1 if JOINT
    elements,  # of a group
    factors,
    num_places,  # of kept
    p,  # [groups, B, elements * WIDTH], if WRITE
    kept,  # [places, B, elements * WIDTH], if KEEP; with PARTS, [PARTS, places, B, ...]
    shifts,  # [slots, B]
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_LOOKUPS: tl.constexpr,
    LOGS: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    JOINT: tl.constexpr,  # whether groups are whole units
    BY_SAMPLE: tl.constexpr,  # whether neighbours have other groups, rather than other samples
    WRITE: tl.constexpr,
    KEEP: tl.constexpr,
    PARTS: tl.constexpr,  # of what is kept; 0 for float32
    ONE_TILE: tl.constexpr,  # one element, no wider than COLUMNS
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """p = exp(e - m), e the values of a group of elements that share a shift, m the largest.

    Grid: groups * tiles of ROWS samples. A group is a unit with all its elements, or one element;
    of these, one without factors is padding, and nothing is written for it.
    """
    tiles = tl.cdiv(B, ROWS)
    here = tl.program_id(0) % groups if BY_SAMPLE else tl.program_id(0) // tiles
    tile = tl.program_id(0) // groups if BY_SAMPLE else tl.program_id(0) % tiles
    group = first_unit(counter, stride, offset) * per_unit + here
    b = tile * ROWS + tl.arange(0, ROWS)
    real = b < B
    slots += group * elements * factors
    offsets += group * elements * factors
    if not JOINT:
        if tl.load(slots) == 0:
            return
    scale = _read_scale(scales, slots, factors, b, real, B)
    # What is stored, the sum of scale and shift, is rounded to few digits where it is large. p is
    # relative to the rounded sum, so that the rounding cancels and does not add up with depth.
    shift = tl.full([ROWS], LOWEST, tl.float32)
    out = p + ((here.to(tl.int64) * B + b) * (elements * WIDTH))[:, None]
    kept_place = group
    if KEEP:
        kept_place = tl.load(places + group // per_unit) * per_unit + group % per_unit
    keep = kept + ((kept_place.to(tl.int64) * B + b) * (elements * WIDTH))[:, None]
    size = tl.full([], num_places, tl.int64) * B * (elements * WIDTH)
    if ONE_TILE:
        j = tl.arange(0, COLUMNS)
        mask = real[:, None] & (j < WIDTH)[None, :]
        e = tl.zeros([ROWS, COLUMNS], tl.float32)
        e = _add_factors(
            e, values, table, lookups, slots, offsets, factors, b, real, j, mask, B, K, CHUNK,
            HAS_LOOKUPS, LOGS, HAS_OFFSETS,
        )  # fmt: skip
        shift = tl.maximum(shift, tl.max(tl.where(mask, e, LOWEST), axis=1))
        total = scale + shift
        shift = total - scale
        e = tl.exp(e - shift[:, None])
        if WRITE:
            tl.store(out + j[None, :], e, mask=mask)
        if KEEP:
            _keep(keep, size, j[None, :], e, mask & (kept_place >= 0), PARTS)
    else:
        # Only differences of scales may meet relative values, or these would lose their digits.
        for c in range(1, elements):
            more = _read_scale(scales, slots + c * factors, factors, b, real, B)
            scale = tl.maximum(scale, more)
        for c in range(elements):
            more = _read_scale(scales, slots + c * factors, factors, b, real, B) - scale
            for first in range(0, WIDTH, COLUMNS):
                j = first + tl.arange(0, COLUMNS)
                mask = real[:, None] & (j < WIDTH)[None, :]
                e = _element(
                    c, more, values, table, lookups, slots, offsets, factors, b, real, j, mask, B,
                    K, CHUNK, HAS_LOOKUPS, LOGS, HAS_OFFSETS,
                )  # fmt: skip
                shift = tl.maximum(shift, tl.max(tl.where(mask, e, LOWEST), axis=1))
        total = scale + shift
        shift = total - scale
        for c in range(elements):
            more = _read_scale(scales, slots + c * factors, factors, b, real, B) - scale
            for first in range(0, WIDTH, COLUMNS):
                j = first + tl.arange(0, COLUMNS)
                mask = real[:, None] & (j < WIDTH)[None, :]
                e = _element(
                    c, more, values, table, lookups, slots, offsets, factors, b, real, j, mask, B,
                    K, CHUNK, HAS_LOOKUPS, LOGS, HAS_OFFSETS,
                )  # fmt: skip
                e = tl.exp(e - shift[:, None])
                if WRITE:
                    tl.store(out + c * WIDTH + j[None, :], e, mask=mask)
                if KEEP:
                    column = c * WIDTH + j[None, :]
                    _keep(keep, size, column, e, mask & (kept_place >= 0), PARTS)
    slot = tl.load(starts + group) if JOINT else kept_place
    tl.store(shifts + slot.to(tl.int64) * B + b, total, mask=real)


@triton.jit
def _keep(kept, size, places, x, mask, PARTS: tl.constexpr):
    if PARTS == 0:
        tl.store(kept + places, x, mask=mask)
    else:
        store_parts(kept, size, places, x, mask, PARTS)


@triton.jit
def _element(
    c, scale, values, table, lookups, slots, offsets, factors, b, real, j, mask, B,
    K: tl.constexpr, CHUNK: tl.constexpr, HAS_LOOKUPS: tl.constexpr, LOGS: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
):  # fmt: skip
    """Values of a unit's element c at samples b and nodes j, on top of its scale."""
    e = tl.zeros(mask.shape, tl.float32) + scale[:, None]
    slots += c * factors
    offsets += c * factors
    return _add_factors(
        e, values, table, lookups, slots, offsets, factors, b, real, j, mask, B, K, CHUNK,
        HAS_LOOKUPS, LOGS, HAS_OFFSETS,
    )  # fmt: skip


@triton.jit
def _add_factors(
    e, values, table, lookups, slots, offsets, factors, b, real, j, mask, B, K: tl.constexpr,
    CHUNK: tl.constexpr, HAS_LOOKUPS: tl.constexpr, LOGS: tl.constexpr, HAS_OFFSETS: tl.constexpr,
):  # fmt: skip
    """Adds to e the relative values of an element's factors at samples b and nodes j."""
    for first in range(0, factors, CHUNK):
        # Of an element with few factors, the places behind them are empty.
        if tl.load(slots + first) != 0:
            # No branches around loads: masked ones cost little, and CHUNK of them are in flight.
            for f in tl.static_range(CHUNK):  # pyright: ignore
                slot = tl.load(slots + first + f, mask=first + f < factors, other=0)
                column = j[None, :]
                if HAS_OFFSETS:
                    column += tl.load(offsets + first + f, mask=first + f < factors, other=0)
                place = (slot.to(tl.int64) * B + b)[:, None] * K + column
                e += tl.load(values + place, mask=mask & (slot > 0), other=0.0)
                if HAS_LOOKUPS:
                    place = (-1 - slot).to(tl.int64) * B + b
                    row = tl.load(lookups + place, mask=real & (slot < 0), other=-1)
                    place = row.to(tl.int64)[:, None] * K + column
                    certain = 0.0 if LOGS else 1.0
                    found = tl.load(table + place, mask=mask & (row >= 0)[:, None], other=certain)
                    if slot < 0:
                        log = found if LOGS else fast_log(found)
                        e += tl.where((row == -2)[:, None], float("nan"), log)
    return e


@triton.jit
def _read_scale(scales, slots, factors, b, real, B):
    """The scale of one element at samples b; leaves that are looked up have none."""
    scale = tl.where(real, 0.0, 0.0)
    for f in range(factors):
        slot = tl.load(slots + f)
        place = slot.to(tl.int64) * B + b
        scale += tl.load(scales + place, mask=real & (slot > 0), other=0.0)
    return scale


@triton.jit
def scale_kernel(
    kept,  # [places, B, elements * WIDTH]
    back,  # [units that run, B, elements * WIDTH]
    places,  # int32 [units]; -1 for padding
    starts,  # int32 [units]: the slot of a unit's first element
    counter,  # int32 [1]: which units run, see `first_unit`
    flows_before,  # the same memory as flows
    stride,
    offset,
    B,
    elements,
    flows,  # [slots, B, WIDTH]
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Element flows p * back.

    Grid: units * elements * tiles of ROWS samples * tiles of COLUMNS nodes of an element.
    """
    TILES: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    tiles = tl.cdiv(B, ROWS) * TILES
    element = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    unit = element // elements
    entry = first_unit(counter, stride, offset) + unit
    place = tl.load(places + entry)
    if place >= 0:
        b = (tile // TILES) * ROWS + tl.arange(0, ROWS)
        j = (tile % TILES) * COLUMNS + tl.arange(0, COLUMNS)
        mask = (b < B)[:, None] & (j < WIDTH)[None, :]
        column = (element % elements) * WIDTH + j
        p_row = (place.to(tl.int64) * B + b) * (elements * WIDTH)
        p = tl.load(kept + p_row[:, None] + column[None, :], mask=mask, other=0.0)
        row = (unit.to(tl.int64) * B + b) * (elements * WIDTH)
        x = tl.load(back + row[:, None] + column[None, :], mask=mask, other=0.0)
        slot = (tl.load(starts + entry) + element % elements).to(tl.int64)
        tl.store(flows + (slot * B + b)[:, None] * WIDTH + j[None, :], p * finite(x), mask=mask)


@triton.jit
def empty_kernel(_, out):
    """Leaves its output as it is."""
