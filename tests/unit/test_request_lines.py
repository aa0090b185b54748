"""`thawd.server.request_lines`: one short line for each invocation, and few lines when there are many."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.execution_fakes import until
from thawd.errors import TooManyRequestsException
from thawd.invocation import Invocation, Result, StartKind
from thawd.recording.record_making import ending_of, rows_of
from thawd.recording.redaction import Redactor
from thawd.runtime import faults
from thawd.scheduling.ended_invocations import EndedInvocation
from thawd.server import request_lines
from thawd.server.invocation_descriptions import InvocationDescriptions
from thawd.server.request_lines import RequestLines
from thawd.streaming import HTTP_RESPONSE, SEPARATOR
from thawd.telemetry import console
from thawd.wire.frames import LONGEST_LOGGED
from thawd.wire.response_stream import ResponseStream

GET = json.dumps({"rawPath": "/d", "requestContext": {"http": {"method": "GET"}}}).encode()
ERROR = {"errorType": "ValueError", "errorMessage": "bad\npixel count", "stackTrace": ['  File "/x.py", line 1\n']}


def _ended(event: bytes = GET, result: Result | None = None, *, error: Exception | None = None, **more: Any) -> Any:
    given = {"asked_s": 10.0, "ended_s": 10.005, "ended_at": 0.0, "stands_for": 1, **more}
    return EndedInvocation(Invocation("f", event, 0.0), result, error, **given)


def _printed(*ended: EndedInvocation) -> list[str]:
    async def work() -> list[str]:
        texts: list[str] = []
        lines = RequestLines(lambda function: None, lambda function: Path("/none"), write=texts.append)
        for each in ended:
            lines.add(each)
        lines.flush()
        return "\n".join(texts).splitlines()

    return asyncio.run(work())


def _without_time(line: str) -> str:
    return re.sub(r"^\d\d:\d\d:\d\d ", "", line)


def test_lines_say_what_happened() -> None:
    failed = Result(json.dumps(ERROR).encode(), function_error="Unhandled")
    cases: list[tuple[EndedInvocation, list[str]]] = [
        (_ended(result=Result(b"1")), ["f GET /d 200 5 ms"]),
        (_ended(result=Result(b'{"statusCode": 404}')), ["f GET /d 404 5 ms"]),
        (_ended(result=failed), ["f GET /d 500 5 ms ValueError: bad pixel count", '  File "/x.py", line 1']),
        (_ended(b"{}", failed), ["f failed 5 ms ValueError: bad pixel count", '  File "/x.py", line 1']),
        (_ended(b"{}", Result(b"1", start_kind=StartKind.THAW, init_ms=3.6)), ["f ok 5 ms (thaw 4 ms)"]),
        (_ended(result=Result(b"1"), stands_for=1200), ["f GET /d 200 5 ms (one of 1,200)"]),
        (_ended(error=TooManyRequestsException("Rate Exceeded.")), ["f GET /d 429 5 ms Rate Exceeded."]),
    ]
    for ended, wanted in cases:
        first, *rest = _printed(ended)
        assert [_without_time(first), *rest] == wanted


@pytest.mark.parametrize("sizes", [(1000,), (3, 20, 1000), (36, 1, 1, 1000)])
def test_the_status_of_a_streamed_answer_is_that_of_its_prelude(sizes: tuple[int, ...]) -> None:
    sent = b'{"headers": {"a": "1"}, "statusCode": 404}' + SEPARATOR + b"no \0 such page"
    ended = _ended(result=Result(b"", content_type=HTTP_RESPONSE))
    stream = ended.invocation.stream = ResponseStream()
    for size in sizes:
        stream.put(HTTP_RESPONSE, sent[:size])
        sent = sent[size:]
    whole = _ended(result=Result(stream.prelude + SEPARATOR + b"no such page", content_type=HTTP_RESPONSE))
    for each in (ended, whole):
        (line,) = _printed(each)
        assert _without_time(line) == "f GET /d 404 5 ms"
        assert ending_of(each, is_http=True) == (404, False, "", "")


def test_an_answer_whose_client_has_gone_has_the_status_499_and_is_no_failure() -> None:
    ended = _ended(result=Result(b"", content_type=HTTP_RESPONSE))
    stream = ended.invocation.stream = ResponseStream()
    stream.put(HTTP_RESPONSE, b'{"statusCode": 200}' + SEPARATOR)
    stream.gone()
    (line,) = _printed(ended)
    assert _without_time(line) == "f GET /d 499 5 ms the client has gone"
    assert ending_of(ended, is_http=True) == (499, False, "", "")


def test_the_time_is_that_of_the_answer_without_work_in_the_background() -> None:
    ended = _ended(result=Result(b"", content_type=HTTP_RESPONSE), ended_s=12.0)
    stream = ended.invocation.stream = ResponseStream()
    stream.put(HTTP_RESPONSE, b'{"statusCode": 200}' + SEPARATOR + b"1")
    stream.answered_s = 10.007
    stream.gone()  # with the whole answer
    (line,) = _printed(ended)
    assert _without_time(line) == "f GET /d 200 7 ms (and 1,993 ms in the background)"
    ended.ended_s = 10.012
    (line,) = _printed(ended)
    assert _without_time(line) == "f GET /d 200 12 ms"


def test_the_status_is_the_one_that_the_client_got() -> None:
    ended = _ended(result=Result(b'{"statusCode": "a"}'))
    ended.invocation.answered_status = 502  # the gateway has refused the answer
    (line,) = _printed(ended)
    assert _without_time(line) == "f GET /d 502 5 ms"
    assert ending_of(ended, is_http=True) == (502, True, "HTTP 502", "")


def test_a_stream_without_a_prelude_has_no_status_of_its_own() -> None:
    for content_type in (HTTP_RESPONSE, "application/json"):
        ended = _ended(result=Result(b""))
        stream = ended.invocation.stream = ResponseStream()
        stream.put(content_type, b'{"statusCode": 500}')
        stream.put(content_type, bytes(300 << 10) if content_type != HTTP_RESPONSE else b"x" * (300 << 10))
        stream.put(content_type, SEPARATOR)
        assert ending_of(ended, is_http=True).status == 200


def test_the_line_of_an_event_that_a_stop_cuts_off_says_that_it_runs_again() -> None:
    ended = _ended(b"{}", Result(json.dumps(ERROR).encode(), function_error="Unhandled"))
    is_stopping = True

    async def work() -> str:
        texts: list[str] = []
        lines = RequestLines(
            lambda function: None,
            lambda function: Path("/none"),
            write=texts.append,
            runs_again=lambda each: is_stopping and each is ended,
        )
        lines.add(ended)
        nonlocal is_stopping
        is_stopping = False  # the line is made later than the event ends
        lines.flush()
        return texts[0].splitlines()[0]

    line = _without_time(asyncio.run(work()))
    assert line.startswith("f failed (runs again after the next start) 5 ms ValueError")


def test_a_line_is_cut_to_80_columns_and_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    long = Result(json.dumps({"errorType": "E", "errorMessage": "x" * 500}).encode(), function_error="Unhandled")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    (line,) = _printed(_ended(result=long))
    assert len(line) == 80
    assert line.endswith("…")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert _printed(_ended(result=long))[0].startswith("\x1b[31m")
    monkeypatch.setenv("NO_COLOR", "1")
    assert _printed(_ended(result=long))[0] == line


def test_many_invocations_in_a_second_print_fifty_lines_and_a_count() -> None:
    lines = _printed(*(_ended(result=Result(b"1")) for _ in range(1050)))
    assert len(lines) == 51
    assert lines[-1].strip() == "and 1,000 invocations more; `thawd status` counts all"


def test_what_a_client_sent_cannot_control_the_terminal() -> None:
    event = json.dumps({"rawPath": "/\x1b]0;x\x07", "requestContext": {"http": {"method": "GET"}}}).encode()
    failure = {"errorType": "E", "errorMessage": "\x1b[2J", "stackTrace": ["  \x9b1A\tx\n"]}
    first, second = _printed(_ended(event, Result(json.dumps(failure).encode(), function_error="Unhandled")))
    assert _without_time(first) == r"f GET /\x1b]0;x\x07 500 5 ms E: \x1b[2J"
    assert second == "  \\x9b1A\tx"


def test_nothing_is_printed_while_standard_output_takes_no_lines() -> None:
    async def work() -> list[str]:
        texts: list[str] = []
        has_room = True
        lines = RequestLines(
            lambda function: None, lambda function: Path("/none"), write=texts.append, may_write=lambda: has_room
        )
        for has_room in (True, False, True):  # noqa: B007 - the lambda reads it
            lines.unserved("GET", "/x", 404, "nothing")
            lines.add(_ended(result=Result(b"1")))
            lines.flush()
        return texts

    texts = [_without_time(text).strip() for text in asyncio.run(work())]
    each = ["GET /x 404 nothing", "f GET /d 200 5 ms"]
    assert texts == [*each, *each, "and 2 invocations more; `thawd status` counts all"]


def test_a_full_pipe_takes_no_lines_until_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb"), os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert console.takes_lines()
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(console.PIPE_BYTES))
        assert not console.takes_lines()
        os.read(reader, console.PIPE_BYTES)
        assert console.takes_lines()


def test_a_long_traceback_is_printed_in_pieces_that_a_pipe_takes_at_once() -> None:
    async def work() -> list[str]:
        texts: list[str] = []
        lines = RequestLines(lambda function: None, lambda function: Path("/none"), write=texts.append)
        frames = [f"  line {number} " + "ü" * 100 + "\n" for number in range(100)]
        failure = {"errorType": "E", "errorMessage": "m", "stackTrace": [*frames, "y" * 10_000]}
        lines.add(_ended(result=Result(json.dumps(failure).encode(), function_error="Unhandled")))
        lines.flush()
        return texts

    texts = asyncio.run(work())
    assert max(len(text.encode()) for text in texts) < 4096
    assert len("\n".join(texts).splitlines()) == 102


async def _printed_with_log(ended: EndedInvocation, log: Path) -> list[str]:
    """Return what is written for an invocation of a function that logs to the file `log`."""
    texts: list[str] = []
    lines = RequestLines(lambda function: None, lambda function: log, write=texts.append)
    lines.add(ended)
    lines.flush()
    return texts


@pytest.mark.parametrize("is_json", [False, True])
def test_an_answer_of_status_500_is_followed_by_what_its_invocation_logged(tmp_path: Path, is_json: bool) -> None:
    def start(request_id: str) -> str:
        return (
            f'{{"type":"platform.start","record":{{"requestId":"{request_id}"}}}}'
            if is_json
            else f"START RequestId: {request_id} "
        )

    def report(request_id: str) -> str:
        return start(request_id).replace("platform.start", "platform.report").replace("START", "REPORT")

    ended = _ended(result=Result(b'{"statusCode": 500}', log_stream="s"))
    own = ended.invocation.request_id
    logged = [
        *[("s", start("a")), ("s", "of an earlier one"), ("s", report("a"))],
        *[("s", start(own)), ("t", "of another environment"), ("s", "first"), ("s", "second"), ("s", report(own))],
        *[("s", start("b")), ("s", "of a later one")],
    ]
    logged[4:4] = [("s", "[ERROR] ValueError: bad pixel"), *(("s", f"  frame {number}") for number in range(60))]
    log = tmp_path / "f.log"
    log.write_text("".join(f"2026-11-20T10:00:00.000Z\t{stream}\t{message}\n" for stream, message in logged))

    (text,) = asyncio.run(_printed_with_log(ended, log))
    _, error, *frames, first, second = text.splitlines()
    assert (error, first, second) == ("  [ERROR] ValueError: bad pixel", "  first", "  second")
    assert frames == [f"    frame {number}" for number in range(22, 60)]


def test_an_answer_whose_lines_are_not_written_yet_is_not_followed_by_those_of_others(tmp_path: Path) -> None:
    ended = _ended(result=Result(b'{"statusCode": 500}', log_stream="s"))
    log = tmp_path / "f.log"
    messages = ("START RequestId: other ", "of another one", "REPORT RequestId: other ")
    log.write_text("".join(f"2026-11-20T10:00:00.000Z\ts\t{message}\n" for message in messages))

    (text,) = asyncio.run(_printed_with_log(ended, log))
    assert [_without_time(line) for line in text.splitlines()] == ["f GET /d 500 5 ms"]


def test_an_answer_of_status_500_waits_for_what_its_invocation_has_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_lines, "_MOST_WAIT_S", 600.0)
    log = tmp_path / "f.log"
    log.write_text("")

    def write_log(*messages: str) -> None:
        with log.open("a") as file:
            file.writelines(f"2026-11-20T10:00:00.000Z\ts\t{message}\n" for message in messages)

    async def work() -> list[str]:
        texts: list[str] = []
        lines = RequestLines(lambda function: None, lambda function: log, write=texts.append)
        now_s = time.monotonic()
        ended = _ended(result=Result(b'{"statusCode": 500}', log_stream="s"), asked_s=now_s - 0.005, ended_s=now_s)
        own = ended.invocation.request_id
        lines.add(ended)
        lines.add(_ended(result=Result(b"1"), asked_s=now_s - 0.005, ended_s=now_s))
        await until(lambda: texts)
        write_log(f"START RequestId: {own} ", "first")
        lines.add(_ended(result=Result(b"1"), asked_s=now_s - 0.005, ended_s=now_s))
        await until(lambda: len(texts) == 2)
        write_log("second", f"REPORT RequestId: {own} ")
        await until(lambda: len(texts) == 3)
        return texts

    texts = asyncio.run(work())
    assert [_without_time(text).split("\n") for text in texts] == [
        ["f GET /d 200 5 ms"],
        ["f GET /d 200 5 ms"],
        ["f GET /d 500 5 ms", "  first", "  second"],
    ]


def test_other_work_goes_on_between_two_invocations_that_are_printed() -> None:
    async def work() -> list[str]:
        order: list[str] = []

        def write(text: str) -> None:
            if not order:
                asyncio.get_running_loop().call_soon(order.append, "other work")
            order.append("a line")

        lines = RequestLines(lambda function: None, lambda function: Path("/none"), write=write)
        for _ in range(3):
            lines.add(_ended(result=Result(b"1")))
        await until(lambda: order.count("a line") == 3)
        return order

    assert asyncio.run(work()) == ["a line", "other work", "a line", "a line"]


def _records(monkeypatch: pytest.MonkeyPatch, *ended: EndedInvocation) -> list[dict[str, Any]]:
    """Return the records of invocations, whose secrets are the values of ``password``."""
    records: list[dict[str, Any]] = []

    def write(level: str, message: str, fields: dict[str, Any], *, at_s: float | None = None) -> bool:
        known = {name: value for name, value in fields.items() if value is not None}
        records.append({"level": level, "message": message, "at_s": at_s, **known})
        return True

    monkeypatch.setattr(request_lines, "write_record", write)

    async def work() -> None:
        lines = RequestLines(
            lambda function: None, lambda function: Path("/none"), redactor=Redactor(["password"]), as_records=True
        )
        for each in ended:
            lines.add(each)
        lines.flush()
        lines.unserved("GET", "/x?password=hunter2", 404, "nothing")
        lines.flush()

    asyncio.run(work())
    return records


def test_a_record_has_all_that_lambdas_report_line_has(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {"duration_ms": 2.5, "init_ms": 3.2, "memory_mb": 512, "peak_mib": 90, "executed_version": "3"}
    result = Result(b"1", start_kind=StartKind.THAW, is_restored=True, **measured)  # type: ignore[arg-type]
    ended = _ended(result=result)
    ended.invocation.trace_id = "Root=1-65f00000-000000000000000000000001;Parent=0000000000000001;Sampled=0"
    cold = _ended(b"{}", Result(b"1", start_kind=StartKind.COLD, **measured))  # type: ignore[arg-type]
    first, second, unserved = _records(monkeypatch, ended, cold)
    assert first == {
        "level": "info",
        "message": "f GET /d 200 5 ms (thaw 3 ms)",
        "at_s": 0.0,
        "event": "invocation",
        "function": "f",
        "version": "3",
        "request_id": ended.invocation.request_id,
        "trace_id": "1-65f00000-000000000000000000000001",
        "source": "GET /d",
        "status": 200,
        "outcome": "succeeded",
        "total_ms": 5.0,
        "duration_ms": 2.5,
        "billed_ms": 3,
        "memory_size_mb": 512,
        "max_memory_used_mb": 90,
        "restore_ms": 3.2,
        "start_kind": "thaw",
        "stands_for": 1,
    }
    assert (second["source"], second["billed_ms"], second["init_ms"]) == ("Invoke", 6, 3.2)  # init is billed
    assert "status" not in second
    assert (unserved["event"], unserved["source"], unserved["status"]) == ("request", "GET /x?password=[redacted]", 404)


def test_a_record_of_a_failure_has_its_traceback_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    event = json.dumps({"password": "hunter2", "rawPath": "/hunter2", "requestContext": {"http": {"method": "GET"}}})
    error = {"errorType": "E", "errorMessage": "no\nhunter2 " + "x" * 5000, "stackTrace": ["  at hunter2\n", "  two\n"]}
    ended = _ended(event.encode(), Result(json.dumps(error).encode(), function_error="Unhandled"))
    refused = _ended(b"{}", error=TooManyRequestsException("Rate Exceeded."))
    (failed, throttled, _) = _records(monkeypatch, ended, refused)
    assert "hunter2" not in json.dumps(failed)
    assert (failed["level"], failed["outcome"], failed["status"]) == ("error", "failed", 500)
    assert (failed["error_type"], failed["error_message"][:14]) == ("E", "no [redacted] ")
    assert len(failed["error_message"]) == 2000
    assert failed["traceback"] == "  at [redacted]\n  two"
    assert (throttled["outcome"], throttled["status"]) == ("refused", 429)
    assert (throttled["error_type"], throttled["error_message"]) == ("TooManyRequestsException", "Rate Exceeded.")


def test_no_beginning_of_a_secret_is_left_where_a_text_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "s3cret-" * 10
    event = json.dumps({"password": secret, "rawPath": "/d", "requestContext": {"http": {"method": "GET"}}}).encode()
    faults.note_logged("r", ValueError(("x" * 990) + secret))
    faults.note_logged("cut", ValueError(("x" * (LONGEST_LOGGED - 10)) + secret))
    logged = [tuple(faults.logged.pop(each)) for each in ("r", "cut")]
    trace = ["x" * ((64 << 10) - 10) + secret]
    error = json.dumps({"errorType": "E", "errorMessage": "", "stackTrace": trace}).encode()
    all_ended = [
        *(_ended(event, Result(b'{"statusCode": 500}', logged=each)) for each in logged),
        _ended(event, Result(error, function_error="Unhandled")),
    ]
    redactor = Redactor(["password"])
    rows = [rows_of(each, 1, redactor)[0] for each in all_ended]
    assert [row.error[:990] for row in rows] == ["x" * 990, "x" * 990, ""]
    assert "s3c" not in repr([rows, _records(monkeypatch, *all_ended)])


def test_a_failure_on_another_machine_waits_for_no_log_of_this_one(tmp_path: Path) -> None:
    descriptions = InvocationDescriptions(lambda function: None, lambda function: tmp_path / "log", Redactor(()))
    ended = _ended(result=Result(b'{"statusCode": 500}', logged=("KeyError", "'x'")))
    description = descriptions.describe(ended, runs_again=False, is_last_try=False)
    assert description is not None and description.fields["error_type"] == "KeyError"


def test_lines_and_tracebacks_as_text_have_no_secret_either() -> None:
    error = {"errorType": "E", "errorMessage": "no hunter2", "stackTrace": ["  at hunter2\n"]}

    async def work() -> list[str]:
        texts: list[str] = []
        lines = RequestLines(
            lambda function: None, lambda function: Path("/none"), redactor=Redactor(["password"]), write=texts.append
        )
        lines.add(_ended(b'{"password": "hunter2"}', Result(json.dumps(error).encode(), function_error="Unhandled")))
        lines.flush()
        return texts[0].splitlines()

    line, trace = asyncio.run(work())
    assert (_without_time(line), trace) == ("f failed 5 ms E: no [redacted]", "  at [redacted]")


def test_records_that_are_left_out_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    records = _records(monkeypatch, *(_ended(result=Result(b"1")) for _ in range(60)))
    assert [each["event"] for each in records[:51]] == ["invocation"] * 50 + ["skipped"]
    assert records[50]["invocations"] == 10
