"""Functions of probabilities whose values and gradients are right at the ends of their range."""

import jax
import jax.numpy as jnp
from jaxtyping import Array


@jax.custom_vjp
def log_probability(p: Array) -> Array:
    """The natural logarithm, with gradient 0 wherever the cotangent is 0.

    The plain rule, cotangent / p, is 0 / 0 = NaN at p = 0 for a probability that nobody uses.
    """
    return jnp.log(p)


def _log_forward(p: Array) -> tuple[Array, Array]:
    return jnp.log(p), p


def _log_backward(p: Array, cotangent: Array) -> tuple[Array]:
    return (divide_flow(cotangent, p),)


log_probability.defvjp(_log_forward, _log_backward)


def divide_flow(flow: Array, p: Array) -> Array:
    """`flow / p`, and 0 where the flow is 0, whatever p is."""
    idle = flow == 0
    return jnp.where(idle, jnp.zeros_like(flow), flow / jnp.where(idle, jnp.ones_like(p), p))


def log1m_exp(x: Array) -> Array:
    """log(1 - exp(-x)) for x > 0, to full relative precision.

    Source: M. Maechler, "Accurately computing log(1 - exp(-|a|))" (2012).
    """
    small = x < jnp.log(jnp.asarray(2.0, x.dtype))
    x_small = jnp.where(small, x, jnp.ones_like(x))
    x_large = jnp.where(small, jnp.ones_like(x), x)
    return jnp.where(small, jnp.log(-jnp.expm1(-x_small)), jnp.log1p(-jnp.exp(-x_large)))


def blend(old: Array, new: Array, step_size: Array) -> Array:
    """`(1 - step_size) * old + step_size * new`, exactly `old` at step 0 and `new` at step 1.

    Written `old + step_size * (new - old)` it would round a `new` far below `old` to 0 at step 1.
    """
    return (1 - step_size) * old + step_size * new


def exp_at_least(raw: Array, minimum: float) -> Array:
    """`max(exp(raw), minimum)`, whose gradient is the value itself, as that of exp.

    The true gradient is 0 below the floor, where a parameter could never leave it again.
    """
    return _exp_at_least(raw, jnp.asarray(minimum, raw.dtype))


@jax.custom_vjp
def _exp_at_least(raw: Array, minimum: Array) -> Array:
    return jnp.maximum(jnp.exp(raw), minimum)


def _exp_at_least_forward(raw: Array, minimum: Array) -> tuple[Array, Array]:
    value = _exp_at_least(raw, minimum)
    return value, value


def _exp_at_least_backward(value: Array, cotangent: Array) -> tuple[Array, None]:
    return cotangent * value, None


_exp_at_least.defvjp(_exp_at_least_forward, _exp_at_least_backward)
