"""What a circuit means, in float64 and plain numpy, for tests to compare with.

A recursion over the DAG, written without the compiler: every sum is a dense matrix, every sample
goes through every node. It is slow and is meant to be obviously right.

Parameters are a dict from the vectors that hold them (sources, for tied vectors) to arrays in the
layout of the DAG: `[E, block_size, ch_block_size]` for sums, a dict by name of `[num_nodes,
*shape]` for inputs. `dag_params(root)` reads them from the nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

from jaxjuice.nodes import CircuitNodes, InputNodes, ProductNodes, SumNodes

Params = Mapping[CircuitNodes, Any]


class Flows(NamedTuple):
    """Expected counts, the derivatives of sum_b w_b LL_b.

    Attributes:
        sums: by source vector, `[E, block_size, ch_block_size]`, by log theta; summed over samples
            and over tied copies.
        nodes: by vector, `[B, num_nodes]`, by the log value of the node. Those of an input are what
            its sufficient statistics are weighted with (missing values included).
        denominators: by source vector, W `[E, block_size, ch_block_size]`: sum_b f_b g_b / Z_b.
        scales: by scaled vector, the derivatives by log g, `[B, num_nodes, num_ch_nodes]`.
    """

    sums: dict[SumNodes, np.ndarray]
    nodes: dict[CircuitNodes, np.ndarray]
    denominators: dict[SumNodes, np.ndarray]
    scales: dict[SumNodes, np.ndarray]


# ------------------------------------------------------------------------------------- parameters


def dag_params(root: CircuitNodes) -> dict[CircuitNodes, Any]:
    """Reads the parameters that the nodes under `root` carry; all of them must be set."""
    params: dict[CircuitNodes, Any] = {}
    for ns in root:
        if isinstance(ns, (SumNodes, InputNodes)):
            source = ns.get_source()
            held = {} if isinstance(source, InputNodes) and not source.dist.param_shapes() else None
            params[source] = source.params if source.params is not None else held
            assert params[source] is not None, f"{source!r} has no parameters"
    return params


def dense_weights(ns: SumNodes, weights: np.ndarray) -> np.ndarray:
    """Writes `[E, block_size, ch_block_size]` out as a matrix `[num_nodes, num_ch_nodes]`."""
    dense = np.zeros((ns.num_nodes, ns.num_ch_nodes))
    for edge, (node_block, ch_block) in enumerate(ns.edge_ids.T):
        rows = slice(node_block * ns.block_size, (node_block + 1) * ns.block_size)
        columns = slice(ch_block * ns.ch_block_size, (ch_block + 1) * ns.ch_block_size)
        dense[rows, columns] = weights[edge]
    return dense


def edge_layout(ns: SumNodes, dense: np.ndarray) -> np.ndarray:
    """The inverse of `dense_weights`."""
    edges = []
    for node_block, ch_block in ns.edge_ids.T:
        rows = slice(node_block * ns.block_size, (node_block + 1) * ns.block_size)
        columns = slice(ch_block * ns.ch_block_size, (ch_block + 1) * ns.ch_block_size)
        edges.append(dense[rows, columns])
    return np.stack(edges)


# ----------------------------------------------------------------------------------------- leaves


def leaf_log_prob(
    ns: InputNodes, params: Mapping[str, np.ndarray], x: np.ndarray, external: Any = None
) -> np.ndarray:
    """Returns the log-densities of the samples `x [B]` under each node: `[B, num_nodes]`.

    `external` holds the log-densities `[B, num_nodes]` of an external leaf.
    """
    dist: Any = ns.dist
    family = type(dist).__name__
    p = {name: np.asarray(array, dtype=np.float64) for name, array in params.items()}
    constants = {name: np.asarray(array) for name, array in ns.constants.items()}
    x = np.asarray(x).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        match family:
            case "Categorical":
                return np.log(p["probs"])[:, x.astype(int)].T
            case "MaskedCategorical":
                allowed = np.where(constants["mask"].astype(bool), p["probs"], 0.0)
                allowed = allowed / allowed.sum(axis=1, keepdims=True)
                return np.log(allowed)[:, x.astype(int)].T
            case "Bernoulli":
                prob = p["prob"][None, :]
                return np.where(x[:, None] > 0, np.log(prob), np.log1p(-prob))
            case "Gaussian":
                return stats.norm.logpdf(x[:, None], loc=p["mu"], scale=p["sigma"])
            case "DiscreteLogistic":
                return _discrete_logistic(dist, p, x)
            case "Indicator":
                return np.log((x[:, None] == constants["state"]).astype(np.float64))
            case "Literal":
                log_one = np.log((x == float(dist.lit)).astype(np.float64))
                return np.repeat(log_one[:, None], ns.num_nodes, axis=1)
            case "Poisson":
                return stats.poisson.logpmf(x[:, None], p["rate"])
            case "Binomial":
                return stats.binom.logpmf(x[:, None], _num_trials(dist), p["prob"])
            case "External":
                return np.asarray(external, dtype=np.float64)
    raise NotImplementedError(f"the oracle does not know {family}")


def _num_trials(dist: Any) -> int:
    return getattr(dist, "num_trials", getattr(dist, "total_count", None))


def _discrete_logistic(dist: Any, p: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Cell k of `num_cats` equal cells has the mass of a logistic; the outer two take the tails."""
    low, high = dist.val_range
    width = (high - low) / dist.num_cats
    scale = next(p[name] for name in ("scale", "s", "std") if name in p)
    left = (low + x[:, None] * width - p["mu"]) / scale
    right = left + width / scale
    left = np.where(x[:, None] == 0, -np.inf, left)
    right = np.where(x[:, None] == dist.num_cats - 1, np.inf, right)
    # Mirror the cells right of the mean: there both values of the distribution function are near 1.
    mirrored = left > 0
    left, right = np.where(mirrored, -right, left), np.where(mirrored, -left, right)
    log_left, log_right = special.log_expit(left), special.log_expit(right)
    return log_right + np.log(-np.expm1(log_left - log_right))


# ----------------------------------------------------------------------------------- upward values


def node_values(
    root: CircuitNodes,
    params: Params,
    x: np.ndarray,
    missing_mask: np.ndarray | None = None,
    propagation: str = "LL",
    alpha: float = 1.0,
    external: Mapping[InputNodes, np.ndarray] | None = None,
    scales: Mapping[SumNodes, np.ndarray] | None = None,
) -> dict[CircuitNodes, np.ndarray]:
    """Returns the log value of every node under `root`, by vector: `[B, num_nodes]`.

    Args:
        root: any vector.
        params: see the module.
        x: `[B, num_vars]`.
        missing_mask: True where a value is missing, `[num_vars]` or `[B, num_vars]`.
        propagation: "LL": log sum theta exp(e); "MPE": max log theta + e; "GeneralLL":
            (1 / alpha) log sum exp(alpha (log theta + e)).
        alpha: of "GeneralLL".
        external: the log-densities `[B, num_nodes]` of external leaves.
        scales: log g `[B, num_nodes, num_ch_nodes]` of scaled vectors: in sample b their weights
            are theta g_b / sum theta g_b.
    """
    x = np.asarray(x)
    missing = np.zeros(x.shape, bool)
    if missing_mask is not None:
        missing = np.broadcast_to(np.asarray(missing_mask, dtype=bool), x.shape)
    values: dict[CircuitNodes, np.ndarray] = {}
    for ns in root:
        if isinstance(ns, InputNodes):
            gone = missing[:, ns.var]
            column = np.where(gone, 0, np.nan_to_num(x[:, ns.var].astype(np.float64)))
            given = None if external is None else external.get(ns)
            log_probs = leaf_log_prob(ns, params[ns.get_source()], column, given)
            values[ns] = np.where(gone[:, None], 0.0, log_probs)
        elif isinstance(ns, ProductNodes):
            nodes = ns.child_node_ids()
            values[ns] = sum(values[ch][:, nodes[:, j]] for j, ch in enumerate(ns.chs))
        elif isinstance(ns, SumNodes):
            terms = edge_terms(ns, params, values, scales)
            values[ns] = _combine(terms, propagation, alpha)
    return values


def edge_terms(
    ns: SumNodes, params: Params, values: Mapping, scales: Mapping | None = None
) -> np.ndarray:
    """Returns log theta_b[i, c] + e[b, c] as `[B, num_nodes, num_ch_nodes]`."""
    e = np.concatenate([values[ch] for ch in ns.chs], axis=1)
    return log_weights(ns, params, scales) + e[:, None, :]


def log_weights(ns: SumNodes, params: Params, scales: Mapping | None = None) -> np.ndarray:
    """Returns log theta_b `[B or 1, num_nodes, num_ch_nodes]`, -inf where there is no edge."""
    with np.errstate(divide="ignore"):
        log_theta = np.log(dense_weights(ns, params[ns.get_source()]))[None]
    if scales is None or ns not in scales:
        return log_theta
    log_product = np.where(np.isneginf(log_theta), -np.inf, log_theta + scales[ns])
    log_z = special.logsumexp(log_product, axis=2, keepdims=True)
    closed = np.isneginf(log_z)
    return np.where(closed, -np.inf, log_product - np.where(closed, 0.0, log_z))


def _combine(terms: np.ndarray, propagation: str, alpha: float) -> np.ndarray:
    if propagation == "MPE":
        return terms.max(axis=2)
    power = alpha if propagation == "GeneralLL" else 1.0
    largest = terms.max(axis=2)
    shift = np.where(np.isneginf(largest), 0.0, largest)
    with np.errstate(divide="ignore"):
        return shift + np.log(np.exp(power * (terms - shift[:, :, None])).sum(axis=2)) / power


def log_likelihood(
    root: CircuitNodes, params: Params, x: np.ndarray, missing_mask: Any = None, **options: Any
) -> np.ndarray:
    """Returns the log-likelihood under each node of `root`: `[B, num_nodes]`. See `node_values`."""
    return node_values(root, params, x, missing_mask, **options)[root]


# ----------------------------------------------------------------------------------- downward flows


def circuit_flows(
    root: CircuitNodes,
    params: Params,
    x: np.ndarray,
    missing_mask: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    propagation: str = "LL",
    alpha: float = 1.0,
    external: Mapping[InputNodes, np.ndarray] | None = None,
    scales: Mapping[SumNodes, np.ndarray] | None = None,
) -> Flows:
    """Returns the flows of every edge and node, from the derivative of each vector by its children.

    In a node n with flow f, the edge to c takes f times: (theta e^(e - v)) for "LL"; its power
    alpha for "GeneralLL", which is the derivative of the general value; for "MPE" 1 at the first
    child that attains the maximum, else 0. Nodes of value -inf pass on nothing.

    Args:
        weights: `[B]` or, for several root nodes, `[B, num_nodes]`: the flows of the roots. Default
            1.
        (The others are those of `node_values`.)
    """
    values = node_values(root, params, x, missing_mask, propagation, alpha, external, scales)
    flows: dict[CircuitNodes, np.ndarray] = {
        ns: np.zeros(value.shape) for ns, value in values.items()
    }
    w = np.ones(len(x)) if weights is None else np.asarray(weights, dtype=np.float64)
    flows[root] += w[:, None] if w.ndim == 1 else w
    sums: dict[SumNodes, np.ndarray] = {}
    denominators: dict[SumNodes, np.ndarray] = {}
    of_scales: dict[SumNodes, np.ndarray] = {}
    for ns in reversed(list(root)):
        if isinstance(ns, ProductNodes):
            nodes = ns.child_node_ids()
            for j, ch in enumerate(ns.chs):
                np.add.at(flows[ch], (slice(None), nodes[:, j]), flows[ns])
        elif isinstance(ns, SumNodes):
            edge_flows = flows[ns][:, :, None] * _shares(
                edge_terms(ns, params, values, scales), values[ns], propagation, alpha
            )
            f = np.where(np.isneginf(values[ns]), 0.0, flows[ns])
            effective = np.exp(log_weights(ns, params, scales))
            theta = dense_weights(ns, params[ns.get_source()])
            ratio = np.divide(effective, theta, out=np.zeros(effective.shape), where=theta > 0)
            denominator = edge_layout(ns, np.einsum("bi,bic->ic", f, ratio + 0 * f[:, :, None]))
            if scales is not None and ns in scales:
                of_scales[ns] = edge_flows - f[:, :, None] * effective
            by_edge = edge_layout(ns, edge_flows.sum(axis=0))
            source = ns.get_source()
            sums[source] = sums.get(source, 0.0) + by_edge
            denominators[source] = denominators.get(source, 0.0) + denominator
            start = 0
            for ch in ns.chs:
                stop = start + ch.num_nodes
                flows[ch] += edge_flows[:, :, start:stop].sum(axis=1)
                start = stop
    return Flows(sums, flows, denominators, of_scales)


def _shares(terms: np.ndarray, values: np.ndarray, propagation: str, alpha: float) -> np.ndarray:
    """Returns d v[b, i] / d (log theta + e)[b, i, c]."""
    dead = np.isneginf(values)[:, :, None]
    if propagation == "MPE":
        first = np.zeros(terms.shape)
        np.put_along_axis(first, terms.argmax(axis=2)[:, :, None], 1.0, axis=2)
        return np.where(dead, 0.0, first)
    power = alpha if propagation == "GeneralLL" else 1.0
    safe_values = np.where(dead, 0.0, values[:, :, None])
    return np.where(dead, 0.0, np.exp(power * (terms - safe_values)))


def root_to_leaf_flows(root: CircuitNodes, params: Params) -> Flows:
    """Returns the flows when nothing is observed: the probability of reaching each node."""
    num_vars = max(root.scope) + 1
    x = np.zeros((1, num_vars))
    external = {ns: np.zeros((1, ns.num_nodes)) for ns in root if isinstance(ns, InputNodes)}
    return circuit_flows(root, params, x, np.ones(num_vars, dtype=bool), external=external)


# ------------------------------------------------------------------------------------- enumeration


def all_assignments(num_cats: int | Sequence[int], num_vars: int | None = None) -> np.ndarray:
    """Returns all assignments int64 `[prod, num_vars]`, in the order of counting.

    Args:
        num_cats: the number of categories, of every variable or one per variable.
        num_vars: the number of variables, if `num_cats` is one number.
    """
    if isinstance(num_cats, int):
        num_cats = [num_cats] * (num_vars or 1)
    return np.array(list(itertools.product(*[range(cats) for cats in num_cats])), dtype=np.int64)


def total_probability(root: CircuitNodes, params: Params, num_cats: Sequence[int]) -> np.ndarray:
    """Returns the sum of the probabilities of all assignments under each node of `root`."""
    return np.exp(log_likelihood(root, params, all_assignments(num_cats))).sum(axis=0)


def completions(row: np.ndarray, missing: np.ndarray, num_cats: Sequence[int]) -> np.ndarray:
    """Returns all assignments that agree with `row` where it is not missing."""
    choices = [range(c) if gone else [v] for v, gone, c in zip(row, missing, num_cats, strict=True)]
    return np.array(list(itertools.product(*choices)), dtype=np.int64)


# ------------------------------------------------------------------------------ per-sample scales


def log_scale(ns: SumNodes, tensors: Sequence[np.ndarray]) -> np.ndarray:
    """Returns log g `[B, num_nodes, num_ch_nodes]`, written out from the definitions.

    LowRank: sum_r A_ir B_rj, or log sum_r exp(A_ir + B_rj). BlockScale: the gate of each pair.
    """
    kind: Any = ns.parameterization
    tensors = [np.asarray(tensor, np.float64) for tensor in tensors]
    shape = (len(tensors[0]), ns.num_nodes, ns.num_ch_nodes)
    out = np.zeros(shape)
    for b, i in np.ndindex(*shape[:2]):
        if type(kind).__name__ == "BlockScale":
            row = i // (kind.block_size or ns.block_size)
            out[b, i] = np.repeat(tensors[0][b, row], kind.ch_block_size or ns.ch_block_size)
        elif kind.form == "exp_sum":
            with np.errstate(invalid="ignore"):
                terms = tensors[0][b, i][:, None] * tensors[1][b]
            out[b, i] = np.where(np.isnan(terms), 0.0, terms).sum(axis=0)  # -inf times 0
        else:
            out[b, i] = special.logsumexp(tensors[0][b, i][:, None] + tensors[1][b], axis=0)
    return out


def tensor_gradients(
    ns: SumNodes, tensors: Sequence[np.ndarray], by_scale: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Returns d LL / d tensors from d LL / d log g, `[B, num_nodes, num_ch_nodes]`."""
    kind: Any = ns.parameterization
    tensors = [np.asarray(tensor, np.float64) for tensor in tensors]
    if type(kind).__name__ == "BlockScale":
        batch, rows, columns = tensors[0].shape
        blocks = by_scale.reshape(batch, rows, ns.num_nodes // rows, columns, -1)
        return (blocks.sum(axis=(2, 4)),)
    a, b = tensors
    if kind.form == "exp_sum":
        # An infinite factor has no gradient, and gives none to its partners.
        finite_a, finite_b = (np.where(np.isinf(t), 0.0, t) for t in (a, b))
        by_a = np.einsum("bij,brj->bir", by_scale, finite_b)
        by_b = np.einsum("bir,bij->brj", finite_a, by_scale)
        return np.where(np.isinf(a), 0.0, by_a), np.where(np.isinf(b), 0.0, by_b)
    log_g = log_scale(ns, tensors)[:, :, None]
    open_pair = np.where(np.isneginf(log_g), 0.0, log_g)
    share = np.exp(a[:, :, :, None] + b[:, None] - open_pair)
    terms = share * by_scale[:, :, None]  # [B, i, r, j]
    return terms.sum(axis=3), terms.sum(axis=1)
