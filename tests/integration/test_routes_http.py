"""HTTP routes end to end with a real client and a real function."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Project, Running

CODE = """
import base64, json

def handler(event, context):
    path = event["rawPath"]
    if path == "/raise":
        raise ValueError("inside")
    if path == "/plain":
        return {"just": "json"}
    if path == "/image":
        return {"statusCode": 201, "headers": {"Content-Type": "image/png"}, "isBase64Encoded": True,
                "body": base64.b64encode(bytes(range(256))).decode(), "cookies": ["a=1; Path=/", "b=2"]}
    if path == "/broken":
        return {"statusCode": "many"}
    if path == "/split":
        return {"statusCode": 200, "headers": {"X-Bad": "a\\r\\nSet-Cookie: stolen=1"}, "body": ""}
    return {"statusCode": 200, "headers": {"content-type": "application/json"}, "body": json.dumps(event)}
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("routes"))
    project.code(CODE)
    project.config(
        """
        [functions.web]
        handler = "app.handler"
        [routes]
        "POST /classify" = "web"
        "GET /items/{id}" = "web"
        "GET /items/special" = "web"
        "ANY /files/{path+}" = "web"
        "GET /raise" = "web"
        "GET /plain" = "web"
        "GET /image" = "web"
        "GET /broken" = "web"
        "GET /split" = "web"
        """
    )
    with project.up() as server:
        yield server


def request(
    running: Running, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=30)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def event_of(running: Running, *args: Any, **kwargs: Any) -> dict[str, Any]:
    status, _, body = request(running, *args, **kwargs)
    assert status == 200, body
    return json.loads(body)


def test_a_request_becomes_an_http_api_event(running: Running) -> None:
    event = event_of(
        running,
        "POST",
        "/classify?a=1&a=2&b=%20",
        b'{"x": 1}',
        {"Content-Type": "application/json", "Cookie": "s=1; t=2"},
    )
    assert event["version"] == "2.0"
    assert event["routeKey"] == "POST /classify"
    assert event["rawPath"] == "/classify"
    assert event["rawQueryString"] == "a=1&a=2&b=%20"
    assert event["queryStringParameters"] == {"a": "1,2", "b": " "}
    assert event["cookies"] == ["s=1", "t=2"]
    assert "cookie" not in event["headers"]
    assert (event["body"], event["isBase64Encoded"]) == ('{"x": 1}', False)
    assert event["requestContext"]["http"]["method"] == "POST"
    assert event["requestContext"]["http"]["sourceIp"] == "127.0.0.1"


def test_a_binary_body_arrives_as_base64(running: Running) -> None:
    event = event_of(running, "POST", "/classify", bytes(range(256)), {"Content-Type": "image/png"})
    assert event["isBase64Encoded"] is True
    assert base64.b64decode(event["body"]) == bytes(range(256))


def test_path_parameters_and_precedence(running: Running) -> None:
    assert event_of(running, "GET", "/items/a%20b")["pathParameters"] == {"id": "a b"}
    assert event_of(running, "GET", "/items/special")["routeKey"] == "GET /items/special"
    event = event_of(running, "DELETE", "/files/a/b/c.txt")
    assert (event["routeKey"], event["pathParameters"]) == ("ANY /files/{path+}", {"path": "a/b/c.txt"})


def test_a_binary_answer_with_cookies(running: Running) -> None:
    status, headers, body = request(running, "GET", "/image")
    assert (status, headers["content-type"], body) == (201, "image/png", bytes(range(256)))
    assert headers.get_all("set-cookie") == ["a=1; Path=/", "b=2"]


def test_an_answer_without_a_status_is_json(running: Running) -> None:
    status, headers, body = request(running, "GET", "/plain")
    assert (status, headers["content-type"], json.loads(body)) == (200, "application/json", {"just": "json"})


@pytest.mark.parametrize("path", ["/raise", "/broken", "/split"])
def test_failures_answer_500_and_leak_nothing(running: Running, path: str) -> None:
    status, headers, body = request(running, "GET", path)
    assert status == 500
    assert json.loads(body)["message"] == "Internal Server Error"
    assert b"inside" not in body
    assert "set-cookie" not in headers


def test_a_body_over_the_limit_answers_413(running: Running) -> None:
    status, _, body = request(running, "POST", "/classify", b"x" * 6_000_000)
    assert (status, json.loads(body)) == (413, {"message": "Request Entity Too Large"})


def test_unknown_paths_and_methods(running: Running) -> None:
    assert request(running, "GET", "/nowhere")[0] == 404
    status, headers, _ = request(running, "GET", "/classify")
    assert (status, headers["allow"]) == (405, "POST")


def test_the_default_route_takes_the_rest(project: Project) -> None:
    project.code(CODE)
    project.config('[functions.web]\nhandler = "app.handler"\n[routes]\n"$default" = "web"\n')
    with project.up() as running:
        event = event_of(running, "PATCH", "/any/thing")
        assert (event["routeKey"], event["rawPath"]) == ("$default", "/any/thing")
