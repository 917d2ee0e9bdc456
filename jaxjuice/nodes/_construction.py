"""The functions that write a circuit down: `inputs`, `multiply`, `summate`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from numpy.typing import ArrayLike

from jaxjuice._errors import StructureError
from jaxjuice.distributions import Distribution
from jaxjuice.nodes._base import CircuitNodes
from jaxjuice.nodes._edge_constructors import EdgeConstructor
from jaxjuice.nodes._input import InputNodes, check_variable
from jaxjuice.nodes._product import ProductNodes
from jaxjuice.nodes._settings import check_block_size, current_block_size
from jaxjuice.nodes._sum import SumNodes
from jaxjuice.parameterizations import Parameterization


def inputs(
    var: int | Iterable[int],
    num_node_blocks: int = 0,
    dist: Distribution | None = None,
    params: Mapping[str, ArrayLike] | ArrayLike | None = None,
    num_nodes: int = 0,
    block_size: int = 0,
    *,
    source_node: InputNodes | None = None,
    **constants: ArrayLike,
) -> InputNodes:
    """Builds a vector of input nodes over one variable.

    Args:
        var: the variable id, or a sequence with one.
        num_node_blocks: the number of node blocks; or give `num_nodes`.
        dist: the family of the densities; by default that of `source_node`.
        params: the parameters by name, each `[num_nodes, *shape]`; a family with one parameter also
            takes the array alone. By default `Circuit.init` draws them.
        num_nodes: the number of nodes, a multiple of the block size.
        block_size: nodes a block; by default that of `set_block_size`.
        source_node: the vector to share parameters with, of the same size and family.
        constants: what the family needs per node and does not train (`mask=` for
            MaskedCategorical), each `[num_nodes, *shape]`, or `shape` for all nodes alike.

    Raises:
        StructureError: if sizes, variable or source do not fit.
        ParameterError: if parameters or constants do not fit the family.
    """
    call = f"inputs({var!r}, ...)"
    if dist is None and source_node is not None:
        dist = source_node.dist
    if not isinstance(dist, Distribution):
        raise StructureError(f"{call}: dist={dist!r} is not one of jaxjuice.distributions.")
    variable = check_variable(call, var)
    num_node_blocks, block_size = _sizes(call, num_node_blocks, num_nodes, block_size)
    if num_node_blocks < 1:
        raise StructureError(f"{call}: how many nodes? Give num_nodes= or num_node_blocks=.")
    return InputNodes(
        variable,
        num_node_blocks,
        block_size,
        dist,
        params=params,
        constants=constants,
        source=source_node,
        call=call,
    )


def multiply(
    nodes: CircuitNodes | Iterable[CircuitNodes],
    *more_nodes: CircuitNodes,
    edge_ids: ArrayLike | None = None,
    sparse_edges: bool = False,
    block_size: int = 0,
) -> ProductNodes:
    """Builds a vector of product nodes over sums or inputs of disjoint scopes.

    Args:
        nodes: the first child, or all children in one list.
        more_nodes: the other children.
        edge_ids: None: node i multiplies node i of every child, which have equally many nodes.
            `[product blocks, children]`: the block of each child whose nodes are multiplied.
            `[product nodes, children]` with `sparse_edges=True`: the node of each child.
        sparse_edges: whether `edge_ids` is by node.
        block_size: nodes a block; by default the children's (the greatest common divisor of theirs,
            if they differ; `edge_ids` then counts blocks of that size).

    Raises:
        StructureError: if a child is a product, scopes overlap, or edges or sizes do not fit.
    """
    chs = _children("multiply", nodes, more_nodes)
    call = f"multiply of {len(chs)} children"
    return ProductNodes(chs, edge_ids, sparse_edges=sparse_edges, block_size=block_size, call=call)


def summate(
    nodes: CircuitNodes | Iterable[CircuitNodes],
    *more_nodes: CircuitNodes,
    num_node_blocks: int = 0,
    num_nodes: int = 0,
    edge_ids: object = None,
    block_size: int = 0,
    sum_edge_ids_constructor: EdgeConstructor | None = None,
    params: ArrayLike | None = None,
    zero_param_mask: ArrayLike | None = None,
    source_node: SumNodes | None = None,
    parameterization: Parameterization | None = None,
) -> SumNodes:
    """Builds a vector of sum nodes over products or inputs of one scope.

    Args:
        nodes: the first child, or all children in one list.
        more_nodes: the other children.
        num_node_blocks: the number of node blocks; or give `num_nodes`. With `edge_ids` it may be
            left out: every block that these name.
        num_nodes: the number of nodes, a multiple of the block size.
        edge_ids: None: every node is connected with every child node.
            `[2, E]`: edge e connects node block `edge_ids[0, e]` with child block `edge_ids[1, e]`,
            child blocks counted over the concatenation of the children.
            A boolean matrix `[node blocks, child blocks]`: True where there is an edge.
            A list with one `[2, E_i]` or boolean matrix per child, which counts that child's own
            blocks. If the children's block sizes differ, child blocks are of the greatest common
            divisor.
        block_size: nodes a block; by default that of `set_block_size`.
        sum_edge_ids_constructor: a function of (node blocks, blocks of each child) that returns
            `edge_ids`, used if these are not given.
        params: the weights, in any form of `SumNodes.set_params`. By default `Circuit.init` draws
            them.
        zero_param_mask: True where the weight is 0 for good; the forms of `params`, boolean.
        source_node: the vector to share parameters with, of the same sizes and edges.
        parameterization: how tensors of a call scale the weights, one of
            `jaxjuice.parameterizations`; a tied vector has that of its source.

    Raises:
        StructureError: if a child is a sum, scopes differ, a node has no edge, an edge is repeated
            or out of range, or sizes, source or parameterization do not fit.
        ParameterError: if parameters or mask do not fit the edges.
    """
    chs = _children("summate", nodes, more_nodes)
    call = f"summate of {len(chs)} children"
    num_node_blocks, block_size = _sizes(call, num_node_blocks, num_nodes, block_size)
    if edge_ids is None and sum_edge_ids_constructor is not None:
        ch_block_size = math.gcd(*(child.block_size for child in chs)) if chs else 1
        edge_ids = sum_edge_ids_constructor(
            num_node_blocks, [child.num_nodes // ch_block_size for child in chs]
        )
    return SumNodes(
        chs,
        num_node_blocks,
        block_size,
        edge_ids,
        params=params,
        zero_param_mask=zero_param_mask,
        source=source_node,
        parameterization=parameterization,
        call=call,
    )


def _children(
    function: str,
    nodes: CircuitNodes | Iterable[CircuitNodes],
    more_nodes: tuple[CircuitNodes, ...],
) -> tuple[CircuitNodes, ...]:
    chs = (nodes,) if isinstance(nodes, CircuitNodes) else nodes
    if not isinstance(chs, Iterable):
        raise StructureError(f"{function}(...): child 0 is {nodes!r}, not a node vector.")
    chs = (*chs, *more_nodes)
    for index, child in enumerate(chs):
        if not isinstance(child, CircuitNodes):
            raise StructureError(f"{function}(...): child {index} is {child!r}, not a node vector.")
    return chs


def _sizes(call: object, num_node_blocks: int, num_nodes: int, block_size: int) -> tuple[int, int]:
    """Returns the number of blocks (0 if it was not given) and the block size."""
    block_size = block_size or current_block_size()
    check_block_size(call, block_size)
    for name, value in (("num_node_blocks", num_node_blocks), ("num_nodes", num_nodes)):
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
            raise StructureError(f"{call}: {name}={value!r} is not an integer >= 1.")
    if num_nodes:
        if num_nodes % block_size:
            raise StructureError(
                f"{call}: num_nodes={num_nodes} is not a multiple of the block size {block_size}."
            )
        if num_node_blocks and num_node_blocks * block_size != num_nodes:
            raise StructureError(
                f"{call}: num_node_blocks={num_node_blocks} of {block_size} nodes are not "
                f"num_nodes={num_nodes}; give one of the two."
            )
        num_node_blocks = num_nodes // block_size
    return int(num_node_blocks), int(block_size)
