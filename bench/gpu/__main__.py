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
    parser = _parser()
    arguments = parser.parse_args()
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    out = arguments.out
    if out is None and not arguments.quick:
        out = RESULTS / f"gpu-{time.strftime('%Y%m%d-%H%M%S')}.json"
    if arguments.peer_from is not None:
        if not arguments.peer_from.is_file():
            parser.error(f"--peer-from {arguments.peer_from}: no such file")
        if out is not None and out.resolve() == arguments.peer_from.resolve():
            parser.error("--out would overwrite what --peer-from reads")
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
                _write(out, rows)
        except EOFError:
            process.join()
        if process.exitcode:
            rows.append({"workload": name, "problem": f"ended with status {process.exitcode}"})
            _write(out, rows)
            print(f"{name}: the process ended with status {process.exitcode}", flush=True)
    if out is not None:
        print(f"written to {out}")
    return int(any(row.get("problem") for row in rows))


def _write(out: Path | None, rows: list[dict[str, Any]]) -> None:
    """Writes what there is: a run that is cut off leaves the rows before."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(rows, indent=1) + "\n")


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
    peer = parser.add_mutually_exclusive_group()
    peer.add_argument("--peer", choices=["pyjuice", "none"], default="none")
    peer.add_argument(
        "--peer-from", type=Path, metavar="FILE",
        help="take PyJuice's figures from an earlier report of the same device",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=20, help="timed calls of each kind")
    parser.add_argument("--out", type=Path, help="JSON file (default: a new one in bench/results)")
    parser.add_argument(
        "--quick", action="store_true",
        help="tiny problems, on a CPU too, to see that everything runs; writes only to --out",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
