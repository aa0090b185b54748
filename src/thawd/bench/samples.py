"""What is recorded of each request, in columns: a million of them are 40 MB."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field

OK = "ok"
STARTS = ("", "cold", "fork", "thaw", "warm")
"""How the environment came to be, by code; the first: not known."""

_METRIC = re.compile(rb"(\w+)(?:;desc=(\w+))?(?:;dur=([0-9.]+))?")


@dataclass(slots=True)
class Samples:
    """Requests in the order in which they came to their end. Times are nanoseconds since the run's beginning.

    Attributes:
        intended_ns: when each was to be sent; in a closed loop, when it was.
        sent_ns: when it was.
        done_ns: when its answer was complete, or it was given up.
        outcomes: index into `kinds`.
        kinds: ``ok`` and the kinds of what went wrong, in the order of their coming.
        examples: what was said of the first of each kind of trouble.
        timings: what the server told in ``Server-Timing``; the same object for equal ones is not sought.
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
        """One more request has come to its end."""
        if outcome not in self.kinds:
            self.kinds.append(outcome)
        self.intended_ns.append(intended_ns)
        self.sent_ns.append(sent_ns)
        self.done_ns.append(done_ns)
        self.outcomes.append(self.kinds.index(outcome))
        self.timings.append(timing)

    def errors(self) -> int:
        """How many went wrong."""
        return len(self.outcomes) - self.outcomes.count(0)


@dataclass(frozen=True, slots=True)
class Timing:
    """``Server-Timing``, read; durations in milliseconds, None where it does not tell.

    Attributes:
        start: one of `STARTS`.
        ready_ms: from spawning the environment to its being ready.
        prepare_ms: of that, init, fork or restore inside the process.
        handler_ms: time in the handler.
    """

    start: str = ""
    ready_ms: float | None = None
    prepare_ms: float | None = None
    handler_ms: float | None = None


def read_timing(value: bytes) -> Timing:
    """What a header says; what is not thawd's is passed over."""
    start, durations = "", {}
    for name, description, duration in _METRIC.findall(value):
        if name == b"start" and description.decode() in STARTS:
            start = description.decode()
        if duration.count(b".") <= 1 and duration not in (b"", b"."):
            durations[name] = float(duration)
    return Timing(start, durations.get(b"start"), durations.get(b"prepare"), durations.get(b"handler"))
