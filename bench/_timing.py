"""Timing of calls, several contenders in turn."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping

Action = Callable[[], object]

SLOW = 0.5
"""Seconds from which on a call need not find its data in a cache."""
PATIENCE = 20.0
"""Seconds from which on a call is not repeated."""


@dataclasses.dataclass(frozen=True)
class Timing:
    """Wall times of equal calls, in seconds.

    Attributes:
        median: The middle one.
        low, high: The quartiles; with fewer than 4 calls the extremes.
        rounds: How many calls.
    """

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        """Summarizes at least one time."""
        low, high = min(seconds), max(seconds)
        if len(seconds) >= 4:
            low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(statistics.median(seconds), low, high, len(seconds))

    def __str__(self) -> str:
        return (
            f"{readable(self.median)} ({readable(self.low)} to {readable(self.high)}, "
            f"{self.rounds} rounds)"
        )


def readable(seconds: float) -> str:
    """Three digits and a unit."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} us"


def clock(action: Action) -> float:
    """Seconds that one call takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def take_turns(
    actions: Mapping[str, Action],
    resets: Mapping[str, Action],
    *,
    seconds: float,
    turns: int = 3,
    rest: float = 0.1,
) -> dict[str, Timing]:
    """Times each action again and again, in turns of several calls.

    Turns spread a busy moment of the machine over all contenders. Each begins with a rest, in which
    the threads of the contender before fall asleep, and with a call that only warms the caches,
    unless a call takes so long that this makes no difference.

    Args:
        actions: What to time, by contender; each returns when its work is done.
        resets: What to call before each action, untimed.
        seconds: About how long each contender is timed in all; at least one call a turn, but no
            more calls than one if that took longer than `PATIENCE`.
        turns: How many turns each has.
        rest: Seconds before a turn.
    """
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(turns):
        for name, action in actions.items():
            if max(times[name], default=0.0) > PATIENCE:
                continue
            time.sleep(rest)
            spent, is_warm = 0.0, False
            while spent < seconds / turns:
                resets[name]()
                latest = clock(action)
                if is_warm or latest > SLOW:
                    times[name].append(latest)
                    spent += latest
                is_warm = True
    return {name: Timing.of(seconds) for name, seconds in times.items()}
