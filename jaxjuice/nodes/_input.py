"""Input vectors: univariate densities of one family over one variable."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from jaxjuice._errors import ParameterError, StructureError
from jaxjuice.distributions import Distribution
from jaxjuice.nodes._base import CallOn, CircuitNodes
from jaxjuice.nodes._edges import as_float_array, frozen
from jaxjuice.nodes._scope import Scope


class InputNodes(CircuitNodes):
    """A vector of input nodes over one variable. Build it with `inputs`.

    Attributes:
        var: the variable id.
        dist: the family of the densities.
        constants: what the family needs per node and does not train, each `[num_nodes, *shape]`,
            read-only; a tied vector has its source's.
    """

    source: InputNodes | None

    def __init__(
        self,
        var: int,
        num_node_blocks: int,
        block_size: int,
        dist: Distribution,
        *,
        params: Mapping[str, ArrayLike] | ArrayLike | None = None,
        constants: Mapping[str, ArrayLike] | None = None,
        source: InputNodes | None = None,
        call: object = "inputs(...)",
    ) -> None:
        self.var = var
        self.dist = dist
        self._params: dict[str, np.ndarray] | None = None
        super().__init__((), num_node_blocks, block_size, Scope([var]), source)
        if self.source is not None:
            _check_source(call, self, self.source)
            if params is not None or constants:
                raise ParameterError(
                    f"{call}: a tied vector takes its parameters and constants from its source "
                    f"{self.source!r}; set them there."
                )
            self.constants = self.source.constants
            return
        try:
            given = params if isinstance(params, Mapping) else None
            checked = dist.check_constants(self.num_nodes, constants or {}, given)
        except ParameterError as error:
            raise ParameterError(f"{call}: {error}") from None
        self.constants = {name: frozen(array) for name, array in checked.items()}
        if params is not None:
            self.set_params(params)

    def get_source(self) -> InputNodes:
        return self if self.source is None else self.source

    @property
    def params(self) -> dict[str, np.ndarray] | None:
        """The parameters by name, each `[num_nodes, *shape]`, read-only.

        None if they are not set (then `Circuit.init` draws them) or if the vector is tied (then its
        source has them).
        """
        return None if self.is_tied else self._params

    def has_params(self) -> bool:
        """Tells whether the parameters (of the source, if tied) are set."""
        return self.get_source()._params is not None

    def set_params(self, params: Mapping[str, ArrayLike] | ArrayLike | None) -> None:
        """Sets the parameters; those of the source if this vector is tied. Call it before
        `compile`.

        Args:
            params: by name, each `[num_nodes, *shape]` (shapes from `dist.param_shapes()`); or one
                array with the numbers of a node side by side, in the order of the names; or None to
                unset them.

        Raises:
            ParameterError: if names or shapes do not fit, or the family refuses the values.
        """
        if self.source is not None:
            self.source.set_params(params)
            return
        if params is None:
            self._params = None
            return
        call = CallOn("set_params", self)
        try:
            named = (
                params
                if isinstance(params, Mapping)
                else self.dist.params_from_array(np.asarray(params), self.num_nodes)
            )
            arrays = {name: as_float_array(call, array) for name, array in named.items()}
            for name, array in arrays.items():
                if array.shape[:1] != (self.num_nodes,):
                    raise ParameterError(
                        f"`{name}` has the shape {array.shape}, not {self.num_nodes} rows."
                    )
            checked = self.dist.check_params(arrays, self.constants)
        except ParameterError as error:
            raise ParameterError(f"{call}: {error}") from None
        self._params = {name: frozen(array) for name, array in checked.items()}

    def num_own_parameters(self) -> int:
        if self.is_tied:
            return 0
        return self.num_nodes * sum(math.prod(shape) for shape in self.dist.param_shapes().values())

    def duplicate(self, var: int | None = None, tie_params: bool = False) -> InputNodes:
        """Returns a copy of this vector over another variable.

        Args:
            var: the variable id; None for the same.
            tie_params: whether the copy shares the parameters of this vector (of its source, if it
                is tied itself) or has its own, which begin as a copy.
        """
        call = CallOn("duplicate", self)
        var = self.var if var is None else check_variable(call, var)
        if tie_params:
            return InputNodes(
                var, self.num_node_blocks, self.block_size, self.dist, source=self, call=call
            )
        copy = InputNodes(
            var,
            self.num_node_blocks,
            self.block_size,
            self.dist,
            constants=self.constants,
            call=call,
        )
        copy._params = self.get_source()._params
        return copy

    def __repr__(self) -> str:
        tied = ", tied" if self.is_tied else ""
        return (
            f"InputNodes(num_nodes={self.num_nodes}, block_size={self.block_size}, "
            f"dist={self.dist!r}, scope={self.scope}{tied})"
        )


def check_variable(call: object, var: object) -> int:
    """Reads a variable id: an integer >= 0, or a sequence with one of them."""
    if not isinstance(var, (str, bytes)) and hasattr(var, "__len__"):
        ids = list(var)  # pyright: ignore[reportArgumentType]
        if len(ids) != 1:
            raise StructureError(f"{call}: variables {ids} came, and an input has exactly one.")
        var = ids[0]
    if isinstance(var, bool) or not hasattr(var, "__index__") or int(var) < 0:  # pyright: ignore
        raise StructureError(f"{call}: the variable {var!r} is not an integer >= 0.")
    return int(var)  # pyright: ignore[reportArgumentType]


def _check_source(call: object, ns: InputNodes, source: InputNodes) -> None:
    if not isinstance(source, InputNodes):
        raise StructureError(f"{call}: the parameters of {ns!r} cannot be tied to {source!r}.")
    if (ns.num_node_blocks, ns.block_size, ns.dist) != (
        source.num_node_blocks,
        source.block_size,
        source.dist,
    ):
        raise StructureError(
            f"{call}: {ns!r} cannot be tied to {source!r}, as their sizes or families differ."
        )
