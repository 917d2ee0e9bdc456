"""Log-probabilities of counts without the cancellation of large terms.

Source: C. Loader, "Fast and accurate computation of binomial probabilities" (2000). With the
deviance D(x, m) = x log(x / m) - (x - m) and c(x) = log x! - x log x + x, a Poisson log-probability
is -c(x) - D(x, rate), and a binomial one c(n) - c(x) - c(n - x) - D(x, n p) - D(n - x, n (1 - p)).
The terms are as small as their sum, while x log(rate) and log x! grow with x.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxjuice.distributions._numerics import divide_flow

_NUM_EXACT = 16
_EXACT = np.array(
    [math.lgamma(n + 1) - n * math.log(n) + n if n else 0.0 for n in range(_NUM_EXACT)]
)


def log_factorial_rest(x: Array) -> Array:
    """c(x) = log x! - x log x + x for whole numbers: exact for small ones, else Stirling's series.

    Args:
        x: whole numbers >= 0, of a floating dtype.
    """
    large = jnp.maximum(x, _NUM_EXACT)
    inverse = 1 / (large * large)
    series = (1 / 1188) * inverse
    for coefficient in (-1 / 1680, 1 / 1260, -1 / 360, 1 / 12):
        series = (series if coefficient == -1 / 1680 else series * inverse) + coefficient
    stirling = 0.5 * jnp.log(2 * math.pi * large) + series / large
    small = jnp.asarray(_EXACT, x.dtype)[jnp.minimum(x, _NUM_EXACT - 1).astype(jnp.int32)]
    return jnp.where(x < _NUM_EXACT, small, stirling)


@jax.custom_vjp
def deviance(x: Array, mean: Array) -> Array:
    """D(x, m) = x log(x / m) - (x - m) for x, m >= 0; m at x = 0, infinite at m = 0 < x.

    Only the gradient in `mean` is defined, and it is 0 wherever the cotangent is.

    Args:
        x: counts, of a floating dtype.
        mean: what they are compared with, of the same shape and dtype.
    """
    ratio = (x - mean) / mean
    counted = x * jnp.log1p(jnp.where(x > 0, ratio, jnp.zeros_like(ratio))) - (x - mean)
    return jnp.where(x > 0, jnp.where(mean > 0, counted, jnp.inf), mean)


def _deviance_forward(x: Array, mean: Array) -> tuple[Array, tuple[Array, Array]]:
    return deviance(x, mean), (x, mean)


def _deviance_backward(residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    x, mean = residuals
    return jnp.zeros_like(x), cotangent - divide_flow(cotangent * x, mean)


deviance.defvjp(_deviance_forward, _deviance_backward)
