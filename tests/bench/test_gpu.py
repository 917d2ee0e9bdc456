"""What is measured on a GPU runs on a CPU, tiny."""

import argparse
import gzip
import json
import struct

import jax
import numpy as np
import pytest

import jaxjuice as juice
from bench import train_fashion
from bench.gpu import _floor, _pyjuice, _run
from bench.gpu.workloads import QUICK, WORKLOADS

KEYS = (
    "workload batch precision device versions compile_s fw_ms fwbw_ms step_ms floor_fwbw_ms "
    "memory_bytes"
).split()


def test_a_workload_gives_a_row_for_each_mode_and_batch() -> None:
    arguments = argparse.Namespace(quick=True, precision=["auto", "fp32"], peer="none", rounds=2)
    rows = list(_run.run("hmm4096", arguments))
    assert [(row["batch"], row["precision"]) for row in rows] == [
        (32, "auto"), (32, "fp32"), (16, "auto"), (16, "fp32"),
    ]  # fmt: skip
    for row in rows:
        assert set(KEYS) <= row.keys() and "problem" not in row
        assert all(row[key] > 0 for key in KEYS if key.endswith(("_ms", "_s", "_bytes")))
    assert json.loads(json.dumps(rows)) == rows


def test_every_workload_has_a_tiny_one() -> None:
    assert QUICK.keys() == WORKLOADS.keys()
    for workload in QUICK.values():
        pc = juice.compile(workload.build())
        x = workload.data(5, pc.num_vars)
        assert x.shape == (5, pc.num_vars) and x.max() < workload.num_cats


def test_floors_are_those_of_a_product_by_hand() -> None:
    pc = juice.compile(juice.structures.HMM(2, 1024, 3), precision="tf32")
    floor = _floor.forward_floor(pc, 512)
    # One transition, and the root's product with one node.
    flops = 2 * 512 * 1024 * (1024 + 1)
    np.testing.assert_allclose(floor.arithmetic, flops / 357e12 * 1e3, rtol=1e-12)
    # Values: slot 0, two leaves and a sum of 1024 numbers, and slot 0 and the root of one.
    numbers = pc.num_parameters + 512 * 2 * (4 * 1024 + 2)
    np.testing.assert_allclose(floor.memory, 4 * numbers / 4.28e12 * 1e3, rtol=1e-12)
    both = _floor.training_floor(pc, 512)
    np.testing.assert_allclose(both.arithmetic, 3 * floor.arithmetic, rtol=1e-12)
    assert both.total == max(both.arithmetic, both.memory) > floor.total


def _by_recursion(ns, x: np.ndarray, known: dict) -> np.ndarray:
    """Float64 log-values `[rows, nodes]` of PyJuice's nodes, by its own definition of edges."""
    if ns in known:
        return known[ns]
    if ns.is_input():
        probs = ns.get_source_ns().get_params().reshape(ns.num_nodes, -1).double().numpy()
        value = np.log(probs[:, x[:, next(iter(ns.scope))]]).T
    elif ns.is_prod():
        value = 0.0
        for child, blocks in zip(ns.chs, ns.edge_ids.numpy().T, strict=True):
            nodes = blocks
            if len(blocks) < ns.num_nodes:
                nodes = (blocks[:, None] * ns.block_size + np.arange(ns.block_size)).reshape(-1)
            value = value + _by_recursion(child, x, known)[:, nodes]
    else:
        weights = ns.get_source_ns().get_params(as_matrix=True).double().numpy()
        children = np.concatenate([_by_recursion(child, x, known) for child in ns.chs], axis=1)
        most = children.max(1, keepdims=True)
        value = np.log(np.exp(children - most) @ weights.T) + most
    known[ns] = value
    return value


@pytest.mark.parametrize("name", QUICK)
def test_pyjuice_gets_the_same_circuit(name: str) -> None:
    pytest.importorskip("pyjuice")
    workload = QUICK[name]
    root = workload.build()
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    x = workload.data(3, pc.num_vars)
    found = _by_recursion(_pyjuice.translate(root, pc.node_params(params)), x, {})[:, 0]
    np.testing.assert_allclose(pc.log_likelihood(params, x), found, rtol=1e-6)


def test_fashion_trains_and_draws(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    for name, rows in (("train", 24), ("t10k", 6)):
        images = rng.integers(0, 256, (rows, 28, 28)).astype(np.uint8)
        head = struct.pack(">IIII", 0x803, *images.shape)
        with gzip.open(tmp_path / f"{name}-images-idx3-ubyte.gz", "wb") as file:
            file.write(head + images.tobytes())
    out = tmp_path / "out"
    options = f"--data {tmp_path} --latents 2 --epochs 2 --batch 10 --out {out}"
    monkeypatch.setattr("sys.argv", ["bench.train_fashion", *options.split()])
    train_fashion.main()
    curve = json.loads((out / "fashion.json").read_text())["curves"]["jaxjuice"]
    assert [point["epoch"] for point in curve] == [1, 2]
    assert 0 < curve[1]["train"] < curve[0]["train"]  # the data are noise
    assert (out / "fashion.png").stat().st_size > 5000
    assert "bits per dimension" in capsys.readouterr().out
