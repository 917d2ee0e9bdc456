"""Sum layers on arrays of slots, fused: children are read, and flows pulled, where they lie.

Every function runs as a Triton kernel on NVIDIA GPUs and as plain JAX elsewhere
(`implementation="triton"`), or as plain JAX everywhere ("xla"). Letters as in `jaxjuice.ops`: B
samples, units of M nodes in `blocks` blocks, elements of `width` product nodes. float32 alone.

Arrays that a function returns a new version of (`values`, `flows`, `p`, `shifts`, `kept`) are
written in place where the caller does not use the old one again.
"""

from jaxjuice.ops.kernels import _reference as reference
from jaxjuice.ops.kernels._arrays import empty as empty, transpose as transpose
from jaxjuice.ops.kernels._blocks import (
    element_flows as element_flows,
    forward as forward,
    weight_gradient as weight_gradient,
)
from jaxjuice.ops.kernels._dense import (
    dense_backward as dense_backward,
    dense_forward as dense_forward,
    dense_gradient as dense_gradient,
    gradient_by_xla as gradient_by_xla,
)
from jaxjuice.ops.kernels._elements import (
    exponentiate as exponentiate,
    exponentiate_apart as exponentiate_apart,
    scale_flows as scale_flows,
)
from jaxjuice.ops.kernels._flows import (
    flow_ratio as flow_ratio,
    keeps_apart as keeps_apart,
    leaf_counts as leaf_counts,
)
from jaxjuice.ops.kernels._launch import (
    KernelWarning as KernelWarning,
    available as available,
    dispatch as dispatch,
    num_devices as num_devices,
)
from jaxjuice.ops.kernels._parts import (
    in_parts as in_parts,
    products as products,
    split as split,
    splits_where_read as splits_where_read,
    stored_parts as stored_parts,
)
from jaxjuice.ops.kernels._units import Units as Units

read = reference.read
