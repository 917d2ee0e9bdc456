"""`Circuit`: a DAG of nodes as pure functions of parameters and data."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jaxjuice import _calls, ops
from jaxjuice._batch import (
    check_weights,
    make_batch,
    validate_values,
)
from jaxjuice._errors import DataError
from jaxjuice._external_params import (
    ScalePlan,
    check_external,
    check_group,
    check_keys,
    plan_of,
)
from jaxjuice._flows import Flows
from jaxjuice._parameters import NodeParameters, Params, check_params, init_params
from jaxjuice.compiler import LeafLayer, Program, SumGroup, build_program
from jaxjuice.distributions import Distribution, LeafGroup
from jaxjuice.nodes import CircuitNodes, SumNodes
from jaxjuice.passes import (
    Plan,
    Walk,
    describe_path,
    make_plan,
)


@dataclass(frozen=True, eq=False)
class InputGroup:
    """The leaves of one family and one width, whose parameters are `params["inputs"][name]`.

    Attributes:
        dist: the family.
        constants: by name, `[P, *constant_shape, K]`.
        param_ids: int32 `[V]`, the parameter set of every leaf; None where leaf v has set v.
        variables: int32 `[V]`.
        num_params, num_nodes: P and K.
    """

    dist: Distribution
    constants: dict[str, np.ndarray]
    param_ids: np.ndarray | None
    variables: np.ndarray
    num_params: int
    num_nodes: int

    def leaf(self, params: Mapping[str, Array]) -> LeafGroup:
        """The arrays that the methods of `dist` take."""
        ids = None if self.param_ids is None else jnp.asarray(self.param_ids)
        constants = {name: jnp.asarray(value) for name, value in self.constants.items()}
        return LeafGroup(dict(params), constants, ids)


class Circuit(NodeParameters):
    """A compiled circuit: immutable, hashable by identity, static under `jit`, no parameters.

    Parameters are a pytree of arrays in probability space, `{"sums": {group: [P, blocks, M, N]},
    "inputs": {group: {name: [P, *shape, K]}}}`: which node's are where is the compiler's choice,
    and `get_node_params` and its kin translate. All functions of arrays work under `jit`, `grad`,
    `vmap`, `shard_map`, and with the batch sharded; they compute in the parameters' dtype.

    Attributes:
        root: the DAG it was compiled from.
        program: what the compiler made of it.
        precision: the mode of the products of its sum layers.
        implementation: "auto", "triton" or "xla"; see `compile`.
        external_params_groups: by name, the node vectors whose external parameters come together.
    """

    def __init__(
        self,
        root: CircuitNodes,
        program: Program,
        precision: str,
        implementation: str = "auto",
        external_params_groups: Mapping[str, tuple[SumNodes, ...]] | None = None,
    ):
        self.root = root
        self.program = program
        self.precision = precision
        self.implementation = implementation
        self.input_groups = {leaf.name: _input_group(leaf) for leaf in program.leaves}
        self.external_params_groups = dict(external_params_groups or {})
        self._variants: dict[str, Circuit] = {precision: self}
        self._scale_plans: dict[tuple, ScalePlan] = {}

    # What it is -----------------------------------------------------------------------------------

    @property
    def num_vars(self) -> int:
        """The number of columns of the data: the largest variable id plus 1."""
        return self.program.num_vars

    @property
    def observed_variables(self) -> np.ndarray:
        """The variables whose values the circuit reads, ascending: all but External leaves'."""
        leaves = [leaf for leaf in self.program.leaves if not leaf.dist.is_external]
        variables = [leaf.variables for leaf in leaves]
        return np.unique(np.concatenate(variables)) if variables else np.zeros(0, np.int32)

    @property
    def num_roots(self) -> int:
        return self.root.num_nodes

    @property
    def num_nodes(self) -> int:
        """All nodes of the DAG, products too."""
        return sum(vector.num_nodes for vector in self.root)

    @property
    def num_parameters(self) -> int:
        """Distinct trainable numbers, leaves' included."""
        return self.num_sum_parameters + self.num_input_parameters

    @property
    def num_sum_parameters(self) -> int:
        return sum(
            int(np.prod(group.shape))
            - (0 if group.zero_mask is None else int(group.zero_mask.sum()))
            for group in self.sum_groups.values()
        )

    @property
    def num_input_parameters(self) -> int:
        return sum(
            group.num_params * group.num_nodes * group.dist.num_parameters
            for group in self.input_groups.values()
        )

    @property
    def sum_groups(self) -> dict[str, SumGroup]:
        return self.program.sum_groups

    def with_precision(self, precision: str | jax.lax.Precision) -> "Circuit":
        """The same circuit in another mode; the same object whenever the mode is the same."""
        mode = ops.canonical_precision(precision)
        if mode not in self._variants:
            variant = Circuit(
                self.root, self.program, mode, self.implementation, self.external_params_groups
            )
            variant._variants = self._variants
            self._variants[mode] = variant
        return self._variants[mode]

    def register_external_params_group(self, name: str, nodes: Sequence[SumNodes]) -> "Circuit":
        """A circuit that takes the external parameters of some node vectors as one set of tensors.

        Each tensor of the group is the members' tensors, concatenated along axis 1 in the order of
        `nodes`: of LowRank, A over the members' nodes and B over their ranks.

        Args:
            name: the key of the group in `external_params`.
            nodes: sum vectors of this circuit with equal parameterizations, whose tensors agree in
                all axes but that one.

        Returns:
            A new circuit with the same program and parameters, and this group in addition.

        Raises:
            StructureError: if the name is taken, or the vectors cannot be one group.
        """
        members = check_group(self, name, nodes)
        groups = {**self.external_params_groups, name: members}
        return Circuit(self.root, self.program, self.precision, self.implementation, groups)

    def plan(
        self,
        batch_size: int,
        *,
        external_params: Iterable[Any] | None = None,
        propagation: str | ops.Propagation = "LL",
        alpha: float = 1.0,
        precision: str | jax.lax.Precision | None = None,
    ) -> Plan:
        """What the products of each layer run in on an NVIDIA GPU, and why; prints as a table.

        A product is "dense" from 1024 nodes and 2^19 child values (children times samples) on, if
        `propagation` is "LL", and "sparse" otherwise; "MPE" has "maxima" in place of products. The
        mode "auto" takes TF32 for dense products in the pass forward and bf16 for sparse ones. The
        rule is fixed, because the two differ in their rounding errors.

        Args:
            batch_size: how many rows a product sees: inside `shard_map`, those of one device.
            external_params: the keys of a call's `external_params` (or that dict). Layers that are
                scaled in that call have other products, and none of its passes is fused.
            propagation, alpha, precision: as in `log_likelihood`.

        Returns:
            The plan for float32 parameters (with float64 ones every product is in float64).

        Raises:
            ValueError: if `batch_size` is negative, or a mode or rule is unknown.
            DataError: if a key is unknown.
        """
        if batch_size < 0:
            raise ValueError(f"plan(batch_size={batch_size}): 0 or more rows are wanted.")
        walk = self._walk(propagation, alpha, precision)
        scaled = plan_of(self, check_keys("plan", self, external_params))
        if scaled is not None:
            walk = replace(walk, scales=scaled.scales)
        return make_plan(walk, batch_size, fusable=self.implementation != "xla")

    def __repr__(self) -> str:
        return (
            f"Circuit({self.num_vars} variables, {self.num_nodes:,} nodes, "
            f"{self.num_parameters:,} parameters, precision='{self.precision}')"
        )

    def __str__(self) -> str:
        program = self.program
        numbers = sum(k * n for k, n in program.value_slots.items())
        flows = sum(k * n for k, n in program.flow_slots.items())
        return (
            f"{self!r}\n{program.table(describe_path)}\n"
            f"a sample takes {numbers:,} values, and {flows:,} flows in training"
        )

    # What it computes -----------------------------------------------------------------------------

    def init(self, key: Array, perturbation: float = 2.0, dtype: Any = jnp.float32) -> Params:
        """Parameters: those that the DAG's nodes carry, and random ones for the rest.

        Args:
            key: a JAX key.
            perturbation: sum weights are proportional to exp(-perturbation * U[0, 1)); 0 makes all
                equal. Leaves: see `Distribution.init_params`.
            dtype: float32, or float64 where JAX has it enabled.
        """
        return init_params(self, key, perturbation, dtype)

    def log_likelihood(
        self,
        params: Params,
        x: ArrayLike,
        missing_mask: ArrayLike | None = None,
        *,
        external_log_probs: Mapping[Any, ArrayLike] | ArrayLike | None = None,
        external_params: Mapping[Any, Any] | None = None,
        propagation: str | ops.Propagation = "LL",
        alpha: float = 1.0,
        precision: str | jax.lax.Precision | None = None,
        validate: bool = True,
        **removed: bool,
    ) -> Array:
        """The log-likelihood of every row of `x`.

        Args:
            params: as `init` makes them.
            x: `[batch, num_vars]`, any numeric dtype. Category ids may be floats that are whole.
            missing_mask: bool `[num_vars]` or `[batch, num_vars]`, True where a value is missing:
                it is marginalized, and what `x` holds there does not matter.
            external_log_probs: log-densities of the `External` leaves: `[batch, External variables,
                num_nodes]`, or a dict from variable (or its input vector) to `[batch, num_nodes]`.
            external_params: tensors that scale the weights of sum nodes for each sample: a dict
                from a node vector with a parameterization, or the name of a registered group, to
                its tensors `[batch, ...]` (one array, or a tuple), float32 or bfloat16. A vector
                that is left out is a plain sum in this call. See `jaxjuice.parameterizations`.
            propagation: "LL", "MPE" or "GeneralLL"; see `jaxjuice.ops.Propagation`.
            alpha: for "GeneralLL".
            precision: a mode for this call in place of the circuit's.
            validate: look at the values of concrete arrays on the host. Without it, and inside
                `jit`, a value that a leaf does not take gives NaN for its row.
            **removed: PyJuice's `force_use_bf16` and `force_use_fp32`, which `precision` replaces:
                False is ignored.

        Returns:
            `[batch]`, or `[batch, num_roots]` where there are several roots. -inf where a row is
            impossible (see `jaxjuice.ops` for what float32 cannot tell from it). Differentiable in
            the parameters, the external log-densities and parameters, and the values of continuous
            variables; rows at -inf have gradient 0.

        Raises:
            DataError: if shapes or values do not fit the circuit.
            ParameterError: if `params` are not those of this circuit.
            TypeError: if `force_use_bf16` or `force_use_fp32` is True.
        """
        call = "log_likelihood"
        _check_removed(call, removed)
        check_params(call, self, params)
        batch = make_batch(call, self.program, x, missing_mask, external_log_probs, validate)
        external = check_external(call, self, external_params, batch.x.shape[0])
        walk = self._walk(propagation, alpha, precision)
        return _calls.log_likelihood(self, walk, external.keys, params, batch, external.tensors)

    __call__ = log_likelihood

    def log_likelihood_and_flows(
        self,
        params: Params,
        x: ArrayLike,
        missing_mask: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        *,
        external_log_probs: Mapping[Any, ArrayLike] | ArrayLike | None = None,
        external_params: Mapping[Any, Any] | None = None,
        propagation: str | ops.Propagation = "LL",
        alpha: float = 1.0,
        precision: str | jax.lax.Precision | None = None,
        validate: bool = True,
        **removed: bool,
    ) -> tuple[Array, Flows]:
        """Log-likelihoods, and the expected counts of the batch: the E-step of EM.

        Args:
            params, x, missing_mask, external_log_probs, external_params, propagation, alpha,
                precision, validate, removed: as in `log_likelihood`.
            weights: the weight of each sample, `[batch]` or `[batch, num_roots]`; 1 where None.

        Returns:
            The log-likelihoods (differentiable as in `log_likelihood`), and `Flows` summed over the
            batch (not differentiable). A row at -inf adds nothing to them but its weight. A missing
            value adds its expected statistics. Inside `shard_map` the flows are those of the local
            samples.

        Raises:
            DataError: if shapes or values do not fit the circuit.
            ParameterError: if `params` are not those of this circuit.
            TypeError: if `force_use_bf16` or `force_use_fp32` is True.
        """
        call = "log_likelihood_and_flows"
        _check_removed(call, removed)
        check_params(call, self, params)
        batch = make_batch(call, self.program, x, missing_mask, external_log_probs, validate)
        external = check_external(call, self, external_params, batch.x.shape[0])
        walk = self._walk(propagation, alpha, precision)
        if weights is not None:
            weights = check_weights(call, weights, batch.x.shape[0], self.num_roots, validate)
        return _calls.log_likelihood_and_flows(
            self, walk, external.keys, params, batch, external.tensors, weights
        )

    def top_down_flows(self, params: Params) -> Flows:
        """The flows that one sample drawn from the circuit brings on average, of total weight 1."""
        return _calls.top_down_flows(self, self._walk("LL", 1.0, "fp32"), params)

    def validate(self, x: ArrayLike, missing_mask: ArrayLike | None = None) -> None:
        """Checks shapes and values of data on the host, as `log_likelihood` does.

        Raises:
            DataError: naming the column with a value that its leaves do not take.
        """
        x = np.asarray(x)
        if x.ndim != 2 or x.shape[1] != self.num_vars:
            raise DataError(
                f"validate: x has shape {x.shape}, and [rows, {self.num_vars}] is wanted, a column "
                "for each variable of the circuit."
            )
        validate_values("validate", self.program, x, missing_mask)

    def to_unconstrained(self, params: Params) -> Params:
        """The same tree with numbers that a gradient step may change freely: logits, log sigma, ...

        Weights of 0 become logits of -inf, which stay so.
        """
        sums = {name: jnp.log(weights) for name, weights in params["sums"].items()}
        inputs = {
            name: group.dist.to_unconstrained(
                params["inputs"][name], group.leaf(params["inputs"][name]).constants
            )
            for name, group in self.input_groups.items()
        }
        return {"sums": sums, "inputs": inputs}

    def from_unconstrained(self, raw: Params) -> Params:
        """The inverse of `to_unconstrained`; every raw value gives legal parameters."""
        sums = {
            name: _softmax(logits, self.sum_groups[name].zero_mask)
            for name, logits in raw["sums"].items()
        }
        inputs = {
            name: group.dist.from_unconstrained(
                raw["inputs"][name], group.leaf(raw["inputs"][name]).constants
            )
            for name, group in self.input_groups.items()
        }
        return {"sums": sums, "inputs": inputs}

    def _walk(self, propagation, alpha, precision) -> Walk:
        if not isinstance(propagation, ops.Propagation):
            if propagation not in ("LL", "MPE", "GeneralLL"):
                raise ValueError(
                    f"propagation={propagation!r} is unknown: take 'LL', 'MPE' or 'GeneralLL'."
                )
            alpha = float(alpha) if propagation == "GeneralLL" else 1.0
            if not alpha > 0:
                raise ValueError(f"alpha={alpha!r}: GeneralLL wants a number above 0.")
            propagation = ops.Propagation(propagation, alpha)
        mode = self.precision if precision is None else ops.canonical_precision(precision)
        return Walk(self.program, propagation, mode)


def compile(
    root: CircuitNodes,
    precision: str | jax.lax.Precision = "auto",
    *,
    implementation: str = "auto",
) -> Circuit:
    """Compiles the DAG under `root`. Runs no jax computation.

    Args:
        root: a node vector; its nodes are the circuit's roots.
        precision: the mode of the products of sum layers on NVIDIA GPUs: "auto", "bf16", "tf32",
            "bf16x3", "fp32", JAX's names "default", "high", "highest", or a `jax.lax.Precision`.
        implementation: "auto" runs passes in fused steps of Triton kernels where they can: for
            log-likelihoods (`propagation="LL"`) in float32, if every layer reads its children, and
            its flows, from vectors of one width; and where Triton runs: on one NVIDIA GPU or, with
            several in the process, inside a `shard_map` that checks how values vary. All else runs
            in XLA's own operations. "xla" takes these everywhere; "triton" takes the fused steps
            wherever the circuit allows them, in plain JAX where Triton cannot run (slowly: for
            tests).

    Returns:
        The circuit.

    Raises:
        ValueError: if a mode or an implementation is unknown.
    """
    if implementation not in ("auto", "triton", "xla"):
        raise ValueError(
            f"compile(implementation={implementation!r}): take 'auto', 'triton' or 'xla'."
        )
    if not isinstance(root, CircuitNodes):
        raise TypeError(f"compile: root is a {type(root).__name__}, and a node vector is wanted.")
    program = build_program(root)
    return Circuit(root, program, ops.canonical_precision(precision), implementation)


def _check_removed(call: str, options: Mapping[str, Any]) -> None:
    """Refuses PyJuice's former flags of precision, and what is no option at all."""
    for name, value in options.items():
        if name not in ("force_use_bf16", "force_use_fp32"):
            raise TypeError(f"{call}() got an unexpected keyword argument '{name}'")
        if value:
            mode = name.removeprefix("force_use_")
            raise TypeError(
                f"{call}({name}={value!r}): this flag is no more; precision='{mode}' replaces it, "
                f"in the call or by pc.with_precision('{mode}')."
            )


def _input_group(leaf: LeafLayer) -> InputGroup:
    return InputGroup(
        leaf.dist, leaf.constants, leaf.param_ids, leaf.variables, leaf.num_params, leaf.num_nodes
    )


def _softmax(logits: Array, zero_mask: np.ndarray | None) -> Array:
    if zero_mask is not None:
        logits = jnp.where(zero_mask, jnp.full_like(logits, -jnp.inf), logits)
    return jax.nn.softmax(logits, axis=-1)
