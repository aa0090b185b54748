"""`gateway.routes.payload_format_2`: payload format 2.0 both ways, and no answer of a handler breaks the server."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thawd.gateway.routes import payload_format_1
from thawd.gateway.routes.payload_format_2 import IntegrationRequest, MalformedResponseError, Response, event, response

FORWARDED = {"x-forwarded-for": "192.0.2.1", "x-forwarded-proto": "http", "x-forwarded-port": "80"}


def request(**changed: Any) -> IntegrationRequest:
    fields: dict[str, Any] = {
        "method": "POST",
        "raw_path": "/classify",
        "query": "",
        "headers": [(b"host", b"api.example:8000"), (b"user-agent", b"test/1")],
        "body": b"",
        "source_ip": "192.0.2.1",
        "protocol": "HTTP/1.1",
        "route_key": "POST /classify",
        "path_parameters": {},
    }
    return IntegrationRequest(**{**fields, **changed})


def made(**changed: Any) -> dict[str, Any]:
    return msgspec.json.decode(msgspec.json.encode(event(request(**changed), now_s=1_700_000_000.25, request_id="id")))


def answer(**fields: Any) -> Response:
    return response(json.dumps({"statusCode": 200, **fields}).encode())


def test_an_event_has_all_fields_of_payload_format_2() -> None:
    assert made(query="a=1", path_parameters={"id": "7"}) == {
        "version": "2.0",
        "routeKey": "POST /classify",
        "rawPath": "/classify",
        "rawQueryString": "a=1",
        "headers": {"host": "api.example:8000", "user-agent": "test/1", **FORWARDED, "x-forwarded-port": "8000"},
        "queryStringParameters": {"a": "1"},
        "pathParameters": {"id": "7"},
        "requestContext": {
            "accountId": "000000000000",
            "apiId": "thawd",
            "domainName": "api.example:8000",
            "domainPrefix": "api",
            "http": {
                "method": "POST",
                "path": "/classify",
                "protocol": "HTTP/1.1",
                "sourceIp": "192.0.2.1",
                "userAgent": "test/1",
            },
            "requestId": "id",
            "routeKey": "POST /classify",
            "stage": "$default",
            "time": "14/Nov/2023:22:13:20 +0000",
            "timeEpoch": 1_700_000_000_250,
        },
        "isBase64Encoded": False,
    }


@pytest.mark.parametrize(
    ("sent", "addresses"),
    [
        ([b"198.51.100.7"], "198.51.100.7, 192.0.2.1"),
        ([b"198.51.100.7 ,10.0.0.1", b"10.0.0.2,"], "198.51.100.7, 10.0.0.1, 10.0.0.2, 192.0.2.1"),
        ([b"198.51.100.7, 192.0.2.1"], "198.51.100.7, 192.0.2.1"),  # a trusted proxy has added the client's address
        ([b"192.0.2.1"], "192.0.2.1"),
        ([b" , "], "192.0.2.1"),
    ],
)
@pytest.mark.parametrize("make", [event, payload_format_1.event])
def test_a_client_cannot_claim_another_address_or_scheme(sent: list[bytes], addresses: str, make: Any) -> None:
    headers = [(b"host", b"a"), *((b"x-forwarded-for", value) for value in sent), (b"x-forwarded-proto", b"https")]
    for scheme in ("http", "https"):
        got = make(request(headers=headers, scheme=scheme), now_s=0.0)["headers"]
        assert (got["x-forwarded-for"], got["x-forwarded-proto"]) == (addresses, scheme)
        assert got["x-forwarded-port"] == ("443" if scheme == "https" else "80")


def test_what_a_request_does_not_have_its_event_does_not_have() -> None:
    got = made()
    for absent in ("cookies", "queryStringParameters", "pathParameters", "body"):
        assert absent not in got


def test_cookies_are_a_list_of_their_own() -> None:
    got = made(headers=[(b"cookie", b"a=1; b=2"), (b"cookie", b"c=3;"), (b"x", b"y")])
    assert got["cookies"] == ["a=1", "b=2", "c=3"]
    assert got["headers"] == {"x": "y", **FORWARDED}


def test_repeated_headers_and_query_parameters_are_joined_by_commas() -> None:
    got = made(headers=[(b"x", b"1"), (b"y", b"\xe9"), (b"x", b"2")], query="a=1&b=&a=2&a=%2C&c+d=e%20f")
    assert got["headers"] == {"x": "1,2", "y": "é", **FORWARDED}
    assert got["queryStringParameters"] == {"a": "1,2,,", "b": "", "c d": "e f"}
    assert got["rawQueryString"] == "a=1&b=&a=2&a=%2C&c+d=e%20f"


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "text/plain; charset=utf-8", "Application/XML", "application/problem+json", "image/svg+xml"],
)
def test_text_bodies_are_text(content_type: str) -> None:
    got = made(headers=[(b"content-type", content_type.encode())], body="ä".encode())
    assert (got["body"], got["isBase64Encoded"]) == ("ä", False)


@pytest.mark.parametrize(
    ("content_type", "body"),
    [("image/png", b"\x89PNG"), ("", b"abc"), ("text/plain", b"\xff\xfe"), ("application/octet-stream", b"abc")],
)
def test_all_other_bodies_are_base64(content_type: str, body: bytes) -> None:
    headers = [(b"content-type", content_type.encode())] if content_type else []
    got = made(headers=headers, body=body)
    assert got["isBase64Encoded"] is True
    assert base64.b64decode(got["body"]) == body


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=60))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_any_request_can_be_told_as_json(path: bytes, query: bytes, body: bytes) -> None:
    made(
        raw_path="/" + path.decode("latin-1"),
        query=query.decode("latin-1"),
        body=body,
        headers=[(b"content-type", b"text/plain"), (b"x", path), (b"cookie", query)],
    )


def test_an_answer_with_a_status_is_taken_as_told() -> None:
    got = answer(statusCode=201, headers={"X-One": "1", "n": 5, "b": True}, cookies=["a=1", "b=2"], body="hé")
    assert got.status == 201
    assert got.body == "hé".encode()
    assert got.headers == [
        (b"x-one", b"1"),
        (b"n", b"5"),
        (b"b", b"true"),
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
        (b"content-type", b"text/plain; charset=utf-8"),
    ]


@pytest.mark.parametrize("value", [{"label": "cat"}, [1, 2], 5, None, True])
def test_an_answer_without_a_status_is_a_json_body(value: Any) -> None:
    payload = json.dumps(value).encode()
    assert response(payload) == Response(200, [(b"content-type", b"application/json")], payload)


def test_a_string_is_its_own_body() -> None:
    assert response(b'"hello \\u00e9"').body == "hello é".encode()


def test_a_base64_body_is_decoded() -> None:
    got = answer(isBase64Encoded=True, body=base64.b64encode(b"\0\xff").decode(), headers={"content-type": "image/png"})
    assert got.body == b"\0\xff"
    assert got.headers == [(b"content-type", b"image/png")]


@pytest.mark.parametrize("status", ["200", 200, 404, 599])
def test_a_status_may_be_a_number_or_its_text(status: Any) -> None:
    assert answer(statusCode=status).status == int(status)


def test_a_connections_own_headers_are_not_the_handlers() -> None:
    got = answer(headers={"Content-Length": "3", "Transfer-Encoding": "chunked", "Connection": "close", "ok": "1"})
    assert got.headers == [(b"ok", b"1")]


@pytest.mark.parametrize("status", [204, 304])
def test_a_status_that_allows_no_body_has_none(status: int) -> None:
    """A client would read bytes after such an answer as the beginning of the next answer on the connection."""
    assert answer(statusCode=status, body="smuggled").body == b""


@pytest.mark.parametrize(
    "fields",
    [
        {"statusCode": "abc"},
        {"statusCode": None},
        {"statusCode": [200]},
        {"statusCode": 99},
        {"statusCode": 100},
        {"statusCode": 600},
        {"statusCode": True},
        {"headers": ["a"]},
        {"headers": "a"},
        {"headers": {"a": "b\r\nset-cookie: evil=1"}},
        {"headers": {"a\r\nb": "c"}},
        {"headers": {"a: b": "c"}},
        {"headers": {"": "c"}},
        {"headers": {"ü": "c"}},
        {"headers": {"a\tb": "c"}},
        {"headers": {"a": "b\0"}},
        {"cookies": ["a=1\r\nx: y"]},
        {"cookies": 5},
        {"cookies": "a=1"},
        {"body": {"not": "a string"}},
        {"body": 5},
        {"body": "&&&", "isBase64Encoded": True},
        {"body": "ü", "isBase64Encoded": True},
    ],
)
def test_a_malformed_answer_is_refused_as_such(fields: dict[str, Any]) -> None:
    with pytest.raises(MalformedResponseError):
        answer(**fields)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"statusCode": 200, "body": "x", "score": NaN}',  # json.dumps writes this for float("nan")
        b"NaN",
        b'{"score": -Infinity}',
        b'{"statusCode": 1e999}',
        b'{"statusCode": 200, "body": "\\ud800"}',
        b"[" * 900 + b"]" * 900,
        b"[" * 5000 + b"]" * 5000,
        b"",
        b"not json at all",
        b'"\xff"',
    ],
)
def test_no_payload_raises_anything_but_a_malformed_response(payload: bytes) -> None:
    try:
        response(payload)
    except MalformedResponseError:
        pass
