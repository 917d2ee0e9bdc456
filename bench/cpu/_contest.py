"""One problem, several libraries: equal results asserted first, then times."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from bench._rows import Row
from bench._timing import clock, take_turns

REFERENCE = "jaxjuice"


@dataclasses.dataclass(frozen=True)
class Settings:
    """How thorough a run is.

    Attributes:
        quick: Whether to take tiny problems, to see that everything runs.
        seconds: How long to time each task of each library.
    """

    quick: bool = False
    seconds: float = 3.0


def _nothing() -> None:
    pass


@dataclasses.dataclass(frozen=True)
class Task:
    """Something that a library does with its model.

    Attributes:
        run: Does it once, and returns when it is done.
        outcome: The log-likelihood of each row of data afterwards, float64 `[rows]`: under the
            given parameters for a task that only evaluates, under the new ones for a training step.
        reset: Puts the given parameters back.
    """

    run: Callable[[], object]
    outcome: Callable[[], np.ndarray]
    reset: Callable[[], object] = _nothing


@dataclasses.dataclass(frozen=True)
class Contender:
    """A library with the problem handed over.

    Attributes:
        tasks: What it can do, by name.
        notes: What a reader should know of how it is set up.
    """

    tasks: dict[str, Task]
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)


Builder = Callable[[], Contender]


def contest(
    workload: str,
    case: str,
    builders: Mapping[str, Builder],
    tolerances: Mapping[str, float],
    settings: Settings,
) -> Iterator[Row]:
    """Lets libraries solve the same problem.

    A library that fails, or whose results differ, gets a row that says so, and no time.

    Args:
        workload, case: For the rows.
        builders: By library, what hands the problem over. The first is jaxjuice, which has all
            tasks, and whose results are the reference.
        tolerances: By task, how far log-likelihoods may lie apart, in nats.
        settings: How thorough to be.
    """
    built: dict[str, Contender] = {}
    build_s: dict[str, float] = {}
    for library, build in builders.items():
        begin = time.perf_counter()
        try:
            built[library] = build()
        except Exception as error:
            if library == REFERENCE:
                raise
            yield Row(workload, case, "all", library, problem=_reason(error))
        build_s[library] = time.perf_counter() - begin

    for name, tolerance in tolerances.items():
        tasks = {
            library: contender.tasks[name]
            for library, contender in built.items()
            if name in contender.tasks
        }
        rows: dict[str, Row] = {}
        for library, task in tasks.items():
            notes = built[library].notes if name == next(iter(tolerances)) else {}
            row = Row(workload, case, name, library, build_s=build_s[library], figures=notes)
            rows[library] = _first_call(row, task, tasks[REFERENCE], tolerance)
        fit = {library: task for library, task in tasks.items() if not rows[library].problem}
        timings = take_turns(
            {library: task.run for library, task in fit.items()},
            {library: task.reset for library, task in fit.items()},
            seconds=settings.seconds,
        )
        for library, row in rows.items():
            yield dataclasses.replace(row, timing=timings.get(library))


def _first_call(row: Row, task: Task, reference: Task, tolerance: float) -> Row:
    """The row with the time of the first call, or with the reason why the task does not count.

    jaxjuice comes first, so its outcome is there to compare with.
    """
    try:
        task.reset()
        first_s = clock(task.run)
        if row.library == REFERENCE:
            return dataclasses.replace(row, first_s=first_s)
        ours, theirs = reference.outcome(), task.outcome()
    except Exception as error:
        if row.library == REFERENCE:
            raise
        return dataclasses.replace(row, problem=_reason(error))
    parity = float(np.abs(ours - theirs).max())
    problem = None
    # Not `parity > tolerance`: NaN must not pass.
    if not (ours.shape == theirs.shape and parity <= tolerance):
        problem = f"log-likelihoods differ by {parity:.2g} nats, more than {tolerance:.1g}"
    return dataclasses.replace(
        row, first_s=first_s, parity=parity, tolerance=tolerance, problem=problem
    )


def _reason(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"skipped: {error.name} is not installed"
    lines = str(error).splitlines() or [""]
    return f"failed: {type(error).__name__}: {lines[0][:200]}"
