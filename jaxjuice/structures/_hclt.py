"""Hidden Chow-Liu trees: a Chow-Liu tree in which each variable hangs on a hidden one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxjuice.distributions import Distribution
from jaxjuice.nodes import (
    CircuitNodes,
    EdgeConstructor,
    InputNodes,
    SumNodes,
    inputs,
    multiply,
    summate,
)
from jaxjuice.parameterizations import Parameterization
from jaxjuice.structures._arguments import latent_blocks, leaf_family, positive_integer
from jaxjuice.structures._chow_liu import RootedTree, learn_tree


def HCLT(
    x: Any,
    num_latents: int,
    num_bins: int = 32,
    sigma: float = 0.5 / 32,
    chunk_size: int = 64,
    num_root_ns: int = 1,
    block_size: int | None = None,
    input_dist: Distribution | None = None,
    input_node_type: type[Distribution] | None = None,
    input_node_params: Mapping[str, Any] | None = None,
    tie_input_params: bool = False,
    sum_edge_ids_constructor: EdgeConstructor | None = None,
    parameterization: Parameterization | None = None,
    *,
    seed: Any = None,
) -> SumNodes:
    """Builds a hidden Chow-Liu tree from data (Liu and Van den Broeck, "Tractable Regularization of
    Probabilistic Circuits", 2021).

    The tree is `chow_liu_tree(x, num_bins, sigma, chunk_size)`, which says what of it is exact.
    Each inner variable of the tree gets a hidden variable with `num_latents` states, which emits it
    and generates the hidden variables below; a leaf of the tree hangs on its parent's hidden
    variable. The data only choose the tree; parameters are left for `Circuit.init`.

    Args:
        x: `[num_samples, num_vars]`, numpy or jax array of any numeric dtype; NaN is missing.
        num_latents: states of each hidden variable.
        num_bins: soft bins of a column with many values, and up to how many values count as few.
        sigma: the width of the soft bins, for a column scaled to [0, 1].
        chunk_size: variables in a block when counting; it does not change the tree.
        num_root_ns: nodes of the root.
        block_size: nodes a block, a divisor of `num_latents`; by default all nodes of a vector.
        input_dist: the family of the leaves; by default `input_node_type(**input_node_params)`.
        input_node_type: the class of the leaves; by default Categorical.
        input_node_params: its arguments; by default 256 categories.
        tie_input_params: whether all leaves share one set of parameters.
        sum_edge_ids_constructor: connects the inner sums sparsely; it sees blocks, so give a
            `block_size` with it.
        parameterization: of the inner sums, all but the root; see `summate`.
        seed: taken as by the random structures, and without effect: equal data give equal trees.

    Returns:
        The root. With one variable, a sum over its inputs.

    Raises:
        DataError: if `x` is not a matrix of finite numbers or NaN, with a row at least.
        StructureError: if a number is out of range, or the block size does not divide.
    """
    del seed
    call = "HCLT(x, ...)"
    num_blocks, block_size = latent_blocks(call, num_latents, block_size)
    num_root_ns = positive_integer(call, "num_root_ns", num_root_ns)
    dist = leaf_family(call, input_dist, input_node_type, input_node_params)
    tree = learn_tree(call, x, num_bins, sigma, chunk_size)
    leaves: list[InputNodes] = []
    for variable in range(len(tree.parents)):
        if leaves and tie_input_params:
            leaves.append(leaves[0].duplicate(variable, tie_params=True))
        else:
            leaves.append(inputs(variable, num_blocks, dist, block_size=block_size))
    return hidden_tree(
        tree, leaves, num_root_ns, block_size, sum_edge_ids_constructor, parameterization
    )


def hidden_tree(
    tree: RootedTree,
    leaves: Sequence[InputNodes],
    num_root_ns: int,
    block_size: int,
    sum_edge_ids_constructor: EdgeConstructor | None = None,
    parameterization: Parameterization | None = None,
    root_parameterization: Parameterization | None = None,
) -> SumNodes:
    """Builds the circuit of a tree: a sum over a product at each inner variable.

    Args:
        tree: over the indices of `leaves`.
        leaves: the inputs of each variable, with equally many nodes.
        num_root_ns: nodes of the root.
        block_size: nodes a block, for sums.
        sum_edge_ids_constructor: connects the inner sums.
        parameterization: of the inner sums.
        root_parameterization: of the root.
    """
    children = tree.children()
    regions: dict[int, CircuitNodes] = {}
    products = {}
    for variable in reversed(tree.order().tolist()):
        if not children[variable]:
            regions[variable] = leaves[variable]
            continue
        below = [regions[child] for child in children[variable]]
        products[variable] = multiply(*below, leaves[variable])
        if variable != tree.root:
            regions[variable] = summate(
                products[variable],
                num_nodes=leaves[variable].num_nodes,
                block_size=block_size,
                sum_edge_ids_constructor=sum_edge_ids_constructor,
                parameterization=parameterization,
            )
    top = products.get(tree.root, leaves[tree.root])
    root_block_size = math.gcd(num_root_ns, block_size)
    return summate(
        top,
        num_nodes=num_root_ns,
        block_size=root_block_size,
        parameterization=root_parameterization,
    )
