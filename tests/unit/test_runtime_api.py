"""The Runtime API's endpoint: states, statuses, error documents, odd HTTP. A real socket, no process."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from thawd.environments.runtime_api.http import MAX_CONNECTIONS, MAX_HEAD_BYTES
from thawd.invocation import MAX_PAYLOAD_BYTES
from thawd.wire import frames

from .runtime_api_house import ID, NEXT, RUNTIME, Client, House, invoked, play, ready


def test_the_first_next_makes_it_ready_and_brings_the_invocation_with_its_headers() -> None:
    async def scene(house: House) -> None:
        client = await ready(house)
        assert house.told == [(frames.READY, {}, b"")]
        house.invoke(b'{"a": 1}', trace="Root=1-2-3", client='{\n"custom": {"k": "\u00e4\\n"}}')
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, b'{"a": 1}')
        headers = answer.headers
        assert headers["lambda-runtime-aws-request-id"] == ID
        assert headers["lambda-runtime-invoked-function-arn"] == "arn:f"
        assert headers["lambda-runtime-trace-id"] == "Root=1-2-3"
        assert json.loads(headers["lambda-runtime-client-context"]) == {"custom": {"k": "ä\n"}}
        assert int(headers["lambda-runtime-deadline-ms"]) > 1_700_000_000_000
        assert headers["content-type"] == "application/json"
        assert "lambda-runtime-cognito-identity" not in headers

    play(scene)


def test_a_response_is_passed_on_when_the_next_invocation_is_asked_for() -> None:
    async def scene(house: House) -> None:
        client = await invoked(house)
        answer = await client.ask("POST", f"{RUNTIME}invocation/{ID}/response", b"[1]")
        assert (answer.status, json.loads(answer.body)) == (202, {"status": "OK"})
        assert not house.answers
        client.send("GET", NEXT)
        await house.until(lambda: house.answers)
        (head, body), *_ = house.answers
        assert (body, head["failed"]) == (b"[1]", False)
        assert head["duration_ms"] > 0

    play(scene)


def test_a_response_counts_when_the_program_ends_after_it() -> None:
    async def scene(house: House) -> None:
        client = await invoked(house)
        await client.ask("POST", f"{RUNTIME}invocation/{ID}/response", b"[1]")
        house.api.runtime_ended()
        assert [body for _, body in house.answers] == [b"[1]"]
        assert not house.lost.is_set()
        client.writer.close()
        await house.lost.wait()

    play(scene)


def test_an_error_is_passed_on_as_it_is() -> None:
    async def scene(house: House) -> None:
        client = await invoked(house)
        document = b'{"errorType":"T","errorMessage":"m","stackTrace":[]}'
        answer = await client.ask("POST", f"{RUNTIME}invocation/{ID}/error", document)
        assert answer.status == 202
        client.send("GET", NEXT)
        await house.until(lambda: house.answers)
        assert house.answers[0][0]["failed"]
        assert house.answers[0][1] == document

    play(scene)


def test_an_error_without_a_document_gets_one_of_its_header() -> None:
    async def scene(house: House) -> None:
        client = await invoked(house)
        await client.ask("POST", f"{RUNTIME}invocation/{ID}/error", b"", Lambda_Runtime_Function_Error_Type="My.Type")
        client.send("GET", NEXT)
        await house.until(lambda: house.answers)
        assert json.loads(house.answers[0][1])["errorType"] == "My.Type"

    play(scene)


def test_any_bytes_may_be_the_response() -> None:
    async def scene(house: House) -> None:
        client = await invoked(house)
        await client.ask("POST", f"{RUNTIME}invocation/{ID}/response", b"\xff\x00 no JSON")
        client.send("GET", NEXT)
        await house.until(lambda: house.answers)
        assert house.answers[0][1] == b"\xff\x00 no JSON"

    play(scene)


def test_a_program_that_lost_the_invocation_gets_it_again() -> None:
    async def scene(house: House) -> None:
        first = await invoked(house)
        first.writer.close()
        again = await (await house.client()).ask("GET", NEXT)
        assert again.headers["lambda-runtime-aws-request-id"] == ID

    play(scene)


def test_an_invocation_waits_for_a_program_whose_connection_broke_while_it_waited() -> None:
    async def scene(house: House) -> None:
        first = await ready(house)
        first.writer.close()
        while house.api.connections:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)
        house.invoke(b"[7]")
        assert (await (await house.client()).ask("GET", NEXT)).body == b"[7]"

    play(scene)


@pytest.mark.parametrize("operation", ["response", "error"])
def test_a_wrong_request_id_is_400(operation: str) -> None:
    async def scene(house: House) -> None:
        client = await ready(house)
        for identifier in ("nonsense", ID):
            answer = await (await house.client()).ask("POST", f"{RUNTIME}invocation/{identifier}/{operation}", b"1")
            assert (answer.status, answer.error) == (400, "InvalidRequestID")
        house.invoke()
        await client.answer()
        answer = await client.ask("POST", f"{RUNTIME}invocation/other/{operation}", b"1")
        assert (answer.status, answer.error) == (400, "InvalidRequestID")
        assert not house.answers

    play(scene)


@pytest.mark.parametrize("operation", ["response", "error"])
def test_a_second_answer_is_403_and_changes_nothing(operation: str) -> None:
    async def scene(house: House) -> None:
        client = await invoked(house)
        await client.ask("POST", f"{RUNTIME}invocation/{ID}/response", b"1")
        answer = await client.ask("POST", f"{RUNTIME}invocation/{ID}/{operation}", b"2")
        assert (answer.status, answer.error) == (403, "InvalidStateTransition")
        client.send("GET", NEXT)
        await house.until(lambda: house.answers)
        assert [body for _, body in house.answers] == [b"1"]

    play(scene)


def test_a_late_answer_to_the_same_request_id_is_not_taken_for_the_next_invocations() -> None:
    """Retries of an asynchronous event carry one id."""

    async def scene(house: House) -> None:
        client = await invoked(house)
        await client.ask("POST", f"{RUNTIME}invocation/{ID}/response", b"1")
        client.send("GET", NEXT)
        await house.until(lambda: house.answers)
        late = await (await house.client()).ask("POST", f"{RUNTIME}invocation/{ID}/response", b"2")
        assert (late.status, late.error) == (403, "InvalidStateTransition")

    play(scene)


def test_a_response_too_large_is_413_and_an_error_for_the_caller_and_one_that_is_not_passes() -> None:
    async def scene(house: House) -> None:
        client = await invoked(house)
        path = f"{RUNTIME}invocation/{ID}/response"
        answer = await client.ask("POST", path, b"x" * (MAX_PAYLOAD_BYTES + 1))
        assert (answer.status, answer.error) == (413, "RequestEntityTooLarge")
        client.send("GET", NEXT)
        await house.until(lambda: house.answers)
        head, body = house.answers[0]
        assert head["failed"]
        assert json.loads(body)["errorType"] == "Function.ResponseSizeTooLarge"
        house.invoke()
        await client.answer()
        assert (await client.ask("POST", path, b"x" * MAX_PAYLOAD_BYTES)).status == 202

    play(scene)


def test_an_init_error_is_told_with_its_document_once_the_program_has_ended() -> None:
    async def scene(house: House) -> None:
        client = await house.client()
        document = b'{"errorType":"Runtime.X","errorMessage":"no"}'
        answer = await client.ask("POST", RUNTIME + "init/error", document)
        assert (answer.status, json.loads(answer.body)) == (202, {"status": "OK"})
        again = await client.ask("POST", RUNTIME + "init/error", document)
        assert (again.status, again.error) == (403, "InvalidStateTransition")
        assert (await client.ask("GET", NEXT)).status == 403
        assert not house.told
        house.api.runtime_ended()
        assert house.told == [(frames.INIT_ERROR, {"message": "Runtime.X: no"}, document)]

    play(scene)


def test_an_init_error_of_a_program_that_does_not_end_is_told_all_the_same() -> None:
    async def scene(house: House) -> None:
        await (await house.client()).ask("POST", RUNTIME + "init/error", b"not JSON")
        await house.until(lambda: house.told)
        assert house.told == [(frames.INIT_ERROR, {"message": "not JSON"}, b"not JSON")]

    play(scene)


def test_an_init_error_after_init_is_403() -> None:
    async def scene(house: House) -> None:
        await ready(house)
        answer = await (await house.client()).ask("POST", RUNTIME + "init/error", b"{}")
        assert (answer.status, answer.error) == (403, "InvalidStateTransition")

    play(scene)


def test_restore_next_is_answered_at_once_where_the_program_was_told_to_expect_one() -> None:
    async def scene(house: House) -> None:
        client = await house.client()
        assert (await client.ask("GET", RUNTIME + "restore/next")).status == 200
        assert (await client.ask("GET", RUNTIME + "restore/next")).status == 403
        client.send("GET", NEXT)
        await house.until(lambda: house.told)

    play(scene, snap_start=True)


def test_restore_next_is_403_where_it_was_not() -> None:
    async def scene(house: House) -> None:
        client = await house.client()
        answer = await client.ask("GET", RUNTIME + "restore/next")
        assert (answer.status, answer.error) == (403, "InvalidStateTransition")
        answer = await client.ask("POST", RUNTIME + "restore/error", b"{}")
        assert (answer.status, answer.error) == (403, "InvalidStateTransition")

    play(scene)


def test_a_restore_error_fails_the_start() -> None:
    async def scene(house: House) -> None:
        client = await house.client()
        await client.ask("GET", RUNTIME + "restore/next")
        document = b'{"errorType":"Runtime.AfterRestoreError","errorMessage":"hook"}'
        assert (await client.ask("POST", RUNTIME + "restore/error", document)).status == 202
        await house.until(lambda: house.told)
        assert house.told[0][0] == frames.INIT_ERROR
        assert house.told[0][2] == document

    play(scene, snap_start=True)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/2018-06-01/runtime/",
        "/2018-06-01/runtime/invocation/",
        NEXT + "/more",
        "/2015-03-31/functions",
        "/next?x",
    ],
)
def test_an_unknown_path_is_404(path: str) -> None:
    async def scene(house: House) -> None:
        assert (await (await house.client()).ask("GET", path)).status == 404

    play(scene)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", NEXT), ("GET", f"{RUNTIME}invocation/{ID}/response"), ("GET", RUNTIME + "init/error"), ("PUT", NEXT)],
)
def test_a_wrong_method_is_405(method: str, path: str) -> None:
    async def scene(house: House) -> None:
        answer = await (await house.client()).ask(method, path, b"")
        assert answer.status == 405
        assert answer.headers["allow"] in ("GET", "POST")

    play(scene)


def test_a_streamed_response_is_gathered() -> None:
    async def scene(house: House) -> None:
        client = await invoked(house)
        client.send(
            "POST",
            f"{RUNTIME}invocation/{ID}/response",
            Transfer_Encoding="chunked",
            Lambda_Runtime_Function_Response_Mode="streaming",
        )
        for chunk in (b"one ", b"two ", b"three"):
            client.writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            await client.writer.drain()
        client.writer.write(b"0\r\n\r\n")
        assert (await client.answer()).status == 202
        client.send("GET", NEXT)
        await house.until(lambda: house.answers)
        assert house.answers[0][1] == b"one two three"

    play(scene)


def test_a_streamed_response_that_breaks_off_is_an_error_by_its_trailers() -> None:
    async def scene(house: House) -> None:
        client = await invoked(house)
        client.send(
            "POST",
            f"{RUNTIME}invocation/{ID}/response",
            Transfer_Encoding="chunked",
            Lambda_Runtime_Function_Response_Mode="streaming",
            Trailer="Lambda-Runtime-Function-Error-Type, Lambda-Runtime-Function-Error-Body",
        )
        document = b'{"errorType":"Broken","errorMessage":"half"}'
        client.writer.write(b"4\r\nhalf\r\n0\r\nLambda-Runtime-Function-Error-Type: Broken\r\n")
        client.writer.write(b"Lambda-Runtime-Function-Error-Body: " + base64.b64encode(document) + b"\r\n\r\n")
        assert (await client.answer()).status == 202
        client.send("GET", NEXT)
        await house.until(lambda: house.answers)
        assert house.answers[0][0]["failed"]
        assert house.answers[0][1] == document

    play(scene)


STREAMING = {"Lambda_Runtime_Function_Response_Mode": "streaming", "Transfer_Encoding": "chunked"}


async def streaming(house: House, *, limit_bytes: int = 1000, content_type: str = "text/plain") -> Client:
    """A program that has begun to stream the answer of an invocation that is wanted part by part."""
    client = await ready(house)
    house.invoke(stream=limit_bytes)
    await client.answer()
    client.send("POST", f"{RUNTIME}invocation/{ID}/response", Content_Type=content_type, **STREAMING)
    return client


def parts(house: House) -> list[tuple[str, bytes]]:
    return [(head["type"], body) for kind, head, body in house.told if kind == frames.PART]


def test_parts_of_a_streamed_response_are_passed_on_as_they_come_where_they_are_wanted() -> None:
    async def scene(house: House) -> None:
        client = await streaming(house)
        for number in range(3):
            client.writer.write(b"1\r\n%d\r\n" % number)
            await house.until(lambda number=number: len(parts(house)) == number + 1)  # type: ignore[misc]
        client.writer.write(b"0\r\n\r\n")
        assert (await client.answer()).status == 202
        client.send("GET", NEXT)
        await house.until(lambda: house.answers)
        assert parts(house) == [("text/plain", b"0"), ("text/plain", b"1"), ("text/plain", b"2")]
        head, body = house.answers[0]
        assert (body, head["failed"], head["type"]) == (b"", False, "text/plain")

    play(scene)


def test_a_sender_that_is_paused_waits() -> None:
    async def scene(house: House) -> None:
        client = await streaming(house, limit_bytes=1 << 30)
        client.writer.write(b"1\r\nx\r\n")
        await house.until(lambda: parts(house))
        house.api.pause()
        before = len(parts(house))
        chunk = b"x" * (1 << 20)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                for _ in range(64):
                    client.writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                    await client.writer.drain()
        assert len(parts(house)) <= before + 1
        house.api.resume()
        await client.writer.drain()
        await house.until(lambda: sum(len(body) for _, body in parts(house)) > 1 << 20)

    play(scene)


def test_a_sender_that_is_paused_by_its_last_part_is_heard_again() -> None:
    async def scene(house: House) -> None:
        client = await streaming(house)
        house.on_part = house.api.pause  # as a stream does whose client is behind
        client.writer.write(b"1\r\nx\r\n0\r\n\r\n")
        assert (await client.answer()).status == 202
        client.send("GET", NEXT)
        await house.until(lambda: house.answers)

    play(scene)


def test_a_streamed_response_over_its_limit_is_cut_and_an_error() -> None:
    async def scene(house: House) -> None:
        client = await streaming(house, limit_bytes=10)
        for _ in range(4):
            client.writer.write(b"4\r\nfour\r\n")
            await client.writer.drain()
        client.writer.write(b"0\r\n\r\n")
        assert (await client.answer()).status == 413
        client.send("GET", NEXT)
        await house.until(lambda: house.answers)
        assert house.answers[0][0]["failed"]
        assert json.loads(house.answers[0][1])["errorType"] == "Function.ResponseSizeTooLarge"
        assert len(b"".join(body for _, body in parts(house))) <= 10

    play(scene)


def test_a_streamed_response_that_fails_after_its_first_part_is_an_error() -> None:
    async def scene(house: House) -> None:
        client = await streaming(house)
        client.writer.write(b"4\r\nhalf\r\n0\r\nLambda-Runtime-Function-Error-Type: Broken\r\n\r\n")
        assert (await client.answer()).status == 202
        client.send("GET", NEXT)
        await house.until(lambda: house.answers)
        assert parts(house) == [("text/plain", b"half")]
        assert house.answers[0][0]["failed"]
        assert json.loads(house.answers[0][1])["errorType"] == "Broken"

    play(scene)


def test_a_connection_lost_in_the_middle_of_a_streamed_response_is_an_error() -> None:
    async def scene(house: House) -> None:
        client = await streaming(house)
        client.writer.write(b"4\r\nhalf\r\n")
        await house.until(lambda: parts(house))
        client.writer.close()
        (await house.client()).send("GET", NEXT)
        await house.until(lambda: house.answers)
        assert house.answers[0][0]["failed"]
        assert json.loads(house.answers[0][1])["errorType"] == "Runtime.TruncatedResponse"

    play(scene)


def test_what_follows_a_response_that_was_cut_counts() -> None:
    async def scene(house: House) -> None:
        client = await streaming(house)
        client.writer.close()
        again = await house.client()
        again.send("GET", NEXT)
        await house.until(lambda: house.answers)
        house.invoke(b"2", id="second")
        await again.answer()
        await again.ask("POST", f"{RUNTIME}invocation/second/response", b"[2]")
        house.api.runtime_ended()
        assert [body for _, body in house.answers[1:]] == [b"[2]"]

    play(scene)


@pytest.mark.parametrize(("method", "headers"), [("GET", {}), ("POST", {"Origin": "http://example.com"})])
def test_a_streamed_request_that_is_refused_changes_nothing(method: str, headers: dict[str, str]) -> None:
    async def scene(house: House) -> None:
        client = await ready(house)
        house.invoke(stream=1000)
        await client.answer()
        client.send(method, f"{RUNTIME}invocation/{ID}/response", **STREAMING, **headers)
        client.writer.write(b"4\r\nhalf\r\n0\r\n\r\n")
        assert (await client.answer()).status in (403, 405)
        assert not parts(house)
        assert (await client.ask("POST", f"{RUNTIME}invocation/{ID}/response", b"1")).status == 202

    play(scene)


def test_while_a_response_is_streamed_another_answer_is_403() -> None:
    async def scene(house: House) -> None:
        client = await streaming(house)
        client.writer.write(b"4\r\nhalf\r\n")
        await house.until(lambda: parts(house))
        other = await house.client()
        for operation in ("response", "error"):
            answer = await other.ask("POST", f"{RUNTIME}invocation/{ID}/{operation}", b"1")
            assert (answer.status, answer.error) == (403, "InvalidStateTransition")
        client.writer.write(b"0\r\n\r\n")
        assert (await client.answer()).status == 202

    play(scene)


@pytest.mark.parametrize("content_type", ["", "text/plain\tx", "x" * 300])
def test_a_content_type_that_cannot_be_a_header_is_bytes(content_type: str) -> None:
    async def scene(house: House) -> None:
        client = await streaming(house, content_type=content_type)
        client.writer.write(b"4\r\nhalf\r\n0\r\n\r\n")
        await client.answer()
        assert parts(house) == [("application/octet-stream", b"half")]

    play(scene)


def test_an_unknown_response_mode_is_400() -> None:
    async def scene(house: House) -> None:
        client = await invoked(house)
        path = f"{RUNTIME}invocation/{ID}/response"
        answer = await client.ask("POST", path, b"1", Lambda_Runtime_Function_Response_Mode="sometimes")
        assert (answer.status, answer.error) == (400, "InvalidFunctionResponseMode")
        assert (await client.ask("POST", path, b"1")).status == 202

    play(scene)


def test_a_client_that_expects_100_is_told_to_continue() -> None:
    async def scene(house: House) -> None:
        client = await invoked(house)
        client.send("POST", f"{RUNTIME}invocation/{ID}/response", Content_Length="1", Expect="100-continue")
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(b"1")
        assert (await client.answer()).status == 202

    play(scene)


def test_an_upgrade_is_not_followed_and_the_request_answered() -> None:
    async def scene(house: House) -> None:
        client = await house.client()
        client.send("GET", NEXT, Connection="Upgrade, HTTP2-Settings", Upgrade="h2c", HTTP2_Settings="AAMAAABk")
        await house.until(lambda: house.told)
        house.invoke(b"[1]")
        assert (await client.answer()).body == b"[1]"
        client.send("POST", f"{RUNTIME}invocation/{ID}/response", b"1", Connection="Upgrade", Upgrade="h2c")
        assert (await client.answer()).status == 202

    play(scene)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def scene(house: House) -> None:
        client = await ready(house)
        for _ in range(2000):
            client.send("GET", "/nowhere")
        client.send("POST", RUNTIME + "init/error", b"{}")
        house.invoke(b"[1]")
        statuses = [(await client.answer()).status for _ in range(2002)]
        assert statuses == [200, *[404] * 2000, 403]

    play(scene)


def test_http_1_0_and_connection_close_end_the_connection_after_the_answer() -> None:
    async def scene(house: House) -> None:
        for request in (b"GET /x HTTP/1.0\r\n\r\n", b"GET /x HTTP/1.1\r\nConnection: close\r\n\r\n"):
            said = await (await house.client()).raw(request)
            assert said.startswith(b"HTTP/1.1 404 ")
            assert b"Connection: close" in said

    play(scene)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_is_400_and_ends_that_connection_alone(nonsense: bytes) -> None:
    async def scene(house: House) -> None:
        good = await ready(house)
        said = await (await house.client()).raw(nonsense)
        assert said.startswith(b"HTTP/1.1 400 ")
        house.invoke(b"[1]")
        assert (await good.answer()).body == b"[1]"

    play(scene)


def test_a_failure_of_the_platforms_own_is_500_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    async def scene(house: House) -> None:
        def fail(request: object, operation: str) -> None:
            raise RuntimeError("a bug")

        house.api.extensions.handle = fail  # type: ignore[assignment]
        said = await (await house.client()).raw(b"GET /2020-01-01/extension/event/next HTTP/1.1\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 500 ")

    play(scene)
    assert "a request to the Runtime API failed: RuntimeError('a bug')" in capsys.readouterr().err


def test_headers_without_end_are_431() -> None:
    async def scene(house: House) -> None:
        client = await house.client()
        client.writer.write(b"GET / HTTP/1.1\r\nX: ")
        line = b"x" * (1 << 16)
        for _ in range(MAX_HEAD_BYTES // len(line) + 2):
            client.writer.write(line)
        try:
            said = await client.reader.read()
        except ConnectionResetError:
            return  # the answer was overtaken by the reset that unread bytes cause
        assert said.startswith(b"HTTP/1.1 431 ")

    play(scene)


def test_a_large_header_passes() -> None:
    async def scene(house: House) -> None:
        client = await invoked(house)
        cause = {"Lambda_Runtime_Function_XRay_Error_Cause": "x" * (1 << 20)}
        assert (await client.ask("POST", f"{RUNTIME}invocation/{ID}/error", b"{}", **cause)).status == 202

    play(scene)


def test_a_request_in_pieces_of_a_byte_is_a_request() -> None:
    async def scene(house: House) -> None:
        client = await invoked(house)
        request = f"POST {RUNTIME}invocation/{ID}/response HTTP/1.1\r\nContent-Length: 3\r\n\r\n[1]".encode()
        for at in range(len(request)):
            client.writer.write(request[at : at + 1])
            await client.writer.drain()
            await asyncio.sleep(0)
        assert (await client.answer()).status == 202

    play(scene)


def test_connections_beyond_the_limit_are_refused_and_others_go_on() -> None:
    async def scene(house: House) -> None:
        clients = [await house.client() for _ in range(MAX_CONNECTIONS)]
        assert (await clients[-1].ask("GET", "/x")).status == 404
        surplus = await house.client()
        try:
            assert await surplus.raw(b"GET /x HTTP/1.1\r\n\r\n") == b""
        except ConnectionResetError:
            pass
        assert (await clients[0].ask("GET", "/x")).status == 404

    play(scene)


@pytest.mark.parametrize("path", ["/2022-07-01/telemetry", "/2020-08-15/logs"])
def test_the_telemetry_api_is_not_there_and_says_so_as_awss_emulator_does(path: str) -> None:
    async def scene(house: House) -> None:
        answer = await (await house.client()).ask("PUT", path, b"{}")
        assert answer.status == 202
        assert answer.error in ("Telemetry.NotSupported", "Logs.NotSupported")

    play(scene)


def test_a_page_in_a_browser_gets_nothing() -> None:
    async def scene(house: House) -> None:
        answer = await (await house.client()).ask("GET", NEXT, Origin="http://example.com")
        assert (answer.status, answer.error) == (403, "Runtime.ForeignOrigin")
        assert not house.told

    play(scene)
