"""Circuits with per-sample parameters, and what is true of each of them, for tests."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracle
from random_circuits import random_circuit, random_data
from small_circuits import FAST_COMPILE

import jaxjuice as juice
from jaxjuice.nodes import CircuitNodes, InputNodes, SumNodes
from jaxjuice.parameterizations import BlockScale, LowRank

BINARY = juice.distributions.Bernoulli()
RANKS = (1, 2, 5, 16, 64)


def random_case(seed: int) -> tuple[CircuitNodes, np.ndarray, np.ndarray | None]:
    """A circuit with several parameterizations in it, data, and a missing mask for odd seeds."""
    rng = np.random.default_rng(seed)
    rank, tied = RANKS[seed % 5], bool(rng.integers(2))
    kinds = [
        LowRank(rank, "exp_sum", tie_external=tied),
        LowRank(rank, "sum_exp", tie_external=not tied),
        BlockScale(1, None, tie_external=tied),
        BlockScale(tie_external=not tied),
        LowRank(2, "sum_exp", apply_z_correction=False),
    ]
    root = random_circuit(
        rng,
        num_vars=2 + seed % 2,
        families=("categorical",),
        block_sizes=[(2, 4), (4,), (2,), (1,), (6,)][rng.integers(5)],
        max_blocks=2 + seed % 2,
        num_root_nodes=1 if seed % 4 else 3,
        zero_weights=seed % 3 == 1,
        zero_masks=seed % 7 == 0,
        parameterizations=[kinds[i] for i in rng.permutation(5)[: 1 + seed % 2]],
    )
    x = random_data(rng, root, 5)
    return root, x, rng.random(x.shape) < 0.3 if seed % 2 else None


def _pd(kind: Any) -> CircuitNodes:
    return juice.structures.PD(
        (3, 3),
        4,
        split_intervals=1,
        max_prod_block_conns=2,
        block_size=2,
        input_dist=BINARY,
        parameterization=kind,
    )


def tree(kind: Any) -> CircuitNodes:
    """A tree of hidden variables with levels of all sizes, so that a layer is padded."""
    rng = np.random.default_rng(1)
    children: dict[int, list[int]] = {v: [] for v in range(30)}
    for v in range(1, 30):
        children[int(rng.integers(max(0, v - 6), v))].append(v)
    built: dict[int, CircuitNodes] = {}
    for v in reversed(range(30)):
        leaf = juice.inputs(v, num_nodes=2, dist=BINARY)
        product = juice.multiply(leaf, *[built[c] for c in children[v]])
        built[v] = juice.summate(
            product, num_nodes=2 if v else 1, parameterization=kind if v else None
        )
    return built[0]


def _data(num_vars: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, (60, num_vars))


STRUCTURES: dict[str, Any] = {
    "tied HMM": lambda kind: juice.structures.HMM(6, 4, 2, block_size=2, parameterization=kind),
    "HMM with one scale": lambda kind: juice.structures.HMM(
        5, 4, 2, block_size=2, parameterization=kind
    ),
    "HMM": lambda kind: juice.structures.HMM(4, 4, 2, False, block_size=2, parameterization=kind),
    "HCLT": lambda kind: juice.structures.HCLT(
        _data(7), 4, input_dist=BINARY, block_size=2, parameterization=kind
    ),
    "PD": _pd,
    "tied PD": lambda kind: juice.structures.PD(
        (3, 3),
        2,
        split_intervals=1,
        tie_homogeneous_params=True,
        input_dist=BINARY,
        parameterization=kind,
    ),
    "RAT-SPN": lambda kind: juice.structures.RAT_SPN(
        7, 4, 2, 2, input_dist=BINARY, block_size=2, parameterization=kind
    ),
    "padded tree": lambda kind: tree(kind),
    "PDHCLT": lambda kind: juice.structures.PDHCLT(
        _data(8), (2, 4), 2, split_intervals=2, input_dist=BINARY, parameterization=kind
    ),
}


def scaled_vectors(root: CircuitNodes) -> list[SumNodes]:
    return [ns for ns in root if isinstance(ns, SumNodes) and ns.parameterization is not None]


def owner(ns: SumNodes) -> SumNodes:
    """The vector whose tensors `ns` reads."""
    assert ns.parameterization is not None
    return ns.get_source() if ns.parameterization.tie_external else ns


def random_tensors(
    rng: np.random.Generator, root: CircuitNodes, batch: int, spread: float = 0.7
) -> dict[SumNodes, tuple[np.ndarray, ...]]:
    """Tensors for every scaled vector under `root`."""
    tensors: dict[SumNodes, tuple[np.ndarray, ...]] = {}
    for ns in dict.fromkeys(owner(ns) for ns in scaled_vectors(root)):
        kind = ns.resolved_parameterization()
        assert kind is not None
        # Products of rank k have a spread that grows with its root.
        size = spread / getattr(kind, "rank", 1) ** 0.25
        tensors[ns] = tuple(
            rng.normal(scale=size, size=(batch, *shape))
            for shape in kind.tensor_shapes(ns.num_nodes, ns.num_ch_nodes)
        )
    return tensors


def dense_scales(root: CircuitNodes, tensors: Any) -> dict[SumNodes, np.ndarray]:
    """What the oracle takes: log g of every vector that has tensors."""
    return {
        ns: oracle.log_scale(ns, tensors[owner(ns)])
        for ns in scaled_vectors(root)
        if owner(ns) in tensors
    }


@functools.partial(jax.jit, static_argnames="pc", compiler_options=FAST_COMPILE)
def everything(pc, params, x, missing, weights, tensors):
    """Log-likelihoods, flows, and the gradients of sum_b w_b LL_b by params and tensors."""

    def total(params, tensors):
        lls = pc.log_likelihood(params, x, missing, external_params=tensors)
        return (jnp.reshape(lls, (len(x), -1)) * weights).sum()

    lls, flows = pc.log_likelihood_and_flows(params, x, missing, weights, external_params=tensors)
    return lls, flows, jax.grad(total, argnums=(0, 1))(params, tensors)


def check(root, x, missing, tensors, *, dtype="float64", tolerance=1e-9, seed=0) -> None:
    """Everything that a call gives, against the oracle."""
    rng = np.random.default_rng(seed)
    with jax.enable_x64(dtype == "float64"):
        pc = juice.compile(root)
        drawn = pc.init(jax.random.key(seed), dtype=dtype)
        params = pc.params_from_nodes(pc.node_params(drawn), dtype)
        weights = rng.uniform(0.5, 2.0, (len(x), pc.num_roots)).astype(dtype)
        given = {ns: tuple(jnp.asarray(t, dtype) for t in ts) for ns, ts in tensors.items()}
        found = everything(pc, params, x, missing, weights, given)
        lls, flows, (by_params, by_tensors) = jax.tree.map(np.asarray, found)
    scales = dense_scales(root, given)
    values = pc.node_params(params)
    expected = oracle.log_likelihood(root, values, x, missing, scales=scales)
    close = functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
    close(lls.reshape(expected.shape), expected)
    wanted = oracle.circuit_flows(root, values, x, missing, weights, scales=scales)
    for ns in root:
        if isinstance(ns, SumNodes):
            _check_sum(pc, params, flows, by_params, ns, wanted, close)
        elif isinstance(ns, InputNodes) and isinstance(ns.dist, juice.distributions.Categorical):
            copies = [n for n in root if n.get_source() is ns.get_source()]
            total = sum(wanted.nodes[n].sum() for n in copies)
            close(pc.get_node_flows(flows, ns)["counts"].sum(), total)
    for key in tensors:
        by_hand = [
            oracle.tensor_gradients(ns, given[key], wanted.scales[ns])
            for ns in scaled_vectors(root)
            if owner(ns) is key
        ]
        for gradient, parts in zip(by_tensors[key], zip(*by_hand, strict=True), strict=True):
            close(gradient, sum(parts))


def _check_sum(pc, params, flows, by_params, ns, wanted, close) -> None:
    source = ns.get_source()
    f_plus = pc.get_node_flows(flows, ns)
    close(f_plus, wanted.sums[source])
    theta = pc.get_node_params(params, ns)
    gradient = pc.get_node_params(by_params, ns)
    kind = ns.parameterization
    if kind is not None and kind.apply_z_correction:
        w = pc.get_node_denominators(flows, ns)
        live = theta > 0
        close(w[live], wanted.denominators[source][live])
    elif kind is not None:
        try:
            pc.get_node_denominators(flows, ns)
        except juice.ParameterError:
            pass
        else:
            raise AssertionError("no statistic is kept without the correction")
    if kind is None:
        close(theta * gradient, f_plus)
