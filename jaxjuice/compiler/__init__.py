"""From a DAG of node vectors to a `Program`. numpy only."""

from jaxjuice.compiler._layout import build_program as build_program
from jaxjuice.compiler._layout import edges_from_weights as edges_from_weights
from jaxjuice.compiler._layout import weights_from_edges as weights_from_edges
from jaxjuice.compiler._program import LeafLayer as LeafLayer
from jaxjuice.compiler._program import Program as Program
from jaxjuice.compiler._program import Root as Root
from jaxjuice.compiler._program import SlotTable as SlotTable
from jaxjuice.compiler._program import SumGroup as SumGroup
from jaxjuice.compiler._program import SumLayer as SumLayer
from jaxjuice.compiler._program import SumRow as SumRow
from jaxjuice.compiler._program import WeightRows as WeightRows
