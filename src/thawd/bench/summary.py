"""From the requests of a run to its figures. Percentiles are those of an HDR histogram: to three digits, any range.

Latencies are those of right answers; what went wrong is counted by kind beside them.
"""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Iterable, Sequence

import msgspec

from thawd.bench.runs import Columns, Run
from thawd.bench.samples import STARTS
from thawd.errors import StoreError

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
"""Those of the table; the maximum is the last column."""

_CURVE = (
    *(float(p) for p in range(0, 90, 2)),
    *(90 + p / 4 for p in range(36)),
    *(99 + p / 40 for p in range(36)),
    *(99.9 + p / 400 for p in range(36)),
    99.99,
    99.995,
    99.999,
    100.0,
)
_LARGEST_US = 3_600_000_000


class StartFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Answers by how their environment came to be; medians, milliseconds; None: not known.

    Attributes:
        kind: ``cold``, ``fork``, ``thaw`` or ``warm``.
        count: answers.
        latency_ms: of the answer.
        ready_ms: from spawning the environment to its being ready.
        spawn_ms: of that, until the process was there and connected.
        prepare_ms: of that, init, fork or restore inside the process.
        handler_ms: of the run in the handler; for those that are not warm, the environment's first.
    """

    kind: str
    count: int
    latency_ms: float | None
    ready_ms: float | None
    spawn_ms: float | None
    prepare_ms: float | None
    handler_ms: float | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run.

    Attributes:
        requests: that came to their end.
        errors: of these, that went wrong.
        errors_by_kind: the same by kind.
        percentiles_ms: latency by ``p50``, ``p90``, ``p95``, ``p99``, ``max`` and ``mean``; empty: no right answer.
        curve_ms: percentile and latency, for the plot.
        rate_per_s: right answers a second.
        starts: by kind, those that occurred.
        most_in_flight: requests at once at most.
        most_environments: environments at once at most, as far as was seen; None: not known.
        memory_mib: peak PSS of all environments; None: not known.
        server_mib: peak PSS of the server; None: not known.
        histogram: of latencies in microseconds, HDR's own form (V2, compressed, Base64).
    """

    requests: int
    errors: int
    errors_by_kind: dict[str, int]
    percentiles_ms: dict[str, float]
    curve_ms: list[tuple[float, float]]
    rate_per_s: float
    starts: list[StartFigures]
    most_in_flight: int
    most_environments: int | None
    memory_mib: float | None
    server_mib: float | None
    histogram: str


def require_library() -> None:
    """Find out at once whether histograms can be made.

    Raises:
        StoreError: the library is not installed.
    """
    try:
        import hdrh.histogram  # noqa: F401
    except ImportError:
        raise StoreError("benchmarks need the library hdrhistogram: pip install 'thawd[bench]'") from None


def summarise(run: Run) -> Summary:
    """The figures of `run`."""
    held = run.columns
    right = list(held.right())
    latencies = [held.latency_ms[i] for i in right]
    percentiles, curve, encoded = _distribution(latencies)
    kinds = collections.Counter(held.outcomes[code] for code in held.outcome if code)
    return Summary(
        requests=len(held),
        errors=len(held) - len(right),
        errors_by_kind=dict(kinds.most_common()),
        percentiles_ms=percentiles,
        curve_ms=curve,
        rate_per_s=round(len(right) / run.took_s, 3) if run.took_s > 0 else 0.0,
        starts=list(_starts(held, right)),
        most_in_flight=max((count for _, count in in_flight(held)), default=0),
        most_environments=max((m.idle + m.busy + m.starting for m in run.moments), default=None),
        memory_mib=max((m.environments_mib for m in run.memory), default=None),
        server_mib=max((m.server_mib for m in run.memory), default=None),
        histogram=encoded,
    )


def _distribution(latencies_ms: Sequence[float]) -> tuple[dict[str, float], list[tuple[float, float]], str]:
    from hdrh.histogram import HdrHistogram

    histogram = HdrHistogram(1, _LARGEST_US, 3)
    for latency_ms in latencies_ms:
        histogram.record_value(min(_LARGEST_US, max(1, round(latency_ms * 1000))))
    encoded: str = histogram.encode().decode()
    if not latencies_ms:
        return {}, [], encoded
    largest_ms = max(latencies_ms)
    count = len(latencies_ms)

    def at(percentile: float) -> float:
        # The library rounds the rank; of 60 answers the 99th percentile would not be the slowest.
        rank = math.ceil(percentile * count / 100 - 1e-9)
        return min(largest_ms, float(histogram.get_value_at_percentile(100 * rank / count)) / 1000)

    told = {f"p{p:g}": at(p) for p in PERCENTILES}
    told |= {"max": largest_ms, "mean": round(statistics.fmean(latencies_ms), 4)}
    last = 100 * (1 - 1 / count)
    curve = [(p, at(p)) for p in _CURVE if p <= last] + [(100.0, largest_ms)]
    return told, curve, encoded


def _starts(held: Columns, right: Sequence[int]) -> Iterable[StartFigures]:
    for code, kind in enumerate(STARTS):
        places = [i for i in right if held.start[i] == code]
        if not kind or not places:
            continue
        spawned = [
            ready - prepare
            for i in places
            if (ready := held.ready_ms[i]) is not None and (prepare := held.prepare_ms[i]) is not None
        ]
        yield StartFigures(
            kind=kind,
            count=len(places),
            latency_ms=_median(held.latency_ms[i] for i in places),
            ready_ms=_median(held.ready_ms[i] for i in places),
            spawn_ms=_median(spawned),
            prepare_ms=_median(held.prepare_ms[i] for i in places),
            handler_ms=_median(held.handler_ms[i] for i in places),
        )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 3) if known else None


def in_flight(held: Columns) -> list[tuple[float, int]]:
    """Requests under way over time: (ms since the beginning, how many from then on)."""
    changes = []
    for intended, waited, latency in zip(held.intended_ms, held.waited_ms, held.latency_ms, strict=True):
        changes.append((intended + waited, 1))
        changes.append((intended + latency, -1))
    changes.sort()
    count = 0
    steps = []
    for at_ms, change in changes:
        count += change
        steps.append((at_ms, count))
    return steps
