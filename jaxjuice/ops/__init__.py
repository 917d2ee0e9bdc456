"""Log-space primitives on arrays. They know no nodes."""

from jaxjuice.ops._precision import PRECISIONS as PRECISIONS
from jaxjuice.ops._precision import canonical_precision as canonical_precision
from jaxjuice.ops._precision import dot as dot
from jaxjuice.ops._slots import match_varying as match_varying
from jaxjuice.ops._slots import read_runs as read_runs
from jaxjuice.ops._slots import read_scales as read_scales
from jaxjuice.ops._slots import varying_axes as varying_axes
from jaxjuice.ops._slots import write_slots as write_slots
from jaxjuice.ops._sum_layer import LL as LL
from jaxjuice.ops._sum_layer import Propagation as Propagation
from jaxjuice.ops._sum_layer import exponentiate as exponentiate
from jaxjuice.ops._sum_layer import flow_ratio as flow_ratio
from jaxjuice.ops._sum_layer import sum_layer_backward as sum_layer_backward
from jaxjuice.ops._sum_layer import sum_layer_forward as sum_layer_forward
from jaxjuice.ops._sum_layer import sum_layer_weight_gradient as sum_layer_weight_gradient
