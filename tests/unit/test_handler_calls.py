"""What handlers called: which invocation a call belongs to, what is kept, how it is stored, and how pages show it."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_invocation_records import a_file, a_recorder, batch, ended, row
from tests.unit.test_segments import HANDLER, NOW, TRACE, datagram, identifier
from thawd.environments.store_calls import NotedCall
from thawd.invocation import Invocation, Result, TracedInvocation
from thawd.recording import calls as calls_module
from thawd.recording.calls import Calls, Taken, call_of
from thawd.recording.open_traces import OpenTraces, Run
from thawd.recording.records import Records
from thawd.recording.redaction import MARK, Redactor
from thawd.recording.segment_joining import SegmentJoiner
from thawd.recording.spans import CLIENT, INTERNAL, Span
from thawd.recording.tracer import Tracer
from thawd.resources import ACTIVE, Function
from thawd.scheduling.ended_invocations import EndedInvocation
from thawd.stores.invocations import handler_calls as stored_calls
from thawd.stores.invocations import record_queries as queries
from thawd.stores.invocations.handler_calls import MOST_CALLS
from thawd.stores.invocations.record_file import MIN_BYTES, RecordFile
from thawd.stores.invocations.record_queries import Filter
from thawd.stores.invocations.record_rows import APPLICATION_ID, SCHEMA, Batch, CallRow, HandlerRow
from thawd.window import handler_calls, waterfall

pytestmark = pytest.mark.in_memory


def call(number: int, handler: str = HANDLER, parent: str = "", **changes: Any) -> CallRow:
    made = CallRow(handler, identifier(number), parent or handler, f"s{number}", "", "", 0, 0, 0, 1000)
    return made._replace(**changes)


class Intake:
    """A joiner and a collector of calls, with one invocation of the function ``f`` that runs."""

    def __init__(self, event: bytes = b"{}") -> None:
        self.open = OpenTraces()
        self.calls = Calls(self.open)
        self.joiner = SegmentJoiner(self.open, Redactor(["*password*", "token"]), self.calls.offer)
        self.calls.source_of = self.joiner.source_of
        self.first = self.begin(HANDLER, event=event)

    def begin(self, handler: str, *, at: float = NOW - 1, event: bytes = b"{}") -> Invocation:
        invocation = Invocation("f", event, 0.0)
        invocation.traced = TracedInvocation(TRACE, "", identifier(1 << 60), handler, "")
        self.calls.begin(self.open.begin(invocation, invocation.traced, at))
        return invocation

    def end(
        self, invocation: Invocation, *, at: float = NOW + 2, environment: str = "e", recorded: bool = True
    ) -> None:
        traced = invocation.traced
        assert traced is not None
        run = self.open.of_handler(traced.handler_id)
        began_at = at if run is None else run.runs[traced.handler_id].began_at
        run = self.open.ended(invocation, traced, times=(began_at, at), environment=environment)
        if run is not None:
            self.calls.ended(run, Result(b"", is_recorded=recorded))

    def take(self, *datagrams: bytes) -> Taken:
        for each in datagrams:
            self.joiner.take(each, NOW + 100)
        return self.calls.take()


def placed(taken: Taken) -> dict[str, str]:
    """Return the handlers of the calls, by the calls' names."""
    return {each.name: each.handler for each in taken.rows}


def test_calls_wait_for_the_end_of_their_invocation_and_later_ones_follow() -> None:
    intake = Intake()
    assert intake.take(datagram(1)).rows == []
    intake.end(intake.first)

    assert placed(intake.take(datagram(2))) == {"s1": HANDLER, "s2": HANDLER}
    assert placed(intake.take(datagram(3, identifier(1)))) == {"s3": HANDLER}
    assert intake.take() == Taken([], {}, {})


def test_calls_of_an_invocation_without_a_record_are_dropped() -> None:
    intake = Intake()
    intake.take(datagram(1))
    intake.end(intake.first, recorded=False)

    assert intake.take(datagram(2)).rows == [] and intake.calls._held_bytes == 0
    assert intake.calls._offered_bytes == intake.calls._done_bytes


def test_of_ended_invocations_at_most_one_answer_is_kept_and_no_call_without_a_record() -> None:
    intake = Intake()
    others = [intake.begin(identifier(number)) for number in range(100, 110)]
    for each in others:
        assert each.traced is not None
        intake.take(datagram(int(each.traced.handler_id, 16) + 1000, each.traced.handler_id))
    assert intake.calls._held_bytes > 0
    for each in others:
        intake.end(each, recorded=False)
    intake.end(intake.first)

    assert intake.calls._held_bytes == 0 and not intake.calls._recorded
    assert intake.take().began_us == {HANDLER: int((NOW - 1) * 1e6)}


def test_the_calls_that_took_longest_are_kept_so_that_what_contains_them_is() -> None:
    intake = Intake()
    for number in range(2, MOST_CALLS + 42):
        intake.take(datagram(number, identifier(1), end_time=NOW + number / 1e4))
    intake.take(datagram(1, end_time=NOW + 2))  # sent last, because it contains the others
    intake.end(intake.first)
    taken = intake.take(datagram(9999, end_time=NOW + 3))

    assert len(taken.rows) == MOST_CALLS and taken.left_out == {HANDLER: 42}
    names = {each.name for each in taken.rows}
    assert "s1" in names and "s2" not in names and f"s{MOST_CALLS + 41}" in names


def test_a_call_belongs_to_the_invocation_that_ran_in_its_environment_at_its_time() -> None:
    intake = Intake()
    intake.end(intake.first, at=NOW + 2, environment="e")
    here, elsewhere = identifier(100), identifier(200)
    second = intake.begin(here, at=NOW + 3)
    other = intake.begin(elsewhere, at=NOW + 3)
    later = datagram(7, start_time=NOW + 4, end_time=NOW + 5)  # X-Ray's SDK names the first invocation

    assert intake.take(later, datagram(8, identifier(7), start_time=NOW + 4, end_time=NOW + 5)).rows == []
    intake.end(other, at=NOW + 6, environment="another")
    assert intake.take().rows == [], "the second may have run in the same environment"
    intake.end(second, at=NOW + 6, environment="e")
    assert placed(intake.take()) == {"s7": here, "s8": here}


def test_a_call_that_began_after_its_invocation_belongs_to_it_if_no_other_ran() -> None:
    intake = Intake()
    intake.end(intake.first, at=NOW + 2)

    assert placed(intake.take(datagram(7, start_time=NOW + 4, end_time=NOW + 5))) == {"s7": HANDLER}


def test_of_invocations_that_ran_beside_each_other_in_one_environment_none_is_guessed() -> None:
    intake = Intake()
    intake.end(intake.first, at=NOW + 2)
    for handler in (identifier(100), identifier(200)):
        intake.end(intake.begin(handler, at=NOW + 3), at=NOW + 6)

    assert intake.take(datagram(7, start_time=NOW + 4, end_time=NOW + 5)).rows == []


def test_the_invocation_of_a_call_is_found_without_a_look_at_all_of_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    covers = Run.covers
    monkeypatch.setattr(Run, "covers", lambda run, at: looked.append(run) or covers(run, at))
    intake = Intake()
    intake.end(intake.first, at=NOW, environment="e0")
    for number in range(1000):
        begun = intake.begin(identifier(1000 + number), at=NOW + number + 1)
        intake.end(begun, at=NOW + number + 1.5, environment=f"e{number % 2}")
    taken = intake.take(
        *(datagram(each, start_time=NOW + at_s, end_time=NOW + at_s) for each, at_s in ((1, 3.2), (2, 71.2)))
    )

    assert placed(taken) == {"s1": identifier(1002), "s2": identifier(1070)}
    assert len(looked) < 100


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "_MOST_ARRIVED_BYTES", 1000)
    intake = Intake()
    for number in range(1, 5):
        intake.joiner.take(datagram(number), NOW + 2)
    intake.end(intake.first)
    taken = intake.take()
    assert [each.name for each in taken.rows] == ["s1", "s2"] and taken.left_out == {HANDLER: 2}

    monkeypatch.setattr(calls_module, "_MOST_HELD_BYTES", 500)
    intake = Intake()
    intake.take(datagram(1), datagram(2))
    intake.end(intake.first)
    taken = intake.take()
    assert [each.name for each in taken.rows] == ["s1"] and taken.left_out == {HANDLER: 1}


def test_a_forgotten_invocation_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thawd.recording.open_traces._MOST_INVOCATIONS", 1)
    intake = Intake()
    intake.take(datagram(1))
    assert intake.calls._held_bytes > 0
    intake.begin(identifier(100))

    assert intake.calls._held_bytes == 0 and not intake.open.of_handler(HANDLER)


def test_a_request_to_this_server_finds_its_sender_when_the_senders_segment_arrives() -> None:
    intake = Intake()
    request = Span("g", TRACE, identifier(50), identifier(1), "invoke g", CLIENT, NOW, NOW + 0.5)
    intake.calls.request(request)
    intake.calls.request(request._replace(trace_id="5" * 32))  # of a trace that no function here has begun
    intake.end(intake.first)

    assert intake.take().rows == []
    [segment, found] = sorted(intake.take(datagram(1)).rows)
    assert (segment.span, found.name, found.handler, found.parent) == (
        identifier(1), "invoke g", HANDLER, identifier(1),
    )  # fmt: skip
    assert len(intake.calls._requests) == 0


def test_operations_on_tables_belong_to_the_invocation_that_had_the_environment_then() -> None:
    intake = Intake()
    for at, stream in ((NOW - 5, "e"), (NOW, "e"), (NOW + 4, "e"), (NOW, "another")):
        intake.calls.store_call(stream, NotedCall("table put t", at, at + 0.001, False))
    assert intake.take().rows == []
    intake.end(intake.first, environment="e")
    intake.end(intake.begin(identifier(101), at=NOW + 3), at=NOW + 5, environment="e")
    intake.end(intake.begin(identifier(102), at=NOW + 6), at=NOW + 7, environment="e", recorded=False)

    found, later = intake.take().rows
    assert (later.handler, later.began_us) == (identifier(101), int((NOW + 4) * 1e6))
    assert (found.name, found.handler, found.parent, found.began_us) == (
        "table put t",
        HANDLER,
        HANDLER,
        int(NOW * 1e6),
    )
    intake.end(intake.begin(identifier(100)), environment="another", recorded=False)
    assert intake.take().rows == [] and intake.calls._store_count == 0


def test_operations_whose_invocation_never_ends_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "_MOST_STORE_CALLS", 3)
    intake = Intake()
    for stream in [*"aabb", *map(str, range(100)), "e"]:
        intake.calls.store_call(stream, NotedCall("table put t", NOW, NOW, False))
    assert intake.calls._store_count == 3 and len(intake.calls._store_calls) <= 2 * 4
    intake.end(intake.first, environment="e")

    assert len(intake.take().rows) == 1 and intake.calls._store_count == 2


def test_of_too_many_operations_on_tables_the_longest_are_kept_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls_module, "_MOST_STORE_CALLS", 10)
    intake = Intake()
    for number in range(30):  # of invocations before, which were not traced
        intake.calls.store_call("e", NotedCall("table get t", NOW - 5, NOW - 5 + number, False))
    intake.calls.store_call("e", NotedCall("table scan t", NOW, NOW + 100, False))
    for number in range(100):
        intake.calls.store_call("e", NotedCall("table put t", NOW, NOW + number / 1e3, False))
    intake.end(intake.first, environment="e")

    taken = intake.take()
    assert "table scan t" in {row.name for row in taken.rows} and "table get t" not in {row.name for row in taken.rows}
    assert len(taken.rows) + taken.left_out[HANDLER] == 101 and intake.calls._store_count == 0


def test_a_request_of_a_handler_that_runs_needs_no_place_among_those_that_wait() -> None:
    intake = Intake()
    for number in range(calls_module._MOST_REQUESTS + 1):
        span = Span("g", TRACE, identifier(1000 + number), HANDLER, "invoke g", CLIENT, NOW, NOW + 0.5)
        intake.calls.request(span)
    intake.end(intake.first)

    taken = intake.take()
    assert (len(taken.rows), len(intake.calls._requests)) == (MOST_CALLS, 0)
    assert taken.left_out == {HANDLER: calls_module._MOST_REQUESTS + 1 - MOST_CALLS}


async def test_a_bug_in_the_collection_of_calls_does_not_end_the_recording(tmp_path: Path) -> None:
    file, lines = a_file(tmp_path, days=1e6), list[str]()
    recorder = a_recorder(file, lines.append)
    recorder.calls = object()  # type: ignore[assignment]
    recorder.record(ended(1))
    await recorder.write()

    assert len((await file.read(queries.page(Filter()))).rows) == 1
    assert "failed inside thawd" in lines[0]
    file.close()


def test_no_text_of_a_call_contains_a_redacted_value() -> None:
    intake = Intake(event=b'{"password": "canary1x", "token": "canary2x"}')
    intake.end(intake.first)
    [found] = intake.take(
        datagram(
            1,
            name="GET canary1x",
            namespace="remote",
            fault=True,
            http={"request": {"method": "GET", "url": "http://host/canary2x?a=canary3x"}},
            aws={"table_name": "canary1x"},
            cause={"exceptions": [{"type": "canary2x", "message": "token=canary4x canary1x"}]},
        )
    ).rows

    assert "canary" not in str(found) and found.error == f"_OTHER: token={MARK} {MARK}"
    assert (found.name, found.detail, found.failed, found.is_request) == (
        f"GET {MARK}", f"{MARK}, GET http://host/{MARK}", 1, 1,
    )  # fmt: skip


def test_texts_of_a_call_are_one_line_that_a_file_can_contain() -> None:
    span = Span("f", TRACE, identifier(1), HANDLER, "a\n\0b\ud83d" + "x" * 500, INTERNAL, NOW, NOW - 1)
    found = call_of(span)

    assert found.name.startswith("a b?x") and len(found.name) == 100 and found.took_us == 0
    assert call_of(span._replace(name=" ")).name == "call"


async def test_all_calls_that_have_arrived_are_written_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "_TAKEN_AT_ONCE", 2)
    file = a_file(tmp_path, days=1e6)
    recorder = a_recorder(file)
    intake = Intake()
    recorder.calls = intake.calls
    await file.write(a_batch(1, calls=[]))
    await file.write(lambda last: Batch([], [], [], [], [HandlerRow(2, HANDLER, 0, 0)]))
    intake.end(intake.first)
    for number in range(1, 8):
        intake.joiner.take(datagram(number), NOW + 100)
    await recorder.close()

    found = await stored(file, 2)
    assert found is not None and len(found.rows) == 7
    file.close()


async def stored(file: RecordFile, number: int) -> stored_calls.Calls | None:
    return await file.read(stored_calls.of_record(number))


def a_batch(*numbers: int, calls: list[CallRow] | None = None, left_out: int = 0) -> Callable[[int], Batch]:
    """Records with these ids, each with a handler of the same number."""
    handlers = [HandlerRow(number, identifier(number), 1_000_000, 0) for number in numbers]
    made = batch(*map(row, numbers))(0)
    counts = {identifier(number): left_out for number in numbers if left_out}
    return lambda last: made._replace(handlers=handlers, calls=calls or [], left_out=counts)


async def test_calls_are_found_by_their_record_and_only_stored_beside_one(tmp_path: Path) -> None:
    file = a_file(tmp_path, days=1e6)
    await file.write(a_batch(1, 2, calls=[call(10, identifier(1), began_us=5), call(11, identifier(1), began_us=4)]))
    await file.write(lambda last: Batch([], [], [], [], [], [call(12, identifier(2)), call(13, identifier(3))]))
    await file.write(a_batch(4, left_out=7))
    file.close()

    file = a_file(tmp_path, days=1e6)
    one, two, four = [await stored(file, number) for number in (1, 2, 4)]
    assert one is not None and [each.name for each in one.rows] == ["s11", "s10"]
    assert two is not None and [each.name for each in two.rows] == ["s12"], "it came after the record"
    assert four == stored_calls.Calls(1_000_000, [], 7)
    assert await stored(file, 3) is None, "without a record there are no calls"
    assert await file.read(lambda c: c.execute("SELECT count(*) FROM calls").fetchone()) == (3,)
    file.close()


async def test_calls_are_removed_with_their_records(tmp_path: Path) -> None:
    now_us = int(time.time() * 1e6)
    file = a_file(tmp_path, days=1)
    old = now_us - 90_000 * 1_000_000
    calls = [call(n, identifier(at)) for n, at in ((1, old), (2, now_us))]
    await file.write(a_batch(old, now_us, calls=calls))
    assert await file.read(lambda c: c.execute("SELECT span FROM calls").fetchall()) == [(identifier(2),)]
    assert await file.read(lambda c: c.execute("SELECT id FROM handlers").fetchall()) == [(now_us,)]
    file.close()


async def test_calls_count_for_the_size_of_the_file(tmp_path: Path) -> None:
    file = a_file(tmp_path, max_bytes=MIN_BYTES, days=1e6)
    for number in range(1, 40):
        large = [call(n, identifier(number), detail="x" * 1000, span=f"{number}-{n}") for n in range(MOST_CALLS)]
        await file.write(a_batch(number, calls=large))
    found = await file.read(lambda c: c.execute("SELECT count(*), count(DISTINCT handler) FROM calls").fetchone())
    kept = await file.read(lambda c: c.execute("SELECT count(*) FROM handlers").fetchone())
    assert 0 < found[1] < 39 and found[0] == MOST_CALLS * found[1] and kept == (found[1],)
    file.close()


async def test_a_file_of_the_version_before_is_taken_over(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "records.db") as connection:
        connection.executescript(SCHEMA)
        marks = ", ".join("?" * len(row(1)))
        connection.execute(f"INSERT INTO invocations VALUES ({marks})", row(1))
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute("PRAGMA user_version=1")
    connection.close()
    lines: list[str] = []
    file = a_file(tmp_path, days=1e6, report=lines.append)
    await file.write(a_batch(2, calls=[call(10, identifier(2))]))

    assert file.last_id == 2 and not lines
    assert await stored(file, 1) is None
    after = await stored(file, 2)
    assert after is not None and len(after.rows) == 1
    file.close()


def traced_run(tracer: Tracer, function: Function, header: str | None) -> Invocation:
    invocation = Invocation(function.name, b"{}", 0.0, trace_id=header, leased_s=time.monotonic() - 1)
    invocation.trace_id = tracer.begin(invocation, function)
    return invocation


async def test_only_functions_that_ask_for_it_are_traced_and_their_calls_are_in_their_documents(tmp_path: Path) -> None:
    file = a_file(tmp_path, days=1e6)
    recorder = a_recorder(file)
    opened = OpenTraces()
    calls = recorder.calls = Calls(opened)
    joiner = SegmentJoiner(opened, recorder.redactor, calls.offer)
    calls.source_of = joiner.source_of
    tracer = Tracer(None, ratio=1.0, open_traces=opened, calls=calls)
    active, plain = (Function(name=n, handler="h", code=tmp_path, tracing=t) for n, t in (("a", ACTIVE), ("p", "")))
    caller = traced_run(tracer, active, None)
    assert caller.traced is not None and "Sampled=1" in str(caller.trace_id)
    called = traced_run(tracer, plain, caller.trace_id)
    stranger = traced_run(tracer, plain, f"Root=1-{'1' * 8}-{'2' * 24};Parent={'3' * 16};Sampled=1")

    assert called.trace_id == caller.trace_id, "a function that is not traced gets the header as it came"
    assert called.traced is not None and not called.traced.handler_id and stranger.traced is None
    for invocation in (called, caller):
        result = Result(b"1", duration_ms=1000.0, is_recorded=True, log_stream="e")
        ended_s = invocation.leased_s + 1
        each = EndedInvocation(invocation, result, None, ended_s - 2, ended_s, NOW, 1)
        tracer.ended(each)
        recorder.record(each)
    documents = Records(file, recorder)
    [found] = (await documents.document(caller.request_id))["calls"]
    assert (found["name"], found["parent"]) == ("invoke p", None)
    assert caller.traced.handler_id not in str(await documents.document(caller.request_id))
    assert abs(found["took_us"] - 2_000_000) < 10
    assert (await documents.document(called.request_id))["calls"] is None
    handler = await documents.calls(found_id(await documents.whole(caller.request_id)))
    assert handler is not None and handler.began_us < (time.time() - 1) * 1e6, "it began when it had its environment"
    assert handler.began_us > (time.time() - 1) * 1e6 - 60e6
    file.close()


def found_id(whole: Any) -> int:
    return int(whole.attempts[0].id)


def tree(*rows: CallRow) -> list[tuple[str, int]]:
    calls = stored_calls.Calls(0, list(rows), 0)
    return [(each.call.name, each.depth) for each in handler_calls.nested(calls, handler_ms=0.0)]


def test_calls_are_nested_by_their_parents_whatever_they_claim() -> None:
    one, two, three = (identifier(number) for number in (1, 2, 3))
    assert tree(call(2, parent=one), call(1), call(4), call(3, parent=two)) == [
        ("s1", 0), ("s2", 1), ("s3", 2), ("s4", 0),
    ]  # fmt: skip
    assert tree(call(5, parent=identifier(77))) == [("s5", 0)], "its parent was not kept"
    assert sorted(tree(call(1, parent=two), call(2, parent=one), call(3, parent=three))) == [
        ("s1", 0), ("s2", 1), ("s3", 0),
    ]  # fmt: skip
    deep = [call(number, parent=identifier(number - 1)) for number in range(1, 400)]
    assert max(depth for _, depth in tree(*deep)) == 8 and len(tree(*deep)) == 399


def test_bars_stay_in_the_drawing_and_texts_are_escaped() -> None:
    hostile = "<script>alert(1)</script>"
    rows = [
        call(1, name=hostile, detail=hostile, error=hostile, failed=1, began_us=-(10**12), took_us=10**15),
        call(2, began_us=10**15, is_request=1),
        *(call(number) for number in range(3, 150)),
    ]
    calls = stored_calls.Calls(0, rows, 12)
    record = row(1)._replace(total_ms=100.0, handler_ms=100.0, wait_ms=0.0)
    found = handler_calls.nested(calls, handler_ms=waterfall.handler_began_ms(record))
    drawing = waterfall.draw(record, found)
    bars = [float(x) + float(width) for x, width in re.findall(r'<rect x="([\d.]+)" y="\d+" width="([\d.]+)"', drawing)]
    table = "".join(map(str, handler_calls.content(calls, found)))

    assert len(bars) == 61 and all(150 <= bar <= 612 for bar in bars) and "-" not in "".join(map(str, bars))
    assert "<script" not in drawing + table and "&lt;script&gt;" in table and "failed: &lt;script" in table
    assert table.count("<tr>") == 150 and "12 further calls were not kept" in table
