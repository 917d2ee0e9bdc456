"""Errors of whole circuits' log-likelihoods against float64 on the CPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import jax
import numpy as np

import jaxjuice as juice
from bench.gpu.workloads import QUICK, WORKLOADS
from jaxjuice.nodes import CircuitNodes, ProductNodes, SumNodes

SMALL_BATCH = 16  # smaller ones run in float32
TARGETS = {"fp32": 1e-4, "auto": 1e-2}
"""The largest mean errors allowed, in nats."""


def send_rows(name: str, quick: bool, num_rows: int, sender: Connection) -> None:
    """Sends the rows of a workload, for a process of its own."""
    for row in circuit_rows(name, quick, num_rows):
        sender.send(row)
    sender.close()


def circuit_rows(name: str, quick: bool, num_rows: int) -> Iterator[dict[str, Any]]:
    """The errors of one workload in modes fp32 and auto, at a small batch and at its own ones.

    Args:
        num_rows: at most so many rows of a batch are compared.
    """
    begin = time.perf_counter()
    workload = (QUICK if quick else WORKLOADS)[name]
    root = workload.build()
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    batches = sorted({SMALL_BATCH, *workload.batches})
    x = workload.data(max(batches), pc.num_vars)
    found: dict[tuple[int, str], np.ndarray] = {}
    for batch in batches:
        for mode in TARGETS:
            run = jax.jit(
                lambda params, x, mode=mode: pc.log_likelihood(
                    params, x, precision=mode, validate=False
                ),
                compiler_options=juice.compiler_options(),
            )
            # Of one small batch alone, the mean would be no better known than its target.
            count = max(batch, min(num_rows, len(x)) // batch * batch)
            lls = [run(params, x[first : first + batch]) for first in range(0, count, batch)]
            found[batch, mode] = np.concatenate(lls).astype(np.float64)[:num_rows]
    host = jax.tree.map(np.asarray, params)
    del params
    device_s = time.perf_counter() - begin
    exact = _in_float64(pc, host, x[: min(num_rows, max(batches))])
    all_s = time.perf_counter() - begin
    depth, sums = sum_counts(root)
    for (batch, mode), lls in found.items():
        error = lls - exact[: len(lls)]
        mean = float(error.mean())
        yield {
            "workload": name,
            "batch": batch,
            "precision": mode,
            "rows": len(lls),
            "mean_ll": float(exact[: len(lls)].mean()),
            "mean_error": mean,
            "standard_error": float(error.std(ddof=1) / len(lls) ** 0.5),
            "max_error": float(np.abs(error).max()),
            "depth": depth,
            "sums": sums,
            "mean_error_per_level": mean / depth,
            "mean_error_per_sum": mean / sums,
            "device_s": device_s,
            "float64_s": all_s - device_s,
            "targets": {"mean_error": TARGETS[mode]},
            # Not `>`: NaN must not pass.
            "missed": [] if abs(mean) <= TARGETS[mode] else ["mean_error"],
        }


def _in_float64(pc: juice.Circuit, params: Any, x: np.ndarray) -> np.ndarray:
    """Log-likelihoods on the CPU; called when all else is done, for it changes JAX's types."""
    cpu = jax.devices("cpu")[0]
    with jax.enable_x64(True), jax.default_device(cpu):
        params = jax.tree.map(lambda a: jax.device_put(a.astype(np.float64), cpu), params)
        lls = np.asarray(pc.log_likelihood(params, jax.device_put(x, cpu), validate=False))
    assert lls.dtype == np.float64
    return lls


def sum_counts(root: CircuitNodes) -> tuple[int, int]:
    """The most sums on a path from the root, and the most that a log-likelihood is made of.

    A product adds up the values of all of its children, so the errors of the sums under all of them
    add up, too; a sum mixes its children, so it has the errors of one of them, on average.
    """
    depth: dict[CircuitNodes, int] = {}
    sums: dict[CircuitNodes, int] = {}
    for ns in root:  # children first
        own = int(isinstance(ns, SumNodes))
        depth[ns] = own + max((depth[child] for child in ns.chs), default=0)
        join = sum if isinstance(ns, ProductNodes) else max
        sums[ns] = own + (join([sums[child] for child in ns.chs]) if ns.chs else 0)
    return depth[root], sums[root]
