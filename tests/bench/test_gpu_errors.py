"""Errors against float64, on a CPU: of everything in float32."""

import json

import numpy as np
import pytest

import jaxjuice as juice
from bench import gpu_errors
from bench.gpu import _circuit_errors, _layer_errors
from bench.gpu._layer_errors import QUICK_LAYERS, layer_rows
from jaxjuice.distributions import Categorical


@pytest.mark.parametrize("layer", QUICK_LAYERS, ids=lambda layer: layer.title)
def test_a_layer_in_float32_misses_nothing(layer) -> None:
    (row,) = layer_rows((layer,), ("fp32",))
    assert row["missed"] == [] and None not in row["targets"].values()
    errors = [value for key, value in row.items() if key.startswith(("ll_max", "elem", "param"))]
    assert len(errors) == 5 and all(0 < error < 1e-6 for error in errors)
    assert abs(row["ll_mean_error"]) < row["ll_max_error"]


def test_what_is_not_a_number_misses_its_target() -> None:
    layer = QUICK_LAYERS[0]
    problem = _layer_errors._problem(layer, np.random.default_rng(0))
    exact = _layer_errors._in_float64(layer, problem)
    shift = np.zeros(problem.flows.shape[:2])
    broken = exact._replace(values=exact.values * np.nan, parameter_flows=2 * exact[2])
    row = _layer_errors._row(layer, "fp32", broken, broken, exact, shift)
    assert row["missed"] == ["ll_max_error", "parameter_flows"]


def test_the_layers_are_what_their_titles_say() -> None:
    layers = _layer_errors.LAYERS
    bf16, tf32 = "BF16_BF16_F32", "TF32_TF32_F32"
    algorithms = [_layer_errors._algorithms(layer, "auto")[0] for layer in layers]
    assert algorithms == [bf16, bf16, tf32, bf16, tf32, tf32, bf16]
    by = [layer.runs_on("auto") for layer in layers]
    assert by == ["Triton", "Triton", "XLA", "XLA", "Triton", "Triton", "Triton"]
    assert {layer.runs_on("fp32") for layer in layers} == {"Triton"}
    assert [layer.keeps_apart for layer in layers] == [False, True, *5 * [False]]
    assert [layer.splits for layer in layers] == [*5 * [False], True, False]
    assert {layer.num_children for layer in layers} == {1024}
    assert {layer.num_nodes for layer in layers if not layer.keeps_apart} == {1024}


def test_sums_are_counted_by_hand() -> None:
    leaves = [juice.inputs(v, num_nodes=2, dist=Categorical(2)) for v in range(3)]
    upper = juice.summate(juice.multiply(*leaves[:2]), num_nodes=2)
    lower = [
        juice.summate(juice.multiply(upper), num_nodes=2),
        juice.summate(leaves[2], num_nodes=2),
    ]
    root = juice.summate(juice.multiply(*lower), num_nodes=1)
    assert _circuit_errors.sum_counts(root) == (3, 4)


@pytest.mark.slow
def test_the_command_writes_a_report(tmp_path, monkeypatch, capsys) -> None:
    layer = list(layer_rows(QUICK_LAYERS[:1], ("fp32",)))
    monkeypatch.setattr(_layer_errors, "layer_rows", lambda *_: layer)
    out = tmp_path / "errors.json"
    options = ["--quick", "--workloads", "hclt1024", "--rows", "20", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["bench.gpu_errors", *options])
    assert gpu_errors.main() == 0
    report = json.loads(out.read_text())
    text = capsys.readouterr().out
    assert report["layers"] == layer and "0 targets missed" in text
    rows = report["circuits"]
    assert [(row["batch"], row["precision"], row["rows"]) for row in rows] == [
        (16, "fp32", 16), (16, "auto", 16), (32, "fp32", 20), (32, "auto", 20),
    ]  # fmt: skip
    for row in rows:
        assert row["missed"] == [] and 0 < row["max_error"] < 1e-4
        assert abs(row["mean_error"]) <= row["max_error"]
    assert "MISS" not in text and "\n".join(gpu_errors.circuit_table(rows)) in text
    rows[0]["missed"] = ["mean_error"]
    assert "(MISS: 1e-04)" in "\n".join(gpu_errors.circuit_table(rows))
