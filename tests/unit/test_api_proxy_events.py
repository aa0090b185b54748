"""`thawd.server.emulator.api_gateway.rest.proxy_events`: events and answers of proxy integrations of REST APIs.

Source: API Gateway developer guide, "Lambda proxy integrations in API Gateway". The shapes were recorded on AWS
(published as snapshots of the tests of LocalStack, `test_apigateway_lambda`, recorded 2024).
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.unit.rest_calls import call, definition
from thawd.gateway.routes.payload_formats import MalformedResponseError
from thawd.server.emulator.api_gateway.rest.proxy_events import proxy_event, proxy_response, request_authorizer_event


def test_the_event_has_the_fields_of_awss_and_no_others() -> None:
    event = proxy_event(call("/pets/7"))
    assert event.keys() == {
        "resource", "path", "httpMethod", "headers", "multiValueHeaders", "queryStringParameters",
        "multiValueQueryStringParameters", "pathParameters", "stageVariables", "requestContext", "body",
        "isBase64Encoded",
    }  # fmt: skip
    assert event["requestContext"].keys() == {
        "accountId", "apiId", "deploymentId", "domainName", "domainPrefix", "extendedRequestId", "httpMethod",
        "identity", "path", "protocol", "requestId", "requestTime", "requestTimeEpoch", "resourceId", "resourcePath",
        "stage",
    }  # fmt: skip
    assert event["requestContext"]["identity"].keys() == {
        "accessKey", "accountId", "caller", "cognitoAuthenticationProvider", "cognitoAuthenticationType",
        "cognitoIdentityId", "cognitoIdentityPoolId", "principalOrgId", "sourceIp", "user", "userAgent", "userArn",
    }  # fmt: skip


def test_what_a_request_does_not_have_is_null() -> None:
    event = proxy_event(call("/pets", resource="/pets", parameters={}))
    absent = (
        "queryStringParameters",
        "multiValueQueryStringParameters",
        "pathParameters",
        "stageVariables",
        "body",
    )
    assert [event[name] for name in absent] == [None] * 5


def test_single_values_are_the_last_ones_and_several_are_lists() -> None:
    made = call(query="price=10&price=20&a=x+y&e=", headers=[("x-many", "1"), ("x-many", "2")])
    event = proxy_event(made)
    assert event["queryStringParameters"] == {"price": "20", "a": "x y", "e": ""}
    assert event["multiValueQueryStringParameters"]["price"] == ["10", "20"]
    assert (event["headers"]["X-Many"], event["multiValueHeaders"]["X-Many"]) == ("2", ["1", "2"])


@pytest.mark.parametrize(
    ("sent", "path", "shown"),
    [
        ("/pets/7", "/pets/7", "/dev/pets/7"),
        ("/pets/7/", "/pets/7/", "/dev/pets/7/"),
        ("//pets/7", "/pets/7", "/dev//pets/7"),
        ("/a//b", "/a//b", "/dev/a//b"),
        ("/test%2Balias", "/test%2Balias", "/dev/test%2Balias"),
        ("", "/", "/dev"),
    ],
)
def test_the_path_is_as_it_was_sent(sent: str, path: str, shown: str) -> None:
    event = proxy_event(call(sent))
    assert (event["path"], event["requestContext"]["path"]) == (path, shown)


def test_with_a_custom_domain_the_path_begins_with_the_base_path() -> None:
    event = proxy_event(call("/pets/7", base_path="shop"))
    assert (event["path"], event["requestContext"]["path"]) == ("/shop/pets/7", "/shop/pets/7")
    bare = proxy_event(call("/pets/7", base_path=""))
    assert (bare["path"], bare["requestContext"]["path"]) == ("/pets/7", "/pets/7")


def test_headers_of_the_connection_are_not_in_the_event() -> None:
    left_out = ("connection", "content-length", "transfer-encoding", "expect", "te", "upgrade")
    headers = proxy_event(call(headers=[(name, "x") for name in left_out]))["headers"]
    assert headers == {
        "Host": "abc.execute-api.localhost:8350",
        "X-Forwarded-For": "127.0.0.1",
        "X-Forwarded-Port": "8350",
        "X-Forwarded-Proto": "http",
    }


@pytest.mark.parametrize(
    ("kinds", "content_type", "is_base64"),
    [
        ([], "image/png", False),
        (["image/png"], "image/png", True),
        (["image~1png"], "image/png", True),
        (["image/*"], "image/png; q=1", True),
        (["*/*"], "application/json", True),
        (["image/png"], "application/json", False),
    ],
)
def test_a_body_of_a_binary_media_type_is_base64(kinds: list[str], content_type: str, is_base64: bool) -> None:
    deployed = definition(settings={"binaryMediaTypes": kinds})
    made = call(body=b"abc", headers=[("content-type", content_type)], deployed=deployed)
    event = proxy_event(made)
    assert (event["isBase64Encoded"], event["body"]) == (is_base64, "YWJj" if is_base64 else "abc")


def test_the_event_of_a_request_authorizer_has_empty_objects_and_no_body() -> None:
    event = request_authorizer_event(call("/pets", resource="/pets", parameters={}, body=b"x", method="POST"))
    assert (event["type"], event["methodArn"]) == (
        "REQUEST",
        "arn:aws:execute-api:us-east-1:000000000000:abc/dev/POST/pets",
    )
    assert (event["pathParameters"], event["queryStringParameters"], event["stageVariables"]) == ({}, {}, {})
    assert "body" not in event


def answered(answer: Any, accept: str | None = None, kinds: tuple[str, ...] = ()) -> Any:
    return proxy_response(json.dumps(answer).encode(), accept=accept, binary_types=list(kinds))


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        ({"statusCode": 200}, 200, b""),
        ({"statusCode": "201"}, 201, b""),
        ({"statusCode": 200, "headers": None}, 200, b""),
        ({"headers": {"test-header": "value"}}, 200, b""),
        ({"statusCode": 200, "body": "text"}, 200, b"text"),
        ({"statusCode": 200, "body": None}, 200, b""),
        ({"statusCode": 204, "body": "left out"}, 204, b""),
    ],
)
def test_answers_that_aws_accepts(answer: Any, status: int, body: bytes) -> None:
    response = answered(answer)
    assert (response.status, response.body) == (status, body)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        "justAString",
        None,
        [],
        {"statusCode": 200, "wrongValue": "value"},
        {"statusCode": "test"},
        {"statusCode": 99},
        {"statusCode": True},
        {"statusCode": 200, "body": {"not": "text"}},
        {"statusCode": 200, "multiValueHeaders": {"test-multi-invalid": "value1"}},
        {"statusCode": 200, "headers": ["a"]},
        {"statusCode": 200, "headers": {"a": "line\nbreak"}},
    ],
)
def test_answers_that_aws_calls_malformed(answer: Any) -> None:
    with pytest.raises(MalformedResponseError):
        answered(answer)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"headers": {"header-bool": True}}, [("header-bool", "true")]),
        ({"multiValueHeaders": {"a": ["1", "2"]}}, [("a", "1"), ("a", "2")]),
        ({"multiValueHeaders": {"a": ["multi"]}, "headers": {"a": "solo"}}, [("a", "multi"), ("a", "solo")]),
        ({"multiValueHeaders": {"tesT-A": ["m"]}, "headers": {"test-a": "s"}}, [("tesT-A", "m"), ("tesT-A", "s")]),
        ({"multiValueHeaders": {"a": ["1"]}, "headers": {"a": "1"}}, [("a", "1")]),
        ({"headers": {"content-length": "7", "connection": "close"}}, []),
    ],
)
def test_headers_of_both_fields_are_joined_as_on_aws(answer: Any, expected: list[tuple[str, str]]) -> None:
    response = answered({"statusCode": 200, **answer})
    assert response.headers == [*expected, ("Content-Type", "application/json")]


@pytest.mark.parametrize(
    ("accept", "kinds", "is_decoded"),
    [
        (None, (), False),
        ("image/png", ("image/png",), True),
        ("image/png, */*", ("image/png",), True),
        ("text/html, image/png", ("image/png",), False),
        (None, ("*/*",), True),
    ],
)
def test_a_base64_body_is_decoded_if_the_first_accepted_type_is_binary(
    accept: str | None, kinds: tuple[str, ...], is_decoded: bool
) -> None:
    text = base64.b64encode(b"test-data").decode()
    response = answered({"statusCode": 200, "body": text, "isBase64Encoded": True}, accept, kinds)
    assert response.body == (b"test-data" if is_decoded else text.encode())
