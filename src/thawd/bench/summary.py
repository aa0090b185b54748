"""Computes the figures of a run.

Percentiles come from an HDR histogram, which keeps three significant digits of each latency. Only right answers count
for latencies; wrong ones are counted by kind of error.
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
"""Percentiles that tables show, before a column with the maximum."""

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
    """Figures of the answers whose environments started in the same way. Times are medians in ms; None: unknown.

    Attributes:
        kind: ``cold``, ``fork``, ``thaw`` or ``warm``.
        count: number of answers.
        latency_ms: latency of the answer.
        ready_ms: time from spawning the environment until it was ready.
        spawn_ms: `ready_ms` minus `prepare_ms`: mostly the time until the process runs and is connected to the server.
        prepare_ms: part of `ready_ms` that init, fork or restore took inside the process.
        handler_ms: time in the handler. For all kinds but ``warm``, this is the environment's first invocation.
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
        requests: number of requests that ended.
        errors: number of requests without a right answer.
        errors_by_kind: number of requests without a right answer, by kind of error.
        percentiles_ms: latency by ``p50``, ``p90``, ``p95``, ``p99``, ``max`` and ``mean``; empty: no right answer.
        curve_ms: points of the plot of latency by percentile, as (percentile, latency).
        rate_per_s: right answers a second.
        starts: figures of each kind of start that occurred.
        most_in_flight: highest number of requests in flight.
        most_environments: highest number of environments seen; None: unknown.
        memory_mib: peak PSS of all environments; None: unknown.
        server_mib: peak PSS of the server; None: unknown.
        histogram: histogram of latencies in microseconds, in HDR's own format (V2, compressed, Base64).
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
    """Check, before a measurement, that hdrhistogram is installed.

    Raises:
        StoreError: hdrhistogram is not installed.
    """
    try:
        import hdrh.histogram  # noqa: F401
    except ImportError:
        raise StoreError(
            "measurements need hdrhistogram, which is not installed; install it with: pip install 'thawd[bench]'"
        ) from None


def summarise(run: Run) -> Summary:
    """Compute the figures of `run`."""
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
        # The library rounds percentile * count / 100 to the nearest rank. This would give the 59th of 60 answers as the
        # 99th percentile, so the rank is rounded up here before the library is asked for it.
        rank = math.ceil(percentile * count / 100 - 1e-9)
        return min(largest_ms, float(histogram.get_value_at_percentile(100 * rank / count)) / 1000)

    percentiles = {f"p{p:g}": at(p) for p in PERCENTILES}
    percentiles |= {"max": largest_ms, "mean": round(statistics.fmean(latencies_ms), 4)}
    last = 100 * (1 - 1 / count)
    curve = [(p, at(p)) for p in _CURVE if p <= last] + [(100.0, largest_ms)]
    return percentiles, curve, encoded


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
    """Return how many requests were in flight over time: (ms since the beginning of the run, number from then on)."""
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
