"""The tables of bench/results."""

import json
from pathlib import Path

import pytest

from bench import m_step
from bench._report import with_tables

RESULTS = Path(__file__).parents[2] / "bench" / "results"


def test_the_text_holds_the_figures_of_the_json_file() -> None:
    results = json.loads((RESULTS / "cpu.json").read_text())
    text = (RESULTS / "README.md").read_text()
    assert with_tables(text, "cpu", results) == text
    median = next(row for row in results["hmm"]["rows"] if row["library"] == "dynamax")
    assert median["case"] in text


def test_a_text_without_a_place_for_a_table_is_an_error() -> None:
    results = json.loads((RESULTS / "cpu.json").read_text())
    with pytest.raises(ValueError, match=r"no place for cpu\.mnist"):
        with_tables("# Nothing here\n", "cpu", {"mnist": results["mnist"]})


def test_the_text_holds_the_table_of_m_steps() -> None:
    report = json.loads((RESULTS / "m-step.json").read_text())
    text = (RESULTS / "README.md").read_text()
    assert m_step.with_table(text, report) == text
    assert len(report["rows"]) == 24 and not any(row["conditional"] for row in report["rows"])
    with pytest.raises(ValueError, match="no place"):
        m_step.with_table("# Nothing here\n", report)
