"""`thawd.streaming`, as handlers use it, and the runtime that runs them, on every installed interpreter."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.unit.interpreters_here import INTERPRETERS
from tests.unit.runtime_process import Process, ready, running
from thawd import streaming
from thawd.streaming import Stream, StreamError
from thawd.wire import frames

# --- the stream ---


def test_parts_go_out_as_they_are_written_and_large_ones_in_pieces() -> None:
    sent: list[bytes] = []
    stream = Stream(sent.append)
    stream.write("é")
    stream.write(bytearray(b"b"))
    stream.write(memoryview(b"cd")[1:])
    assert sent == ["é".encode(), b"b", b"d"]
    stream.write(b"x" * 200_000)
    assert b"".join(sent[3:]) == b"x" * 200_000
    assert max(map(len, sent)) == 65_536


def test_the_prelude_goes_before_the_first_part_or_alone() -> None:
    sent: list[bytes] = []
    stream = Stream(sent.append)
    stream.set_status(404, {"X": "1"}, cookies=("a=1",))
    assert sent == []
    stream.write("x")
    head, _, rest = sent[0].partition(b"\0" * 8)
    assert json.loads(head) == {"statusCode": 404, "headers": {"X": "1"}, "cookies": ["a=1"]}
    assert (rest, sent[1:], stream.content_type) == (b"", [b"x"], streaming.HTTP_RESPONSE)
    for end in (Stream.close, Stream.flush):
        sent.clear()
        stream = Stream(sent.append)
        stream.set_status(204)
        end(stream)
        assert sent == [b'{"statusCode": 204, "headers": {}}' + b"\0" * 8]


def test_misuse_is_told_at_once() -> None:
    stream = Stream(lambda data: None)
    for status in (99, 199, 600):
        with pytest.raises(ValueError, match="200 to 599"):
            stream.set_status(status)
    for wrong in ("200", True, None):
        with pytest.raises(TypeError):
            stream.set_status(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        stream.set_status(200, ["x"])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        stream.set_status(200, cookies=[1])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        stream.write(7)  # type: ignore[arg-type]
    for content_type in ("", "a\nb", "ü"):
        with pytest.raises(ValueError, match="printable"):
            stream.set_content_type(content_type)
    stream.write("x")
    with pytest.raises(StreamError, match="before the first write"):
        stream.set_status(200)
    with pytest.raises(StreamError, match="before the first write"):
        stream.set_content_type("text/plain")
    stream.close()
    with pytest.raises(StreamError, match="the handler has ended"):
        stream.write("late")
    stream = Stream(lambda data: None)
    stream.set_status(200)
    with pytest.raises(StreamError, match="headers"):
        stream.set_content_type("text/plain")


def test_parts_of_several_threads_stay_whole() -> None:
    sent: list[bytes] = []
    stream = Stream(sent.append)
    threads = [threading.Thread(target=stream.write, args=(bytes([n]) * 200_000,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = b"".join(sent)
    assert len(whole) == 800_000
    assert sum(a != b for a, b in itertools.pairwise(whole)) == 3


# --- called as an ordinary handler ---


def test_called_as_an_ordinary_handler_it_returns_the_whole_answer() -> None:
    @streaming.handler
    def plain(event: Any, stream: Stream, context: Any) -> None:
        """Call the handler without streaming and return what it does."""
        stream.write(event)
        stream.write("!")

    @streaming.handler
    def http(event: Any, stream: Stream, context: Any) -> None:
        stream.set_status(201, {"x": "1"})
        stream.write(event)

    assert (plain("hi", None), plain.__name__, plain.__doc__) == (
        "hi!",
        "plain",
        "Call the handler without streaming and return what it does.",
    )
    assert http("hi", None) == {"statusCode": 201, "headers": {"x": "1"}, "body": "hi", "isBase64Encoded": False}
    assert http(b"\xff", None)["isBase64Encoded"] is True
    assert plain(b"\xff", None) == {
        "statusCode": 200,
        "headers": {"content-type": "application/octet-stream"},
        "body": "/yE=",
        "isBase64Encoded": True,
    }


def test_what_a_handler_returns_is_written() -> None:
    assert streaming.handler(lambda event, context: iter([event, b"b"]))("a", None) == "ab"
    assert streaming.handler(lambda event, context: event)("a", None) == "a"
    assert streaming.handler(lambda event, stream, context: stream.write("1") or ["2", b"3"])("a", None) == "123"

    class Holder:
        def method(self, event: Any, context: Any) -> Any:
            yield event

        def three(self, event: Any, stream: Stream, context: Any) -> None:
            stream.write(event)

    assert streaming.handler(Holder().method)("a", None) == "a"
    assert streaming.handler(Holder().three)("a", None) == "a"
    with pytest.raises(TypeError, match="dict"):
        streaming.handler(lambda event, context: {"a": 1})("a", None)


# --- in the runtime ---

CODE = """
from thawd import streaming

@streaming.handler
def handler(event, stream, context):
    if "status" in event:
        stream.set_status(event["status"], {"id": context.aws_request_id})
    for part in event.get("parts", []):
        stream.write(part)
    if "fill" in event:
        try:
            stream.write(b"x" * event["fill"])
        except BaseException:
            pass  # a handler that goes on all the same
    if "raise" in event:
        raise ValueError("no such luck")
    print("done", context.get_remaining_time_in_millis() > 0)
"""


def parts_of(process: Process, event: Any, **head: Any) -> tuple[list[tuple[str, bytes]], dict[str, Any], bytes]:
    """Return the parts with their types, and the RESULT."""
    whole = {"id": "rid-1", "arn": "arn:f", "left_ms": 3000, **head}
    process.control.sendall(frames.encode(frames.INVOKE, whole, json.dumps(event).encode()))
    parts = []
    while True:
        frame = process.receive()
        assert frame is not None, process.printed()
        if frame.kind == frames.RESULT:
            return parts, frame.head, frame.body
        assert frame.kind == frames.PART
        parts.append((frame.head["type"], frame.body))


@pytest.fixture(params=INTERPRETERS, ids=lambda python: Path(python).parent.parent.name)
def process(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with running(tmp_path, CODE, python=str(request.param)) as started:
        yield ready(started)


def test_parts_come_as_frames_where_they_are_wanted(process: Process) -> None:
    parts, head, body = parts_of(process, {"parts": ["a", "b"]}, stream=100)
    assert parts == [("application/octet-stream", b"a"), ("application/octet-stream", b"b")]
    assert (head["failed"], head["type"], body) == (False, "application/octet-stream", b"")
    parts, head, _ = parts_of(process, {"status": 200}, stream=100)
    assert [kind for kind, _ in parts] == [streaming.HTTP_RESPONSE]
    assert json.loads(parts[0][1].removesuffix(b"\0" * 8)) == {"statusCode": 200, "headers": {"id": "rid-1"}}


def test_the_answer_comes_whole_where_it_is_not(process: Process) -> None:
    parts, head, body = parts_of(process, {"parts": ["a", "b"]})
    assert (parts, head["failed"], head["type"], body) == ([], False, "application/octet-stream", b"ab")


def test_a_failure_halfway_is_an_error_document_after_the_parts(process: Process) -> None:
    parts, head, body = parts_of(process, {"parts": ["a"], "raise": 1}, stream=100)
    assert ([data for _, data in parts], head["failed"], "type" in head) == ([b"a"], True, False)
    assert json.loads(body)["errorType"] == "ValueError"
    assert "[ERROR] ValueError: no such luck" in process.printed()
    assert parts_of(process, {"parts": ["next"]}, stream=100)[1]["failed"] is False


@pytest.mark.parametrize("stream", [{}, {"stream": 70_000}])
def test_a_handler_that_ignores_the_limit_fails_all_the_same(process: Process, stream: dict[str, int]) -> None:
    parts, head, body = parts_of(process, {"fill": 6_300_000}, **stream)
    assert head["failed"] is True
    assert json.loads(body)["errorType"] == "Function.ResponseSizeTooLarge"
    assert sum(len(data) for _, data in parts) <= 70_000


def test_ordinary_handlers_import_nothing_of_it(tmp_path: Path) -> None:
    code = "import sys\ndef handler(event, context):\n    return sorted(n for n in sys.modules if 'stream' in n)\n"
    with running(tmp_path, code) as started:
        failed, loaded = ready(started).invoke({})
    assert (failed, [name for name in loaded if name.startswith("thawd")]) == (False, [])
