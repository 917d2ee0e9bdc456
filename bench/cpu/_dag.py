"""Densely connected circuits, read node vector by node vector: to hand over, and to check."""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from jaxjuice import Circuit
from jaxjuice.distributions import Categorical
from jaxjuice.nodes import CircuitNodes, InputNodes, ProductNodes, SumNodes


def sum_weights(pc: Circuit, params: dict, ns: SumNodes) -> np.ndarray:
    """Weights of a densely connected sum vector, `[num_nodes, num_ch_nodes]`."""
    blocks = np.asarray(pc.get_node_params(params, ns))
    num_edges, block_size, ch_block_size = blocks.shape
    num_ch_blocks = ns.num_ch_nodes // ch_block_size
    if num_edges != ns.num_node_blocks * num_ch_blocks:
        raise ValueError(f"{ns} is not densely connected.")
    weights = np.zeros((ns.num_node_blocks, num_ch_blocks, block_size, ch_block_size), blocks.dtype)
    parents, children = np.asarray(ns.edge_ids)
    weights[parents, children] = blocks
    return weights.swapaxes(1, 2).reshape(ns.num_nodes, ns.num_ch_nodes)


def leaf_probs(pc: Circuit, params: dict, ns: InputNodes) -> np.ndarray:
    """Probabilities of categorical inputs, `[num_nodes, num_cats]`."""
    if not isinstance(ns.dist, Categorical):
        raise ValueError(f"{ns} is not categorical.")
    return np.array(pc.get_node_params(params, ns)["probs"])


def check_elementwise(ns: ProductNodes) -> None:
    """Raises unless node i of the product multiplies node i of each child."""
    if (np.asarray(ns.child_node_ids()) != np.arange(ns.num_nodes)[:, None]).any():
        raise ValueError(f"{ns} does not multiply its children node by node.")


def float64_log_likelihood(pc: Circuit, params: dict, x: np.ndarray) -> np.ndarray:
    """Log-likelihoods `[rows]` by the definition, in float64, without the compiled program."""
    values: dict[CircuitNodes, np.ndarray] = {}
    for ns in pc.root:
        if isinstance(ns, InputNodes):
            with np.errstate(divide="ignore"):
                table = np.log(leaf_probs(pc, params, ns).astype(np.float64))
            values[ns] = table[:, x[:, ns.var]]
        elif isinstance(ns, ProductNodes):
            check_elementwise(ns)
            values[ns] = sum(values[child] for child in ns.chs)
        else:
            weights = sum_weights(pc, params, ns).astype(np.float64)
            below = np.concatenate([values[child] for child in ns.chs])
            values[ns] = logsumexp(below[None], b=weights[:, :, None], axis=1)
    return values[pc.root][0]
