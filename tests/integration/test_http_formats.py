"""Payload format 1.0, stage variables and CORS end to end: a real client, a real function."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator

import pytest

from .conftest import Project, Running

CODE = """
import base64, json

def handler(event, context):
    if event["path" if event["version"] == "1.0" else "rawPath"].endswith("/image"):
        return {"statusCode": 201, "multiValueHeaders": {"Set-Cookie": ["a=1", "b=2"]},
                "headers": {"Content-Type": "image/png", "Access-Control-Allow-Origin": "https://other.example"},
                "isBase64Encoded": True, "body": base64.b64encode(bytes(range(256))).decode()}
    if event["path" if event["version"] == "1.0" else "rawPath"].endswith("/bare"):
        return {"just": "json"}
    return {"statusCode": 200, "body": json.dumps(event)}
"""
SHOP = "https://shop.example"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("formats"))
    project.code(CODE)
    project.config(
        """
        [functions.web]
        handler = "app.handler"
        [http]
        stage_variables = { mode = "test" }
        [http.cors]
        allow_origins = ["https://shop.example"]
        allow_methods = ["GET", "POST"]
        expose_headers = ["x-id"]
        [routes]
        "ANY /one/{proxy+}" = { function = "web", payload_format = "1.0" }
        "ANY /two/{proxy+}" = "web"
        """
    )
    with project.up() as server:
        yield server


def request(
    running: Running, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=30)
    try:
        connection.putrequest(method, path)
        for name, value in headers.items():
            for one in value.split("\n"):
                connection.putheader(name.replace("_", "-"), one)
        connection.putheader("Content-Length", str(len(body or b"")))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_format_1_keeps_several_values_apart(running: Running) -> None:
    status, _, body = request(
        running, "POST", "/one/a%2Fb?q=1&q=2", b"\xff\0", X_Many="1\n2", Content_Type="image/png", Cookie="a=1; b=2"
    )
    event = json.loads(body)
    assert (status, event["version"], event["resource"]) == (200, "1.0", "/one/{proxy+}")
    assert event["pathParameters"] == {"proxy": "a/b"}
    assert event["multiValueQueryStringParameters"] == {"q": ["1", "2"]}
    assert (event["headers"]["x-many"], event["multiValueHeaders"]["x-many"]) == ("2", ["1", "2"])
    assert event["headers"]["cookie"] == "a=1; b=2"
    assert event["stageVariables"] == {"mode": "test"}
    assert (base64.b64decode(event["body"]), event["isBase64Encoded"]) == (b"\xff\0", True)
    assert event["headers"]["x-amzn-trace-id"].startswith("Root=1-")


def test_format_2_joins_them(running: Running) -> None:
    event = json.loads(request(running, "GET", "/two/a?q=1&q=2", X_Many="1\n2", Cookie="a=1; b=2")[2])
    assert (event["version"], event["headers"]["x-many"], event["cookies"]) == ("2.0", "1,2", ["a=1", "b=2"])
    assert event["stageVariables"] == {"mode": "test"}


def test_an_answer_in_format_1_has_binary_body_and_several_cookies(running: Running) -> None:
    status, headers, body = request(running, "GET", "/one/image")
    assert (status, headers["content-type"], body) == (201, "image/png", bytes(range(256)))
    assert headers.get_all("set-cookie") == ["a=1", "b=2"]


def test_an_answer_without_a_status_is_json_in_format_2_and_malformed_in_format_1(running: Running) -> None:
    assert request(running, "GET", "/two/bare")[0] == 200
    status, _, body = request(running, "GET", "/one/bare")
    assert (status, json.loads(body)["message"]) == (500, "Internal Server Error")


def test_a_preflight_request_is_answered_and_runs_nothing(running: Running) -> None:
    before = running.function("web")["invocations"]
    status, headers, body = request(running, "OPTIONS", "/two/image", Origin=SHOP, Access_Control_Request_Method="POST")
    assert (status, body, headers["access-control-allow-origin"]) == (204, b"", SHOP)
    assert headers["access-control-allow-methods"] == "GET,POST"
    status, headers, _ = request(
        running, "OPTIONS", "/two/image", Origin="https://evil.example", Access_Control_Request_Method="POST"
    )
    assert (status, headers["access-control-allow-origin"]) == (204, None)
    assert running.function("web")["invocations"] == before


def test_allowed_pages_may_read_answers_and_others_run_nothing(running: Running) -> None:
    status, headers, _ = request(running, "GET", "/one/image", Origin=SHOP)
    assert (status, headers.get_all("access-control-allow-origin")) == (201, [SHOP])
    assert headers["access-control-expose-headers"] == "x-id"
    before = running.function("web")["invocations"]
    assert request(running, "GET", "/one/image", Origin="https://evil.example")[0] == 403
    assert running.function("web")["invocations"] == before
    assert request(running, "GET", "/_thawd/status", Origin=SHOP)[0] == 403
