"""Which units of a layer a kernel runs."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["counter"],
    meta_fields=["stride", "first", "count"],
)
@dataclass(frozen=True, eq=False)
class Units:
    """Units `first + stride * counter` and the `count - 1` behind it: kernels compute which.

    A loop counts on the GPU. If XLA computed the numbers of its units there, each would be a kernel
    of its own, which takes as long as a small product.

    Attributes:
        counter: int32 scalar.
        stride: not 1, for jax-triton compiles kernels anew for arguments of 1.
        first: 0 or more.
        count: how many units.
    """

    counter: Array
    stride: int
    first: int
    count: int

    @staticmethod
    def at(first: int, count: int) -> "Units":
        """Units that are known."""
        return Units(jnp.zeros((), jnp.int32), 0, first, count)

    @property
    def start(self) -> Array:
        """Int32 scalar, the first unit."""
        return self.counter * self.stride + self.first

    @property
    def numbers(self) -> tuple[int, int]:
        """What `device.arithmetic.first_unit` takes: neither is 1."""
        return self.stride, self.first + 2

    def take(self, table: Array, each: int = 1) -> Array:
        """The rows of a table that has `each` of every unit."""
        return lax.dynamic_slice_in_dim(table, self.start * each, self.count * each)
