"""Log-space primitives on arrays. They know no nodes."""

from jaxjuice.ops._precision import (
    DENSE_CHILD_VALUES as DENSE_CHILD_VALUES,
    DENSE_NODES as DENSE_NODES,
    PRECISIONS as PRECISIONS,
    Role as Role,
    algorithm as algorithm,
    canonical_precision as canonical_precision,
    dot as dot,
    is_dense as is_dense,
)
from jaxjuice.ops._slots import (
    match_varying as match_varying,
    read_runs as read_runs,
    read_scales as read_scales,
    varying_axes as varying_axes,
    write_slots as write_slots,
)
from jaxjuice.ops._sum_layer import (
    LL as LL,
    Propagation as Propagation,
    choose_children as choose_children,
    exponentiate as exponentiate,
    flow_ratio as flow_ratio,
    sum_layer_backward as sum_layer_backward,
    sum_layer_forward as sum_layer_forward,
    sum_layer_weight_gradient as sum_layer_weight_gradient,
)
