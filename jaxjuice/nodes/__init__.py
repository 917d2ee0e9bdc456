"""What a circuit is: a DAG of input, product and sum vectors. No array of jax is made here."""

from jaxjuice.nodes._base import CircuitNodes as CircuitNodes
from jaxjuice.nodes._checks import (
    check_decomposable as check_decomposable,
    check_smooth as check_smooth,
    check_structured_decomposable as check_structured_decomposable,
    is_decomposable as is_decomposable,
    is_smooth as is_smooth,
    is_structured_decomposable as is_structured_decomposable,
)
from jaxjuice.nodes._construction import inputs as inputs, multiply as multiply, summate as summate
from jaxjuice.nodes._edge_constructors import (
    EdgeConstructor as EdgeConstructor,
    block_diagonal_edge_constructor as block_diagonal_edge_constructor,
    block_sparse_rnd_blk_edge_constructor as block_sparse_rnd_blk_edge_constructor,
)
from jaxjuice.nodes._input import InputNodes as InputNodes
from jaxjuice.nodes._product import ProductNodes as ProductNodes
from jaxjuice.nodes._scope import Scope as Scope
from jaxjuice.nodes._settings import (
    set_block_size as set_block_size,
    structural_properties as structural_properties,
)
from jaxjuice.nodes._sum import SumNodes as SumNodes
