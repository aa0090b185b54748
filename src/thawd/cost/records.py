"""Reads measured invocations from the REPORT lines of a log of thawd or Lambda (text or JSON), and averages them.

Source: AWS Lambda developer guide, "Viewing CloudWatch logs for Lambda functions" and "Telemetry API Event schema
reference", ``platform.report``.
"""

from __future__ import annotations

import bisect
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated

import msgspec

from thawd.cost.bills import Times, billed_ms, billed_restored_ms
from thawd.cost.keep_warm import Arrival
from thawd.cost.prices import CostError

_FIELD = re.compile(
    r"(?:^|\t|: )((?:Billed )?(?:Restore |Init )?Duration|Memory Size|Max Memory Used): "
    r"([0-9]{1,12}(?:\.[0-9]*)?) (?:ms|MB)"
)
FEWEST = 30
"""Fewest measured invocations from which a price is computed."""
# A function may print a line that looks like a REPORT line, with any numbers. No invocation has larger ones.
_Figure = Annotated[float, msgspec.Meta(ge=0, lt=1e12)]
# Times of log lines are cut off to milliseconds.
_RESOLUTION_S = 0.001
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")


class _Metrics(msgspec.Struct, rename="camel"):
    """Metrics of a ``platform.report`` record; times in milliseconds, memory in MB."""

    duration_ms: _Figure
    memory_size: _Figure = msgspec.field(name="memorySizeMB")
    init_duration_ms: _Figure | None = None
    restore_duration_ms: _Figure | None = None
    billed_restore_duration_ms: _Figure = 0.0
    most_memory: _Figure | None = msgspec.field(name="maxMemoryUsedMB", default=None)


class _Reported(msgspec.Struct):
    metrics: _Metrics


class _PlatformReport(msgspec.Struct):
    record: _Reported


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A measured invocation.

    Attributes:
        memory_mb: memory size of the function when it was invoked, MB.
        duration_ms: time in the handler, milliseconds.
        init_ms: duration of the init phase for which the invocation waited, milliseconds; None: it waited for none.
        restore_ms: duration of the restore for which the invocation waited, milliseconds; None: it waited for none.
        billed_restore_ms: billed part of `restore_ms`, milliseconds.
        used_mb: peak memory of the environment until the invocation ended, MB; None: the REPORT line has no such field.
        ended_s: time of the REPORT line, seconds since the epoch; None: the line has no time.
    """

    memory_mb: int
    duration_ms: float
    init_ms: float | None = None
    restore_ms: float | None = None
    billed_restore_ms: float = 0.0
    used_mb: int | None = None
    ended_s: float | None = None

    @property
    def billed_ms(self) -> int:
        """Duration that Lambda bills, milliseconds."""
        if self.restore_ms is not None:
            return billed_restored_ms(self.duration_ms, self.billed_restore_ms)
        return billed_ms(self.duration_ms, self.init_ms or 0.0)

    @property
    def is_first(self) -> bool:
        """Whether the invocation waited for init or a restore. Lambda has no forks, so a fork does not count."""
        return self.init_ms is not None or self.restore_ms is not None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Average billed durations of a function at one memory size.

    Attributes:
        memory_mb: memory size, MB.
        warm_ms: average billed duration of invocations that did not wait for a start. If all waited, average of their
            times in the handler.
        cold_ms: average billed duration of invocations that waited for init, which it includes; None: not measured.
        restored_ms: average billed duration of invocations that waited for a restore, of which it includes the billed
            part; None: not measured.
        start_share: share of the invocations that waited for a start; None: unknown, as for the option --size.
        count: number of measured invocations; 0: the figures are from the option --size.
        warm_error_ms: half of the width of the 95 % interval of `warm_ms`; None: unknown.
    """

    memory_mb: int
    warm_ms: float
    cold_ms: float | None = None
    restored_ms: float | None = None
    start_share: float | None = None
    count: int = 0
    warm_error_ms: float | None = None

    def times(self, *, snapstart: bool) -> Times:
        """Return the billed durations for bills on demand, or with SnapStart.

        Args:
            snapstart: whether environments are restored; if not, they start cold. If no such start was measured, the
                result has the duration of a warm invocation instead.
        """
        first_ms = self.restored_ms if snapstart else self.cold_ms
        return Times(warm_ms=self.warm_ms, first_ms=self.warm_ms if first_ms is None else first_ms)


def read_records(lines: Iterable[str]) -> list[Record]:
    """Read the invocations in REPORT lines. Other lines are ignored."""
    return [record for line in lines if (record := _record(line)) is not None]


def _record(line: str) -> Record | None:
    ended_s = _time_in(line)
    if '"platform.report"' in line:
        return _record_of_json(line, ended_s)
    begin = line.find("REPORT RequestId: ")
    if begin < 0:
        return None
    fields = {name: float(value) for name, value in _FIELD.findall(line[begin:])}
    if "Duration" not in fields or "Memory Size" not in fields:
        return None
    return Record(
        memory_mb=int(fields["Memory Size"]),
        duration_ms=fields["Duration"],
        init_ms=fields.get("Init Duration"),
        restore_ms=fields.get("Restore Duration"),
        billed_restore_ms=fields.get("Billed Restore Duration", 0.0),
        used_mb=int(fields["Max Memory Used"]) if "Max Memory Used" in fields else None,
        ended_s=ended_s,
    )


def _time_in(line: str) -> float | None:
    found = _TIME.search(line)
    try:
        return None if found is None else datetime.fromisoformat(found[0]).timestamp()
    except ValueError:  # there is no such day or hour
        return None


def _record_of_json(line: str, ended_s: float | None) -> Record | None:
    try:
        metrics = msgspec.json.decode(line[line.index("{") :], type=_PlatformReport).record.metrics
    except (msgspec.DecodeError, UnicodeEncodeError, ValueError):
        return None
    return Record(
        memory_mb=int(metrics.memory_size),
        duration_ms=metrics.duration_ms,
        init_ms=metrics.init_duration_ms,
        restore_ms=metrics.restore_duration_ms,
        billed_restore_ms=metrics.billed_restore_duration_ms,
        used_mb=None if metrics.most_memory is None else int(metrics.most_memory),
        ended_s=ended_s,
    )


def measure(records: Sequence[Record]) -> list[Measured]:
    """Compute averages for each memory size in the records, the smallest size first.

    Raises:
        CostError: there are no records.
    """
    if not records:
        raise CostError("there are no REPORT lines to compute costs from; invoke the function first, or use --size")
    return [_measured(size, records) for size in sorted({record.memory_mb for record in records})]


def too_few(measured: Sequence[Measured]) -> str | None:
    """Return why no monthly price is computed, because chance would decide it; None: enough was measured."""
    least = min((size.count for size in measured), default=0)
    if least >= FEWEST:
        return None
    invocations = "1 invocation was" if least == 1 else f"{least} invocations were"
    return (
        f"only {invocations} measured, and a price computed from so few is chance: invoke the function at least "
        f"{FEWEST} times with usual events"
    )


def _measured(memory_mb: int, records: Sequence[Record]) -> Measured:
    of_size = [record for record in records if record.memory_mb == memory_mb]
    warm = [record.billed_ms for record in of_size if not record.is_first]
    cold = [record.billed_ms for record in of_size if record.init_ms is not None]
    restored = [record.billed_ms for record in of_size if record.restore_ms is not None]
    handler = [billed_ms(record.duration_ms) for record in of_size]
    return Measured(
        memory_mb=memory_mb,
        warm_ms=statistics.fmean(warm or handler),
        cold_ms=statistics.fmean(cold) if cold else None,
        restored_ms=statistics.fmean(restored) if restored else None,
        start_share=(len(cold) + len(restored)) / len(of_size),
        count=len(of_size),
        warm_error_ms=_error_of_mean(warm or handler),
    )


def _error_of_mean(values: Sequence[float]) -> float | None:
    """Half of the width of the 95 % interval of the mean, by the normal approximation; None: there is one value."""
    return 1.96 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def by_hand(text: str) -> Measured:
    """Parse an option ``--size MEMORY:DURATION[:INIT[:RESTORE]]``, in MB and ms.

    DURATION includes neither INIT nor RESTORE.

    Raises:
        CostError: the text has another format.
    """
    parts = text.split(":")
    try:
        memory_mb, (duration_ms, *rest) = int(parts[0]), [float(part) if part else None for part in parts[1:]]
        init_ms, restore_ms = (*rest, None, None)[:2]
        if len(rest) > 2 or duration_ms is None or not 128 <= memory_mb <= 10_240:
            raise ValueError(text)  # noqa: TRY301
        if any(value is not None and not 0 <= value < 1e9 for value in (duration_ms, init_ms, restore_ms)):
            raise ValueError(text)  # noqa: TRY301
    except ValueError:
        raise CostError(
            f"{text!r} is not MEMORY:DURATION[:INIT[:RESTORE]]; write MB (128 to 10240) and ms, for example "
            "1024:557:8616:572"
        ) from None
    return Measured(
        memory_mb=memory_mb,
        warm_ms=billed_ms(duration_ms),
        cold_ms=None if init_ms is None else billed_ms(duration_ms, init_ms),
        restored_ms=None if restore_ms is None else billed_restored_ms(duration_ms, restore_ms),
    )


def arrivals_of(records: Sequence[Record]) -> list[Arrival]:
    """Return when the invocations were requested, in the order of time. Invocations without a time are left out.

    A REPORT line is written when an invocation has ended, so the durations in the line are subtracted from its time.
    That time is cut off to milliseconds, so an invocation can seem to begin before another has ended, although it began
    after that. It then begins at that end.
    """
    found: list[Arrival] = []
    ends_s: list[float] = []
    for record in sorted((each for each in records if each.ended_s is not None), key=lambda each: each.ended_s or 0.0):
        assert record.ended_s is not None
        start_ms = record.init_ms if record.restore_ms is None else record.restore_ms
        begun_s = record.ended_s - (record.duration_ms + (start_ms or 0.0)) / 1000
        later = bisect.bisect_left(ends_s, begun_s)
        if later < len(ends_s) and ends_s[later] - begun_s < _RESOLUTION_S:
            begun_s = ends_s[later]
        arrival = Arrival(begun_s, record.duration_ms / 1000)
        bisect.insort(ends_s, arrival.at_s + arrival.duration_s)
        found.append(arrival)
    return sorted(found, key=lambda arrival: arrival.at_s)
