"""The argument `external_params`: keys, groups, shapes, dtypes, transformations, files, samples."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from scaled_cases import FAST_COMPILE, dense_scales, random_tensors, scaled_vectors

import jaxjuice as juice
from jaxjuice import parameterizations
from jaxjuice._external_params import make_parts, plan_of
from jaxjuice.parameterizations import BlockScale, LowRank, Parameterization

LENGTH, ROWS = 4, 6
PAIRS = LowRank(2)


@functools.cache
def model(kind=PAIRS):
    root = juice.structures.HMM(LENGTH, 4, 3, block_size=2, parameterization=kind)
    return root, juice.compile(root)


def data(rows=ROWS):
    return np.random.default_rng(0).integers(0, 3, (rows, LENGTH))


def tensors_of(root, rows=ROWS, dtype=np.float32):
    drawn = random_tensors(np.random.default_rng(1), root, rows)
    return jax.tree.map(lambda t: jnp.asarray(t, dtype), drawn)


@functools.partial(jax.jit, static_argnames="pc", compiler_options=FAST_COMPILE)
def values_and_gradients(pc, params, x, tensors):
    """Log-likelihoods, flows, and the gradient of the tensors, in one pass."""

    def total(tensors):
        lls, flows = pc.log_likelihood_and_flows(params, x, external_params=tensors)
        return lls.sum(), (lls, flows)

    gradient, (lls, flows) = jax.grad(total, has_aux=True)(tensors)
    return lls, flows, gradient


# ---------------------------------------------------------------------------------- construction


def test_construction() -> None:
    leaf = juice.inputs(0, num_nodes=4, dist=juice.distributions.Categorical(num_cats=2))
    for make, words in (
        (lambda: LowRank(0), "rank=0"),
        (lambda: LowRank(2.5), "rank=2.5"),
        (lambda: LowRank(2, "sum"), "form='sum'"),
        (lambda: LowRank(2, flow_precision="fp4"), "flow_precision='fp4'"),
        (lambda: LowRank(2, "exp_sum", "no"), "apply_z_correction='no'"),
        (lambda: BlockScale(tie_external=1), "tie_external=1"),
        (lambda: BlockScale(0), "block_size=0"),
        (lambda: BlockScale(None, -1), "ch_block_size=-1"),
        (lambda: juice.summate(leaf, num_nodes=4, parameterization="low rank"), "'low rank'"),
        (lambda: juice.summate(leaf, num_nodes=4, parameterization=BlockScale(3)), "block_size=3"),
    ):
        with pytest.raises(juice.StructureError, match=words.replace("(", r"\(")):
            make()
    with juice.set_block_size(2):
        leaf = juice.inputs(0, num_nodes=4, dist=juice.distributions.Categorical(num_cats=2))
        with pytest.raises(juice.StructureError, match="ch_block_size=4.* 2 of the vector"):
            juice.summate(leaf, num_nodes=4, parameterization=BlockScale(1, 4))
        ns = juice.summate(leaf, num_nodes=4, parameterization=BlockScale())
    assert ns.resolved_parameterization() == BlockScale(2, 2)
    assert type(LowRank(np.int64(2)).rank) is type(BlockScale(np.int64(2)).block_size) is int
    assert ns.duplicate().parameterization == ns.parameterization
    tied = ns.duplicate(tie_params=True)
    assert tied.parameterization is ns.parameterization
    with pytest.raises(juice.StructureError, match="takes its parameterization from its source"):
        juice.summate(leaf, num_nodes=4, block_size=2, source_node=ns, parameterization=LowRank(2))


def test_layers_are_of_one_parameterization() -> None:
    """Vectors of equal sizes, of which some are scaled in other ways or not at all."""
    dist = juice.distributions.Categorical(num_cats=2)
    kinds = [
        None,
        LowRank(2),
        LowRank(3),
        LowRank(2, "sum_exp"),
        BlockScale(1, 1),
        BlockScale(2, 1),
    ]
    sums = [
        juice.summate(
            juice.inputs(v, num_nodes=4, dist=dist), num_nodes=4, block_size=4, parameterization=k
        )
        for v, k in enumerate(kinds + kinds)
    ]
    pc = juice.compile(juice.summate(juice.multiply(*sums), num_nodes=1))
    layers = [layer for stage in pc.program.stages for layer in stage]
    found = [layer.scaled and layer.scaled.parameterization for layer in layers]
    assert len(found) == len(kinds) + 1  # and the root
    assert {*found} == {*kinds}
    assert all(layer.quota == 2 for layer in layers if layer.num_nodes == 4)


# ------------------------------------------------------------------------------------- the argument


@pytest.mark.parametrize("kind", (LowRank(2), LowRank(2, "sum_exp"), BlockScale(1, 2)), ids=str)
def test_a_group_is_its_members(kind) -> None:
    root, pc = model(kind)
    params = pc.init(jax.random.key(0))
    tensors = tensors_of(root)
    first, *others = tensors
    grouped = pc.register_external_params_group("others", others[::-1])
    assert grouped is not pc and not pc.external_params_groups
    joined = tuple(
        jnp.concatenate(same, 1) for same in zip(*[tensors[ns] for ns in others[::-1]], strict=True)
    )
    lls, flows, gradient = values_and_gradients(pc, params, data(), tensors)
    by_group = {"others": joined}
    found, group_flows, group_gradient = values_and_gradients(grouped, params, data(), by_group)
    assert (found != lls).any()  # the first vector is a plain sum in this call
    alone = {ns: tensors[ns] for ns in others}
    lls, flows, gradient = values_and_gradients(pc, params, data(), alone)
    np.testing.assert_array_equal(found, lls)
    jax.tree.map(np.testing.assert_array_equal, group_flows, flows)
    # Names and vectors are keys of one pytree.
    mixed = {"others": joined, first: tensors[first]}
    assert [*jax.tree.map(lambda t: t, mixed)] == [first, "others"]
    members = [gradient[ns] for ns in others[::-1]]
    wanted = tuple(jnp.concatenate(same, 1) for same in zip(*members, strict=True))
    jax.tree.map(np.testing.assert_array_equal, group_gradient["others"], wanted)
    both = grouped.with_precision("fp32").log_likelihood(
        params, data(), external_params={"others": joined, first: tensors[first]}
    )
    np.testing.assert_allclose(both, pc.log_likelihood(params, data(), external_params=tensors))


def test_tied_copies_share_tensors_and_sum_gradients() -> None:
    (root, pc), (other_root, other) = (model(LowRank(2, tie_external=tie)) for tie in (True, False))
    params = pc.init(jax.random.key(0))
    (source,) = {ns.get_source() for ns in scaled_vectors(root)}
    shared = tensors_of(root)
    assert list(shared) == [source]
    copies = scaled_vectors(other_root)
    assert len(copies) == LENGTH - 1
    apart = {ns: shared[source] for ns in copies}
    lls, flows, gradient = values_and_gradients(pc, params, data(), shared)
    wanted, wanted_flows, by_copy = values_and_gradients(other, params, data(), apart)
    np.testing.assert_allclose(lls, wanted, rtol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), flows.sums, wanted_flows.sums
    )
    for index in range(2):
        total = sum(by_copy[ns][index] for ns in copies)
        np.testing.assert_allclose(gradient[source][index], total, rtol=1e-4, atol=1e-5)
    # The tensors are not multiplied by the steps that read them.
    (scales,) = {scale for stage in plan_of(pc, (source,)).scales for scale in stage if scale}
    parts = make_parts(plan_of(pc, (source,)), (shared[source],), jnp.float32)
    assert scales.fixed
    assert [p.size for p in parts[0][0]] == [t.size for t in shared[source]]
    # A copy stands for its source.
    copy = next(ns for ns in scaled_vectors(root) if ns.is_tied)
    same = pc.log_likelihood(params, data(), external_params={copy: shared[source]})
    np.testing.assert_allclose(same, wanted, rtol=1e-6)
    with pytest.raises(juice.DataError, match="twice"):
        pc.log_likelihood(params, data(), external_params={copy: shared[source], **shared})


def test_errors() -> None:
    root, pc = model()
    params = pc.init(jax.random.key(0))
    ns, *others = scaled_vectors(root)
    a, b = tensors_of(root)[ns]
    stranger = scaled_vectors(model(LowRank(3))[0])[0]

    def call(given):
        return pc.log_likelihood(params, data(), external_params=given)

    for given, words in (
        (
            {ns: (a, b[:, :1])},
            r"came with shapes \[6, 4, 2\], \[6, 1, 4\], and \[6, 4, 2\], \[6, 2",
        ),
        ({ns: (a[:3], b[:3])}, r"\[3, 4, 2\].* \[6, 4, 2\]"),
        ({ns: a}, r"came with shapes \[6, 4, 2\], and"),
        ({ns: (a.astype(int), b)}, "dtype int32"),
        ({"transitions": (a, b)}, r"'transitions', and the groups of this circuit are \[\]"),
        ({root: (a, b)}, "has no parameterization"),
        ({stranger: (a, b)}, "not a sum vector of this circuit"),
        ({3: (a, b)}, "3 is not a sum vector"),
        ((a, b), "is a tuple, and a dict"),
    ):
        with pytest.raises(juice.DataError, match=words):
            call(given)
        with pytest.raises(juice.DataError, match=words):
            jax.eval_shape(lambda given=given: call(given))
    for name, nodes, words in (
        ("g", [], "at least one"),
        ("g", None, "at least one"),
        ("g", ns, "at least one"),
        ("g", [ns, ns], "twice"),
        ("g", [ns, root], "no parameterization"),
        ("g", [ns, stranger], "not a sum vector"),
        (3, [ns], "is a string"),
    ):
        with pytest.raises(juice.StructureError, match=words):
            pc.register_external_params_group(name, nodes)
    grouped = pc.register_external_params_group("g", [ns])
    with pytest.raises(juice.StructureError, match="already"):
        grouped.register_external_params_group("g", others)
    with pytest.raises(juice.DataError, match="twice"):
        grouped.log_likelihood(params, data(), external_params={"g": (a, b), ns: (a, b)})


def test_a_group_wants_equal_parameterizations() -> None:
    dist = juice.distributions.Categorical(num_cats=2)
    leaves = [juice.inputs(v, num_nodes=2 + v % 2, dist=dist) for v in range(4)]
    kinds = [LowRank(2), LowRank(2), LowRank(2), LowRank(2, "sum_exp")]
    sums = [
        juice.summate(leaf, num_nodes=size, parameterization=kind)
        for leaf, kind, size in zip(leaves, kinds, (2, 3, 2, 3), strict=True)
    ]
    pairs = [juice.summate(juice.multiply(sums[i], sums[i + 2]), num_nodes=1) for i in (0, 1)]
    root = juice.summate(juice.multiply(*pairs), num_nodes=1)
    pc = juice.compile(root)
    with pytest.raises(juice.StructureError, match="cannot be concatenated"):
        pc.register_external_params_group("g", sums[:2])  # other numbers of children
    with pytest.raises(juice.StructureError, match="cannot be concatenated"):
        pc.register_external_params_group("g", [sums[1], sums[3]])
    pc.register_external_params_group("g", [sums[0], sums[2]])


@dataclasses.dataclass(frozen=True)
class Shapes(Parameterization):
    """Of the tensors, and of what it makes of them for one node and two children."""

    tensors: tuple[tuple[int, ...], ...]
    scale: tuple[int, ...] = ()

    def tensor_shapes(self, num_nodes, num_ch_nodes):
        return self.tensors

    def log_scale(self, tensors, num_nodes, num_ch_nodes):
        return jnp.zeros(self.scale)


def test_errors_of_a_parameterization_of_your_own() -> None:
    leaf = juice.inputs(0, num_nodes=2, dist=juice.distributions.Categorical(num_cats=2))
    unhashable = Shapes([(2,)])  # pyright: ignore[reportArgumentType]
    for kind, words in ((unhashable, "frozen dataclass"), (Shapes(()), "takes no tensors")):
        with pytest.raises(juice.StructureError, match=words):
            juice.summate(leaf, num_nodes=1, parameterization=kind)
    root = juice.summate(leaf, num_nodes=1, parameterization=Shapes(((2,),), (3, 2)))
    pc = juice.compile(root)
    with pytest.raises(juice.StructureError, match=r"returned shape \[3, 2\], and \[3, 1, 2\]"):
        pc.log_likelihood(
            pc.init(jax.random.key(0)), np.zeros((3, 1)), external_params={root: np.ones((3, 2))}
        )
    numbers = [
        juice.summate(
            juice.inputs(v, num_nodes=2, dist=leaf.dist),
            num_nodes=1,
            parameterization=Shapes(((),)),
        )
        for v in range(2)
    ]
    pc = juice.compile(juice.summate(juice.multiply(*numbers), num_nodes=1))
    pc.register_external_params_group("one", numbers[:1])
    with pytest.raises(juice.StructureError, match="one number a sample"):
        pc.register_external_params_group("both", numbers)


def test_nothing_given_is_the_plain_call() -> None:
    root, pc = model()
    params = pc.init(jax.random.key(0))
    plain = pc.log_likelihood(params, data())
    np.testing.assert_array_equal(plain, pc.log_likelihood(params, data(), external_params={}))
    unscaled = juice.compile(juice.structures.HMM(LENGTH, 4, 3, block_size=2))
    np.testing.assert_array_equal(plain, unscaled.log_likelihood(params, data()))


def test_without_the_correction_nothing_is_kept() -> None:
    _, pc = model(LowRank(2, apply_z_correction=False))
    params = pc.init(jax.random.key(0))
    assert jax.eval_shape(pc.top_down_flows, params).denominators == {}
    shapes = jax.eval_shape(lambda: pc.log_likelihood_and_flows(params, data()))[1]
    assert shapes.denominators == {}


@pytest.mark.parametrize("rows", (0, 1))
@pytest.mark.parametrize("kind", (LowRank(2), LowRank(2, "sum_exp"), BlockScale(1, 2)), ids=str)
def test_small_batches(kind, rows: int) -> None:
    root, pc = model(kind)
    params = pc.init(jax.random.key(0))
    tensors = tensors_of(root, rows)
    lls, flows, gradient = values_and_gradients(pc, params, data(rows), tensors)
    assert lls.shape == (rows,)
    assert jax.tree.map(jnp.shape, gradient) == jax.tree.map(jnp.shape, tensors)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((lls, flows, gradient)))
    if not rows:
        assert not any(leaf.any() for leaf in jax.tree.leaves((flows, gradient)))


def test_dtypes() -> None:
    root, pc = model()
    params = pc.init(jax.random.key(0))
    tensors = tensors_of(root, dtype=jnp.bfloat16)
    lls, _, gradient = values_and_gradients(pc, params, data(), tensors)
    assert lls.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype(jnp.bfloat16)}
    same = jax.tree.map(lambda t: t.astype(jnp.float32), tensors)
    wanted, _, exact = values_and_gradients(pc, params, data(), same)
    np.testing.assert_array_equal(lls, wanted)
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a, b.astype(jnp.bfloat16)), gradient, exact
    )
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: a.astype(jnp.float64), params)
        assert pc.log_likelihood(wide, data(), external_params=tensors).dtype == jnp.float64


def test_transformations() -> None:
    """vmap over parameters and over samples; one trace for equal calls."""
    root, pc = model(LowRank(2, "sum_exp"))
    params = pc.init(jax.random.key(0))
    tensors = tensors_of(root)
    traces = []

    @jax.jit
    def call(params, x, tensors):
        traces.append(1)
        return pc.log_likelihood(params, x, external_params=tensors)

    lls = call(params, data(), tensors)
    np.testing.assert_array_equal(call(params, data(), tensors), lls)
    assert len(traces) == 1

    def row(x, tensors):
        one = jax.tree.map(lambda t: t[None], tensors)
        return pc.log_likelihood(params, x[None], external_params=one)[0]

    by_row, gradient = jax.vmap(jax.value_and_grad(row, argnums=1))(jnp.asarray(data()), tensors)
    np.testing.assert_allclose(by_row, lls, rtol=1e-5)
    _, _, wanted = values_and_gradients(pc, params, data(), tensors)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), gradient, wanted
    )


# -------------------------------------------------------------------------- one of the user's own


@parameterizations.register
@dataclasses.dataclass(frozen=True)
class ChildGate(Parameterization):
    """A gate for each child, the same for all nodes, with a temperature."""

    temperature: float = 1.0

    def tensor_shapes(self, num_nodes, num_ch_nodes):
        return ((num_ch_nodes,),)

    def log_scale(self, tensors, num_nodes, num_ch_nodes):
        (gates,) = tensors
        scaled = gates / jnp.asarray(self.temperature, gates.dtype)
        return jnp.broadcast_to(scaled[:, None], (len(gates), num_nodes, num_ch_nodes))


def test_a_parameterization_of_two_methods() -> None:
    """The same as the gates it stands for, on a circuit with sparse edges and unequal blocks."""

    def build(kind):
        dist = juice.distributions.Categorical(num_cats=3)
        leaves = [juice.inputs(v, num_nodes=6, dist=dist, block_size=2) for v in range(2)]
        product = juice.multiply(*leaves)
        edges = np.array([[0, 0, 1, 2, 2, 2], [0, 2, 1, 0, 1, 2]])
        ns = juice.summate(product, edge_ids=edges, block_size=2, parameterization=kind)
        return ns, juice.summate(juice.multiply(ns), num_nodes=1)

    (own, root), (gates, other_root) = build(ChildGate(2.0)), build(BlockScale(2, 1))
    pc, other = juice.compile(root), juice.compile(other_root)
    rng = np.random.default_rng(0)
    gate = np.float32(rng.normal(size=(ROWS, 6)))
    x = rng.integers(0, 3, (ROWS, 2))
    params = pc.init(jax.random.key(0))
    same = other.params_from_nodes(
        dict(zip(other.node_params(params), pc.node_params(params).values(), strict=True))
    )
    phi = np.broadcast_to(gate[:, None] / 2, (ROWS, 3, 6))
    found = values_and_gradients(pc, params, x, {own: (gate,)})
    wanted = values_and_gradients(other, same, x, {gates: (phi,)})
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    np.testing.assert_allclose(
        pc.get_node_denominators(found[1], own),
        other.get_node_denominators(wanted[1], gates),
        rtol=1e-4,
        atol=1e-6,
    )
    by_gate = wanted[2][gates][0].sum(1) / 2
    np.testing.assert_allclose(found[2][own][0], by_gate, rtol=1e-4, atol=1e-5)
    drawn = juice.queries.sample(pc, params, jax.random.key(0), ROWS, external_params={own: gate})
    assert drawn.shape == (ROWS, 2)


def test_files_keep_parameterizations_and_groups(tmp_path) -> None:
    kinds = (
        LowRank(3, "sum_exp", False, True, "fp8"),
        BlockScale(None, 1, tie_external=True),
        ChildGate(0.5),
    )
    for kind in kinds:
        root, pc = model(kind)
        ns = scaled_vectors(root)
        members = [ns[0].get_source()] if kind.tie_external else ns
        pc = pc.register_external_params_group("transitions", members)
        params = pc.init(jax.random.key(0))
        juice.save(tmp_path / "model.jjc", pc, params)
        again, same = juice.load(tmp_path / "model.jjc")
        loaded = scaled_vectors(again.root)
        assert again.external_params_groups["transitions"]
        assert [ns.parameterization for ns in loaded] == [kind] * len(ns)
        tensors = tensors_of(root)
        joined = tuple(
            jnp.concatenate(parts, 1)
            for parts in zip(*[tensors[ns] for ns in members], strict=True)
        )
        given = {"transitions": joined}
        np.testing.assert_array_equal(
            again.log_likelihood(same, data(), external_params=given),
            pc.log_likelihood(params, data(), external_params=given),
        )


def test_files_refuse_what_is_not_registered(tmp_path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Unknown(ChildGate):
        pass

    _, pc = model(Unknown())
    with pytest.raises(juice.ModelFileError, match=r"register\(Unknown\)"):
        juice.save(tmp_path / "model.jjc", pc, pc.init(jax.random.key(0)))


@pytest.mark.parametrize(
    "kind", (LowRank(2), LowRank(2, "sum_exp", tie_external=True), BlockScale(1, 2)), ids=str
)
def test_samples_follow_the_effective_weights(kind) -> None:
    """Two scales, half of the samples each: frequencies against exact probabilities."""
    root, pc = model(kind)
    count = 20_000
    rng = np.random.default_rng(0)
    two = random_tensors(rng, root, 2, spread=2.5)
    tensors = jax.tree.map(lambda t: np.float32(np.repeat(t, count, axis=0)), two)
    params = pc.init(jax.random.key(0))
    drawn = juice.queries.sample(pc, params, jax.random.key(1), 2 * count, external_params=tensors)
    x = oracle.all_assignments(3, LENGTH)
    ids = np.asarray(drawn) @ 3 ** np.arange(LENGTH)[::-1]
    probabilities = []
    for half in range(2):
        one = jax.tree.map(lambda t, half=half: np.repeat(t[half : half + 1], len(x), 0), two)
        values = pc.node_params(params)
        lls = oracle.log_likelihood(root, values, x, scales=dense_scales(root, one))[:, 0]
        probabilities.append(np.exp(lls))
        found = np.bincount(ids[half * count : (half + 1) * count], minlength=len(x))
        deviation = (found - count * probabilities[-1]) / np.sqrt(count * probabilities[-1])
        assert np.abs(deviation).max() < 5
        # A chi-square of 80 degrees of freedom is below 160 with probability 1 - 1e-6.
        assert (deviation**2).sum() < 160
    assert np.abs(probabilities[0] - probabilities[1]).sum() > 0.1
