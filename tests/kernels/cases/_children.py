"""Cases of what reads children: exponentials, and flows of elements."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxjuice.ops import kernels
from tests.kernels.cases._base import (
    LOWEST,
    STEP,
    STEPS,
    Case,
    as_array,
    as_arrays,
    as_finite,
    as_parts,
    by_unit,
    make_places,
    make_slots,
    slots_of_step,
    sum_of_parts,
    this_step,
    with_kept,
    written,
)


class _Children(NamedTuple):
    values: np.ndarray
    scales: np.ndarray
    table: np.ndarray | None
    lookups: np.ndarray | None
    slots: np.ndarray
    offsets: np.ndarray | None

    def elements(self, width: int) -> np.ndarray:
        """Log-values of the step `[units, elements, B, width]`, scale included."""
        _, units, elements, factors = self.slots.shape
        e = np.zeros((units, elements, self.values.shape[1], width))
        for x, c, f in np.ndindex(units, elements, factors):
            slot = self.slots[STEP, x, c, f]
            start = 0 if self.offsets is None else self.offsets[STEP, x, c, f]
            run = slice(start, start + width)
            if slot > 0:
                e[x, c] += self.values[slot, :, run].astype(float)
                e[x, c] += self.scales[slot].astype(float)[:, None]
            elif slot < 0:
                assert self.table is not None and self.lookups is not None
                for b, row in enumerate(self.lookups[-1 - slot]):
                    if row >= 0:
                        with np.errstate(divide="ignore"):
                            e[x, c, b] += np.log(self.table[row, run].astype(float))
                    elif row == -2:
                        e[x, c, b] = np.nan
        return e


def _children(
    rng, units: int, elements: int, factors: int, batch: int, width: int, *, offsets: bool = False,
    lookups: bool = False, illegal: bool = False, dead: bool = False, apart: bool = True,
) -> _Children:  # fmt: skip
    """Seven slots. Their scales are hundreds of nats `apart`, or few; sums of them are exact."""
    k = 2 * width if offsets else width
    slots_in_all = 7
    values = rng.normal(0, 8, (slots_in_all, batch, k))
    values[0] = np.nan  # slot 0 is never read
    scales = rng.normal(*((-800, 300) if apart else (-40, 3)), (slots_in_all, batch))
    scales = np.round(scales * 64) / 64
    scales[0] = np.nan
    if dead:
        values[rng.random(values.shape) < 0.3] = -np.inf
        values[1] = -np.inf
    slots = rng.integers(1, slots_in_all, (STEPS, units, elements, factors))
    if dead:
        slots[STEP, 0] = 1
    table = rows = None
    if lookups:
        table = rng.random((5, k))
        table[rng.random(table.shape) < 0.1] = 0
        rows = rng.integers(-2 if illegal else -1, 5, (3, batch))
        rows[0, :1], rows[1, -1:] = -1, -2 if illegal else 4
        slots = np.where(rng.random(slots.shape) < 0.5, -1 - rng.integers(0, 3, slots.shape), slots)
        slots[STEP, 0, 0, 0], slots[STEP, -1, -1, 0] = -1, -2
    if factors > 1:
        last = rng.integers(0, factors, (*slots.shape[:3], 1))
        last[:, 0, 0] = factors - 1
        slots = np.where(np.arange(factors) > last, 0, slots)
    starts = rng.integers(0, width + 1, slots.shape) if offsets else None
    return _Children(*as_arrays(values, scales, table, rows, slots, starts))


def _read(made: _Children, logs: bool) -> tuple:
    """What the kernels take to read children, from a table of probabilities or of their `logs`."""
    table = jnp.log(made.table) if logs and made.table is not None else made.table
    slots, offsets = (
        None if x is None else x.reshape(-1, *x.shape[2:]) for x in (made.slots, made.offsets)
    )
    return made.values, made.scales, table, logs, made.lookups, slots, offsets


def _told(p: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Masks where a float32 number would be 0 or have few digits, and anything but NaN if `bad`."""
    with np.errstate(invalid="ignore"):
        return np.ma.array(p, mask=((p < 1e-30) & (p > 0)) | (bad & ~np.isnan(p)))


def exponentiate(
    seed: int = 0, *, units=2, elements=1, factors=2, batch=17, width=33, in_place=True, keep=True,
    parts=0, logs=False, by_sample=False, **options,
) -> Case:  # fmt: skip
    rng = np.random.default_rng(seed)
    made = _children(
        rng, units, elements, factors, batch, width, apart=elements == 1, **options
    )  # fmt: skip
    e = made.elements(width)
    # A NaN may spread to all elements of a unit and to its shift, but not to other samples.
    bad = np.isnan(e).any((1, 3))
    m = np.ma.array(np.maximum(np.where(np.isnan(e), -np.inf, e).max((1, 3)), LOWEST), mask=bad)
    places, starts = make_places(rng, units), make_slots(rng, len(made.scales), units)
    kept = as_array(rng.random((STEPS * units, batch, elements * width))) if keep else None
    if kept is not None and parts:  # of few digits, so that the parts add up to them
        kept = as_array(np.round(kept * 256) / 256)
    before_kept = as_parts(kept, parts) if kept is not None and parts else kept
    room = rng.random((STEPS * units, batch))
    made = made._replace(scales=as_array(np.concatenate([made.scales, room])))
    unit_scales = None if in_place else as_array(rng.random(made.scales.shape))
    before = made.scales if unit_scales is None else unit_scales

    def expected(p, kept_now, scales):
        del p, kept_now
        # p is relative to m as it is stored, rounded: so nothing is lost.
        shift = np.asarray(scales)[starts[STEP]].astype(float)
        p = np.exp(e - shift[:, None, :, None]).swapaxes(1, 2)
        p = p.reshape(units, batch, elements * width)
        p = _told(p, bad[..., None])
        kept_now = None if kept is None else with_kept(kept, p, places[STEP])
        return None if parts else p, kept_now, written(before, m, starts[STEP])

    def op(made, unit_scales, starts, now, places, kept, implementation):
        p, kept, scales = kernels.exponentiate(
            *_read(made, logs), unit_scales, starts, now, places, kept, made.values, width,
            by_sample, implementation,
        )  # fmt: skip
        return p, sum_of_parts(kept) if parts else kept, scales

    tables = by_unit(starts), this_step(units), by_unit(places)
    arrays = (made, unit_scales, *tables, before_kept)
    return Case(op, arrays, expected, 5e-5, (False, False, True))


def exponentiate_apart(
    seed: int = 0, *, units=2, elements=3, factors=2, batch=17, width=33, parts=2,
    logs=False, by_sample=False, **options,
) -> Case:  # fmt: skip
    rng = np.random.default_rng(seed)
    made = _children(rng, units, elements, factors, batch, width, **options)
    if elements > 1:
        made.slots[:, -1, -1] = 0  # padding
    e = made.elements(width)
    bad = np.isnan(e).any(3)
    m = np.maximum(np.where(np.isnan(e), -np.inf, e).max(3), LOWEST)
    padding = (made.slots[STEP] == 0).all(2)
    m = np.ma.array(m, mask=bad | padding[..., None])
    count = units * elements
    places = make_slots(rng, 0, units)
    slots = slots_of_step(places * elements, elements)
    before = as_arrays(
        rng.integers(0, 256, (STEPS * count, batch, width)), rng.random((STEPS * count, batch))
    )

    def expected(_, shifts):
        shift = np.asarray(shifts)[slots].astype(float)
        p = np.exp(e - shift.reshape(m.shape)[..., None])
        p = _told(p, bad[..., None])
        p[padding] = np.ma.masked
        return (
            written(before[0], p.reshape(count, batch, width), slots),
            written(before[1], m.reshape(count, batch), slots),
        )

    def op(made, places, now, p, shifts, implementation):
        p, shifts = kernels.exponentiate_apart(
            *_read(made, logs), places, now, p, shifts, made.values, by_sample, implementation
        )
        return sum_of_parts(p), shifts

    arrays = made, by_unit(places), this_step(units), as_parts(before[0], parts), before[1]
    return Case(op, arrays, expected, 5e-5, (False, True))


def scale_flows(seed: int = 0, *, units=2, elements=1, batch=17, width=33, infinite=False) -> Case:
    """`infinite`: so is some of what comes back, and some of p is 0."""
    rng = np.random.default_rng(seed)
    places, starts = make_places(rng, units), make_slots(rng, 2, units, elements)
    kept, back, before = as_arrays(
        rng.random((STEPS * units, batch, elements * width)),
        rng.random((units, batch, elements * width)),
        rng.random((3 + STEPS * units * elements, batch, width)),
    )
    if infinite:
        back[rng.random(back.shape) < 0.3] = np.inf
        kept[rng.random(kept.shape) < 0.3] = 0
    f = np.ma.masked_all((units, elements, batch, width))
    for x, place in enumerate(places[STEP]):
        if place >= 0:
            product = kept[place].astype(float) * as_finite(back[x].astype(float), infinite)
            f[x] = product.reshape(batch, elements, width).swapaxes(0, 1)
    f = f.reshape(units * elements, batch, width)
    expected = written(before, f, slots_of_step(starts, elements))
    arrays = (kept, back, by_unit(places), by_unit(starts), this_step(units), before)
    return Case(kernels.scale_flows, arrays, (expected,), 1e-6, (False,))
