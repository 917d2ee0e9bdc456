"""What the peers that run on torch have in common."""

from __future__ import annotations

import dataclasses

from bench._machine import num_cores
from bench._timing import clock
from bench.cpu._contest import Contender, Task

REPEATS = 3


def with_best_threads(tasks: dict[str, Task]) -> Contender:
    """A contender whose tasks run on 1 thread or on all cores, whichever evaluates faster.

    Threads of OpenMP wait for each other after each of a circuit's many small operations, so more
    of them may be slower, and are so wherever anything else runs on the machine.

    Args:
        tasks: With "log-likelihood" among them.
    """
    import torch

    evaluate = tasks["log-likelihood"].run

    def seconds(threads: int) -> float:
        torch.set_num_threads(threads)
        return min(clock(evaluate) for _ in range(REPEATS))

    threads = min({1, num_cores()}, key=seconds)

    def on_threads(task: Task) -> Task:
        def reset() -> None:
            torch.set_num_threads(threads)
            task.reset()

        return dataclasses.replace(task, reset=reset)

    return Contender({name: on_threads(task) for name, task in tasks.items()}, {"threads": threads})
