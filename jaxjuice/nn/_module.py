"""A circuit as a flax.nnx module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxjuice._errors import ParameterError

if TYPE_CHECKING:
    from jaxjuice.circuit import Circuit


class CircuitModule(nnx.Module):
    """A circuit that holds its parameters, as a part of a larger flax.nnx model.

    The parameters live in the module as one `nnx.Param` an array, unconstrained (logits for
    probabilities, the logarithm of scales), so any optax optimizer may move them freely.

    Example:
        ```python
        module = CircuitModule(pc, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(module, optax.adam(1e-2), wrt=nnx.Param)
        loss, gradient = nnx.value_and_grad(lambda module: -module(x).mean())(module)
        optimizer.update(module, gradient)
        ```

    Attributes:
        pc: The circuit.
        logits: The unconstrained parameters, nested as the tree of `pc.init`.
    """

    def __init__(
        self,
        pc: Circuit,
        *,
        rngs: nnx.Rngs | None = None,
        params: Any = None,
        perturbation: float = 2.0,
        dtype: Any = jnp.float32,
    ):
        """Makes the module.

        Args:
            pc: The circuit.
            rngs: Where the key of `pc.init` comes from (its stream "params").
            params: Probability-space parameters to start from, in place of `rngs`.
            perturbation: How far random parameters are from uniform, see `pc.init`.
            dtype: Of random parameters.

        Raises:
            ParameterError: If neither or both of `rngs` and `params` are given.
        """
        if (rngs is None) == (params is None):
            raise ParameterError(
                "CircuitModule(pc, ...) takes either rngs=nnx.Rngs(seed), for random parameters, "
                "or params=, and got " + ("neither." if rngs is None else "both.")
            )
        if rngs is not None:
            params = pc.init(rngs.params(), perturbation=perturbation, dtype=dtype)
        self.pc = pc
        self.logits = _as_variables(pc.to_unconstrained(params))

    @property
    def params(self) -> Any:
        """The parameters in probability space, the tree of `pc.init`; differentiable."""
        return self.pc.from_unconstrained(_as_arrays(self.logits))

    def set_params(self, params: Any) -> None:
        """Replaces the parameters by those of a probability-space tree like that of `pc.init`."""
        _assign(self.logits, self.pc.to_unconstrained(params))

    def __call__(
        self, x: jax.Array, missing_mask: jax.Array | None = None, **options: Any
    ) -> jax.Array:
        """Log-likelihoods of rows.

        Args:
            x: `[batch, num_vars]`.
            missing_mask: True where a value is missing, `[num_vars]` or `[batch, num_vars]`.
            **options: Handed on to `pc.log_likelihood`: `external_log_probs`, `precision`, ...

        Returns:
            `[batch]`, or `[batch, num_roots]`; differentiable with respect to the module's
            parameters and `external_log_probs`.
        """
        return self.pc.log_likelihood(self.params, x, missing_mask, **options)


def _as_variables(tree: Any) -> nnx.Dict:
    """Nested dicts of arrays as nested module dicts of `nnx.Param`."""
    return nnx.Dict(
        {
            name: _as_variables(value) if isinstance(value, dict) else nnx.Param(value)
            for name, value in tree.items()
        }
    )


def _as_arrays(variables: Any) -> Any:
    """The inverse of `_as_variables`."""
    return {
        name: value[...] if isinstance(value, nnx.Variable) else _as_arrays(value)
        for name, value in variables.items()
    }


def _assign(variables: Any, tree: Any) -> None:
    """Writes nested dicts of arrays into the variables of the same names."""
    for name, value in variables.items():
        if isinstance(value, nnx.Variable):
            value[...] = tree[name]
        else:
            _assign(value, tree[name])
