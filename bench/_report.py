"""Results as JSON, and as tables in results/README.md."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench._rows import Row
from bench._timing import readable

HEAD = ("case", "task", "library", "median", "quartiles", "vs jaxjuice", "first call", "max diff")

Results = Mapping[str, Mapping[str, Any]]


def update_results(folder: Path, name: str, results: Results) -> None:
    """Puts results into `NAME.json`, and tables of all that it then holds into README.md.

    Args:
        folder: Where both files are.
        name: Of the benchmark.
        results: By workload. Workloads that are not among them keep what they had.
    """
    path = folder / f"{name}.json"
    everything = json.loads(path.read_text()) if path.exists() else {}
    everything |= results
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(everything, indent=1) + "\n")
    readme = folder / "README.md"
    if readme.exists():
        readme.write_text(with_tables(readme.read_text(), name, everything))


def with_tables(text: str, name: str, results: Results) -> str:
    """The text with what lies between the marks of each workload replaced.

    The marks are `<!-- NAME.WORKLOAD -->` and `<!-- end -->`, on lines of their own.

    Raises:
        ValueError: If a workload has no marks.
    """
    for workload, result in results.items():
        begin = f"<!-- {name}.{workload} -->\n"
        pattern = re.compile(re.escape(begin) + r".*?(?=<!-- end -->)", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"The text has no place for {name}.{workload}: {begin!r} ... end.")
        section = begin + "\n" + as_markdown(result) + "\n"
        text = pattern.sub(lambda _, section=section: section, text)
    return text


def as_markdown(result: Mapping[str, Any]) -> str:
    """A workload's machine, versions, table and further figures."""
    rows = [Row.from_json(values) for values in result["rows"]]
    machine = result["machine"]
    lines = [
        f"`{result['command']}` on {machine['processor']}, {machine['cores']} cores, "
        f"{machine['system']}, Python {machine['python']}; load average before the run "
        f"{machine['load_before']}. "
        + ", ".join(f"{package} {version}" for package, version in result["versions"].items())
        + ".",
        "",
        *markdown_table([HEAD, *_cells(rows)]),
    ]
    problems = [
        f"- {row.case}, {row.task}, {row.library}: {row.problem}" for row in rows if row.problem
    ]
    if problems:
        lines += ["", "Without a time:", "", *problems]
    for row in rows:
        if row.figures:
            lines += ["", f"{row.case}, {row.library}:", ""]
            lines += [f"- {name}: {_number(value)}" for name, value in row.figures.items()]
    return "\n".join(lines) + "\n"


def print_tables(results: Results) -> None:
    """All tables, on the terminal."""
    for workload, result in results.items():
        print(f"\n{workload}\n\n{as_markdown(result)}", flush=True)


def _cells(rows: list[Row]) -> list[tuple[str, ...]]:
    ours = {(row.case, row.task): row.timing for row in rows if row.library == "jaxjuice"}
    cells = []
    for row in rows:
        name = (row.case, row.task, row.library)
        if row.problem is not None or row.timing is None:
            kind = (row.problem or "no time").partition(":")[0]
            cells.append((*name, kind, *[""] * (len(HEAD) - 4)))
            continue
        reference = ours.get((row.case, row.task))
        ratio = "" if reference is None else f"{row.timing.median / reference.median:.2f}x"
        cells.append(
            (
                *name,
                readable(row.timing.median),
                f"{readable(row.timing.low)} to {readable(row.timing.high)}",
                ratio,
                "" if row.first_s is None else readable(row.first_s),
                "" if row.parity is None else f"{row.parity:.1e}",
            )
        )
    return cells


def markdown_table(rows: list[tuple[str, ...]]) -> list[str]:
    """Markdown whose columns also line up for a reader of the plain text."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows = [rows[0], tuple("-" * width for width in widths), *rows[1:]]
    return [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
