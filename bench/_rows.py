"""What a benchmark measures: one row for each library, case and task."""

from __future__ import annotations

import dataclasses
from typing import Any

from bench._timing import Timing


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement, or the reason why there is none.

    Attributes:
        workload: Name of the workload, as on the command line.
        case: The problem: its sizes.
        task: What was timed.
        library: Who did it.
        problem: Why there is no time; None where there is one.
        build_s: Seconds to make the library's own model, parameters handed over.
        first_s: Seconds of the first call, compilation included.
        timing: Seconds of the later calls.
        parity: Largest difference to jaxjuice's log-likelihood of a row of data after the task, in
            nats; None for jaxjuice.
        tolerance: What `parity` was asserted to stay below.
        figures: Anything else, by name.
    """

    workload: str
    case: str
    task: str
    library: str
    problem: str | None = None
    build_s: float | None = None
    first_s: float | None = None
    timing: Timing | None = None
    parity: float | None = None
    tolerance: float | None = None
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Only numbers, text, lists and dicts."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Row:
        """The inverse of `to_json`."""
        timing = values["timing"]
        return cls(**{**values, "timing": None if timing is None else Timing(**timing)})

    def __str__(self) -> str:
        head = f"{self.workload}: {self.case}, {self.task}, {self.library}: "
        if self.problem is not None:
            return head + self.problem
        parts = []
        if self.timing is not None:
            parts.append(str(self.timing))
        if self.first_s is not None:
            parts.append(f"build {self.build_s or 0:.2f} s, first call {self.first_s:.2f} s")
        if self.parity is not None:
            parts.append(f"max |dLL| {self.parity:.1e} (below {self.tolerance:.0e})")
        parts += [f"{name} {value}" for name, value in self.figures.items()]
        return head + "; ".join(parts)
