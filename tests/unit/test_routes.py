"""`thawd.gateway.routes`: which function answers, by API Gateway's rules, and what it receives."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.execution_fakes import version_of
from thawd.errors import ServiceException, ThawdError, TooManyRequestsException
from thawd.gateway.http import Budget
from thawd.gateway.routes.endpoint import MAX_BODY_BYTES, RoutesApi, RouteTable
from thawd.invocation import Invocation, Result
from thawd.resources import Route


def table(*keys: str) -> RouteTable:
    return RouteTable([Route(key=key, function=f"f{number}") for number, key in enumerate(keys)])


def found(of: RouteTable, method: str, path: str) -> str | None:
    match = of.find(method, path)
    return match[0].key if match is not None else None


# The first four are the example of the API Gateway developer guide, "Routing API requests".
DOCUMENTED = ("GET /pets/dog/1", "GET /pets/dog/{id}", "GET /pets/{proxy+}", "ANY /{proxy+}", "$default")


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("method", "path", "key"),
    [
        ("GET", "/pets/dog/1", "GET /pets/dog/1"),
        ("GET", "/pets/dog/2", "GET /pets/dog/{id}"),
        ("GET", "/pets/cat/1", "GET /pets/{proxy+}"),
        ("POST", "/test/5", "ANY /{proxy+}"),
        ("POST", "/pets/dog/1", "ANY /{proxy+}"),
        ("GET", "/", "$default"),
    ],
)
def test_the_most_specific_route_answers_whatever_the_order_of_declaration(
    order: int, method: str, path: str, key: str
) -> None:
    assert found(table(*DOCUMENTED[::order]), method, path) == key


def test_a_method_goes_before_any_and_a_literal_before_a_parameter() -> None:
    of = table("ANY /a", "GET /a", "GET /{x}", "GET /{x}/b", "GET /a/{y}")
    assert found(of, "GET", "/a") == "GET /a"
    assert found(of, "PUT", "/a") == "ANY /a"
    assert found(of, "GET", "/c") == "GET /{x}"
    assert found(of, "GET", "/a/b") == "GET /a/{y}"
    assert found(of, "GET", "/c/b") == "GET /{x}/b"
    assert found(of, "PUT", "/c") is None


def test_parameters_are_decoded_and_an_encoded_slash_stays_within_its_segment() -> None:
    of = table("GET /a/{x}/b", "GET /rest/{all+}")
    assert of.find("GET", "/a/c%2Fd%20e/b")[1] == {"x": "c/d e"}  # type: ignore[index]
    assert of.find("GET", "/rest/x/y%2Fz/%C3%BC")[1] == {"all": "x/y/z/ü"}  # type: ignore[index]


def test_a_greedy_parameter_takes_one_segment_or_more_but_not_none() -> None:
    of = table("GET /a/{rest+}")
    assert found(of, "GET", "/a") is None
    assert of.find("GET", "/a/b")[1] == {"rest": "b"}  # type: ignore[index]
    assert of.find("GET", "/a/b/c/")[1]["rest"].startswith("b/c")  # type: ignore[index]


def test_literals_match_however_they_are_encoded() -> None:
    assert found(table("GET /caf\u00e9"), "GET", "/caf%C3%A9") == "GET /caf\u00e9"


def test_paths_of_other_lengths_do_not_match() -> None:
    of = table("GET /a/b")
    for path in ("/", "/a", "/a/b/c", "/b/a", ""):
        assert found(of, "GET", path) is None


def test_the_root_is_a_path() -> None:
    assert found(table("GET /"), "GET", "/") == "GET /"
    assert found(table("GET /"), "GET", "/a") is None


def test_the_methods_of_a_path_are_those_of_its_routes() -> None:
    of = table("GET /a", "POST /a", "GET /{x}", "PUT /b")
    assert of.methods("/a") == ["GET", "POST"]
    assert of.methods("/b") == ["GET", "PUT"]
    assert of.methods("/a/b") == []


# --- answering ---


class FakeDispatcher:
    """Answers every invocation with `outcome`."""

    def __init__(self, outcome: Result | ThawdError) -> None:
        self.outcome = outcome
        self.got: list[Invocation] = []

    def entry(self, name: str, qualifier: str | None = None) -> Any:
        return SimpleNamespace(function=version_of(name).function)

    async def invoke(self, invocation: Invocation) -> Result:
        self.got.append(invocation)
        if isinstance(self.outcome, ThawdError):
            raise self.outcome
        return self.outcome


def call(
    outcome: Result | ThawdError, *, body: bytes = b"", messages: list[dict[str, Any]] | None = None, **scope: Any
) -> tuple[FakeDispatcher, list[dict[str, Any]]]:
    dispatcher = FakeDispatcher(outcome)
    route = Route(key="POST /c", function="f")
    api = RoutesApi([route], dispatcher, queue_timeout_s=5.0, budget=Budget(1 << 30))  # type: ignore[arg-type]
    coming = iter(messages or [{"type": "http.request", "body": body}])
    sent: list[dict[str, Any]] = []
    whole = {
        "type": "http",
        "method": "POST",
        "path": "/c",
        "raw_path": b"/c",
        "query_string": b"",
        "headers": [],
        "client": ("127.0.0.1", 5),
        **scope,
    }

    async def receive() -> dict[str, Any]:
        return next(coming)

    async def send(message: Any) -> None:
        sent.append(dict(message))

    asyncio.run(api(whole, receive, send, route=route, parameters={}))
    return dispatcher, sent


def test_a_request_becomes_an_event_and_an_answer_a_response() -> None:
    outcome = Result(b'{"statusCode": 202, "body": "ok", "headers": {"x": "y"}}')
    dispatcher, sent = call(outcome, body=b"abc", query_string=b"q=1")
    (invocation,) = dispatcher.got
    event = json.loads(invocation.payload)
    assert (invocation.function, event["rawQueryString"], event["body"]) == ("f", "q=1", "YWJj")
    assert sent[0]["status"] == 202
    assert (b"content-length", b"2") in sent[0]["headers"]
    assert (b"x", b"y") in sent[0]["headers"]
    assert sent[1]["body"] == b"ok"


def test_a_body_in_pieces_is_put_together() -> None:
    pieces = [
        {"type": "http.request", "body": b"ab", "more_body": True},
        {"type": "http.request", "more_body": True},
        {"type": "http.request", "body": b"c"},
    ]
    dispatcher, _ = call(Result(b"null"), messages=pieces)
    assert json.loads(dispatcher.got[0].payload)["body"] == "YWJj"


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Result(b'{"errorType": "E"}', function_error="Unhandled"), 500),
        (Result(b'{"statusCode": 1000}'), 500),
        (TooManyRequestsException("Rate Exceeded."), 429),
        (ServiceException("no processes left"), 500),
    ],
)
def test_failures_are_answered_with_a_message(outcome: Any, status: int) -> None:
    _, sent = call(outcome)
    assert sent[0]["status"] == status
    assert "message" in json.loads(sent[1]["body"])


@pytest.mark.parametrize(
    "payload",
    [b'{"statusCode": 200, "body": "x", "score": NaN}', b'{"statusCode": 200, "cookies": 7}', b"NaN", b"broken"],
)
def test_an_answer_that_is_no_json_or_no_response_is_a_500_and_no_exception(payload: bytes) -> None:
    _, sent = call(Result(payload))
    assert sent[0]["status"] == 500


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_over_the_limit_is_refused(announced: bool) -> None:
    headers = [(b"content-length", str(MAX_BODY_BYTES + 1).encode())] if announced else []
    dispatcher, sent = call(Result(b"1"), body=b"x" * (MAX_BODY_BYTES + 1), headers=headers)
    assert sent[0]["status"] == 413
    assert dispatcher.got == []


def test_a_client_that_goes_away_while_sending_gets_no_answer() -> None:
    pieces = [{"type": "http.request", "body": b"ab", "more_body": True}, {"type": "http.disconnect"}]
    dispatcher, sent = call(Result(b"1"), messages=pieces)
    assert (dispatcher.got, sent) == ([], [])


def test_the_largest_body_allowed_fits_the_payload_limit_as_base64() -> None:
    from thawd.invocation import MAX_PAYLOAD_BYTES

    dispatcher, _ = call(Result(b"1"), body=b"\xff" * MAX_BODY_BYTES)
    assert len(dispatcher.got[0].payload) <= MAX_PAYLOAD_BYTES
