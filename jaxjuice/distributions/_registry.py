"""The families by name, for reading circuits from files."""

from collections.abc import Mapping
from typing import Any

from jaxjuice._errors import StructureError
from jaxjuice.distributions._base import Distribution
from jaxjuice.distributions._bernoulli import Bernoulli
from jaxjuice.distributions._binomial import Binomial
from jaxjuice.distributions._categorical import Categorical
from jaxjuice.distributions._discrete_logistic import DiscreteLogistic
from jaxjuice.distributions._external import External
from jaxjuice.distributions._gaussian import Gaussian
from jaxjuice.distributions._indicator import Indicator
from jaxjuice.distributions._literal import Literal
from jaxjuice.distributions._masked_categorical import MaskedCategorical
from jaxjuice.distributions._poisson import Poisson

_FAMILIES: dict[str, type[Distribution]] = {
    family.__name__: family
    for family in (
        Bernoulli,
        Binomial,
        Categorical,
        DiscreteLogistic,
        External,
        Gaussian,
        Indicator,
        Literal,
        MaskedCategorical,
        Poisson,
    )
}


def register(family: type[Distribution]) -> type[Distribution]:
    """Makes a family of your own readable by `from_config`. Usable as a class decorator.

    Args:
        family: the class; its `__name__` is the name that files carry.

    Raises:
        StructureError: if another class has that name.
    """
    known = _FAMILIES.setdefault(family.__name__, family)
    if known is not family:
        raise StructureError(
            f"register({family.__name__}): the name is taken by "
            f"{known.__module__}.{known.__name__}; rename your class."
        )
    return family


def from_config(config: Mapping[str, Any]) -> Distribution:
    """Makes a family from what its `to_config` returned.

    Args:
        config: the dict, with the class name under "family".

    Raises:
        StructureError: if no family of that name is registered, or the fields do not fit.
    """
    name = config.get("family")
    family = _FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise StructureError(
            f"from_config got the family {name!r}, and knows {sorted(_FAMILIES)}; a family of "
            f"your own needs jaxjuice.distributions.register first."
        )
    return family.from_config(config)
