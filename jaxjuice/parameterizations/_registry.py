"""The parameterizations by name, for reading circuits from files."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxjuice._errors import StructureError
from jaxjuice.parameterizations._base import Parameterization
from jaxjuice.parameterizations._block_scale import BlockScale
from jaxjuice.parameterizations._low_rank import LowRank

_KINDS: dict[str, type[Parameterization]] = {kind.__name__: kind for kind in (BlockScale, LowRank)}


def register(kind: type[Parameterization]) -> type[Parameterization]:
    """Makes a parameterization of your own loadable. Usable as a class decorator.

    Args:
        kind: a dataclass whose fields JSON can hold; its `__name__` is the name that files carry.

    Raises:
        StructureError: if it is no dataclass, or another class has that name.
    """
    if not dataclasses.is_dataclass(kind):
        raise StructureError(
            f"register({kind.__name__}): files keep the fields of a parameterization, so it must "
            "be a dataclass."
        )
    known = _KINDS.setdefault(kind.__name__, kind)
    if known is not kind:
        raise StructureError(
            f"register({kind.__name__}): the name is taken by "
            f"{known.__module__}.{known.__name__}; rename your class."
        )
    return kind


def to_config(parameterization: Parameterization) -> dict[str, Any]:
    """A dict that JSON can hold, and from which `from_config` makes an equal one.

    Raises:
        StructureError: if its class is not registered.
    """
    kind = type(parameterization)
    if _KINDS.get(kind.__name__) is not kind:
        raise StructureError(
            f"{parameterization!r} could not be loaded again: register it by "
            f"jaxjuice.parameterizations.register({kind.__name__})."
        )
    return {"kind": kind.__name__, **dataclasses.asdict(parameterization)}  # pyright: ignore


def from_config(config: Mapping[str, Any]) -> Parameterization:
    """Makes a parameterization from what `to_config` returned.

    Raises:
        StructureError: if its kind is not registered, or the fields do not fit.
    """
    fields = dict(config)
    name = fields.pop("kind", None)
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise StructureError(
            f"from_config got the parameterization {name!r}, and knows {sorted(_KINDS)}; one of "
            "your own needs jaxjuice.parameterizations.register first."
        )
    try:
        return kind(**fields)
    except TypeError as error:
        raise StructureError(f"from_config: {config!r} does not fit {name}: {error}.") from None
