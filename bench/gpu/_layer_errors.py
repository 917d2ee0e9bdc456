"""Errors of one sum layer against float64, computed with numpy on the host."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxjuice as juice
from jaxjuice import ops
from jaxjuice.ops import kernels

SPREAD = 10.0  # nats between the largest and the smallest child value
# The largest errors allowed, by what the products run in: of log-likelihoods in nats, and of flows
# relative to the largest one. The numbers are PyJuice's own.
LL_TARGETS = {"BF16_BF16_F32": 4e-3, "TF32_TF32_F32": 5e-4, "TF32_TF32_F32_X3": 2e-6}
ELEMENT_TARGETS = {"TF32_TF32_F32": 5e-5, "TF32_TF32_F32_X3": 5e-7}
PARAMETER_TARGETS = {"TF32_TF32_F32": 3e-4, "TF32_TF32_F32_X3": 5e-7}


class Layer(NamedTuple):
    """Shapes of sum units: each has `blocks` blocks of `size` nodes, which read some elements.

    Attributes:
        title: for people.
        units: how many, side by side.
        elements, width: a unit has so many elements of `width` children.
        own: how many of them each block reads.
        batch: samples.
        tied: whether units of one block have the same weights in every step of their circuit, as
            those of homogeneous HMMs do: XLA multiplies them in some modes.
        splits: whether the kernels split the weights of units of one block where they read them, as
            they do in inference, or find them split.
    """

    title: str
    units: int
    blocks: int
    size: int
    elements: int
    own: int
    width: int
    batch: int
    tied: bool = False
    splits: bool = False

    @property
    def keeps_apart(self) -> bool:
        """Whether q is kept for every element that a block reads, as `jaxjuice.passes` does."""
        return kernels.keeps_apart(self.blocks, self.num_nodes, self.own, self.elements, self.width)

    def runs_on(self, mode: str) -> str:
        """Whose products these are on an NVIDIA GPU."""
        size = self.size, self.num_children
        in_parts = kernels.in_parts(*size, self.tied, mode, self.batch)
        return "Triton" if self.blocks > 1 or in_parts else "XLA"

    @property
    def num_nodes(self) -> int:
        """Of a unit."""
        return self.blocks * self.size

    @property
    def num_children(self) -> int:
        """Of a node."""
        return self.own * self.width


LAYERS = (
    Layer("sparse, 8 blocks that read 4 of 8 elements", 1, 8, 128, 8, 4, 256, 128),
    Layer("sparse, 8 blocks of 32 nodes that read 4 of 8", 1, 8, 32, 8, 4, 256, 128),
    Layer("dense, one group, tied", 1, 1, 1024, 1, 1, 1024, 512, tied=True),
    Layer("one group below the gate, tied", 1, 1, 1024, 1, 1, 1024, 128, tied=True),
    Layer("dense, three groups", 3, 1, 1024, 1, 1, 1024, 512),
    Layer("dense, three groups, split where read", 3, 1, 1024, 1, 1, 1024, 512, splits=True),
    Layer("three groups below the gate", 3, 1, 1024, 1, 1, 1024, 128),
)
QUICK_LAYERS = (
    Layer("sparse, 4 blocks that read 2 of 4 elements", 1, 4, 8, 4, 2, 16, 16),
    Layer("sparse, 4 blocks of 2 nodes that read 2 of 4", 1, 4, 2, 4, 2, 16, 16),
    Layer("three groups", 3, 1, 32, 1, 1, 32, 16),
    Layer("three groups, split where read", 3, 1, 32, 1, 1, 32, 16, splits=True),
    Layer("one group, tied", 1, 1, 32, 1, 1, 32, 16, tied=True),
)


class _Problem(NamedTuple):
    """What a layer is given, float32 arrays of numpy, or of JAX when traced.

    Attributes:
        e: child values `[units * elements, B, width]`.
        weights: theta `[units, nodes, own * width]`; rows sum to 1.
        flows: f `[units, B, nodes]`; those of a sample sum to 1.
        selection: int32 `[units, blocks, own]`: which elements a block reads.
        readers: int32 `[units, elements, 1 + most]`, as `kernels.element_flows` takes them.
    """

    e: Any
    weights: Any
    flows: Any
    selection: Any
    readers: Any


class _Results(NamedTuple):
    """What comes out: v `[units, B, nodes]`, the flows of elements and of parameters."""

    values: Any
    element_flows: Any
    parameter_flows: Any


def layer_rows(layers: tuple[Layer, ...], modes: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The errors of every layer in every mode."""
    for layer in layers:
        problem = _problem(layer, np.random.default_rng(0))
        exact = _in_float64(layer, problem)
        run = jax.jit(
            partial(_run, layer), static_argnums=2, compiler_options=juice.compiler_options()
        )
        # Values as the passes keep them, relative to the largest child.
        shift = problem.e.reshape(layer.units, layer.elements, layer.batch, -1).max((1, 3))
        given = (exact.values - shift[..., None]).astype(np.float32)
        for mode in modes:
            whole, apart = run(problem, given, mode)
            yield _row(layer, mode, whole, apart, exact, shift)


def _row(
    layer: Layer, mode: str, whole: _Results, apart: _Results, exact: _Results, shift: np.ndarray
) -> dict[str, Any]:
    forward, backward = _algorithms(layer, mode)
    error = np.asarray(whole.values, np.float64) + shift[..., None] - exact.values
    row: dict[str, Any] = {
        "layer": layer.title,
        "batch": layer.batch,
        "precision": mode,
        "runs_on": layer.runs_on(mode),
        "forward": forward,
        "backward": backward,
        "ll_max_error": float(np.abs(error).max()),
        "ll_mean_error": float(error.mean()),
    }
    for name in ("element_flows", "parameter_flows"):
        row[name] = _relative(getattr(apart, name), getattr(exact, name))
        row[f"{name}_after_forward"] = _relative(getattr(whole, name), getattr(exact, name))
    row["targets"] = {
        "ll_max_error": LL_TARGETS.get(forward),
        "element_flows": ELEMENT_TARGETS.get(backward),
        "parameter_flows": PARAMETER_TARGETS.get(backward),
    }
    # Not `>`: NaN must not pass.
    row["missed"] = [
        name for name, most in row["targets"].items() if most is not None and not row[name] <= most
    ]
    return row


def _algorithms(layer: Layer, mode: str) -> tuple[str, str]:
    """What the products of both passes run in on an NVIDIA GPU."""
    presets = (ops.algorithm(mode, role, layer.batch) for role in (_role(layer), "backward"))
    forward, backward = ("float32" if preset is None else preset.name for preset in presets)
    return forward, backward


def _role(layer: Layer) -> ops.Role:
    dense = layer.blocks == 1 and ops.is_dense(layer.size, layer.num_children, layer.batch, ops.LL)
    return "dense_forward" if dense else "forward"


def _relative(found: Any, exact: np.ndarray) -> float:
    return float(np.abs(np.asarray(found, np.float64) - exact).max() / np.abs(exact).max())


def _problem(layer: Layer, rng: np.random.Generator) -> _Problem:
    e = -SPREAD * rng.random((layer.units * layer.elements, layer.batch, layer.width))
    weights = np.exp(-2 * rng.random((layer.units, layer.num_nodes, layer.num_children)))
    weights /= weights.sum(-1, keepdims=True)
    flows = rng.random((layer.units, layer.batch, layer.num_nodes))
    flows /= flows.sum(-1, keepdims=True)
    read = np.sort((np.arange(layer.blocks)[:, None] + np.arange(layer.own)) % layer.elements)
    places = [np.flatnonzero(read == c) for c in range(layer.elements)]
    readers = np.zeros((layer.elements, 1 + max(map(len, places))))
    for c, place in enumerate(places):
        readers[c, : 1 + len(place)] = [len(place), *place]
    tables = (np.broadcast_to(x, (layer.units, *x.shape)) for x in (read, readers))
    return _Problem(
        *(x.astype(np.float32) for x in (e, weights, flows)), *(x.astype(np.int32) for x in tables)
    )


def _in_float64(layer: Layer, problem: _Problem) -> _Results:
    e, theta, f = (x.astype(np.float64) for x in problem[:3])
    e = e.reshape(layer.units, layer.elements, layer.batch, layer.width)
    values, elements, parameters = np.empty_like(f), np.zeros_like(e), np.empty_like(theta)
    for unit, block in np.ndindex(layer.units, layer.blocks):
        chosen = problem.selection[unit, block]
        nodes = slice(block * layer.size, (block + 1) * layer.size)
        x = e[unit, chosen].swapaxes(0, 1).reshape(layer.batch, -1)
        m = x.max(1, keepdims=True)
        p, weights = np.exp(x - m), theta[unit, nodes]
        s = p @ weights.T
        q = f[unit, :, nodes] / s
        back = (p * (q @ weights)).reshape(layer.batch, layer.own, layer.width)
        values[unit, :, nodes] = np.log(s) + m
        elements[unit, chosen] += back.swapaxes(0, 1)
        parameters[unit, nodes] = weights * (q.T @ p)
    return _Results(values, elements.reshape(problem.e.shape), parameters)


def _run(layer: Layer, problem: _Problem, given: Array, mode: str) -> tuple[_Results, _Results]:
    """Both passes, as `jaxjuice.passes` makes them of fused steps, and the backward pass alone.

    Args:
        given: values that the backward pass takes, if alone, for those that the forward pass finds.
    """
    implementation = "triton" if kernels.available() else "xla"
    problem = jax.tree.map(jnp.asarray, problem)
    run = _one_block if layer.blocks == 1 else _several_blocks
    forward, backward = run(layer, problem, mode, implementation)
    v, saved = forward()
    return _Results(v, *backward(v, saved)), _Results(given, *backward(given, saved))


def _children(layer: Layer, problem: _Problem) -> tuple[Any, ...]:
    """What the kernels take to read children: slot 0 is none."""
    values = jnp.concatenate([jnp.zeros_like(problem.e[:1]), problem.e])
    slots = jnp.arange(1, len(values), dtype=jnp.int32)
    slots = slots.reshape(layer.units, layer.elements, 1)
    return values, jnp.zeros(values.shape[:2]), None, False, None, slots, None


def _kept_ratio(
    problem: _Problem,
    v: Array,
    block_shifts: Array | None,
    apart: tuple[Array, Array] | None,
    kept: Array,
    implementation: str,
) -> Array:
    f = jnp.concatenate([jnp.zeros_like(problem.flows[:1]), problem.flows])
    entries = _entries(len(v))
    slots = (1 + entries).reshape(len(v), 1, 1)
    _, kept_now = kernels.flow_ratio(
        v, f, slots, None, block_shifts, None if block_shifts is None else block_shifts.max(1),
        apart, entries, kernels.Units.at(0, len(v)), entries, kept, f, False, implementation,
    )  # fmt: skip
    assert kept_now is not None
    return kept_now


def _entries(count: int) -> Array:
    return jnp.arange(count, dtype=jnp.int32)


def _all_units(layer: Layer) -> tuple[Array, kernels.Units]:
    return _entries(layer.units), kernels.Units.at(0, layer.units)


def _one_block(layer: Layer, problem: _Problem, mode: str, implementation: str):
    assert layer.elements == 1
    weights, entries, every = problem.weights, *_all_units(layer)
    units, batch, width, nodes = layer.units, layer.batch, layer.width, layer.num_nodes
    in_parts = layer.runs_on(mode) == "Triton"
    parts = kernels.stored_parts(mode, _role(layer), batch, True)
    theta = kernels.split(weights, parts, implementation)

    def forward() -> tuple[Array, Array]:
        shape = units, batch, width
        _, kept, _ = kernels.exponentiate(
            *_children(layer, problem), jnp.zeros(shape[:2]), entries, every, entries,
            jnp.zeros((parts, *shape), jnp.bfloat16) if in_parts else jnp.zeros(shape),
            problem.e, width, False, implementation,
        )  # fmt: skip
        assert kept is not None
        if not in_parts:
            return ops.sum_layer_forward(kept, weights, ops.LL, mode), kept
        v = kernels.dense_forward(
            kept, weights[None] if layer.splits else theta, entries, entries, entries, every,
            jnp.zeros((units, batch, nodes)), mode, implementation,
        )  # fmt: skip
        return v, kept

    def backward(v: Array, p: Array) -> tuple[Array, Array]:
        shape = units, batch, nodes
        kept = jnp.zeros((parts, *shape), jnp.bfloat16) if in_parts else jnp.zeros(shape)
        q = _kept_ratio(problem, v, None, None, kept, implementation)
        flows = jnp.zeros((units, batch, width))
        if in_parts:
            flows = kernels.dense_backward(
                q, p, theta, entries, entries, entries, every, flows, mode, implementation,
            )  # fmt: skip
            return flows, kernels.dense_gradient(
                q, p, entries[:, None], weights, entries, mode, implementation
            )
        back = ops.flows_back(q, weights, ops.LL, mode)
        flows = kernels.scale_flows(p, back, entries, entries, every, flows, implementation)
        gradient = kernels.gradient_by_xla(q, p, batch, mode, implementation)
        return flows, weights * gradient

    return forward, backward


def _several_blocks(layer: Layer, problem: _Problem, mode: str, implementation: str):
    weights, selection = problem.weights, problem.selection
    entries, every = _all_units(layer)
    shape = layer.units * layer.elements, layer.batch, layer.width
    parts = kernels.stored_parts(mode, _role(layer), layer.batch, True)
    theta = kernels.split(weights, parts, implementation)

    def forward() -> tuple[Array, tuple[Array, Array, Array]]:
        p, shifts = kernels.exponentiate_apart(
            *_children(layer, problem), entries, every,
            jnp.zeros((parts, *shape), jnp.bfloat16), jnp.zeros(shape[:2]), problem.e,
            False, implementation,
        )  # fmt: skip
        v, _, block_shifts = kernels.forward(
            p, shifts, entries, theta, entries, selection, entries, every,
            jnp.zeros_like(problem.flows), jnp.zeros((layer.units, layer.batch)),
            jnp.zeros((layer.units, layer.blocks, layer.batch)), layer.elements, mode,
            implementation,
        )  # fmt: skip
        return v, (p, shifts, block_shifts)

    def backward(v: Array, saved: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        apart, kept = None, jnp.zeros_like(v)
        if layer.keeps_apart:
            apart = saved[1], selection
            readers = layer.units * layer.blocks * layer.own
            of_backward = kernels.products(mode, "backward", layer.batch).parts
            kept = jnp.zeros((of_backward, readers, layer.batch, layer.size), jnp.bfloat16)
        q = _kept_ratio(problem, v, saved[2], apart, kept, implementation)
        flows = kernels.element_flows(
            *saved, q, theta, entries, problem.readers, entries * layer.elements, every,
            jnp.zeros(shape), layer.blocks, mode, implementation,
        )  # fmt: skip
        return flows, kernels.weight_gradient(
            *saved, q, selection, problem.readers, entries[:, None], weights, entries, mode,
            implementation,
        )  # fmt: skip

    return forward, backward
