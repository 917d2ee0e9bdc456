"""Circuits in fused passes against the recursion in float64, in tests of two processes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxjuice as juice
from jaxjuice.nodes import CircuitNodes, InputNodes, SumNodes
from jaxjuice.ops.kernels import _parts
from tests import oracle
from tests.small_circuits import FAST_COMPILE, initial

Categorical = juice.distributions.Categorical


def hmm(homogeneous: bool = True) -> CircuitNodes:
    return juice.structures.HMM(7, 4, 5, homogeneous=homogeneous)


def hclt() -> CircuitNodes:
    data = np.random.default_rng(0).integers(0, 3, (60, 8))
    return juice.structures.HCLT(data, 3, input_dist=Categorical(3))


def pd(num_latents: int = 8) -> CircuitNodes:
    """Blocks of its sums pick some of their unit's elements."""
    return juice.structures.PD(
        (3, 4), num_latents, split_intervals=1, max_prod_block_conns=2,
        block_size=num_latents // 4, input_dist=Categorical(3),
    )  # fmt: skip


def rat_spn() -> CircuitNodes:
    return juice.structures.RAT_SPN(11, 3, 2, 3, input_dist=Categorical(3))


def padded_tree() -> CircuitNodes:
    """A random tree of hidden variables; one of the units of its program is padding."""
    rng = np.random.default_rng(1)
    children: dict[int, list[int]] = {v: [] for v in range(30)}
    for v in range(1, 30):
        children[int(rng.integers(max(0, v - 6), v))].append(v)
    built: dict[int, CircuitNodes] = {}
    for v in reversed(range(30)):
        leaf = juice.inputs(v, num_nodes=3, dist=Categorical(3))
        product = juice.multiply(leaf, *[built[c] for c in children[v]])
        built[v] = juice.summate(product, num_nodes=3 if v else 1)
    return built[0]


def picking() -> CircuitNodes:
    """A chain whose sums read two of three products a block; the last two are tied."""
    rng = np.random.default_rng(0)
    last, before = None, None
    for variable in range(4):
        leaves = [juice.inputs(variable, num_nodes=4, dist=Categorical(3)) for _ in range(3)]
        products = [juice.multiply(leaf, last) if last else juice.multiply(leaf) for leaf in leaves]
        if variable == 3:
            last = before.duplicate(*products, tie_params=True)
            continue
        size = products[0].num_node_blocks
        picks = np.array([rng.choice(3, 2, replace=False) for _ in range(2)])
        picks = (picks[..., None] * size + np.arange(size)).reshape(2, -1)
        edges = np.stack([np.repeat(np.arange(2), picks.shape[1]), picks.reshape(-1)])
        last = before = juice.summate(*products, num_nodes=4, block_size=2, edge_ids=edges)
    return juice.summate(juice.multiply(last), num_nodes=1)


def picking_wide() -> CircuitNodes:
    """Blocks of more nodes than their unit's elements have, so that r q would be more than p."""
    products = [
        juice.multiply(*(juice.inputs(v, num_nodes=4, dist=Categorical(3)) for v in range(2)))
        for _ in range(3)
    ]
    size = products[0].num_node_blocks
    picks = np.array([(k % 3, (k + 1) % 3) for k in range(8)])
    picks = (picks[..., None] * size + np.arange(size)).reshape(8, -1)
    edges = np.stack([np.repeat(np.arange(8), picks.shape[1]), picks.reshape(-1)])
    last = juice.summate(*products, num_nodes=16, block_size=2, edge_ids=edges)
    return juice.summate(juice.multiply(last), num_nodes=1)


STRUCTURES: dict[str, Any] = {
    "tied HMM": hmm,
    "HMM": lambda: hmm(False),
    "HCLT": hclt,
    "PD": pd,
    "padded tree": padded_tree,
    "picking": picking,
    "picking wide": picking_wide,
    "RAT-SPN": rat_spn,
}


def data_of(pc: juice.Circuit, rows: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    categories = min(leaf.dist.num_cats for leaf in pc.program.leaves)
    return rng.integers(0, categories, (rows, pc.num_vars))


def multiply_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has small units of one block multiply in the kernels, as large ones do."""
    monkeypatch.setattr(_parts, "_LEAST_SIZE", 2)
    monkeypatch.setattr(_parts, "_LEAST_BATCH", 1)


def check(
    pc: juice.Circuit, x: np.ndarray, missing: Any = None, seed: int = 0, *, gradient: bool = True,
    weighted: bool = True, alone: bool = False,
) -> None:  # fmt: skip
    """Log-likelihoods, flows and gradients in float32; `alone`: log-likelihoods without flows."""
    rng = np.random.default_rng(seed)
    rows = len(x)
    weights = np.ones((rows, pc.num_roots), np.float32)
    if weighted:
        weights = rng.uniform(0.5, 2.0, weights.shape).astype(np.float32)
    params = initial(pc, seed)
    values = pc.node_params(params)
    x = jnp.asarray(x, jnp.float32 if np.asarray(x).dtype.kind == "f" else jnp.int32)

    def both(params, x, weights):
        return pc.log_likelihood_and_flows(params, x, missing, weights if weighted else None)

    lls, flows = jax.jit(both, compiler_options=FAST_COMPILE)(params, x, weights)
    expected = oracle.log_likelihood(pc.root, values, np.asarray(x), missing)
    np.testing.assert_array_equal(
        np.isneginf(np.reshape(lls, expected.shape)), np.isneginf(expected)
    )
    np.testing.assert_allclose(np.reshape(lls, expected.shape), expected, rtol=2e-6, atol=2e-5)
    if alone:
        forward = jax.jit(
            lambda params, x: pc.log_likelihood(params, x, missing), compiler_options=FAST_COMPILE
        )
        np.testing.assert_allclose(forward(params, x), lls, rtol=1e-6, atol=1e-6)
    by_recursion = oracle.circuit_flows(pc.root, values, np.asarray(x), missing, weights)
    for ns in pc.root:
        if isinstance(ns, SumNodes):
            wanted = by_recursion.sums[ns.get_source()]
            found = pc.get_node_flows(flows, ns)
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    check_leaf_counts(pc, values, flows, by_recursion, np.asarray(x), missing)
    np.testing.assert_allclose(flows.weight, weights.sum(), rtol=1e-6)
    if not gradient:
        return

    def total(params, x, weights):
        lls = pc.log_likelihood(params, x, missing).reshape(rows, pc.num_roots)
        return (weights * jnp.where(lls > -jnp.inf, lls, 0.0)).sum()

    by_gradient = jax.jit(jax.grad(total), compiler_options=FAST_COMPILE)(params, x, weights)
    for name, flow in flows.sums.items():
        product = params["sums"][name] * by_gradient["sums"][name]
        np.testing.assert_allclose(product, flow, rtol=1e-4, atol=1e-6)
    check_leaf_gradient(params, by_gradient, flows, missing is not None)


def check_leaf_gradient(params, by_gradient, flows, has_missing: bool) -> None:
    """probs times its gradient are the counts of what was observed."""
    for name, statistics in flows.inputs.items():
        if "probs" in params["inputs"][name] and not has_missing:
            product = params["inputs"][name]["probs"] * by_gradient["inputs"][name]["probs"]
            np.testing.assert_allclose(product, statistics["counts"], rtol=1e-4, atol=1e-6)


def check_leaf_counts(pc, values, flows, by_recursion, x, missing) -> None:
    """Categorical counts of every source from the recursion's leaf flows."""
    gone = np.zeros(x.shape, bool) if missing is None else np.broadcast_to(missing, x.shape)
    counts: dict[InputNodes, np.ndarray] = {}
    for ns, f in by_recursion.nodes.items():
        if not (isinstance(ns, InputNodes) and type(ns.dist).__name__ == "Categorical"):
            continue
        probs = values[ns.get_source()]["probs"]
        total = counts.setdefault(ns.get_source(), np.zeros(probs.shape))
        for b in range(len(x)):
            if gone[b, ns.var]:
                total += f[b][:, None] * probs
            else:
                total[:, int(x[b, ns.var])] += f[b]
    for source, total in counts.items():
        found = pc.get_node_flows(flows, source)["counts"]
        np.testing.assert_allclose(found, total, rtol=1e-4, atol=1e-6)
