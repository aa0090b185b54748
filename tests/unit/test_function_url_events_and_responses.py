"""`thawd.gateway.function_urls.events_and_responses`: the events that a function URL makes, and the answers it accepts.

Source: AWS Lambda developer guide, "Invoking Lambda function URLs", request and response payload formats.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from thawd.gateway.function_urls.events_and_responses import Caller, event, response
from thawd.gateway.function_urls.table import Url, url_id
from thawd.gateway.routes.payload_formats import Headers, IntegrationRequest, MalformedResponseError
from thawd.resources import FunctionUrl

ID = url_id("f")
URL = Url(ID, "f", "$LATEST", FunctionUrl(auth_type="NONE"))


def made(
    path: str = "/my/path", caller: Caller | None = None, host: str = "", more: Headers | None = None
) -> dict[str, Any]:
    host = host or f"{ID}.lambda-url.us-east-1.localhost:8350"
    request = IntegrationRequest(
        method="POST",
        raw_path=path,
        query="a=1&a=2",
        headers=[(b"host", host.encode()), (b"cookie", b"c=1"), (b"content-type", b"text/plain"), *(more or ())],
        body=b"hello",
        source_ip="192.0.2.1",
        protocol="HTTP/1.1",
        route_key="$default",
        path_parameters={},
    )
    told = event(request, URL, caller, now_s=1_700_000_000.25, request_id="id")
    return msgspec.json.decode(msgspec.json.encode(told))


def test_only_thawd_says_that_the_url_has_a_path() -> None:
    prefix, name = f"/_urls/{ID}", "x-forwarded-prefix"
    assert made(f"{prefix}/a", more=[(name.encode(), b"/b")])["headers"][name] == prefix
    assert name not in made("/a", more=[(name.encode(), prefix.encode())])["headers"]
    assert made("/a", more=[(name.encode(), b"/proxy")])["headers"][name] == "/proxy"


def test_an_event_has_all_fields_that_aws_documents() -> None:
    got = made()
    assert got.pop("headers")["content-type"] == "text/plain"
    assert got == {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": "/my/path",
        "rawQueryString": "a=1&a=2",
        "cookies": ["c=1"],
        "queryStringParameters": {"a": "1,2"},
        "requestContext": {
            "accountId": "anonymous",
            "apiId": ID,
            "authentication": None,
            "authorizer": None,
            "domainName": f"{ID}.lambda-url.us-east-1.localhost",
            "domainPrefix": ID,
            "http": {
                "method": "POST",
                "path": "/my/path",
                "protocol": "HTTP/1.1",
                "sourceIp": "192.0.2.1",
                "userAgent": "",
            },
            "requestId": "id",
            "routeKey": "$default",
            "stage": "$default",
            "time": "14/Nov/2023:22:13:20 +0000",
            "timeEpoch": 1_700_000_000_250,
        },
        "body": "hello",
        "pathParameters": None,
        "isBase64Encoded": False,
        "stageVariables": None,
    }


@pytest.mark.parametrize(("path", "told"), [("", "/"), ("/", "/"), ("/a%20b/", "/a b/")])
def test_a_path_under_urls_is_told_as_the_host_would_have_it(path: str, told: str) -> None:
    got = made(f"/_urls/{ID}{path}", host="127.0.0.1:8350")
    assert (got["rawPath"], got["requestContext"]["http"]["path"]) == (told, told)
    assert got["requestContext"]["domainName"] == f"{ID}.lambda-url.us-east-1.on.aws"


def test_who_signed_is_told() -> None:
    context = made(caller=Caller("AKIALOCAL"))["requestContext"]
    assert context["accountId"] == "000000000000"
    assert context["authorizer"]["iam"] == {
        "accessKey": "AKIALOCAL",
        "accountId": "000000000000",
        "callerId": "AKIALOCAL",
        "cognitoIdentity": None,
        "principalOrgId": None,
        "userArn": "arn:aws:iam::000000000000:user/AKIALOCAL",
        "userId": "AKIALOCAL",
    }


@pytest.mark.parametrize(
    ("value", "body"),
    [
        ({"message": "Hello, world!", "n": [1, 2]}, b'{"message":"Hello, world!","n":[1,2]}'),
        ("Hello, \u00fc", "Hello, \u00fc".encode()),
        (["hello", 3, True], b'["hello",3,true]'),
        (None, b"null"),
        (7, b"7"),
        ({"large": 10**30, "exact": 0.1}, b'{"large":1000000000000000000000000000000,"exact":0.1}'),
    ],
)
def test_an_answer_without_a_status_is_text_as_it_is_or_json_without_spaces(value: Any, body: bytes) -> None:
    got = response(json.dumps(value).encode())
    assert (got.status, got.headers, got.body) == (200, [(b"content-type", b"application/json")], body)


def test_a_body_that_is_an_object_is_sent_as_json() -> None:
    assert response(b'{"statusCode": 200, "body": {"a": [1, 2]}}').body == b'{"a":[1,2]}'
    assert response(b'{"statusCode": 200, "body": [1, {"b": null}]}').body == b'[1,{"b":null}]'


def test_an_answer_with_a_status_is_taken_as_told_and_is_json_where_it_does_not_say() -> None:
    got = response(b'{"statusCode": 201, "headers": {"My-Header": "v"}, "cookies": ["c=1", "d=2"], "body": "{}"}')
    cookies = [(b"set-cookie", b"c=1"), (b"set-cookie", b"d=2")]
    assert got.headers == [(b"my-header", b"v"), *cookies, (b"content-type", b"application/json")]
    assert (got.status, got.body) == (201, b"{}")


@pytest.mark.parametrize("payload", [b"broken", b'{"statusCode": 42}', b'{"statusCode": 200, "body": 7}'])
def test_a_malformed_answer_is_refused_as_such(payload: bytes) -> None:
    with pytest.raises(MalformedResponseError):
        response(payload)
