"""The report of a benchmark: tables from JSON."""

import json
from pathlib import Path

import pytest

from bench._report import as_markdown, update_results, with_tables
from bench._rows import Row
from bench._timing import Timing, readable, take_turns

README = Path(__file__).parents[2] / "bench" / "results" / "README.md"


def sample() -> dict:
    case = ("hmm", "2 latents", "EM step")
    rows = [
        Row(*case, "jaxjuice", build_s=0.1, first_s=1.25, timing=Timing(0.002, 0.001, 0.003, 9)),
        Row(*case, "peer", first_s=0.5, timing=Timing(0.005, 0.004, 0.006, 7), parity=2e-5),
        Row(*case, "other", problem="skipped: other is not installed"),
        Row("hmm", "all", "epoch", "jaxjuice", figures={"bits per dimension": 1.25}),
    ]
    machine = {"processor": "CPU", "cores": 2, "system": "OS", "python": "3.11", "load_before": 0.1}
    return {
        "command": "python -m bench.cpu",
        "machine": machine,
        "versions": {"jaxjuice": "0.1.0"},
        "rows": [row.to_json() for row in rows],
    }


def cells(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_row_survives_json():
    for values in sample()["rows"]:
        assert Row.from_json(json.loads(json.dumps(values))).to_json() == values


def test_table():
    text = as_markdown(sample())
    head, rule, ours, peer, other, figure = cells(text)
    assert len({len(row) for row in (head, rule, ours, peer, other, figure)}) == 1
    assert ours[2:6] == ["jaxjuice", "2 ms", "1 ms to 3 ms", "1.00x"]
    assert peer[2:] == ["peer", "5 ms", "4 ms to 6 ms", "2.50x", "500 ms", "2.0e-05"]
    assert other[2:4] == ["other", "skipped"]
    assert "other: skipped: other is not installed" in text
    assert "- bits per dimension: 1.25" in text
    assert "2 cores" in text and "jaxjuice 0.1.0" in text


def test_the_readme_is_updated_in_place(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- cpu.hmm -->\nold\n<!-- end -->\nafter\n<!-- end -->\n")
    update_results(tmp_path, "cpu", {"hmm": sample()})
    once = readme.read_text()
    assert once.startswith("before\n<!-- cpu.hmm -->\n") and "old" not in once
    assert once.endswith("<!-- end -->\nafter\n<!-- end -->\n")
    update_results(tmp_path, "cpu", {"hmm": sample()})
    assert readme.read_text() == once


def test_other_workloads_keep_their_results(tmp_path):
    update_results(tmp_path, "cpu", {"mnist": sample()})
    update_results(tmp_path, "cpu", {"hmm": sample()})
    assert set(json.loads((tmp_path / "cpu.json").read_text())) == {"mnist", "hmm"}


def test_a_workload_without_a_place_is_an_error():
    with pytest.raises(ValueError, match=r"no place for cpu\.hmm"):
        with_tables("nothing here", "cpu", {"hmm": sample()})


def test_the_readme_has_a_place_for_each_workload():
    results = dict.fromkeys(("mnist", "hmm", "circuits"), sample())
    text = with_tables(README.read_text(), "cpu", results)
    sections = text.split("<!-- cpu.")[1:]
    assert ["2.50x" in section.split("<!-- end -->")[0] for section in sections] == [True] * 3


def test_each_contender_gets_its_turns():
    calls = []
    actions = {name: lambda name=name: calls.append(name) for name in ("a", "b")}
    resets = {name: lambda: None for name in actions}
    timings = take_turns(actions, resets, seconds=1e-6, turns=2, rest=0.0)
    assert [calls[0], calls[-1]] == ["a", "b"] and len(calls) >= 8
    assert all(timing.low <= timing.median <= timing.high for timing in timings.values())


@pytest.mark.parametrize(
    ("seconds", "text"), [(12.345, "12.3 s"), (0.0123, "12.3 ms"), (4.5e-6, "4.5 us")]
)
def test_readable(seconds, text):
    assert readable(seconds) == text
