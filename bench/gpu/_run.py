"""One workload: both libraries, all batch sizes and modes."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxjuice as juice
from bench._machine import describe_machine, versions
from bench.gpu import _floor, _jaxjuice, _pyjuice
from bench.gpu._jaxjuice import Measured
from bench.gpu.workloads import QUICK, WORKLOADS

PACKAGES = (
    "jaxjuice",
    "jax",
    "jaxlib",
    "jax-triton",
    "numpy",
    "optax",
    "pyjuice",
    "torch",
    "triton",
)
# PyJuice's own products are in bf16 (forward) and TF32: an error of 4e-3 nats a layer.
TOLERANCE_PER_LAYER = 4e-3


def send_rows(name: str, arguments: argparse.Namespace, sender: Connection) -> None:
    """Sends the rows of a workload as they come. Kernels that earlier runs compiled don't count."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        for row in run(name, arguments):
            sender.send(row)
    sender.close()


def run(name: str, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of one workload: one for each batch and mode."""
    workload = (QUICK if arguments.quick else WORKLOADS)[name]
    device = jax.devices()[0]
    print(f"{workload.title}, on {device.device_kind}", flush=True)
    begin = time.perf_counter()
    root = workload.build()
    build_s = time.perf_counter() - begin
    pc = juice.compile(root)
    program_s = time.perf_counter() - begin - build_s
    print(f"  built in {build_s:.1f} s, compiled to a program in {program_s:.1f} s\n{pc}")
    params = jax.block_until_ready(pc.init(jax.random.key(0)))
    for batch in workload.batches:
        x = workload.data(batch, pc.num_vars)
        ours: dict[str, Measured] = {}
        for mode in arguments.precision:
            variant = pc.with_precision(mode)
            ours[mode] = _jaxjuice.measure(variant, params, x, arguments.rounds, program_s)
            print(f"  {_line(name, batch, f'jaxjuice {mode}', ours[mode])}", flush=True)
        peer, problem = None, None
        if arguments.peer == "pyjuice":
            try:
                peer = _pyjuice.measure(root, pc.node_params(params), x, arguments.rounds)
                print(f"  {_line(name, batch, 'pyjuice', peer)}", flush=True)
            except Exception as error:
                traceback.print_exc()
                line = next(iter(str(error).splitlines()), "")
                problem = f"pyjuice failed: {type(error).__name__}: {line}"
                print(f"  {problem}", flush=True)
        for mode, measured in ours.items():
            row = _row(pc.with_precision(mode), name, batch, measured, peer)
            if arguments.peer_from is not None:
                row |= earlier_peer(arguments.peer_from, row)
            if problem is not None:
                row["problem"] = problem
            _print_comparison(row)
            yield row


def earlier_peer(path: Path, row: dict[str, Any]) -> dict[str, Any]:
    """What an earlier report has of the peer for a row's workload, batch and device.

    Returns:
        Its fields `peer_...`, and `peer_from`, the name of the report; nothing if it has none.
        Log-likelihoods are not compared anew, so there is no `ll_max_abs_diff`.
    """
    keys = ("workload", "batch", "device")
    for earlier in json.loads(path.read_text()):
        is_valid = "peer_fw_queued_ms" in earlier and not earlier.get("problem")
        if is_valid and all(earlier[key] == row[key] for key in keys):
            found = {key: value for key, value in earlier.items() if key.startswith("peer_")}
            return {"peer_from": path.name} | found
    return {}


def _row(
    pc: juice.Circuit, name: str, batch: int, measured: Measured, peer: Measured | None
) -> dict[str, Any]:
    """One row of the report; with a "problem" if the peer's log-likelihoods are too far off."""
    forward, training = _floor.forward_floor(pc, batch), _floor.training_floor(pc, batch)
    row = {
        "workload": name,
        "batch": batch,
        "precision": pc.precision,
        "device": jax.devices()[0].device_kind,
        "machine": describe_machine(),
        "versions": versions(PACKAGES),
        "compile_s": measured.compile_s,
        **_times("", measured),
        "floor_fw_ms": forward.total,
        "floor_fwbw_ms": training.total,
        "floor_fwbw_arithmetic_ms": training.arithmetic,
        "floor_fwbw_memory_ms": training.memory,
        "memory_bytes": measured.memory,
        "mean_ll": float(measured.lls.mean()),
    }
    if peer is None:
        return row
    gap = float(np.abs(measured.lls - peer.lls).max())
    row |= _times("peer_", peer)
    row |= {"peer_compile_s": peer.compile_s, "peer_memory_bytes": peer.memory}
    row["ll_max_abs_diff"] = gap
    layers = sum(stage[0].num_steps for stage in pc.program.stages)
    # Not `gap > ...`: NaN must not pass.
    if not gap <= TOLERANCE_PER_LAYER * layers:
        row["problem"] = f"log-likelihoods differ by {gap:.2g} nats over {layers} layers"
    return row


def _times(prefix: str, measured: Measured) -> dict[str, float]:
    found = {}
    for key, (alone, queued) in zip(
        ("fw", "fwbw", "step"), (measured.forward, measured.both, measured.step), strict=True
    ):
        found[f"{prefix}{key}_ms"] = alone.median * 1e3
        found[f"{prefix}{key}_quartiles_ms"] = [alone.low * 1e3, alone.high * 1e3]
        found[f"{prefix}{key}_queued_ms"] = queued * 1e3
    return found


def _line(name: str, batch: int, who: str, measured: Measured) -> str:
    times = ", ".join(
        f"{label} {alone.median * 1e3:.2f} ms ({alone.low * 1e3:.2f} to {alone.high * 1e3:.2f}; "
        f"queued {queued * 1e3:.2f})"
        for label, (alone, queued) in (
            ("forward", measured.forward),
            ("with flows", measured.both),
            ("EM step", measured.step),
        )
    )
    return (
        f"{name}, batch {batch}, {who}: first step after {measured.compile_s:.2f} s, {times}, "
        f"{measured.memory / 2**30:.2f} GiB, mean LL {measured.lls.mean():.4f}"
    )


def _print_comparison(row: dict[str, Any]) -> None:
    parts = [
        f"{key} {100 * row[f'floor_{key}_ms'] / row[f'{key}_ms']:.0f} % of the floor "
        f"{row[f'floor_{key}_ms']:.2f} ms"
        for key in ("fw", "fwbw")
    ]
    if "peer_fw_ms" in row:
        parts += [
            f"{key} {row[f'peer_{key}_ms'] / row[f'{key}_ms']:.2f}x"
            for key in ("fw", "fwbw", "step")
        ]
    if "ll_max_abs_diff" in row:
        parts.append(f"max |dLL| {row['ll_max_abs_diff']:.1e}")
    if row.get("problem"):
        parts.append(row["problem"])
    print(
        f"    {row['workload']} {row['batch']} {row['precision']}: " + ", ".join(parts), flush=True
    )
