"""Errors of every mode of precision against float64: `python -m bench.gpu_errors`.

One sum layer with 1024 children: the forward product, the backward pass alone (given exact values
of the nodes), and after the forward pass of the same mode. Then whole circuits, in modes fp32 and
auto. Prints tables, and writes bench/results/gpu-errors.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

from bench._report import markdown_table

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("jaxjuice", "jax", "jaxlib", "jax-triton", "triton", "numpy")


def main() -> int:
    """Measures, prints and writes; 1 if a target is missed."""
    arguments = _parser().parse_args()
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    begin = time.perf_counter()

    import jax

    from bench._machine import describe_machine, versions
    from bench.gpu import _layer_errors
    from bench.gpu.workloads import WORKLOADS
    from jaxjuice import ops

    device = jax.devices()[0]
    quick = arguments.quick or device.platform != "gpu"
    print(f"on {device.device_kind}" + ("" if device.platform == "gpu" else ": all is float32"))
    names = list(WORKLOADS) if arguments.workloads is None else arguments.workloads
    layers = _layer_errors.QUICK_LAYERS if quick else _layer_errors.LAYERS
    running = [] if quick else _start(names, False, arguments.rows)
    report: dict[str, Any] = {
        "device": device.device_kind,
        "machine": describe_machine(),
        "versions": versions(PACKAGES),
        "layers": list(_layer_errors.layer_rows(layers, ops.PRECISIONS)),
        "circuits": [],
    }
    print("\n".join(layer_table(report["layers"])), flush=True)
    problems: list[str] = []
    if quick:  # on few cores, one after another
        for name in names:
            _receive(_start([name], True, arguments.rows), report["circuits"], problems)
    else:
        _receive(running, report["circuits"], problems)
    print("\n".join(["", *circuit_table(report["circuits"]), *problems]))
    print(f"{time.perf_counter() - begin:.0f} s in all")
    out = RESULTS / "gpu-errors.json" if arguments.out is None and not quick else arguments.out
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")
        print(f"written to {out}")
    missed = sum(len(row["missed"]) for row in report["layers"] + report["circuits"])
    print(f"{missed} targets missed")
    return int(bool(missed or problems))


def _start(names: list[str], quick: bool, rows: int) -> list[tuple[str, Any, Any]]:
    """Starts a process for each workload: its name, the process, and the end of its pipe."""
    from bench.gpu import _circuit_errors

    context = multiprocessing.get_context("spawn")
    running = []
    for name in names:
        receiver, sender = context.Pipe(duplex=False)
        arguments = name, quick, rows, sender
        process = context.Process(target=_circuit_errors.send_rows, args=arguments)
        process.start()
        sender.close()
        running.append((name, process, receiver))
    return running


def _receive(running: list, rows: list[dict[str, Any]], problems: list[str]) -> None:
    """Adds what the processes send, and those that failed."""
    for name, process, receiver in running:
        try:
            while True:
                rows.append(receiver.recv())
        except EOFError:
            process.join()
        if process.exitcode:
            problems.append(f"{name}: the process ended with status {process.exitcode}")


def layer_table(rows: list[dict[str, Any]]) -> list[str]:
    """The errors of layers, in Markdown."""
    head = (
        "layer", "batch", "mode", "by", "forward", "max LL error", "mean LL error", "backward",
        "element flows", "parameter flows", "both after the forward pass",
    )  # fmt: skip
    cells = [
        (
            row["layer"],
            str(row["batch"]),
            row["precision"],
            row["runs_on"],
            row["forward"],
            _judged(row, "ll_max_error"),
            f"{row['ll_mean_error']:+.1e}",
            row["backward"],
            _judged(row, "element_flows"),
            _judged(row, "parameter_flows"),
            f"{row['element_flows_after_forward']:.1e}, {row['parameter_flows_after_forward']:.1e}",
        )
        for row in rows
    ]
    return markdown_table([head, *cells])


def circuit_table(rows: list[dict[str, Any]]) -> list[str]:
    """The errors of circuits, in Markdown."""
    head = (
        "workload", "batch", "mode", "rows", "mean LL", "mean error", "max error", "depth",
        "mean error / depth", "sums", "mean error / sums",
    )  # fmt: skip
    cells = [
        (
            row["workload"],
            str(row["batch"]),
            row["precision"],
            str(row["rows"]),
            f"{row['mean_ll']:.2f}",
            f"{_judged(row, 'mean_error')} +- {row['standard_error']:.0e}",
            f"{row['max_error']:.1e}",
            str(row["depth"]),
            f"{row['mean_error_per_level']:+.1e}",
            str(row["sums"]),
            f"{row['mean_error_per_sum']:+.1e}",
        )
        for row in rows
    ]
    return markdown_table([head, *cells])


def _judged(row: dict[str, Any], name: str) -> str:
    sign = "+" if name == "mean_error" else ""
    text, most = f"{row[name]:{sign}.1e}", row["targets"][name]
    if most is None:
        return text
    return f"{text} (MISS: {most:.0e})" if name in row["missed"] else f"{text} (<= {most:.0e})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_errors", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file (default: bench/results/...)")
    parser.add_argument("--workloads", nargs="*", metavar="NAME", help="which (default: all)")
    parser.add_argument("--rows", type=int, default=64, help="rows to compare (default: 64)")
    parser.add_argument(
        "--quick", action="store_true",
        help="tiny problems, as on machines without a GPU; writes only to --out",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
