"""`python -m bench.cpu`: measures, prints, and writes bench/results."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from bench._machine import describe_machine, num_cores, versions
from bench._report import print_tables, update_results
from bench.cpu._contest import Settings
from bench.cpu._isolation import isolated

WORKLOADS = ("mnist", "hmm", "circuits")
PACKAGES = (
    "jaxjuice", "jax", "jaxlib", "numpy", "optax",
    "hmmlearn", "dynamax", "libcirkit", "spflow", "torch",
)  # fmt: skip
RESULTS = Path(__file__).parents[1] / "results"


def main() -> int:
    """Runs the workloads, one after another."""
    arguments = _parser().parse_args()
    settings = Settings(quick=arguments.quick, seconds=0.05 if arguments.quick else 3.0)
    _set_environment()
    results: dict[str, Any] = {}
    for workload in arguments.workloads:
        machine = describe_machine()
        rows = []
        for row in isolated(workload, settings):
            print(row, flush=True)
            rows.append(row.to_json())
        results[workload] = {
            "command": shlex.join(["python", "-m", "bench.cpu", *sys.argv[1:]]),
            "machine": machine,
            "versions": versions(PACKAGES),
            "rows": rows,
        }
    print_tables(results)
    out = arguments.out or (None if arguments.quick else RESULTS)
    if out is not None:
        update_results(out, "cpu", results)
    failed = [row for result in results.values() for row in result["rows"] if row["problem"]]
    return 1 if any(not row["problem"].startswith("skipped") for row in failed) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu", description=__doc__)
    parser.add_argument(
        "--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS, metavar="NAME",
        help=f"which to run, of {', '.join(WORKLOADS)} (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true",
        help="tiny problems, to see that everything runs; nothing is written without --out",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, help="folder for cpu.json and README.md (default: bench/results)"
    )
    return parser


def _set_environment() -> None:
    """Before any library starts its threads: the CPU, all cores, and no caches of compilations."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(num_cores())


if __name__ == "__main__":
    raise SystemExit(main())
