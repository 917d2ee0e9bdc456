"""`juice.save` and `juice.load`: a circuit and its parameters in one file."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import os
import platform
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxjuice._errors import ModelFileError
from jaxjuice._parameters import params_dtype
from jaxjuice.circuit import Circuit, compile
from jaxjuice.io._container import (
    FORMAT_NAME,
    FORMAT_VERSION,
    read_container,
    read_document,
    write_container,
)
from jaxjuice.io._dag import dag_from_tables, dag_to_tables
from jaxjuice.io._params import params_from_tables, params_to_tables


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """What a model file says about itself.

    Attributes:
        format_version: of the file's layout.
        jaxjuice_version: that wrote the file.
        created: when, ISO 8601 in UTC.
        versions: of Python, jax and numpy at that time.
        num_vars, num_node_vectors, num_nodes, num_parameters, num_edges: sizes of the circuit.
        dtype: of the parameters, "float32" or "float64".
        precision: the circuit's setting.
        distributions: the families of its leaves, as their `to_config` writes them.
        metadata: what the user gave `save`.
        file_size: in bytes.
    """

    format_version: int
    jaxjuice_version: str
    created: str
    versions: dict[str, str]
    num_vars: int
    num_node_vectors: int
    num_nodes: int
    num_parameters: int
    num_edges: int
    dtype: str
    precision: str
    distributions: tuple[dict[str, Any], ...]
    metadata: dict[str, Any]
    file_size: int


def save(
    path: str | os.PathLike[str],
    pc: Circuit,
    params: Any,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Writes a circuit and its parameters to one file, whole or not at all.

    The file is a safetensors file (no pickle): the DAG, the parameters bit for bit in the DAG's
    layout, the precision and the versions that wrote it. The usual extension is `.jjc`.

    Args:
        path: where to; an existing file is replaced, and stays as it was if writing fails.
        pc: the circuit.
        params: its parameters, float32 or float64.
        metadata: anything that JSON can hold, to keep along; `model_info` gives it back.

    Raises:
        ModelFileError: the file cannot be written (a missing folder, a full disk), `params` are not
            those of `pc`, or a leaf's family is not registered.
    """
    call = f"save({os.fspath(path)!r}, pc, params)"
    dtype = params_dtype(params)
    if dtype not in (np.float32, np.float64):
        raise ModelFileError(f"{call} got parameters of dtype {dtype}, not float32 or float64.")
    described, tables = dag_to_tables(pc.root)
    try:
        tables |= params_to_tables(pc, params)
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise ModelFileError(f"{call} got parameters of another circuit ({error!r}).") from error
    root = pc.root
    document = {
        "format": FORMAT_NAME,
        "format_version": FORMAT_VERSION,
        "jaxjuice_version": installed_version(),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            "jax": jax.__version__,
            "numpy": np.__version__,
        },
        "num_vars": pc.num_vars,
        "num_node_vectors": len(tables["nodes/kind"]),
        "num_nodes": int((tables["nodes/num_node_blocks"] * tables["nodes/block_size"]).sum()),
        "num_parameters": root.num_parameters(count_input_params=True),
        "num_edges": root.num_edges(),
        "dtype": dtype.name,
        "precision": str(pc.precision),
        "metadata": dict(metadata or {}),
        "external_params_groups": _groups_to_indices(pc),
        **described,
    }
    write_container(path, document, tables)


def load(path: str | os.PathLike[str], *, dtype: Any = None) -> tuple[Circuit, Any]:
    """Reads what `save` wrote: builds the DAG, compiles it, and fills in the parameters.

    Nothing in the file is ever executed.

    Args:
        path: the file.
        dtype: of the parameters; by default what the file holds.

    Returns:
        The circuit and its parameters.

    Raises:
        ModelFileError: the file is missing, truncated, damaged, foreign or of a newer format; its
            leaves are of a family that is not registered; or it holds float64 while
            `jax_enable_x64` is off and `dtype` is not given.
    """
    name = os.fspath(path)
    document, tables = read_container(path)
    try:
        saved = np.dtype(document["dtype"])
        wanted = saved if dtype is None else np.dtype(dtype)
        if jax.dtypes.canonicalize_dtype(wanted) != wanted:
            raise ModelFileError(
                f"holds {saved} parameters, and JAX makes no {wanted} arrays now: set "
                "jax.config.update('jax_enable_x64', True), or load(..., dtype='float32')"
            )
        vectors = dag_from_tables(document, tables)
        pc = compile(vectors[-1], precision=document["precision"])
        for group, members in document.get("external_params_groups", {}).items():
            nodes = [vectors[index] for index in members]
            pc = pc.register_external_params_group(group, nodes)  # pyright: ignore
        return pc, params_from_tables(pc, tables, wanted)
    except ModelFileError as error:
        raise ModelFileError(f"{name} {error}.") from error
    except (KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{name} does not describe a circuit: {error}.") from error


def _groups_to_indices(pc: Circuit) -> dict[str, list[int]]:
    """The members of registered groups by their places in post-order."""
    # A source outside of the circuit stands for its copies, of which the file holds the first.
    places: dict[Any, int] = {}
    for index, ns in enumerate(pc.root):
        places[ns] = index
        places.setdefault(ns.get_source(), index)
    return {
        name: [places[ns] for ns in members] for name, members in pc.external_params_groups.items()
    }


def model_info(path: str | os.PathLike[str]) -> ModelInfo:
    """Reads what a model file says about itself, without its arrays.

    Raises:
        ModelFileError: as `load`; damage inside the arrays goes unnoticed.
    """
    document = read_document(path)
    try:
        fields = {
            field.name: document[field.name]
            for field in dataclasses.fields(ModelInfo)
            if field.name != "file_size"
        }
    except KeyError as error:
        raise ModelFileError(f"{os.fspath(path)} is damaged: it says no {error}.") from error
    fields["distributions"] = tuple(fields["distributions"])
    return ModelInfo(file_size=os.path.getsize(path), **fields)


def installed_version() -> str:
    """The version of jaxjuice, or "unknown" where it runs from a folder without being installed."""
    try:
        return importlib.metadata.version("jaxjuice")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
