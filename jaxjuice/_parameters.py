"""Between the compiled layout of parameters and the layout of the DAG's node vectors."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jaxjuice._errors import ParameterError
from jaxjuice._flows import Flows
from jaxjuice.compiler import Program, edges_from_weights, weights_from_edges
from jaxjuice.nodes import CircuitNodes, InputNodes, SumNodes

if TYPE_CHECKING:
    from jaxjuice.circuit import Circuit

Params = dict[str, dict[str, Any]]
NodeValue = np.ndarray | dict[str, np.ndarray]


class NodeParameters:
    """The accessors of `Circuit` that speak the DAG's layout.

    Sums: `[E, block_size, ch_block_size]` in the order of `edge_ids`. Leaves: a dict by name,
    `[num_nodes, *shape]`. A tied vector's are its source's.
    """

    program: Program
    root: CircuitNodes

    def get_node_params(self, params: Params, ns: CircuitNodes) -> NodeValue:
        """The parameters of one node vector, on the host."""
        if isinstance(ns, SumNodes):
            return _sum_value(self.program, params["sums"], ns)
        name, row = self._leaf_row(ns)
        return _leaf_value(params["inputs"][name], row)

    def get_node_flows(self, flows: Flows, ns: CircuitNodes) -> NodeValue:
        """The flows of one node vector, on the host; of all tied copies together."""
        if isinstance(ns, SumNodes):
            return _sum_value(self.program, flows.sums, ns)
        name, row = self._leaf_row(ns)
        return _leaf_value(flows.inputs[name], row)

    def get_node_denominators(self, flows: Flows, ns: SumNodes) -> np.ndarray:
        """The statistic W of one sum vector (see `Flows`), `[E, block_size, ch_block_size]`.

        Raises:
            ParameterError: if flows hold none for it: it has no parameterization, or one without
                `apply_z_correction`.
        """
        rows = _sum_rows(self.program, ns)
        if rows[0].group not in flows.denominators:
            raise ParameterError(
                f"get_node_denominators: flows hold no denominators of {ns!r}, whose "
                f"parameterization is {ns.parameterization!r}."
            )
        groups = {}
        for name in {row.group for row in rows}:
            shared = flows.sums[name].shape[-1] // flows.denominators[name].shape[-1]
            groups[name] = np.repeat(np.asarray(flows.denominators[name]), shared, axis=-1)
        return _sum_value(self.program, groups, ns)

    def set_node_params(self, params: Params, ns: CircuitNodes, value: Any) -> Params:
        """New parameters in which one node vector (and its tied copies) has others.

        Args:
            params: as `init` makes them; not changed.
            ns: a sum or input vector of the circuit.
            value: as `get_node_params` returns it; sums also as a matrix `[num_nodes,
                num_ch_nodes]` where every node has every child. Weights are normalized.

        Raises:
            ParameterError: if the value does not fit the vector.
        """
        if isinstance(ns, SumNodes):
            return self._set_sum(params, ns, value)
        name, row = self._leaf_row(ns)
        checked = _checked_leaf(ns, value)
        group = {
            key: array.at[row].set(jnp.asarray(_node_axis_last(checked[key]), array.dtype))
            for key, array in params["inputs"][name].items()
        }
        return {**params, "inputs": {**params["inputs"], name: group}}

    def node_params(self, params: Params) -> dict[CircuitNodes, NodeValue]:
        """The parameters of all node vectors that own any (tied copies do not), on the host."""
        sums = {name: np.asarray(array) for name, array in params["sums"].items()}
        inputs = jax.tree.map(np.asarray, params["inputs"])
        values: dict[CircuitNodes, NodeValue] = {}
        for ns, rows in self.program.sum_rows.items():
            if rows and isinstance(ns, SumNodes) and not ns.is_tied:
                values[ns] = _sum_value(self.program, sums, ns)
        for ns, (name, row) in self.program.leaf_rows.items():
            if not ns.is_tied:
                values[ns] = _leaf_value(inputs[name], row)
        return values

    def params_from_nodes(self, values: Mapping[Any, Any], dtype: Any = jnp.float32) -> Params:
        """Parameters from those of all node vectors that own any, as `node_params` returns them.

        The values are taken as they are: neither normalized nor checked but for their shapes.
        """
        sums = {
            name: np.zeros(group.shape, dtype) for name, group in self.program.sum_groups.items()
        }
        for ns, rows in self.program.sum_rows.items():
            if isinstance(ns, SumNodes) and not ns.is_tied:
                given = _fitting(ns, values, _sum_shape(ns))
                for row in rows:
                    sums[row.group][row.row] = weights_from_edges(given, row.edges)
        inputs = {leaf.name: _empty_leaf(leaf, dtype) for leaf in self.program.leaves}
        for ns, (name, row) in self.program.leaf_rows.items():
            if not ns.is_tied:
                for key, array in inputs[name].items():
                    array[row] = _node_axis_last(np.asarray(values[ns][key]))
        return jax.tree.map(jnp.asarray, {"sums": sums, "inputs": inputs})

    def _leaf_row(self, ns: CircuitNodes) -> tuple[str, int]:
        if not isinstance(ns, InputNodes):
            raise ParameterError(f"{ns!r} has no parameters: only sums and inputs do.")
        if ns not in self.program.leaf_rows:
            raise ParameterError(f"{ns!r} is not in this circuit.")
        return self.program.leaf_rows[ns]

    def _set_sum(self, params: Params, ns: SumNodes, value: Any) -> Params:
        rows = _sum_rows(self.program, ns)
        weights = np.asarray(value, np.float64)
        matrix = (ns.num_nodes, ns.num_ch_nodes)
        shape = _sum_shape(ns)
        if weights.shape == matrix and shape[0] == ns.num_node_blocks * ns.num_ch_blocks:
            tiles = weights.reshape(ns.num_node_blocks, ns.block_size, -1, ns.ch_block_size)
            weights = tiles.transpose(0, 2, 1, 3)[tuple(ns.edge_ids)]
        if weights.shape != shape:
            raise ParameterError(
                f"set_node_params: the weights of {ns!r} came with shape {weights.shape}, and "
                f"{list(shape)} is wanted."
            )
        if not np.isfinite(weights).all() or (weights < 0).any():
            raise ParameterError(f"set_node_params: weights of {ns!r} are not all finite and >= 0.")
        if ns.zero_param_mask is not None:
            weights = np.where(ns.zero_param_mask, 0, weights)
        sums = dict(params["sums"])
        for row in rows:
            own = weights_from_edges(weights, row.edges)
            total = own.sum(-1, keepdims=True)
            if (total == 0).any():
                raise ParameterError(f"set_node_params: a node of {ns!r} has only weights of 0.")
            array = sums[row.group]
            sums[row.group] = array.at[row.row].set(jnp.asarray(own / total, array.dtype))
        return {**params, "sums": sums}


def params_dtype(params: Any) -> np.dtype:
    """The widest dtype of a tree of parameters; float32 if it has no leaves."""
    dtypes = (np.dtype(leaf.dtype) for leaf in jax.tree.leaves(params))
    return max(dtypes, key=lambda dtype: dtype.itemsize, default=np.dtype(np.float32))


def check_params(call: str, pc: "Circuit", params: Any) -> None:
    """Checks names and shapes.

    Raises:
        ParameterError: naming the first group that does not fit.
    """
    wanted: dict[tuple[str, str], dict[str, tuple[int, ...]]] = {
        ("sums", name): {"": group.shape} for name, group in pc.sum_groups.items()
    }
    for name, group in pc.input_groups.items():
        shapes = group.dist.param_shapes()
        wanted["inputs", name] = {
            key: (group.num_params, *shape, group.num_nodes) for key, shape in shapes.items()
        }
    for (part, name), shapes in wanted.items():
        try:
            found = params[part][name]
            arrays = {"": found} if part == "sums" else found
            ok = set(arrays) == set(shapes) and all(
                np.shape(arrays[key]) == shape for key, shape in shapes.items()
            )
        except (KeyError, TypeError):
            ok = False
        if not ok:
            raise ParameterError(
                f"{call}: params are not those of this circuit: at ['{part}']['{name}'] it wants "
                f"arrays of shapes {list(shapes.values())}. `Circuit.init` makes them."
            )


def init_params(pc: "Circuit", key: Array, perturbation: float, dtype: Any) -> Params:
    """See `Circuit.init`."""
    sum_key, leaf_key = jax.random.split(key)
    scale = jnp.asarray(perturbation, dtype)
    # Numbers come from a call of their own: XLA would run the generator again in every kernel that
    # reads them, and compile it as often.
    size = sum(int(np.prod(group.shape)) for group in pc.sum_groups.values())
    sums = _draw_sums(pc, _uniform(sum_key, size, np.dtype(dtype)), scale)
    inputs = _draw_leaves(pc, leaf_key, scale, np.dtype(dtype))
    return _with_given(pc.program, {"sums": sums, "inputs": inputs})


@partial(jax.jit, static_argnums=(1, 2))
def _uniform(key: Array, size: int, dtype: np.dtype) -> Array:
    return jax.random.uniform(key, (size,), dtype)


@partial(jax.jit, static_argnums=0)
def _draw_sums(pc: "Circuit", noise: Array, perturbation: Array) -> dict[str, Array]:
    sums, start = {}, 0
    for name, group in pc.sum_groups.items():
        size = int(np.prod(group.shape))
        weights = jnp.exp(-perturbation * noise[start : start + size].reshape(group.shape))
        if group.zero_mask is not None:
            weights = jnp.where(group.zero_mask, jnp.zeros_like(weights), weights)
        sums[name] = weights / weights.sum(-1, keepdims=True)
        start += size
    return sums


@partial(jax.jit, static_argnums=(0, 3))
def _draw_leaves(pc: "Circuit", key: Array, perturbation: Array, dtype: np.dtype):
    inputs = {}
    for index, (name, group) in enumerate(pc.input_groups.items()):
        constants = {key: jnp.asarray(value) for key, value in group.constants.items()}
        inputs[name] = group.dist.init_params(
            jax.random.fold_in(key, index),
            constants,
            group.num_params,
            group.num_nodes,
            perturbation,
            dtype,
        )
    return inputs


def _with_given(program: Program, params: Params) -> Params:
    """Puts the parameters that the DAG carries in place of random ones."""
    sums: dict[str, tuple[list[int], list[np.ndarray]]] = {}
    for ns, rows in program.sum_rows.items():
        if isinstance(ns, SumNodes) and ns.params is not None:
            for row in rows:
                places, values = sums.setdefault(row.group, ([], []))
                places.append(row.row)
                values.append(weights_from_edges(ns.params, row.edges))
    out = {"sums": dict(params["sums"]), "inputs": dict(params["inputs"])}
    for name, (places, values) in sums.items():
        array = out["sums"][name]
        given = jnp.asarray(np.stack(values), array.dtype)
        # Given weights may be of another precision than the circuit's: make them sum to 1 in it.
        given = given / given.sum(-1, keepdims=True)
        out["sums"][name] = array.at[np.array(places)].set(given)
    for ns, (name, row) in program.leaf_rows.items():
        if isinstance(ns, InputNodes) and ns.params is not None:
            out["inputs"][name] = {
                key: array.at[row].set(jnp.asarray(_node_axis_last(ns.params[key]), array.dtype))
                for key, array in out["inputs"][name].items()
            }
    return out


def _sum_shape(ns: SumNodes) -> tuple[int, int, int]:
    return ns.edge_ids.shape[1], ns.block_size, ns.ch_block_size


def _sum_rows(program: Program, ns: SumNodes):
    if ns not in program.sum_rows:
        raise ParameterError(f"{ns!r} is not in this circuit.")
    return program.sum_rows[ns]


def _sum_value(program: Program, groups: Mapping[str, Any], ns: SumNodes) -> np.ndarray:
    rows = _sum_rows(program, ns)
    out = np.zeros(_sum_shape(ns), groups[rows[0].group].dtype)
    for row in rows:
        edges_from_weights(np.asarray(groups[row.group][row.row]), row.edges, out)
    return out


def _leaf_value(group: Mapping[str, Any], row: int) -> dict[str, np.ndarray]:
    return {name: np.moveaxis(np.asarray(array[row]), -1, 0) for name, array in group.items()}


def _node_axis_last(array: np.ndarray) -> np.ndarray:
    return np.moveaxis(np.asarray(array), 0, -1)


def _checked_leaf(ns: CircuitNodes, value: Any) -> dict[str, np.ndarray]:
    assert isinstance(ns, InputNodes)
    if not isinstance(value, Mapping):
        value = ns.dist.params_from_array(np.asarray(value), ns.num_nodes)
    return ns.dist.check_params(value, ns.constants)


def _empty_leaf(leaf, dtype) -> dict[str, np.ndarray]:
    return {
        name: np.zeros((leaf.num_params, *shape, leaf.num_nodes), dtype)
        for name, shape in leaf.dist.param_shapes().items()
    }


def _fitting(ns: Any, values: Mapping[Any, ArrayLike], shape: tuple[int, ...]) -> np.ndarray:
    if ns not in values:
        raise ParameterError(f"params_from_nodes: no parameters came for {ns!r}.")
    array = np.asarray(values[ns])
    if array.shape != shape:
        raise ParameterError(
            f"params_from_nodes: the weights of {ns!r} came with shape {array.shape}, and "
            f"{list(shape)} is wanted."
        )
    return array
