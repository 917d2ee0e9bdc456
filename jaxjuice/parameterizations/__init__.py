"""Per-sample parameters of sum nodes, from tensors that come with each call.

    ns = juice.summate(..., parameterization=juice.parameterizations.LowRank(rank=8))
    lls = pc.log_likelihood(params, x, external_params={ns: (a, b)})

A node i of sample b then has the weights theta_b[i, j] = theta[i, j] g_b[i, j] / Z_b[i], where the
scale g_b is made of the tensors, and Z_b[i] = sum_j theta[i, j] g_b[i, j] over the children of i. A
vector without tensors in a call is a plain sum in that call.
"""

from jaxjuice.parameterizations._base import Parameterization as Parameterization
from jaxjuice.parameterizations._block_scale import BlockScale as BlockScale
from jaxjuice.parameterizations._low_rank import LowRank as LowRank
from jaxjuice.parameterizations._registry import (
    from_config as from_config,
    register as register,
    to_config as to_config,
)
