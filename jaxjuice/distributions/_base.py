"""What every family of leaves is: `Distribution`, and the arrays it works on, `LeafGroup`."""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxjuice._errors import ParameterError, StructureError
from jaxjuice.distributions._types import (
    CategoryTable,
    Constants,
    LeafArrays,
    LeafFlows,
    Legal,
    LogProbs,
    NodeIndices,
    Observations,
    ParamIds,
    Scalar,
    WholeNumbers,
)


class LeafGroup(NamedTuple):
    """The arrays of all leaves of one family and one width K. A pytree.

    Attributes:
        params: parameters by name, `[P, *param_shape, K]`, float32 or float64, in probability
        space.
        constants: constants by name, `[P, *constant_shape, K]`.
        param_ids: int32 `[V]`, the parameter set of every leaf, or None where leaf v has set v.
    """

    params: LeafArrays
    constants: Constants
    param_ids: ParamIds | None = None

    @property
    def num_params(self) -> int:
        """P, the number of distinct parameter sets."""
        return self._any_array().shape[0]

    @property
    def num_nodes(self) -> int:
        """K, the number of nodes of every leaf."""
        return self._any_array().shape[-1]

    def _any_array(self) -> Array:
        for array in (*self.params.values(), *self.constants.values()):
            return array
        raise ValueError("LeafGroup has neither parameters nor constants, so no number of nodes.")

    def spread(self, array: Array) -> Array:
        """Gives every leaf the entry of its parameter set: `[P, ...]` to `[V, ...]`."""
        return array if self.param_ids is None else array[self.param_ids]

    def pool(self, array: Array) -> Array:
        """Adds up what belongs to one parameter set: `[V, ...]` to `[P, ...]`."""
        if self.param_ids is None:
            return array
        return jax.ops.segment_sum(array, self.param_ids, num_segments=self.num_params)

    def at_nodes(self, array: Array, nodes: NodeIndices) -> Array:
        """Picks the entries of chosen nodes: `[P, K]` at `nodes [V, B]` is `[V, B]`."""
        num_leaves = nodes.shape[0]
        ids = jnp.arange(num_leaves, dtype=jnp.int32) if self.param_ids is None else self.param_ids
        return array[ids[:, None], nodes]


@dataclasses.dataclass(frozen=True)
class Distribution(abc.ABC):
    """A family of leaves, for example all categorical distributions over ten categories.

    An instance holds what is the same for all leaves of a group and known before compilation (the
    number of categories, a floor for sigma), and no arrays: it is frozen, hashable, and equal to
    every instance with the same fields. Leaves with equal instances and equally many nodes are
    computed together, on the arrays of a `LeafGroup`.

    **Your own family** is one new class:

    1. Derive a `@dataclasses.dataclass(frozen=True)` from `Distribution` whose fields are numbers,
       strings or tuples of them.
    2. Say which parameters a node has and which statistics the M-step needs, in `param_shapes` and
       `stat_shapes` (and `constant_shapes`, for what a node is given and never learns).
    3. Write `init_params`, `log_prob`, `statistics`, `expected_statistics`, `m_step`, `sample`,
       `mode`, `validate`, `to_unconstrained`, `from_unconstrained` and `is_discrete`. They must be
       traceable by JAX (all but `validate`, `check_params` and `check_constants`, which run on the
       host), keep the dtype of the parameters, and obey the rules in their docstrings. A family
       that learns nothing derives from `FixedDistribution` and writes five methods.
    4. Use it: `inputs(0, num_nodes=8, dist=MyFamily(...))`. To save circuits that hold it, register
       it: `jaxjuice.distributions.register(MyFamily)` (families of this package have a line in
       `_registry.py`).

    `leaf.spread` and `leaf.pool` do what tied leaves need: the one hands parameters to leaves, the
    other adds the statistics of all leaves with one parameter set. `tests/distributions` holds a
    suite that takes any family.
    """

    is_external: ClassVar[bool] = False
    """True where the log-densities come with every call, in place of the data."""

    @property
    @abc.abstractmethod
    def is_discrete(self) -> bool:
        """Whether values are whole numbers, so that `log_prob` is the log of a probability."""

    # ------------------------------------------------------------------------- shapes, on the host

    @abc.abstractmethod
    def param_shapes(self) -> dict[str, tuple[int, ...]]:
        """The parameters of one node by name, with their shapes; `{}` where there are none."""

    def constant_shapes(self) -> dict[str, tuple[int, ...]]:
        """The constants of one node by name, with their shapes; `{}` where there are none."""
        return {}

    @abc.abstractmethod
    def stat_shapes(self) -> dict[str, tuple[int, ...]]:
        """The sufficient statistics of one node by name, with their shapes."""

    @property
    def num_parameters(self) -> int:
        """How many numbers parameterize one node."""
        return sum(math.prod(shape) for shape in self.param_shapes().values())

    def check_params(
        self, params: Mapping[str, np.ndarray], constants: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Checks the parameters that a user gives, and normalizes them. Runs on the host.

        Args:
            params: by name, `[num_nodes, *param_shape]`.
            constants: what `check_constants` returned.

        Returns:
            The same names and shapes, float64.

        Raises:
            ParameterError: if a name is missing or unknown, a shape is wrong, or a value illegal.
        """
        arrays = check_arrays(self, "parameter", params, self.param_shapes())
        return self._check_values(arrays, constants)

    def _check_values(
        self, params: dict[str, np.ndarray], constants: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """`check_params` once names, shapes and finiteness are checked; families override it."""
        del constants
        return params

    def check_constants(
        self, num_nodes: int, constants: Mapping[str, Any], params: Mapping[str, Any] | None = None
    ) -> dict[str, np.ndarray]:
        """Checks the constants that a user gives, and fills in the rest. Runs on the host.

        Args:
            num_nodes: how many nodes the vector has.
            constants: keyword arguments of `inputs` by name: scalars, `[*constant_shape]` for all
                nodes, or `[num_nodes, *constant_shape]`.
            params: the parameters given by the user, if any; some families derive defaults from
            them.

        Returns:
            All of `constant_shapes()`, as `[num_nodes, *constant_shape]`.

        Raises:
            ParameterError: if a name is missing or unknown, a shape is wrong, or a value illegal.
        """
        del params
        given = {
            name: broadcast_to_nodes(self, name, value, num_nodes, self.constant_shapes())
            for name, value in constants.items()
        }
        return check_arrays(self, "constant", given, self.constant_shapes(), keep_dtype=True)

    def params_from_array(self, array: Any, num_nodes: int) -> dict[str, np.ndarray]:
        """Reads parameters given as one array.

        Args:
            array: `[num_nodes, *param_shape]` where the family has one parameter, or any shape with
                `num_nodes * num_parameters` entries, the numbers of a node side by side and in the
                order of `param_shapes()` (PyJuice's layout).
            num_nodes: how many nodes the vector has.

        Returns:
            By name, `[num_nodes, *param_shape]`; values are not checked.

        Raises:
            ParameterError: if the number of entries does not fit.
        """
        values = np.asarray(array)
        if values.size != num_nodes * self.num_parameters:
            raise ParameterError(
                f"params of {num_nodes} nodes of {self} came as an array of shape {values.shape}, "
                f"and {num_nodes * self.num_parameters} numbers are wanted "
                f"({self.num_parameters} a node)."
            )
        flat = values.reshape(num_nodes, self.num_parameters)
        params, start = {}, 0
        for name, shape in self.param_shapes().items():
            size = math.prod(shape)
            params[name] = flat[:, start : start + size].reshape(num_nodes, *shape)
            start += size
        return params

    @abc.abstractmethod
    def validate(self, column: np.ndarray) -> str | None:
        """Looks for values that the family does not take. Runs on the host.

        Args:
            column: observed values of one variable, any shape and numeric dtype.

        Returns:
            None if all is well, else the core of a sentence about the column: "holds 7.5, and a
            Categorical(num_cats=10) takes whole numbers from 0 to 9".
        """

    # ------------------------------------------------------------------------ arrays, traced by JAX

    @abc.abstractmethod
    def init_params(
        self,
        key: PRNGKeyArray,
        constants: Constants,
        num_params: int,
        num_nodes: int,
        perturbation: Scalar,
        dtype: Any,
    ) -> LeafArrays:
        """Draws parameters, `[num_params, *param_shape, num_nodes]` each.

        Args:
            key: a JAX key.
            constants: `[num_params, *constant_shape, num_nodes]` by name.
            num_params: P.
            num_nodes: K.
            perturbation: how far the nodes are apart: 0 makes them (nearly) equal.
            dtype: float32 or float64.
        """

    @abc.abstractmethod
    def log_prob(self, leaf: LeafGroup, x: Observations) -> LogProbs:
        """The log-density (or log-probability) of every sample under every node.

        Differentiable in the parameters, and in `x` where that is continuous. A value that the
        family does not take (out of range, not whole, NaN) gives NaN in its own entries and nowhere
        else. Where the result is -inf, a zero cotangent gives a zero gradient.

        Args:
            leaf: the leaves.
            x: their variables, any numeric dtype.

        Returns:
            `[V, B, K]` in the dtype of the parameters (families without parameters: JAX's default).
        """

    def lookup(
        self, leaf: LeafGroup, x: Observations
    ) -> tuple[CategoryTable, WholeNumbers, Legal] | None:
        """The probability of every sample as a row of a table, where the family is one.

        A family that returns a table must have the one statistic "counts" of shape `[C]`, the flow
        of every category. GPUs then read the rows where sums need them, in place of `log_prob`, and
        count flows where these lie, in place of `statistics`.

        Args:
            leaf: the leaves.
            x: their variables, any numeric dtype.

        Returns:
            Probabilities `[P, C, K]`, the category of every sample, int32 `[V, B]` below C, and
            whether it is legal, bool `[V, B]`; or None.
        """
        del leaf, x
        return None

    @abc.abstractmethod
    def statistics(self, leaf: LeafGroup, x: Observations, flows: LeafFlows) -> LeafArrays:
        """The sufficient statistics of weighted samples.

        Linear in `flows`, and free of the parameters' values, so that statistics of different
        batches and training steps may be added and averaged. A zero flow contributes exactly 0,
        whatever the value; so does a value that the family does not take.

        Args:
            leaf: the leaves.
            x: their variables, any numeric dtype.
            flows: the weight of each sample at each node, `[V, B, K]`.

        Returns:
            `[P, *stat_shape, K]` by name, summed over samples and over leaves with one parameter
            set.
        """

    @abc.abstractmethod
    def expected_statistics(self, leaf: LeafGroup) -> LeafArrays:
        """The statistics that one visit brings on average under the current parameters.

        A missing value with flow f adds f times these: the exact E-step. They are a fixed point of
        the M-step: `m_step(leaf, expected_statistics(leaf), step_size=1, pseudocount=0)` gives the
        parameters back.

        Returns:
            `[P, *stat_shape, K]` by name.
        """

    @abc.abstractmethod
    def m_step(
        self,
        leaf: LeafGroup,
        stats: LeafArrays,
        *,
        step_size: Scalar,
        pseudocount: Scalar,
        keep_zero_params: bool = False,
    ) -> LeafArrays:
        """New parameters from statistics.

        Args:
            leaf: the leaves with their current parameters.
            stats: `[P, *stat_shape, K]` by name.
            step_size: 1 replaces the parameters, 0 keeps them; between, the expected statistics
                (mean parameters) of old and new are mixed.
            pseudocount: prior mass per node, where the family knows a prior.
            keep_zero_params: whether probabilities that are exactly 0 stay 0.

        Returns:
            `[P, *param_shape, K]` by name. A node without flow and pseudocount keeps its parameters
            bit for bit.
        """

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        """Draws a value from node `nodes[v, b]` of leaf v; int32 where the family is discrete."""

    @abc.abstractmethod
    def mode(self, leaf: LeafGroup, nodes: NodeIndices) -> Observations:
        """The most probable value of node `nodes[v, b]` of leaf v, the lowest where several tie."""

    @abc.abstractmethod
    def to_unconstrained(self, params: LeafArrays, constants: Constants) -> LeafArrays:
        """Maps parameters to numbers that a gradient step may change freely, by the same names."""

    @abc.abstractmethod
    def from_unconstrained(self, raw: LeafArrays, constants: Constants) -> LeafArrays:
        """The inverse of `to_unconstrained`; every value gives legal parameters."""

    # --------------------------------------------------------------------------------------- config

    def to_config(self) -> dict[str, Any]:
        """The family as a dict that JSON can hold: its class name and its fields."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        listed = {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}
        return {"family": type(self).__name__, **listed}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Distribution":
        """Makes an instance of this class from `to_config`'s dict.

        Raises:
            StructureError: if the dict is of another family, or its fields are not this family's.
        """
        fields = dict(config)
        family = fields.pop("family", None)
        known = dataclasses.fields(cls)
        names = {field.name for field in known}
        required = {field.name for field in known if field.default is dataclasses.MISSING}
        if family != cls.__name__ or not required <= fields.keys() <= names:
            raise StructureError(
                f"{cls.__name__}.from_config got {dict(config)}, and wants the family "
                f"'{cls.__name__}' with the fields {sorted(names)} (of which {sorted(required)} "
                f"have no default)."
            )
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})


@dataclasses.dataclass(frozen=True)
class FixedDistribution(Distribution):
    """A family that learns nothing: no parameters, no statistics."""

    def param_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def stat_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def init_params(
        self,
        key: PRNGKeyArray,
        constants: Constants,
        num_params: int,
        num_nodes: int,
        perturbation: Scalar,
        dtype: Any,
    ) -> LeafArrays:
        return {}

    def statistics(self, leaf: LeafGroup, x: Observations, flows: LeafFlows) -> LeafArrays:
        return {}

    def expected_statistics(self, leaf: LeafGroup) -> LeafArrays:
        return {}

    def m_step(
        self,
        leaf: LeafGroup,
        stats: LeafArrays,
        *,
        step_size: Scalar,
        pseudocount: Scalar,
        keep_zero_params: bool = False,
    ) -> LeafArrays:
        return {}

    def to_unconstrained(self, params: LeafArrays, constants: Constants) -> LeafArrays:
        return {}

    def from_unconstrained(self, raw: LeafArrays, constants: Constants) -> LeafArrays:
        return {}


def check_arrays(
    dist: Distribution,
    kind: str,
    arrays: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    keep_dtype: bool = False,
) -> dict[str, np.ndarray]:
    """Checks names, shapes `[num_nodes, *shape]` and finiteness of a node vector's arrays.

    Args:
        dist: the family, for messages.
        kind: "parameter" or "constant", for messages.
        arrays: what was given, by name.
        shapes: the shape of one node's array, by name.
        keep_dtype: leave the dtype as it came; else cast to float64.

    Raises:
        ParameterError: naming the family, the array, what came and what is wanted.
    """
    if set(arrays) != set(shapes):
        raise ParameterError(
            f"The {kind}s of {dist} came as {sorted(arrays)}, and {sorted(shapes)} are wanted."
        )
    checked: dict[str, np.ndarray] = {}
    num_nodes = None
    for name, shape in shapes.items():
        array = np.asarray(arrays[name])
        if array.dtype.kind not in "biuf":
            raise ParameterError(
                f"The {kind} '{name}' of {dist} has dtype {array.dtype}, and numbers are wanted."
            )
        num_nodes = array.shape[:1] if num_nodes is None else num_nodes
        if array.ndim == 0 or array.shape != (*num_nodes, *shape):
            wanted = ", ".join(["num_nodes", *map(str, shape)])
            raise ParameterError(
                f"The {kind} '{name}' of {dist} has shape {array.shape}, and [{wanted}] is wanted, "
                f"with one num_nodes for all {kind}s."
            )
        if not np.all(np.isfinite(array)):
            raise ParameterError(
                f"The {kind} '{name}' of {dist} holds NaN or infinity, and finite numbers are "
                f"wanted."
            )
        checked[name] = array if keep_dtype else array.astype(np.float64)
    return checked


def broadcast_to_nodes(
    dist: Distribution,
    name: str,
    value: Any,
    num_nodes: int,
    shapes: Mapping[str, tuple[int, ...]],
) -> np.ndarray:
    """Repeats a constant given once for all nodes; `check_arrays` refuses unknown names later."""
    array = np.asarray(value)
    if name not in shapes:
        return array
    wanted = (num_nodes, *shapes[name])
    if array.shape == shapes[name]:
        return np.broadcast_to(array, wanted)
    if array.shape != wanted:
        raise ParameterError(
            f"The constant '{name}' of {num_nodes} nodes of {dist} has shape {array.shape}, and "
            f"{wanted} or {shapes[name]} (the same for all nodes) is wanted."
        )
    return array
