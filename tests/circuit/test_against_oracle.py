"""Random circuits with everything in them, in float64, against a recursion that knows no compiler."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxjuice as juice
from jaxjuice.nodes import InputNodes, SumNodes
from tests import oracle
from tests.random_circuits import FAMILIES, random_circuit, random_data

MIXED = tuple(family for family in FAMILIES if family != "indicator")


def _case(seed: int) -> dict[str, Any]:
    """Options that vary with the seed, so that every feature meets every other."""
    return {
        "num_vars": 1 + seed % 6,
        "families": MIXED if seed % 3 == 0 else ("categorical",),
        "block_sizes": [(2, 3), (4,), (2,), (1,), (5,)][seed % 5],
        "max_blocks": 1 + seed % 3,
        "num_root_nodes": 1 if seed % 4 else 3,
        "zero_weights": seed % 2 == 1,
        "zero_masks": seed % 7 == 0,
    }


def _circuit(seed: int):
    rng = np.random.default_rng(seed)
    root = random_circuit(rng, **_case(seed))
    pc = juice.compile(root)
    x = random_data(rng, root, 7)
    missing = rng.random(x.shape) < 0.3 if seed % 2 else None
    return rng, root, pc, x, missing


@pytest.mark.parametrize("seed", range(16))
def test_values_and_flows_equal_the_recursion(seed: int) -> None:
    rng, root, pc, x, missing = _circuit(seed)
    weights = rng.uniform(0.5, 2.0, (7,) if seed % 3 else (7, pc.num_roots))
    with jax.enable_x64(True):
        params = pc.init(jax.random.key(seed), dtype=jnp.float64)
        values = pc.node_params(params)
        lls, flows = pc.log_likelihood_and_flows(params, x, missing, weights)
        expected = oracle.log_likelihood(root, values, x, missing)
        np.testing.assert_allclose(
            np.reshape(lls, expected.shape), expected, rtol=1e-10, atol=1e-10
        )
        by_recursion = oracle.circuit_flows(root, values, x, missing, weights)
        for ns in root:
            if isinstance(ns, SumNodes):
                np.testing.assert_allclose(
                    pc.get_node_flows(flows, ns), by_recursion.sums[ns.get_source()], atol=1e-10
                )
        _check_leaf_flows(pc, root, flows, by_recursion, x, missing)
        if seed % 4:
            return  # a third compilation for a few of them
        gradient = jax.grad(
            lambda p: (
                jnp.asarray(weights).reshape(7, -1).T * pc.log_likelihood(p, x, missing).T
            ).sum()
        )(params)
        for name, flow in flows.sums.items():
            np.testing.assert_allclose(
                params["sums"][name] * gradient["sums"][name], flow, atol=1e-12
            )


def _check_leaf_flows(pc, root, flows, by_recursion, x, missing) -> None:
    """Categorical counts of every source from the recursion's leaf flows."""
    counts: dict[InputNodes, np.ndarray] = {}
    for ns in root:
        if not isinstance(ns, InputNodes) or "counts" not in ns.dist.stat_shapes():
            continue
        if type(ns.dist).__name__ != "Categorical":
            continue
        f, source = by_recursion.nodes[ns], ns.get_source()
        total = counts.setdefault(source, np.zeros((ns.num_nodes, ns.dist.num_cats)))
        gone = np.zeros(len(x), bool) if missing is None else missing[:, ns.var]
        for b in range(len(x)):
            if gone[b]:
                total += f[b][:, None] * source.params["probs"]
            else:
                total[:, int(x[b, ns.var])] += f[b]
    for source, total in counts.items():
        np.testing.assert_allclose(pc.get_node_flows(flows, source)["counts"], total, atol=1e-10)


@pytest.mark.parametrize("seed", (1, 4, 7))
@pytest.mark.parametrize(("propagation", "alpha"), [("MPE", 1.0), ("GeneralLL", 1.7)])
def test_other_propagations_equal_the_recursion(seed: int, propagation: str, alpha: float) -> None:
    _, root, pc, x, missing = _circuit(seed)
    with jax.enable_x64(True):
        params = pc.init(jax.random.key(seed), dtype=jnp.float64)
        values = pc.node_params(params)
        lls, flows = pc.log_likelihood_and_flows(
            params, x, missing, propagation=propagation, alpha=alpha
        )
        options: dict[str, Any] = {"propagation": propagation, "alpha": alpha}
        expected = oracle.log_likelihood(root, values, x, missing, **options)
        np.testing.assert_allclose(np.reshape(lls, expected.shape), expected, rtol=1e-9, atol=1e-9)
        by_recursion = oracle.circuit_flows(root, values, x, missing, **options)
        for ns in root:
            if isinstance(ns, SumNodes):
                np.testing.assert_allclose(
                    pc.get_node_flows(flows, ns), by_recursion.sums[ns.get_source()], atol=1e-9
                )


@pytest.mark.parametrize("seed", (0, 3, 6, 9))
def test_top_down_flows_equal_the_recursion(seed: int) -> None:
    _, root, pc, _, _ = _circuit(seed)
    with jax.enable_x64(True):
        params = pc.init(jax.random.key(seed), dtype=jnp.float64)
        flows = pc.top_down_flows(params)
        expected = oracle.root_to_leaf_flows(root, pc.node_params(params))
        for ns in root:
            if isinstance(ns, SumNodes):
                np.testing.assert_allclose(
                    pc.get_node_flows(flows, ns),
                    expected.sums[ns.get_source()] / pc.num_roots,
                    atol=1e-12,
                )
