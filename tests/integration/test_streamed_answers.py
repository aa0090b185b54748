"""Response streaming end to end: the API through boto3, function URLs through plain sockets and http.client."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from thawd.gateway.function_urls.table import url_id

from .conftest import DEADLINE_S, Project, Running, eventually

CODE = """
import hashlib, json, os, time
from thawd import streaming

def wait_for(path):
    end = time.monotonic() + 20
    while not os.path.exists(path):
        assert time.monotonic() < end, "nobody made " + path
        time.sleep(0.005)

@streaming.handler
def handler(event, stream, context):
    event = json.loads(event["body"]) if "body" in event else event
    if event.get("print"):
        print("said", event["print"])
    if "status" in event:
        stream.set_status(event["status"], {"Content-Type": "text/plain", "X-One": "1"}, cookies=["a=1", "b=2"])
    if "type" in event:
        stream.set_content_type(event["type"])
    if event.get("raise") == "before":
        raise ValueError("no such luck")
    for part in event.get("parts", []):
        stream.write(part)
    if "wait" in event:
        wait_for(event["wait"])
        stream.write("waited")
    for number in range(event.get("blocks", 0)):
        stream.write(bytes([number % 256]) * event["block_bytes"])
    if "progress" in event:
        open(event["progress"], "w").write("all written")
    if event.get("raise") == "after":
        raise ValueError("no such luck")
    if "sleep" in event:
        time.sleep(event["sleep"])
    if "exit" in event:
        os._exit(event["exit"])

@streaming.handler
def generator(event, context):
    for part in event["parts"]:
        yield part

def forged(event, context):
    # writes a frame of its own making to the platform, over the channel of the runtime that has called it
    import sys
    frame = sys._getframe()
    while "channel" not in frame.f_locals:
        frame = frame.f_back
    frame.f_locals["channel"].send(14, event["head"], b"x")
    time.sleep(20)  # it is ended meanwhile

def plain(event, context):
    if "raise" in event:
        raise ValueError("no such luck")
    return {"statusCode": 200, "body": "whole"}
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("streaming"))
    project.code(CODE)
    project.config(
        """
        [functions.stream]
        handler = "app.handler"
        timeout_s = 20
        url = { auth_type = "NONE", invoke_mode = "RESPONSE_STREAM", cors = { allow_origins = ["https://a.example"] } }
        [functions.short]
        handler = "app.handler"
        timeout_s = 4
        url = { auth_type = "NONE", invoke_mode = "RESPONSE_STREAM" }
        [functions.whole]
        handler = "app.handler"
        url = { auth_type = "NONE" }
        [functions.generator]
        handler = "app.generator"
        [functions.plain]
        handler = "app.plain"
        url = { auth_type = "NONE", invoke_mode = "RESPONSE_STREAM" }
        [functions.forged]
        handler = "app.forged"
        [functions.primed]
        handler = "app.handler"
        prime = { parts = ["ready"] }
        [functions.recorded]
        handler = "app.handler"
        on_success = "table:seen"
        [routes]
        "POST /two" = "whole"
        "POST /one" = { function = "whole", payload_format = "1.0" }
        [tables.seen]
        """
    )
    with project.up() as server:
        yield server


def streamed(running: Running, function: str, event: Any, **arguments: Any) -> tuple[list[bytes], dict[str, Any], Any]:
    """Invoke and return the chunks, the completion message and the answer."""
    answer = running.client().invoke_with_response_stream(
        FunctionName=function, Payload=json.dumps(event).encode(), **arguments
    )
    chunks, completion = [], None
    for message in answer["EventStream"]:
        assert completion is None, "something came after the completion"
        if "PayloadChunk" in message:
            chunks.append(message["PayloadChunk"]["Payload"])
        completion = message.get("InvokeComplete")
    assert completion is not None
    return chunks, completion, answer


# --- the API ---


def test_parts_come_as_chunks_and_then_the_completion(running: Running) -> None:
    chunks, completion, answer = streamed(running, "stream", {"parts": ["a", "é", "c"]})
    assert b"".join(chunks) == "aéc".encode()
    assert completion == {}
    assert (answer["StatusCode"], answer["ExecutedVersion"]) == (200, "$LATEST")
    assert answer["ResponseStreamContentType"] == "application/vnd.amazon.eventstream"


def test_a_part_arrives_while_the_handler_is_still_running(running: Running, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    answer = running.client().invoke_with_response_stream(
        FunctionName="stream", Payload=json.dumps({"parts": ["first"], "wait": str(go_on)}).encode()
    )
    events = iter(answer["EventStream"])
    assert next(events)["PayloadChunk"]["Payload"] == b"first"
    go_on.touch()
    assert list(events) == [{"PayloadChunk": {"Payload": b"waited"}}, {"InvokeComplete": {}}]


def test_a_generator_streams_what_it_yields(running: Running) -> None:
    assert b"".join(streamed(running, "generator", {"parts": ["x", "y"]})[0]) == b"xy"
    assert streamed(running, "generator", {"parts": []})[:2] == ([], {})


def test_the_log_comes_with_the_completion(running: Running) -> None:
    _, completion, _ = streamed(running, "stream", {"print": "hello", "parts": ["x"]}, LogType="Tail")
    log = base64.b64decode(completion["LogResult"]).decode()
    assert "said hello" in log
    assert "REPORT RequestId" in log


def test_an_http_answer_has_its_prelude_in_the_payload(running: Running) -> None:
    whole = b"".join(streamed(running, "stream", {"status": 201, "parts": ["body"]})[0])
    prelude, _, body = whole.partition(b"\0" * 8)
    assert json.loads(prelude) == {
        "statusCode": 201,
        "headers": {"Content-Type": "text/plain", "X-One": "1"},
        "cookies": ["a=1", "b=2"],
    }
    assert body == b"body"


@pytest.mark.parametrize(("when", "chunks"), [("before", []), ("after", [b"part"])])
def test_a_failure_is_told_with_the_completion(running: Running, when: str, chunks: list[bytes]) -> None:
    got, completion, _ = streamed(running, "stream", {"parts": ["part"], "raise": when})
    assert (got, completion["ErrorCode"]) == (chunks, "ValueError")
    assert json.loads(completion["ErrorDetails"])["errorMessage"] == "no such luck"
    assert streamed(running, "stream", {"parts": ["next"]})[0] == [b"next"]


def test_a_timeout_and_an_exit_halfway_are_told_with_the_completion(running: Running) -> None:
    chunks, completion, _ = streamed(running, "short", {"parts": ["part"], "sleep": 30})
    assert (chunks, completion["ErrorCode"]) == ([b"part"], "Sandbox.Timedout")
    assert "Task timed out after 4.00 seconds" in completion["ErrorDetails"]
    chunks, completion, _ = streamed(running, "stream", {"parts": ["part"], "exit": 3})
    assert (chunks, completion["ErrorCode"]) == ([b"part"], "Runtime.ExitError")


def test_a_handler_that_does_not_stream_is_one_chunk(running: Running) -> None:
    chunks, completion, _ = streamed(running, "plain", {})
    assert (json.loads(b"".join(chunks)), completion) == ({"statusCode": 200, "body": "whole"}, {})
    chunks, completion, _ = streamed(running, "plain", {"raise": 1})
    assert (chunks, completion["ErrorCode"]) == ([], "ValueError")


def test_a_large_answer_arrives_whole(running: Running) -> None:
    chunks, completion, _ = streamed(running, "stream", {"blocks": 300, "block_bytes": 100_000})
    expected = hashlib.sha256(b"".join(bytes([n % 256]) * 100_000 for n in range(300))).hexdigest()
    assert (hashlib.sha256(b"".join(chunks)).hexdigest(), completion) == (expected, {})


def test_an_answer_over_200_mb_is_cut_and_told(running: Running) -> None:
    answer = running.client().invoke_with_response_stream(
        FunctionName="stream", Payload=json.dumps({"blocks": 210, "block_bytes": 1 << 20}).encode()
    )
    size, completion = 0, {}
    for event in answer["EventStream"]:
        size += len(event.get("PayloadChunk", {}).get("Payload", b""))
        completion = event.get("InvokeComplete", completion)
    assert (size, completion["ErrorCode"]) == (200 << 20, "Function.ResponseSizeTooLarge")


def test_errors_of_the_request_are_those_of_invoke(running: Running) -> None:
    with pytest.raises(ClientError) as error:
        streamed(running, "nobody", {})
    assert error.value.response["Error"]["Code"] == "ResourceNotFoundException"
    with pytest.raises(ClientError) as error:
        running.client().invoke_with_response_stream(FunctionName="stream", Payload=b"no json")
    assert error.value.response["Error"]["Code"] == "InvalidRequestContentException"
    with pytest.raises(ClientError) as error:
        streamed(running, "stream", {}, InvocationType="Event")
    assert error.value.response["Error"]["Code"] == "InvalidParameterValueException"
    answer = running.client().invoke_with_response_stream(FunctionName="stream", InvocationType="DryRun")
    assert (answer["StatusCode"], list(answer["EventStream"])) == (204, [])


@pytest.mark.parametrize("head", [None, 7, {}, {"type": 7}, {"type": "a\r\nb: c"}])
def test_a_part_that_the_runtime_has_not_made_ends_the_environment_alone(running: Running, head: Any) -> None:
    for _ in range(2):
        _, completion, _ = streamed(running, "forged", {"head": head})
        assert completion["ErrorCode"] == "Runtime.ExitError"
    answer = running.client().invoke(FunctionName="forged", Payload=json.dumps({"head": {"type": "a/b"}}))
    assert json.loads(answer["Payload"].read())["errorType"] == "Runtime.ExitError"
    assert running.process.poll() is None


# --- functions and clients that do not stream ---


def test_a_buffered_invocation_gets_the_whole_answer(running: Running) -> None:
    answer = running.client().invoke(FunctionName="stream", Payload=b'{"parts": ["a", "b"]}')
    assert (answer["Payload"].read(), "FunctionError" in answer) == (b"ab", False)
    answer = running.client().invoke(FunctionName="stream", Payload=b'{"blocks": 2, "block_bytes": 3}')
    assert answer["Payload"].read() == b"\0\0\0\1\1\1"


def test_a_buffered_answer_has_the_limit_of_buffered_answers(running: Running) -> None:
    answer = running.client().invoke(FunctionName="stream", Payload=b'{"blocks": 7, "block_bytes": 1000000}')
    assert json.loads(answer["Payload"].read())["errorType"] == "Function.ResponseSizeTooLarge"
    assert answer["FunctionError"] == "Unhandled"


@pytest.mark.parametrize("path", ["/one", "/two", f"/_urls/{url_id('whole')}/"])
def test_routes_and_buffered_urls_take_the_prelude_as_status_and_headers(running: Running, path: str) -> None:
    status, headers, body = post(running, path, {"status": 202, "parts": ["x", "y"]})
    assert (status, headers["x-one"], headers.get_all("set-cookie"), body) == (202, "1", ["a=1", "b=2"], b"xy")
    status, headers, body = post(running, path, {"type": "text/csv", "parts": ["x"]})
    assert (status, headers["content-type"], body) == (200, "text/csv", b"x")


def test_an_asynchronous_answer_is_stored_as_text(running: Running) -> None:
    answer = running.client().invoke(FunctionName="recorded", InvocationType="Event", Payload=b'{"parts": ["a", "b"]}')
    key = answer["ResponseMetadata"]["RequestId"]
    assert eventually(lambda: running.project.rows("seen").get(key), what="the row")["value"] == "ab"


def test_a_streaming_function_is_primed_and_frozen_like_any_other(running: Running) -> None:
    assert b"".join(streamed(running, "primed", {"parts": ["p"]})[0]) == b"p"
    told = running.function("primed")
    assert "answer to the priming event differs" not in str(told["start_reason"])
    assert told["start"] == running.function("plain")["start"]


# --- function URLs ---


def post(running: Running, path: str, event: Any, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=60)
    try:
        whole = {"Content-Type": "application/json", **headers}
        connection.request("POST", path, body=json.dumps(event), headers=whole)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


STREAM = f"/_urls/{url_id('stream')}/"


def test_a_url_sends_parts_as_they_come(running: Running, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    connection = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=60)
    event = {"status": 203, "parts": ["first"], "wait": str(go_on)}
    connection.request("POST", STREAM, body=json.dumps(event), headers={"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert (answer.status, answer.headers["x-one"], answer.headers.get_all("set-cookie")) == (203, "1", ["a=1", "b=2"])
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.read1() == b"first"
    go_on.touch()
    assert answer.read() == b"waited"
    connection.close()


def test_a_url_answer_without_a_status_has_its_type(running: Running) -> None:
    status, headers, body = post(running, STREAM, {"parts": ["x"]})
    assert (status, headers["content-type"], body) == (200, "application/octet-stream", b"x")
    status, headers, body = post(running, STREAM, {"type": "text/csv", "parts": ["x"]})
    assert (status, headers["content-type"], body) == (200, "text/csv", b"x")
    assert post(running, STREAM, {})[::2] == (200, b"")
    status, headers, body = post(running, STREAM, {"status": 204, "parts": ["no body"]})
    assert (status, headers["x-one"], body) == (204, "1", b"")


def test_a_failure_before_the_first_part_is_a_502(running: Running) -> None:
    assert post(running, STREAM, {"raise": "before", "status": 200})[::2] == (502, b"Internal Server Error")
    assert post(running, f"/_urls/{url_id('short')}/", {"sleep": 30})[::2] == (502, b"Internal Server Error")


@pytest.mark.parametrize("event", [{"raise": "after"}, {"exit": 3}])
def test_a_failure_halfway_cuts_the_answer_off(running: Running, event: dict[str, Any]) -> None:
    with pytest.raises(http.client.IncompleteRead) as error:
        post(running, STREAM, {"parts": ["part"], **event})
    assert error.value.partial == b"part"
    assert post(running, STREAM, {"parts": ["next"]})[2] == b"next"
    assert not any("ASGI" in line for line in running.output)


def test_a_handler_that_does_not_stream_is_passed_on_as_it_is(running: Running) -> None:
    path = f"/_urls/{url_id('plain')}/"
    status, headers, body = post(running, path, {})
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(body) == {"statusCode": 200, "body": "whole"}


def test_a_broken_prelude_is_a_502(running: Running) -> None:
    event = {"type": "application/vnd.awslambda.http-integration-response", "parts": ["no json", "\0" * 8, "x"]}
    assert post(running, STREAM, event)[::2] == (502, b"Internal Server Error")
    assert post(running, STREAM, {**event, "parts": ["{}"]})[::2] == (502, b"Internal Server Error")
    assert post(running, STREAM, {**event, "parts": ['{"a": 1}\0\0\0', "\0\0\0\0\0", "x"]})[::2] == (200, b"x")


def test_cors_headers_are_on_streamed_answers_too(running: Running) -> None:
    headers = post(running, STREAM, {"parts": ["x"]}, Origin="https://a.example")[1]
    assert headers["access-control-allow-origin"] == "https://a.example"


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def unread_request(running: Running, event: dict[str, Any], *, path: str = STREAM) -> socket.socket:
    """Return a client that has sent a request and does not read."""
    host, port = running.url.removeprefix("http://").split(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    client.connect((host, int(port)))
    body = json.dumps(event).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    client.sendall(f"{head}\r\n\r\n".encode() + body)
    return client


def test_a_client_that_does_not_read_holds_the_function_up_and_no_memory(running: Running, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    event = {"status": 200, "blocks": 40, "block_bytes": 1 << 20}
    assert len(post(running, STREAM, event)[2]) == 40 << 20
    before_kib = resident_kib(running.process.pid)
    with unread_request(running, {**event, "progress": str(progress)}) as client:
        client.recv(100)
        # Another client reads a whole answer meanwhile. This shows that the loop is not blocked, and gives the first
        # stream time.
        assert len(post(running, STREAM, event)[2]) == 40 << 20
        assert not progress.exists()
        assert resident_kib(running.process.pid) - before_kib < 8192
        client.settimeout(DEADLINE_S)
        left = 40 << 20
        while left > 0 and (data := client.recv(1 << 20)):
            left -= len(data)
        assert left <= 0
    eventually(progress.exists, what="the end of the handler")


def test_a_client_that_goes_away_lets_the_function_end(running: Running, tmp_path: Path) -> None:
    """As on Lambda: the function runs to its end, and what it sends after that is dropped."""
    progress = tmp_path / "progress"
    event = {"status": 200, "blocks": 50, "block_bytes": 1 << 20, "progress": str(progress)}
    with unread_request(running, event) as client:
        client.recv(100)
    eventually(progress.exists, what="the end of the handler")
    eventually(lambda: running.function("stream")["environments"]["busy"] == 0, what="an idle environment")


def test_a_client_that_never_reads_meets_the_time_limit(running: Running) -> None:
    event = {"status": 200, "blocks": 100, "block_bytes": 1 << 20}
    timeouts = running.function("short")["timeouts"]
    with unread_request(running, event, path=f"/_urls/{url_id('short')}/") as client:
        client.recv(10)
        eventually(lambda: running.function("short")["timeouts"] == timeouts + 1, what="the end of its time")


def test_a_stop_lets_a_stream_finish(project: Project, tmp_path: Path) -> None:
    project.code(CODE)
    project.config('[functions.stream]\nhandler = "app.handler"\n')
    go_on = tmp_path / "go-on"
    with project.up() as running:
        answer = running.client().invoke_with_response_stream(
            FunctionName="stream", Payload=json.dumps({"parts": ["first"], "wait": str(go_on)}).encode()
        )
        events = iter(answer["EventStream"])
        assert next(events)["PayloadChunk"]["Payload"] == b"first"
        running.process.terminate()
        eventually(lambda: "stopping" in running.output, what="the word of the stop")
        go_on.touch()
        assert list(events) == [{"PayloadChunk": {"Payload": b"waited"}}, {"InvokeComplete": {}}]
        assert running.process.wait(DEADLINE_S) == 0
