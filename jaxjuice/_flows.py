"""`Flows`: expected counts of a batch, the pytree that EM optimizers take."""

from dataclasses import dataclass

import jax
from jax import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Flows:
    """Expected counts, summed over the samples of a batch. Flows of batches add leaf by leaf.

    Attributes:
        sums: by parameter group, theta * d LL / d theta, in the shape of `params["sums"]`: how
            often each edge is taken.
        inputs: by leaf group, the sufficient statistics of its family, `[P, *stat_shape, K]`.
        weight: the total weight of the samples (their number, where they have no weights).
    """

    sums: dict[str, Array]
    inputs: dict[str, dict[str, Array]]
    weight: Array
