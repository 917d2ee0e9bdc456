"""Work on a batch in parts, so that what it needs beside its results stays bounded."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

# 32 MiB in float32; a step holds a few arrays of this size.
_MOST_ELEMENTS = 2**23


def map_samples(
    step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, arrays: Any, per_sample: int
) -> tuple[Any, Any]:
    """Runs `step(carry, part of arrays) -> (carry, outputs)` over parts of the batch.

    Args:
        step: gets and returns arrays `[X, samples, ...]`.
        carry: what is handed on from part to part, for sums over samples.
        arrays: a tree of arrays `[X, B, ...]`. The last part may be filled up with zeros.
        per_sample: how many elements the largest array of `step` has for each sample.

    Returns:
        The last carry, and the outputs joined to `[X, B, ...]`.
    """
    batch = jax.tree.leaves(arrays)[0].shape[1]
    parts = num_parts(batch, per_sample)
    if parts <= 1:
        return step(carry, arrays)
    size = -(-batch // parts)

    # A part takes every `parts`-th sample: then each device has its share of every part of a batch
    # whose samples lie in one run on each.
    def split(x: Array) -> Array:
        if size * parts > batch:
            x = jnp.pad(x, [(0, 0), (0, size * parts - batch), *[(0, 0)] * (x.ndim - 2)])
        return jnp.moveaxis(x.reshape(x.shape[0], size, parts, *x.shape[2:]), 2, 0)

    def join(x: Array) -> Array:
        x = jnp.moveaxis(x, 0, 2)
        return x.reshape(x.shape[0], size * parts, *x.shape[3:])[:, :batch]

    carry, outputs = lax.scan(step, carry, jax.tree.map(split, arrays))
    return carry, jax.tree.map(join, outputs)


def sum_samples(x: Array) -> Array:
    """`x` `[X, B, ...]` summed over samples.

    A CPU adds half onto half, for it adds long runs fastest. Elsewhere that would send halves of a
    sharded batch from device to device.
    """
    return lax.platform_dependent(x, cpu=_add_halves, default=lambda x: x.sum(1))


def _add_halves(x: Array) -> Array:
    count = x.shape[1]
    if count == 0:
        return x.sum(1)
    while count > 1:
        half = count // 2
        total = x[:, :half] + x[:, half : 2 * half]
        if count % 2:
            total = total.at[:, 0].add(x[:, -1])
        x, count = total, half
    return x[:, 0]


def num_parts(batch: int, per_sample: int) -> int:
    """How many parts: a divisor of the batch unless that would double their number."""
    least = -(-batch * per_sample // _MOST_ELEMENTS)
    if least <= 1:
        return 1
    least = min(least, batch)
    return next((n for n in range(least, min(2 * least, batch) + 1) if batch % n == 0), least)
