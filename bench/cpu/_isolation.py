"""Workloads in processes of their own, so that none can take the others down."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection

from bench._rows import Row
from bench.cpu._contest import Settings


def isolated(workload: str, settings: Settings) -> Iterator[Row]:
    """The rows of a workload as they come, and one that says so if its process ended early."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_rows, args=(workload, settings, sender))
    process.start()
    sender.close()
    try:
        while True:
            yield receiver.recv()
    except EOFError:
        process.join()
    if process.exitcode:
        problem = f"failed: the process ended with status {process.exitcode}"
        yield Row(workload, "all that would follow", "all", "all", problem=problem)


def _send_rows(workload: str, settings: Settings, sender: Connection) -> None:
    module = importlib.import_module(f"bench.cpu.{workload}")
    for row in module.run(settings):
        sender.send(row)
    sender.close()
