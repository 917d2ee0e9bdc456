"""The conditional M-step beside normalized flows: `python -m bench.m_step`.

Of 100 hidden Markov models whose transitions are scaled for each sample, counts those with a step
that lowers what the M-step climbs; and trains gates, and a scale of low rank that equals them, for
16 steps. All in float64, so any machine finds the same. Prints tables, writes
bench/results/m-step.json, and puts the tables into bench/results/README.md.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from bench._conditional import BATCHES, INSTANCES, KINDS, STEPS, Way, num_falling, sixteen_steps
from bench._machine import versions
from bench._report import markdown_table

RESULTS = Path(__file__).parent / "results"
_SECTION = re.compile(r"(?<=<!-- m-step -->\n).*?(?=<!-- end -->)", re.DOTALL)


def main() -> int:
    """Counts, prints and writes; 1 if a conditional step fell."""
    parser = argparse.ArgumentParser(prog="python -m bench.m_step", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder (default: bench/results)")
    folder = parser.parse_args().out
    rows = [row for name, kind in KINDS.items() for row in _rows(name, num_falling(kind))]
    report = {
        "instances": INSTANCES,
        "steps": STEPS,
        "versions": versions(("jaxjuice", "jax", "jaxlib", "numpy")),
        "rows": rows,
        "sixteen_steps": sixteen_steps()._asdict(),
    }
    print(as_markdown(report))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "m-step.json").write_text(json.dumps(report, indent=1) + "\n")
    readme = folder / "README.md"
    if readme.exists():
        readme.write_text(with_table(readme.read_text(), report))
    return int(any(row["conditional"] for row in rows))


def _rows(name: str, counts: dict[Way, int]) -> list[dict[str, Any]]:
    return [
        {
            "scale": name,
            "step_size": way.step_size,
            "trains_leaves": way.trains_leaves,
            "pseudocount": way.pseudocount,
            "conditional": count,
            "normalized": counts[way._replace(is_conditional=False)],
        }
        for way, count in counts.items()
        if way.is_conditional
    ]


def as_markdown(report: dict[str, Any]) -> str:
    """The table, and the two differences."""
    head = ("scale", "step size", "leaves", "pseudocount", "F+ / W falls", "normalize(F+) falls")
    cells = [
        (
            row["scale"],
            str(row["step_size"]),
            "trained" if row["trains_leaves"] else "frozen",
            str(row["pseudocount"]),
            str(row["conditional"]),
            str(row["normalized"]),
        )
        for row in report["rows"]
    ]
    steps = report["sixteen_steps"]
    lines = [
        f"Of {report['instances']} instances with {report['steps']} steps each, those with a step "
        "that lowers the objective:",
        "",
        *markdown_table([head, *cells]),
        "",
        f"After {BATCHES} steps of Anemone with momentum 0.9, the parameters of gates and those of "
        f"a low-rank scale that equals them are {steps['forms']:.1e} apart; averages of F- in "
        f"place of W lead {steps['averages']:.1e} away.",
    ]
    return "\n".join(lines) + "\n"


def with_table(text: str, report: dict[str, Any]) -> str:
    """The text with what lies between `<!-- m-step -->` and `<!-- end -->` replaced.

    Raises:
        ValueError: If there are no such marks.
    """
    section = f"\n{as_markdown(report)}\n"
    text, count = _SECTION.subn(lambda _: section, text, count=1)
    if not count:
        raise ValueError("The text has no place for the table: <!-- m-step --> ... <!-- end -->.")
    return text


if __name__ == "__main__":
    raise SystemExit(main())
