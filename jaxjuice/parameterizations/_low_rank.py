"""`LowRank`: a scale of every (node, child) pair, made of two factors."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxjuice import ops
from jaxjuice._errors import StructureError
from jaxjuice.parameterizations._base import (
    Parameterization,
    Unit,
    check_flags,
    positive_size,
)

# Factors of -inf take part in products as this, so that -inf times 0 counts as 0; log-scales below
# _CLOSED are -inf.
_LOWEST_FACTOR = -1e30
_CLOSED = -1e20


@dataclasses.dataclass(frozen=True)
class LowRank(Parameterization):
    """Scales of rank k, as in `pyjuice.parameterizations.LowRank`.

    Two tensors a vector, A `[B, num_nodes, k]` and B `[B, k, num_ch_nodes]`, make a scale of every
    pair of a node i and a child j:

        "exp_sum": g_b[i, j] = exp(sum_r A_b[i, r] B_b[r, j])
        "sum_exp": g_b[i, j] = sum_r exp(A_b[i, r]) exp(B_b[r, j])

    "exp_sum" takes an exponential for every pair and sample, "sum_exp" k products with the shared
    weights, on a batch of samples times ranks. Entries may be -inf; in "exp_sum", -inf times 0
    counts as 0, and -inf times a negative number is no scale. In "sum_exp" the nodes of a block
    share exponentials: in float32, a node is impossible if in each rank all its children, scale
    included, lie more than 87 nats below some child of the others, as in plain layers.

    Attributes:
        rank: k.
        form: "exp_sum" or "sum_exp".
        apply_z_correction, tie_external: see `Parameterization`.
        flow_precision: of the two products for F+ and W of "sum_exp", in `log_likelihood_and_flows`
            on NVIDIA GPUs, for batches of 16 or more: "bf16" takes bf16 operands under the
            precisions "auto" and "bf16"; "fp8" takes e4m3 operands, with a power of 2 for each row,
            under every precision but "fp32". Gradients are not affected, and no statistic becomes
            0 by it.

    Raises:
        StructureError: if an argument is none of these.
    """

    rank: int
    form: Literal["exp_sum", "sum_exp"] = "exp_sum"
    apply_z_correction: bool = True
    tie_external: bool = False
    flow_precision: Literal["bf16", "fp8"] = "bf16"

    def __post_init__(self) -> None:
        # An int of numpy could not be written to a file.
        object.__setattr__(self, "rank", positive_size("LowRank(...)", "rank", self.rank))
        flags = {name: getattr(self, name) for name in ("apply_z_correction", "tie_external")}
        check_flags("LowRank(...)", **flags)
        if self.form not in ("exp_sum", "sum_exp"):
            raise StructureError(
                f"LowRank(...): form={self.form!r} is neither 'exp_sum' nor 'sum_exp'."
            )
        if self.flow_precision not in ("bf16", "fp8"):
            raise StructureError(
                f"LowRank(...): flow_precision={self.flow_precision!r} is neither 'bf16' nor 'fp8'."
            )

    def tensor_shapes(self, num_nodes: int, num_ch_nodes: int) -> tuple[tuple[int, ...], ...]:
        return (num_nodes, self.rank), (self.rank, num_ch_nodes)

    def log_scale(self, tensors: Sequence[Array], num_nodes: int, num_ch_nodes: int) -> Array:
        a, b = tensors
        return self._log_scale(a[None], b.swapaxes(1, 2)[None], "fp32", a.shape[0])[0]

    @property
    def reads_positions(self) -> bool:
        return False

    @property
    def is_mixture(self) -> bool:
        return self.form == "sum_exp"

    def factor_precision(self, precision: str) -> str | None:
        return None if self.is_mixture else _factor_mode(precision)

    def layer_key(self, num_nodes: int, num_ch_nodes: int) -> Hashable:
        return ()

    def flat_sizes(self, num_nodes: int, num_ch_nodes: int) -> tuple[int, ...]:
        return num_nodes, num_ch_nodes

    def flatten(self, tensors: Sequence[Array], num_members: int) -> tuple[Array, ...]:
        a, b = tensors
        batch, _, children = b.shape
        b = b.reshape(batch, num_members, self.rank, children).swapaxes(2, 3)
        return a, b.reshape(batch, num_members * children, self.rank)

    def unit_indices(
        self, nodes: np.ndarray, children: np.ndarray, num_nodes: int, num_ch_nodes: int
    ) -> tuple[np.ndarray, ...]:
        return nodes, children

    def unit_log_scale(self, parts: Sequence[Array], unit: Unit) -> Array:
        a, b = parts
        return self._log_scale(a, b, unit.precision, unit.num_samples)

    def row_log_scale(self, parts: Sequence[Array], row: Array, num_rows: int, unit: Unit) -> Array:
        a, b = parts
        own = jnp.take_along_axis(a, row[:, :, None, None], axis=2)
        return self._log_scale(own, b, unit.precision, unit.num_samples)[:, :, 0]

    def _log_scale(self, a: Array, b: Array, precision: str, num_samples: int) -> Array:
        """log g `[X, B, M, N]` of factors `[X, B, M, k]` and `[X, B, N, k]`."""
        if self.is_mixture:
            return _log_mixture(a, b)
        return _factor_product(precision, num_samples, a, b)


def _factor_mode(precision: str) -> str:
    # Log-scales are large numbers, of which bf16 alone would keep two digits.
    return "fp32" if precision == "fp32" else "bf16x3"


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _factor_product(precision: str, num_samples: int, a: Array, b: Array) -> Array:
    """sum_r a_ir b_jr, where -inf times 0 counts as 0."""
    a, b = (jnp.maximum(x, jnp.full_like(x, _LOWEST_FACTOR)) for x in (a, b))
    product = ops.dot(
        a,
        b,
        ((3,), (3,)),
        batch=((0, 1), (0, 1)),
        precision=_factor_mode(precision),
        role="forward",
        num_samples=num_samples,
    )
    closed = product < jnp.asarray(_CLOSED, product.dtype)
    return jnp.where(closed, jnp.full_like(product, -jnp.inf), product)


def _factor_product_forward(precision: str, num_samples: int, a: Array, b: Array):
    return _factor_product(precision, num_samples, a, b), (a, b)


def _factor_product_backward(precision: str, num_samples: int, factors, cotangent: Array):
    """An infinite factor has no gradient, and gives none to its partners."""
    a, b = (jnp.where(x > -jnp.inf, x, jnp.zeros_like(x)) for x in factors)
    options = {"precision": precision, "role": "backward", "num_samples": num_samples}
    of_a = ops.dot(cotangent, b, ((3,), (2,)), batch=((0, 1), (0, 1)), **options)
    of_b = ops.dot(cotangent, a, ((2,), (2,)), batch=((0, 1), (0, 1)), **options)
    return tuple(
        jnp.where(x > -jnp.inf, of_x, jnp.zeros_like(of_x))
        for x, of_x in zip(factors, (of_a, of_b), strict=True)
    )


_factor_product.defvjp(_factor_product_forward, _factor_product_backward)


def _log_mixture(a: Array, b: Array) -> Array:
    """log sum_r exp(a_ir + b_jr), a rank after the other: only one array of all pairs is held."""

    def add(total: Array, factors: tuple[Array, Array]) -> tuple[Array, None]:
        row, column = factors
        return jnp.logaddexp(total, row[..., :, None] + column[..., None, :]), None

    ranks = jnp.moveaxis(a, -1, 0), jnp.moveaxis(b, -1, 0)
    first = a[..., :, None, 0] + b[..., None, :, 0]
    rest = jax.tree.map(lambda x: x[1:], ranks)
    return lax.scan(add, first, rest)[0]
