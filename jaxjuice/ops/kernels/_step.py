"""Which step of a stage a kernel runs."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array


@partial(jax.tree_util.register_dataclass, data_fields=["counter"], meta_fields=["stride", "first"])
@dataclass(frozen=True, eq=False)
class Step:
    """Step `first + stride * counter`: kernels compute it.

    A loop counts on the GPU. If XLA computed the numbers of its steps there, each would be a kernel
    of its own, which takes as long as a small product.

    Attributes:
        counter: int32 scalar.
        stride: not 1, for jax-triton compiles kernels anew for arguments of 1.
        first: 0 or more.
    """

    counter: Array
    stride: int
    first: int

    @staticmethod
    def at(number: int) -> "Step":
        """A step that is known."""
        return Step(jnp.zeros((), jnp.int32), 0, number)

    @property
    def number(self) -> Array:
        """Int32 scalar."""
        return self.counter * self.stride + self.first

    @property
    def numbers(self) -> tuple[int, int]:
        """What `device.arithmetic.step_number` takes: neither is 1."""
        return self.stride, self.first + 2
