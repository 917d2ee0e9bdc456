"""Operands of products in parts: how many bfloat16 numbers stand for one of float32."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxjuice.ops._precision import Role, algorithm, dot
from jaxjuice.ops.kernels import _launch, _reference as reference

_Preset = lax.DotAlgorithmPreset
# Fewer nodes or children would leave most of a matrix unit's tile empty.
_LEAST_SIZE = 32
_LEAST_BATCH = 16
# An H200 loses about a tenth of a product by splitting what it reads: of 1000 samples, as long as
# the pass takes.
_FEW_SAMPLES = 1024
_BLOCK = 1024  # 4 numbers a thread: with more, stores of half their size are not whole


class Products(NamedTuple):
    """How kernels multiply.

    Attributes:
        parts: of each operand, of 8 bits each: 1, 2 for at least TF32's 11 bits, 3 for all 24.
        rounded: whether sums are rounded to nearest, a tile at a time. The matrix units cut them
            off, by up to 1e-8 of them for every term that is added.
    """

    parts: int
    rounded: bool

    @property
    def number(self) -> int:
        """Of products in bfloat16 that stand for one: of the parts that are not too small."""
        return self.parts * (self.parts + 1) // 2


_PRODUCTS = {
    None: Products(3, True),
    _Preset.BF16_BF16_F32: Products(1, False),
    _Preset.TF32_TF32_F32: Products(2, False),
    _Preset.BF16_BF16_F32_X3: Products(2, True),
    _Preset.TF32_TF32_F32_X3: Products(3, True),
}


def products(precision: str, role: Role, batch: int) -> Products:
    """What stands for `ops.algorithm`."""
    return _PRODUCTS[algorithm(precision, role, batch)]


def in_parts(nodes: int, children: int, tied: bool, precision: str, batch: int) -> bool:
    """Whether units of one block multiply in the kernels, or XLA does it. A fixed rule.

    Args:
        nodes, children: of a unit.
        tied: whether every step has the same weights.
        precision: one of `ops.PRECISIONS`.
        batch: samples.
    """
    large = min(nodes, children) >= _LEAST_SIZE and batch >= _LEAST_BATCH
    # Within a unit, the kernels count in 32 bits.
    fits = max(nodes * children, batch * max(nodes, children)) < 2**31
    # cuBLAS's TF32 is faster than three products in bfloat16, but of weights that differ from step
    # to step XLA hands it copies; and what it adds up is not rounded.
    return large and fits and (not tied or products(precision, "backward", batch).rounded)


def stored_parts(precision: str, role: Role, batch: int, save: bool) -> int:
    """Of p.

    Args:
        precision: one of `ops.PRECISIONS`.
        role: of the product that multiplies with it forward.
        batch: samples.
        save: whether a backward pass follows: its factors of flows are two parts at least.
    """
    forward = products(precision, role, batch).parts
    return max(2, forward, products(precision, "backward", batch).parts) if save else forward


def splits_where_read(blocks: int, samples: int, save: bool) -> bool:
    """Whether products get float32 weights and split what they read. A fixed rule.

    If not, a pass over the weights splits them. That takes less than what the products lose where
    weights are read often, or by a pass backward, too, which reads them in the slower order.

    Args:
        blocks: of a unit.
        samples: that a row of weights is multiplied with, of all units that share it, on average.
        save: whether a backward pass follows.
    """
    return blocks == 1 and samples <= _FEW_SAMPLES and not save


def split(x: Array, parts: int, implementation: str) -> Array:
    """bfloat16 `[parts, *x.shape]` that add up to x: each what is left of it by those before."""
    shape = parts, *x.shape

    def kernel(x):
        from jaxjuice.ops.kernels.device.dense import split_kernel

        return _launch.launch(
            split_kernel, x, x.size, out=jax.ShapeDtypeStruct(shape, jnp.bfloat16),
            grid=(-(-x.size // _BLOCK),), num_warps=8, PARTS=parts, BLOCK=_BLOCK,
        )  # fmt: skip

    return _launch.dispatch(implementation, kernel, lambda x: reference.split(x, parts), x)


def product_of(precision: str, role: Role, batch: int) -> Any:
    """`ops.dot` of two arrays of plain numbers, for the references."""

    def product(a, b, contract, batched):
        return dot(a, b, contract, batch=batched, precision=precision, role=role, num_samples=batch)

    return product
