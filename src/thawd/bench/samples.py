"""Records the requests of a run in columns, to save memory.

A million requests take 35 MB, or about 100 MB if the answers have a ``Server-Timing`` header.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field

OK = "ok"
STARTS = ("", "cold", "fork", "thaw", "warm")
"""How an environment was started for a request; ``warm``: it existed already; empty: unknown. Records contain the index
in this tuple."""

_METRIC = re.compile(rb"(\w+)(?:;desc=(\w+))?(?:;dur=([0-9.]+))?")


@dataclass(slots=True)
class Samples:
    """Requests in the order in which they ended. Times are nanoseconds since the beginning of the run.

    Attributes:
        intended_ns: intended time of sending; in a closed loop, the actual time.
        sent_ns: actual time of sending.
        done_ns: time at which the answer was complete or the request had failed.
        outcomes: how each request ended, as an index into `kinds`.
        kinds: ``ok`` and the kinds of error, in the order of their first occurrence.
        examples: message of the first error of each kind.
        timings: for each request the ``Server-Timing`` header of its answer; empty if the answer had none.
    """

    intended_ns: array[int] = field(default_factory=lambda: array("q"))
    sent_ns: array[int] = field(default_factory=lambda: array("q"))
    done_ns: array[int] = field(default_factory=lambda: array("q"))
    outcomes: array[int] = field(default_factory=lambda: array("H"))
    kinds: list[str] = field(default_factory=lambda: [OK])
    examples: dict[str, str] = field(default_factory=dict)
    timings: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.done_ns)

    def add(self, intended_ns: int, sent_ns: int, done_ns: int, outcome: str, timing: bytes) -> None:
        """Record a request that has ended."""
        if outcome not in self.kinds:
            self.kinds.append(outcome)
        self.intended_ns.append(intended_ns)
        self.sent_ns.append(sent_ns)
        self.done_ns.append(done_ns)
        self.outcomes.append(self.kinds.index(outcome))
        self.timings.append(timing)

    def errors(self) -> int:
        """Return the number of requests without a right answer."""
        return len(self.outcomes) - self.outcomes.count(0)


@dataclass(frozen=True, slots=True)
class Timing:
    """Contents of a ``Server-Timing`` header. Durations are in milliseconds, and None if the header does not have them.

    Attributes:
        start: one of `STARTS`.
        ready_ms: time from the spawn of the environment's process until the environment was ready; None also if the
            environment was warm.
        prepare_ms: part of `ready_ms` that init, fork or restore took inside the process.
        handler_ms: time in the handler.
    """

    start: str = ""
    ready_ms: float | None = None
    prepare_ms: float | None = None
    handler_ms: float | None = None


def read_timing(value: bytes) -> Timing:
    """Parse a ``Server-Timing`` header. Metrics other than thawd's are ignored."""
    start, durations = "", {}
    for name, description, duration in _METRIC.findall(value):
        if name == b"start" and description.decode() in STARTS:
            start = description.decode()
        if duration.count(b".") <= 1 and duration not in (b"", b"."):
            durations[name] = float(duration)
    return Timing(start, durations.get(b"start"), durations.get(b"prepare"), durations.get(b"handler"))
