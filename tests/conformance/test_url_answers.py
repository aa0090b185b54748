"""Function URLs: what a handler's answer becomes over HTTP, and the event that a request becomes.

Source: AWS Lambda developer guide, "Invoking Lambda function URLs"; the answers were observed on AWS.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from .conftest import Lambda, zipped

HANDLER = """
import json

def handler(event, context):
    if event["rawPath"] == "/event":
        return event
    if event["rawPath"] == "/fail":
        raise ValueError("as asked")
    return json.loads(event["body"])
"""


class Reply(NamedTuple):
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    cookies: list[str]


@pytest.fixture(scope="module")
def url(aws: Lambda) -> str:
    """The URL of a function that returns what its request's body is."""
    name = aws.create(Code={"ZipFile": zipped(app__py=HANDLER)})
    return str(aws.client.create_function_url_config(FunctionName=name, AuthType="NONE")["FunctionUrl"])


@pytest.fixture(scope="module")
def connection(url: str) -> Iterator[http.client.HTTPConnection]:
    """A connection to the server."""
    made = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    yield made
    made.close()


class Caller:
    """Sends requests to the URL."""

    def __init__(self, connection: http.client.HTTPConnection, url: str) -> None:
        self._connection = connection
        self._base = urlsplit(url).path

    def __call__(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, self._base + path, body=body, headers=named)
        answer = self._connection.getresponse()
        content = answer.read()
        cookies = answer.headers.get_all("set-cookie") or []
        return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, content, cookies)


@pytest.fixture
def call(connection: http.client.HTTPConnection, url: str) -> Caller:
    """Something that sends requests to the URL."""
    return Caller(connection, url)


JSON, HTML = "application/json", "text/html"
RETURNED: dict[str, tuple[Any, int, str, bytes]] = {
    "an-object": ({"hello": "world"}, 200, JSON, b'{"hello":"world"}'),
    "a-list": (["hello", 3, True], 200, JSON, b'["hello",3,true]'),
    "a-string": ("hello", 200, JSON, b"hello"),
    "an-integer": (3, 200, JSON, b"3"),
    "a-float": (3.1, 200, JSON, b"3.1"),
    "true": (True, 200, JSON, b"true"),
    "null": (None, 200, JSON, b"null"),
    "a-response": ({"statusCode": 200, "body": "body123"}, 200, JSON, b"body123"),
    "a-response-with-json": ({"statusCode": 200, "body": '{"hello": "world"}'}, 200, JSON, b'{"hello": "world"}'),
    "a-response-with-an-object": ({"statusCode": 200, "body": {"hello": "world"}}, 200, JSON, b'{"hello":"world"}'),
    "another-status": ({"statusCode": 201, "body": "made"}, 201, JSON, b"made"),
    "a-status-as-text": ({"statusCode": "404", "body": "none"}, 404, JSON, b"none"),
    "no-body": ({"statusCode": 204}, 204, "", b""),
    "another-type": ({"statusCode": 200, "headers": {"Content-Type": "text/html"}, "body": "<p>"}, 200, HTML, b"<p>"),
    "base64": ({"statusCode": 200, "isBase64Encoded": True, "body": "/wA="}, 200, JSON, b"\xff\x00"),
}  # fmt: skip


@pytest.mark.parametrize("what", RETURNED)
def test_what_a_handler_returns_is_sent_as_on_aws(call: Caller, what: str) -> None:
    returned, status, kind, body = RETURNED[what]
    reply = call("POST", "", json.dumps(returned).encode(), Content_Type=JSON)
    assert (reply.status, reply.body) == (status, body)
    assert reply.headers.get("content-type", "") in (kind, *([JSON] if status == 204 else []))
    assert status == 204 or reply.headers["content-length"] == str(len(body))
    assert reply.headers["x-amzn-requestid"]


def test_cookies_and_headers_are_sent(call: Caller) -> None:
    returned = {"statusCode": 200, "cookies": ["a=1; Secure", "b=2"], "headers": {"X-Own": "value"}, "body": ""}
    reply = call("POST", "", json.dumps(returned).encode(), Content_Type=JSON)
    assert (reply.cookies, reply.headers["x-own"]) == (["a=1; Secure", "b=2"], "value")


def test_a_function_that_fails_is_a_bad_gateway(call: Caller) -> None:
    reply = call("GET", "fail")
    assert (reply.status, reply.body) == (502, b"Internal Server Error")


def test_a_request_becomes_an_event_of_version_2(call: Caller) -> None:
    reply = call(
        "POST", "event?q=query&m=foo&m=bar", b'{"a": 1}', Content_Type=JSON, X_Own="Weird Caps", Cookie="a=1; b=2"
    )
    event = json.loads(reply.body)
    assert set(event) == {
        "version", "routeKey", "rawPath", "rawQueryString", "cookies", "headers", "queryStringParameters",
        "requestContext", "body", "isBase64Encoded", "pathParameters", "stageVariables",
    }  # fmt: skip
    assert event["pathParameters"] is event["stageVariables"] is None, "as in the developer guide's example"
    assert (event["version"], event["routeKey"], event["rawPath"]) == ("2.0", "$default", "/event")
    assert event["rawQueryString"] == "q=query&m=foo&m=bar"
    assert event["queryStringParameters"] == {"q": "query", "m": "foo,bar"}
    assert (event["body"], event["isBase64Encoded"]) == ('{"a": 1}', False)
    assert event["cookies"] == ["a=1", "b=2"]
    assert (event["headers"]["x-own"], event["headers"]["content-type"]) == ("Weird Caps", JSON)
    context = event["requestContext"]
    assert set(context) >= {
        "accountId", "apiId", "domainName", "domainPrefix", "http", "requestId", "routeKey", "stage", "time",
        "timeEpoch",
    }  # fmt: skip
    assert (context["accountId"], context["routeKey"], context["stage"]) == ("anonymous", "$default", "$default")
    assert set(context["http"]) == {"method", "path", "protocol", "sourceIp", "userAgent"}
    assert (context["http"]["method"], context["http"]["path"]) == ("POST", "/event")
    assert context["requestId"] == reply.headers["x-amzn-requestid"]


@pytest.mark.parametrize(
    ("kind", "is_binary"),
    [
        (JSON, False),
        ("text/plain", False),
        ("application/xml", False),
        ("image/png", True),
        ("multipart/form-data; boundary=x", True),
    ],
)  # fmt: skip
def test_a_body_that_is_no_text_is_encoded(call: Caller, kind: str, is_binary: bool) -> None:
    event = json.loads(call("POST", "event", b"some text", Content_Type=kind).body)
    assert event["isBase64Encoded"] is is_binary
    assert event["body"] == ("c29tZSB0ZXh0" if is_binary else "some text")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_every_method_reaches_the_function(call: Caller, method: str) -> None:
    reply = call(method, "event")
    assert reply.status == 200
    if method != "HEAD":
        event = json.loads(reply.body)
        assert event["requestContext"]["http"]["method"] == method
        assert not event.get("body")
