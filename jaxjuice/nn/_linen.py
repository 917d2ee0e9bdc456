"""A circuit as a flax.linen module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import linen

if TYPE_CHECKING:
    from jaxjuice.circuit import Circuit


class LinenCircuit(linen.Module):
    """A circuit as a flax.linen module, its unconstrained parameters under the name "logits".

    Example:
        ```python
        module = LinenCircuit(pc)
        variables = module.init(jax.random.key(0), x)
        lls = module.apply(variables, x)
        params = pc.from_unconstrained(variables["params"]["logits"])
        ```

    Attributes:
        pc: The circuit.
        perturbation: How far the first parameters are from uniform, see `pc.init`.
        dtype: Of the parameters.
    """

    pc: Circuit
    perturbation: float = 2.0
    dtype: Any = jnp.float32

    @linen.compact
    def __call__(
        self, x: jax.Array, missing_mask: jax.Array | None = None, **options: Any
    ) -> jax.Array:
        """Log-likelihoods of rows: the arguments and result of `CircuitModule.__call__`."""

        def init(key: jax.Array) -> Any:
            params = self.pc.init(key, perturbation=self.perturbation, dtype=self.dtype)
            return self.pc.to_unconstrained(params)

        logits = self.param("logits", init)
        params = self.pc.from_unconstrained(logits)
        return self.pc.log_likelihood(params, x, missing_mask, **options)
