"""Random small circuits with everything in them that a circuit may have, for tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxjuice import distributions
from jaxjuice.nodes import (
    CircuitNodes,
    InputNodes,
    ProductNodes,
    SumNodes,
    inputs,
    multiply,
    summate,
)

FAMILIES = (
    "categorical",
    "bernoulli",
    "gaussian",
    "discrete_logistic",
    "indicator",
    "masked_categorical",
    "poisson",
    "binomial",
)
"""Names that `random_circuit(families=)` takes; "literal" is one too."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What a random circuit holds; see `random_circuit`."""

    num_vars: int = 4
    families: Sequence[str] = ("categorical",)
    num_cats: Sequence[int] = (2, 3)
    block_sizes: Sequence[int] = (1, 2, 3)
    max_blocks: int = 2
    num_root_nodes: int = 1
    tied: bool = True
    block_sparse: bool = True
    by_node: bool = True
    shared: bool = True
    zero_weights: bool = False
    zero_masks: bool = False
    set_params: bool = True
    parameterizations: Sequence[Any] = ()


def random_circuit(rng: np.random.Generator, **options: Any) -> SumNodes:
    """Builds a random smooth, decomposable circuit and (by default) sets its parameters.

    Args:
        rng: all randomness.
        options: fields of `Options`:
            num_vars: variables 0 to num_vars - 1, all in the scope of the root.
            families: of the leaves; one is drawn per variable, so several mix in one circuit.
            num_cats: numbers of categories to draw from, per variable.
            block_sizes: to draw from, for every vector.
            max_blocks: node blocks a vector, at most.
            num_root_nodes: nodes of the root.
            tied: whether to tie sums and leaves of equal shapes.
            block_sparse: whether sums leave out edges; else all are fully connected.
            by_node: whether products may be connected by node.
            shared: whether vectors are used by several parents, at different depths too.
            zero_weights: whether some weights and probabilities are 0.
            zero_masks: whether some sums carry a zero_param_mask.
            set_params: whether to set parameters.
            parameterizations: of sums, to draw from for three of four; empty for none.
    """
    builder = _Builder(rng, Options(**options))
    root = builder.root()
    if builder.options.set_params:
        randomize_params(rng, root, builder.options.zero_weights)
    return root


def randomize_params(
    rng: np.random.Generator, root: CircuitNodes, zero_weights: bool = False
) -> None:
    """Draws parameters for all vectors under `root` (and sources elsewhere), and sets them."""
    for ns in {ns.get_source(): None for ns in root}:
        if isinstance(ns, InputNodes):
            ns.set_params(random_leaf_params(rng, ns, zero_weights))
        elif isinstance(ns, SumNodes):
            shape = (ns.edge_ids.shape[1], ns.block_size, ns.ch_block_size)
            weights = rng.gamma(1.0, size=shape) + 1e-3
            if zero_weights:
                weights = np.where(rng.random(shape) < 0.3, 0.0, weights)
                weights += 1e-3 * _childless(ns, weights)
            ns.set_params(weights)


def _childless(ns: SumNodes, weights: np.ndarray) -> np.ndarray:
    """1 at every edge of nodes whose weights are all 0 (or masked)."""
    free = weights if ns.zero_param_mask is None else weights * ~ns.zero_param_mask
    sums = np.zeros((ns.num_node_blocks, ns.block_size))
    np.add.at(sums, ns.edge_ids[0], free.sum(axis=2))
    return (sums[ns.edge_ids[0]] == 0)[:, :, None] * np.ones(weights.shape)


def random_leaf_params(
    rng: np.random.Generator, ns: InputNodes, zero_probs: bool = False
) -> dict[str, np.ndarray]:
    """Draws legal parameters for a leaf vector, `[num_nodes, *shape]` by name."""
    params: dict[str, np.ndarray] = {}
    for name, shape in ns.dist.param_shapes().items():
        size = (ns.num_nodes, *shape)
        if name == "probs":
            probs = rng.gamma(1.0, size=size) + 1e-3
            if zero_probs and shape[0] > 1:
                probs[rng.random(size) < 0.2] = 0.0
                probs[:, 0] += 1e-3
            if "mask" in ns.constants:
                probs = probs * ns.constants["mask"] + 1e-3 * ns.constants["mask"]
            params[name] = probs / probs.sum(axis=1, keepdims=True)
        elif name == "prob":
            params[name] = rng.uniform(0.05, 0.95, size)
            if zero_probs:
                params[name] = np.where(
                    rng.random(size) < 0.2, np.round(params[name]), params[name]
                )
        elif name == "mu":
            low, high = getattr(ns.dist, "val_range", (-1.0, 1.0))
            params[name] = rng.uniform(low, high, size)
        elif name == "rate":
            params[name] = rng.uniform(0.5, 5.0, size)
        else:  # sigma, scale
            low, high = getattr(ns.dist, "val_range", (-1.0, 1.0))
            params[name] = rng.uniform(0.1, 0.5, size) * (high - low)
    return params


def random_data(
    rng: np.random.Generator, root: CircuitNodes, num_samples: int, dtype: Any = None
) -> np.ndarray:
    """Draws legal data `[num_samples, num_vars]`, one column a variable, not from the circuit.

    The dtype is int64 if every leaf is discrete, else float64, unless `dtype` is given.
    """
    columns: dict[int, np.ndarray] = {}
    for ns in root:
        if isinstance(ns, InputNodes) and ns.var not in columns:
            dist: Any = ns.dist
            if type(dist).__name__ == "Gaussian":
                columns[ns.var] = rng.normal(size=num_samples)
            else:
                columns[ns.var] = rng.integers(0, num_values(ns), num_samples)
    x = np.stack(
        [columns.get(v, np.zeros(num_samples)) for v in range(max(root.scope) + 1)], axis=1
    )
    discrete = all(column.dtype.kind == "i" for column in columns.values())
    return x.astype(dtype or (np.int64 if discrete else np.float64))


def num_values(ns: InputNodes) -> int:
    """How many values a discrete leaf takes (for a Poisson leaf: how many are drawn)."""
    dist: Any = ns.dist
    for name, extra in (("num_cats", 0), ("num_states", 0), ("num_trials", 1), ("total_count", 1)):
        if hasattr(dist, name):
            return getattr(dist, name) + extra
    return 6 if type(dist).__name__ == "Poisson" else 2


def category_counts(root: CircuitNodes) -> list[int]:
    """Returns the number of values of each variable, for `oracle.all_assignments`."""
    counts = [1] * (max(root.scope) + 1)
    for ns in root:
        if isinstance(ns, InputNodes):
            counts[ns.var] = num_values(ns)
    return counts


class _Builder:
    """Builds a circuit from the variables up, remembering vectors for later use."""

    def __init__(self, rng: np.random.Generator, options: Options) -> None:
        self.rng = rng
        self.options = options
        self.families = [
            self._family(str(rng.choice(list(options.families)))) for _ in range(options.num_vars)
        ]
        self.vectors: dict[tuple[int, ...], list[CircuitNodes]] = {}
        self.products: dict[tuple[int, ...], list[ProductNodes]] = {}
        self.leaves: list[InputNodes] = []
        self.sums: list[SumNodes] = []

    def root(self) -> SumNodes:
        scope = tuple(range(self.options.num_vars))
        chs = self._children(scope)
        chs += self._reused(self.products.get(scope, []), chs)
        return self._sum(chs, num_nodes=self.options.num_root_nodes)

    def _chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def _pick(self, options: Sequence) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def _family(self, name: str) -> Any:
        cats = int(self._pick(self.options.num_cats))
        match name:
            case "categorical":
                return distributions.Categorical(num_cats=cats)
            case "bernoulli":
                return distributions.Bernoulli()
            case "gaussian":
                return distributions.Gaussian()
            case "discrete_logistic":
                return distributions.DiscreteLogistic(val_range=(-1.0, 1.0), num_cats=cats + 2)
            case "indicator":
                return distributions.Indicator(num_states=cats)
            case "masked_categorical":
                return distributions.MaskedCategorical(num_cats=cats + 1)
            case "poisson":
                return distributions.Poisson()
            case "binomial":
                return distributions.Binomial(cats)
            case "literal":
                return distributions.Literal(int(self.rng.integers(2)))
        raise ValueError(f"random_circuit knows no family {name!r}")

    def _sizes(self) -> tuple[int, int]:
        """Draws a number of blocks and a block size."""
        return int(self.rng.integers(1, self.options.max_blocks + 1)), self._pick(
            self.options.block_sizes
        )

    def _vector(self, scope: tuple[int, ...]) -> CircuitNodes:
        """Returns a vector that may be a product's child: a sum, or an input over one variable."""
        known = self.vectors.setdefault(scope, [])
        if known and self.options.shared and self._chance(0.4):
            return self._pick(known)
        if len(scope) == 1 and self._chance(0.5):
            ns: CircuitNodes = self._leaf(scope[0])
        else:
            chs = self._children(scope)
            chs += self._reused(self.products.get(scope, []), chs)
            if self._chance(0.2):
                # One level deeper, so that vectors of one scope lie at different depths.
                chs = [self._remember(scope, multiply(self._sum(chs)))]
            ns = self._sum(chs)
        known.append(ns)
        return ns

    def _reused(self, known: list, chs: list) -> list:
        fresh = [ns for ns in known if ns not in chs]
        return [self._pick(fresh)] if fresh and self.options.shared and self._chance(0.5) else []

    def _children(self, scope: tuple[int, ...]) -> list[CircuitNodes]:
        """Returns one to three products over the scope (or inputs, over one variable)."""
        if len(scope) == 1:
            leaves: list[CircuitNodes] = [
                self._leaf(scope[0]) for _ in range(int(self.rng.integers(1, 3)))
            ]
            if self._chance(0.3):
                leaves.append(self._remember(scope, multiply(self._leaf(scope[0]))))
            return list(dict.fromkeys(leaves))
        return [self._product(scope) for _ in range(int(self.rng.integers(1, 4)))]

    def _remember(self, scope: tuple[int, ...], ns: ProductNodes) -> ProductNodes:
        self.products.setdefault(scope, []).append(ns)
        return ns

    def _leaf(self, var: int) -> InputNodes:
        mine = [ns for ns in self.leaves if ns.var == var]
        if mine and self.options.shared and self._chance(0.4):
            return self._pick(mine)
        dist = self.families[var]
        alike = [ns for ns in self.leaves if ns.dist == dist]
        if alike and self.options.tied and self._chance(0.5):
            leaf = self._pick(alike).duplicate(var, tie_params=True)
        else:
            blocks, size = self._sizes()
            leaf = inputs(
                var, blocks, dist, block_size=size, **self._constants(dist, blocks * size)
            )
        self.leaves.append(leaf)
        return leaf

    def _constants(self, dist: Any, num_nodes: int) -> dict[str, np.ndarray]:
        match type(dist).__name__:
            case "MaskedCategorical":
                mask = self.rng.random((num_nodes, dist.num_cats)) < 0.7
                mask[np.arange(num_nodes), self.rng.integers(0, dist.num_cats, num_nodes)] = True
                return {"mask": mask}
            case "Indicator":
                return {"state": self.rng.integers(0, dist.num_states, num_nodes)}
        return {}

    def _product(self, scope: tuple[int, ...]) -> ProductNodes:
        order = [int(v) for v in self.rng.permutation(scope)]
        num_parts = int(self.rng.integers(2, min(3, len(order)) + 1))
        cuts = np.sort(self.rng.choice(np.arange(1, len(order)), num_parts - 1, replace=False))
        parts = [tuple(sorted(part)) for part in np.split(np.array(order), cuts)]
        chs = [self._vector(tuple(int(v) for v in part)) for part in parts]
        sizes = [ch.num_nodes for ch in chs]
        if len(set(sizes)) == 1 and self._chance(0.5):
            return self._remember(scope, multiply(*chs))
        blocks, block_size = self._sizes()
        if self.options.by_node and self._chance(0.5):
            shape = (blocks * block_size, len(chs))
            edge_ids = np.stack([self.rng.integers(0, n, shape[0]) for n in sizes], axis=1)
            product = multiply(*chs, edge_ids=edge_ids, sparse_edges=True, block_size=block_size)
        else:
            common = int(np.gcd.reduce([ch.block_size for ch in chs]))
            edge_ids = np.stack([self.rng.integers(0, n // common, blocks) for n in sizes], axis=1)
            product = multiply(*chs, edge_ids=edge_ids)
        return self._remember(scope, product)

    def _sum(self, chs: list[CircuitNodes], num_nodes: int = 0) -> SumNodes:
        if not num_nodes and self.options.tied and self._chance(0.5):
            shapes = [(ch.num_nodes, ch.block_size) for ch in chs]
            alike = [
                ns for ns in self.sums if [(c.num_nodes, c.block_size) for c in ns.chs] == shapes
            ]
            if alike:
                ns = self._pick(alike).duplicate(*chs, tie_params=True)
                self.sums.append(ns)
                return ns
        blocks, size = (num_nodes, 1) if num_nodes else self._sizes()
        ns = summate(
            chs,
            num_node_blocks=blocks,
            block_size=size,
            edge_ids=self._sum_edges(chs, blocks),
            parameterization=self._parameterization(),
        )
        if self.options.zero_masks and self._chance(0.5):
            self._mask(ns)
        self.sums.append(ns)
        return ns

    def _parameterization(self) -> Any:
        kinds = self.options.parameterizations
        return self._pick(kinds) if kinds and self._chance(0.75) else None

    def _sum_edges(self, chs: list[CircuitNodes], num_node_blocks: int) -> Any:
        if not self.options.block_sparse or self._chance(0.4):
            return None
        common = int(np.gcd.reduce([ch.block_size for ch in chs]))
        num_ch_blocks = sum(ch.num_nodes for ch in chs) // common
        matrix = self.rng.random((num_node_blocks, num_ch_blocks)) < 0.6
        matrix[np.arange(num_node_blocks), self.rng.integers(0, num_ch_blocks, num_node_blocks)] = (
            True
        )
        if self._chance(0.5):
            return matrix
        edges = np.stack(np.nonzero(matrix))
        return edges[:, self.rng.permutation(edges.shape[1])]

    def _mask(self, ns: SumNodes) -> None:
        shape = (ns.edge_ids.shape[1], ns.block_size, ns.ch_block_size)
        mask = self.rng.random(shape) < 0.3
        first_edges = np.unique(ns.edge_ids[0], return_index=True)[1]
        mask[first_edges, :, 0] = False
        ns.set_zero_param_mask(mask)
