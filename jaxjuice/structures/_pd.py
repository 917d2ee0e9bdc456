"""Poon-Domingos circuits: all ways to cut a grid of variables into rectangles."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxjuice._errors import DataError, StructureError
from jaxjuice.distributions import Distribution
from jaxjuice.nodes import (
    CircuitNodes,
    InputNodes,
    ProductNodes,
    Scope,
    SumNodes,
    block_diagonal_edge_constructor,
    inputs,
    multiply,
    summate,
)
from jaxjuice.parameterizations import Parameterization
from jaxjuice.structures._arguments import (
    latent_blocks,
    leaf_family,
    positive_integer,
    random_generator,
)
from jaxjuice.structures._binning import check_data
from jaxjuice.structures._chow_liu import learn_tree
from jaxjuice.structures._hclt import hidden_tree

LeafConstructor = Callable[[Scope, int, int], CircuitNodes]

Box = tuple[tuple[int, int], ...]
"""A hyper-rectangle: the interval [start, stop) of each axis."""


class Region(NamedTuple):
    """A box, and how many more splits a path from the root may make in it (None: no limit)."""

    box: Box
    splits_left: int | None


class Split(NamedTuple):
    """A cut of a region at a point of an axis."""

    axis: int
    point: int
    left: Region
    right: Region


def PD(
    data_shape: Sequence[int],
    num_latents: int,
    split_intervals: int | Sequence[int] | None = None,
    split_points: Sequence[Sequence[int]] | None = None,
    max_split_depth: int | None = None,
    max_prod_block_conns: int = 4,
    structure_type: str = "sum_dominated",
    input_ns_fn: LeafConstructor | None = None,
    input_dist: Distribution | None = None,
    input_node_type: type[Distribution] | None = None,
    input_node_params: Mapping[str, Any] | None = None,
    tie_homogeneous_params: bool = False,
    block_size: int | None = None,
    seed: Any = 0,
    parameterization: Parameterization | None = None,
) -> SumNodes:
    """Builds the circuit of Poon and Domingos, "Sum-Product Networks: A New Deep Architecture"
    (2011).

    Variables lie on a grid and are numbered in row-major order (the last axis fastest). A box of
    the grid is cut in two at each split point of each axis; its vector of sums mixes the products
    of the halves over all cuts. Equal boxes are one vector, however they arise. A box that is not
    cut is a product of its inputs under a block-diagonal sum. Where such boxes overlap (only
    `max_split_depth` brings that about), they share the input vector of a variable.

    Args:
        data_shape: the lengths of the axes.
        num_latents: nodes of each vector.
        split_intervals: split points at the multiples of this, for all axes or one per axis.
        split_points: the split points of each axis; or give `split_intervals`.
        max_split_depth: how many cuts a path from the whole grid to a box may make; None for no
            limit. Under a limit, a box that may be cut a different number of times is a different
            vector.
        max_prod_block_conns: a node block is connected with all blocks of this many products, drawn
            at random where there are more. The root is connected with all.
        structure_type: "sum_dominated": a box's vector is shared by all products that use it.
            "prod_dominated": each product has its own copy of it, with parameters of its own.
        input_ns_fn: builds the vector of a box that is not cut from (scope, num_latents,
            block_size).
        input_dist: the family of the leaves; by default `input_node_type(**input_node_params)`.
        input_node_type: the class of the leaves; by default Categorical.
        input_node_params: its arguments; by default 256 categories.
        tie_homogeneous_params: whether sums of boxes of one shape, cut alike, share parameters.
            Inputs are not tied.
        block_size: nodes a block, a divisor of `num_latents`. It says what is drawn together and
            what is connected in leaves, so it is part of the model here. By default the greatest
            divisor up to 16 (32 if there are more than 32 nodes); all nodes where that is less than
            4.
        seed: of the random connections: an integer, a jax key or a numpy Generator.
        parameterization: of all sums but the root (and but those of `input_ns_fn`); see `summate`.

    Returns:
        The root, one sum node.

    Raises:
        StructureError: if a number or split point is out of range, or the block size does not
            divide.
    """
    call = "PD(...)"
    shape = _check_shape(call, data_shape)
    num_blocks, block_size = latent_blocks(
        call, num_latents, block_size, _default_block_size(call, num_latents)
    )
    if input_ns_fn is None:
        dist = leaf_family(call, input_dist, input_node_type, input_node_params)
        input_ns_fn = _product_leaves(dist, parameterization)
    builder = _Builder(
        shape=shape,
        points=_check_points(call, shape, split_intervals, split_points),
        num_blocks=num_blocks,
        block_size=block_size,
        max_conns=positive_integer(call, "max_prod_block_conns", max_prod_block_conns),
        own_copies=_check_structure_type(call, structure_type),
        leaf=input_ns_fn,
        tie=tie_homogeneous_params,
        rng=random_generator(seed),
        parameterization=parameterization,
    )
    if max_split_depth is not None:
        max_split_depth = positive_integer(call, "max_split_depth", max_split_depth, least=0)
    return builder.build(max_split_depth)


def PDHCLT(
    data: Any,
    data_shape: Sequence[int],
    num_latents: int,
    split_intervals: int | Sequence[int] | None = None,
    split_points: Sequence[Sequence[int]] | None = None,
    max_split_depth: int | None = None,
    max_prod_block_conns: int = 4,
    structure_type: str = "sum_dominated",
    input_dist: Distribution | None = None,
    input_node_type: type[Distribution] | None = None,
    input_node_params: Mapping[str, Any] | None = None,
    hclt_kwargs: Mapping[str, Any] | None = None,
    block_size: int | None = None,
    seed: Any = 0,
    parameterization: Parameterization | None = None,
) -> SumNodes:
    """Builds a `PD` whose boxes that are not cut are hidden Chow-Liu trees.

    Args:
        data: `[num_samples, num_vars]`, from which `chow_liu_tree` learns the tree of each such
            box; variables are numbered as in `PD`.
        data_shape: the lengths of the axes.
        num_latents: nodes of each vector.
        split_intervals: see `PD`, as for all arguments that are not told here.
        split_points: see `PD`.
        max_split_depth: see `PD`.
        max_prod_block_conns: see `PD`.
        structure_type: see `PD`.
        input_dist: see `PD`.
        input_node_type: see `PD`.
        input_node_params: see `PD`.
        hclt_kwargs: arguments of `chow_liu_tree`, by default num_bins=32, sigma=0.5/32,
            chunk_size=32.
        block_size: see `PD`.
        seed: see `PD`.
        parameterization: of all sums but the root; see `summate`.

    Returns:
        The root, one sum node.

    Raises:
        DataError: if `data` is not a matrix of finite numbers or NaN, with a column per variable.
        StructureError: if a number or split point is out of range, or the block size does not
            divide.
    """
    call = "PDHCLT(...)"
    shape = _check_shape(call, data_shape)
    array = check_data(call, data)
    num_vars = int(np.prod(shape))
    if array.shape[1] != num_vars:
        raise DataError(
            f"{call}: data has {array.shape[1]} columns, and data_shape={shape} makes {num_vars} "
            "variables."
        )
    dist = leaf_family(call, input_dist, input_node_type, input_node_params)
    tree_arguments = {"num_bins": 32, "sigma": 0.5 / 32, "chunk_size": 32, **(hclt_kwargs or {})}

    shared_inputs: dict[int, InputNodes] = {}

    def hclt_leaf(scope: Scope, num_latents: int, block_size: int) -> CircuitNodes:
        tree = learn_tree(call, array[:, list(scope)], **tree_arguments)
        leaves = _shared(shared_inputs, scope, dist, num_latents, block_size)
        return hidden_tree(
            tree,
            leaves,
            num_latents,
            block_size,
            parameterization=parameterization,
            root_parameterization=parameterization,
        )

    return PD(
        shape,
        num_latents,
        split_intervals=split_intervals,
        split_points=split_points,
        max_split_depth=max_split_depth,
        max_prod_block_conns=max_prod_block_conns,
        structure_type=structure_type,
        input_ns_fn=hclt_leaf,
        block_size=block_size,
        seed=seed,
        parameterization=parameterization,
    )


def _shared(
    known: dict[int, InputNodes],
    scope: Scope,
    dist: Distribution,
    num_latents: int,
    block_size: int,
) -> list[InputNodes]:
    """Returns the input vectors of a scope, from `known` where a box before this one made them."""
    for variable in scope:
        if variable not in known:
            known[variable] = inputs(
                variable, dist=dist, num_nodes=num_latents, block_size=block_size
            )
    return [known[variable] for variable in scope]


def _product_leaves(
    dist: Distribution, parameterization: Parameterization | None
) -> LeafConstructor:
    """Returns a constructor of block-diagonal sums over the product of all inputs of a box."""
    shared_inputs: dict[int, InputNodes] = {}

    def leaf(scope: Scope, num_latents: int, block_size: int) -> CircuitNodes:
        leaves = _shared(shared_inputs, scope, dist, num_latents, block_size)
        return summate(
            multiply(*leaves) if len(leaves) > 1 else leaves[0],
            num_nodes=num_latents,
            block_size=block_size,
            sum_edge_ids_constructor=block_diagonal_edge_constructor,
            parameterization=parameterization,
        )

    return leaf


class _Builder:
    """Builds the circuit of a grid; see `PD` for the arguments."""

    def __init__(
        self,
        shape: tuple[int, ...],
        points: tuple[tuple[int, ...], ...],
        num_blocks: int,
        block_size: int,
        max_conns: int,
        own_copies: bool,
        leaf: LeafConstructor,
        tie: bool,
        rng: np.random.Generator,
        parameterization: Parameterization | None,
    ) -> None:
        self.shape = shape
        self.points = points
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_conns = max_conns
        self.own_copies = own_copies
        self.leaf = leaf
        self.tie = tie
        self.rng = rng
        self.parameterization = parameterization
        self.regions: dict[Region, CircuitNodes] = {}
        # By what tied parameters depend on: the first sum, and the products that it has.
        self.sources: dict[tuple, tuple[SumNodes, list[int]]] = {}

    def build(self, max_split_depth: int | None) -> SumNodes:
        """Builds all regions from the smallest to the whole grid, and returns the root."""
        whole = self._region(tuple((0, length) for length in self.shape), max_split_depth)
        splits: dict[Region, list[Split]] = {}
        waiting = [whole]
        while waiting:
            region = waiting.pop()
            if region not in splits:
                splits[region] = self._splits(region)
                for split in splits[region]:
                    waiting += [split.left, split.right]
        for region in sorted(splits, key=lambda region: (_volume(region.box), region.box)):
            if region != whole:
                self.regions[region] = self._vector(region, splits[region])
        if not splits[whole]:
            # The leaf of the whole grid is itself a vector of sums; its one product makes the root.
            top: list[CircuitNodes] = [self._as_product(self._leaf(whole.box))]
        else:
            top = [*self._products(splits[whole])]
        return summate(top, num_nodes=1, block_size=1)

    def _region(self, box: Box, splits_left: int | None) -> Region:
        if splits_left is None:
            return Region(box, None)
        # A box with fewer points than splits left is in effect unlimited: one vector for those.
        most = sum(len(_inside(self.points[axis], box[axis])) for axis in range(len(box)))
        return Region(box, min(splits_left, most))

    def _splits(self, region: Region) -> list[Split]:
        if region.splits_left == 0:
            return []
        left_over = None if region.splits_left is None else region.splits_left - 1
        splits = []
        for axis, (start, stop) in enumerate(region.box):
            for point in _inside(self.points[axis], (start, stop)):
                left = (*region.box[:axis], (start, point), *region.box[axis + 1 :])
                right = (*region.box[:axis], (point, stop), *region.box[axis + 1 :])
                left, right = self._region(left, left_over), self._region(right, left_over)
                splits.append(Split(axis, point, left, right))
        return splits

    def _leaf(self, box: Box) -> CircuitNodes:
        grid = np.arange(int(np.prod(self.shape))).reshape(self.shape)
        variables = grid[tuple(slice(start, stop) for start, stop in box)].reshape(-1)
        num_latents = self.num_blocks * self.block_size
        scope = Scope(variables.tolist())
        ns = self.leaf(scope, num_latents, self.block_size)
        if ns.scope != scope or ns.num_nodes != num_latents:
            raise StructureError(
                f"PD(input_ns_fn=...): it returned {ns!r} for the scope {scope} and {num_latents} "
                "nodes."
            )
        return ns

    def _as_product(self, ns: CircuitNodes) -> CircuitNodes:
        return multiply(ns) if isinstance(ns, SumNodes) else ns

    def _vector(self, region: Region, splits: list[Split]) -> CircuitNodes:
        """Returns the vector of a region whose smaller regions are built."""
        if not splits:
            ns = self._leaf(region.box)
            if not isinstance(ns, SumNodes):
                return ns if not isinstance(ns, ProductNodes) else self._mixture(region, [ns], ())
            return self._tied_leaf(region, ns)
        relative = tuple((s.axis, s.point - region.box[s.axis][0]) for s in splits)
        return self._mixture(region, self._products(splits), relative)

    def _products(self, splits: list[Split]) -> list[ProductNodes]:
        return [
            multiply(self._factor(split, split.left), self._factor(split, split.right))
            for split in splits
        ]

    def _factor(self, split: Split, region: Region) -> CircuitNodes:
        """Returns the vector of one half of a split."""
        ns = self.regions[region]
        if not self.own_copies:
            return ns
        if not self.tie or not isinstance(ns, SumNodes):
            return ns.duplicate()  # pyright: ignore[reportAttributeAccessIssue]
        # Copies are tied where the halves and their partners have the same shapes.
        halves = (_lengths(split.left.box), _lengths(split.right.box), region == split.left)
        key = ("copy", split.axis, halves, ns.get_source())
        if key not in self.sources:
            self.sources[key] = ns.duplicate(), []
            return self.sources[key][0]
        return self.sources[key][0].duplicate(*ns.chs, tie_params=True)

    def _tied_leaf(self, region: Region, ns: SumNodes) -> SumNodes:
        key = ("leaf", _lengths(region.box), tuple(len(child.scope) for child in ns.chs))
        if not self.tie:
            return ns
        source, _ = self.sources.setdefault(key, (ns, []))
        if source is ns or not np.array_equal(source.edge_ids, ns.edge_ids):
            return ns
        return source.duplicate(*ns.chs, tie_params=True)

    def _mixture(self, region: Region, products: list[ProductNodes], relative: tuple) -> SumNodes:
        key = ("box", _lengths(region.box), region.splits_left, relative)
        if self.tie and key in self.sources:
            source, chosen = self.sources[key]
            return source.duplicate(*[products[index] for index in chosen], tie_params=True)
        chosen = list(range(len(products)))
        edge_ids = None
        if len(products) > self.max_conns:
            picks = np.stack(
                [
                    np.sort(self.rng.choice(len(products), self.max_conns, replace=False))
                    for _ in range(self.num_blocks)
                ]
            )
            # Products that no block drew are left out of the circuit.
            chosen = np.unique(picks).tolist()
            edge_ids = self._edges(np.searchsorted(chosen, picks))
        ns = summate(
            [products[index] for index in chosen],
            num_node_blocks=self.num_blocks,
            block_size=self.block_size,
            edge_ids=edge_ids,
            parameterization=self.parameterization,
        )
        self.sources[key] = ns, chosen
        return ns

    def _edges(self, picks: np.ndarray) -> np.ndarray:
        """Connects node blocks with all blocks of their products: `[blocks, conns]` to `[2, E]`."""
        ch_blocks = picks[:, :, None] * self.num_blocks + np.arange(self.num_blocks)
        ch_blocks = ch_blocks.reshape(self.num_blocks, -1)
        node_blocks = np.repeat(np.arange(self.num_blocks), ch_blocks.shape[1])
        return np.stack([node_blocks, ch_blocks.reshape(-1)])


def _inside(points: Sequence[int], interval: tuple[int, int]) -> list[int]:
    return [point for point in points if interval[0] < point < interval[1]]


def _lengths(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def _volume(box: Box) -> int:
    volume = 1
    for length in _lengths(box):
        volume *= length
    return volume


def _default_block_size(call: str, num_latents: Any) -> int:
    num_latents = positive_integer(call, "num_latents", num_latents)
    limit = 16 if num_latents <= 32 else 32
    greatest = max(size for size in range(1, limit + 1) if num_latents % size == 0)
    # A large prime has only blocks of one node: leaves would mix nothing.
    return greatest if greatest >= 4 else num_latents


def _check_shape(call: str, data_shape: Sequence[int]) -> tuple[int, ...]:
    lengths = [data_shape] if hasattr(data_shape, "__index__") else list(data_shape)
    if not lengths:
        raise StructureError(f"{call}: data_shape is empty; give the length of each axis.")
    return tuple(positive_integer(call, "a length in data_shape", length) for length in lengths)


def _check_points(
    call: str,
    shape: tuple[int, ...],
    split_intervals: int | Sequence[int] | None,
    split_points: Sequence[Sequence[int]] | None,
) -> tuple[tuple[int, ...], ...]:
    """Returns the split points of each axis, ascending."""
    if (split_intervals is None) == (split_points is None):
        raise StructureError(f"{call}: give either split_intervals= or split_points=.")
    if split_points is None:
        if hasattr(split_intervals, "__index__"):
            split_intervals = list(itertools.repeat(split_intervals, len(shape)))  # pyright: ignore
        intervals = [
            positive_integer(call, "a split interval", interval)
            for interval in split_intervals  # pyright: ignore[reportOptionalIterable, reportGeneralTypeIssues]
        ]
        split_points = [
            range(interval, length, interval)
            for interval, length in zip(intervals, shape, strict=False)
        ]
        given = len(intervals)
    else:
        given = len(split_points)
    if given != len(shape):
        raise StructureError(f"{call}: split points for {given} of {len(shape)} axes came.")
    points = tuple(tuple(sorted({int(p) for p in axis_points})) for axis_points in split_points)
    for axis, axis_points in enumerate(points):
        outside = [point for point in axis_points if not 0 < point < shape[axis]]
        if outside:
            raise StructureError(
                f"{call}: the split point {outside[0]} of axis {axis} is not between 0 and "
                f"{shape[axis]}, both excluded."
            )
    return points


def _check_structure_type(call: str, structure_type: str) -> bool:
    """Returns whether each product has its own copies."""
    if structure_type not in ("sum_dominated", "prod_dominated"):
        raise StructureError(
            f"{call}: structure_type={structure_type!r} is neither 'sum_dominated' nor "
            "'prod_dominated'."
        )
    return structure_type == "prod_dominated"
