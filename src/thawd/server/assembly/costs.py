"""Estimates for the pages what functions would cost on AWS Lambda, as `thawd cost` does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from thawd.cost.bills import Shape
from thawd.cost.prices import CostError, load_prices
from thawd.cost.records import Measured, measure, read_records, too_few
from thawd.cost.spent import Amount, Period, Spending, spent
from thawd.errors import StoreError
from thawd.recording.minute_counts import MinuteCounts
from thawd.recording.records import Records
from thawd.resources import Function
from thawd.telemetry.logs.events import LogEvents
from thawd.telemetry.logs.groups import path_of_group
from thawd.window.sources import CostEstimate, CostRow, CountedPeriod

_DAY_S = 86_400
_FRESH_S = 60.0
_MOST_REMEMBERED = 100
# Of the log, only the end is read, because the page waits for that.
_MOST_LOG_BYTES = 2 << 20
_REPORT = (b"REPORT RequestId: ", b'"platform.report"')


class FunctionCosts:
    """Estimates the cost of functions. An estimate is used for a minute, because pages refresh themselves.

    Args:
        records: counts of invocations by minute; None: there are none.
        why_none: why there are none.
        logs: folder of the logs.
        record_days: for how long counts are kept, days.
        now: returns the time, seconds since 1970.
    """

    def __init__(
        self,
        records: Records | None,
        *,
        why_none: str,
        logs: Path,
        record_days: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._records = records
        self._why_none = why_none
        self._logs = logs
        self._record_days = record_days
        self._now = now
        self._known: dict[str, tuple[Function, float, CostEstimate]] = {}
        self._lock = asyncio.Lock()  # estimates are made one after the other

    async def estimate(self, function: Function) -> CostEstimate:
        """Return the estimate for a function."""
        async with self._lock:
            known, made_s, estimate = self._known.get(function.name, (None, 0.0, CostEstimate()))
            if known != function or not 0 <= self._now() - made_s < _FRESH_S:
                try:
                    estimate = await self._estimate(function)
                except (CostError, StoreError, OSError) as error:
                    estimate = CostEstimate(refusal=str(error))
                if len(self._known) >= _MOST_REMEMBERED:
                    self._known.clear()
                self._known[function.name] = (function, self._now(), estimate)
        return estimate

    async def _estimate(self, function: Function) -> CostEstimate:
        if self._records is None:
            return CostEstimate(refusal=f"invocations are not counted: {self._why_none}")
        now_s = self._now()
        begins = {"last 24 hours": now_s - _DAY_S, "this month": _month_of(now_s)}
        kept_s = now_s - self._record_days * _DAY_S
        since = {name: int(max(begin_s, kept_s) // 60) for name, begin_s in begins.items()}
        documents = await self._records.minutes(function.name, since=min(since.values()), until=int(now_s // 60) + 1)
        return await asyncio.to_thread(self._computed, function, documents, since, begins)

    def _computed(
        self,
        function: Function,
        documents: list[tuple[str, int, bytes]],
        since: dict[str, int],
        begins: dict[str, float],
    ) -> CostEstimate:
        counts = [(minute, _invocations(document)) for _, minute, document in documents]
        periods = tuple(
            CountedPeriod(
                name,
                sum(count for minute, count in counts if minute >= since[name]),
                since_ms=since[name] * 60_000,
                is_whole=since[name] <= int(begin_s // 60),
            )
            for name, begin_s in begins.items()
        )
        reported = read_records(_reports(function, self._logs))
        sizes = [size for size in measure(reported) if size.memory_mb == function.memory_mb] if reported else []
        if (reason := too_few(sizes)) is not None:
            return CostEstimate(refusal=reason, periods=periods)
        return _priced(function, sizes[0], periods, now_s=self._now())


def _month_of(now_s: float) -> float:
    """The beginning of the month, in UTC, by which AWS bills; seconds since 1970."""
    return datetime.fromtimestamp(now_s, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()


def _invocations(document: bytes) -> int:
    latencies = msgspec.json.decode(document, type=MinuteCounts).latencies
    return sum(sum(buckets.values()) for buckets in latencies.values())


def _reports(function: Function, logs: Path) -> list[str]:
    """Return the last REPORT lines of a function's log, which other functions may share.

    Raises:
        OSError: the log cannot be read.
    """
    owner = f"/{function.name}[".encode() if function.log_group else b""
    found = []
    with LogEvents(path_of_group(logs, function.log_group_name)) as events:
        for event in events.backward():
            if events.read_bytes > _MOST_LOG_BYTES:
                break
            if owner in event.stream and any(mark in event.message for mark in _REPORT):
                found.append(event.message.decode(errors="replace"))
    return found


def _priced(function: Function, size: Measured, periods: tuple[CountedPeriod, ...], *, now_s: float) -> CostEstimate:
    prices = load_prices()
    shape = Shape(
        memory_mb=function.memory_mb,
        storage_mb=function.ephemeral_storage_mb,
        provisioned=function.provisioned_concurrency,
    )
    lengths = [Period(each.invocations, now_s - each.since_ms / 1000) for each in periods]
    return CostEstimate(
        region=prices.region,
        date=prices.date,
        currency=prices.currency,
        memory_mb=size.memory_mb,
        measured=size.count,
        warm_ms=size.warm_ms,
        warm_error_ms=size.warm_error_ms,
        start_share=size.start_share or 0.0,
        periods=periods,
        rows=tuple(map(_row, spent(prices, size, shape, lengths))),
    )


def _row(spending: Spending) -> CostRow:
    return CostRow(
        spending.starts,
        spending.is_least,
        None if spending.million is None else _pair(spending.million),
        tuple(map(_pair, spending.periods)),
    )


def _pair(amount: Amount) -> tuple[float, float | None]:
    return amount.price, amount.error
