"""Arrays without values, and with their axes changed."""

import jax
import jax.numpy as jnp
from jax import Array

from jaxjuice.ops.kernels import _launch, _reference as reference

_TILE = 64


def empty(shape: tuple[int, ...], dtype: jnp.dtype, label: int, implementation: str) -> Array:
    """Any values, for arrays of which nothing is read before it is written.

    XLA makes one of two equal calls, and a copy where both are written to: every array of a program
    needs a `label` of its own.
    """

    if 0 in shape:
        return reference.empty(shape, dtype)

    def kernel(label):
        from jaxjuice.ops.kernels.device.children import empty_kernel

        out = jax.ShapeDtypeStruct(shape, dtype)
        return _launch.launch(empty_kernel, label, out=out, grid=(1,), num_warps=1)

    return _launch.dispatch(
        implementation,
        kernel,
        lambda _: reference.empty(shape, dtype),
        jnp.full(1, label, jnp.int32),
    )


def transpose(x: Array, implementation: str) -> Array:
    """`[X, M, N]` to `[X, N, M]`, in memory too.

    XLA's own transpose may leave everything where it is, and have those read it so that come after.
    """
    _, rows, columns = x.shape

    def kernel(x):
        from jaxjuice.ops.kernels.device.dense import transpose_kernel

        tiles = -(-rows // _TILE) * -(-columns // _TILE)
        return _launch.launch(
            transpose_kernel, x, rows, columns,
            out=jax.ShapeDtypeStruct((len(x), columns, rows), x.dtype), grid=(len(x) * tiles,),
            num_warps=4, TILE=_TILE,
        )  # fmt: skip

    return _launch.dispatch(implementation, kernel, lambda x: x.swapaxes(1, 2), x)
