"""Readers of log groups inside the server: queries that are stopped, live tails, metrics that lines describe."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.integration.logs_alone import printed
from tests.loops import run
from tests.unit.execution_fakes import until
from thawd.cloudwatch.logs import live_tails
from thawd.cloudwatch.logs.groups import LogGroups
from thawd.cloudwatch.logs.live_tails import LiveTails, Selection
from thawd.cloudwatch.logs.metric_filters import made_by
from thawd.cloudwatch.logs.queries import Queries
from thawd.cloudwatch.logs.records import MetricFilterRecord
from thawd.cloudwatch.metrics.embedded import embedded
from thawd.stores.log_events import LogStore
from thawd.stores.schema import open_state

GROUP = "/aws/lambda/f"
LONG = b"1" * 200_000


@contextlib.asynccontextmanager
async def groups_in(folder: Path) -> AsyncIterator[tuple[LogGroups, Path]]:
    """The group of a function that has printed one line, and the path of the state file."""
    (folder / "logs").mkdir()
    printed(folder / "logs", "f", (1_790_000_000_000, "a" * 5000 + "b"))
    state = folder / "state" / "thawd.db"
    with contextlib.closing(open_state(state)) as database:
        groups = LogGroups(LogStore(database), folder / "logs", max_bytes=1 << 20, flush=lambda: None)
        await groups.open()
        yield groups, state


def test_a_query_that_is_stopped_while_its_process_starts_lets_the_next_one_run(tmp_path: Path) -> None:
    async def claim() -> None:
        async with groups_in(tmp_path) as (groups, state), asyncio.TaskGroup() as tasks:
            queries = Queries(groups, state, spawn_task=tasks.create_task, spare_own_programs=contextlib.nullcontext)

            def start(text: str) -> str:
                return queries.start(text, [GROUP], period_ms=(0, 1 << 50), limit=None)

            endless = [start("filter @message like /(a+)+$/") for _ in range(4)]
            last = start("stats count(*)")
            await asyncio.sleep(0)  # the first two begin to start their processes
            for identifier in endless:
                queries.stop(identifier)
            await until(lambda: queries.find(last).has_ended)
            assert queries.find(last).outcome.matched == 1
            assert [queries.find(identifier).status for identifier in endless] == ["Cancelled"] * 4

    run(claim())


def test_queries_that_were_stopped_are_forgotten_although_others_run(tmp_path: Path) -> None:
    async def claim() -> None:
        async with groups_in(tmp_path) as (groups, state), asyncio.TaskGroup() as tasks:
            queries = Queries(groups, state, spawn_task=tasks.create_task, spare_own_programs=contextlib.nullcontext)
            for _ in range(300):
                identifier = queries.start("filter 1 = 2", [GROUP], period_ms=(0, 1 << 50), limit=None)
                queries.stop(identifier)
            assert len(queries.list()) <= 101

    run(claim())


def test_a_live_tail_gets_each_event_although_it_reads_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_tails, "_UPDATE_S", 0.0)
    monkeypatch.setattr(live_tails, "_STEP_BYTES", 25)

    async def claim() -> None:
        async with groups_in(tmp_path) as (groups, _):
            updates = LiveTails(groups).follow(Selection([GROUP], lambda message: True))
            async with contextlib.aclosing(updates):
                await anext(updates)
                messages = [f"message {number}" for number in range(10)]
                printed(tmp_path / "logs", "f", *((1_790_000_000_001 + number, m) for number, m in enumerate(messages)))
                found: list[str] = []
                while messages[-1] not in found:
                    found += [event.message.decode() for _, event in (await anext(updates)).events]
            assert found == messages

    run(claim())


def took_s(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


FILTER = MetricFilterRecord("f", "", 0, "shop", "took", "$.took", dimensions={"kind": "$.kind"})


@pytest.mark.parametrize(
    "message",
    [
        b'{"kind":"a","took":' + b"9" * 400 + b"}",
        b'{"kind":"a","took":"' + b"9" * 400 + b'"}',
        b'{"kind":"a","took":"' + LONG + b'x"}',
        b'{"took":1,"kind":"' + LONG + b'"}',
        b'{"took":1,"kind":""}',
    ],
)
def test_a_message_whose_values_are_too_large_for_a_metric_does_not_count_and_takes_no_time(message: bytes) -> None:
    assert took_s(lambda: made_by([FILTER], [message])) < 1
    good = b'{"kind":"a","took":2}'
    [made] = made_by([FILTER], [message, good])
    assert (made.dimensions, made.samples.sum) == ((("kind", "a"),), 2)


@pytest.mark.parametrize("value", [b"9" * 400, b"-1e999", b"9" * 5000])
def test_numbers_too_large_for_a_metric_in_the_embedded_format_are_left_out(value: bytes) -> None:
    lines = [
        b'{"_aws":{"Timestamp":%b,"CloudWatchMetrics":[{"Namespace":"n","Dimensions":[[]],"Metrics":[{"Name":"m"}]}]},'
        b'"m":[1,%b]}' % pair
        for pair in ((value, b"2"), (b"1000", value))
    ]
    for line in lines:
        for found in embedded(line):  # a line that is no JSON has no metrics
            assert found.samples.sum in (1, 3)
            assert found.at_s in (None, 1)


def test_a_line_with_many_metrics_and_dimensions_takes_little_time() -> None:
    dimensions = b",".join([b'["d"]'] * 30_000)
    metrics = b",".join([b'{"Name":"m"}'] * 100)
    directive = b'{"Namespace":"n","Metrics":[%b],"Dimensions":[%b]}' % (metrics, dimensions)
    directives = b",".join([b'{"Namespace":"n","Metrics":[%b]}' % metrics] * 50)
    line = b'{"_aws":{"CloudWatchMetrics":[%b,%b]},"m":[%b1],"d":"x"}' % (directive, directives, b"1," * 99)
    found: list[object] = []
    assert took_s(lambda: found.extend(embedded(line))) < 1
    assert 100 <= len(found) <= 1000
