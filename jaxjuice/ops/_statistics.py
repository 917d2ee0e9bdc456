"""Products of two positive factors over samples, in few bits."""

import jax.numpy as jnp
from jax import Array, lax

from jaxjuice.ops._precision import dot

_E4M3_SMALLEST = 2.0**-9


def statistic_product(
    q: Array, p: Array, precision: str, flow_precision: str | None, num_samples: int
) -> Array:
    """sum_{b, r} q_bri p_brj.

    Args:
        q, p: `[X, B, k, M]` and `[X, B, k, N]`.
        precision: the mode of the call, one of `PRECISIONS`.
        flow_precision: None: the mode's own products, for gradients. "bf16": bf16 operands under
            "auto" and "bf16". "fp8": e4m3 operands under all modes but "fp32". Both on NVIDIA GPUs
            alone, and for batches of 16 or more.
        num_samples: the size of the batch.

    Returns:
        `[X, M, N]`.
    """

    def product(q: Array, p: Array, mode: str) -> Array:
        return dot(
            q,
            p,
            ((1, 2), (1, 2)),
            batch=((0,), (0,)),
            precision=mode,
            role="backward",
            num_samples=num_samples,
        )

    few_bits = flow_precision == "fp8" and precision != "fp32" and num_samples >= 16
    if few_bits and q.dtype == jnp.float32:
        return lax.platform_dependent(
            q, p, cuda=e4m3_product, default=lambda q, p: product(q, p, precision)
        )
    in_bf16 = flow_precision is not None and precision == "auto"
    return product(q, p, "bf16" if in_bf16 else precision)


def e4m3_product(q: Array, p: Array) -> Array:
    """`statistic_product` from e4m3 operands, accumulated in float32.

    Numbers of e4m3 are numbers of bf16 too, so that hardware without it has the same result.
    """
    (q, of_q), (p, of_p) = to_e4m3(q), to_e4m3(p)
    total = lax.dot_general(
        q.astype(jnp.bfloat16),
        p.astype(jnp.bfloat16),
        (((1, 2), (1, 2)), ((0,), (0,))),
        precision=lax.Precision.DEFAULT,  # of bf16 operands: nothing is left to round
        preferred_element_type=jnp.float32,
    )
    return jnp.ldexp(jnp.ldexp(total, of_q[:, :, None]), of_p[:, None])


def to_e4m3(x: Array) -> tuple[Array, Array]:
    """Rounds `[X, B, k, D]` to e4m3, each row d (over samples and ranks) by its own power of 2.

    A number that would become 0 becomes the smallest of its sign: an edge whose statistic is 0
    would never come back.

    Returns:
        The rounded array, and exponents int32 `[X, D]`: x is about rounded * 2^exponent.
    """
    largest = jnp.abs(x).max((1, 2))
    # The largest of a row comes to lie in [128, 256); e4m3 ends at 448.
    exponent = jnp.maximum(jnp.frexp(largest)[1], -100).astype(jnp.int32) - 8
    scaled = jnp.ldexp(x, -exponent[:, None, None])
    smallest = jnp.where(x < 0, -_E4M3_SMALLEST, _E4M3_SMALLEST).astype(x.dtype)
    lost = (x != 0) & (jnp.abs(scaled) < _E4M3_SMALLEST)
    return jnp.where(lost, smallest, scaled).astype(jnp.float8_e4m3fn), exponent
