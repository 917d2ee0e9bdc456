"""Parameters as one array a node vector, in the DAG's layout: files know nothing of the compiler's.

Values are copied bit for bit: nothing is normalized or cast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxjuice.circuit import Circuit
from jaxjuice.io._dag import list_vectors
from jaxjuice.nodes import CircuitNodes, InputNodes, SumNodes


def params_to_tables(pc: Circuit, params: Any) -> dict[str, np.ndarray]:
    """Parameters by the index I of their vector in post-order: `params/I` `[E, block_size,
    ch_block_size]` of a sum, `params/I/NAME` `[num_nodes, *shape]` of a leaf; none of tied vectors.

    Raises:
        KeyError, ValueError, IndexError: `params` are not parameters of `pc`.
    """
    values = pc.node_params(jax.device_get(params))
    tables: dict[str, np.ndarray] = {}
    for index, ns in _holders(list_vectors(pc.root)):
        if isinstance(ns, SumNodes):
            tables[f"params/{index}"] = np.asarray(values[ns.get_source()])
        elif isinstance(ns, InputNodes):
            for name, array in dict(values[ns.get_source()]).items():
                tables[f"params/{index}/{name}"] = np.asarray(array)
    return tables


def params_from_tables(pc: Circuit, tables: Mapping[str, np.ndarray], dtype: np.dtype) -> Any:
    """The inverse of `params_to_tables`.

    Raises:
        KeyError, ValueError, IndexError: the tables do not fit the circuit.
    """
    values: dict[CircuitNodes, Any] = {}
    for index, ns in _holders(list_vectors(pc.root)):
        if isinstance(ns, SumNodes):
            values[ns] = tables[f"params/{index}"]
        elif isinstance(ns, InputNodes):
            shapes = ns.dist.param_shapes()
            values[ns] = {name: tables[f"params/{index}/{name}"] for name in shapes}
            for name, shape in shapes.items():
                if values[ns][name].shape != (ns.num_nodes, *shape):
                    raise ValueError(f"{name!r} has shape {values[ns][name].shape} at {ns!r}")
    return pc.params_from_nodes(values, dtype)


def _holders(
    listed: tuple[Sequence[CircuitNodes], Sequence[int]],
) -> Iterator[tuple[int, CircuitNodes]]:
    """The vectors that hold parameters in a file, with their indices."""
    for index, (ns, holder) in enumerate(zip(*listed, strict=True)):
        if holder == index:
            yield index, ns
