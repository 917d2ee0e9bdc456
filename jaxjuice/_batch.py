"""A batch of data as a circuit takes it: shapes and values checked, missing entries masked."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxjuice._errors import DataError
from jaxjuice.compiler import LeafLayer, Program
from jaxjuice.distributions import LeafGroup


class Batch(NamedTuple):
    """x `[B, num_vars]`; missing bool `[B, num_vars]` or None; log-densities by External group."""

    x: Array
    missing: Array | None
    external: dict[str, Array]


def make_batch(
    call: str,
    program: Program,
    x: Any,
    missing_mask: ArrayLike | None,
    external_log_probs: Mapping[Any, ArrayLike] | ArrayLike | None,
    validate: bool,
) -> Batch:
    """Checks the arguments of `call` and brings them into one form.

    Raises:
        DataError: if a shape does not fit or, for concrete arrays and with `validate`, a value
        does.
    """
    x = as_array(x)
    if x.ndim != 2 or x.shape[1] != program.num_vars:
        raise DataError(
            f"{call}: x has shape {x.shape}, and [batch, {program.num_vars}] is wanted, a "
            "column for each variable of the circuit."
        )
    if not (x.dtype == np.bool_ or _is_real(x.dtype)):
        raise DataError(f"{call}: x has dtype {x.dtype}, and numbers or booleans are wanted.")
    missing = None if missing_mask is None else _mask(call, missing_mask, x.shape)
    if validate and not isinstance(x, Tracer):
        validate_values(call, program, x, missing)
    external = _external(call, program, external_log_probs, x.shape[0])
    return Batch(jnp.asarray(x), None if missing is None else jnp.asarray(missing), external)


def validate_values(call: str, program: Program, x: Any, missing: Any | None) -> None:
    """Looks at every observed value, on the host.

    Raises:
        DataError: naming the first column with a value that its leaves do not take.
    """
    if isinstance(missing, Tracer):
        return
    x = np.asarray(x)
    if x.dtype.kind == "V":  # bfloat16, which numpy does not count among its numbers
        x = x.astype(np.float32)
    observed = None if missing is None else ~np.broadcast_to(np.asarray(missing), x.shape)
    for leaf in program.leaves:
        if leaf.dist.is_external:
            continue
        for columns in _blocks(np.unique(leaf.variables)):
            chosen = slice(None) if observed is None else observed[:, columns]
            if leaf.dist.validate(x[:, columns][chosen]) is None:
                continue
            for column in columns.tolist():
                values = x[:, column] if observed is None else x[observed[:, column], column]
                problem = leaf.dist.validate(values)
                if problem is not None:
                    raise DataError(f"{call}: column {column} of x {problem}.")


def leaf_log_probs(leaf: LeafLayer, group: LeafGroup, batch: Batch, dtype) -> Array:
    """Log-densities `[V, B, K]` of one leaf layer, 0 where a variable is missing."""
    if leaf.dist.is_external:
        values = leaf.dist.log_prob(group, batch.external[leaf.name])
    else:
        values = leaf.dist.log_prob(group, observations(leaf, batch))
    shape = (leaf.num_leaves, batch.x.shape[0], leaf.num_nodes)
    values = jnp.broadcast_to(values.astype(dtype), shape)
    missing = missing_of(leaf, batch)
    return values if missing is None else jnp.where(missing, jnp.zeros_like(values), values)


def observations(leaf: LeafLayer, batch: Batch) -> Array:
    """The data of a leaf layer `[V, B]`, 0 where missing: what stands there may be anything."""
    x = batch.x.T[leaf.variables]
    if batch.missing is None:
        return x
    return jnp.where(batch.missing.T[leaf.variables], jnp.zeros_like(x), x)


def missing_of(leaf: LeafLayer, batch: Batch) -> Array | None:
    """Bool `[V, B, 1]`, or None."""
    return None if batch.missing is None else batch.missing.T[leaf.variables][..., None]


def as_array(x: ArrayLike) -> Any:
    """`x` as it is if it is an array of JAX or numpy, else made one on the host."""
    if isinstance(x, jax.Array | np.ndarray):
        return x
    try:
        return np.asarray(x)
    except ValueError as error:
        raise DataError(f"The rows of an array do not have equal lengths: {error}.") from None


def _is_real(dtype) -> bool:
    # JAX's own notion: bfloat16 is no number to numpy.
    return jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating)


def _blocks(columns: np.ndarray) -> list[np.ndarray]:
    return np.array_split(columns, -(-len(columns) // 64))


def _mask(call: str, missing_mask: ArrayLike, shape: tuple[int, ...]) -> Any:
    mask = as_array(missing_mask)
    if mask.dtype != np.bool_:
        raise DataError(
            f"{call}: missing_mask has dtype {mask.dtype}, and bool is wanted (True: missing)."
        )
    if mask.shape not in (shape, shape[1:]):
        raise DataError(
            f"{call}: missing_mask has shape {mask.shape}, and {list(shape)} or [{shape[1]}] is "
            "wanted, the shape of x or of one of its rows."
        )
    if isinstance(mask, np.ndarray):
        return np.broadcast_to(mask, shape)
    return jnp.broadcast_to(mask, shape)


def _external(call: str, program: Program, given, batch: int) -> dict[str, Array]:
    leaves = [leaf for leaf in program.leaves if leaf.dist.is_external]
    if not leaves:
        if given is not None:
            raise DataError(f"{call}: external_log_probs are given, and no leaf is External.")
        return {}
    if given is None:
        names = ", ".join(str(v) for v in sorted({v for leaf in leaves for v in _variables(leaf)}))
        raise DataError(
            f"{call}: external_log_probs are missing, and the External leaves of the variables "
            f"{names} take their log-densities from them."
        )
    if isinstance(given, Mapping):
        return _external_by_key(call, leaves, given, batch)
    if len(leaves) > 1:
        raise DataError(
            f"{call}: External leaves of different widths want external_log_probs as a dict from "
            "variable to [batch, num_nodes]."
        )
    leaf, array = leaves[0], jnp.asarray(given)
    variables = np.unique(leaf.variables)
    if array.shape != (batch, len(variables), leaf.num_nodes):
        raise DataError(
            f"{call}: external_log_probs has shape {array.shape}, and "
            f"[{batch}, {len(variables)}, {leaf.num_nodes}] is wanted: batch, External "
            "variables in ascending order, nodes."
        )
    return {leaf.name: array.transpose(1, 0, 2)[np.searchsorted(variables, leaf.variables)]}


def _variables(leaf: LeafLayer) -> list[int]:
    return leaf.variables.tolist()


def _external_by_key(
    call: str, leaves: list[LeafLayer], given: Mapping[Any, ArrayLike], batch: int
) -> dict[str, Array]:
    """An entry for an input vector comes before one for its variable."""
    used, stacked = set(), {}
    for leaf in leaves:
        arrays = []
        for vector in leaf.vectors:
            key = vector if vector in given else vector.var
            if key not in given:
                raise DataError(
                    f"{call}: external_log_probs has no entry for variable {vector.var}."
                )
            used.add(key)
            array = jnp.asarray(given[key])
            if array.shape != (batch, leaf.num_nodes):
                raise DataError(
                    f"{call}: external_log_probs of variable {vector.var} has shape "
                    f"{array.shape}, and [{batch}, {leaf.num_nodes}] is wanted."
                )
            arrays.append(array)
        stacked[leaf.name] = jnp.stack(arrays)
    for key in given:
        if key not in used:
            raise DataError(
                f"{call}: external_log_probs has an entry for {key!r}, no External leaf."
            )
    return stacked


def check_weights(call: str, weights: Any, num_rows: int, num_roots: int, validate: bool) -> Array:
    """Sample weights `[num_rows]` or `[num_rows, num_roots]`.

    Raises:
        DataError: if the shape is another or, with `validate` and for concrete arrays, a weight is
            not finite.
    """
    weights = as_array(weights)
    if weights.shape not in ((num_rows,), (num_rows, num_roots)):
        raise DataError(
            f"{call}: weights has shape {weights.shape}, and [{num_rows}] or "
            f"[{num_rows}, {num_roots}] is wanted, one for each row of x."
        )
    # The look at the values waits for the device.
    if validate and not isinstance(weights, Tracer) and not np.isfinite(np.asarray(weights)).all():
        raise DataError(f"{call}: weights are not all finite.")
    return jnp.asarray(weights)
