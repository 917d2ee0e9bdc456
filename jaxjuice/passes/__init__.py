"""Walks over a `Program`: values bottom-up, flows top-down. Pure functions of arrays."""

from jaxjuice.passes._fused import is_fusable as is_fusable
from jaxjuice.passes._gradient import (
    root_values as root_values,
    root_values_and_flows as root_values_and_flows,
)
from jaxjuice.passes._lookup import (
    Lookup as Lookup,
    LookupFlows as LookupFlows,
    can_look_up as can_look_up,
)
from jaxjuice.passes._plan import (
    LayerPlan as LayerPlan,
    Plan as Plan,
    describe_path as describe_path,
    make_plan as make_plan,
)
from jaxjuice.passes._scaled import Statistics as Statistics
from jaxjuice.passes._top_down import top_down as top_down
from jaxjuice.passes._walk import LayerScale as LayerScale, Walk as Walk
