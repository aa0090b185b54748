"""All metrics of the platform, with their names, units and help texts.

The same counters of each function are shown in ``/metrics`` (`thawd.telemetry.exposition`) and in ``/_thawd/status``.
Environments export no metrics: they send their measurements to the platform together with each answer. In this module,
a record is the JSON document that a destination gets about an asynchronous invocation: the event, and the answer or the
error.
"""

from __future__ import annotations

import collections
import enum
from collections.abc import Mapping, Sequence
from typing import Any

from thawd.invocation import Result, StartKind
from thawd.telemetry.distribution import Distribution
from thawd.telemetry.samples import Samples
from thawd.telemetry.sampling import Sampler


class Fallback(enum.StrEnum):
    """The reason why an environment was not started in the fastest way."""

    SNAPSHOT_REFUSED = "snapshot_refused"
    """The function could not be frozen, or its image failed the self-test."""
    THAW_FAILED = "thaw_failed"
    """This thaw failed, or the snapshot is no longer used because too many thaws failed."""
    FORK_REFUSED = "fork_refused"
    """Forks of the initialised process would not work, for example because they would lack its threads."""
    TEMPLATE_LOST = "template_lost"
    """The template, the process from which environments are forked, ended or hung."""


class DeliveryOutcome(enum.StrEnum):
    """Result of an attempt to deliver a record to a destination."""

    DELIVERED = "delivered"
    """The destination accepted the record."""
    UNAVAILABLE = "unavailable"
    """The destination did not accept the record now; the delivery is tried again."""
    REFUSED = "refused"
    """The destination refuses this record; the delivery is not tried again."""


class Distributions(dict[StartKind, Distribution]):
    """Distributions by start kind. Each is made when it is first needed, because most functions need only a few."""

    __slots__ = ()

    def __missing__(self, kind: StartKind) -> Distribution:
        made = self[kind] = Distribution()
        return made


class InvocationCell:
    """What was measured lately for one qualifier of a function and the version that ran.

    Attributes:
        errors: invocations that ended in a function error.
        throttles: requests refused because of a limit.
        durations: the times in the handler, milliseconds, one for each invocation.
    """

    __slots__ = ("durations", "errors", "throttles")

    def __init__(self) -> None:
        self.errors = 0
        self.throttles = 0
        self.durations = Samples()


class FunctionMetrics:
    """Counters of one function, kept across its versions.

    Attributes:
        peak: most invocations that waited or ran at the same time since the last `take_cells`.
        errors: invocations that ended in a function error.
        timeouts: function errors of invocations that reached the time limit.
        exits: function errors of invocations whose environment ended during the invocation.
        batched: invocations that ran in a batch with at least one other.
        throttles: requests refused because of a concurrency limit or a full queue.
        init_failures: starts that ended in an init error.
        destination_failures: failed attempts to deliver a record to a destination.
        dead_letter_errors: failed attempts to send a payload to the function's dead-letter queue.
        recursive_invocations_dropped: invocations dropped because they would have continued a loop: a chain of
            invocations that invokes the same function again and again.
        sampler: decides which successful invocations are recorded; None: none has ended yet.
        refusals: the same for invocations that were refused.
    """

    __slots__ = (
        "_cells",
        "_deliveries",
        "_fallbacks",
        "_invocations",
        "_starts",
        "batched",
        "dead_letter_errors",
        "destination_failures",
        "errors",
        "exits",
        "init_failures",
        "peak",
        "recursive_invocations_dropped",
        "refusals",
        "sampler",
        "throttles",
        "timeouts",
    )

    def __init__(self) -> None:
        # These five are made when they are first needed, because most functions are not invoked for a long time.
        self._cells: dict[tuple[str | None, str], InvocationCell] | None = None
        self._starts: Distributions | None = None
        self._invocations: Distributions | None = None
        self._fallbacks: collections.Counter[Fallback] | None = None
        self._deliveries: collections.Counter[tuple[str, DeliveryOutcome]] | None = None
        self.peak = 0
        self.errors = 0
        self.timeouts = 0
        self.exits = 0
        self.batched = 0
        self.throttles = 0
        self.init_failures = 0
        self.destination_failures = 0
        self.dead_letter_errors = 0
        self.recursive_invocations_dropped = 0
        self.sampler: Sampler | None = None
        self.refusals: Sampler | None = None

    def count(self, result: Result, elapsed_ms: float, trace: str | None = None) -> None:
        """Count an invocation.

        Args:
            result: its result.
            elapsed_ms: time from its request to its answer, milliseconds.
            trace: its X-Ray trace header; None: it has none.
        """
        self.record_invocation(result.start_kind, elapsed_ms, trace)
        self.batched += result.batch_size > 1
        if result.function_error is not None:
            self.errors += 1
            if b'"Sandbox.Timedout"' in result.payload[:100]:
                self.timeouts += 1
            elif b'"Runtime.ExitError"' in result.payload[:100]:
                self.exits += 1

    def cell(self, qualifier: str | None, version: str) -> InvocationCell:
        """Return what is measured for a qualifier and the version that ran; empty for a request that did not run."""
        key = (qualifier, version)
        if self._cells is None:
            self._cells = {}
        found = self._cells.get(key)
        if found is None:
            found = self._cells[key] = InvocationCell()
        return found

    def take_cells(self) -> tuple[dict[tuple[str | None, str], InvocationCell], int]:
        """Return what was measured since the last call, and the peak, and begin again."""
        taken, peak = self._cells, self.peak
        self._cells, self.peak = None, 0
        return taken or {}, peak

    @property
    def starts(self) -> Mapping[StartKind, Distribution]:
        """Time from spawning an environment until it is ready, by start kind; `record_start` records."""
        return self._starts or {}

    @property
    def invocations(self) -> Mapping[StartKind, Distribution]:
        """Time from the request for an environment to the answer, by start kind; `record_invocation` records."""
        return self._invocations or {}

    @property
    def fallbacks(self) -> Mapping[Fallback, int]:
        """Starts that were slower than possible, by reason; `count_fallback` counts."""
        return self._fallbacks or {}

    @property
    def deliveries(self) -> Mapping[tuple[str, DeliveryOutcome], int]:
        """Attempts to deliver a record or a dead letter, by kind of destination and outcome; see `count_delivery`."""
        return self._deliveries or {}

    def record_start(self, kind: StartKind, took_ms: float) -> None:
        """Record how long the start of an environment took, milliseconds."""
        if self._starts is None:
            self._starts = Distributions()
        self._starts[kind].record(took_ms)

    def record_invocation(self, kind: StartKind, took_ms: float, trace: str | None = None) -> None:
        """Record how long an invocation took, milliseconds, and its X-Ray trace header."""
        if self._invocations is None:
            self._invocations = Distributions()
        self._invocations[kind].record(took_ms, trace)

    def count_fallback(self, reason: Fallback, times: int = 1) -> None:
        """Count starts that were slower than possible."""
        if self._fallbacks is None:
            self._fallbacks = collections.Counter()
        self._fallbacks[reason] += times

    def count_delivery(self, kind: str, outcome: DeliveryOutcome, times: int = 1) -> None:
        """Count attempts to deliver a record or a dead letter to a kind of destination."""
        if self._deliveries is None:
            self._deliveries = collections.Counter()
        self._deliveries[kind, outcome] += times

    def summary(self) -> dict[str, Any]:
        """Return the function's part of ``/_thawd/status``."""
        return {
            "starts": {kind.value: d.summary() for kind, d in self.starts.items() if d.count},
            "invocations": {kind.value: d.summary() for kind, d in self.invocations.items() if d.count},
            **{name: getattr(self, name) for name in COUNTERS},
            "fallbacks": sum(self.fallbacks.values()),
            "fallbacks_by_reason": {reason.value: count for reason, count in self.fallbacks.items() if count},
            "deliveries": self._by_destination(),
        }

    def _by_destination(self) -> dict[str, dict[str, int]]:
        """Return the counts by kind of destination, then by outcome."""
        counts: dict[str, dict[str, int]] = {}
        for (kind, outcome), count in self.deliveries.items():
            counts.setdefault(kind, {})[outcome.value] = count
        return counts


# Attribute of `FunctionMetrics` -> help text of its metric, thawd_<attribute>_total.
COUNTERS: Mapping[str, str] = {
    "errors": "Invocations that ended in a function error.",
    "timeouts": "Invocations that reached the function's time limit.",
    "exits": "Invocations whose execution environment ended during the invocation.",
    "batched": "Invocations that ran in a batch with at least one other.",
    "throttles": "Requests refused because of a concurrency limit or a full queue.",
    "init_failures": "Starts of an execution environment that ended in an init error.",
    "destination_failures": "Failed attempts to deliver the outcome of an asynchronous invocation to its destination; "
    "AWS's DestinationDeliveryFailures.",
    "dead_letter_errors": "Failed attempts to send a dead letter's payload to the function's dead-letter queue or "
    "topic; AWS's DeadLetterErrors.",
    "recursive_invocations_dropped": "Invocations dropped because they would have continued a loop, a chain of "
    "invocations that invokes the same function again and again; AWS's RecursiveInvocationsDropped.",
}
DELIVERIES = (
    "Attempts to deliver the outcome of an asynchronous invocation, or a dead letter's payload, by kind of destination "
    "and result."
)
FALLBACKS = "Starts of an execution environment that were slower than possible, by reason."
DISTRIBUTIONS: Mapping[str, str] = {
    "starts": "Time from spawning an execution environment until it is ready, by start kind, in seconds.",
    "invocations": "Time from the request for an execution environment to the answer, by start kind, in seconds.",
}
# The start kinds that each of these distributions can have.
KINDS: Mapping[str, Sequence[StartKind]] = {
    "starts": (StartKind.COLD, StartKind.FORK, StartKind.THAW),
    "invocations": tuple(StartKind),
}
# These metrics have the labels `source` and `function`; `SourceSubsystem.measure` sets them.
SOURCE_COUNTERS: Mapping[str, str] = {
    "source_events": "Messages received from a queue, records received from a stream, runs of a schedule, or events of "
    "a remote bucket.",
    "source_filtered": "Messages of a queue that matched no filter pattern and were deleted; records of a stream that "
    "matched none.",
    "source_failed": "Messages of a queue, or records of a stream, whose handling failed.",
}
SOURCE_GAUGES: Mapping[str, str] = {
    "source_enabled": "1 while the source is enabled, 0 while it is paused.",
    "source_waiting": "For a queue, the approximate number of messages that wait in it.",
    "source_age_seconds": (
        "For a queue, the age of the oldest message in the last reception; for a stream, the age of the record that "
        "was read last; for a remote bucket, the age of the last listing; for a schedule, the delay of the last run; "
        "in seconds."
    ),
}
# Metrics of asynchronous events, which `EventSubsystem.measure` sets. The counters count since the state file was made.
EVENT_COUNTERS: Mapping[str, str] = {
    "events_accepted": "Asynchronous events stored.",
    "events_done": "Asynchronous events completed.",
    "events_retried": "Failed attempts to run an asynchronous event that are each followed by another attempt.",
    "events_given_up": "Asynchronous events that became dead letters.",
}
EVENT_GAUGES: Mapping[str, str] = {
    "queued": "Asynchronous events that wait to run.",
    "events_running": "Asynchronous events that run or are about to run.",
    "outcomes_waiting": "Outcomes of asynchronous events that wait for their destination.",
    "dead_letters": "Dead letters in the state file.",
    "oldest_event_age_seconds": "Age of the oldest queued asynchronous event, in seconds.",
}
GAUGES: Mapping[str, str] = {
    "environments": "Execution environments alive, by state.",
    "waiting": "Requests waiting for an execution environment.",
}


class Metrics:
    """All metrics, by function.

    Attributes:
        peak: most invocations of all functions that waited or ran at the same time since it was last set to 0.
    """

    def __init__(self) -> None:
        self.peak = 0
        self.functions: dict[str, FunctionMetrics] = {}
        self.gauges: dict[str, dict[tuple[str, str], float]] = {}  # by function, then by the gauge's name and state
        self.events: Mapping[str, Mapping[str, float]] = {}
        self.sources: dict[tuple[str, str], dict[str, float]] = {}

    def function(self, name: str) -> FunctionMetrics:
        """Return the counters of the function `name`. They are created at the first call."""
        if name not in self.functions:
            self.functions[name] = FunctionMetrics()
        return self.functions[name]

    def set_gauge(self, name: str, *, function: str, state: str = "", value: float) -> None:
        """Set one gauge of `GAUGES`."""
        self.gauges.setdefault(function, {})[name, state] = value
