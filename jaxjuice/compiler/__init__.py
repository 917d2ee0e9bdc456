"""From a DAG of node vectors to a `Program`. numpy only."""

from jaxjuice.compiler._layout import build_program as build_program
from jaxjuice.compiler._program import (
    LeafLayer as LeafLayer,
    Program as Program,
    Root as Root,
    ScaledUnits as ScaledUnits,
    SlotTable as SlotTable,
    SumGroup as SumGroup,
    SumLayer as SumLayer,
    SumRow as SumRow,
    WeightRows as WeightRows,
    align_columns as align_columns,
)
from jaxjuice.compiler._tables import (
    edges_from_weights as edges_from_weights,
    weights_from_edges as weights_from_edges,
)
