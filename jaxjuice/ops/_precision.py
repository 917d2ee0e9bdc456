"""The precision of the products of sum layers.

A mode names what NVIDIA GPUs run; everywhere else (CPU, TPU, ROCm) and for float64 every mode runs
at `lax.Precision.HIGHEST`. Batches below 16 do so too: they gain nothing from less.
"""

from typing import Literal

import jax
from jax import lax

_Preset = lax.DotAlgorithmPreset
# mode -> (forward, backward)
_PRESETS = {
    "auto": (_Preset.BF16_BF16_F32, _Preset.TF32_TF32_F32),
    "bf16": (_Preset.BF16_BF16_F32, _Preset.BF16_BF16_F32),
    "tf32": (_Preset.TF32_TF32_F32, _Preset.TF32_TF32_F32),
    "fp32": (_Preset.TF32_TF32_F32_X3, _Preset.TF32_TF32_F32_X3),
}
PRECISIONS = tuple(_PRESETS)
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
    if isinstance(precision, str) and precision in _PRESETS:
        return precision
    if isinstance(precision, str | lax.Precision) and precision in _JAX_NAMES:
        return _JAX_NAMES[precision]
    raise ValueError(
        f"precision={precision!r} is not a mode: take one of {', '.join(map(repr, PRECISIONS))}, "
        "JAX's 'default', 'high', 'highest', or a jax.lax.Precision."
    )


def dot(
    a: jax.Array,
    b: jax.Array,
    contract: tuple[tuple[int, ...], tuple[int, ...]],
    *,
    batch: tuple[tuple[int, ...], tuple[int, ...]],
    precision: str,
    pass_: Literal["forward", "backward"],
    num_samples: int,
) -> jax.Array:
    """`lax.dot_general` in the precision of a mode, accumulated in the operands' own type."""

    def product(algorithm):
        return lambda a, b: lax.dot_general(
            a, b, (contract, batch), precision=algorithm, preferred_element_type=a.dtype
        )

    exact = product(lax.Precision.HIGHEST)
    if a.dtype == "float64" or num_samples < _MIN_BATCH:
        return exact(a, b)
    preset = _PRESETS[precision][pass_ == "backward"]
    return lax.platform_dependent(a, b, cuda=product(preset), default=exact)
