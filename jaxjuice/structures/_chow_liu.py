"""Chow-Liu trees: the tree over the variables whose edges carry the most mutual information."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jaxjuice.structures._arguments import positive_integer
from jaxjuice.structures._binning import bin_by_quantiles, bin_data, check_data
from jaxjuice.structures._mutual_information import all_pairs, chosen_pairs

# Multiplications of the joint histograms of all pairs; beyond, pairs are screened first. (A core of
# a common CPU does about 4e10 in a second, and half of the pairs suffice.)
_MAX_WORK = 2e11
_SCREENING_BINS = 8
# A sample of at least this size ranks the partners of a variable well enough for screening.
_SCREENING_SAMPLES = 4096
# Partners of each variable that pass the screening.
_CANDIDATES = 8
# Differences of mutual information below this (in nats) count as rounding, so as ties.
_DECIMALS = 10


class RootedTree(NamedTuple):
    """A tree over the variables 0 to V - 1.

    Attributes:
        root: the root.
        parents: int64 `[V]`, the parent of each variable; -1 for the root.
    """

    root: int
    parents: np.ndarray

    def order(self) -> np.ndarray:
        """Returns the variables breadth first, int64 `[V]`: each parent before its children."""
        children = self.children()
        order = [self.root]
        for variable in order:
            order.extend(children[variable])
        return np.array(order, dtype=np.int64)

    def children(self) -> list[list[int]]:
        """Returns the children of each variable, ascending."""
        children: list[list[int]] = [[] for _ in self.parents]
        for variable, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                children[parent].append(variable)
        return children


def chow_liu_tree(
    x: Any, num_bins: int = 32, sigma: float = 0.5 / 32, chunk_size: int = 64
) -> RootedTree:
    """Learns the spanning tree of greatest mutual information, rooted at its center.

    The tree is that of Chow and Liu, "Approximating Discrete Probability Distributions with
    Dependence Trees" (1968), with the mutual information of `mutual_information`: exact for columns
    of few whole numbers, by soft bins for others. Ties go to the lower variables, so constant or
    independent columns are attached somewhere, and equal data give equal trees, whatever
    `chunk_size` and machine. The root is a variable whose greatest distance to others is least (the
    lower of two).

    Large data (beyond about 2e11 multiplications: 784 variables of 2 values by 80,000 samples, and
    150 of 32 bins by 9,000) are screened first: the mutual information of all pairs is estimated
    from at most 8 quantile bins and an even sample of the rows (at least 4096). Only the 8 best
    partners of each variable, and the edges of the best tree of the screening, then have theirs
    computed from all rows and bins, and the tree is the best among those pairs: an approximation of
    the best of all.

    Args:
        x: `[num_samples, num_vars]`, numpy or jax array of any numeric dtype; NaN is missing.
        num_bins: soft bins of a column, and up to how many values count as few.
        sigma: the width of the soft bins, for a column scaled to [0, 1].
        chunk_size: variables in a block; it changes time and memory, and not the tree.

    Returns:
        The root, and the parent of each variable.

    Raises:
        DataError: if `x` is not a matrix of finite numbers or NaN, with a row at least.
    """
    return learn_tree("chow_liu_tree(x, ...)", x, num_bins, sigma, chunk_size)


def learn_tree(call: str, x: Any, num_bins: int, sigma: float, chunk_size: int) -> RootedTree:
    """`chow_liu_tree`, with errors that quote `call`."""
    chunk_size = positive_integer(call, "chunk_size", chunk_size)
    data = check_data(call, x)
    binned = bin_data(data, num_bins, sigma)
    num_samples, num_vars = data.shape
    work = max(num_samples, 1024) * (num_vars * int(binned.num_bins.max())) ** 2
    if work <= _MAX_WORK:
        information = all_pairs(binned, chunk_size)
    else:
        pairs = _screened_pairs(data, chunk_size)
        information = np.full((num_vars, num_vars), -np.inf)
        information[pairs[:, 0], pairs[:, 1]] = chosen_pairs(binned, pairs)
        information = np.maximum(information, information.T)
    return rooted_at_center(maximum_spanning_tree(information))


def _screened_pairs(data: np.ndarray, chunk_size: int) -> np.ndarray:
    """Returns pairs `[num_pairs, 2]`, first < second, that may be edges and connect everything."""
    num_samples, num_vars = data.shape
    affordable = int(_MAX_WORK / (num_vars * _SCREENING_BINS) ** 2)
    wanted = min(num_samples, max(affordable, _SCREENING_SAMPLES))
    # Evenly spaced, as data are often sorted.
    rows = (np.arange(wanted) * num_samples) // wanted
    coarse = bin_by_quantiles(data[rows], _SCREENING_BINS)
    information = np.round(all_pairs(coarse, 4 * chunk_size), _DECIMALS)
    edges = maximum_spanning_tree(information)
    np.fill_diagonal(information, -np.inf)
    num_partners = min(_CANDIDATES, num_vars - 1)
    partners = np.argsort(-information, axis=1, kind="stable")[:, :num_partners]
    firsts = np.repeat(np.arange(num_vars), num_partners)
    pairs = np.concatenate([edges, np.stack([firsts, partners.reshape(-1)], axis=1)])
    return np.unique(np.sort(pairs, axis=1), axis=0)


def maximum_spanning_tree(weights: np.ndarray) -> np.ndarray:
    """Returns the edges `[V - 1, 2]` of a spanning tree of greatest weight, by Prim's algorithm.

    Among equal weights the lower variables are chosen.

    Args:
        weights: symmetric `[V, V]`; -inf where there is no edge. The graph is connected.
    """
    weights = np.round(weights, _DECIMALS)
    num_vars = weights.shape[0]
    best = weights[0].copy()
    nearest = np.zeros(num_vars, dtype=np.int64)
    outside = np.ones(num_vars, dtype=bool)
    outside[0] = False
    edges = np.empty((num_vars - 1, 2), dtype=np.int64)
    for step in range(num_vars - 1):
        candidates = np.flatnonzero(outside)
        variable = candidates[np.argmax(best[candidates])]
        edges[step] = nearest[variable], variable
        outside[variable] = False
        closer = outside & (weights[variable] > best)
        best[closer] = weights[variable, closer]
        nearest[closer] = variable
    return edges


def rooted_at_center(edges: np.ndarray) -> RootedTree:
    """Roots the tree with the edges `[V - 1, 2]` at its center, the lower of two."""
    num_vars = len(edges) + 1
    neighbors: list[list[int]] = [[] for _ in range(num_vars)]
    for a, b in edges.tolist():
        neighbors[a].append(b)
        neighbors[b].append(a)
    # Cutting off the leaves round by round leaves the one or two centers.
    degrees = [len(some) for some in neighbors]
    layer = [variable for variable in range(num_vars) if degrees[variable] <= 1]
    remaining = num_vars
    while remaining > 2:
        remaining -= len(layer)
        inner = []
        for leaf in layer:
            for neighbor in neighbors[leaf]:
                degrees[neighbor] -= 1
                if degrees[neighbor] == 1:
                    inner.append(neighbor)
        layer = inner
    root = min(layer)
    parents = np.full(num_vars, -1, dtype=np.int64)
    order = [root]
    for variable in order:
        for neighbor in neighbors[variable]:
            if neighbor != parents[variable]:
                parents[neighbor] = variable
                order.append(neighbor)
    return RootedTree(root, parents)
