"""The precision of the products of sum layers.

A mode names what NVIDIA GPUs run; everywhere else (CPU, TPU, ROCm) and for float64 every mode runs
at `lax.Precision.HIGHEST`. Batches below 16 do so too: they gain nothing from less.

The largest errors of log s of a product with 1024 children, against float64 on an H200, in the
kernels (`jaxjuice.ops.kernels`): bf16 9e-4, tf32 9e-6, bf16x3 1.9e-6, fp32 6e-7. XLA's own
products: tf32 1.2e-4, bf16x3 1.6e-5, fp32 9e-6, for cuBLAS cuts off what it adds up.
"""

from typing import Literal, NamedTuple

import jax
from jax import lax

Role = Literal["forward", "dense_forward", "backward"]

_Preset = lax.DotAlgorithmPreset
_BF16 = _Preset.BF16_BF16_F32
_TF32 = _Preset.TF32_TF32_F32


class _Mode(NamedTuple):
    forward: lax.DotAlgorithmPreset
    dense_forward: lax.DotAlgorithmPreset
    backward: lax.DotAlgorithmPreset


_MODES = {
    # cuBLAS takes float32 operands as TF32 where they lie; for bf16, the large weights of a dense
    # layer would first have to be converted, in a pass over all of them. PyJuice's rule, too.
    "auto": _Mode(_BF16, _TF32, _TF32),
    "bf16": _Mode(*3 * [_BF16]),
    "tf32": _Mode(*3 * [_TF32]),
    "bf16x3": _Mode(*3 * [_Preset.BF16_BF16_F32_X3]),
    "fp32": _Mode(*3 * [_Preset.TF32_TF32_F32_X3]),
}
PRECISIONS = tuple(_MODES)
_JAX_NAMES = {
    "default": "bf16",
    "high": "tf32",
    "highest": "fp32",
    lax.Precision.DEFAULT: "bf16",
    lax.Precision.HIGH: "tf32",
    lax.Precision.HIGHEST: "fp32",
}
_MIN_BATCH = 16


def canonical_precision(precision: str | lax.Precision) -> str:
    """One of `PRECISIONS`, from a mode, JAX's name for it, or a `lax.Precision`.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(precision, str) and precision in _MODES:
        return precision
    if isinstance(precision, str | lax.Precision) and precision in _JAX_NAMES:
        return _JAX_NAMES[precision]
    raise ValueError(
        f"precision={precision!r} is not a mode: take one of {', '.join(map(repr, PRECISIONS))}, "
        "JAX's 'default', 'high', 'highest', or a jax.lax.Precision."
    )


def algorithm(precision: str, role: Role, num_samples: int) -> lax.DotAlgorithmPreset | None:
    """What a product runs on NVIDIA GPUs in a mode; None for full float32.

    Args:
        precision: one of `PRECISIONS`.
        role: what the product is for; "dense_forward" where `is_dense` holds.
        num_samples: the batch size.
    """
    if num_samples < _MIN_BATCH:
        return None
    return getattr(_MODES[precision], role)


def dot(
    a: jax.Array,
    b: jax.Array,
    contract: tuple[tuple[int, ...], tuple[int, ...]],
    *,
    batch: tuple[tuple[int, ...], tuple[int, ...]],
    precision: str,
    role: Role,
    num_samples: int,
) -> jax.Array:
    """`lax.dot_general` in the precision of a mode, accumulated in the operands' own type.

    Where the axes to sum over have size 1 (backward through a sum layer of one node, say), it
    multiplies, and rounds nothing else, in any mode: XLA would try out cuBLAS's configurations.
    """
    if all(a.shape[axis] == 1 for axis in contract[0]):
        return _outer(a, b, contract, batch)

    def product(chosen):
        return lambda a, b: lax.dot_general(
            a, b, (contract, batch), precision=chosen, preferred_element_type=a.dtype
        )

    exact = product(lax.Precision.HIGHEST)
    preset = None if a.dtype == "float64" else algorithm(precision, role, num_samples)
    if preset is None:
        return exact(a, b)
    return lax.platform_dependent(a, b, cuda=product(preset), default=exact)


def _outer(
    a: jax.Array,
    b: jax.Array,
    contract: tuple[tuple[int, ...], tuple[int, ...]],
    batch: tuple[tuple[int, ...], tuple[int, ...]],
) -> jax.Array:
    """`lax.dot_general` over axes of size 1."""
    free_a, free_b = (
        tuple(i for i in range(x.ndim) if i not in (*c, *s))
        for x, c, s in zip((a, b), contract, batch, strict=True)
    )
    # Both become [batch, free of a, free of b], of size 1 where they have no such axis.
    a = a.transpose(*batch[0], *free_a, *contract[0]).reshape(
        *(a.shape[i] for i in (*batch[0], *free_a)), *(1 for _ in free_b)
    )
    b = b.transpose(*batch[1], *free_b, *contract[1]).reshape(
        *(b.shape[i] for i in batch[1]), *(1 for _ in free_a), *(b.shape[i] for i in free_b)
    )
    return a * b
