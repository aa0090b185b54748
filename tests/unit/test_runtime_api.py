"""`thawd.environments.runtime_api.endpoint`: states, statuses, errors. A real socket without a process."""

from __future__ import annotations

import asyncio
import json

import pytest

from thawd.environments.runtime_api.messages import event_of
from thawd.invocation import MAX_PAYLOAD_BYTES
from thawd.wire import frames

from .runtime_api_house import ID, NEXT, RUNTIME, House, invoked, play, ready


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
    """Retries of an asynchronous event have the same request id."""

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


@pytest.mark.parametrize("path", ["/2022-07-01/telemetry", "/2020-08-15/logs"])
def test_the_telemetry_api_is_not_there_and_says_so_as_awss_emulator_does(path: str) -> None:
    async def scene(house: House) -> None:
        answer = await (await house.client()).ask("PUT", path, b"{}")
        assert answer.status == 202
        assert answer.error in ("Telemetry.NotSupported", "Logs.NotSupported")

    play(scene)


def test_the_tenant_of_an_invocation_is_a_header_of_the_next_event() -> None:
    head = {"id": ID, "arn": "arn:aws:lambda:us-east-1:000000000000:function:f", "left_ms": 1000}
    assert b"Lambda-Runtime-Aws-Tenant-Id: blue\r\n" in event_of({**head, "tenant": "blue"}, b"{}").headers
    assert b"Tenant" not in event_of(head, b"{}").headers
