"""Random tensorized sum-product networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

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
from jaxjuice.structures._arguments import (
    latent_blocks,
    leaf_family,
    positive_integer,
    random_generator,
)


def RAT_SPN(
    num_vars: int,
    num_latents: int,
    depth: int,
    num_repetitions: int,
    num_pieces: int = 2,
    input_dist: Distribution | None = None,
    input_node_type: type[Distribution] | None = None,
    input_node_params: Mapping[str, Any] | None = None,
    block_size: int | None = None,
    sum_edge_ids_constructor: EdgeConstructor | None = None,
    seed: Any = 0,
    parameterization: Parameterization | None = None,
) -> SumNodes:
    """Builds a RAT-SPN (Peharz et al., "Random Sum-Product Networks", 2019).

    Each repetition splits the variables at random into `num_pieces` parts of (nearly) equal size,
    and those again, `depth` times; each part becomes a vector of sums over the product of its
    pieces. The root mixes the products of all repetitions. All repetitions share one input vector
    per variable.

    Args:
        num_vars: the number of variables.
        num_latents: nodes of each sum and input vector.
        depth: how often the variables are split; parts of fewer than `num_pieces` variables are
            not.
        num_repetitions: how many random partitions are mixed.
        num_pieces: parts of a split.
        input_dist: the family of the leaves; by default `input_node_type(**input_node_params)`.
        input_node_type: the class of the leaves; by default Categorical.
        input_node_params: its arguments; by default 256 categories.
        block_size: nodes a block, a divisor of `num_latents`; by default all nodes of a vector.
        sum_edge_ids_constructor: connects the inner sums sparsely; it sees blocks, so give a
            `block_size` with it.
        seed: of the random partitions: an integer, a jax key or a numpy Generator.
        parameterization: of the inner sums, all but the root; see `summate`.

    Returns:
        The root, one sum node.

    Raises:
        StructureError: if a number is out of range, or the block size does not divide.
    """
    call = "RAT_SPN(...)"
    num_vars = positive_integer(call, "num_vars", num_vars)
    depth = positive_integer(call, "depth", depth, least=0)
    num_repetitions = positive_integer(call, "num_repetitions", num_repetitions)
    num_pieces = positive_integer(call, "num_pieces", num_pieces, least=2)
    num_blocks, block_size = latent_blocks(call, num_latents, block_size)
    dist = leaf_family(call, input_dist, input_node_type, input_node_params)
    rng = random_generator(seed)
    leaves = [
        inputs(variable, num_blocks, dist, block_size=block_size) for variable in range(num_vars)
    ]

    def mixture(variables: np.ndarray, splits_left: int) -> SumNodes:
        return summate(
            product(variables, splits_left),
            num_node_blocks=num_blocks,
            block_size=block_size,
            sum_edge_ids_constructor=sum_edge_ids_constructor,
            parameterization=parameterization,
        )

    def product(variables: np.ndarray, splits_left: int) -> CircuitNodes:
        if not splits_left or len(variables) < num_pieces:
            return _product_of_leaves([leaves[variable] for variable in variables])
        pieces = np.array_split(rng.permutation(variables), num_pieces)
        return multiply(*[mixture(piece, splits_left - 1) for piece in pieces])

    everything = np.arange(num_vars)
    repetitions = [product(everything, depth) for _ in range(num_repetitions)]
    # One variable alone is not split, so all repetitions are the same input vector.
    return summate(list(dict.fromkeys(repetitions)), num_nodes=1, block_size=1)


def _product_of_leaves(leaves: list[InputNodes]) -> CircuitNodes:
    return leaves[0] if len(leaves) == 1 else multiply(*leaves)
