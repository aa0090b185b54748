"""What the invocations of a function would have cost on AWS Lambda: `thawd.cost.spent`, and the server's estimates."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from thawd.cost.bills import MONTH_S, Shape
from thawd.cost.prices import load_prices
from thawd.cost.records import Measured, too_few
from thawd.cost.report import ON_DEMAND, PROVISIONED, SNAPSTART, Question, rows
from thawd.cost.spent import Period, spent
from thawd.recording.minute_counts import MinuteCounts
from thawd.resources import Function
from thawd.server.assembly.costs import FunctionCosts
from thawd.telemetry.logs.groups import path_of_group
from thawd.window import cost_section
from thawd.window.markup import render
from thawd.window.sources import CostEstimate

PRICES = load_prices()
SIZE = Measured(memory_mb=1024, warm_ms=100, cold_ms=900, restored_ms=150, start_share=0.02, count=500, warm_error_ms=4)
NOW_S = datetime(2026, 11, 20, 12, 0, 30, tzinfo=UTC).timestamp()
MINUTE = int(NOW_S // 60)
FUNCTION = Function(name="f", handler="app.handler", code=Path("/x"), memory_mb=512)


def test_a_month_of_invocations_costs_what_thawd_cost_says() -> None:
    asked = Question(invocations=3e6, provisioned=2)
    wanted = {row["kind"]: row for row in rows(PRICES, [SIZE], asked)}
    found = {
        each.starts: each
        for each in spent(PRICES, SIZE, Shape(memory_mb=1024, provisioned=2), [Period(3_000_000, MONTH_S)])
    }
    assert list(found) == list(wanted) == [ON_DEMAND, SNAPSTART, PROVISIONED]
    for kind, row in wanted.items():
        assert found[kind].periods[0].price == pytest.approx(row["month"]["total"])
        million = found[kind].million
        assert (None if million is None else pytest.approx(million.price)) == row["per_million"]


def test_the_error_of_a_price_is_that_of_the_durations() -> None:
    (spending,) = spent(PRICES, msgspec.structs.replace(SIZE, restored_ms=None), Shape(memory_mb=1024), [Period(10, 1)])
    amount = spending.periods[0]
    assert amount.error == pytest.approx(10 * 0.004 * PRICES.x86_64.duration_gb_s[0][1])
    unknown = msgspec.structs.replace(SIZE, warm_error_ms=None)
    assert spent(PRICES, unknown, Shape(memory_mb=1024), [Period(10, 1)])[0].periods[0].error is None


def test_a_price_without_a_measured_init_is_a_lower_bound() -> None:
    thawed = msgspec.structs.replace(SIZE, cold_ms=None)
    found = spent(PRICES, thawed, Shape(memory_mb=1024), [Period(10, 1)])
    assert [(each.starts, each.is_least) for each in found] == [(ON_DEMAND, True), (SNAPSTART, False)]


def test_lambda_has_no_snapstart_with_a_large_tmp() -> None:
    found = spent(PRICES, SIZE, Shape(memory_mb=1024, storage_mb=1024), [Period(10, 1)])
    assert [each.starts for each in found] == [ON_DEMAND]


def test_fewer_than_thirty_invocations_are_too_few() -> None:
    assert too_few([SIZE]) is None
    assert "only 29 invocations were measured" in str(too_few([msgspec.structs.replace(SIZE, count=29)]))
    assert "only 1 invocation was" in str(too_few([SIZE, msgspec.structs.replace(SIZE, count=1)]))


class _Counts:
    """Stands in for `Records`: counts by minute, all warm; knows how often it was asked."""

    def __init__(self, counts: dict[int, int]) -> None:
        self._counts = counts
        self.asked = 0

    async def minutes(self, function: str | None, *, since: int, until: int) -> list[tuple[str, int, bytes]]:
        self.asked += 1
        return [
            (function or "", minute, msgspec.json.encode(MinuteCounts(latencies={"warm": {0: count - 1, 1: 1}})))
            for minute, count in self._counts.items()
            if since <= minute < until
        ]


def _report(duration_ms: float, *, memory_mb: int = 512, stream: str = "s") -> str:
    return (
        f"2026-11-20T10:00:00.000Z\t{stream}\tREPORT RequestId: r\tDuration: {duration_ms} ms\tBilled Duration: 2 ms\t"
        f"Memory Size: {memory_mb} MB\tMax Memory Used: 60 MB\t\n"
    )


def _estimate(
    logs: Path, lines: list[str], *, function: Function = FUNCTION, record_days: float = 365.0
) -> CostEstimate:
    return asyncio.run(_costs(logs, lines, record_days).estimate(function))


def _costs(logs: Path, lines: list[str], record_days: float = 365.0) -> FunctionCosts:
    path = path_of_group(logs, "/aws/lambda/f")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))
    minutes = {MINUTE: 5, MINUTE - 1440: 7, MINUTE - 1441: 11, MINUTE - 15 * 1440: 13, MINUTE - 30 * 1440: 17}
    records: Any = _Counts(minutes)
    return FunctionCosts(records, why_none="", logs=logs, record_days=record_days, now=lambda: NOW_S)


def test_an_estimate_counts_the_last_day_and_the_month_and_measures_the_log(tmp_path: Path) -> None:
    lines = [_report(10.0) for _ in range(20)] + [_report(20.0) for _ in range(20)] + [_report(1.0, memory_mb=256)] * 50
    found = _estimate(tmp_path, lines)
    assert (found.refusal, found.measured, found.warm_ms, found.memory_mb) == ("", 40, 15.0, 512)
    assert [(each.name, each.invocations, each.is_whole) for each in found.periods] == [
        ("last 24 hours", 12, True),
        ("this month", 36, True),
    ]
    price = PRICES.x86_64.duration_gb_s[0][1]
    (row,) = found.rows
    assert row.periods[0][0] == pytest.approx(12 * (0.015 * 0.5 * price + PRICES.million_requests / 1e6))
    shown = str(render(cost_section.content(found, "f")))
    assert "40 invocations in its log with 512 MB: 15 ms ±" in shown
    assert "This month: 36 invocations, counted since <time" in shown
    shown = str(render(cost_section.content(found, "f", is_in_cluster=True)))
    assert "This month: 36 invocations on this machine, counted since <time" in shown


def test_a_time_of_which_counts_are_gone_is_not_called_whole(tmp_path: Path) -> None:
    found = _estimate(tmp_path, [_report(10.0)] * 30, record_days=7.0)
    day, month = found.periods
    assert (day.invocations, day.is_whole) == (12, True)
    assert (month.invocations, month.is_whole) == (23, False)
    assert month.since_ms == pytest.approx((NOW_S - 7 * 86_400) * 1000, abs=60_000)
    assert "only: older counts are not kept" in str(render(cost_section.content(found, "f")))


@pytest.mark.parametrize("lines", [[], [_report(10.0)] * 29, [_report(10.0, memory_mb=256)] * 100])
def test_an_estimate_from_too_few_invocations_is_refused(tmp_path: Path, lines: list[str]) -> None:
    found = _estimate(tmp_path, lines)
    assert "a price computed from so few is chance" in found.refusal
    assert found.rows == ()
    shown = str(render(cost_section.content(found, "f")))
    assert shown.startswith('<p class="note">Only ')
    assert "<table" not in shown


def test_invocations_of_others_in_a_shared_log_group_do_not_count(tmp_path: Path) -> None:
    shared = msgspec.structs.replace(FUNCTION, log_group="/aws/lambda/f")
    own, other = "2026/11/20/f[$LATEST]1", "2026/11/20/of[$LATEST]1"
    lines = [_report(10.0, stream=own)] * 40 + [_report(99.0, stream=other)] * 40
    found = _estimate(tmp_path, lines, function=shared)
    assert (found.measured, found.warm_ms) == (40, 10.0)


def test_without_counts_there_is_no_estimate(tmp_path: Path) -> None:
    costs = FunctionCosts(None, why_none="server.record_days is 0", logs=tmp_path, record_days=0)
    assert "server.record_days is 0" in asyncio.run(costs.estimate(FUNCTION)).refusal


def test_an_estimate_is_made_once_a_minute_for_all_pages(tmp_path: Path) -> None:
    costs = _costs(tmp_path, [_report(10.0)] * 30)

    async def work() -> tuple[CostEstimate, ...]:
        first = await asyncio.gather(costs.estimate(FUNCTION), costs.estimate(FUNCTION))
        changed = await costs.estimate(msgspec.structs.replace(FUNCTION, memory_mb=1024))
        return (*first, changed)

    first, second, changed = asyncio.run(work())
    assert first is second
    assert changed.refusal
