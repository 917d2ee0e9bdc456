"""What is measured on a GPU runs on a CPU, tiny."""

import argparse
import gzip
import json
import re
import struct

import jax
import numpy as np
import pytest

import jaxjuice as juice
from bench import train_fashion
from bench.gpu import __main__ as gpu_main, _floor, _pyjuice, _run, table
from bench.gpu.workloads import QUICK, WORKLOADS

KEYS = (
    "workload batch precision device versions compile_s fw_ms fwbw_ms step_ms floor_fwbw_ms "
    "fw_queued_ms fwbw_queued_ms step_queued_ms memory_bytes"
).split()


def _arguments(**changes) -> argparse.Namespace:
    options = {"quick": True, "precision": ["auto"], "peer": "none", "peer_from": None, "rounds": 2}
    return argparse.Namespace(**options | changes)


def _row(**changes) -> dict:
    row = {
        "workload": "hmm4096", "batch": 32, "precision": "auto", "device": "a GPU",
        "machine": {"python": "3.12"}, "versions": {"jax": "1.0"}, "compile_s": 4.0,
        "fw_ms": 1.0, "fwbw_ms": 2.0, "step_ms": 4.0, "floor_fw_ms": 0.5, "floor_fwbw_ms": 1.5,
        "fw_queued_ms": 0.8, "fwbw_queued_ms": 1.75, "step_queued_ms": 3.0,
        "memory_bytes": 2**30,
    }  # fmt: skip
    return row | changes


PEER = {
    "peer_fw_ms": 3.0, "peer_fwbw_ms": 5.0, "peer_step_ms": 6.0, "peer_compile_s": 9.0,
    "peer_fw_queued_ms": 2.4, "peer_fwbw_queued_ms": 3.5, "peer_step_queued_ms": 4.5,
    "peer_memory_bytes": 2**31, "ll_max_abs_diff": 1e-3,
}  # fmt: skip


def test_a_workload_gives_a_row_for_each_mode_and_batch() -> None:
    rows = list(_run.run("hmm4096", _arguments(precision=["auto", "fp32"])))
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
    # Values: a sum of 1024 numbers and the root. All 3 categories are hit in 1024 draws.
    numbers = pc.num_parameters + 512 * 2 * (1024 + 1)
    np.testing.assert_allclose(floor.memory, 4 * numbers / 4.28e12 * 1e3, rtol=1e-12)
    both = _floor.training_floor(pc, 512)
    # Elements: one of each sum, and the root itself.
    numbers += 2 * pc.num_parameters + 512 * (1025 + 2 * (2 * 1024 + 1))
    np.testing.assert_allclose(both.memory, 4 * numbers / 4.28e12 * 1e3, rtol=1e-12)
    np.testing.assert_allclose(both.arithmetic, 3 * floor.arithmetic, rtol=1e-12)
    assert both.total == max(both.arithmetic, both.memory) > floor.total


def test_floors_count_shared_elements_once_and_no_padding() -> None:
    pc = juice.compile(QUICK["pd256"].build())
    layers = [layer for stage in pc.program.stages for layer in stage]
    assert any(layer.num_blocks > 1 for layer in layers)
    slots = sum(width * count for width, count in pc.program.flow_slots.items())
    by_block = sum(layer.num_products * layer.num_children for layer in pc.plan(32).layers)
    assert 0 < _floor._element_flows(pc) < min(slots, by_block)
    # Expected distinct categories of 32 draws out of 8.
    np.testing.assert_allclose(
        _floor._rows_read(pc, 32), pc.num_input_parameters * (1 - (7 / 8) ** 32), rtol=1e-12
    )


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


def test_a_peer_comes_from_an_earlier_report(tmp_path) -> None:
    device = jax.devices()[0].device_kind
    new = {"workload": "hmm1024", "device": device}
    earlier = [
        _row(),
        _row(**PEER, workload="hmm1024", device="another"),
        _row(**PEER | {"peer_fw_ms": 1.0}, **new, problem="too far off"),
        _row(**PEER, **new),
    ]
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(earlier))
    (row,) = _run.run("hmm1024", _arguments(peer_from=path))
    assert row["batch"] == 32 and row["peer_from"] == "earlier.json"
    for key, value in PEER.items():
        assert row.get(key) == (value if key.startswith("peer_") else None)
    assert _run.earlier_peer(path, row | {"batch": 16}) == {}
    later = tmp_path / "later.json"
    later.write_text(json.dumps([row]))
    assert _run.earlier_peer(later, row)["peer_from"] == "earlier.json"


def test_reports_are_not_overwritten_by_what_reads_them(tmp_path, monkeypatch, capsys) -> None:
    path = tmp_path / "report.json"
    path.write_text("[]")
    for out, text in ((path, "overwrite"), (tmp_path / "new.json", "not allowed with")):
        options = ["--peer-from", str(path), "--out", str(out)]
        options += ["--peer", "pyjuice"] if out != path else []
        monkeypatch.setattr("sys.argv", ["bench.gpu", *options])
        with pytest.raises(SystemExit):
            gpu_main.main()
        assert text in capsys.readouterr().err


def test_a_table_has_the_figures_of_a_report() -> None:
    rows = [
        _row(**PEER),
        _row(peer_from="earlier.json"),
        {"workload": "pd256", "problem": "ended with status 1"},
    ]
    text = table.as_markdown(rows, "new.json")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == list(table.HEAD)
    assert cells[2] == [
        "hmm4096", "32", "auto", "1.00, 2.00, 4.00", "3.00, 5.00, 6.00", "3.00x, 2.50x, 1.50x",
        "0.80, 1.75, 3.00", "2.40, 3.50, 4.50", "3.00x, 2.00x, 1.50x",
        "0.50, 1.50", "62%, 86%", "1.00", "2.00", "4.0", "9.0", "1.0e-03",
    ]  # fmt: skip
    assert cells[3][4:6] == ["", ""] and cells[3][-1] == ""
    assert "From `new.json`: a GPU, Python 3.12, jax 1.0. PyJuice's figures are from `ear" in text
    assert text.endswith("- pd256: ended with status 1\n")


def test_the_readme_has_the_table_of_the_report_that_it_names() -> None:
    text = table.README.read_text()
    assert "a new table" in table.with_section(text, "a new table")
    for name in re.findall(r"^From `(gpu-[^`]*)`: ", text, re.MULTILINE):
        rows = json.loads((table.README.parent / name).read_text())
        assert table.with_section(text, table.as_markdown(rows, name)) == text
    with pytest.raises(ValueError, match="no place"):
        table.with_section("nothing", "here")
