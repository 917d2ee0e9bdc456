"""The DAG of a circuit as a few flat tables, and back.

Vectors are numbered in post-order, so children and sources of parameters come before those that
use them. A table has one entry per vector; lists (children, edges) are stored end to end. Edges are
left out where they are what `multiply` or `summate` makes by default, and stored once where several
vectors have the same.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jaxjuice import distributions, parameterizations
from jaxjuice._errors import ModelFileError, StructureError
from jaxjuice.nodes import (
    CircuitNodes,
    InputNodes,
    ProductNodes,
    SumNodes,
    inputs,
    is_decomposable,
    is_smooth,
    multiply,
    structural_properties,
    summate,
)

_INPUT, _PRODUCT, _SUM = 0, 1, 2

# Marks "none" in a table of indices.
_NONE = -1


def list_vectors(root: CircuitNodes) -> tuple[list[CircuitNodes], list[int]]:
    """The vectors in post-order, and for each the index of the one that holds its parameters.

    The holder is the first vector in post-order with the same source: the source itself need not
    come first, nor be part of the circuit.
    """
    vectors = list(root)
    first_of: dict[CircuitNodes, int] = {}
    holders = [first_of.setdefault(ns.get_source(), index) for index, ns in enumerate(vectors)]
    return vectors, holders


def dag_to_tables(root: CircuitNodes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Writes a DAG down, without its parameters.

    Returns:
        A JSON-able part (the families, the structural properties), and arrays by name.

    Raises:
        ModelFileError: a vector cannot be written down (a family that is not registered).
    """
    vectors, holders = list_vectors(root)
    index_of = {ns: index for index, ns in enumerate(vectors)}
    edges = _EdgeTable()
    families: dict[Any, int] = {}
    kinds: dict[Any, int] = {}
    rows: dict[str, list[int]] = {
        name: []
        for name in ("kind", "num_node_blocks", "block_size", "source", "num_chs", "variable")
        + ("family", "edges", "sparse_edges", "parameterization")
    }
    children: list[int] = []
    arrays: dict[str, np.ndarray] = {}
    for index, ns in enumerate(vectors):
        children += [index_of[child] for child in ns.chs]
        is_holder = holders[index] == index
        row = _describe(ns, edges, families)
        row |= {
            "num_node_blocks": ns.num_node_blocks,
            "block_size": ns.block_size,
            "source": _NONE if is_holder else holders[index],
            "num_chs": len(ns.chs),
            "parameterization": _NONE,
        }
        if isinstance(ns, SumNodes) and ns.parameterization is not None:
            row["parameterization"] = kinds.setdefault(ns.parameterization, len(kinds))
        for name, value in row.items():
            rows[name].append(value)
        if is_holder:
            arrays |= _own_arrays(ns, index)
    tables = {f"nodes/{name}": np.asarray(column, np.int64) for name, column in rows.items()}
    tables["nodes/chs"] = np.asarray(children, np.int64)
    if not kinds:
        del tables["nodes/parameterization"]
    document = {
        "distributions": [_family_config(dist) for dist in families],
        "parameterizations": [_kind_config(kind) for kind in kinds],
        "smooth": is_smooth(root),
        "decomposable": is_decomposable(root),
    }
    return document, tables | edges.tables() | arrays


def dag_from_tables(
    document: Mapping[str, Any], tables: Mapping[str, np.ndarray]
) -> list[CircuitNodes]:
    """Builds the DAG again, by the functions that users build theirs with.

    Returns:
        The vectors in post-order; the last one is the root.

    Raises:
        KeyError, IndexError, ValueError, TypeError: the tables do not describe a DAG.
        ModelFileError: a family is not known here.
    """
    families = [_family_from_config(config) for config in document["distributions"]]
    kinds = [_kind_from_config(config) for config in document.get("parameterizations", ())]
    columns = {
        name.removeprefix("nodes/"): table.tolist()
        for name, table in tables.items()
        if name.startswith("nodes/")
    }
    children, edge_arrays = columns.pop("chs"), _EdgeTable.read(tables)
    constants_of = _constants_by_vector(tables)
    vectors: list[CircuitNodes] = []
    start = 0
    allowances = structural_properties(
        allow_nonsmooth=not document["smooth"], allow_nondecomposable=not document["decomposable"]
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(allowances)
        for index, row in enumerate(_rows(columns)):
            chs = [_earlier(vectors, ch) for ch in children[start : start + row["num_chs"]]]
            start += row["num_chs"]
            source = None if row["source"] == _NONE else _earlier(vectors, row["source"])
            edges = None if row["edges"] == _NONE else edge_arrays[row["edges"]]
            if row["kind"] == _INPUT:
                constants = None if source is not None else constants_of.get(index)
                ns = _build_input(row, families[row["family"]], source, constants or {})
            elif row["kind"] == _PRODUCT:
                ns = multiply(
                    chs,
                    edge_ids=None if edges is None else edges.reshape(-1, len(chs)),
                    sparse_edges=bool(row["sparse_edges"]),
                    block_size=row["block_size"],
                )
            elif row["kind"] == _SUM:
                kind = row["parameterization"] if kinds else _NONE
                kind = None if kind == _NONE else kinds[kind]
                ns = _build_sum(row, chs, edges, source, tables.get(f"masks/{index}"), kind)
            else:
                raise ValueError(f"node vector {index} is of the unknown kind {row['kind']}")
            vectors.append(ns)
    if not vectors:
        raise ValueError("it has no node vectors")
    return vectors


def _describe(ns: CircuitNodes, edges: _EdgeTable, families: dict[Any, int]) -> dict[str, int]:
    """The entries of one vector in the tables that depend on its kind."""
    row = {"variable": _NONE, "family": _NONE, "edges": _NONE, "sparse_edges": 0}
    if isinstance(ns, InputNodes):
        row |= {"kind": _INPUT, "variable": ns.var}
        row["family"] = families.setdefault(ns.dist, len(families))
    elif isinstance(ns, ProductNodes):
        row |= {"kind": _PRODUCT, "sparse_edges": int(ns.sparse_edges)}
        # By default node (or block) i of every child belongs together.
        default = np.arange(len(ns.edge_ids))[:, None]
        fits = len({child.num_nodes for child in ns.chs}) == 1
        if not (fits and _covers_children(ns) and bool((ns.edge_ids == default).all())):
            row["edges"] = edges.add(ns.edge_ids)
    elif isinstance(ns, SumNodes):
        row["kind"] = _SUM
        if not _is_fully_connected(ns):
            row["edges"] = edges.add(ns.edge_ids)
    else:
        raise ModelFileError(f"save(...) cannot write {ns!r}: it is no input, product or sum.")
    return row


def _covers_children(ns: ProductNodes) -> bool:
    rows = ns.chs[0].num_nodes
    return len(ns.edge_ids) == (rows if ns.sparse_edges else rows // ns.block_size)


def _is_fully_connected(ns: SumNodes) -> bool:
    shape = (ns.num_node_blocks, ns.num_ch_nodes // ns.ch_block_size)
    if ns.edge_ids.shape[1] != shape[0] * shape[1]:
        return False
    return bool(
        (ns.edge_ids[0] * shape[1] + ns.edge_ids[1] == np.arange(shape[0] * shape[1])).all()
    )


def _build_input(
    row: Mapping[str, int],
    dist: Any,
    source: CircuitNodes | None,
    constants: Mapping[str, np.ndarray],
) -> InputNodes:
    if source is not None and not isinstance(source, InputNodes):
        raise ValueError("an input is tied to a vector of another kind")
    return inputs(
        row["variable"],
        num_node_blocks=row["num_node_blocks"],
        block_size=row["block_size"],
        dist=dist,
        source_node=source,
        **dict(constants),  # pyright: ignore[reportArgumentType]
    )


def _build_sum(
    row: Mapping[str, int],
    chs: list[CircuitNodes],
    edges: np.ndarray | None,
    source: CircuitNodes | None,
    mask: np.ndarray | None,
    parameterization: parameterizations.Parameterization | None,
) -> SumNodes:
    if source is not None and not isinstance(source, SumNodes):
        raise ValueError("a sum is tied to a vector of another kind")
    edge_ids = None if edges is None else edges.reshape(2, -1)
    return summate(
        chs,
        num_node_blocks=row["num_node_blocks"],
        block_size=row["block_size"],
        # Handing over the source's own array lets all copies share it.
        edge_ids=edge_ids if source is None else source.edge_ids,
        zero_param_mask=mask if source is None else None,
        source_node=source,
        parameterization=parameterization,
    )


def _own_arrays(ns: CircuitNodes, index: int) -> dict[str, np.ndarray]:
    """What a holder has besides parameters: constants of leaves, masks of sums."""
    source = ns.get_source()
    if isinstance(source, InputNodes):
        return {
            f"constants/{index}/{name}": _storable(array)
            for name, array in source.constants.items()
        }
    if isinstance(source, SumNodes) and source.zero_param_mask is not None:
        return {f"masks/{index}": np.asarray(source.zero_param_mask, bool)}
    return {}


def _constants_by_vector(tables: Mapping[str, np.ndarray]) -> dict[int, dict[str, np.ndarray]]:
    found: dict[int, dict[str, np.ndarray]] = {}
    for name, array in tables.items():
        if name.startswith("constants/"):
            _, index, constant = name.split("/", 2)
            found.setdefault(int(index), {})[constant] = array
    return found


def _storable(array: np.ndarray) -> np.ndarray:
    """The array in a dtype that files hold: other integers become int64, other floats float64."""
    array = np.asarray(array)
    if array.dtype.kind in "iu" and array.dtype not in (np.uint8, np.int32, np.int64):
        return array.astype(np.int64)
    if array.dtype.kind == "f" and array.dtype not in (np.float32, np.float64):
        return array.astype(np.float64)
    return array


def _family_config(dist: Any) -> dict[str, Any]:
    config = dist.to_config()
    try:
        is_known = distributions.from_config(config) == dist
    except (ValueError, KeyError):
        is_known = False
    if not is_known:
        raise ModelFileError(
            f"save(...) cannot write the distribution {dist!r}, because it could not be loaded "
            f"again: register it by jaxjuice.distributions.register({type(dist).__name__})."
        )
    return config


def _family_from_config(config: Mapping[str, Any]) -> Any:
    try:
        return distributions.from_config(config)
    except (ValueError, KeyError) as error:
        raise ModelFileError(
            f"holds leaves of the family {config.get('family')!r}, which is not registered here: "
            "import the module that calls jaxjuice.distributions.register for it, then load"
        ) from error


def _kind_config(kind: parameterizations.Parameterization) -> dict[str, Any]:
    try:
        return parameterizations.to_config(kind)
    except StructureError as error:
        raise ModelFileError(f"save(...) cannot write the parameterization {error}") from error


def _kind_from_config(config: Mapping[str, Any]) -> parameterizations.Parameterization:
    try:
        return parameterizations.from_config(config)
    except StructureError as error:
        raise ModelFileError(
            f"holds sums with the parameterization {config.get('kind')!r}, which is not known "
            "here: import the module that calls jaxjuice.parameterizations.register for it, then "
            "load"
        ) from error


def _earlier(vectors: list[CircuitNodes], index: int) -> CircuitNodes:
    if not 0 <= index < len(vectors):
        raise ValueError(f"node vector {len(vectors)} uses node vector {index}, which comes later")
    return vectors[index]


def _rows(columns: Mapping[str, list[int]]) -> Iterator[dict[str, int]]:
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


class _EdgeTable:
    """Distinct edge arrays, flattened and laid end to end."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._by_identity: dict[int, int] = {}
        self._by_content: dict[bytes, int] = {}

    def add(self, edge_ids: np.ndarray) -> int:
        """The index of an array, which is stored unless an equal one is there."""
        if id(edge_ids) not in self._by_identity:
            content = np.ascontiguousarray(edge_ids)
            digest = hashlib.sha256(content.tobytes() + str(content.shape).encode()).digest()
            if digest not in self._by_content:
                self._by_content[digest] = len(self._arrays)
                self._arrays.append(content)
            self._by_identity[id(edge_ids)] = self._by_content[digest]
        return self._by_identity[id(edge_ids)]

    def tables(self) -> dict[str, np.ndarray]:
        sizes = [array.size for array in self._arrays]
        values = np.concatenate([a.reshape(-1) for a in self._arrays] or [np.zeros(0, np.int64)])
        if values.size == 0 or values.max() <= np.iinfo(np.int32).max:
            values = values.astype(np.int32)
        return {"edges/offsets": np.cumsum([0, *sizes], dtype=np.int64), "edges/values": values}

    @staticmethod
    def read(tables: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        offsets, values = tables["edges/offsets"], tables["edges/values"].astype(np.int64)
        return np.split(values, offsets[1:-1])
