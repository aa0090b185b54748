"""`thawd.gateway.routes.payload_format_1`: payload format 1.0 both ways.

Source: API Gateway developer guide, "Lambda proxy integrations in API Gateway", input and output format.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thawd.gateway.routes.payload_format_1 import event, response
from thawd.gateway.routes.payload_formats import IntegrationRequest, MalformedResponseError, Response


def request(**changed: Any) -> IntegrationRequest:
    fields: dict[str, Any] = {
        "method": "POST",
        "raw_path": "/items/a%20b",
        "query": "",
        "headers": [(b"host", b"api.example:8000"), (b"user-agent", b"test/1")],
        "body": b"",
        "source_ip": "192.0.2.1",
        "protocol": "HTTP/1.1",
        "route_key": "ANY /items/{id}",
        "path_parameters": {"id": "a b"},
    }
    return IntegrationRequest(**{**fields, **changed})


def made(**changed: Any) -> dict[str, Any]:
    return msgspec.json.decode(msgspec.json.encode(event(request(**changed), now_s=1_700_000_000.25, request_id="id")))


def answer(**fields: Any) -> Response:
    return response(json.dumps({"statusCode": 200, **fields}).encode())


def test_an_event_has_all_fields_of_payload_format_1() -> None:
    headers = {
        "host": "api.example:8000",
        "user-agent": "test/1",
        "x-forwarded-for": "192.0.2.1",
        "x-forwarded-proto": "http",
        "x-forwarded-port": "8000",
    }
    nothing = (
        "accessKey accountId apiKey apiKeyId caller clientCert cognitoAuthenticationProvider cognitoAuthenticationType "
        "cognitoIdentityId cognitoIdentityPoolId principalOrgId user userArn"
    )
    assert made(query="a=1&a=2&b=", stage_variables={"mode": "test"}) == {
        "version": "1.0",
        "resource": "/items/{id}",
        "path": "/items/a b",
        "httpMethod": "POST",
        "headers": headers,
        "multiValueHeaders": {name: [value] for name, value in headers.items()},
        "queryStringParameters": {"a": "2", "b": ""},
        "multiValueQueryStringParameters": {"a": ["1", "2"], "b": [""]},
        "pathParameters": {"id": "a b"},
        "stageVariables": {"mode": "test"},
        "requestContext": {
            "accountId": "000000000000",
            "apiId": "thawd",
            "authorizer": {"claims": None, "scopes": None},
            "domainName": "api.example:8000",
            "domainPrefix": "api",
            "extendedRequestId": "id",
            "httpMethod": "POST",
            "identity": {**dict.fromkeys(nothing.split()), "sourceIp": "192.0.2.1", "userAgent": "test/1"},
            "path": "/items/a b",
            "protocol": "HTTP/1.1",
            "requestId": "id",
            "requestTime": "14/Nov/2023:22:13:20 +0000",
            "requestTimeEpoch": 1_700_000_000_250,
            "resourceId": None,
            "resourcePath": "/items/{id}",
            "stage": "$default",
        },
        "body": None,
        "isBase64Encoded": False,
    }


def test_what_a_request_does_not_have_is_null() -> None:
    got = made(path_parameters={}, route_key="$default")
    absent = ("queryStringParameters", "multiValueQueryStringParameters", "pathParameters", "stageVariables", "body")
    assert [got[name] for name in absent] == [None] * len(absent)
    assert got["resource"] == "$default"


def test_several_headers_of_a_name_are_kept_and_the_last_one_stands_alone() -> None:
    got = made(headers=[(b"x", b"1"), (b"cookie", b"a=1; b=2"), (b"x", b"2"), (b"cookie", b"c=3")])
    assert (got["headers"]["x"], got["multiValueHeaders"]["x"]) == ("2", ["1", "2"])
    assert (got["headers"]["cookie"], got["multiValueHeaders"]["cookie"]) == ("c=3", ["a=1; b=2", "c=3"])
    assert "cookies" not in got


@pytest.mark.parametrize(
    ("content_type", "body", "told"),
    [
        (b"application/json", b'{"a": 1}', ('{"a": 1}', False)),
        (b"text/plain; charset=utf-8", "ä".encode(), ("ä", False)),
        (b"image/png", b"\x89PNG", (base64.b64encode(b"\x89PNG").decode(), True)),
        (b"text/plain", b"\xff", (base64.b64encode(b"\xff").decode(), True)),
    ],
)
def test_binary_bodies_are_base64(content_type: bytes, body: bytes, told: tuple[str, bool]) -> None:
    got = made(headers=[(b"content-type", content_type)], body=body)
    assert (got["body"], got["isBase64Encoded"]) == told


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=60))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_any_request_can_be_told_as_json(path: bytes, query: bytes, body: bytes) -> None:
    made(
        raw_path="/" + path.decode("latin-1"),
        query=query.decode("latin-1"),
        body=body,
        headers=[(b"content-type", b"text/plain"), (b"x", path), (b"cookie", query)],
    )


@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        (
            {"headers": {"X-One": "1", "n": 5, "b": True, "none": None}},
            [(b"x-one", b"1"), (b"n", b"5"), (b"b", b"true")],
        ),
        (
            {"multiValueHeaders": {"Set-Cookie": ["a=1", "b=2"]}},
            [(b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")],
        ),
        # "If the same key-value pair is specified in both, only the values from multiValueHeaders appear."
        (
            {"headers": {"X": "1", "y": "2"}, "multiValueHeaders": {"x": ["1", "3"]}},
            [(b"y", b"2"), (b"x", b"1"), (b"x", b"3")],
        ),
        ({"headers": None, "multiValueHeaders": None}, []),
        ({"headers": {"Content-Length": "7"}, "multiValueHeaders": {"Connection": ["close"]}}, []),
        ({"cookies": ["a=1"]}, []),
    ],
)
def test_headers_of_both_kinds_are_sent_together(fields: dict[str, Any], headers: list[tuple[bytes, bytes]]) -> None:
    assert answer(**fields).headers == headers


def test_a_body_without_a_type_is_json_and_base64_is_decoded() -> None:
    assert answer(body="{}").headers == [(b"content-type", b"application/json")]
    got = answer(isBase64Encoded=True, body=base64.b64encode(b"\0\xff").decode(), headers={"Content-Type": "image/png"})
    assert (got.headers, got.body) == ([(b"content-type", b"image/png")], b"\0\xff")


@pytest.mark.parametrize(
    "payload",
    [
        b"null",
        b'"text"',
        b"[]",
        b"7",
        b"NaN",
        b'{"body": "no status"}',
        b'{"statusCode": "many"}',
        b'{"statusCode": 99}',
        b'{"statusCode": 200, "multiValueHeaders": {"a": "b"}}',
        b'{"statusCode": 200, "multiValueHeaders": {"a": ["b\\r\\nc: d"]}}',
        b'{"statusCode": 200, "multiValueHeaders": ["a"]}',
        b'{"statusCode": 200, "headers": {"a b": "c"}}',
        b'{"statusCode": 200, "body": {"not": "text"}}',
        b'{"statusCode": 200, "body": "&&", "isBase64Encoded": true}',
    ],
)
def test_a_malformed_answer_is_refused_as_such(payload: bytes) -> None:
    with pytest.raises(MalformedResponseError):
        response(payload)
