"""What per-sample scales must do whatever their values: identities, limits, extremes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from scaled_cases import (
    FAST_COMPILE,
    check,
    dense_scales,
    everything,
    random_tensors,
    scaled_vectors,
)

import jaxjuice as juice
from jaxjuice.ops import _samples
from jaxjuice.parameterizations import BlockScale, LowRank

KINDS = (
    LowRank(3),
    LowRank(3, "sum_exp"),
    BlockScale(1, 2),
    LowRank(2, "sum_exp", tie_external=True),
)
LENGTH, ROWS = 4, 5


@functools.cache
def model(kind):
    """A homogeneous HMM with four states: (root, circuit)."""
    root = juice.structures.HMM(LENGTH, 4, 3, block_size=2, parameterization=kind)
    return root, juice.compile(root)


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


def data(rows=ROWS):
    return np.random.default_rng(0).integers(0, 3, (rows, LENGTH))


def initial(pc):
    return pc.init(jax.random.key(0), dtype=jnp.float64)


@functools.partial(jax.jit, static_argnames="pc", compiler_options=FAST_COMPILE)
def log_likelihood(pc, params, x, tensors):
    return pc.log_likelihood(params, x, external_params=tensors)


def run(pc, tensors, x=None):
    x = data() if x is None else x
    weights = np.ones((len(x), 1))
    return everything(pc, initial(pc), x, None, weights, tensors)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_no_scale_is_the_shared_circuit(kind) -> None:
    root, pc = model(kind)
    zeros = jax.tree.map(np.zeros_like, random_tensors(np.random.default_rng(0), root, ROWS))
    lls, flows, _ = run(pc, zeros)
    plain, plain_flows = pc.log_likelihood_and_flows(initial(pc), data())
    np.testing.assert_allclose(lls, plain, rtol=1e-14, atol=1e-14)
    # W too: where nothing is scaled it is the flow of the node.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), flows, plain_flows
    )


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_scale_that_is_constant_over_children_changes_nothing(kind) -> None:
    root, pc = model(kind)
    rng = np.random.default_rng(0)
    tensors = random_tensors(rng, root, ROWS, spread=3.0)
    # The last axis is that of children, of B and of gates.
    constant = {
        ns: (*ts[:-1], np.broadcast_to(ts[-1][..., :1], ts[-1].shape)) for ns, ts in tensors.items()
    }
    lls = log_likelihood(pc, initial(pc), data(), constant)
    plain = pc.log_likelihood(initial(pc), data())
    np.testing.assert_allclose(lls, plain, rtol=1e-13)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_gradients(kind) -> None:
    """Finite differences; sums that are 0; F+ - F- = theta dLL/dtheta, and equal sums of both."""
    root, pc = model(kind)
    rng = np.random.default_rng(1)
    tensors = random_tensors(rng, root, ROWS)
    _, flows, (by_params, by_tensors) = run(pc, tensors)
    for ns, gradients in by_tensors.items():
        if isinstance(kind, BlockScale):  # posterior less prior, over the gates of a node
            np.testing.assert_allclose(gradients[0].sum(2), 0, atol=1e-14)
        elif kind.form == "sum_exp":  # over the ranks of a node
            np.testing.assert_allclose(gradients[0].sum(2), 0, atol=1e-14)
        assert np.abs(gradients[0]).max() > 1e-3, ns
    params = initial(pc)
    for name, w in flows.denominators.items():
        theta = params["sums"][name]
        f_minus = theta * np.repeat(w, theta.shape[3] // w.shape[3], axis=3)
        identity = flows.sums[name] - f_minus
        np.testing.assert_allclose(identity, theta * by_params["sums"][name], atol=1e-14)
        np.testing.assert_allclose(flows.sums[name].sum(3), f_minus.sum(3), rtol=1e-12)
    directions = jax.tree.map(lambda t: rng.normal(size=t.shape), (params, tensors))

    def along(step: float) -> float:
        moved = jax.tree.map(lambda t, d: t + step * d, (params, tensors), directions)
        return float(log_likelihood(pc, moved[0], data(), moved[1]).sum())

    slope = (along(1e-6) - along(-1e-6)) / 2e-6
    both = zip(jax.tree.leaves((by_params, by_tensors)), jax.tree.leaves(directions), strict=True)
    np.testing.assert_allclose(sum(float((g * d).sum()) for g, d in both), slope, rtol=1e-7)


def test_probabilities_sum_to_one() -> None:
    for kind in KINDS[:3]:
        root, pc = model(kind)
        x = oracle.all_assignments(3, LENGTH)
        one = random_tensors(np.random.default_rng(0), root, 1, spread=2.0)
        tensors = jax.tree.map(lambda t: np.repeat(t, 3**LENGTH, axis=0), one)
        lls = log_likelihood(pc, initial(pc), x, tensors)
        np.testing.assert_allclose(np.exp(lls).sum(), 1, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS[:3], ids=str)
@pytest.mark.parametrize("dtype", ("float32", "float64"))
def test_extreme_scales(kind, dtype: str) -> None:
    """Log-scales of +-120, and -inf, which closes edges and, at last, whole nodes."""
    root, pc = model(kind)
    rng = np.random.default_rng(3)
    tensors = random_tensors(rng, root, ROWS)
    first, *others = tensors
    extreme = [np.where(rng.random(t.shape) < 0.5, 120.0, -120.0) for t in tensors[first]]
    if isinstance(kind, LowRank) and kind.form == "exp_sum":
        extreme[1] = np.sign(extreme[1])  # the product of both is the log-scale
    tensors[first] = tuple(extreme)
    closed = [t.copy() for t in tensors[others[0]]]
    closed[0][0] = -np.inf  # sample 0: all edges
    closed[0][1, 0] = -np.inf  # sample 1: all edges of the first nodes
    if isinstance(kind, LowRank) and kind.form == "exp_sum":
        closed[1] = np.abs(closed[1])
        closed[1][1, :, 0] = 0.0  # -inf times 0 counts as 0: to the first child, edges stay open
    tensors[others[0]] = tuple(closed)
    tolerance = 1e-9 if dtype == "float64" else 1e-4
    check(root, data(), None, tensors, dtype=dtype, tolerance=tolerance)
    params = pc.init(jax.random.key(0), dtype=dtype)
    lls = log_likelihood(pc, params, data(), tensors)
    assert lls[0] == -np.inf and np.isfinite(lls[1:]).all()


@pytest.mark.parametrize("kind", (LowRank(3), LowRank(3, "sum_exp"), BlockScale(1, 1)), ids=str)
def test_child_values_spread_over_hundreds_of_nats_in_float32(kind) -> None:
    """Scales lift children that lie up to 1,000 nats below others; no digits are lost."""
    external = juice.distributions.External()
    leaves = [juice.inputs(v, num_nodes=4, dist=external) for v in range(2)]
    root = juice.summate(juice.multiply(*leaves), num_nodes=1, parameterization=kind)
    pc = juice.compile(root)
    rng = np.random.default_rng(0)
    logs = np.array([-500.0, -300.0, -20.0, 0.0]) + rng.normal(size=(ROWS, 2, 4))
    lift = -logs.sum(1, keepdims=True) + rng.normal(size=(ROWS, 1, 4))
    if isinstance(kind, BlockScale):
        tensors = (lift,)
    elif kind.form == "exp_sum":
        a = np.broadcast_to(np.array([1.0, 0.0, 0.0]), (ROWS, 1, 3))
        tensors = a, np.concatenate([lift, rng.normal(size=(ROWS, 2, 4))], axis=1)
    else:  # each rank lifts some of the children
        ranks = np.where(np.arange(3)[:, None] == np.array([0, 1, 2, 2]), lift, -1000.0)
        tensors = rng.normal(size=(ROWS, 1, 3)), ranks
    params = pc.init(jax.random.key(0), dtype="float32")
    given = {root: tuple(np.asarray(t, np.float32) for t in tensors)}

    def value(tensors):
        return pc.log_likelihood(
            params,
            np.zeros((ROWS, 2)),
            external_log_probs=np.float32(logs),
            external_params=tensors,
        )

    lls, gradient = value(given), jax.grad(lambda t: value(t).sum())(given)[root]
    options = {
        "external": {ns: np.float32(logs)[:, v] for v, ns in enumerate(leaves)},
        "scales": dense_scales(root, given),
    }
    values = pc.node_params(params)
    expected = oracle.log_likelihood(root, values, np.zeros((ROWS, 2)), **options)
    np.testing.assert_allclose(lls, expected[:, 0], rtol=1e-5, atol=1e-4)
    flows = oracle.circuit_flows(root, values, np.zeros((ROWS, 2)), **options)
    # In float32 sums of hundreds have 2^-24 of them as rounding, and gradients are exponentials.
    for found, wanted in zip(
        gradient, oracle.tensor_gradients(root, given[root], flows.scales[root]), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=3e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("kind", (LowRank(3), LowRank(3, "sum_exp"), BlockScale(2, 1)), ids=str)
def test_weights_of_0_do_not_hide_other_children_in_float32(kind) -> None:
    """A child of weight 0 lies 300 nats above those that the nodes have."""
    external = juice.distributions.External()
    leaf = juice.inputs(0, num_nodes=4, dist=external)
    weights = [[0, 0.5, 0.3, 0.2], [0, 0.1, 0.8, 0.1]]
    root = juice.summate(leaf, num_nodes=2, block_size=2, parameterization=kind, params=weights)
    pc = juice.compile(root)
    rng = np.random.default_rng(0)
    logs = rng.normal(size=(ROWS, 4)) + np.array([300.0, 0.0, 0.0, 0.0])
    # The scale lifts it, too.
    tensors = [t.copy() for t in random_tensors(rng, root, ROWS)[root]]
    tensors[-1][..., 0] = 200.0
    params = pc.init(jax.random.key(0), dtype="float32")
    given = {root: tuple(np.float32(t) for t in tensors)}
    lls, flows = pc.log_likelihood_and_flows(
        params,
        np.zeros((ROWS, 1)),
        external_log_probs={0: np.float32(logs)},
        external_params=given,
    )
    wanted = oracle.circuit_flows(
        root,
        pc.node_params(params),
        np.zeros((ROWS, 1)),
        external={leaf: np.float32(logs)},
        scales=dense_scales(root, given),
    )
    assert np.isfinite(lls).all()
    np.testing.assert_allclose(pc.get_node_flows(flows, root), wanted.sums[root], rtol=1e-4)
    live = pc.get_node_params(params, root) > 0
    found = pc.get_node_denominators(flows, root)
    np.testing.assert_allclose(found[live], wanted.denominators[root][live], rtol=1e-4)


@pytest.mark.parametrize("kind", (LowRank(3, "sum_exp"), BlockScale(2, 1)), ids=str)
def test_weights_of_0_have_their_gradients(kind) -> None:
    """Of a child that no node has, a little above those that they have."""
    external = juice.distributions.External()
    leaf = juice.inputs(0, num_nodes=3, dist=external)
    weights = np.array([[0, 0.6, 0.4], [0, 0.1, 0.9]])
    root = juice.summate(leaf, num_nodes=2, block_size=2, parameterization=kind, params=weights)
    pc = juice.compile(root)
    rng = np.random.default_rng(0)
    logs = rng.normal(size=(ROWS, 3)) + np.array([3.0, 0.0, 0.0])
    tensors = random_tensors(rng, root, ROWS)
    with jax.enable_x64(True):
        params = pc.init(jax.random.key(0), dtype=jnp.float64)

        @functools.partial(jax.jit, compiler_options=FAST_COMPILE)
        def gradient(params):
            options = {"external_log_probs": {0: logs}, "external_params": tensors}
            x = jnp.zeros((ROWS, 1))
            return jax.grad(lambda params: pc.log_likelihood(params, x, **options).sum())(params)

        found = pc.get_node_params(gradient(params), root)
    g = np.exp(dense_scales(root, tensors)[root])  # [B, M, N]
    n, z = (g * np.exp(logs)[:, None]), g
    wanted = (
        n / (n * weights).sum(2, keepdims=True) - z / (z * weights).sum(2, keepdims=True)
    ).sum(0)
    np.testing.assert_allclose(found[:, :, 0].T, wanted, rtol=1e-10)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (None, "float32"),
        (LowRank(2, "sum_exp"), "float32"),
        (LowRank(2, "sum_exp"), "float64"),
        (BlockScale(10, 1), "float32"),
    ],
    ids=str,
)
def test_nodes_far_below_others_have_their_flows(kind, dtype: str) -> None:
    """Whose only child lies almost as far below as the dtype reaches, beside weights of 0."""
    depth, rows = (86.5 if dtype == "float32" else 600.0), 64
    external = juice.distributions.External()
    leaf = juice.inputs(0, num_nodes=3, dist=external)
    # Together the nodes of the last child have flows that their factors alone overflow.
    weights, size = [[0, 1.0, 0], *9 * [[0, 0, 1.0]]], 10
    root = juice.summate(
        leaf, num_nodes=size, block_size=size, parameterization=kind, params=weights
    )
    pc = juice.compile(root)
    # No node has the first child; in a plain layer it would hide the others.
    logs = np.repeat([[-100.0 if kind is None else 300.0, 0.0, -depth]], rows, axis=0)
    with jax.enable_x64(dtype == "float64"):
        raw = pc.to_unconstrained(pc.init(jax.random.key(0), dtype=dtype))
        constant = random_tensors(np.random.default_rng(0), root, rows, spread=0.0)

        @functools.partial(jax.jit, compiler_options=FAST_COMPILE)
        def call(raw):
            def total(raw, logs):
                lls, flows = pc.log_likelihood_and_flows(
                    pc.from_unconstrained(raw),
                    jnp.zeros((rows, 1)),
                    external_log_probs={0: logs},
                    external_params=constant,
                )
                return lls.sum(), (lls, flows)

            return jax.grad(total, (0, 1), has_aux=True)(raw, logs.astype(dtype))

        (of_raw, of_logs), (lls, flows) = call(raw)
    expected = np.repeat([[0] + 9 * [-depth]], rows, axis=0)
    np.testing.assert_allclose(lls, expected, rtol=1e-5, atol=1e-5)
    wanted = np.float64(weights).T[:, :, None] * rows
    np.testing.assert_allclose(pc.get_node_flows(flows, root), wanted, rtol=1e-4)
    assert all(np.isfinite(gradient).all() for gradient in jax.tree.leaves((of_raw, of_logs)))
    if dtype == "float64":  # far from its limits
        np.testing.assert_allclose(of_logs, np.repeat([[0, 1, 9]], rows, axis=0), rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS[:3], ids=str)
@pytest.mark.parametrize(("propagation", "alpha"), [("MPE", 1.0), ("GeneralLL", 1.7)])
def test_other_propagations(kind, propagation: str, alpha: float) -> None:
    root, pc = model(kind)
    params = initial(pc)
    tensors = random_tensors(np.random.default_rng(2), root, ROWS)
    options = {"propagation": propagation, "alpha": alpha}

    @functools.partial(jax.jit, compiler_options=FAST_COMPILE)
    def call(tensors):
        def total(tensors):
            lls, flows = pc.log_likelihood_and_flows(
                params, data(), external_params=tensors, **options
            )
            return lls.sum(), (lls, flows)

        return jax.value_and_grad(total, has_aux=True)(tensors)

    (_, (lls, flows)), gradient = call(tensors)
    values, scales = pc.node_params(params), dense_scales(root, tensors)
    wanted = oracle.circuit_flows(root, values, data(), scales=scales, **options)
    expected = oracle.log_likelihood(root, values, data(), scales=scales, **options)
    np.testing.assert_allclose(lls, expected[:, 0], rtol=1e-10)
    for ns in scaled_vectors(root):
        source = ns.get_source()
        np.testing.assert_allclose(pc.get_node_flows(flows, ns), wanted.sums[source], atol=1e-10)
        w = pc.get_node_denominators(flows, ns)
        np.testing.assert_allclose(w, wanted.denominators[source], atol=1e-10)
    for ns, found in gradient.items():
        by_hand = oracle.tensor_gradients(ns, tensors[ns], wanted.scales[ns])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), found, by_hand)


@pytest.mark.parametrize(
    ("kind", "rows"),
    [(LowRank(3), 7), (LowRank(3), 8), (LowRank(3, "sum_exp"), 7), (BlockScale(2, 1), 7)],
    ids=str,
)
def test_parts_of_a_batch(kind, rows: int, monkeypatch) -> None:
    """A batch that is taken three samples at a time (the last part filled up) gives the same."""
    root, _ = model(kind)
    pc = juice.compile(root)
    tensors = random_tensors(np.random.default_rng(0), root, rows)
    whole = run(pc, tensors, data(rows))
    monkeypatch.setattr(_samples, "_MOST_ELEMENTS", 3 * 16)
    in_parts = run(juice.compile(root), tensors, data(rows))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13), in_parts, whole
    )


def test_samples_are_summed_where_they_lie() -> None:
    """Half onto half on CPUs; elsewhere in one sum, which moves nothing between devices."""
    x = np.random.default_rng(0).normal(size=(2, 7, 3)).astype(np.float32)
    summed = jax.jit(_samples.sum_samples)
    np.testing.assert_allclose(summed(x), x.sum(1), rtol=1e-5)
    traced = summed.trace(x)
    assert "slice" in traced.lower(lowering_platforms=("cpu",)).as_text()
    assert "slice" not in traced.lower(lowering_platforms=("cuda",)).as_text()


def test_num_parts_divides_the_batch_where_it_can(monkeypatch) -> None:
    monkeypatch.setattr(_samples, "_MOST_ELEMENTS", 100)
    assert _samples.num_parts(10, 10) == 1
    assert _samples.num_parts(12, 20) == 3
    assert _samples.num_parts(10, 25) == 5  # 3 would do, and does not divide 10
    assert _samples.num_parts(13, 20) == 3  # a prime: the last part is filled up
    assert _samples.num_parts(4, 10**9) == 4
    assert _samples.num_parts(0, 10**9) == 1


def test_scratch_of_exp_sum_is_bounded() -> None:
    """M = N = 1024, batch 512, rank 16: all scales at once would be 2 GiB, twice and more."""
    kind = LowRank(16)
    dist = juice.distributions.Categorical(num_cats=2)
    leaf = juice.inputs(0, num_nodes=1024, dist=dist)
    root = juice.summate(leaf, num_nodes=1024, block_size=1024, parameterization=kind)
    pc = juice.compile(root)
    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    params = jax.tree.map(
        lambda s: shape(s.shape), jax.eval_shape(lambda: pc.init(jax.random.key(0)))
    )
    tensors = {root: (shape((512, 1024, 16)), shape((512, 16, 1024)))}
    x = jax.ShapeDtypeStruct((512, 1), jnp.int32)

    def step(params, x, tensors):
        def total(params, tensors):
            return pc.log_likelihood(params, x, external_params=tensors).sum()

        return jax.grad(total, argnums=(0, 1))(params, tensors)

    compiled = jax.jit(step, compiler_options=FAST_COMPILE).lower(params, x, tensors).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2**30
