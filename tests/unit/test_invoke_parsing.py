"""`thawd.gateway.lambda_api.invoke_request`: names, ARNs, qualifiers, contexts and payloads in requests."""

from __future__ import annotations

import asyncio
import base64
import json
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from tests.unit.execution_fakes import version_of
from thawd.errors import (
    AccessDeniedException,
    InvalidParameterValueException,
    InvalidRequestContentException,
    ResourceNotFoundException,
    ValidationException,
)
from thawd.gateway.http import Budget
from thawd.gateway.lambda_api.invoke import InvokeApi
from thawd.gateway.lambda_api.invoke_request import MAX_CLIENT_CONTEXT_BYTES, check_json, resolve
from thawd.invocation import MAX_ASYNC_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES, Invocation, Result

ARN = "arn:aws:lambda:us-east-1:000000000000:function:f"


def scope(name: str, query: str = "") -> dict[str, Any]:
    return {"path": f"/2015-03-31/functions/{name}/invocations", "query_string": query.encode(), "headers": []}


@pytest.mark.parametrize(
    ("name", "qualifier"),
    [
        ("f", None),
        ("f:$LATEST", "$LATEST"),
        ("f:live", "live"),
        (ARN, None),
        (f"{ARN}:3", "3"),
        ("000000000000:function:f", None),
        ("000000000000:f", None),
        (quote(ARN, safe=""), None),
    ],
)
def test_a_function_goes_by_name_partial_arn_or_arn(name: str, qualifier: str | None) -> None:
    assert resolve(b"", name) == ("f", qualifier)


def test_a_qualifier_may_stand_in_the_query() -> None:
    assert resolve(b"Qualifier=%24LATEST", "f") == ("f", "$LATEST")
    assert resolve(b"Qualifier=", "f") == ("f", None)
    assert resolve(b"Qualifier=3", "f:3") == ("f", "3")


@pytest.mark.parametrize("name", ["", "a b", "f:", "f:a:b", "f\n", "arn:aws:s3:::f", "../f", "ü"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValidationException, match="functionName"):
        resolve(b"", name)


@pytest.mark.parametrize("qualifier", ["a b", "x" * 129, "%C3%BC"])
def test_what_is_no_qualifier_is_refused(qualifier: str) -> None:
    with pytest.raises(ValidationException, match="at 'qualifier'"):
        resolve(f"Qualifier={qualifier}".encode(), "f")


@pytest.mark.parametrize("name", ["x" * 65, "a.b"])
def test_a_name_that_no_function_can_have_is_not_found(name: str) -> None:
    with pytest.raises(ResourceNotFoundException, match="Function not found: arn:aws:lambda:us-east-1:"):
        resolve(b"", name)


@pytest.mark.parametrize("name", ["111111111111:function:f", ARN.replace("0" * 12, "1" * 12)])
def test_another_account_is_refused(name: str) -> None:
    with pytest.raises(AccessDeniedException):
        resolve(b"", name)


def test_another_region_is_told() -> None:
    name = ARN.replace("us-east-1", "eu-west-3")
    with pytest.raises(ResourceNotFoundException, match="Functions from 'eu-west-3' are not reachable in this region"):
        resolve(b"", name)


def test_two_different_qualifiers_are_refused() -> None:
    with pytest.raises(InvalidParameterValueException, match="does not match"):
        resolve(b"Qualifier=live", "f:$LATEST")


@pytest.mark.parametrize("body", [b"{}", b" [1] ", b'"\xc3\xa9"', b"null", b"-1.5e3", b'"\\ud83d\\ude00"'])
def test_json_passes_as_it_is(body: bytes) -> None:
    assert check_json(body) is body


@pytest.mark.parametrize(
    "body",
    [b" ", b"{", b"NaN", b"01", b"1.", b"{}x", b"'a'", b'{"a":1,}', b'"a\x01"', b"\xef\xbb\xbf{}", b'"\xff"', b"\xff"],
)
def test_what_is_no_json_in_utf8_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestContentException, match="Could not parse request body into json"):
        check_json(body)


def test_json_nested_too_deeply_is_refused_and_not_an_internal_error() -> None:
    with pytest.raises(InvalidRequestContentException):
        check_json(b"[" * 100_000 + b"]" * 100_000)


class FakeDispatcher:
    """Knows the function f and answers with what it is given."""

    def __init__(self) -> None:
        self.got: list[Invocation] = []

    def entry(self, name: str, qualifier: str | None = None) -> Any:
        if name != "f":
            raise ResourceNotFoundException(f"Function not found: {name}")
        return SimpleNamespace(function=version_of("f").function)

    async def invoke(self, invocation: Invocation) -> Result:
        self.got.append(invocation)
        return Result(b'{"ok": 1}', log_tail=b"tail")


def call(
    body: bytes = b"{}", *, name: str = "f", method: str = "POST", **headers: bytes
) -> tuple[int, dict[bytes, bytes], bytes, list[Invocation], list[Invocation]]:
    """Send a request and return status, headers, body, invocations run, invocations stored.

    A keyword such as ``x_amz_log_type`` sets the header of that name.
    """
    dispatcher = FakeDispatcher()
    stored: list[Invocation] = []

    async def accept(invocation: Invocation) -> None:
        stored.append(invocation)

    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    whole = {
        **scope(name),
        "method": method,
        "headers": [(key.replace("_", "-").encode(), value) for key, value in headers.items()],
    }
    api = InvokeApi(dispatcher, accept=accept, queue_timeout_s=5.0, budget=Budget(1 << 30))  # type: ignore[arg-type]
    asyncio.run(api(whole, receive, send))  # type: ignore[arg-type]
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"], dispatcher.got, stored


def test_a_synchronous_invocation_is_run_and_answered() -> None:
    status, headers, body, run, stored = call(b'{"a":1}', x_amz_log_type=b"Tail", x_amzn_trace_id=b"Root=1")
    assert (status, body, stored) == (200, b'{"ok": 1}', [])
    assert headers[b"x-amz-executed-version"] == b"$LATEST"
    assert base64.b64decode(headers[b"x-amz-log-result"]) == b"tail"
    assert headers[b"x-amzn-requestid"].decode() == run[0].request_id
    assert (run[0].payload, run[0].trace_id, run[0].want_log_tail) == (b'{"a":1}', "Root=1", True)
    assert b"x-amz-function-error" not in headers


def test_an_answer_is_sent_when_the_result_is_known_and_not_again_when_the_invocation_has_ended() -> None:
    events: list[Any] = []

    class Server:
        def send_now(self, status: int, headers: Any, body: bytes) -> bool:
            events.append((status, dict(headers)[b"content-length"], body))
            return True

        async def send(self, message: Any) -> None:
            raise AssertionError(f"sent again: {message}")

    class Dispatcher(FakeDispatcher):
        async def invoke(self, invocation: Invocation) -> Result:
            result = await super().invoke(invocation)
            assert invocation.on_result is not None
            invocation.on_result(result)
            events.append("released")
            return result

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    async def accept(invocation: Invocation) -> None:
        raise AssertionError

    api = InvokeApi(Dispatcher(), accept=accept, queue_timeout_s=5.0, budget=Budget(1 << 30))  # type: ignore[arg-type]
    asyncio.run(api({**scope("f"), "method": "POST", "headers": []}, receive, Server().send))  # type: ignore[arg-type]
    assert events == [(200, b"9", b'{"ok": 1}'), "released"]


def test_an_empty_body_is_an_empty_event() -> None:
    assert call(b"")[3][0].payload == b"{}"


def test_an_event_is_stored_and_not_run_and_a_dry_run_is_neither() -> None:
    status, _, body, run, stored = call(b"1", x_amz_invocation_type=b"Event")
    assert (status, body, run, len(stored)) == (202, b"", [], 1)
    assert stored[0].asynchronous
    status, _, body, run, stored = call(b"1", x_amz_invocation_type=b"DryRun")
    assert (status, body, run, stored) == (204, b"", [], [])


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        ({"x_amz_invocation_type": b"Later"}, 400, b"InvalidParameterValueException"),
        ({"name": "g"}, 404, b"ResourceNotFoundException"),
        ({"name": "g", "x_amz_invocation_type": b"DryRun"}, 404, b"ResourceNotFoundException"),
        ({"name": "g", "x_amz_invocation_type": b"Event"}, 404, b"ResourceNotFoundException"),
        ({"method": "GET"}, 404, b"ResourceNotFoundException"),
        ({"body": b"{"}, 400, b"InvalidRequestContentException"),
        ({"body": b"[" * 100_000}, 400, b"InvalidRequestContentException"),
        ({"body": b'"' + b"x" * MAX_PAYLOAD_BYTES + b'"'}, 413, b"RequestTooLargeException"),
        (
            {"body": b'"' + b"x" * MAX_ASYNC_PAYLOAD_BYTES + b'"', "x_amz_invocation_type": b"Event"},
            413,
            b"RequestTooLargeException",
        ),
        ({"x_amz_client_context": b"%%%"}, 400, b"InvalidRequestContentException"),
        ({"x_amz_client_context": base64.b64encode(b"[1]")}, 400, b"InvalidRequestContentException"),
        ({"x_amz_client_context": base64.b64encode(b'"\xff"')}, 400, b"InvalidRequestContentException"),
        ({"x_amz_client_context": base64.b64encode(b'{"a":' + b"[" * 2000)}, 400, b"InvalidRequestContentException"),
        ({"x_amz_client_context": b"e" * (MAX_CLIENT_CONTEXT_BYTES + 1)}, 400, b"InvalidRequestContentException"),
    ],
)
def test_errors_are_told_as_the_lambda_api_tells_them(arguments: dict[str, Any], status: int, error: bytes) -> None:
    got, headers, body, run, stored = call(**arguments)
    assert (got, headers[b"x-amzn-errortype"]) == (status, error)
    document = json.loads(body)
    assert document["Type"] == "User"
    spelling = "Message" if error == b"ResourceNotFoundException" else "message"  # as in AWS's service model
    assert sorted(document) == sorted(["Type", spelling])
    assert document[spelling]
    assert run == stored == []


def test_a_payload_at_the_limit_is_taken() -> None:
    body = b'"' + b"x" * (MAX_PAYLOAD_BYTES - 2) + b'"'
    assert call(body)[0] == 200


def test_a_client_context_reaches_the_function_as_json_text() -> None:
    context = {"custom": {"a": "1"}, "env": {}, "client": {}}
    run = call(x_amz_client_context=base64.b64encode(json.dumps(context).encode()))[3]
    assert json.loads(run[0].client_context or "") == context
