"""Probabilistic circuits in JAX: `import jaxjuice as juice`."""

from typing import TYPE_CHECKING, Any

from jaxjuice import (
    distributions as distributions,
    io as io,
    optim as optim,
    parameterizations as parameterizations,
    queries as queries,
    structures as structures,
    training as training,
)
from jaxjuice._compiler_options import compiler_options as compiler_options
from jaxjuice._errors import (
    DataError as DataError,
    ModelFileError as ModelFileError,
    ParameterError as ParameterError,
    StructureError as StructureError,
    TrainingError as TrainingError,
)
from jaxjuice._flows import Flows as Flows
from jaxjuice.circuit import Circuit as Circuit, compile as compile
from jaxjuice.io import load as load, save as save
from jaxjuice.nodes import (
    check_decomposable as check_decomposable,
    check_smooth as check_smooth,
    check_structured_decomposable as check_structured_decomposable,
    inputs as inputs,
    is_decomposable as is_decomposable,
    is_smooth as is_smooth,
    is_structured_decomposable as is_structured_decomposable,
    multiply as multiply,
    set_block_size as set_block_size,
    structural_properties as structural_properties,
    summate as summate,
)
from jaxjuice.training import evaluate as evaluate, fit as fit

if TYPE_CHECKING:
    from jaxjuice import nn as nn


def __getattr__(name: str) -> Any:
    """`juice.nn` on first use: it imports flax, which takes as long as all the rest."""
    if name == "nn":
        import importlib

        return importlib.import_module("jaxjuice.nn")
    raise AttributeError(f"module 'jaxjuice' has no attribute {name!r}")
