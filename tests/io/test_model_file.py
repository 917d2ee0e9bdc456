"""`juice.save` and `juice.load`: what comes back, and what a bad file or a bad place says."""

import dataclasses
import json
import os
import resource
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_circuits

import jaxjuice as juice
from jaxjuice import distributions
from jaxjuice._errors import ModelFileError
from jaxjuice.io import _container, _dag, load, model_info, save

EVERYTHING = dict(families=random_circuits.FAMILIES, num_vars=5, zero_weights=True, zero_masks=True)


def random_params(pc, dtype=np.float32):
    """Parameters by numpy alone: `pc.init` would compile a program for every circuit."""
    rng = np.random.default_rng(0)
    values = {}
    for ns in {ns.get_source() for ns in pc.root}:
        if hasattr(ns, "dist"):
            shapes = ns.dist.param_shapes().items()
            values[ns] = {name: rng.random((ns.num_nodes, *shape)) for name, shape in shapes}
        elif hasattr(ns, "ch_block_size"):
            values[ns] = rng.random((ns.edge_ids.shape[1], ns.block_size, ns.ch_block_size))
    return pc.params_from_nodes(values, dtype)


def small_model(**options):
    root = random_circuits.random_circuit(np.random.default_rng(0), **options)
    pc = juice.compile(root)
    return pc, random_params(pc)


def assert_same_dag(old, new):
    for a, b in zip(old, new, strict=True):
        assert type(a) is type(b)
        assert (a.num_node_blocks, a.block_size, a.scope) == (
            b.num_node_blocks,
            b.block_size,
            b.scope,
        )
        if hasattr(a, "edge_ids"):
            np.testing.assert_array_equal(a.edge_ids, b.edge_ids)
        if hasattr(a, "zero_param_mask"):
            assert (a.zero_param_mask is None) == (b.zero_param_mask is None)
            if a.zero_param_mask is not None:
                np.testing.assert_array_equal(a.zero_param_mask, b.zero_param_mask)
        if hasattr(a, "dist"):
            assert a.dist == b.dist and a.var == b.var
            assert a.constants.keys() == b.constants.keys()
            for name, constant in a.constants.items():
                np.testing.assert_array_equal(constant, b.constants[name])
    vectors, holders = _dag.list_vectors(old)
    assert holders == _dag.list_vectors(new)[1]
    index_of = {ns: index for index, ns in enumerate(vectors)}
    new_index_of = {ns: index for index, ns in enumerate(new)}
    for a, b in zip(old, new, strict=True):
        assert [index_of[child] for child in a.chs] == [new_index_of[child] for child in b.chs]


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("x64", [False, True])
def test_random_circuits_come_back_bit_for_bit(tmp_path, seed, x64):
    rng = np.random.default_rng(seed)
    root = random_circuits.random_circuit(rng, **EVERYTHING, num_root_nodes=1 + seed % 2)
    with jax.enable_x64(x64):
        pc = juice.compile(root, precision="fp32")
        params = random_params(pc, np.float64 if x64 else np.float32)
        save(tmp_path / "model.jjc", pc, params)
        loaded, loaded_params = load(tmp_path / "model.jjc")
        assert_same_dag(root, loaded.root)
        assert loaded.precision == "fp32"
        old, new = pc.node_params(params), loaded.node_params(loaded_params)
        for a, b in zip(root, loaded.root, strict=True):
            if b in new:
                jax.tree.map(np.testing.assert_array_equal, old[a.get_source()], new[b])


def test_a_loaded_circuit_computes_the_same(tmp_path):
    rng = np.random.default_rng(0)
    root = random_circuits.random_circuit(rng, num_vars=2, max_blocks=1)
    x = random_circuits.random_data(rng, root, 3)
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    save(tmp_path / "model.jjc", pc, params)
    loaded, loaded_params = load(tmp_path / "model.jjc")
    jax.tree.map(np.testing.assert_array_equal, params, loaded_params)
    np.testing.assert_array_equal(
        pc.log_likelihood(params, x), loaded.log_likelihood(loaded_params, x)
    )


def test_the_source_of_tied_vectors_may_be_outside_the_circuit(tmp_path):
    coin = distributions.Categorical(num_cats=2)
    original = juice.inputs(0, num_nodes=3, dist=coin)
    x0, x1 = (original.duplicate(variable, tie_params=True) for variable in (0, 1))
    pc = juice.compile(juice.summate(juice.multiply(x0, x1), num_nodes=1))
    params = pc.init(jax.random.key(0))
    save(tmp_path / "model.jjc", pc, params)
    loaded, loaded_params = load(tmp_path / "model.jjc")
    assert loaded.num_parameters == pc.num_parameters
    x = jnp.array([[0, 1], [1, 1]])
    np.testing.assert_array_equal(
        pc.log_likelihood(params, x), loaded.log_likelihood(loaded_params, x)
    )


def test_circuits_that_are_not_smooth_or_decomposable_come_back(tmp_path):
    coin = distributions.Categorical(num_cats=2)
    with juice.structural_properties(allow_nonsmooth=True, allow_nondecomposable=True):
        x0, x1 = (juice.inputs(variable, num_nodes=2, dist=coin) for variable in (0, 1))
        both = juice.multiply(x0, x1, juice.summate(x0, num_nodes=2))
        root = juice.summate(both, juice.multiply(x1), num_nodes=1)
    pc = juice.compile(root)
    save(tmp_path / "model.jjc", pc, random_params(pc))
    assert_same_dag(root, load(tmp_path / "model.jjc")[0].root)


def test_edges_that_are_the_default_are_not_stored():
    with juice.set_block_size(4):
        x0, x1 = (juice.inputs(v, num_nodes=8, dist=distributions.Bernoulli()) for v in (0, 1))
        root = juice.summate(juice.multiply(x0, x1), num_nodes=8)
    assert _dag.dag_to_tables(root)[1]["edges/values"].size == 0
    reversed_blocks = juice.multiply(x0, x1, edge_ids=[[1, 0], [0, 1]])
    sparse = juice.summate(
        reversed_blocks, num_nodes=8, block_size=4, edge_ids=np.eye(2, dtype=bool)
    )
    other = juice.summate(
        reversed_blocks, num_nodes=8, block_size=4, edge_ids=np.eye(2, dtype=bool)
    )
    top = juice.summate(juice.multiply(sparse), juice.multiply(other), num_nodes=1, block_size=1)
    assert _dag.dag_to_tables(top)[1]["edges/offsets"].tolist() == [0, 4, 8]


def test_part_of_the_children_is_not_mistaken_for_the_default(tmp_path):
    x0 = juice.inputs(0, num_nodes=4, dist=distributions.Bernoulli())
    root = juice.summate(juice.multiply(x0, edge_ids=[[0], [1]]), num_nodes=1)
    pc = juice.compile(root)
    save(tmp_path / "model.jjc", pc, random_params(pc))
    assert_same_dag(root, load(tmp_path / "model.jjc")[0].root)


def test_a_long_homogeneous_chain_is_small_and_quick(tmp_path):
    x = juice.inputs(9_999, num_nodes=4, dist=distributions.Categorical(num_cats=3))
    z, transition = x, None
    for variable in range(9_998, -1, -1):
        if transition is None:
            transition = juice.summate(z, num_nodes=4)
        else:
            transition = transition.duplicate(z, tie_params=True)
        z = juice.multiply(x.duplicate(variable, tie_params=True), transition)
    root = juice.summate(z, num_nodes=1)
    start = time.perf_counter()
    document, tables = _dag.dag_to_tables(root)
    vectors = _dag.dag_from_tables(document, tables)
    assert time.perf_counter() - start < 20
    assert len(vectors) == 29_999
    assert sum(table.nbytes for table in tables.values()) < 4e6


def test_metadata_and_model_info(tmp_path):
    pc, params = small_model(families=("gaussian", "categorical"))
    save(tmp_path / "model.jjc", pc, params, metadata={"note": "naïve", "sizes": [1, 2.5]})
    about = model_info(tmp_path / "model.jjc")
    assert about.metadata == {"note": "naïve", "sizes": [1, 2.5]}
    assert about.num_vars == pc.num_vars
    assert about.num_nodes == pc.num_nodes
    assert about.num_parameters == pc.num_parameters
    assert about.dtype == "float32" and about.precision == "auto"
    assert about.versions["jax"] == jax.__version__
    assert about.file_size == os.path.getsize(tmp_path / "model.jjc")
    with pytest.raises(ModelFileError, match="metadata that is not JSON"):
        save(tmp_path / "other.jjc", pc, params, metadata={"array": np.ones(2)})
    assert not (tmp_path / "other.jjc").exists()


def test_float64_without_x64(tmp_path):
    with jax.enable_x64(True):
        root = random_circuits.random_circuit(np.random.default_rng(0))
        pc = juice.compile(root)
        params = random_params(pc, np.float64)
        save(tmp_path / "model.jjc", pc, params)
    with pytest.raises(ModelFileError, match="holds float64 parameters.*jax_enable_x64"):
        load(tmp_path / "model.jjc")
    _, narrow = load(tmp_path / "model.jjc", dtype="float32")
    assert {leaf.dtype for leaf in jax.tree.leaves(narrow)} == {np.dtype("float32")}


@dataclasses.dataclass(frozen=True)
class Unregistered(distributions.Bernoulli):
    """A family that no file can name."""


def test_families_that_are_not_registered(tmp_path, monkeypatch):
    pc = juice.compile(juice.inputs(0, num_nodes=1, dist=Unregistered()))
    with pytest.raises(ModelFileError, match=r"register it by .*register\(Unregistered\)"):
        save(tmp_path / "model.jjc", pc, random_params(pc))
    from jaxjuice.distributions import _registry

    monkeypatch.setitem(_registry._FAMILIES, "Unregistered", Unregistered)
    save(tmp_path / "model.jjc", pc, random_params(pc))
    assert load(tmp_path / "model.jjc")[0].root.dist == Unregistered()
    monkeypatch.delitem(_registry._FAMILIES, "Unregistered")
    with pytest.raises(ModelFileError, match="family 'Unregistered', which is not registered"):
        load(tmp_path / "model.jjc")


def test_parameters_of_another_circuit(tmp_path):
    pc, _ = small_model()
    other, params = small_model(num_vars=2, num_cats=(7,))
    with pytest.raises(ModelFileError, match="parameters of another circuit"):
        save(tmp_path / "model.jjc", pc, params)
    assert not (tmp_path / "model.jjc").exists() and other is not pc


def test_any_cut_or_flipped_byte_is_noticed(tmp_path):
    pc, params = small_model()
    path = tmp_path / "model.jjc"
    save(path, pc, params)
    content = path.read_bytes()
    bad = tmp_path / "bad.jjc"
    rng = np.random.default_rng(0)
    for size in [0, 1, 7, 8, 9, 100, *rng.integers(0, len(content), 40), len(content) - 1]:
        bad.write_bytes(content[:size])
        with pytest.raises(ModelFileError, match="empty|truncated|not a jaxjuice model"):
            load(bad)
    for position in rng.integers(0, len(content), 100):
        damaged = bytearray(content)
        damaged[position] ^= 1 << int(rng.integers(8))
        bad.write_bytes(damaged)
        try:
            load(bad)
        except ModelFileError as error:
            assert str(bad) in str(error) and "\n" not in str(error)
        else:
            # Only the blanks that fill up the header mean nothing.
            assert chr(content[position]) == " "
    bad.write_bytes(content + b"more")
    with pytest.raises(ModelFileError, match="damaged"):
        load(bad)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"\x80\x04\x95hello world", "looks like a pickle.*never unpickles"),
        (b"PK\x03\x04" + b"x" * 100, "zip archive"),
        (b"\x93NUMPY" + b"x" * 100, ".npy array"),
        (b"just some text, nothing else", "is not a jaxjuice model"),
        ((16).to_bytes(8, "little") + b"{'no': 'json'}  ", "damaged: its header is not"),
        ((2).to_bytes(8, "little") + b"{}", "a safetensors file, but not one that jaxjuice.save"),
    ],
)
def test_foreign_files(tmp_path, content, message):
    path = tmp_path / "model.jjc"
    path.write_bytes(content)
    for read in (load, model_info):
        with pytest.raises(ModelFileError, match=message):
            read(path)


def test_newer_files_and_other_documents(tmp_path):
    path = tmp_path / "model.jjc"
    document = {"format": "jaxjuice-model", "format_version": 2, "jaxjuice_version": "9.1"}
    _container.write_container(path, document, {})
    with pytest.raises(ModelFileError, match=r"version 2 .written by jaxjuice 9.1.*upgrade"):
        load(path)
    _container.write_container(path, document | {"format_version": 1}, {})
    with pytest.raises(ModelFileError, match="does not describe a circuit"):
        load(path)
    with pytest.raises(ModelFileError, match="damaged"):
        model_info(path)
    _container.write_container(path, document | {"format": "something"}, {})
    with pytest.raises(ModelFileError, match="holds a 'something'"):
        load(path)


def test_tables_that_are_no_circuit(tmp_path):
    pc, params = small_model()
    path = tmp_path / "model.jjc"
    save(path, pc, params)
    document, tables = _container.read_container(path)
    last = len(tables["nodes/kind"])
    edits = {
        "nodes/chs": np.full_like(tables["nodes/chs"], last),
        "nodes/kind": np.full_like(tables["nodes/kind"], 7),
        "nodes/block_size": tables["nodes/block_size"] * 2,
        "nodes/num_chs": tables["nodes/num_chs"][:-1],
        "edges/values": tables["edges/values"] + 1000,
        "params/0/probs": np.ones((1, 1), np.float32),
    }
    for name, table in edits.items():
        assert name in tables
        _container.write_container(path, document, tables | {name: table})
        with pytest.raises(ModelFileError, match="does not describe a circuit"):
            load(path)
    for name in tables:
        _container.write_container(
            path, document, {key: table for key, table in tables.items() if key != name}
        )
        with pytest.raises(ModelFileError, match="does not describe a circuit"):
            load(path)


def test_places_that_cannot_be_read(tmp_path):
    with pytest.raises(ModelFileError, match="cannot be read: No such file"):
        load(tmp_path / "nowhere.jjc")
    with pytest.raises(ModelFileError, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_places_that_cannot_be_written(tmp_path):
    pc, params = small_model()
    with pytest.raises(ModelFileError, match="there is no folder"):
        save(tmp_path / "nowhere" / "model.jjc", pc, params)
    with pytest.raises(ModelFileError, match="it is a folder"):
        save(tmp_path, pc, params)
    with pytest.raises(ModelFileError, match="it is a device"):
        save("/dev/null", pc, params)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, failing):
    pc, params = small_model()
    path = tmp_path / "model.jjc"
    save(path, pc, params)
    old = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(ModelFileError, match="model.jjc cannot be written: the disk is full"):
        save(path, pc, params, metadata={"new": True})
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_grows_too_large(tmp_path):
    def limit_file_size():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    code = (
        "import numpy as np; from jaxjuice.io._container import write_container as w\n"
        "try: w('big.jjc', {}, {'x': np.zeros(10_000)})\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        preexec_fn=limit_file_size,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.stdout == "big.jjc cannot be written: File too large.\n", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_links_and_permissions(tmp_path):
    pc, params = small_model()
    path, link = tmp_path / "model.jjc", tmp_path / "link.jjc"
    save(path, pc, params)
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
    path.chmod(0o640)
    link.symlink_to(path)
    save(link, pc, params, metadata={"through": "link"})
    assert link.is_symlink() and path.stat().st_mode & 0o777 == 0o640
    assert model_info(path).metadata == {"through": "link"}


def test_a_file_is_plain_safetensors(tmp_path):
    from safetensors import safe_open

    pc, params = small_model()
    save(tmp_path / "model.jjc", pc, params)
    with safe_open(tmp_path / "model.jjc", framework="np") as file:
        document = json.loads(json.loads(file.metadata()["jaxjuice"])["document"])
        assert document["format"] == "jaxjuice-model"
        assert file.get_tensor("nodes/kind").ndim == 1
