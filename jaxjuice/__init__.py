"""Probabilistic circuits in JAX: `import jaxjuice as juice`."""

from jaxjuice import distributions as distributions
from jaxjuice import optim as optim
from jaxjuice import queries as queries
from jaxjuice import structures as structures
from jaxjuice import training as training
from jaxjuice._errors import DataError as DataError
from jaxjuice._errors import ModelFileError as ModelFileError
from jaxjuice._errors import ParameterError as ParameterError
from jaxjuice._errors import StructureError as StructureError
from jaxjuice._errors import TrainingError as TrainingError
from jaxjuice._flows import Flows as Flows
from jaxjuice.circuit import Circuit as Circuit
from jaxjuice.circuit import compile as compile
from jaxjuice.nodes import inputs as inputs
from jaxjuice.nodes import multiply as multiply
from jaxjuice.nodes import set_block_size as set_block_size
from jaxjuice.nodes import structural_properties as structural_properties
from jaxjuice.nodes import summate as summate
from jaxjuice.training import evaluate as evaluate
from jaxjuice.training import fit as fit
