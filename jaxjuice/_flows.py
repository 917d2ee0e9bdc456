"""`Flows`: expected counts of a batch, the pytree that EM optimizers take."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array

from jaxjuice.ops import finite

if TYPE_CHECKING:
    from jaxjuice.compiler import SumGroup
    from jaxjuice.passes import Statistics


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Flows:
    """Expected counts, summed over the samples of a batch. Flows of batches add leaf by leaf.

    Attributes:
        sums: by parameter group, theta * d LL / d theta, in the shape of `params["sums"]`: how
            often each edge is taken.
        inputs: by leaf group, the sufficient statistics of its family, `[P, *stat_shape, K]`.
        weight: the total weight of the samples (their number, where they have no weights).
        denominators: by parameter group, for nodes whose parameterization has
            `apply_z_correction`: the statistic W = sum_b f_b g_b / Z_b of the conditional M-step,
            in the shape of `params["sums"]` (BlockScale: one number for the children in a gate).
            With it, theta * (F+ / theta - W) is theta * d LL / d theta. Where nothing is scaled, W
            is the flow of the node.
    """

    sums: dict[str, Array]
    inputs: dict[str, dict[str, Array]]
    weight: Array
    denominators: dict[str, Array] = field(default_factory=dict)


def sum_flows(
    groups: "Mapping[str, SumGroup]",
    theta: dict[str, Array],
    plain: dict[str, Array],
    scaled: "dict[str, Statistics]",
) -> tuple[dict[str, Array], dict[str, Array]]:
    """`Flows.sums` and `Flows.denominators`.

    Args:
        groups: of the circuit.
        theta: the weights by group.
        plain, scaled: the flows of layers that ran as plain sums, and the statistics of scaled
            ones, by group; a group may have layers of both kinds.
    """
    sums, denominators = {}, {}
    for name, group in groups.items():
        weights = theta[name]
        flows = plain[name] if name in plain else jnp.zeros_like(weights)
        # Copies that are not scaled have Z = g = 1: W counts the flows of their nodes.
        node_flows = flows.sum(-1)
        shape = group.denominator_shape
        if name in scaled:
            # A weight of 0 far above the node's own children may have an infinite statistic.
            flows = flows + weights * finite(scaled[name].plus)
            node_flows = node_flows + scaled[name].unscaled
        if shape is not None:
            denominator = jnp.broadcast_to(node_flows[..., None], shape)
            if name in scaled:
                denominator = denominator + scaled[name].minus
            denominators[name] = denominator
        sums[name] = flows
    return sums, denominators
