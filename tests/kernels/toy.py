"""Two small kernels that try out the tools of this folder."""

import triton
import triton.language as tl


@triton.jit
def logsumexp_kernel(x, N, out, BLOCK: tl.constexpr):
    """out[i] = log sum_j exp(x[i, j]) for `x [rows, N]`; one program a row."""
    row = tl.program_id(0)
    largest = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    for first in range(0, N, BLOCK):
        j = first + tl.arange(0, BLOCK)
        e = tl.load(x + row * N + j, mask=j < N, other=float("-inf"))
        new = tl.maximum(largest, tl.max(e, axis=0))
        shift = tl.where(new == float("-inf"), 0.0, new)
        total = total * tl.exp(largest - shift) + tl.sum(tl.exp(e - shift), axis=0)
        largest = new
    result = tl.where(total > 0, largest + tl.log(total), float("-inf"))
    tl.store(out + row + tl.arange(0, 1), result)


@triton.jit
def matmul_kernel(
    a,  # [M, K]
    b,  # [K, N]
    M,
    out,  # [M, N]
    N: tl.constexpr,
    K: tl.constexpr,
    MODE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """out = a @ b in "bf16", "tf32" (rounded to nearest) or "ieee"."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, K, DEPTH):
        k = first + tl.arange(0, DEPTH)
        x = tl.load(a + m[:, None] * K + k[None, :], mask=(m < M)[:, None] & (k < K)[None, :])
        y = tl.load(b + k[:, None] * N + n[None, :], mask=(k < K)[:, None] & (n < N)[None, :])
        if MODE == "bf16":
            total = tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16), total)
        elif MODE == "tf32":
            total = tl.dot(_nearest_tf32(x), _nearest_tf32(y), total, input_precision="tf32")
        else:
            total = tl.dot(x, y, total, input_precision="ieee")
    tl.store(out + m[:, None] * N + n[None, :], total, mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def _nearest_tf32(x):
    return tl.inline_asm_elementwise(
        "cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
    )
