"""`python -m bench.gpu`: measures, prints, and writes bench/results/gpu-*.json."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

from bench.gpu import _run
from bench.gpu.workloads import WORKLOADS

RESULTS = Path(__file__).parents[1] / "results"
MODES = ("auto", "bf16", "tf32", "bf16x3", "fp32")


def main() -> int:
    """Runs every workload in a process of its own, one after another."""
    arguments = _parser().parse_args()
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    rows: list[dict[str, Any]] = []
    context = multiprocessing.get_context("spawn")
    for name in arguments.workloads:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_run.send_rows, args=(name, arguments, sender))
        process.start()
        sender.close()
        try:
            while True:
                rows.append(receiver.recv())
        except EOFError:
            process.join()
        if process.exitcode:
            rows.append({"workload": name, "problem": f"ended with status {process.exitcode}"})
            print(f"{name}: the process ended with status {process.exitcode}", flush=True)
    if not arguments.quick or arguments.out:
        out = arguments.out or RESULTS / f"gpu-{time.strftime('%Y%m%d-%H%M%S')}.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(rows, indent=1) + "\n")
        print(f"written to {out}")
    return int(any(row.get("problem") for row in rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    names = ", ".join(WORKLOADS)
    parser.add_argument(
        "--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME",
        help=f"which to run, of {names} (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--precision", nargs="+", choices=MODES, default=["auto", "fp32"], metavar="MODE",
        help=f"modes to measure, of {', '.join(MODES)} (default: auto fp32)",
    )  # fmt: skip
    parser.add_argument("--peer", choices=["pyjuice", "none"], default="none")
    parser.add_argument("--rounds", type=int, default=20, help="timed calls of each kind")
    parser.add_argument("--out", type=Path, help="JSON file (default: a new one in bench/results)")
    parser.add_argument(
        "--quick", action="store_true",
        help="tiny problems, on a CPU too, to see that everything runs; writes only to --out",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
