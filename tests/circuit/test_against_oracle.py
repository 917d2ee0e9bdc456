"""Circuits with everything in them, in float64, against a recursion that knows no compiler."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxjuice as juice
from jaxjuice.nodes import CircuitNodes, InputNodes, SumNodes
from tests import oracle
from tests.random_circuits import FAMILIES, random_circuit, random_data

MIXED = tuple(family for family in FAMILIES if family != "indicator")
# Of 40, those whose programs differ most: tied and padded layers, block-sparse ones, runs of slots.
SEEDS = (3, 6, 7, 11, 14, 15, 16, 18, 19, 22, 34, 39)
BINARY = juice.distributions.Bernoulli()


def random_case(seed: int) -> tuple[CircuitNodes, np.ndarray, np.ndarray | None]:
    """A circuit whose features vary with the seed, data, and a missing mask for odd seeds."""
    rng = np.random.default_rng(seed)
    root = random_circuit(
        rng,
        num_vars=1 + seed % 4,
        families=MIXED if seed % 3 == 0 else ("categorical",),
        block_sizes=[(2, 3), (4,), (2,), (1,), (5,)][seed % 5],
        max_blocks=1 + seed % 3,
        num_root_nodes=1 if seed % 4 else 3,
        zero_weights=seed % 2 == 1,
        zero_masks=seed % 7 == 0,
    )
    x = random_data(rng, root, 7)
    return root, x, rng.random(x.shape) < 0.3 if seed % 2 else None


def tree(num_vars: int, num_latents: int, seed: int) -> CircuitNodes:
    """A random tree of hidden variables: levels of all sizes, so its stages are padded."""
    rng = np.random.default_rng(seed)
    children: dict[int, list[int]] = {v: [] for v in range(num_vars)}
    for v in range(1, num_vars):
        children[int(rng.integers(max(0, v - 6), v))].append(v)
    built: dict[int, CircuitNodes] = {}
    for v in reversed(range(num_vars)):
        leaf = juice.inputs(v, num_nodes=num_latents, dist=BINARY)
        product = juice.multiply(leaf, *[built[c] for c in children[v]])
        built[v] = juice.summate(product, num_nodes=num_latents if v else 1)
    return built[0]


def bushy_chains(num_blocks: int = 1) -> CircuitNodes:
    """Chains of products of two factors and, here and there, of eight: their sums share steps.

    The first step has none of eight, and many have padding.
    """
    rng = np.random.default_rng(0)
    size, variable, chains = 2 * num_blocks, 0, []
    for length in (14, 11, 9, 7, 5):
        last = None
        for k in range(length):
            count = 7 if k and rng.random() < 0.25 else 1
            leaves = [
                juice.inputs(variable + i, num_nodes=size, block_size=2, dist=BINARY)
                for i in range(count)
            ]
            variable += count
            product = juice.multiply(*leaves, *([] if last is None else [last]))
            edges = np.tile(np.arange(num_blocks), (2, 1))
            last = juice.summate(product, num_nodes=size, block_size=2, edge_ids=edges)
        chains.append(last)
    return juice.summate(juice.multiply(*chains), num_nodes=1)


def picking_chains() -> CircuitNodes:
    """Chains whose sums read four of six products a block.

    The longest has tied sums.
    """
    rng = np.random.default_rng(0)

    def chain(variables) -> CircuitNodes:
        last, before = None, None
        for variable in variables:
            leaves = [juice.inputs(variable, num_nodes=8, dist=BINARY) for _ in range(6)]
            products = [
                juice.multiply(*([leaf] if last is None else [leaf, last])) for leaf in leaves
            ]
            if before is not None:
                last, before = before.duplicate(*products, tie_params=True), None
                continue
            size = products[0].num_node_blocks
            picks = np.array([rng.choice(6, 4, replace=False) for _ in range(4)])
            picks = (picks[..., None] * size + np.arange(size)).reshape(4, -1)
            edges = np.stack([np.repeat(np.arange(4), picks.shape[1]), picks.reshape(-1)])
            last = juice.summate(*products, num_nodes=8, block_size=2, edge_ids=edges)
            before = last if variable == 1 else None
        return last

    chains = [chain(range(*bounds)) for bounds in ((0, 4), (4, 7), (7, 9), (9, 11), (11, 12))]
    return juice.summate(juice.multiply(*chains), num_nodes=1)


def shared_pd(num_latents: int, shape: tuple[int, int] = (4, 4)) -> CircuitNodes:
    """Blocks of its sums pick three of up to five products, two where the shape is (3, 4)."""
    return juice.structures.PD(
        shape,
        num_latents,
        split_intervals=1,
        max_prod_block_conns=min(shape) - 1,
        block_size=num_latents // 4,
        input_dist=BINARY,
    )


STRUCTURES: dict[str, Any] = {
    "tied HMM": lambda: juice.structures.HMM(9, 3, 2),
    "HMM": lambda: juice.structures.HMM(7, 4, 2, homogeneous=False),
    "HMM of one": lambda: juice.structures.HMM(1, 3, 2),
    "HMM of two": lambda: juice.structures.HMM(2, 3, 2),
    "HMM of three": lambda: juice.structures.HMM(3, 3, 2),
    "HCLT": lambda: juice.structures.HCLT(
        np.random.default_rng(0).integers(0, 2, (60, 10)), 3, input_dist=BINARY
    ),
    "PD": lambda: juice.structures.PD(
        (3, 4), 4, split_intervals=1, max_prod_block_conns=2, block_size=2, input_dist=BINARY
    ),
    "PD with shared elements": lambda: shared_pd(8, (3, 4)),
    "tied PD": lambda: juice.structures.PD(
        (4, 3), 2, split_intervals=1, tie_homogeneous_params=True, input_dist=BINARY
    ),
    "generalized HMM": lambda: juice.structures.GeneralizedHMM(5, 3, input_dist=BINARY),
    "RAT-SPN": lambda: juice.structures.RAT_SPN(11, 3, 2, 3, input_dist=BINARY),
    "PDHCLT": lambda: juice.structures.PDHCLT(
        np.random.default_rng(0).integers(0, 2, (60, 12)),
        (3, 4),
        2,
        split_intervals=2,
        input_dist=BINARY,
    ),
    "picking chains": picking_chains,
    "padded tree": lambda: tree(40, 3, 0),
    "several arities": bushy_chains,
    "several arities of blocks": lambda: bushy_chains(2),
}


def _check(root: CircuitNodes, x: np.ndarray, missing, seed: int, gradient: bool) -> None:
    pc = juice.compile(root)
    rng = np.random.default_rng(seed)
    rows = len(x)
    weights = rng.uniform(0.5, 2.0, (rows,) if seed % 3 else (rows, pc.num_roots))
    params = pc.init(jax.random.key(seed), dtype=jnp.float64)
    values = pc.node_params(params)
    lls, flows = pc.log_likelihood_and_flows(params, x, missing, weights)
    expected = oracle.log_likelihood(root, values, x, missing)
    np.testing.assert_allclose(np.reshape(lls, expected.shape), expected, rtol=1e-10, atol=1e-10)
    by_recursion = oracle.circuit_flows(root, values, x, missing, weights)
    for ns in root:
        if isinstance(ns, SumNodes):
            np.testing.assert_allclose(
                pc.get_node_flows(flows, ns), by_recursion.sums[ns.get_source()], atol=1e-10
            )
    _check_leaf_counts(pc, values, flows, by_recursion, x, missing)
    if not gradient:
        return  # it would be a third compilation
    ones = jnp.asarray(np.broadcast_to(weights.reshape(rows, -1), (rows, pc.num_roots)))

    def total(params):
        return (ones * pc.log_likelihood(params, x, missing).reshape(rows, -1)).sum()

    by_gradient = jax.grad(total)(params)["sums"]
    for name, flow in flows.sums.items():
        np.testing.assert_allclose(params["sums"][name] * by_gradient[name], flow, atol=1e-12)


def _check_leaf_counts(pc, values, flows, by_recursion, x, missing) -> None:
    """Categorical counts of every source from the recursion's leaf flows."""
    counts: dict[InputNodes, np.ndarray] = {}
    for ns, f in by_recursion.nodes.items():
        if not (isinstance(ns, InputNodes) and type(ns.dist).__name__ == "Categorical"):
            continue
        source = ns.get_source()
        probs = values[source]["probs"]
        total = counts.setdefault(source, np.zeros(probs.shape))
        gone = np.zeros(len(x), bool) if missing is None else missing[:, ns.var]
        for b in range(len(x)):
            if gone[b]:
                total += f[b][:, None] * probs
            else:
                total[:, int(x[b, ns.var])] += f[b]
    for source, total in counts.items():
        np.testing.assert_allclose(pc.get_node_flows(flows, source)["counts"], total, atol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_circuits(seed: int) -> None:
    root, x, missing = random_case(seed)
    with jax.enable_x64(True):
        _check(root, x, missing, seed, gradient=seed % 4 == 2)


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(name: str) -> None:
    root = STRUCTURES[name]()
    x = np.random.default_rng(1).integers(0, 2, (5, max(root.scope) + 1))
    with jax.enable_x64(True):
        _check(root, x, None, 1, gradient=True)


@pytest.mark.parametrize("name", ("tied HMM", "picking chains", "RAT-SPN"))
def test_flows_equal_finite_differences(name: str) -> None:
    """sum_i flow_i d_i is the slope of LL when all log parameters move along d."""
    pc = juice.compile(STRUCTURES[name]())
    with jax.enable_x64(True):
        params = pc.init(jax.random.key(0), dtype=jnp.float64)
        x = np.random.default_rng(1).integers(0, 2, (6, pc.num_vars))
        _, flows = pc.log_likelihood_and_flows(params, x)
        keys = iter(jax.random.split(jax.random.key(1), 100))
        directions = {n: jax.random.normal(next(keys), w.shape) for n, w in params["sums"].items()}

        def total(step: float) -> float:
            sums = {n: w * jnp.exp(step * directions[n]) for n, w in params["sums"].items()}
            return float(pc.log_likelihood({**params, "sums": sums}, x).sum())

        slope = (total(1e-5) - total(-1e-5)) / 2e-5
        expected = sum(float((flows.sums[n] * d).sum()) for n, d in directions.items())
        np.testing.assert_allclose(expected, slope, rtol=1e-8)


@pytest.mark.parametrize("seed", (3, 16, 22))
@pytest.mark.parametrize(("propagation", "alpha"), [("MPE", 1.0), ("GeneralLL", 1.7)])
def test_other_propagations(seed: int, propagation: str, alpha: float) -> None:
    _check_propagation(*random_case(seed), propagation, alpha)


@pytest.mark.parametrize(
    "name", ("tied HMM", "padded tree", "picking chains", "PD with shared elements")
)
def test_other_propagations_in_loops(name: str) -> None:
    root = STRUCTURES[name]()
    x = np.random.default_rng(1).integers(0, 2, (5, max(root.scope) + 1))
    _check_propagation(root, x, None, "MPE", 1.0)
    _check_propagation(root, x, None, "GeneralLL", 0.6)


def _check_propagation(root, x, missing, propagation: str, alpha: float) -> None:
    options: dict[str, Any] = {"propagation": propagation, "alpha": alpha}
    with jax.enable_x64(True):
        pc = juice.compile(root)
        params = pc.init(jax.random.key(0), dtype=jnp.float64)
        values = pc.node_params(params)
        lls, flows = pc.log_likelihood_and_flows(params, x, missing, **options)
        expected = oracle.log_likelihood(root, values, x, missing, **options)
        np.testing.assert_allclose(np.reshape(lls, expected.shape), expected, rtol=1e-9, atol=1e-9)
        by_recursion = oracle.circuit_flows(root, values, x, missing, **options)
        for ns in root:
            if isinstance(ns, SumNodes):
                np.testing.assert_allclose(
                    pc.get_node_flows(flows, ns), by_recursion.sums[ns.get_source()], atol=1e-9
                )


@pytest.mark.parametrize(
    "name", ("tied HMM", "PD", "padded tree", "picking chains", "PD with shared elements")
)
def test_top_down_flows(name: str) -> None:
    root = STRUCTURES[name]()
    with jax.enable_x64(True):
        pc = juice.compile(root)
        params = pc.init(jax.random.key(0), dtype=jnp.float64)
        flows = pc.top_down_flows(params)
        expected = oracle.root_to_leaf_flows(root, pc.node_params(params))
        for ns in root:
            if isinstance(ns, SumNodes):
                np.testing.assert_allclose(
                    pc.get_node_flows(flows, ns), expected.sums[ns.get_source()], atol=1e-12
                )


MANY_VARIABLES = "padded tree", "several arities", "several arities of blocks"


@pytest.mark.parametrize("name", [n for n in STRUCTURES if n not in MANY_VARIABLES])
@pytest.mark.parametrize("dtype", ("float32", "float64"))
def test_probabilities_sum_to_one(name: str, dtype: str) -> None:
    root = STRUCTURES[name]()
    with jax.enable_x64(dtype == "float64"):
        pc = juice.compile(root)
        params = pc.init(jax.random.key(0), dtype=dtype)
        x = oracle.all_assignments(2, pc.num_vars)
        lls = pc.log_likelihood(params, x)
        total = float(np.exp(np.asarray(lls, np.float64)).sum())
        assert abs(total - 1) < (1e-5 if dtype == "float32" else 1e-12)
        if dtype == "float32":
            expected = oracle.log_likelihood(root, pc.node_params(params), x)
            np.testing.assert_allclose(lls, expected[:, 0], atol=1e-4)


@pytest.mark.parametrize("name", ("HMM", "PD", "HCLT"))
def test_flows_of_each_variable_sum_to_one_in_each_sample(name: str) -> None:
    pc = juice.compile(STRUCTURES[name]())
    params = pc.init(jax.random.key(0))
    x = np.random.default_rng(0).integers(0, 2, (7, pc.num_vars))
    row_flows = jax.vmap(lambda row: pc.log_likelihood_and_flows(params, row[None])[1].inputs)
    for group, statistics in row_flows(jnp.asarray(x)).items():
        variables = pc.input_groups[group].variables
        assert len(np.unique(variables)) == len(variables) == pc.num_vars
        total = sum(np.asarray(s).reshape(7, pc.num_vars, -1).sum(2) for s in statistics.values())
        np.testing.assert_allclose(total, 1.0, atol=1e-4)
