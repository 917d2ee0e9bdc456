"""Fused passes (`implementation="triton"`, here in plain JAX) against the recursion in float64."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxjuice as juice
from jaxjuice import ops
from jaxjuice.distributions import Categorical, Gaussian
from jaxjuice.ops import kernels
from jaxjuice.passes import _fused, _fused_layers, is_fusable
from jaxjuice.passes._fused_layers import keeps_apart
from jaxjuice.passes._launches import Launch, Run, shares_children
from jaxjuice.passes._lookup import Lookup, ValueSlots
from jaxjuice.passes._walk import Walk
from tests import oracle
from tests.circuit.test_against_oracle import picking_chains, random_case
from tests.fused import STRUCTURES, check, data_of, multiply_in_parts
from tests.small_circuits import FAST_COMPILE, initial

# Of 100, those that are fusable and differ most: roots, blocks, families, zeros, tied leaves.
SEEDS = (3, 4, 9, 16, 27, 37)

jit = partial(jax.jit, compiler_options=FAST_COMPILE)


@pytest.fixture(autouse=True)
def fused_walks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What each fused pass forward ran in; empty where none ran."""
    found: list[str] = []
    original = _fused.forward

    def forward(walk, *arguments, **options):
        found.append(walk.kernels)
        return original(walk, *arguments, **options)

    monkeypatch.setattr(_fused, "forward", forward)
    return found


def compiled(root, **options) -> juice.Circuit:
    pc = juice.compile(root, implementation="triton", **options)
    assert is_fusable(pc.program)
    return pc


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(name: str, fused_walks: list[str]) -> None:
    pc = compiled(STRUCTURES[name]())
    check(pc, data_of(pc, 17), gradient=name in ("tied HMM", "picking"))
    assert set(fused_walks) == {"xla"}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_in_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    multiply_in_parts(monkeypatch)
    pc = compiled(STRUCTURES[name](), precision="fp32")
    large = [layer for layer in pc.plan(17).layers if layer.num_nodes > 1]
    assert {layer.runs_on for layer in large} == {"Triton, 6 and 6"}
    check(pc, data_of(pc, 17), gradient=name in ("tied HMM", "padded tree"), alone=True)


@pytest.mark.parametrize("in_parts", [True, False])
@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_in_little_room(
    name: str, in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every launch has one unit."""
    monkeypatch.setattr(_fused_layers, "_SCRATCH_BYTES", 1)
    if in_parts:
        multiply_in_parts(monkeypatch)
    pc = compiled(STRUCTURES[name](), precision="fp32")
    check(pc, data_of(pc, 17), gradient=False, alone=True)


@pytest.mark.parametrize("mode", ["auto", "fp32"])
def test_what_a_launch_leaves_behind_is_bounded(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    multiply_in_parts(monkeypatch)
    pc = compiled(STRUCTURES["RAT-SPN"](), precision=mode)
    walk, batch = Walk(pc.program, ops.LL, mode, "xla"), 40
    parts = {"auto": 1, "fp32": 3}[mode]
    of_unit = 2 * 3 * batch  # bfloat16, of 3 children
    monkeypatch.setattr(_fused_layers, "_SCRATCH_BYTES", 5 * of_unit + 1)
    stage = pc.program.stages[0]
    launched = _fused_layers.plan_launches(walk, stage, batch, False)
    (units,) = launched.lists
    assert units.layer.quota > units.most > 2
    empty = _fused_layers.Empty(walk, 0)
    kept = _fused_layers.start_saved(walk, units, batch, False, empty).p
    assert kept is not None and kept.nbytes <= parts * 5 * of_unit
    kept_all = _fused_layers.plan_launches(walk, stage, batch, True)
    assert kept_all.lists[0].most > units.most


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("count", range(1, 12))
def test_launches_of_a_run(count: int, reverse: bool) -> None:
    """Two layers: 3 units from 10 on and 5 apart, then 1 unit from 2 on and 2 apart."""

    def launch(carry, layer, units):
        found, n = carry
        assert units.count == (3, 1)[layer]
        return found.at[n].set(jnp.stack([jnp.int32(layer), units.start])), n + 1

    run = Run(count, (Launch(0, 10, 3, 5), Launch(1, 2, 1, 2)))
    start = jnp.zeros((2 * count, 2), jnp.int32), jnp.int32(0)
    found, _ = _fused._run(run, launch, start, reverse=reverse)
    wanted = [[layer, (10 + 5 * i, 2 + 2 * i)[layer]] for i in range(count) for layer in (0, 1)]
    assert found.tolist() == wanted[:: -1 if reverse else 1]


def test_what_elements_get_is_kept_where_it_is_no_more_than_they_are() -> None:
    for name, wanted in (("picking", True), ("PD", True), ("picking wide", False)):
        stages = compiled(STRUCTURES[name]()).program.stages
        layers = [layer for stage in stages for layer in stage if layer.num_blocks > 1]
        assert layers and {keeps_apart(layer) for layer in layers} == {wanted}


def test_elements_that_share_children_are_told() -> None:
    """The regions of a PD are parts of many others, and of one in the end."""
    stages = compiled(STRUCTURES["PD"]()).program.stages
    found = [shares_children(layer) for stage in stages for layer in stage]
    assert found[0] is True and found[-1] is False


def test_weights_are_split_where_inference_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless so many samples meet them that a pass over them is shorter; blocks find them split."""
    multiply_in_parts(monkeypatch)
    found: list[tuple[str, str]] = []
    for name in ("dense_forward", "forward"):
        original = getattr(kernels, name)

        def op(*arrays, name=name, original=original):
            (weights,) = (a for a in arrays[1:4] if getattr(a, "ndim", 0) == 4)
            found.append((name, weights.dtype.name))
            return original(*arrays)

        monkeypatch.setattr(kernels, name, op)

    def types(name: str, batch: int, *, flows: bool = False) -> set[tuple[str, str]]:
        found.clear()
        pc = compiled(STRUCTURES[name](), precision="fp32")
        run = pc.log_likelihood_and_flows if flows else pc.log_likelihood
        params = jax.eval_shape(pc.init, jax.random.key(0))
        jax.eval_shape(run, params, jax.ShapeDtypeStruct((batch, pc.num_vars), jnp.int32))
        return set(found)

    whole, split = {("dense_forward", "float32")}, {("dense_forward", "bfloat16")}
    assert types("HMM", 1024) == whole and types("HMM", 1025) == split
    assert types("HMM", 16, flows=True) == split
    # Six steps share the weights of this one.
    assert types("tied HMM", 170) == whole and types("tied HMM", 171) == split
    assert {dtype for op, dtype in types("picking", 16) if op == "forward"} == {"bfloat16"}


@pytest.mark.parametrize(("batch", "wanted"), [(3, False), (4, True)])
def test_tables_that_are_read_often_are_read_as_logarithms(batch: int, wanted: bool) -> None:
    """Three repetitions read each leaf: 3 x batch values of its 3 categories."""
    pc = compiled(STRUCTURES["RAT-SPN"]())
    (leaf,) = pc.program.leaves
    table = jnp.full((leaf.num_params, 3, leaf.num_nodes), 0.5)
    rows = jnp.zeros((leaf.num_leaves, batch), jnp.int32)
    found, logs, _ = ValueSlots.of(pc.program, [Lookup(table, rows)]).table(leaf.num_nodes)
    assert found is not None and logs is wanted
    np.testing.assert_allclose(found, np.log(0.5) if wanted else 0.5)


def test_units_too_large_for_32_bits_are_left_to_xla() -> None:
    assert kernels.in_parts(1024, 1024, False, "auto", 2**20)
    assert not kernels.in_parts(1024, 1024, False, "auto", 2**21)
    assert not kernels.in_parts(2**16, 2**15, False, "auto", 16)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_circuits(seed: int, fused_walks: list[str]) -> None:
    root, x, missing = random_case(seed)
    check(compiled(root), x, missing, seed, gradient=False)
    assert fused_walks


def test_blocks_that_share_elements_in_loops() -> None:
    """Leaves of two values, that are not looked up, and tied sums that differ in their copies."""
    pc = compiled(picking_chains())
    assert any(layer.num_blocks > 1 for stage in pc.program.stages for layer in stage)
    check(pc, np.random.default_rng(1).integers(0, 2, (5, pc.num_vars)), gradient=False)


def test_stored_leaves_that_differ_in_their_readers() -> None:
    """The shorter lists of readers end with slot 0, which must hold zeros."""
    first, second, other = (juice.inputs(v, num_nodes=2, dist=Gaussian()) for v in (0, 1, 1))
    products = juice.multiply(first, second), juice.multiply(first, other)
    pc = compiled(juice.summate(*products, num_nodes=1))
    check(pc, np.random.default_rng(0).normal(size=(5, 2)), gradient=True)


def test_a_family_derived_from_categorical_is_not_looked_up() -> None:
    class Tempered(Categorical):
        def log_prob(self, leaf: Any, x: Any) -> Any:
            return 0.5 * super().log_prob(leaf, x)

    leaf = juice.inputs(0, num_nodes=2, dist=Tempered(3))
    root, x = juice.summate(leaf, num_nodes=1), np.arange(3)[:, None]
    pc = compiled(root)
    params = initial(pc)
    wanted = juice.compile(root, implementation="xla").log_likelihood(params, x)
    np.testing.assert_allclose(pc.log_likelihood(params, x), wanted, rtol=1e-6)


def test_tables_of_another_dtype_are_cast() -> None:
    pc = compiled(STRUCTURES["HCLT"]())
    params: Any = initial(pc)
    x = data_of(pc, 3)
    tables = jax.tree.map(lambda table: table.astype(jnp.bfloat16), params["inputs"])
    mixed = {"sums": params["sums"], "inputs": tables}
    wanted = juice.compile(pc.root, implementation="xla").log_likelihood(mixed, x)
    # There the logarithms are taken in bfloat16.
    np.testing.assert_allclose(pc.log_likelihood(mixed, x), wanted, rtol=1e-2)


@pytest.mark.parametrize(("name", "of_rows"), [("tied HMM", False), ("picking", True)])
def test_missing_values(name: str, of_rows: bool) -> None:
    pc = compiled(STRUCTURES[name]())
    x = data_of(pc, 9)
    missing = np.random.default_rng(1).random(x.shape if of_rows else x.shape[1:]) < 0.4
    if of_rows:
        missing[0] = True
    x = np.where(missing, 99, x)
    check(pc, x, missing, gradient=of_rows)


@pytest.mark.parametrize("name", ("tied HMM", "picking"))
@pytest.mark.parametrize("batch", (0, 1))
def test_small_batches(name: str, batch: int) -> None:
    pc = compiled(STRUCTURES[name]())
    check(pc, data_of(pc, batch), weighted=True, gradient=batch == 0)


@pytest.mark.parametrize("name", ("HCLT", "picking"))
def test_illegal_categories_are_nan_in_their_row(name: str) -> None:
    pc = compiled(STRUCTURES[name]())
    params, x = initial(pc), data_of(pc, 5)
    wanted = oracle.log_likelihood(pc.root, pc.node_params(params), x)[:, 0]
    x[1, 0], x[3, -1] = 3, -1
    lls, flows = jit(pc.log_likelihood_and_flows)(params, x)
    np.testing.assert_array_equal(np.isnan(lls), [False, True, False, True, False])
    np.testing.assert_allclose(lls[::2], wanted[::2], rtol=1e-5)
    assert float(flows.weight) == 5


def _impossible(blocks: bool) -> tuple[Any, np.ndarray]:
    """Leaf i makes category i alone, weights are 0 in places; category 4 is impossible."""
    leaves = [
        juice.inputs(0, num_nodes=2, block_size=2, dist=Categorical(5), params=np.eye(5)[[i, i]])
        for i in range(4)
    ]
    edges = np.array([[0, 0, 1, 1, 2, 2], [0, 1, 1, 2, 2, 3]]) if blocks else None
    first = juice.summate(*leaves, num_nodes=6, block_size=2, edge_ids=edges)
    weights = np.random.default_rng(0).random((first.edge_ids.shape[1], 2, 2)) + 0.1
    weights[0, 0] = 0
    first.set_params(weights)
    root = juice.summate(juice.multiply(first), num_nodes=1)
    return root, np.arange(5)[:, None]


@pytest.mark.parametrize("blocks", (False, True))
def test_impossible_rows_and_zero_weights(blocks: bool) -> None:
    root, x = _impossible(blocks)
    pc = compiled(root)
    assert blocks == any(layer.num_blocks > 1 for stage in pc.program.stages for layer in stage)
    params = pc.init(jax.random.key(0))
    lls, flows = jit(pc.log_likelihood_and_flows)(params, x)
    np.testing.assert_array_equal(np.isneginf(lls), [False] * 4 + [True])
    values = pc.node_params(params)
    np.testing.assert_allclose(lls, oracle.log_likelihood(root, values, x)[:, 0], rtol=1e-5)
    wanted = oracle.circuit_flows(root, values, x).sums
    for ns, flow in wanted.items():
        np.testing.assert_allclose(pc.get_node_flows(flows, ns), flow, rtol=1e-5, atol=1e-7)
    gradient = jit(jax.grad(lambda params: pc.log_likelihood(params, x).sum()))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((flows, gradient)))


def test_a_block_is_not_drowned_by_what_only_others_read() -> None:
    leaves = [
        juice.inputs(
            0, num_nodes=2, block_size=2, dist=Gaussian(), params={"mu": [m, m], "sigma": [1, 1]}
        )
        for m in (0.0, 30.0, 31.0, 32.0)
    ]
    picks = [[0, 1, 2], [1, 2, 3], [0, 2, 3], [0, 1, 3]]
    edges = np.array([[block, leaf] for block, row in enumerate(picks) for leaf in row]).T
    pc = compiled(juice.summate(*leaves, num_nodes=8, block_size=2, edge_ids=edges))
    params, x = pc.init(jax.random.key(0)), np.zeros((1, 1))
    values = pc.node_params(params)
    lls, flows = jit(pc.log_likelihood_and_flows)(params, x)
    expected = oracle.log_likelihood(pc.root, values, x)
    assert expected[0].min() < -400 < -10 < expected[0].max()
    np.testing.assert_allclose(lls, expected, rtol=1e-5)
    wanted = oracle.circuit_flows(pc.root, values, x).sums[pc.root]
    np.testing.assert_allclose(pc.get_node_flows(flows, pc.root), wanted, rtol=1e-4, atol=1e-7)


def test_a_long_chain_keeps_its_digits() -> None:
    root = juice.structures.HMM(300, 4, 10)
    pc = compiled(root)
    params, x = initial(pc), data_of(pc, 3)
    lls, flows = jit(pc.log_likelihood_and_flows)(params, x)
    values = pc.node_params(params)
    np.testing.assert_allclose(lls, oracle.log_likelihood(root, values, x)[:, 0], rtol=1e-6)
    for ns, flow in oracle.circuit_flows(root, values, x).sums.items():
        np.testing.assert_allclose(pc.get_node_flows(flows, ns), flow, rtol=2e-5)


def _leaves_of_all_kinds():
    """Two groups of categorical leaves of one width, tied ones among them, and Gaussian ones."""
    first = juice.inputs(0, num_nodes=4, dist=Categorical(3))
    second = juice.inputs(2, num_nodes=4, dist=Categorical(5))
    leaves = [
        first,
        first.duplicate(1, tie_params=True),
        second,
        second.duplicate(3, tie_params=True),
        juice.inputs(4, num_nodes=4, dist=Gaussian()),
        juice.inputs(5, num_nodes=4, dist=juice.distributions.Bernoulli()),
    ]
    sums = [juice.summate(leaf, num_nodes=4) for leaf in leaves[1::2]]
    root = juice.summate(juice.multiply(*leaves[::2], *sums), num_nodes=1)
    rng = np.random.default_rng(0)
    columns = [rng.integers(0, count, 17) for count in (3, 3, 5, 5)]
    return root, np.stack([*columns, rng.normal(size=17), rng.integers(0, 2, 17)], axis=1)


@pytest.mark.parametrize("with_missing", (False, True))
def test_leaves_of_all_kinds(with_missing: bool) -> None:
    root, x = _leaves_of_all_kinds()
    pc = compiled(root)
    assert len({leaf.num_nodes for leaf in pc.program.leaves}) == 1 < len(pc.program.leaves)
    missing = np.random.default_rng(1).random(x.shape) < 0.3 if with_missing else None
    check(pc, x, missing, gradient=False)
    if missing is None:
        return
    params = initial(pc)
    plain = juice.compile(root, implementation="xla")

    def both(pc, params, x):
        def total(params, x):
            lls, flows = pc.log_likelihood_and_flows(params, x, missing)
            return lls.sum(), flows.inputs

        return jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(params, x)

    x = jnp.asarray(x, jnp.float32)
    found, wanted = (jit(both, static_argnums=0)(pc, params, x) for pc in (pc, plain))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_vmap_over_parameters_and_samples() -> None:
    pc = compiled(STRUCTURES["picking"]())
    x = jnp.asarray(data_of(pc, 4), jnp.int32)
    several = [initial(pc, seed) for seed in range(2)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *several)
    run = jit(jax.vmap(pc.log_likelihood_and_flows, in_axes=(0, None)))
    one = jit(pc.log_likelihood_and_flows)
    for n, params in enumerate(several):
        wanted = one(params, x)
        found = jax.tree.map(lambda leaf, n=n: leaf[n], run(stacked, x))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, wanted)

    def of_row(row):
        return jax.value_and_grad(lambda params: pc.log_likelihood(params, row[None])[0])(
            several[0]
        )

    lls, gradients = jit(jax.vmap(of_row))(x)
    wanted, flows = one(several[0], x)
    np.testing.assert_allclose(lls, wanted, rtol=1e-6)
    for name, flow in flows.sums.items():
        summed = several[0]["sums"][name] * gradients["sums"][name].sum(0)
        np.testing.assert_allclose(summed, flow, rtol=1e-4, atol=1e-6)


def test_flows_have_no_gradient_and_say_so() -> None:
    pc = compiled(STRUCTURES["tied HMM"]())
    params, x = initial(pc), data_of(pc, 3)

    def slope(of):
        return jax.grad(lambda params: of(*pc.log_likelihood_and_flows(params, x)))

    with pytest.raises(TypeError, match="only the log-likelihoods have one"):
        jit(slope(lambda _, flows: flows.sums["sum0"].sum()))(params)
    found = jit(slope(lambda lls, _: lls.sum()))(params)
    wanted = jit(jax.grad(lambda params: pc.log_likelihood(params, x).sum()))(params)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), found, wanted)


def test_other_rules_and_types_are_not_fused(fused_walks: list[str]) -> None:
    root = STRUCTURES["tied HMM"]()
    pc, plain = compiled(root), juice.compile(root)
    params, x = initial(pc), data_of(pc, 3)
    for options in ({"propagation": "MPE"}, {"propagation": "GeneralLL", "alpha": 1.7}):
        found, wanted = (
            jit(partial(pc.log_likelihood, **options))(params, x) for pc in (pc, plain)
        )
        np.testing.assert_array_equal(found, wanted)
    jit(pc.top_down_flows)(params)
    with jax.enable_x64(True):
        params = initial(pc, dtype=jnp.float64)
        lls = jit(pc.log_likelihood)(params, x)
        assert lls.dtype == jnp.float64
        expected = oracle.log_likelihood(root, pc.node_params(params), x)[:, 0]
        np.testing.assert_allclose(lls, expected, rtol=1e-12)
    assert not fused_walks


def test_a_circuit_of_several_widths_is_not_fused(fused_walks: list[str]) -> None:
    root, x, missing = random_case(22)
    pc = juice.compile(root, implementation="triton")
    assert not is_fusable(pc.program)
    check(pc, x, missing, gradient=False)
    assert not fused_walks


@pytest.mark.parametrize("implementation", ("auto", "xla"))
def test_fused_passes_are_for_gpus(implementation: str, fused_walks: list[str]) -> None:
    pc = juice.compile(STRUCTURES["tied HMM"](), implementation=implementation)
    check(pc, data_of(pc, 3), gradient=False)
    assert not fused_walks


def test_implementations_have_names() -> None:
    root = STRUCTURES["tied HMM"]()
    with pytest.raises(
        ValueError, match=r"implementation='cuda'\): take 'auto', 'triton' or 'xla'"
    ):
        juice.compile(root, implementation="cuda")
    for name in ("auto", "triton", "xla"):
        pc = juice.compile(root, implementation=name)
        assert pc.implementation == name
        assert pc.with_precision("fp32").implementation == name


def test_a_table_with_too_many_keys_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pc = compiled(STRUCTURES["tied HMM"]())
    (leaf,) = pc.program.leaves
    most = (2**31 - 1) // 7 // 7  # 5 categories and 2, of 7 leaves
    assert juice.passes.can_look_up(leaf, 5, most)
    assert not juice.passes.can_look_up(leaf, 5, most + 1)
    monkeypatch.setattr("jaxjuice._leaves.can_look_up", lambda *_: False)
    check(pc, data_of(pc, 5))


# In a process of its own, which has four devices.
SHARDED = r"""
from functools import partial
import jax, numpy as np
from jax.sharding import PartitionSpec as P
import jaxjuice as juice
from jaxjuice import ops
from tests.fused import STRUCTURES, data_of
from tests.small_circuits import FAST_COMPILE, initial

jit = partial(jax.jit, compiler_options=FAST_COMPILE)
mesh = jax.make_mesh((4,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
for name in ("tied HMM", "picking"):
    pc = juice.compile(STRUCTURES[name](), implementation="triton")
    params, x = initial(pc), data_of(pc, 12)

    def local(params, x):
        def total(params):
            lls, flows = pc.log_likelihood_and_flows(params, x)
            return lls.sum(), (lls, flows)
        gradient, (lls, flows) = jax.grad(total, has_aux=True)(params)
        return lls, gradient, flows

    def mapped(params, x):
        lls, gradient, flows = local(params, x)
        return lls, gradient, jax.tree.map(lambda a: jax.lax.psum(a, "batch"), flows)

    specs = dict(in_specs=(P(), P("batch")), out_specs=(P("batch"), P(), P()))
    found = jit(jax.shard_map(mapped, mesh=mesh, **specs))(params, x)
    wanted = jit(local)(params, x)
    close = partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-5)
    jax.tree.map(close, found, wanted)
    print("done", name)
"""


def test_a_batch_over_four_devices() -> None:
    root = Path(__file__).parents[2]
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    path = os.pathsep.join([str(root), str(root / "tests"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", SHARDED], env=environment, capture_output=True, text=True, cwd=root
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["done tied HMM", "done picking"]
