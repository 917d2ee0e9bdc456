"""Hidden Markov models as circuits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxjuice import distributions
from jaxjuice.distributions import Distribution
from jaxjuice.nodes import CircuitNodes, EdgeConstructor, SumNodes, inputs, multiply, summate
from jaxjuice.parameterizations import Parameterization
from jaxjuice.structures._arguments import latent_blocks, leaf_family, positive_integer


def HMM(
    seq_length: int,
    num_latents: int,
    num_emits: int,
    homogeneous: bool = True,
    block_size: int | None = None,
    alpha: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    gamma: ArrayLike | None = None,
    sum_edge_ids_constructor: EdgeConstructor | None = None,
    parameterization: Parameterization | None = None,
    *,
    seed: Any = None,
) -> SumNodes:
    """Builds a hidden Markov model with categorical emissions.

    The joint distribution is p(z_0) prod_t p(z_t | z_{t-1}) prod_t p(x_t | z_t), with x_t the
    variable t of the circuit.

    Args:
        seq_length: T, the number of variables.
        num_latents: L, the number of hidden states.
        num_emits: the number of symbols, 0 to num_emits - 1.
        homogeneous: whether all steps share the transition and the emission parameters. If not,
            given parameters are where each step begins.
        block_size: nodes a block, a divisor of `num_latents`; by default all nodes of a vector.
        alpha: transition probabilities `[L, L]`, the row for the state before.
        beta: emission probabilities `[L, num_emits]`.
        gamma: initial probabilities `[L]`.
        sum_edge_ids_constructor: connects the transitions sparsely; it sees blocks, so give a
            `block_size` with it.
        parameterization: of the transitions; see `summate`.
        seed: taken as by the random structures, and without effect: nothing here is random.

    Returns:
        The root, one sum node.

    Raises:
        StructureError: if a number is out of range, or a block size does not divide.
        ParameterError: if given probabilities have another shape or are not probabilities.
    """
    del seed
    call = "HMM(...)"
    num_emits = positive_integer(call, "num_emits", num_emits)
    dist = distributions.Categorical(num_cats=num_emits)
    return _hidden_markov_model(
        call,
        seq_length,
        num_latents,
        homogeneous,
        block_size,
        alpha,
        beta,
        gamma,
        dist,
        sum_edge_ids_constructor,
        parameterization,
    )


def GeneralizedHMM(
    seq_length: int,
    num_latents: int,
    homogeneous: bool = True,
    block_size: int | None = None,
    alpha: ArrayLike | None = None,
    beta: Mapping[str, ArrayLike] | ArrayLike | None = None,
    gamma: ArrayLike | None = None,
    input_dist: Distribution | None = None,
    input_node_type: type[Distribution] | None = None,
    input_node_params: Mapping[str, Any] | None = None,
    sum_edge_ids_constructor: EdgeConstructor | None = None,
    parameterization: Parameterization | None = None,
    *,
    seed: Any = None,
) -> SumNodes:
    """Builds a hidden Markov model with emissions of any family.

    Args:
        seq_length: T, the number of variables.
        num_latents: L, the number of hidden states.
        homogeneous: whether all steps share the transition and the emission parameters. If not,
            given parameters are where each step begins.
        block_size: nodes a block, a divisor of `num_latents`; by default all nodes of a vector.
        alpha: transition probabilities `[L, L]`, the row for the state before.
        beta: emission parameters, as `inputs` takes them: by name `[L, *shape]`, or one array.
        gamma: initial probabilities `[L]`.
        input_dist: the family of the emissions; by default `input_node_type(**input_node_params)`.
        input_node_type: the class of the emissions; by default Categorical.
        input_node_params: its arguments; by default 256 categories.
        sum_edge_ids_constructor: connects the transitions sparsely; it sees blocks, so give a
            `block_size` with it.
        parameterization: of the transitions; see `summate`.
        seed: taken as by the random structures, and without effect: nothing here is random.

    Returns:
        The root, one sum node.

    Raises:
        StructureError: if a number is out of range, or a block size does not divide.
        ParameterError: if given parameters do not fit.
    """
    del seed
    call = "GeneralizedHMM(...)"
    return _hidden_markov_model(
        call,
        seq_length,
        num_latents,
        homogeneous,
        block_size,
        alpha,
        beta,
        gamma,
        leaf_family(call, input_dist, input_node_type, input_node_params),
        sum_edge_ids_constructor,
        parameterization,
    )


def _hidden_markov_model(
    call: str,
    seq_length: int,
    num_latents: int,
    homogeneous: bool,
    block_size: int | None,
    alpha: ArrayLike | None,
    beta: Mapping[str, ArrayLike] | ArrayLike | None,
    gamma: ArrayLike | None,
    dist: Distribution,
    sum_edge_ids_constructor: EdgeConstructor | None,
    parameterization: Parameterization | None,
) -> SumNodes:
    """Both functions above, with errors about sizes that quote `call`."""
    seq_length = positive_integer(call, "seq_length", seq_length)
    num_blocks, block_size = latent_blocks(call, num_latents, block_size)
    # From the last step back: node z of `suffix` is p(x_t, ..., x_{T-1} | z_t = z).
    emission = inputs(seq_length - 1, num_blocks, dist, params=beta, block_size=block_size)
    suffix: CircuitNodes = emission
    transition: SumNodes | None = None
    for step in range(seq_length - 2, -1, -1):
        if transition is None:
            transition = summate(
                suffix,
                num_node_blocks=num_blocks,
                block_size=block_size,
                sum_edge_ids_constructor=sum_edge_ids_constructor,
                params=alpha,
                parameterization=parameterization,
            )
        else:
            transition = transition.duplicate(suffix, tie_params=homogeneous)
        emission = emission.duplicate(step, tie_params=homogeneous)
        suffix = multiply(emission, transition)
    initial = None if gamma is None else np.asarray(gamma).reshape(1, -1)
    return summate(suffix, num_nodes=1, block_size=1, params=initial)
