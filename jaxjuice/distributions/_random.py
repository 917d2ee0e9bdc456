"""Keys for the samplers of `jax.random` that take only its default generator."""

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray


def portable_key(key: PRNGKeyArray) -> PRNGKeyArray:
    """A threefry key drawn from a key of any generator; a threefry key is returned as it is.

    `jax.random.poisson` refuses the others.
    """
    data = jax.random.key_data(key)
    if data.shape[-1] == 2 and str(jax.random.key_impl(key)) == "threefry2x32":
        return key
    return jax.random.wrap_key_data(jax.random.bits(key, (2,), jnp.uint32), impl="threefry2x32")
