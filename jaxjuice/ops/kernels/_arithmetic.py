"""Arithmetic that Triton has no word for, as device functions of the kernels."""

import triton
import triton.language as tl


@triton.jit
def dot(a, b, total, MODE: tl.constexpr):
    """`total + a @ b`, float32 tiles, in "bf16", "tf32", "bf16x3", "tf32x3" or "ieee"."""
    if MODE == "bf16":
        total = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), total)
    elif MODE == "bf16x3":
        a_high, b_high = a.to(tl.bfloat16), b.to(tl.bfloat16)
        a_low = (a - a_high.to(tl.float32)).to(tl.bfloat16)
        b_low = (b - b_high.to(tl.float32)).to(tl.bfloat16)
        total = tl.dot(a_low, b_high, total)
        total = tl.dot(a_high, b_low, total)
        total = tl.dot(a_high, b_high, total)
    elif MODE == "tf32":
        # The matrix units cut operands off; rounded to nearest first, errors are half as large and
        # have no sign that adds up with depth.
        total = tl.dot(_nearest_tf32(a), _nearest_tf32(b), total, input_precision="tf32")
    else:
        total = tl.dot(a, b, total, input_precision=MODE)
    return total


@triton.jit
def _nearest_tf32(x):
    return tl.inline_asm_elementwise(
        "cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def fast_log(x):
    """log x, to 2e-7 plus 6e-8 of itself, in fewer instructions than `tl.log`.

    The approximation of the hardware is relative to log2 x, and its errors have a sign that adds up
    over thousands of leaves. Of a number near 1 it is good: so the exponent is taken apart first.
    """
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23  # of a mantissa from sqrt(1/2) to sqrt(2)
    mantissa = (bits - (exponent << 23)).to(tl.float32, bitcast=True)
    log2 = exponent.to(tl.float32) + _approximate_log2(mantissa)
    # Not of zero, of numbers too small for an exponent of their own, of inf and NaN.
    log2 = tl.where((x >= 1.2e-38) & (x < float("inf")), log2, _approximate_log2(x))
    return log2 * 0.6931471805599453


@triton.jit
def _approximate_log2(x):
    return tl.inline_asm_elementwise(
        "lg2.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )
