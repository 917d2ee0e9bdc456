"""The families under test, each with an independent float64 description of what it should be.

A `Case` states a family's density, statistics and support in numpy and scipy, one node at a time.
The contract suite compares the family's arrays with it.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from jaxjuice import distributions as dists

Node = Mapping[str, np.ndarray]
"""Parameters or constants of one node."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A family and what is true of it.

    Attributes:
        name: of the test.
        dist: the family.
        draw: draws parameters `[num_nodes, *shape]` for given constants.
        log_prob: log-density of values `[N]` at one node: (params, constants, x) -> `[N]`.
        statistic: the family's statistics of one value at one node: (constants, x) -> arrays.
        values: legal values to test with.
        support: all values (cut where nothing is left), or None for the real line.
        constants: what the user gives to `inputs`.
        flow: the total flow in statistics by name, `[P, K]`.
        prior: the parameters that a huge pseudocount leads to, or None where it is ignored.
        exact: whether the M-step maximizes the expected log-likelihood.
    """

    name: str
    dist: dists.Distribution
    draw: Callable[[np.random.Generator, int, Node], dict[str, np.ndarray]]
    log_prob: Callable[[Node, Node, np.ndarray], np.ndarray]
    statistic: Callable[[Node, float], dict[str, np.ndarray | float]]
    values: np.ndarray
    support: np.ndarray | None
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    flow: Callable[[Mapping[str, np.ndarray]], np.ndarray] | None = None
    prior: Callable[[Node], dict[str, np.ndarray | float]] | None = None
    exact: bool = True


@functools.cache
def jitted(dist: dists.Distribution, method: str) -> Callable:
    """A compiled method of a family, one for the whole session."""
    static = ("keep_zero_params",) if method == "m_step" else ()
    return jax.jit(getattr(dist, method), static_argnames=static)


def dag_arrays(case: Case, num_nodes: int, seed: int) -> tuple[dict, dict]:
    """Parameters and constants of one node vector, `[num_nodes, *shape]`."""
    rng = np.random.default_rng(seed)
    constants = case.dist.check_constants(num_nodes, case.constants)
    params = case.draw(rng, num_nodes, constants)
    return case.dist.check_params(params, constants), constants


def make_leaf(
    case: Case, num_params: int = 3, num_nodes: int = 3, param_ids=None, dtype=jnp.float32, seed=0
) -> dists.LeafGroup:
    """A leaf group with random parameters, laid out as the compiler does it."""
    both = [dag_arrays(case, num_nodes, seed + index) for index in range(num_params)]

    def stacked(arrays: list[dict]) -> dict[str, np.ndarray]:
        names = arrays[0].keys()
        return {n: np.stack([np.moveaxis(a[n], 0, -1) for a in arrays]) for n in names}

    params = {n: jnp.asarray(a, dtype) for n, a in stacked([p for p, _ in both]).items()}
    constants = {n: jnp.asarray(a) for n, a in stacked([c for _, c in both]).items()}
    ids = None if param_ids is None else jnp.asarray(param_ids, jnp.int32)
    return dists.LeafGroup(params, constants, ids)


def node_of(arrays: Mapping[str, Any], index: int, node: int) -> dict[str, np.ndarray]:
    """What parameter set `index` holds for one node, in float64."""
    found = {n: np.asarray(a)[index, ..., node] for n, a in arrays.items()}
    return {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in found.items()}


def set_of(leaf: dists.LeafGroup, index: int) -> int:
    """The parameter set of a leaf."""
    return index if leaf.param_ids is None else int(leaf.param_ids[index])


def reference_log_prob(case: Case, leaf: dists.LeafGroup, x: np.ndarray) -> np.ndarray:
    """`[V, B, K]` in float64, from the parameters as the leaf holds them."""
    result = np.zeros((*x.shape, leaf.num_nodes))
    for v in range(x.shape[0]):
        for k in range(leaf.num_nodes):
            p = node_of(leaf.params, set_of(leaf, v), k)
            c = node_of(leaf.constants, set_of(leaf, v), k)
            with np.errstate(divide="ignore"):
                result[v, :, k] = case.log_prob(p, c, np.asarray(x[v], np.float64))
    return result


def reference_statistics(
    case: Case, leaf: dists.LeafGroup, x: np.ndarray, flows: np.ndarray
) -> dict[str, np.ndarray]:
    """`[P, *shape, K]` in float64, one observation after the other."""
    shapes = case.dist.stat_shapes()
    totals = {n: np.zeros((leaf.num_params, *s, leaf.num_nodes)) for n, s in shapes.items()}
    for v, b in np.ndindex(*x.shape):
        for k in range(leaf.num_nodes):
            constants = node_of(leaf.constants, set_of(leaf, v), k)
            for name, value in case.statistic(constants, x[v, b]).items():
                totals[name][set_of(leaf, v), ..., k] += flows[v, b, k] * value
    return totals


# ------------------------------------------------------------------------------ categories


def _draw_probs(rng, num_nodes, constants, num_cats, zero=False):
    probs = rng.dirichlet(np.ones(num_cats), num_nodes)
    mask = constants.get("mask")
    probs = probs if mask is None else np.where(mask, probs, 0)
    if zero:
        probs[:, 1] = 0
    return {"probs": probs / probs.sum(axis=1, keepdims=True)}


def _categorical(name, num_cats, zero=False, dist=None, constants=None) -> Case:
    def log_prob(params, constants, x):
        return np.log(params["probs"][x.astype(int)])

    def prior(constants):
        mask = constants.get("mask", np.ones(num_cats, bool))
        return {"probs": mask / mask.sum()}

    return Case(
        name,
        dist or dists.Categorical(num_cats),
        lambda rng, num_nodes, c: _draw_probs(rng, num_nodes, c, num_cats, zero),
        log_prob,
        lambda constants, x: {"counts": np.eye(num_cats)[int(x)]},
        np.arange(num_cats),
        np.arange(num_cats),
        constants or {},
        lambda s: s["counts"].sum(axis=1),
        prior,
    )


def _masked(mode, mask) -> Case:
    dist = dists.MaskedCategorical(7, mode)
    return _categorical(f"masked_{mode}", 7, False, dist, {"mask": mask})


# ------------------------------------------------------------------------------ counts


def _binomial(name, num_trials, dist, probs=None) -> Case:
    first, second = dist.stat_shapes()

    def draw(rng, num_nodes, constants):
        drawn = rng.uniform(0.05, 0.95, num_nodes)
        return {"prob": drawn if probs is None else np.resize(probs, num_nodes)}

    return Case(
        name,
        dist,
        draw,
        lambda p, c, x: stats.binom.logpmf(x, num_trials, p["prob"]),
        lambda c, x: {first: x, second: num_trials - x},
        np.unique(np.linspace(0, num_trials, 12).astype(int)),
        np.arange(num_trials + 1),
        flow=lambda s: (s[first] + s[second]) / num_trials,
        prior=lambda c: {"prob": 0.5},
    )


def _poisson(name, dist, scale) -> Case:
    return Case(
        name,
        dist,
        lambda rng, num_nodes, c: {"rate": scale * rng.uniform(0.2, 2, num_nodes)},
        lambda p, c, x: stats.poisson.logpmf(x, p["rate"]),
        lambda c, x: {"flow": 1.0, "total": x},
        np.unique((scale * np.linspace(0, 4, 12)).astype(int)),
        np.arange(int(2 * scale + 40 * np.sqrt(2 * scale))),
        flow=lambda s: s["flow"],
        prior=None if dist.rate is None else lambda c: {"rate": dist.rate},
    )


# ------------------------------------------------------------------------------ real numbers


def _gaussian(name, dist, middle, scale, constants=None) -> Case:
    def statistic(constants, x):
        d = x - constants["center"]
        return {"flow": 1.0, "first": d, "second": d * d}

    def draw(rng, num_nodes, constants):
        mu = middle + scale * rng.standard_normal(num_nodes)
        return {"mu": mu, "sigma": scale * rng.uniform(0.5, 2, num_nodes)}

    return Case(
        name,
        dist,
        draw,
        lambda p, c, x: stats.norm.logpdf(x, p["mu"], p["sigma"]),
        statistic,
        middle + scale * np.linspace(-3, 3, 12),
        None,
        constants or {},
        lambda s: s["flow"],
    )


def _logistic(name, val_range, num_cats) -> Case:
    low, high = val_range
    width = (high - low) / num_cats

    def log_prob(params, constants, x):
        edges = low + width * np.arange(num_cats + 1)
        cdf = special.expit((edges - params["mu"]) / params["scale"])
        cdf[0], cdf[-1] = 0, 1
        return np.log(np.diff(cdf))[x.astype(int)]

    def statistic(constants, x):
        d = low + width * (x + 0.5) - (low + high) / 2
        return {"flow": 1.0, "first": d, "second": d * d}

    def draw(rng, num_nodes, constants):
        mu = rng.uniform(low, high, num_nodes)
        return {"mu": mu, "scale": (high - low) * rng.uniform(0.05, 0.2, num_nodes)}

    return Case(
        name,
        dists.DiscreteLogistic(val_range, num_cats),
        draw,
        log_prob,
        statistic,
        np.arange(num_cats),
        np.arange(num_cats),
        flow=lambda s: s["flow"],
        exact=False,
    )


# ------------------------------------------------------------------------------ nothing to learn


def _certain(name, dist, target, values, constants=None) -> Case:
    return Case(
        name,
        dist,
        lambda rng, num_nodes, c: {},
        lambda p, c, x: np.where(x == target(c), 0.0, -np.inf),
        lambda c, x: {},
        np.asarray(values),
        np.asarray(values),
        constants or {},
    )


CASES = [
    _categorical("categorical_1", 1),
    _categorical("categorical_3", 3),
    _categorical("categorical_7", 7),
    _categorical("categorical_zero", 5, zero=True),
    _masked("rev_range", [[1, 4], [0, 6], [2, 2]]),
    _binomial("bernoulli", 1, dists.Bernoulli()),
    _binomial("bernoulli_certain", 1, dists.Bernoulli(), [0.0, 1.0, 0.25]),
    _binomial("binomial_300", 300, dists.Binomial(300)),
    _binomial("binomial_certain", 6, dists.Binomial(6), [0.0, 1.0, 0.25]),
    _poisson("poisson", dists.Poisson(rate=50.0), 50.0),
    _gaussian("gaussian", dists.Gaussian(), -5.0, 3.0, {"center": -4.0}),
    _logistic("logistic", (-1.0, 1.0), 8),
    _certain(
        "indicator_states",
        dists.Indicator(9),
        lambda c: c["state"],
        np.arange(9),
        {"state": [7, 0, 7]},
    ),
    _certain("literal_half", dists.Literal(0.5), lambda c: 0.5, [0.0, 0.5, 5.0]),
]

LEARNING = [case for case in CASES if case.dist.param_shapes()]
"""The cases that have parameters."""

ONE_EACH = list({type(case.dist): case for case in CASES}.values())
"""One case of every family, the last of each; the ones with zero probabilities among them."""

TIED = [0, 1, 1, 2, 0]
"""The parameter sets of five leaves, of which some share theirs."""


def cases(selection=CASES):
    """One test a case."""
    return pytest.mark.parametrize("case", selection, ids=lambda case: case.name)


def cases_and_dtypes(selection=CASES):
    """All in float32, one of every family in float64; `dtype` is a fixture of `conftest.py`."""
    both = [(case, "float32") for case in selection]
    both += [(case, "float64") for case in selection if case in ONE_EACH]
    ids = [f"{case.name}-{name}" for case, name in both]
    return pytest.mark.parametrize(("case", "dtype"), both, ids=ids, indirect=["dtype"])
