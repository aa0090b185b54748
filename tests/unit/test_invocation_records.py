"""Records of invocations: written in batches, found by filters, kept within limits, and lost rather than in the way."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from thawd.config.settings import REDACTED
from thawd.errors import StoreError, TooManyRequestsException
from thawd.invocation import Invocation, Result, StartKind
from thawd.recording.event_sources import source_of
from thawd.recording.minute_counts import Counter, MinuteCounts, bucket_ms
from thawd.recording.recorder import Recorder
from thawd.recording.records import Records
from thawd.recording.redaction import Redactor
from thawd.scheduling.ended_invocations import EndedInvocation
from thawd.stores.invocations import record_queries as queries
from thawd.stores.invocations.record_file import MIN_BYTES, RecordFile
from thawd.stores.invocations.record_queries import Filter
from thawd.stores.invocations.record_rows import CUT, Batch, BodyRow, InvocationRow, StepRow
from thawd.stores.invocations.record_rows import REDACTED as REPLACED
from thawd.streaming import HTTP_RESPONSE, SEPARATOR
from thawd.telemetry.metrics import FunctionMetrics

pytestmark = pytest.mark.in_memory


def a_file(tmp_path: Path, *, max_bytes: int = 64 << 20, days: float = 7.0, report: Any = None) -> RecordFile:
    lines: list[str] = []
    return RecordFile(
        tmp_path / "records.db", max_bytes=max_bytes, max_age_s=days * 86_400, report=report or lines.append
    )


def a_recorder(file: RecordFile, report: Callable[[str], object] = lambda line: None) -> Recorder:
    tasks: set[asyncio.Task[None]] = set()

    def spawn(work: Coroutine[Any, Any, None]) -> object:
        tasks.add(task := asyncio.ensure_future(work))
        return task

    return Recorder(file, Redactor(REDACTED), Counter({}), spawn_task=spawn, report=report)


def ended(
    event: Any = None,
    *,
    function: str = "f",
    answer: bytes = b"1",
    failed: bool = False,
    error: BaseException | None = None,
    at: float | None = None,
    **more: Any,
) -> EndedInvocation:
    invocation = Invocation(
        function, json.dumps(event).encode(), 0.0, trace_id="Root=1-6a1b2c3d-00ff;Parent=c", leased_s=10.002
    )
    result = Result(answer, function_error="Unhandled" if failed else None, duration_ms=5.0, **more)
    return EndedInvocation(
        invocation, None if error else result, error, 10.0, 10.02, time.time() if at is None else at, 1
    )


def row(number: int, *, failed: int = 0, function: str = "f", error_type: str = "", error: str = "") -> InvocationRow:
    return InvocationRow(
        number, number // 1000, f"r{number}", function, "", "1", "Invoke", "warm", 200, failed, error_type, error,
        1.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.8, 2, 2, 1, "stream", f"1-{number}",
    )  # fmt: skip


def batch(*rows: InvocationRow, body: bytes = b"{}") -> Callable[[int], Batch]:
    return lambda last: Batch(list(rows), [BodyRow(each.id, body, b"", "whole", "whole") for each in rows], [], [])


async def test_a_record_says_where_the_time_went_and_what_failed(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    recorder = a_recorder(file)
    answer = json.dumps({"errorType": "ValueError", "errorMessage": "bad\npixel count"}).encode()
    one = ended({"n": 1}, answer=answer, failed=True, init_ms=1.5, prepare_ms=1.0, start_kind=StartKind.THAW)
    recorder.record(one)
    recorder.record(ended({"n": 2}))
    await recorder.write()
    [latest, first] = (await file.read(queries.page(Filter()))).rows
    assert (first.error_type, first.error, first.failed, first.status) == ("ValueError", "bad pixel count", 1, 500)
    assert (first.total_ms, first.wait_ms, first.start_ms, first.prepare_ms, first.handler_ms) == (20, 0.5, 1.5, 1, 5)
    assert (first.start_kind, first.trace, first.source) == ("thaw", "1-6a1b2c3d-00ff", "Invoke")
    assert (latest.failed, latest.status, latest.start_kind) == (0, 200, "warm")
    body = await file.read(queries.body(first.id))
    assert body is not None and json.loads(body.event) == {"n": 1} and body.answer == answer
    file.close()


async def test_a_refused_request_and_a_server_error_of_a_handler_are_failures(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    recorder = a_recorder(file)
    recorder.record(ended({}, error=TooManyRequestsException("Rate Exceeded.", reason="x")))
    web = {"requestContext": {"http": {"method": "GET"}}, "rawPath": "/d"}
    recorder.record(ended(web, answer=b'{"statusCode": 503, "body": "x"}'))
    recorder.record(ended(web, answer=b'{"body": "x", "statusCode": 404}'))
    await recorder.write()
    rows = (await file.read(queries.page(Filter()))).rows
    assert [(each.source, each.status, each.failed, each.error_type) for each in rows] == [
        ("GET /d", 404, 0, ""),
        ("GET /d", 503, 1, "HTTP 503"),
        ("Invoke", 429, 1, "TooManyRequestsException"),
    ]
    assert rows[-1].error == "Rate Exceeded. (x)"
    file.close()


def stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def test_no_record_contains_a_redacted_value(tmp_path: Path) -> None:
    canary = "canary-0815"
    file = a_file(tmp_path)
    recorder = a_recorder(file)
    answer = json.dumps({"errorType": "E", "errorMessage": f"wrong {canary}"}).encode()
    recorder.record(ended({"password": canary}, answer=answer, failed=True))
    recorder.record(ended({"password": canary, "fill": "x" * 70_000}, answer=canary.encode() * 9000))
    large_event = {"headers": {"Authorization": f"Bearer {canary}"}, "fill": "x" * 70_000}
    echo = f"Bearer {canary}"
    recorder.record(ended(large_event, answer=json.dumps({"errorMessage": f"bad {echo}"}).encode(), failed=True))
    recorder.record(ended(large_event, answer=json.dumps({"echo": echo}).encode()))
    long = {"key_secret": "a\nb " + canary}
    answer = {"errorType": f"E a\nb {canary}", "errorMessage": "x" * 1990 + f"a\nb {canary}"}
    recorder.record(ended(long, answer=json.dumps(answer).encode(), failed=True))
    path = "/" + "x" * 190 + canary
    recorder.record(ended({"httpMethod": "GET", "path": path, "token": canary}))
    recorder.step("r", "retry", f"password={canary}")
    await recorder.write()
    [_, _, _, echoed, large, small] = (await file.read(queries.page(Filter()))).rows
    assert echoed.error == "bad [redacted]"
    body = await file.read(queries.body(small.id))
    assert body is not None and body.event_state == body.answer_state == REPLACED
    body = await file.read(queries.body(large.id))
    assert body is not None and (body.event, body.event_state, body.answer_state) == (b"", CUT, CUT)
    file.close()
    assert not re.search(rb"canary-\d|x{190}can|x{1990}a", stored(tmp_path))


async def test_lists_are_filtered_and_paged_by_cursor(tmp_path: Path) -> None:
    file = a_file(tmp_path, days=1e6)
    rows = [
        row(n * 1000, failed=n % 3 == 0, function="fg"[n % 2], error_type="E" if n % 3 == 0 else "", error=f"no {n}")
        for n in range(1, 31)
    ]
    await file.write(batch(*rows))

    async def ids(wanted: Filter, **more: Any) -> list[int]:
        return [each.id // 1000 for each in (await file.read(queries.page(wanted, **more))).rows]

    assert await ids(Filter(), limit=3) == [30, 29, 28]
    assert await ids(Filter(), limit=3, before=28_000) == [27, 26, 25]
    assert await ids(Filter(failed=True), limit=3) == [30, 27, 24]
    assert await ids(Filter(function="g", failed=True)) == [27, 21, 15, 9, 3]
    assert await ids(Filter(error_type="E", function="f")) == [30, 24, 18, 12, 6]
    assert await ids(Filter(error_type="none")) == await ids(Filter(error_type="E", failed=False)) == []
    assert await ids(Filter(text="NO 2"), limit=2) == [29, 28]
    assert await ids(Filter(since_ms=5, until_ms=8)) == [7, 6, 5]
    assert await ids(Filter(failed=False, function="f"), limit=2) == [28, 26]
    page = await file.read(queries.page(Filter(), limit=30))
    assert page.next is None
    assert (await file.read(queries.page(Filter(), limit=10))).next == 21_000
    found = await file.read(queries.errors(None, since_ms=0))
    assert [(each.function, each.error_type, each.times, each.last_id) for each in found] == [
        ("f", "E", 5, 30_000),
        ("g", "E", 5, 27_000),
    ]
    file.close()


async def test_requests_are_found_by_the_beginning_of_their_ids(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    recorder = a_recorder(file)
    records = Records(file, recorder)
    ids = ["0a1b2c3d-1", "0a1b2c3d-11", "0a1b2c3e-1", "0a1b2c3d-1"]
    for request_id in ids:
        recorder.record(one := ended({}))
        one.invocation.request_id = request_id

    async def found(text: str) -> list[str]:
        return [each.request_id for each in await records.beginning_with(text)]

    assert await found("0a1b2c3d") == ["0a1b2c3d-1", "0a1b2c3d-11"]  # the last attempt counts
    assert await found("0a1b2c3d-1") == ["0a1b2c3d-1"]
    assert await found("0a1b2c3e") == ["0a1b2c3e-1"] and await found("0a1b2c3%") == []
    file.close()


async def test_a_search_for_a_text_stops_and_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MOST_SCANNED", 5)
    file = a_file(tmp_path, days=1e6)
    await file.write(batch(*[row(n, error=f"e{n}") for n in range(1, 13)]))
    page = await file.read(queries.page(Filter(text="e2")))
    assert (page.rows, page.next, page.is_cut) == ([], 8, True)
    page = await file.read(queries.page(Filter(text="e2"), before=page.next))
    page = await file.read(queries.page(Filter(text="e2"), before=page.next))
    assert [each.id for each in page.rows] == [2] and page.next is None
    file.close()


async def test_a_full_file_loses_its_oldest_successes_and_keeps_failures(tmp_path: Path) -> None:
    file = a_file(tmp_path, max_bytes=MIN_BYTES)
    now = int(time.time() * 1_000_000)
    for start in range(0, 6000, 500):
        rows = [row(now + n, failed=n % 100 == 0) for n in range(start, start + 500)]
        await file.write(batch(*rows, body=b"x" * 2000))
    assert (tmp_path / "records.db").stat().st_size <= MIN_BYTES + (2 << 20)
    failures = (await file.read(queries.page(Filter(failed=True), limit=100))).rows
    assert len(failures) == 60
    newest = (await file.read(queries.page(Filter(), limit=1))).rows
    assert newest[0].id == now + 5999
    file.close()


async def test_old_records_are_removed(tmp_path: Path) -> None:
    file = a_file(tmp_path, days=1)
    now_s = time.time()
    await file.write(batch(row(int((now_s - 90_000) * 1e6)), row(int((now_s - 80_000) * 1e6))))
    assert len((await file.read(queries.page(Filter()))).rows) == 1
    file.close()


def aside(folder: Path) -> list[Path]:
    return list(folder.glob("records.db.damaged-*"))


async def test_a_damaged_file_is_set_aside_and_a_new_one_is_begun(tmp_path: Path) -> None:
    lines: list[str] = []
    path = tmp_path / "records.db"
    file = a_file(tmp_path)
    await file.write(batch(*[row(n) for n in range(1, 200)]))
    file.close()
    for content in (b"no database at all", path.read_bytes()[:5000] + b"\xff" * 60_000):
        path.write_bytes(content)
        file = a_file(tmp_path, report=lines.append)
        await file.write(batch(row(int(time.time() * 1e6))))
        assert len((await file.read(queries.page(Filter()))).rows) == 1
        file.close()
        assert "is damaged" in lines[-1] and aside(tmp_path)
        for each in aside(tmp_path):
            each.unlink()
    assert len(lines) == 2


async def test_a_file_of_a_newer_thawd_is_left_alone(tmp_path: Path) -> None:
    a_file(tmp_path).close()
    with sqlite3.connect(tmp_path / "records.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="newer thawd"):
        a_file(tmp_path)


async def test_a_disk_that_fails_is_reported_once_and_recording_goes_on_later(tmp_path: Path) -> None:
    lines: list[str] = []
    file = a_file(tmp_path)
    recorder = a_recorder(file, lines.append)
    real, fails = file.write, True

    async def write(make: Callable[[int], Batch]) -> int:
        if fails:
            raise StoreError("the disk is full")
        return await real(make)

    file.write = write  # type: ignore[method-assign]
    for _ in range(3):
        recorder.record(ended({}))
        await recorder.write()
    assert len(lines) == 1 and "serving goes on" in lines[0] and recorder.lost == 3
    fails = False
    recorder.record(ended({}))
    await recorder.write()
    assert lines[1:] == ["thawd: invocations are recorded again"]
    file.close()


async def test_lost_records_are_counted_by_the_next_record_of_their_function_and_outcome(tmp_path: Path) -> None:
    lines: list[str] = []
    file = a_file(tmp_path)
    recorder = a_recorder(file, lines.append)
    for _ in range(4100):
        recorder.record(ended(0, failed=True))
    assert recorder.lost == 100 and len(lines) == 1 and "faster than they can be recorded" in lines[0]
    await recorder.write()
    for function, failed in (("f", False), ("g", True), ("f", True), ("f", True)):
        recorder.record(ended(0, function=function, failed=failed))
    await recorder.write()
    rows = (await file.read(queries.page(Filter(), limit=4))).rows
    assert [each.stands_for for each in rows] == [1, 101, 1, 1]
    [counted, _] = await file.read(queries.errors(None, since_ms=0))
    assert (counted.function, counted.times) == ("f", 4102)
    file.close()


async def test_many_records_are_written_before_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thawd.recording.recorder.FLUSH_S", 3600.0)
    file = a_file(tmp_path)
    recorder = a_recorder(file)
    for big, count in ((b"1", 501), (b"1" * (3 << 20), 2)):
        written = asyncio.Event()
        recorder.on_written = written.set
        for _ in range(count):
            recorder.record(ended(0, answer=big))
        await asyncio.wait_for(written.wait(), 60)
    assert recorder.lost == 0
    file.close()


async def test_a_batch_needs_few_statements(tmp_path: Path) -> None:
    # Each one makes the writer wait for the event loop a few times.
    file = a_file(tmp_path)
    recorder = a_recorder(file)
    seen: list[str] = []
    await file.write(lambda last: Batch([], [], [], []))
    await file._database.write(lambda connection: connection.set_trace_callback(seen.append))
    del seen[:]
    for _ in range(41):
        recorder.record(ended({}))
    await recorder.write()
    assert [sum(text.startswith(f"INSERT INTO {table}") for text in seen) for table in ("invoc", "bodies")] == [2, 2]
    assert len(seen) <= 10, seen
    assert len((await file.read(queries.page(Filter(), limit=100))).rows) == 41
    file.close()


async def test_ids_grow_even_if_the_clock_was_set_back(tmp_path: Path) -> None:
    file = a_file(tmp_path, days=3650)
    recorder = a_recorder(file)
    now_s = time.time()
    for at in (now_s, now_s - 1000, now_s - 1000):
        recorder.record(ended({}, at=at))
        await recorder.write()
    ids = [each.id for each in (await file.read(queries.page(Filter()))).rows]
    assert ids == [ids[2] + 2, ids[2] + 1, ids[2]]
    file.close()


async def test_a_batch_whose_caller_was_cancelled_keeps_its_ids(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    recorder = a_recorder(file)
    now_s = time.time()
    recorder.record(ended(1, at=now_s))
    writing = asyncio.create_task(recorder.write())
    await asyncio.sleep(0)
    writing.cancel()  # the page that waited for it was closed
    await asyncio.gather(writing, return_exceptions=True)
    recorder.record(ended(2, at=now_s))
    await recorder.write()
    assert recorder.lost == 0 and len((await file.read(queries.page(Filter()))).rows) == 2
    file.close()


async def test_of_a_trace_with_many_records_those_that_ended_first_are_found(tmp_path: Path) -> None:
    file = a_file(tmp_path, days=1e6)
    await file.write(batch(*[row(n)._replace(trace="t", began_ms=100 - n) for n in range(1, 90)]))
    found = await file.read(queries.of_trace("t", limit=3))
    assert [each.id for each in found] == [3, 2, 1]  # in the order of their beginnings
    file.close()


async def test_all_steps_that_are_too_old_are_removed(tmp_path: Path) -> None:
    file = a_file(tmp_path, days=1)
    old_ms, new_ms = int((time.time() - 90_000) * 1000), int(time.time() * 1000)
    steps = [StepRow(old_ms, f"r{n}", "retry", "") for n in range(600)] + [StepRow(new_ms, "new", "retry", "")]
    await file.write(lambda last: Batch([], [], steps, []))
    assert await file.read(lambda c: c.execute("SELECT request_id FROM steps").fetchall()) == [("new",)]
    file.close()


async def test_redacted_values_are_remembered_within_a_size(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    recorder = a_recorder(file)
    for number in range(200):
        recorder.record(ended({"password": f"{number:04}" + "x" * 60_000}))
    await recorder.write()
    [newest, *_, oldest] = (await file.read(queries.page(Filter(), limit=200))).rows
    assert recorder.redacted_in(oldest.id) is None
    assert recorder.redacted_in(newest.id) == {"0199" + "x" * 60_000}
    file.close()


async def test_of_an_applications_answer_prelude_and_body_are_recorded_without_secrets(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    recorder = a_recorder(file)
    prelude = b'{"statusCode": 201, "headers": {"a": "b"}, "cookies": ["session=SECRETSECRET; Path=/"]}'
    each = ended({"rawPath": "/", "requestContext": {"http": {"method": "GET"}}})
    each.result = Result(prelude + SEPARATOR + b'{"password": "hunter2hunter2", "n": 1}', content_type=HTTP_RESPONSE)
    recorder.record(each)
    await recorder.write()
    [found] = (await file.read(queries.page(Filter()))).rows
    body = await file.read(queries.body(found.id))
    assert found.status == 201 and body is not None and body.answer_state == REPLACED
    head, _, rest = body.answer.partition(SEPARATOR)
    assert json.loads(head) == {"statusCode": 201, "headers": {"a": "b"}, "cookies": "[redacted]"}
    assert json.loads(rest) == {"password": "[redacted]", "n": 1}
    file.close()


def test_the_source_of_an_event_is_told_by_its_shape() -> None:
    cases: dict[str, Any] = {
        "GET /a/b": {"requestContext": {"http": {"method": "GET"}}, "rawPath": "/a/b"},
        "POST /x": {"httpMethod": "POST", "path": "/x", "requestContext": {"requestId": "1"}},
        "bucket uploads": {"Records": [{"eventSource": "aws:s3", "s3": {"bucket": {"name": "uploads"}}}]},
        "queue jobs": {"Records": [{"eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:us-east-1:1:jobs"}]},
        "topic t": {"Records": [{"EventSource": "aws:sns", "EventSubscriptionArn": "arn:aws:sns:us-east-1:1:t:s"}]},
        "stream of table t": {
            "Records": [
                {
                    "eventSource": "aws:dynamodb",
                    "eventSourceARN": "arn:aws:dynamodb:r:1:table/t/stream/2026-01-01T00:00",
                }
            ]
        },
        "schedule nightly": {"source": "aws.events", "resources": ["arn:aws:events:us-east-1:1:rule/nightly"]},
        "event of shop": {"source": "shop", "detail": {}},
        "Invoke": {"Records": 3},
    }
    for source, event in cases.items():
        assert source_of(json.dumps(event).encode(), asynchronous=False) == source
    assert source_of(b"[1]", asynchronous=True) == "Invoke, queued"
    assert source_of(b"\xff", asynchronous=False) == "Invoke"


def test_counts_by_minute_contain_every_invocation() -> None:
    metrics = FunctionMetrics()
    counter = Counter({"f": metrics})
    assert counter.take() == []
    for took_ms in (0.5, 0.5, 300.0):
        metrics.record_invocation(StartKind.WARM, took_ms)
    metrics.record_invocation(StartKind.THAW, 12.0)
    metrics.errors = 2
    counter.take()
    metrics.record_invocation(StartKind.WARM, 300.0)
    rows = counter.take()
    total = {}
    counts = json.loads(rows[-1].document)
    for kind, buckets in counts["latencies"].items():
        total[kind] = {round(bucket_ms(int(bucket)), 1): count for bucket, count in buckets.items()}
    assert sum(total["warm"].values()) in (1, 4)  # a minute may have ended between the two calls
    for upper in total["warm"]:
        assert upper / 1.415 < 0.5 <= upper or upper / 1.415 < 300 <= upper
    assert MinuteCounts().errors == 0
    assert counter.take() == []
