"""Sum vectors: mixtures of products or inputs, with one normalized row of weights per node."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from jaxjuice._errors import ParameterError, StructureError
from jaxjuice.nodes._base import CallOn, CircuitNodes, check_replacements
from jaxjuice.nodes._edges import as_float_array, frozen, sum_edges, to_edge_layout
from jaxjuice.nodes._input import InputNodes
from jaxjuice.nodes._product import ProductNodes
from jaxjuice.nodes._scope import Scope
from jaxjuice.nodes._settings import nonsmooth_allowed
from jaxjuice.parameterizations import Parameterization


class SumNodes(CircuitNodes):
    """A vector of sum nodes over product or input vectors of one scope. Build it with `summate`.

    Attributes:
        edge_ids: int64 `[2, E]`, read-only: edge e connects node block `edge_ids[0, e]` with child
            block `edge_ids[1, e]`, blocks of `ch_block_size` counted over the concatenation of the
            children.
        ch_block_size: nodes a child block: the children's block size, or the greatest common
            divisor of them if they differ.
        parameterization: how tensors of a call scale the weights; None for weights that no call
            may scale. Tied vectors have that of their source.
    """

    chs: tuple[ProductNodes | InputNodes, ...]
    source: SumNodes | None

    def __init__(
        self,
        chs: tuple[CircuitNodes, ...],
        num_node_blocks: int,
        block_size: int,
        edge_ids: object = None,
        *,
        params: ArrayLike | None = None,
        zero_param_mask: ArrayLike | None = None,
        source: SumNodes | None = None,
        parameterization: Parameterization | None = None,
        call: object = "summate(...)",
    ) -> None:
        scope = _check_children(call, chs)
        self.ch_block_size = math.gcd(*(child.block_size for child in chs))
        self._params: np.ndarray | None = None
        self._zero_param_mask: np.ndarray | None = None
        ch_blocks = [child.num_nodes // self.ch_block_size for child in chs]
        if source is not None and edge_ids is source.edge_ids:
            # Already checked; also what keeps thousands of tied copies from holding their own.
            self.edge_ids = source.edge_ids
        else:
            edges, num_node_blocks = sum_edges(call, edge_ids, num_node_blocks, ch_blocks)
            self.edge_ids = frozen(edges)
        super().__init__(chs, num_node_blocks, block_size, scope, source)
        if source is not None:
            _check_source(call, self, source.get_source())
            self.parameterization = _tied_parameterization(
                call, source.get_source(), parameterization
            )
            if params is not None or zero_param_mask is not None:
                raise ParameterError(
                    f"{call}: a tied vector takes its parameters and zero_param_mask from its "
                    f"source {source.get_source()!r}; set them there."
                )
            return
        _check_parameterization(call, self, parameterization)
        self.parameterization = parameterization
        if zero_param_mask is not None:
            self.set_zero_param_mask(zero_param_mask)
        if params is not None:
            self.set_params(params)

    def get_source(self) -> SumNodes:
        return self if self.source is None else self.source

    @property
    def num_ch_nodes(self) -> int:
        """How many nodes all children have together."""
        return sum(child.num_nodes for child in self.chs)

    @property
    def num_ch_blocks(self) -> int:
        """How many blocks of `ch_block_size` nodes all children have together."""
        return self.num_ch_nodes // self.ch_block_size

    def resolved_parameterization(self) -> Parameterization | None:
        """The parameterization with its defaults filled in; None if there is none."""
        if self.parameterization is None:
            return None
        return self.parameterization.resolve(self, self.block_size, self.ch_block_size)

    @property
    def params(self) -> np.ndarray | None:
        """The weights, float `[E, block_size, ch_block_size]`, read-only.

        `params[e, n, c]` is the weight of child c of block `edge_ids[1, e]` in node n of block
        `edge_ids[0, e]`; the weights of a node sum to 1 over its children. None if they are not set
        (then `Circuit.init` draws them) or if the vector is tied (then its source has them).
        """
        return None if self.is_tied else self._params

    @property
    def zero_param_mask(self) -> np.ndarray | None:
        """Bool `[E, block_size, ch_block_size]`, True where a weight is 0 for good, or None.

        A tied vector returns its source's.
        """
        return self.get_source()._zero_param_mask

    def has_params(self) -> bool:
        """Tells whether the weights (of the source, if tied) are set."""
        return self.get_source()._params is not None

    def set_params(
        self, params: ArrayLike | None, normalize: bool = True, pseudocount: float = 0.0
    ) -> None:
        """Sets the weights; those of the source if this vector is tied. Call it before `compile`.

        Args:
            params: non-negative weights in one of these forms, or None to unset them:
                `[E]` if both block sizes are 1;
                `[num_nodes, num_ch_nodes]`, 0 where there is no edge;
                `[E, block_size, ch_block_size]`, in the order of `edge_ids`;
                `[num_node_blocks, num_ch_blocks, block_size, ch_block_size]`, of which the tiles of
                `edge_ids` are taken and the others ignored.
                Weights under `zero_param_mask` are set to 0.
            normalize: whether to divide each node's weights by their sum.
            pseudocount: mass added to each node, spread evenly over its edges, before
                normalization.

        Raises:
            ParameterError: if the shape does not fit, a weight is negative or not finite, or all
                weights of a node are 0.
        """
        if self.source is not None:
            self.source.set_params(params, normalize, pseudocount)
            return
        if params is None:
            self._params = None
            return
        call = CallOn("set_params", self)
        weights = self._layout(call, as_float_array(call, params))
        if not np.isfinite(weights).all() or (weights < 0).any():
            raise ParameterError(f"{call}: weights are finite and >= 0, and some of these are not.")
        if not pseudocount >= 0:
            raise ParameterError(f"{call}: pseudocount={pseudocount!r} is not a number >= 0.")
        self._params = frozen(self._normalized(call, weights, normalize, float(pseudocount)))

    def set_zero_param_mask(self, mask: ArrayLike | None) -> None:
        """Fixes weights at 0: they are never trained. Call it before `compile`.

        Weights that are already set are set to 0 under the mask and normalized again.

        Args:
            mask: True where the weight is 0 for good; any form that `set_params` takes. None frees
                all.

        Raises:
            ParameterError: if the mask is not boolean or its shape does not fit.
            StructureError: if it leaves a node without an edge.
        """
        if self.source is not None:
            self.source.set_zero_param_mask(mask)
            return
        if mask is None:
            self._zero_param_mask = None
            return
        call = CallOn("set_zero_param_mask", self)
        array = np.asarray(mask)
        if array.dtype != np.bool_:
            raise ParameterError(f"{call}: the mask has dtype {array.dtype}, and bool is wanted.")
        array = self._layout(call, array)
        free = self._sum_over_children((~array).astype(np.float64))
        if (free == 0).any():
            node = int(np.flatnonzero(free == 0)[0])
            raise StructureError(f"{call}: the mask leaves node {node} without an edge.")
        self._zero_param_mask = frozen(array) if array.any() else None
        if self._params is not None and array.any():
            self.set_params(self._params)

    def _layout(self, call: object, array: np.ndarray) -> np.ndarray:
        block_sizes = (self.block_size, self.ch_block_size)
        return to_edge_layout(
            call, array, self.edge_ids, block_sizes, (self.num_node_blocks, self.num_ch_blocks)
        )

    def _sum_over_children(self, weights: np.ndarray) -> np.ndarray:
        """Sums `[E, block_size, ch_block_size]` over each node's children to `[num_nodes]`."""
        sums = np.zeros((self.num_node_blocks, self.block_size))
        np.add.at(sums, self.edge_ids[0], weights.sum(axis=2, dtype=np.float64))
        return sums.reshape(-1)

    def _normalized(
        self, call: object, weights: np.ndarray, normalize: bool, pseudocount: float
    ) -> np.ndarray:
        mask = self._zero_param_mask
        free = np.ones(weights.shape) if mask is None else (~mask).astype(np.float64)
        values = weights * free
        if pseudocount:
            share = pseudocount / self._sum_over_children(free)
            values = values + free * self._per_node(share)
        sums = self._sum_over_children(values)
        if (sums <= 0).any():
            node = int(np.flatnonzero(sums <= 0)[0])
            raise ParameterError(f"{call}: all weights of node {node} are 0.")
        if normalize:
            values = values / self._per_node(sums)
        return values.astype(weights.dtype)

    def _per_node(self, values: np.ndarray) -> np.ndarray:
        """Spreads `[num_nodes]` over the edges: `[E, block_size, 1]`."""
        return values.reshape(self.num_node_blocks, self.block_size)[self.edge_ids[0]][:, :, None]

    def num_own_parameters(self) -> int:
        if self.is_tied:
            return 0
        masked = 0 if self._zero_param_mask is None else int(self._zero_param_mask.sum())
        return self.num_own_edges() - masked

    def num_own_edges(self) -> int:
        return self.edge_ids.shape[1] * self.block_size * self.ch_block_size

    def duplicate(self, *new_chs: ProductNodes | InputNodes, tie_params: bool = False) -> SumNodes:
        """Returns a copy of this vector over other children.

        Args:
            new_chs: as many children, with the same numbers of nodes and block sizes; none to keep
                the present ones.
            tie_params: whether the copy shares the parameters of this vector (of its source, if it
                is tied itself) or has its own, which begin as a copy. Its parameterization is the
                same in both cases.

        Raises:
            StructureError: if the children do not fit.
        """
        call = CallOn("duplicate", self)
        chs = check_replacements(call, self, new_chs)
        if tie_params:
            return SumNodes(
                chs, self.num_node_blocks, self.block_size, self.edge_ids, source=self, call=call
            )
        copy = SumNodes(
            chs,
            self.num_node_blocks,
            self.block_size,
            self.edge_ids,
            parameterization=self.parameterization,
            call=call,
        )
        source = self.get_source()
        copy._zero_param_mask, copy._params = source._zero_param_mask, source._params
        return copy


def _check_children(call: object, chs: tuple[CircuitNodes, ...]) -> Scope:
    """Checks the children of a sum and returns the union of their scopes."""
    if not chs:
        raise StructureError(f"{call}: a sum wants at least one child.")
    for index, child in enumerate(chs):
        if not isinstance(child, (ProductNodes, InputNodes)):
            raise StructureError(
                f"{call}: child {index} is {child!r}, and sums take products or inputs "
                "(give its children instead, or put a unary `multiply` between)."
            )
    if len(set(chs)) != len(chs):
        repeated = next(child for index, child in enumerate(chs) if child in chs[:index])
        raise StructureError(f"{call}: {repeated!r} is given as a child twice.")
    bits = 0
    for index, child in enumerate(chs):
        if child.scope != chs[0].scope and not nonsmooth_allowed():
            raise StructureError(
                f"{call}: not smooth, as the children have different scopes: child 0, {chs[0]!r}, "
                f"and child {index}, {child!r} "
                "(allow it by structural_properties(allow_nonsmooth=True))."
            )
        bits |= child.scope.bits
    return chs[0].scope if len(chs) == 1 else Scope.from_bits(bits)


def _check_source(call: object, ns: SumNodes, source: SumNodes) -> None:
    if not isinstance(source, SumNodes):
        raise StructureError(f"{call}: the parameters of {ns!r} cannot be tied to {source!r}.")
    same_shape = (ns.num_node_blocks, ns.block_size, ns.ch_block_size, ns.num_ch_nodes) == (
        source.num_node_blocks,
        source.block_size,
        source.ch_block_size,
        source.num_ch_nodes,
    )
    if not same_shape or not (
        ns.edge_ids is source.edge_ids or np.array_equal(ns.edge_ids, source.edge_ids)
    ):
        raise StructureError(
            f"{call}: {ns!r} cannot be tied to {source!r}, as their sizes, block sizes or edges "
            "differ."
        )
    ns.edge_ids = source.edge_ids


def _check_parameterization(call: object, ns: SumNodes, parameterization: object) -> None:
    if parameterization is None:
        return
    if not isinstance(parameterization, Parameterization):
        raise StructureError(
            f"{call}: parameterization={parameterization!r} is not one of "
            "jaxjuice.parameterizations."
        )
    try:
        hash(parameterization)
    except TypeError:
        raise StructureError(
            f"{call}: parameterization={parameterization!r} is not hashable: make its class a "
            "frozen dataclass."
        ) from None
    resolved = parameterization.resolve(call, ns.block_size, ns.ch_block_size)
    if not resolved.tensor_shapes(ns.num_nodes, ns.num_ch_nodes):
        raise StructureError(f"{call}: parameterization={parameterization!r} takes no tensors.")


def _tied_parameterization(
    call: object, source: SumNodes, given: Parameterization | None
) -> Parameterization | None:
    if given is not None and given != source.parameterization:
        raise StructureError(
            f"{call}: a tied vector takes its parameterization from its source {source!r}, which "
            f"has {source.parameterization!r}, and {given!r} was given."
        )
    return source.parameterization
