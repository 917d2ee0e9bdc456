"""Reading and writing the arrays of slots, `[slots, batch, width]`."""

import jax
from jax import lax

# Up to this many reads are added one by one, each fused into the next; more are gathered together.
_UNROLLED_READS = 8


def read_runs(
    array: jax.Array, slots: jax.Array, offsets: jax.Array | None, width: int
) -> jax.Array:
    """Sums of runs of nodes.

    Args:
        array: `[S, B, K]`.
        slots: int32 `[..., n]`, all in range.
        offsets: int32 `[..., n]`, where each run starts in its slot; None when `width` is K.
        width: length of a run.

    Returns:
        `[..., B, width]`, summed over n.
    """

    def read(slots, offsets):
        if offsets is None:
            return array.at[slots].get(mode="promise_in_bounds", wrap_negative_indices=False)
        numbers = lax.GatherDimensionNumbers(
            offset_dims=(slots.ndim, slots.ndim + 1),
            collapsed_slice_dims=(0,),
            start_index_map=(0, 2),
        )
        index = jax.numpy.stack([slots, offsets], axis=-1)
        sizes = (1, array.shape[1], width)
        return lax.gather(array, index, numbers, sizes, mode="promise_in_bounds")

    def column(j):
        return read(slots[..., j], None if offsets is None else offsets[..., j])

    if slots.shape[-1] > _UNROLLED_READS:
        return read(slots, offsets).sum(slots.ndim - 1)
    total = column(0)
    for j in range(1, slots.shape[-1]):
        total = total + column(j)
    return total


def read_scales(scales: jax.Array, slots: jax.Array) -> jax.Array:
    """`scales` `[S, B]` at `slots` `[..., n]`, summed over n: `[..., B]`."""
    if slots.shape[-1] == 1:
        slots = slots[..., 0]
        return scales.at[slots].get(mode="promise_in_bounds", wrap_negative_indices=False)
    read = scales.at[slots].get(mode="promise_in_bounds", wrap_negative_indices=False)
    return read.sum(slots.ndim - 1)


def write_slots(array: jax.Array, update: jax.Array, start) -> jax.Array:
    """Writes `update` `[n, ...]` from slot `start` on; in place where XLA may."""
    return lax.dynamic_update_slice_in_dim(array, update, start, axis=0)


def varying_axes(*trees) -> frozenset:
    """The mesh axes of a surrounding `shard_map` over which any leaf of `trees` varies."""
    axes: frozenset = frozenset()
    for leaf in jax.tree.leaves(trees):
        axes |= getattr(jax.typeof(leaf), "vma", frozenset())
    return axes


def match_varying(tree, axes: frozenset):
    """Marks the leaves of `tree` as varying over `axes`, so that they may meet what does.

    Differentiated, this sums cotangents over these axes: parameters that all devices of a `shard_map`
    share get the gradient of all samples.
    """

    def match(leaf):
        missing = tuple(sorted(axes - getattr(jax.typeof(leaf), "vma", frozenset())))
        return lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(match, tree) if axes else tree
