"""Products of units of one block with what comes before and after them.

Letters as in `jaxjuice.ops`. p and q come in parts and of all steps, `[parts, places, B, ...]`, as
`exponentiate` and `flow_ratio` keep them, and weights as `split` returns them.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxjuice.ops._precision import Role, algorithm, dot
from jaxjuice.ops._sum_layer import LL, finite, is_dense
from jaxjuice.ops.kernels import _launch, _reference as reference
from jaxjuice.ops.kernels._arrays import transpose
from jaxjuice.ops.kernels._parts import product_of, products
from jaxjuice.ops.kernels._tiles import (
    dense_backward_tile,
    dense_forward_tile,
    dense_gradient_tile,
)
from jaxjuice.ops.kernels._units import Units

# Nodes and children of a product that takes longer than a copy of one of its operands.
_WORTH_A_COPY = 128


def dense_forward(
    p: Array,
    weights: Array,
    rows: Array,
    places: Array,
    starts: Array,
    units: Units,
    values: Array,
    precision: str,
    implementation: str,
) -> Array:
    """The values of some units, relative to the shifts of `exponentiate`.

    Args:
        p: `[parts, places, B, N]`.
        weights: theta `[parts, P, M, N]`; or float32 `[1, P, M, N]`, and the kernel splits what it
            reads.
        rows: int32 `[all units]`, the parameters of each unit.
        places: int32 `[all units]`: where p of each unit is; -1 for padding.
        starts: int32 `[all units]`, the slot of each unit.
        units: which units.
        values: `[S, B, M]`.
        precision: one of `ops.PRECISIONS`.

    Returns:
        The new values, log of p theta^T. What is written for padding is left open.
    """
    _, num_places, batch, children = p.shape
    nodes = values.shape[2]
    role: Role = "dense_forward" if is_dense(nodes, children, batch, LL) else "forward"
    parts, rounded = products(precision, role, batch)

    def kernel(*arrays):
        from jaxjuice.ops.kernels.device.dense import dense_forward_kernel

        in_parts = weights.dtype == jnp.bfloat16
        tile = dense_forward_tile(units.count, nodes, batch, children, parts, in_parts)
        tiles = -(-nodes // tile.rows) * -(-batch // tile.columns)
        return _launch.launch(
            dense_forward_kernel, *arrays, num_places, weights.shape[1], batch, children,
            out=jax.ShapeDtypeStruct(values.shape, jnp.float32), aliases={6: 0},
            grid=(units.count * tiles,), num_warps=tile.warps, num_stages=tile.stages,
            NODES=nodes, WIDTH=_divisor(children), PARTS=parts, ROUNDED=rounded,
            ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth,
        )  # fmt: skip

    plain = partial(reference.dense_forward, product=product_of(precision, role, batch))
    return _launch.dispatch(
        implementation, kernel, plain, p, weights, rows, places, starts, units, values
    )


def dense_backward(
    q: Array,
    p: Array,
    weights: Array,
    rows: Array,
    places: Array,
    starts: Array,
    units: Units,
    flows: Array,
    precision: str,
    implementation: str,
) -> Array:
    """The element flows of some units.

    Args:
        q, p, weights, rows, places, units: as in `dense_forward`, q `[parts, places, B, M]`, and
            weights in parts.
        starts: int32 `[all units]`, the slot of each unit's first element.
        flows: `[S, B, width]`.
        precision: one of `ops.PRECISIONS`.

    Returns:
        The new flows, p times q theta. What is written for padding is left open.
    """
    p_parts, num_places, batch, children = p.shape
    nodes, width = q.shape[3], flows.shape[2]
    assert weights.dtype == jnp.bfloat16
    parts, rounded = products(precision, "backward", batch)

    def kernel(*arrays):
        from jaxjuice.ops.kernels.device.dense import dense_backward_kernel

        tile = dense_backward_tile(units.count, children, batch, nodes, parts)
        tiles = -(-children // tile.rows) * -(-batch // tile.columns)
        return _launch.launch(
            dense_backward_kernel, *arrays, num_places, weights.shape[1], batch, children,
            out=jax.ShapeDtypeStruct(flows.shape, jnp.float32), aliases={7: 0},
            grid=(units.count * tiles,), num_warps=tile.warps, num_stages=tile.stages,
            NODES=nodes, WIDTH=width, P_PARTS=p_parts, PARTS=parts,
            ROUNDED=rounded, ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth,
        )  # fmt: skip

    plain = partial(reference.dense_backward, product=product_of(precision, "backward", batch))
    return _launch.dispatch(
        implementation, kernel, plain, q, p, weights, rows, places, starts, units, flows
    )


def dense_gradient(
    q: Array,
    p: Array,
    copies: Array,
    factors: Array | None,
    rows: Array,
    precision: str,
    implementation: str,
) -> Array:
    """d LL / d theta of units, summed over samples.

    Args:
        q, p: as in `dense_backward`.
        copies: int32 `[number, copies]`, the places of the units that share each row of parameters;
            -1 for none.
        factors: `[P, M, N]`, what to multiply the result with; None for 1.
        rows: int32 `[number]`, which of the factors.
        precision: one of `ops.PRECISIONS`.

    Returns:
        `[number, M, N]`.
    """
    _, num_places, batch, nodes = q.shape
    children, (count, number) = p.shape[3], copies.shape
    parts, rounded = products(precision, "backward", batch)
    multiplies = factors is not None

    def kernel(*arrays):
        from jaxjuice.ops.kernels.device.dense import dense_gradient_kernel

        tile = dense_gradient_tile(count, nodes, children, batch, parts, rounded)
        tiles = -(-nodes // tile.rows) * -(-children // tile.columns)
        return _launch.launch(
            dense_gradient_kernel, *arrays, num_places, batch, number, children,
            out=jax.ShapeDtypeStruct((count, nodes, children), jnp.float32),
            grid=(count * tiles,), num_warps=tile.warps, num_stages=tile.stages,
            NODES=nodes, WIDTH=_divisor(children), MULTIPLY=multiplies, PARTS=parts,
            ROUNDED=rounded, ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth,
        )  # fmt: skip

    def plain(q, p, copies, factors, rows):
        product = product_of(precision, "backward", batch)
        out = reference.dense_gradient(q, p, copies, product=product)
        return out * factors[rows] if multiplies else out

    factors = jnp.zeros((1, 1, 1), jnp.float32) if factors is None else factors
    return _launch.dispatch(implementation, kernel, plain, q, p, copies, factors, rows)


def gradient_by_xla(
    q: Array, p: Array, num_samples: int, precision: str, implementation: str
) -> Array:
    """The sum over samples of q^T p, finite, as a product of XLA's own.

    Args:
        q, p: `[X, samples of all copies, M]` and `[X, ..., N]`.
        num_samples: of one copy.
        precision: one of `ops.PRECISIONS`.

    Returns:
        `[X, M, N]`.
    """
    preset, axis = algorithm(precision, "backward", num_samples), 1
    large = min(q.shape[2], p.shape[2]) >= _WORTH_A_COPY
    if large and preset == lax.DotAlgorithmPreset.TF32_TF32_F32:
        # cuBLAS is 1.6 times as fast if an operand ends with the axis that is summed over.
        q, axis = transpose(q, implementation), 2
    return finite(
        dot(
            q, p, ((axis,), (1,)), batch=((0,), (0,)), precision=precision, role="backward",
            num_samples=num_samples,
        )
    )  # fmt: skip


def _divisor(children: int) -> int:
    """A power of two: what the kernels may know of a number that is no constant of theirs."""
    return min(children & -children, 256)
