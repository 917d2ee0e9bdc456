"""Arguments that several structures share, checked in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxjuice import distributions
from jaxjuice._errors import StructureError
from jaxjuice.distributions import Distribution


def positive_integer(call: str, name: str, value: Any, least: int = 1) -> int:
    """Returns `value` as an int, or raises StructureError unless it is an integer >= `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise StructureError(f"{call}: {name}={value!r} is not an integer >= {least}.")
    return int(value)


def latent_blocks(
    call: str, num_latents: Any, block_size: Any, default: int = 0
) -> tuple[int, int]:
    """Returns the number of blocks and the block size of vectors of `num_latents` nodes.

    Args:
        call: the call to quote in errors.
        num_latents: nodes a vector.
        block_size: nodes a block; None for the default.
        default: the default block size; 0 for one block with all nodes.

    Raises:
        StructureError: if the block size does not divide the number of nodes.
    """
    num_latents = positive_integer(call, "num_latents", num_latents)
    if block_size is None:
        block_size = default or num_latents
    block_size = positive_integer(call, "block_size", block_size)
    if num_latents % block_size:
        raise StructureError(
            f"{call}: block_size={block_size} does not divide num_latents={num_latents}; "
            "give a divisor, or leave it out."
        )
    return num_latents // block_size, block_size


def leaf_family(
    call: str,
    input_dist: Distribution | None,
    input_node_type: type[Distribution] | None,
    input_node_params: Mapping[str, Any] | None,
) -> Distribution:
    """Returns `input_dist`, or makes one by class and arguments; by default 256 categories."""
    if input_dist is not None:
        if not isinstance(input_dist, Distribution):
            raise StructureError(
                f"{call}: input_dist={input_dist!r} is not one of jaxjuice.distributions."
            )
        return input_dist
    if input_node_type is None:
        input_node_type = distributions.Categorical
    if input_node_params is None:
        input_node_params = (
            {"num_cats": 256} if input_node_type is distributions.Categorical else {}
        )
    return input_node_type(**input_node_params)


def random_generator(seed: Any) -> np.random.Generator:
    """Returns a numpy generator from an integer, a key of jax (new or old style), or a generator.

    Args:
        seed: equal seeds give equal generators; a generator is used as it is.

    Raises:
        StructureError: if it is none of these.
    """
    if isinstance(seed, np.random.Generator):
        return seed
    if isinstance(seed, jax.Array):
        words = (
            jax.random.key_data(seed) if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key) else seed
        )
        return np.random.default_rng([int(word) for word in np.asarray(words).reshape(-1)])
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or seed < 0:
        raise StructureError(
            f"seed={seed!r} is not an integer >= 0, a jax key or a numpy Generator."
        )
    return np.random.default_rng(int(seed))
