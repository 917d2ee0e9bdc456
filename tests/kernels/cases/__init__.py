"""The cases of every kernel: random problems and their answers in float64."""

from tests.kernels.cases._base import Case as Case
from tests.kernels.cases._blocks import (
    element_flows as element_flows,
    forward as forward,
    weight_gradient as weight_gradient,
)
from tests.kernels.cases._children import (
    exponentiate as exponentiate,
    exponentiate_apart as exponentiate_apart,
    scale_flows as scale_flows,
)
from tests.kernels.cases._dense import (
    dense_backward as dense_backward,
    dense_forward as dense_forward,
    dense_gradient as dense_gradient,
    split as split,
    transpose as transpose,
)
from tests.kernels.cases._flows import (
    empty as empty,
    flow_ratio as flow_ratio,
    leaf_counts as leaf_counts,
)
