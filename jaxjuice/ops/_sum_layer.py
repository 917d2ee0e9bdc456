"""Sum layers in log space, one product for each block of nodes.

Letters as everywhere: e child values (log), p = exp(e - m), s = sum_j theta_j p_j, v node values,
f node flows, q = f / s. A value is kept as `relative + scale` with one scale a sample and slot, so
that log-likelihoods of thousands of nats lose no digits in the flows.

The shift m is one for all nodes that share children, so that they share a product. A child more
than about 87 nats (float32; 700 in float64) below the largest of them counts as impossible.

Where the nb blocks of a unit read some of E elements, every element is exponentiated once, with a
shift m of its own, and a block scales those that it selects to the largest of these, M: a block
may lie hundreds of nats below what only others read.
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxjuice.ops._precision import dot
from jaxjuice.ops._slots import read_runs, read_scales


@dataclass(frozen=True)
class Propagation:
    """How a sum node combines its children.

    "LL": v = log sum_c theta_c exp(e_c). "MPE": v = max_c (log theta_c + e_c). "GeneralLL":
    v = 1/alpha log sum_c (theta_c exp(e_c))^alpha, which is LL at alpha = 1 and tends to MPE.
    """

    algorithm: Literal["LL", "MPE", "GeneralLL"] = "LL"
    alpha: float = 1.0

    @property
    def is_max(self) -> bool:
        return self.algorithm == "MPE"


LL = Propagation()

# What a product must have to be dense. The numbers are PyJuice's: the two kinds of product differ
# in their errors, so which one runs must never depend on a measurement.
DENSE_NODES = 1024
DENSE_CHILD_VALUES = 2**19

_LOWEST = -1e30  # below every log-density, and sums of thousands of it are still finite


def is_dense(num_nodes: int, num_children: int, num_samples: int, propagation: Propagation) -> bool:
    """Whether a product `[num_samples, num_children] x [num_children, num_nodes]` is dense."""
    large = num_nodes >= DENSE_NODES and num_children * num_samples >= DENSE_CHILD_VALUES
    return large and propagation.algorithm == "LL"


def exponentiate(
    e: jax.Array, scale: jax.Array, propagation: Propagation
) -> tuple[jax.Array, jax.Array]:
    """Shifts child values by their maximum, and exponentiates them unless maxima are propagated.

    Args:
        e: `[X, B, C, w]`, relative values of C runs of children.
        scale: `[X, B, C]`, their scales.
        propagation: "LL" gives exp(e - m), "GeneralLL" exp(alpha (e - m)), "MPE" e - m.

    Returns:
        p `[X, B, C * w]` and the shift m `[X, B]` (scale included; finite even where all are -inf).
    """
    blocks, batch, elements, width = e.shape
    shift = scale.max(2)
    if elements > 1:
        e = e + (scale - shift[..., None])[..., None]
    e = e.reshape(blocks, batch, elements * width)
    # Where all children are -inf the shift is arbitrary but finite, so that e - m stays -inf.
    m = shift + jnp.max(e, axis=-1, initial=_LOWEST)
    # At thousands of nats m is rounded. p is relative to the rounded m, so the rounding cancels
    # and does not add up with depth.
    return _exp(e - (m - shift)[..., None], propagation), m


def exponentiate_elements(
    e: jax.Array, scale: jax.Array, propagation: Propagation
) -> tuple[jax.Array, jax.Array]:
    """`exponentiate` with a shift for each element.

    Args:
        e: `[X, E, B, w]`, relative values of E elements of w children.
        scale: `[X, E, B]`, their scales.
        propagation: as in `exponentiate`.

    Returns:
        p `[X, E, B, w]` and the shifts m `[X, E, B]` (scale included, and finite).
    """
    m = scale + jnp.max(e, axis=-1, initial=_LOWEST)
    # At thousands of nats m is rounded, so e - m is taken of the m that the blocks will see.
    return _exp(e - (m - scale)[..., None], propagation), m


def block_shifts(m: jax.Array, selection: jax.Array) -> jax.Array:
    """The largest shift of the elements that each block selects.

    Args:
        m: `[X, E, B]` as `exponentiate_elements` returns it.
        selection: int32 `[X, nb, C]`, the elements that each of nb blocks reads.

    Returns:
        M `[X, nb, B]`.
    """
    units, blocks, _ = selection.shape
    return _select_shifts(m, selection).max(2).reshape(units, blocks, m.shape[2])


def select_elements(
    p: jax.Array,
    m: jax.Array,
    block_shift: jax.Array,
    selection: jax.Array,
    propagation: Propagation,
) -> jax.Array:
    """The operands of the blocks' products: exp(e - M), or for "MPE" e - M.

    Args:
        p, m: `[X, E, B, w]` and `[X, E, B]` as `exponentiate_elements` returns them.
        block_shift: M `[X, nb, B]` as `block_shifts` returns it.
        selection: int32 `[X, nb, C]`.
        propagation: as in `exponentiate`.

    Returns:
        `[X * nb, B, C * w]`, what `exponentiate` returns where blocks have elements of their own.
    """
    units, elements, batch, width = p.shape
    _, blocks, size = selection.shape
    slots = _selected_slots(selection, elements)
    chosen = read_runs(p.reshape(units * elements, batch, width), slots, None, width)
    below = _select_shifts(m, selection) - block_shift.reshape(units * blocks, batch, 1)
    ratio = _exp(below, propagation)[..., None]
    chosen = chosen + ratio if propagation.is_max else chosen * ratio
    return chosen.reshape(units * blocks, batch, size * width)


def sum_layer_forward(
    p: jax.Array, weights: jax.Array, propagation: Propagation, precision: str
) -> jax.Array:
    """Node values relative to the shift of `exponentiate`.

    Args:
        p: `[X, B, N]` as `exponentiate` returns it.
        weights: theta `[X, M, N]`.

    Returns:
        `[X, B, M]`; exactly -inf where no child with a positive weight is alive.
    """
    if propagation.is_max:
        return (jnp.log(weights)[:, None] + p[:, :, None]).max(-1)
    weights = _powered(weights, propagation)
    _, nodes, children = weights.shape
    dense = is_dense(nodes, children, p.shape[1], propagation)
    s = dot(
        p,
        weights,
        ((2,), (2,)),
        batch=((0,), (0,)),
        precision=precision,
        role="dense_forward" if dense else "forward",
        num_samples=p.shape[1],
    )
    value = jnp.log(s)
    return value if propagation.algorithm == "LL" else value / _alpha(value, propagation)


def flow_ratio(v: jax.Array, f: jax.Array, propagation: Propagation) -> jax.Array:
    """q = f / s `[X, B, M]`, 0 where f or s is; for "MPE" f itself, 0 where the node is -inf.

    Args:
        v: `[X, B, M]`, what `sum_layer_forward` returned.
        f: `[X, B, M]`, the flows of the nodes.
    """
    # Padding may see another slot's values, where exp(-v) overflows; its flow is 0.
    live = (f != 0) & (v > -jnp.inf)
    if propagation.is_max:
        return jnp.where(live, f, jnp.zeros_like(f))
    v = v if propagation.algorithm == "LL" else v * _alpha(v, propagation)
    largest = float(jnp.finfo(v.dtype).maxexp) * 0.69  # exp stays finite where s is denormal
    return jnp.where(live, f * jnp.exp(jnp.minimum(-v, largest)), jnp.zeros_like(f))


def choose_children(p: jax.Array, weights: jax.Array) -> jax.Array:
    """The child that each node takes its maximum from: int32 `[X, B, M]`, the lowest of several.

    Args:
        p: `[X, B, N]` as `exponentiate` returns it for "MPE".
        weights: theta `[X, M, N]`.
    """
    return jnp.argmax(jnp.log(weights)[:, None] + p[:, :, None], axis=-1).astype(jnp.int32)


def sum_layer_backward(
    factor: jax.Array, q: jax.Array, weights: jax.Array, propagation: Propagation, precision: str
) -> jax.Array:
    """What the nodes' flows do to their children.

    Args:
        factor: p `[X, B, N]` as `exponentiate` returns it, or for "MPE" what `choose_children`
            returns.
        q: `[X, B, M]` as `flow_ratio` returns it.
        weights: theta `[X, M, N]`.

    Returns:
        Element flows `[X, B, N]`.
    """
    if propagation.is_max:
        x, b = _row_indices(factor)
        flows = jnp.zeros_like(q, shape=(*q.shape[:2], weights.shape[2]))
        return flows.at[x, b, factor].add(q)
    # Of many nodes that lie as far below others as the dtype reaches, q adds up to infinity.
    return factor * finite(flows_back(q, weights, propagation, precision))


def shared_elements_backward(
    factor: jax.Array,
    m: jax.Array | None,
    block_shift: jax.Array,
    q: jax.Array,
    weights: jax.Array,
    selected_by: jax.Array,
    width: int,
    propagation: Propagation,
    precision: str,
) -> jax.Array:
    """`sum_layer_backward` where blocks share elements.

    Args:
        factor, m: p `[X, E, B, w]` and m `[X, E, B]` as `exponentiate_elements` returns them, or
            for "MPE" what `choose_children` returns, and None.
        block_shift: M `[X, nb, B]` as `block_shifts` returns it.
        q: `[X * nb, B, M]` as `flow_ratio` returns it.
        weights: theta `[X * nb, M, C * w]`.
        selected_by: int32 `[X, E, n]`, as in `add_selected`.
        width: w.

    Returns:
        Element flows `[X, E, B, w]`.
    """
    if m is None:
        flows = sum_layer_backward(factor, q, weights, propagation, precision)
        return add_selected(flows, selected_by, width)
    back = flows_back(q, weights, propagation, precision)
    return factor * finite(add_selected(back, selected_by, width, (m, block_shift), propagation))


def add_selected(
    flows: jax.Array,
    selected_by: jax.Array,
    width: int,
    shifts: tuple[jax.Array, jax.Array] | None = None,
    propagation: Propagation = LL,
) -> jax.Array:
    """Sums what the blocks have for the elements that they select.

    Args:
        flows: `[X * nb, B, C * w]`.
        selected_by: int32 `[X, E, n]`, the places k * C + c where block k selects an element as its
            child c; nb * C where there are fewer than n.
        width: w.
        shifts: m `[X, E, B]` and M `[X, nb, B]`; what comes from block k is multiplied by
            exp(m - M_k).
        propagation: "GeneralLL" takes alpha times that exponent.

    Returns:
        `[X, E, B, w]`.
    """
    units, elements, reads = selected_by.shape
    batch, size = flows.shape[1], flows.shape[2] // width
    blocks = len(flows) // units
    block = jnp.minimum(lax.div(selected_by, np.int32(size)), np.int32(blocks - 1))
    slots = jnp.arange(units, dtype=jnp.int32)[:, None, None] * np.int32(blocks) + block
    offsets = lax.rem(selected_by, np.int32(size)) * np.int32(width)
    real = (selected_by < blocks * size)[..., None]
    ratio = jnp.ones_like(flows, shape=(units, elements, reads, batch))
    if shifts is not None:
        m, block_shift = shifts
        every = slots.reshape(units, elements * reads, 1)
        above = read_scales(block_shift.reshape(units * blocks, batch), every, batch_axis=2)
        ratio = _exp(m[:, :, None] - above.reshape(ratio.shape), propagation)
    factors = jnp.where(real, ratio, jnp.zeros_like(ratio))
    return read_runs(flows, slots, offsets, width, batch_axis=2, factors=factors)


def sum_layer_weight_gradient(
    q: jax.Array, factor: jax.Array, weights: jax.Array, propagation: Propagation, precision: str
) -> jax.Array:
    """d LL / d theta `[X, M, N]`, summed over samples. theta times it are the parameter flows.

    Args:
        q, factor: as in `sum_layer_backward`, `[X, copies, B, ...]`, where `copies` layers share
            the parameters.
        weights: theta `[X, M, N]`.
    """
    blocks, copies, batch, _ = q.shape
    if propagation.is_max:
        q, factor = (a.reshape(blocks, copies * batch, a.shape[3]) for a in (q, factor))
        x, _ = _row_indices(factor)
        nodes = jnp.arange(factor.shape[2], dtype=jnp.int32)
        counts = jnp.zeros_like(weights).at[x, nodes, factor].add(q)
        safe = jnp.where(weights > 0, weights, jnp.ones_like(weights))
        return jnp.where(weights > 0, counts / safe, jnp.zeros_like(counts))
    # Copies and samples are contracted side by side: merged into one axis, a batch that is sharded
    # over devices would have to be gathered.
    gradient = dot(
        q,
        factor,
        ((1, 2), (1, 2)),
        batch=((0,), (0,)),
        precision=precision,
        role="backward",
        num_samples=batch,
    )
    if propagation.algorithm == "LL":
        return gradient
    power = _alpha(weights, propagation) - 1
    positive = weights > 0
    safe = jnp.where(positive, weights, jnp.ones_like(weights))
    return jnp.where(positive, gradient * safe**power, jnp.zeros_like(gradient))


def _selected_slots(selection: jax.Array, elements: int) -> jax.Array:
    """`[X * nb, C, 1]`, the places of the selected in `[X * elements, ...]`."""
    units, blocks, size = selection.shape
    first = jnp.arange(units, dtype=jnp.int32) * np.int32(elements)
    return (first[:, None, None] + selection).reshape(units * blocks, size, 1)


def _select_shifts(m: jax.Array, selection: jax.Array) -> jax.Array:
    """`[X * nb, B, C]`."""
    units, elements, batch = m.shape
    slots = _selected_slots(selection, elements)
    return read_scales(m.reshape(units * elements, batch), slots)


def flows_back(
    q: jax.Array, weights: jax.Array, propagation: Propagation, precision: str
) -> jax.Array:
    """q theta `[X, B, N]`."""
    return dot(
        q,
        _powered(weights, propagation),
        ((2,), (1,)),
        batch=((0,), (0,)),
        precision=precision,
        role="backward",
        num_samples=q.shape[1],
    )


def finite(x: jax.Array) -> jax.Array:
    """The nearest finite number, of which 0 times is 0. NaN stays."""
    largest = jnp.asarray(jnp.finfo(x.dtype).max, x.dtype)
    return jnp.clip(x, -largest, largest)


def _exp(e: jax.Array, propagation: Propagation) -> jax.Array:
    if propagation.is_max:
        return e
    return jnp.exp(e if propagation.algorithm == "LL" else e * _alpha(e, propagation))


def _alpha(like: jax.Array, propagation: Propagation) -> jax.Array:
    return jnp.asarray(propagation.alpha, like.dtype)


def _powered(weights: jax.Array, propagation: Propagation) -> jax.Array:
    if propagation.algorithm == "LL":
        return weights
    positive = weights > 0
    safe = jnp.where(positive, weights, jnp.ones_like(weights))
    powered = safe ** _alpha(weights, propagation)
    return jnp.where(positive, powered, jnp.zeros_like(weights))


def _row_indices(index: jax.Array) -> tuple[jax.Array, jax.Array]:
    blocks, batch, _ = index.shape
    x = jnp.arange(blocks, dtype=jnp.int32)[:, None, None]
    return x, jnp.arange(batch, dtype=jnp.int32)[None, :, None]
