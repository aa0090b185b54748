"""Invocations: their types, headers, payloads and errors.

Source: AWS Lambda API reference, Invoke, InvokeAsync, InvokeWithResponseStream. The words about payloads that are not
JSON were observed on AWS.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from .conftest import Lambda, zipped
from .wire import Answer, Request, Wire, request_of

ARN = "arn:aws:lambda:us-east-1:000000000000:function:"
HANDLER = """
import os, sys, time

def handler(event, context):
    if event == "exit":
        os._exit(3)
    if event == "sleep":
        time.sleep(60)
    if event == "large":
        return "x" * 7_000_000
    if event == "unserialisable":
        return {1, 2}
    if event == "print":
        print("seen")
    if event == "raise":
        raise ValueError("as asked")
    if event == "context":
        given = context.client_context
        return {
            "custom": given and given.custom, "env": given and given.env, "version": context.function_version,
            "arn": context.invoked_function_arn, "memory": context.memory_limit_in_mb, "name": context.function_name,
            "group": context.log_group_name, "left": context.get_remaining_time_in_millis() > 0,
            "id": context.aws_request_id,
        }
    return event
"""
PLACE = "\n at [Source: REDACTED (`StreamReadFeature.INCLUDE_SOURCE_IN_LOCATION` disabled); line: {}, column: {}]"
VALUES = "(JSON String, Number, Array, Object or token 'null', 'true' or 'false')"


@pytest.fixture(scope="module")
def invoked(aws: Lambda) -> str:
    """A function with version 1 and the alias `live` of it."""
    name = aws.create(Code={"ZipFile": zipped(app__py=HANDLER)}, Timeout=2)
    aws.publish(name)
    aws.client.create_alias(FunctionName=name, Name="live", FunctionVersion="1")
    return name


class Invoker:
    """Invokes the function over HTTP."""

    def __init__(self, url: str, name: str) -> None:
        self._wire = Wire(url)
        self.name = name

    def __call__(
        self, payload: bytes, operation: str = "Invoke", qualifier: str | None = None, **headers: str
    ) -> Answer:
        target = request_of(operation, {"FunctionName": self.name}).target
        if qualifier is not None:
            target += f"?Qualifier={qualifier}"
        named = {f"x-amz-{name.replace('_', '-')}": value for name, value in headers.items()}
        return self._wire.send(Request("POST", target, payload), named)

    def close(self) -> None:
        self._wire.close()


@pytest.fixture(scope="module")
def invoke(aws: Lambda, invoked: str) -> Iterator[Invoker]:
    """Something that invokes the function."""
    invoker = Invoker(aws.running.url, invoked)
    yield invoker
    invoker.close()


PAYLOADS: list[bytes] = [
    b"{}", b"null", b"true", b"0", b"-1.5e3", b'""', b'"x"', b"[]", b"[1, [2]]", b'{"a": {"b": null}}',
    b' {"a" : 1 } \n', "\"\u00e9\u4e16\U0001f600\"".encode(), b'"\\u00e9"', b'{"a": 1, "a": 2}',
    b"12345678901234567890",
]  # fmt: skip


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: ascii(payload.decode()))
def test_any_json_reaches_the_handler_and_comes_back(invoke: Invoker, payload: bytes) -> None:
    answer = invoke(payload)
    assert (answer.status, json.loads(answer.body)) == (200, json.loads(payload))
    assert answer.headers["x-amz-executed-version"] == "$LATEST"
    assert "x-amz-function-error" not in answer.headers


def test_no_payload_is_an_empty_object(invoke: Invoker) -> None:
    assert json.loads(invoke(b"").body) == {}


NOT_JSON: list[tuple[bytes, str, tuple[int, int]]] = [
    (
        b"\x99\xeb,j\x07\xa1zYh",
        f"Unexpected character ((CTRL-CHAR, code 153)): expected a valid value {VALUES}",
        (1, 1),
    ),
    (b"n\x87r\x9e\xe9\xb5\xd7I\xee\x9bmt", "Invalid UTF-8 start byte 0x87", (1, 3)),
    (b"x", f"Unrecognized token 'x': was expecting {VALUES}", (1, 2)),
    (b"foo", f"Unrecognized token 'foo': was expecting {VALUES}", (1, 4)),
    (b'{"a": foo}', f"Unrecognized token 'foo': was expecting {VALUES}", (1, 11)),
    (b"tru", f"Unrecognized token 'tru': was expecting {VALUES}", (1, 4)),
    (b"'a'", f"Unexpected character (''' (code 39)): expected a valid value {VALUES}", (1, 1)),
    (b'{"a":}', f"Unexpected character ('}}' (code 125)): expected a valid value {VALUES}", (1, 6)),
    (b"{a:1}", "Unexpected character ('a' (code 97)): was expecting double-quote to start field name", (1, 2)),
    (b'{"a":1,}', "Unexpected character ('}' (code 125)): was expecting double-quote to start field name", (1, 8)),
    (
        b'{"a" 1}',
        "Unexpected character ('1' (code 49)): was expecting a colon to separate field name and value",
        (1, 6),
    ),
    (b"[1 2]", "Unexpected character ('2' (code 50)): was expecting comma to separate Array entries", (1, 4)),
    (b'{"a":1 "b":2}', "Unexpected character ('\"' (code 34)): was expecting comma to separate Object entries", (1, 8)),
    (b'{"a":1,\n b:2}', "Unexpected character ('b' (code 98)): was expecting double-quote to start field name", (2, 2)),
    (b"[1,", "Unexpected end-of-input within/between Array entries", (1, 4)),
    (b'{"a"', "Unexpected end-of-input within/between Object entries", (1, 5)),
    (b'"a', "Unexpected end-of-input in VALUE_STRING", (1, 3)),
    (b'{"a', "Unexpected end-of-input in field name", (1, 4)),
    (b"01", "Invalid numeric value: Leading zeroes not allowed", (1, 2)),
    (b'"\\q"', "Unrecognized character escape 'q' (code 113)", (1, 4)),
    (
        b'"\x01"',
        "Illegal unquoted character ((CTRL-CHAR, code 1)): has to be escaped using backslash to be included in string "
        "value",
        (1, 3),
    ),
    (
        b"{",
        f"Unexpected end-of-input: expected close marker for Object (start marker at{PLACE.format(1, 1)[4:]})",
        (1, 2),
    ),
]


@pytest.mark.parametrize("operation", ["Invoke", "InvokeAsync", "InvokeWithResponseStream"])
@pytest.mark.parametrize(("payload", "said", "place"), NOT_JSON, ids=lambda value: ascii(value)[:30])
def test_a_payload_that_is_not_json_is_refused_with_the_place(
    invoke: Invoker, payload: bytes, said: str, place: tuple[int, int], operation: str
) -> None:
    answer = invoke(payload, operation)
    assert (answer.status, answer.code) == (400, "InvalidRequestContentException")
    assert answer.document == {
        "Type": "User",
        "message": "Could not parse request body into json: Could not parse payload into json: "
        + said
        + PLACE.format(*place),
    }


def test_each_type_of_invocation_has_its_status(invoke: Invoker) -> None:
    for kind, status in (("RequestResponse", 200), ("Event", 202), ("DryRun", 204)):
        answer = invoke(b"{}", invocation_type=kind)
        assert answer.status == status
        assert (answer.body == b"") is (kind != "RequestResponse")
        assert answer.headers["x-amzn-requestid"]


@pytest.mark.parametrize("kind", ["requestresponse", "", "Async", "Event,DryRun"])
def test_an_unknown_type_of_invocation_is_refused(invoke: Invoker, kind: str) -> None:
    answer = invoke(b"{}", invocation_type=kind)
    assert (answer.status, answer.code) == (400, "InvalidParameterValueException")
    assert f"Value '{kind}' at 'invocationType' failed to satisfy constraint" in answer.message


@pytest.mark.parametrize(
    ("qualifier", "version"), [(None, "$LATEST"), ("$LATEST", "$LATEST"), ("1", "1"), ("live", "1")]
)
def test_the_version_that_ran_is_named(invoke: Invoker, qualifier: str | None, version: str) -> None:
    answer = invoke(b'"context"', qualifier=qualifier)
    assert answer.headers["x-amz-executed-version"] == version
    assert answer.document["version"] == version
    expected = f"{ARN}{invoke.name}" + (f":{qualifier}" if qualifier else "")
    assert answer.document["arn"] == expected
    assert answer.document["id"] == answer.headers["x-amzn-requestid"]


def test_the_context_has_what_lambdas_has(invoke: Invoker) -> None:
    found = invoke(b'"context"').document
    assert (found["memory"], found["name"], found["group"], found["left"]) == (
        "128",
        invoke.name,
        f"/aws/lambda/{invoke.name}",
        True,
    )


def test_the_clients_context_reaches_the_handler(invoke: Invoker) -> None:
    given = {"custom": {"a": "b"}, "env": {"c": "d"}, "client": {"installation_id": "e"}}
    found = invoke(b'"context"', client_context=base64.b64encode(json.dumps(given).encode()).decode()).document
    assert (found["custom"], found["env"]) == (given["custom"], given["env"])


@pytest.mark.parametrize(
    "context", ["!", base64.b64encode(b"no json").decode(), base64.b64encode(b"[1]").decode(), "x" * 3584]
)
def test_a_clients_context_that_is_no_document_is_refused(invoke: Invoker, context: str) -> None:
    assert invoke(b"{}", client_context=context).code == "InvalidRequestContentException"


ERRORS: dict[bytes, Mapping[str, Any]] = {
    b'"raise"': {"errorType": "ValueError", "errorMessage": "as asked"},
    b'"exit"': {
        "errorType": "Runtime.ExitError",
        "errorMessage": "RequestId: {id} Error: Runtime exited with error: exit status 3",
    },
    b'"sleep"': {
        "errorType": "Sandbox.Timedout",
        "errorMessage": "RequestId: {id} Error: Task timed out after 2.00 seconds",
    },
    b'"large"': {
        "errorType": "Function.ResponseSizeTooLarge",
        "errorMessage": "Response payload size exceeded maximum allowed payload size (6291556 bytes).",
    },
    b'"unserialisable"': {
        "errorType": "Runtime.MarshalError",
        "errorMessage": "Unable to marshal response: Object of type set is not JSON serializable",
    },
}  # fmt: skip


@pytest.mark.parametrize("payload", ERRORS, ids=lambda payload: payload.decode().strip('"'))
def test_a_failure_of_the_function_is_an_answer_with_an_error(invoke: Invoker, payload: bytes) -> None:
    answer = invoke(payload)
    assert (answer.status, answer.headers["x-amz-function-error"]) == (200, "Unhandled")
    wanted = ERRORS[payload]
    request_id = answer.headers["x-amzn-requestid"]
    found = answer.document
    assert {field: found[field] for field in wanted} == {
        field: value.replace("{id}", request_id) for field, value in wanted.items()
    }
    if payload in (b'"exit"', b'"sleep"', b'"large"'):
        assert set(found) == set(wanted), "what the platform says has no stack trace"


def test_the_tail_of_the_log_is_sent_if_it_is_asked_for(invoke: Invoker) -> None:
    answer = invoke(b'"print"', log_type="Tail")
    tail = base64.b64decode(answer.headers["x-amz-log-result"]).decode()
    request_id = answer.headers["x-amzn-requestid"]
    assert f"START RequestId: {request_id} Version: $LATEST\n" in tail
    assert "seen\n" in tail
    assert f"END RequestId: {request_id}\n" in tail
    assert f"REPORT RequestId: {request_id}\tDuration: " in tail
    for kind in ("None", None):
        other = invoke(b'"print"', **({} if kind is None else {"log_type": kind}))
        assert "x-amz-log-result" not in other.headers


def test_an_event_has_no_log_and_no_version(invoke: Invoker) -> None:
    answer = invoke(b"{}", invocation_type="Event", log_type="Tail")
    assert not {"x-amz-log-result", "x-amz-executed-version", "x-amz-function-error"} & set(answer.headers)


@pytest.mark.parametrize(("kind", "size"), [("RequestResponse", 6_291_556), ("Event", 1_048_576)])
def test_a_payload_may_be_as_large_as_on_aws_and_no_larger(invoke: Invoker, kind: str, size: int) -> None:
    fitting = b'"' + b" " * (size - 2) + b'"'
    assert invoke(fitting, invocation_type=kind).status in (200, 202)
    answer = invoke(fitting + b" ", invocation_type=kind)
    assert (answer.status, answer.code) == (413, "RequestTooLargeException")
    assert answer.message == f"Request must be smaller than {size} bytes for the InvokeFunction operation"


def test_invoke_async_accepts_an_event(invoke: Invoker) -> None:
    answer = invoke(b'{"a": 1}', "InvokeAsync")
    assert (answer.status, answer.document) == (202, {"Status": 202})
    assert answer.headers["x-amzn-requestid"]


@pytest.mark.parametrize("operation", ["Invoke", "InvokeAsync", "InvokeWithResponseStream"])
def test_a_function_that_does_not_exist_is_not_found(aws: Lambda, operation: str) -> None:
    absent = Invoker(aws.running.url, "absent")
    answer = absent(b"{}", operation)
    absent.close()
    assert (answer.status, answer.code) == (404, "ResourceNotFoundException")
    assert answer.document == {"Type": "User", "Message": f"Function not found: {ARN}absent:$LATEST"}


@pytest.mark.parametrize("payload", [b'{"a": 1}', b'"raise"', b'"x"'])
def test_a_stream_ends_with_its_completion(aws: Lambda, invoked: str, payload: bytes) -> None:
    answer = aws.client.invoke_with_response_stream(FunctionName=invoked, Payload=payload, LogType="Tail")
    assert (answer["StatusCode"], answer["ExecutedVersion"]) == (200, "$LATEST")
    assert answer["ResponseStreamContentType"] == "application/vnd.amazon.eventstream"
    events = list(answer["EventStream"])
    completion = events[-1]["InvokeComplete"]
    assert base64.b64decode(completion["LogResult"]).startswith((b"START", b"INIT_START"))
    content = b"".join(event["PayloadChunk"]["Payload"] for event in events[:-1])
    if payload == b'"raise"':
        assert completion["ErrorCode"] == "ValueError"
        assert json.loads(completion["ErrorDetails"])["errorMessage"] == "as asked"
    else:
        assert json.loads(content) == json.loads(payload)
        assert "ErrorCode" not in completion
