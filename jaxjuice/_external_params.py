"""Tensors that scale sum weights in one call: checked, and brought into the form of the passes.

A *key* is a node vector or the name of a registered group. The tensors of a key are flattened over
its members' nodes, children or gates (`Parameterization.flatten`); those of all keys with one
parameterization are put end to end, and each layer gathers its units' parts from there. All of it
is plain JAX, so gradients find their way back to the tensors, sums over tied copies included.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxjuice._batch import as_array
from jaxjuice._errors import DataError, StructureError
from jaxjuice.compiler import Program, ScaledUnits, SumLayer
from jaxjuice.nodes import CircuitNodes, SumNodes
from jaxjuice.parameterizations import Parameterization
from jaxjuice.passes import LayerScale

if TYPE_CHECKING:
    from jaxjuice.circuit import Circuit

Key = SumNodes | str
Tensors = tuple[tuple[Array, ...], ...]


class External(NamedTuple):
    """The checked tensors of a call: `keys` in a fixed order, static; `tensors` of each."""

    keys: tuple[Key, ...]
    tensors: Tensors


def check_group(pc: "Circuit", name: str, nodes: Sequence[SumNodes]) -> tuple[SumNodes, ...]:
    """The members of a new group.

    Raises:
        StructureError: if the name is taken, or the vectors cannot be one group.
    """
    call = f"register_external_params_group({name!r}, ...)"
    if not isinstance(name, str):
        raise StructureError(f"{call}: the name of a group is a string.")
    if name in pc.external_params_groups:
        raise StructureError(f"{call}: this circuit has a group of that name already.")
    is_list = isinstance(nodes, Iterable) and not isinstance(nodes, CircuitNodes)
    members = tuple(nodes) if is_list else ()
    if not members:
        raise StructureError(f"{call}: a list of at least one node vector is wanted.")
    for ns in members:
        _check_member(call, pc.program, ns)
    owners = [_owner(ns) for ns in members]
    if len(set(owners)) < len(owners):
        raise StructureError(
            f"{call}: {_repeated(owners)!r} is named twice (tied copies with tie_external=True are "
            "one: name their source)."
        )
    if () in _shapes(members[0]) and members[1:]:
        raise StructureError(
            f"{call}: {members[0].parameterization!r} takes one number a sample, and tensors of a "
            "group are concatenated along the axis behind the samples."
        )
    first = _group_key(members[0])
    for ns in members[1:]:
        if _group_key(ns) != first:
            raise StructureError(
                f"{call}: {ns!r} has {ns.parameterization!r} and tensors of shapes "
                f"{_shapes(ns)}, which cannot be concatenated along the nodes with those of "
                f"{members[0]!r}, {members[0].parameterization!r} and {_shapes(members[0])}."
            )
    return members


def check_external(call: str, pc: "Circuit", given: Any, batch: int) -> External:
    """Checks `external_params` of `call`, and brings them into one form.

    Raises:
        DataError: if a key is unknown, a vector comes twice, or a shape or dtype does not fit.
    """
    found = external_arrays(call, pc, given, batch)
    keys = tuple(sorted(found))
    return External(keys, tuple(tuple(map(jnp.asarray, found[key])) for key in keys))


def external_arrays(call: str, pc: "Circuit", given: Any, batch: int) -> dict[Key, tuple[Any, ...]]:
    """The same for arrays that stay where they are, on the host or a device.

    Raises:
        DataError: as `check_external` does.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise DataError(
            f"{call}: external_params is a {type(given).__name__}, and a dict from node vector or "
            "group name to tensors is wanted."
        )
    keys = _canonical(call, pc, given)
    members = {key: _members(call, pc, key) for key in given}
    return {
        own: _tensors(call, key, members[key], value, batch)
        for own, (key, value) in zip(keys, given.items(), strict=True)
    }


def check_keys(call: str, pc: "Circuit", given: Any) -> tuple[Key, ...]:
    """The keys that `check_external` would return for tensors under these keys.

    Raises:
        DataError: if a key is unknown, or a vector comes twice.
    """
    if given is None:
        return ()
    if isinstance(given, str | CircuitNodes) or not isinstance(given, Iterable):
        raise DataError(f"{call}: external_params={given!r} is no list of node vectors or names.")
    return tuple(sorted(_canonical(call, pc, given)))


def _canonical(call: str, pc: "Circuit", given: Iterable[Any]) -> list[Key]:
    """A copy's tensors, where copies share them, are those of its source."""
    keys: list[Key] = []
    served: set[SumNodes] = set()
    for key in given:
        members = _members(call, pc, key)
        for owner in members:
            if owner in served:
                raise DataError(f"{call}: external_params has {owner!r} twice.")
            served.add(owner)
        keys.append(key if isinstance(key, str) else members[0])
    return keys


def _tensors(
    call: str, key: Key, members: tuple[SumNodes, ...], value: Any, batch: int
) -> tuple[Any, ...]:
    wanted = [(batch, *shape) for shape in _group_shapes(members)]
    name = f"group {key!r}" if isinstance(key, str) else repr(key)
    tensors = value if isinstance(value, tuple | list) else (value,)
    arrays = [as_array(tensor) for tensor in tensors]
    shapes = [tuple(array.shape) for array in arrays]
    if shapes != wanted:
        raise DataError(
            f"{call}: external_params of {name} came with shapes {_listed(shapes)}, and "
            f"{_listed(wanted)} are wanted by {members[0].parameterization!r}."
        )
    for array in arrays:
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise DataError(
                f"{call}: external_params of {name} came with dtype {array.dtype}, and floats "
                "(float32 or bfloat16) are wanted."
            )
    return tuple(arrays)


def _members(call: str, pc: "Circuit", key: Any) -> tuple[SumNodes, ...]:
    """The vectors whose tensors a key holds: sources, where copies share tensors."""
    if isinstance(key, str):
        if key not in pc.external_params_groups:
            raise DataError(
                f"{call}: external_params has an entry for {key!r}, and the groups of this circuit "
                f"are {sorted(pc.external_params_groups)}."
            )
        return tuple(_owner(ns) for ns in pc.external_params_groups[key])
    try:
        _check_member(f"{call}: external_params", pc.program, key)
    except StructureError as error:
        raise DataError(str(error)) from None
    return (_owner(key),)


def _check_member(call: str, program: Program, ns: Any) -> None:
    if not isinstance(ns, SumNodes) or ns not in program.sum_rows:
        raise StructureError(f"{call}: {ns!r} is not a sum vector of this circuit.")
    if ns.parameterization is None:
        raise StructureError(
            f"{call}: {ns!r} has no parameterization; give summate(..., parameterization=...) one."
        )


def _owner(ns: SumNodes) -> SumNodes:
    """The vector under which the tensors of `ns` come."""
    assert ns.parameterization is not None
    return ns.get_source() if ns.parameterization.tie_external else ns


def _resolved(ns: SumNodes) -> Parameterization:
    resolved = ns.resolved_parameterization()
    assert resolved is not None
    return resolved


def _shapes(ns: SumNodes) -> tuple[tuple[int, ...], ...]:
    return _resolved(ns).tensor_shapes(ns.num_nodes, ns.num_ch_nodes)


def _group_key(ns: SumNodes) -> tuple:
    return _resolved(ns), tuple(shape[1:] for shape in _shapes(ns))


def _group_shapes(members: Sequence[SumNodes]) -> list[tuple[int, ...]]:
    """The members' shapes, concatenated along the first axis."""
    every = [_shapes(ns) for ns in members]
    return [
        (sum(shape[0] for shape in shapes), *shapes[0][1:]) if shapes[0] else ()  # a lone member
        for shapes in zip(*every, strict=True)
    ]


def _repeated(items: Sequence[Any]) -> Any:
    return next(item for index, item in enumerate(items) if item in items[:index])


def _listed(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes) or "none"


# ---------------------------------------------------------------------------------------- the plan


@dataclass(frozen=True, eq=False)
class ScalePlan:
    """Where the layers find their parts among the tensors of some keys; numpy only.

    Attributes:
        scales: for every layer of every stage; None where nothing is scaled.
        keys: for every parameterization, which keys (by index) are put end to end, with the number
            of their members.
        reads: for every scaled layer, its parameterization, and int indices `[R, quota * blocks,
            *index shape]` for each flattened tensor; without R where all steps read the same.
    """

    scales: tuple[tuple[LayerScale | None, ...], ...]
    keys: dict[Parameterization, list[tuple[int, int]]]
    reads: list[list[tuple[Parameterization, tuple[np.ndarray, ...]] | None]]


def plan_of(pc: "Circuit", keys: tuple[Key, ...]) -> ScalePlan | None:
    """The plan of a call with these keys, made once; None where there are none."""
    if keys and keys not in pc._scale_plans:
        pc._scale_plans[keys] = _make_plan(pc, keys)
    return pc._scale_plans.get(keys)


def _make_plan(pc: "Circuit", keys: tuple[Key, ...]) -> ScalePlan:
    by_kind: dict[Parameterization, list[tuple[int, int]]] = {}
    offsets: dict[SumNodes, tuple[int, ...]] = {}  # where a vector begins in each flat tensor
    ends: dict[Parameterization, tuple[int, ...]] = {}
    for index, key in enumerate(keys):
        members = _members("plan", pc, key)
        kind = _resolved(members[0])
        by_kind.setdefault(kind, []).append((index, len(members)))
        for ns in members:
            sizes = kind.flat_sizes(ns.num_nodes, ns.num_ch_nodes)
            offsets[ns] = ends.get(kind, (0,) * len(sizes))
            ends[kind] = tuple(a + b for a, b in zip(offsets[ns], sizes, strict=True))
    scales, reads = [], []
    for stage in pc.program.stages:
        found = [_plan_layer(layer, offsets) for layer in stage]
        scales.append(tuple(None if plan is None else plan[0] for plan in found))
        reads.append([None if plan is None else plan[1] for plan in found])
    return ScalePlan(tuple(scales), by_kind, reads)


def _plan_layer(layer: SumLayer, offsets: Mapping[SumNodes, tuple[int, ...]]):
    units = layer.scaled
    if units is None:
        return None
    starts = [offsets.get(_owner(ns)) for ns in units.vectors]
    supplied = np.array([start is not None for start in starts] + [False])  # the last: padding
    active = supplied[units.vector]
    if not active.any():
        return None
    kind = units.parameterization
    blocks, size = layer.num_blocks, layer.block_nodes
    indices = _indices(units, starts, active, blocks, size)
    nodes = children = None
    if kind.reads_positions:
        nodes = _block_nodes(units, blocks, size).reshape(active.shape[0], -1, size)
        children = units.children[units.child_list]
        children = children.reshape(*nodes.shape[:2], -1)
    first = units.vectors[0]
    fixed = len(active) > 1 and all((index == index[:1]).all() for index in indices)
    scale = LayerScale(
        None if active.all() else active,
        nodes,
        children,
        first.num_nodes,
        first.num_ch_nodes,
        fixed,
    )
    return scale, (kind, tuple(index[0] for index in indices) if fixed else indices)


def _block_nodes(units: ScaledUnits, blocks: int, size: int) -> np.ndarray:
    """`[R, quota, blocks, M]`."""
    within = np.arange(blocks * size, dtype=np.int32).reshape(blocks, size)
    return units.first_node[..., None, None] + within


def _indices(
    units: ScaledUnits, starts, active: np.ndarray, blocks: int, size: int
) -> tuple[np.ndarray, ...]:
    """What each block reads of the flat tensors; padded and plain units read the first entries."""
    kind = units.parameterization
    cache: dict[tuple, list[tuple[np.ndarray, ...]]] = {}
    nodes = _block_nodes(units, blocks, size)
    out: list[np.ndarray] | None = None
    for place in np.argwhere(active):
        at = tuple(place)
        vector = int(units.vector[at])
        ns = units.vectors[vector]
        key = (ns.num_nodes, ns.num_ch_nodes, int(units.first_node[at]), int(units.child_list[at]))
        if key not in cache:
            cache[key] = [
                kind.unit_indices(own, children, *key[:2])
                for own, children in zip(nodes[at], units.children[key[3]], strict=True)
            ]
        if out is None:
            shapes = [index.shape for index in cache[key][0]]
            out = [np.zeros((*active.shape, blocks, *shape), np.int32) for shape in shapes]
        for block, block_indices in enumerate(cache[key]):
            for array, index, start in zip(out, block_indices, starts[vector], strict=True):
                array[(*at, block)] = index + start
    assert out is not None
    return tuple(
        array.reshape(array.shape[0], array.shape[1] * blocks, *array.shape[3:]) for array in out
    )


def make_parts(plan: ScalePlan, tensors: Tensors, dtype: Any) -> list[list[Any]]:
    """The parts of all scaled layers, `[R, quota * blocks, B, ...]`, some without R."""
    flat: dict[Parameterization, list[Array]] = {}
    for kind, members in plan.keys.items():
        pieces = [
            kind.flatten([tensor.astype(dtype) for tensor in tensors[index]], count)
            for index, count in members
        ]
        flat[kind] = [
            same[0] if len(same) == 1 else jnp.concatenate(same, axis=1)
            for same in zip(*pieces, strict=True)
        ]
    return [
        [
            None
            if read is None or scale is None
            else tuple(
                _take(array, index, 1 if scale.fixed else 2)
                for array, index in zip(flat[read[0]], read[1], strict=True)
            )
            for read, scale in zip(stage, scales, strict=True)
        ]
        for stage, scales in zip(plan.reads, plan.scales, strict=True)
    ]


def _take(array: Array, index: np.ndarray, batch_axis: int) -> Array:
    """`array` `[B, F, ...]` at `index` in place of F, in the longest runs, the batch moved."""
    batch, size = array.shape[:2]
    flat = index.reshape(-1)
    run = _run_length(flat, size)
    rows = flat[::run] // run
    whole = array.reshape(batch, size // run, run, *array.shape[2:])
    if np.array_equal(rows, np.arange(size // run)):
        taken = whole
    else:
        taken = whole.at[:, rows].get(mode="promise_in_bounds", wrap_negative_indices=False)
    taken = taken.reshape(batch, *index.shape, *array.shape[2:])
    return jnp.moveaxis(taken, 0, batch_axis)


def _run_length(flat: np.ndarray, size: int) -> int:
    """The longest aligned runs in which `flat` reads an axis of `size`."""
    cuts = np.concatenate([[0], 1 + np.flatnonzero(np.diff(flat) != 1), [flat.size]])
    return int(np.gcd.reduce(np.concatenate([cuts, flat[cuts[:-1]], [size]])))
