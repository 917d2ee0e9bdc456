"""Log-space primitives on arrays. They know no nodes."""

from jaxjuice.ops._precision import (
    PRECISIONS as PRECISIONS,
    Role as Role,
    algorithm as algorithm,
    canonical_precision as canonical_precision,
    dot as dot,
)
from jaxjuice.ops._scaled_layer import (
    ScaledGradients as ScaledGradients,
    ScaledSums as ScaledSums,
    scaled_backward as scaled_backward,
    scaled_forward as scaled_forward,
)
from jaxjuice.ops._scaled_mixture import (
    mixture_backward as mixture_backward,
    mixture_forward as mixture_forward,
)
from jaxjuice.ops._slots import (
    match_varying as match_varying,
    read_runs as read_runs,
    read_scales as read_scales,
    varying_axes as varying_axes,
    write_slots as write_slots,
)
from jaxjuice.ops._sum_layer import (
    DENSE_CHILD_VALUES as DENSE_CHILD_VALUES,
    DENSE_NODES as DENSE_NODES,
    LL as LL,
    Propagation as Propagation,
    add_selected as add_selected,
    block_shifts as block_shifts,
    choose_children as choose_children,
    exponentiate as exponentiate,
    exponentiate_elements as exponentiate_elements,
    finite as finite,
    flow_ratio as flow_ratio,
    flows_back as flows_back,
    is_dense as is_dense,
    select_elements as select_elements,
    shared_elements_backward as shared_elements_backward,
    sum_layer_backward as sum_layer_backward,
    sum_layer_forward as sum_layer_forward,
    sum_layer_weight_gradient as sum_layer_weight_gradient,
)
