"""Arithmetic that Triton has no word for, as device functions of the kernels.

Operands of products come as parts: float32 numbers as sums of bfloat16 ones, each the rest of those
before it rounded to nearest. Two have 16 bits, three all 24. The matrix units take bfloat16
operands as they lie, in either order of axes; TF32 ones in one order only, and cut off rather than
rounded.
"""

import triton
import triton.language as tl

LARGEST = tl.constexpr(3.4028234663852886e38)  # finite number in float32


@triton.jit
def first_unit(counter, stride, offset):
    """The first of the units that run, from the counter and the `numbers` of a `Units`."""
    return tl.load(counter) * stride + (offset - 2)


@triton.jit
def finite(x):
    """The nearest finite number, of which 0 times is 0. NaN stays."""
    return tl.where(x > LARGEST, LARGEST, tl.where(x < -LARGEST, -LARGEST, x))


@triton.jit
def split(x, PARTS: tl.constexpr):
    """The parts of float32 numbers; those beyond PARTS are there to be ignored."""
    high = x.to(tl.bfloat16)
    middle, low = high, high
    if PARTS >= 2:
        rest = x - high.to(tl.float32)
        middle = rest.to(tl.bfloat16)
        if PARTS >= 3:
            low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
    return high, middle, low


@triton.jit
def load_parts(array, size, places, mask, PARTS: tl.constexpr):
    """The parts of numbers at `places` of an array `[parts, size]`."""
    high = tl.load(array + places, mask=mask, other=0.0)
    middle, low = high, high
    if PARTS >= 2:
        middle = tl.load(array + size + places, mask=mask, other=0.0)
    if PARTS >= 3:
        low = tl.load(array + 2 * size + places, mask=mask, other=0.0)
    return high, middle, low


@triton.jit
def load_and_split(array, size, places, mask, PARTS: tl.constexpr):
    """`load_parts` of an array that has parts, or of one `[size]` of float32 numbers."""
    if array.dtype.element_ty == tl.float32:
        x = tl.load(array + places, mask=mask, other=0.0)
        high, middle, low = split(x, PARTS)  # pyright: ignore
    else:
        high, middle, low = load_parts(array, size, places, mask, PARTS)  # pyright: ignore
    return high, middle, low


@triton.jit
def load_sum(array, size, places, mask, PARTS: tl.constexpr):
    """The numbers themselves, float32."""
    high, middle, low = load_parts(array, size, places, mask, PARTS)  # pyright: ignore
    total = high.to(tl.float32)
    if PARTS >= 2:
        total += middle.to(tl.float32)
    if PARTS >= 3:
        total += low.to(tl.float32)
    return total


@triton.jit
def store_parts(array, size, places, x, mask, PARTS: tl.constexpr):
    """Splits float32 numbers and stores the parts."""
    high, middle, low = split(x, PARTS)  # pyright: ignore
    tl.store(array + places, high, mask=mask)
    if PARTS >= 2:
        tl.store(array + size + places, middle, mask=mask)
    if PARTS >= 3:
        tl.store(array + 2 * size + places, low, mask=mask)


@triton.jit
def dot(
    a, a_middle, a_low, b, b_middle, b_low, total, PARTS: tl.constexpr, ROUNDED: tl.constexpr
):  # fmt: skip
    """`total + a @ b` of operands in parts: one, three or six products, the smallest first.

    The matrix units cut off what they add up, which has a sign that grows with the number of terms.
    If ROUNDED, this product is added to `total` on the ordinary units, which round to nearest.
    """
    before = total
    if ROUNDED:
        total = tl.zeros_like(total)
    if PARTS >= 3:
        total = tl.dot(a_low, b, total)
        total = tl.dot(a, b_low, total)
        total = tl.dot(a_middle, b_middle, total)
    if PARTS >= 2:
        total = tl.dot(a_middle, b, total)
        total = tl.dot(a, b_middle, total)
    total = tl.dot(a, b, total)
    if ROUNDED:
        total += before
    return total


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
