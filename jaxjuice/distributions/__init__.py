"""Families of leaves: one file each, all with the interface of `Distribution`."""

from jaxjuice.distributions._base import (
    Distribution as Distribution,
    FixedDistribution as FixedDistribution,
    LeafGroup as LeafGroup,
)
from jaxjuice.distributions._bernoulli import Bernoulli as Bernoulli
from jaxjuice.distributions._binomial import Binomial as Binomial
from jaxjuice.distributions._categorical import Categorical as Categorical
from jaxjuice.distributions._discrete_logistic import DiscreteLogistic as DiscreteLogistic
from jaxjuice.distributions._external import External as External
from jaxjuice.distributions._gaussian import Gaussian as Gaussian
from jaxjuice.distributions._indicator import Indicator as Indicator
from jaxjuice.distributions._literal import Literal as Literal
from jaxjuice.distributions._masked_categorical import MaskedCategorical as MaskedCategorical
from jaxjuice.distributions._poisson import Poisson as Poisson
from jaxjuice.distributions._registry import from_config as from_config, register as register
