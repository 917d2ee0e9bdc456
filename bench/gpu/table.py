"""The report of `python -m bench.gpu` as Markdown: `python -m bench.gpu.table FILE [--write]`.

With `--write`, it goes into bench/results/README.md in place of what is between its marks.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench._report import markdown_table

README = Path(__file__).parents[1] / "results" / "README.md"
HEAD = (
    "workload", "batch", "mode", "forward, with flows, EM step (ms)", "PyJuice's (ms)", "ratio",
    "queued (ms)", "PyJuice's (ms)", "ratio",
    "floor: forward, with flows (ms)", "reached, queued", "memory (GiB)", "PyJuice's",
    "first step (s)", "PyJuice's", "max diff",
)  # fmt: skip
SPEEDS, FLOORS = ("fw", "fwbw", "step"), ("fw", "fwbw")
_SECTION = re.compile(r"(?<=<!-- gpu -->\n).*?(?=<!-- end -->)", re.DOTALL)


def as_markdown(rows: list[dict[str, Any]], name: str) -> str:
    """Device, versions and a table of all rows, and what went wrong.

    Args:
        rows: as `bench.gpu` writes them.
        name: of the file they are from.
    """
    measured = [row for row in rows if "fw_ms" in row]
    lines = [f"From `{name}`: " + "; ".join(dict.fromkeys(map(_origin, measured))) + "."]
    earlier = dict.fromkeys(row["peer_from"] for row in measured if "peer_from" in row)
    if earlier:
        lines[0] += (
            " PyJuice's figures are from " + ", ".join(f"`{file}`" for file in earlier) + "."
        )
    lines += ["", *markdown_table([HEAD, *map(_cells, measured)])]
    problems = [
        f"- {row['workload']}"
        + (f", batch {row['batch']}, {row['precision']}" if "batch" in row else "")
        + f": {row['problem']}"
        for row in rows
        if row.get("problem")
    ]
    if problems:
        lines += ["", "Problems:", "", *problems]
    return "\n".join(lines) + "\n"


def with_section(text: str, section: str) -> str:
    """The text with what is between `<!-- gpu -->` and `<!-- end -->` replaced.

    Raises:
        ValueError: if it has no such marks.
    """
    text, count = _SECTION.subn(lambda _: f"\n{section}\n", text, count=1)
    if not count:
        raise ValueError("The text has no place for the table: '<!-- gpu -->' ... '<!-- end -->'.")
    return text


def _origin(row: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    return f"{row['device']}, Python {row['machine']['python']}, {versions}"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    has_peer = "peer_fw_ms" in row
    names = SPEEDS if has_peer else ()

    def times(prefix: str, names: Iterable[str], suffix: str = "_ms") -> str:
        return ", ".join(f"{row[f'{prefix}{name}{suffix}']:.2f}" for name in names)

    def ratios(suffix: str = "_ms") -> str:
        found = (row[f"peer_{name}{suffix}"] / row[f"{name}{suffix}"] for name in names)
        return ", ".join(f"{ratio:.2f}x" for ratio in found)

    shares = (row[f"floor_{name}_ms"] / row[f"{name}_queued_ms"] for name in FLOORS)
    return (
        row["workload"],
        str(row["batch"]),
        row["precision"],
        times("", SPEEDS),
        times("peer_", names),
        ratios(),
        times("", SPEEDS, "_queued_ms"),
        times("peer_", names, "_queued_ms"),
        ratios("_queued_ms"),
        times("floor_", FLOORS),
        ", ".join(f"{share:.0%}" for share in shares),
        f"{row['memory_bytes'] / 2**30:.2f}",
        f"{row['peer_memory_bytes'] / 2**30:.2f}" if has_peer else "",
        f"{row['compile_s']:.1f}",
        f"{row['peer_compile_s']:.1f}" if has_peer else "",
        f"{row['ll_max_abs_diff']:.1e}" if "ll_max_abs_diff" in row else "",
    )


def main() -> None:
    """Prints or writes the table of one report."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.table", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--write", action="store_true", help=f"put it into {README.name}")
    arguments = parser.parse_args()
    section = as_markdown(json.loads(arguments.file.read_text()), arguments.file.name)
    if arguments.write:
        README.write_text(with_section(README.read_text(), section))
    else:
        print(section, end="")


if __name__ == "__main__":
    main()
