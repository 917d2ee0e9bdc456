"""Reading and writing the arrays of slots, `[slots, batch, width]`."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# Up to this many reads are added one by one, each fused into the next; more run as a loop.
_UNROLLED_READS = 16


def read_runs(
    array: jax.Array,
    slots: jax.Array,
    offsets: jax.Array | None,
    width: int,
    *,
    batch_axis: int = 1,
    factors: jax.Array | None = None,
    entries: Sequence[int] = (),
) -> jax.Array:
    """Sums of runs of nodes.

    Args:
        array: `[S, B, K]`.
        slots: int32 `[X, C, n]`, all in range.
        offsets: int32 `[X, C, n]`, where each run starts in its slot; None when `width` is K.
        width: length of a run.
        batch_axis: 1 where the runs of an entry are to lie side by side, as one operand of a
            product; 2 where each is to be a slot.
        factors: `[X, C, n, B]`, what each run is multiplied by (with `batch_axis` 2).
        entries: that many first entries of X have a j-th run, for every j, fewer and fewer; the
            others' are not read. Empty where all have all.

    Returns:
        `[X, B, C, width]` or, with `batch_axis` 2, `[X, C, B, width]`; summed over n.
    """
    axes = (0,) if offsets is None else (0, 2)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(batch_axis, 3), collapsed_slice_dims=(0,), start_index_map=axes
    )
    index = slots[..., None] if offsets is None else jnp.stack([slots, offsets], axis=-1)

    def read(j, count: int) -> jax.Array:
        sizes = (1, array.shape[1], width)
        runs = lax.gather(array, index[:count, :, j], numbers, sizes, mode="promise_in_bounds")
        return runs if factors is None else runs * factors[:count, :, j, :, None]

    # Every entry takes a first run: it may be none, slot 0.
    return _add_reads(read, (len(slots), *(entries[1:] or (len(slots),) * (slots.shape[2] - 1))))


def read_scales(scales: jax.Array, slots: jax.Array, *, batch_axis: int = 1) -> jax.Array:
    """`scales` `[S, B]` at `slots` `[X, C, n]`, summed over n.

    Returns:
        `[X, B, C]` or, with `batch_axis` 2, `[X, C, B]`.
    """
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(3,), collapsed_slice_dims=(0,), start_index_map=(0,)
    )
    # One gather for all reads: a kernel for each would cost more to compile than to run.
    sizes = (1, scales.shape[1])
    reads = lax.gather(scales, slots[..., None], numbers, sizes, mode="promise_in_bounds")
    total = reads.sum(2)
    return total.swapaxes(1, 2) if batch_axis == 1 else total


def _add_reads(read: Callable[[Any, int], jax.Array], entries: Sequence[int]) -> jax.Array:
    """The sum over j of `read(j, entries[j])`, of the first entries of that of `read(0, ...)`."""
    total = read(0, entries[0])
    first = 1
    for count, same in groupby(entries[1:]):
        stop = first + len(list(same))
        part = total[:count]
        if stop - first > _UNROLLED_READS:
            part = lax.fori_loop(
                first, stop, lambda j, part, count=count: part + read(j, count), part
            )
        else:
            for j in range(first, stop):
                part = part + read(j, count)
        total = part if count == len(total) else total.at[:count].set(part)
        first = stop
    return total


def write_slots(array: jax.Array, update: jax.Array, start) -> jax.Array:
    """Writes `update` `[n, ...]` from slot `start` on; in place where XLA may."""
    return lax.dynamic_update_slice_in_dim(array, update, start, axis=0)


def varying_axes(*trees) -> frozenset:
    """The mesh axes of a surrounding `shard_map` over which any leaf of `trees` varies."""
    return frozenset().union(*(_varying(leaf) for leaf in jax.tree.leaves(trees)))


def match_varying(tree, axes: frozenset):
    """Marks the leaves of `tree` as varying over `axes`, so that they may meet what does.

    Differentiated, this sums cotangents over these axes: parameters that all devices of a
    `shard_map` share get the gradient of all samples.
    """

    def match(leaf):
        missing = tuple(sorted(axes - _varying(leaf)))
        return lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(match, tree) if axes else tree


def _varying(leaf) -> frozenset:
    manual = getattr(jax.typeof(leaf), "manual_axis_type", None)
    return frozenset() if manual is None else manual.varying
