"""`thawd.server.emulator.api_gateway.http`: events, variables and parameter mappings of HTTP APIs.

Source: API Gateway developer guide, "Create AWS Lambda proxy integrations for HTTP APIs in API Gateway", "Control
access to HTTP APIs with AWS Lambda authorizers" and "Transform API requests and responses for HTTP APIs".
"""

from __future__ import annotations

from typing import Any

import pytest

from thawd.gateway.aws.api_messages import ApiRequest
from thawd.server.emulator.api_gateway.http.calls import HttpCall, authorizer_event, event, filled, value_of
from thawd.server.emulator.api_gateway.http.definitions import HttpDefinition
from thawd.server.emulator.api_gateway.http.errors import HttpError
from thawd.server.emulator.api_gateway.http.parameters import change_request, changed_response
from thawd.server.emulator.api_gateway.integration_requests import EndpointAnswer, OutgoingRequest


def call(**fields: Any) -> HttpCall:
    request = ApiRequest(
        "abc",
        in_host=True,
        method="POST",
        path="/dev/pets/7",
        sent_path="/dev/pets/7",
        query="a=1&a=2&b=x%20y",
        headers=[("host", "abc.execute-api.localhost:8350"), ("x-many", "1"), ("x-many", "2"), ("cookie", "c=1; d=2")],
        body=b'{"n": {"s": "t"}}',
    )
    given: dict[str, Any] = {
        "request": request,
        "api_id": "abc",
        "stage": "dev",
        "variables": {"color": "red"},
        "definition": HttpDefinition([], {}, {}, None),
        "path": "/pets/7",
        "raw_path": "/dev/pets/7",
        "request_id": "r-1",
        "now_s": 1_700_000_000.0,
        "route": {"routeKey": "POST /pets/{id}"},
        "parameters": {"id": "7"},
    }
    return HttpCall(**{**given, **fields})


def test_the_event_of_format_2_0_names_api_stage_and_route() -> None:
    made = event(call(), "2.0")
    assert made.keys() == {
        "version", "routeKey", "rawPath", "rawQueryString", "cookies", "headers", "queryStringParameters",
        "requestContext", "body", "pathParameters", "isBase64Encoded", "stageVariables",
    }  # fmt: skip
    assert (made["routeKey"], made["rawPath"], made["cookies"]) == ("POST /pets/{id}", "/dev/pets/7", ["c=1", "d=2"])
    assert (made["headers"]["x-many"], made["queryStringParameters"]) == ("1,2", {"a": "1,2", "b": "x y"})
    context = made["requestContext"]
    assert context.keys() == {
        "accountId", "apiId", "domainName", "domainPrefix", "http", "requestId", "routeKey", "stage", "time",
        "timeEpoch",
    }  # fmt: skip
    assert (context["apiId"], context["stage"], context["domainName"]) == ("abc", "dev", "abc.execute-api.localhost")
    assert context["http"]["path"] == "/dev/pets/7"


def test_the_event_of_format_1_0_has_several_values_and_a_flat_authorizer() -> None:
    said = {"lambda": {"caller": "anna"}}
    made = event(call(authorizer=said), "1.0")
    assert (made["version"], made["resource"], made["path"]) == ("1.0", "/pets/{id}", "/dev/pets/7")
    assert made["multiValueHeaders"]["x-many"] == ["1", "2"]
    assert made["requestContext"]["authorizer"] == {"caller": "anna"}
    assert event(call(), "1.0")["requestContext"]["authorizer"] == {"claims": None, "scopes": None}
    assert event(call(authorizer=said), "2.0")["requestContext"]["authorizer"] == said


def test_the_events_of_authorizers_have_the_identity_and_no_body() -> None:
    arn = "arn:aws:execute-api:us-east-1:000000000000:abc/dev/POST/pets/7"
    second = authorizer_event(call(), "2.0", ["user1", "123"])
    assert (second["version"], second["type"], second["routeArn"]) == ("2.0", "REQUEST", arn)
    assert (second["identitySource"], second["routeKey"], "body" in second) == (
        ["user1", "123"],
        "POST /pets/{id}",
        False,
    )
    first = authorizer_event(call(), "1.0", ["user1", "123"])
    assert (first["version"], first["type"], first["methodArn"]) == ("1.0", "REQUEST", arn)
    assert (first["identitySource"], first["authorizationToken"], "body" in first) == ("user1,123", "user1,123", False)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("request.header.X-Many", "1,2"),
        ("request.header.none", None),
        ("request.querystring.a", "1,2"),
        ("request.path", "/pets/7"),
        ("request.path.id", "7"),
        ("request.body", '{"n": {"s": "t"}}'),
        ("request.body.n.s", "t"),
        ("request.body.n", '{"s": "t"}'),
        ("request.body.none", None),
        ("context.routeKey", "POST /pets/{id}"),
        ("context.identity.sourceIp", "127.0.0.1"),
        ("context.authorizer.caller", "anna"),
        ("context.none", None),
        ("stageVariables.color", "red"),
        ("response.header.x", None),
    ],
)
def test_the_value_of_a_variable(name: str, expected: str | None) -> None:
    assert value_of(name, call(authorizer={"lambda": {"caller": "anna"}})) == expected


def test_variables_are_filled_into_texts() -> None:
    assert filled("/to/$request.path.id?c=${stageVariables.color}-x", call()) == "/to/7?c=red-x"
    assert filled("fixed", call()) == "fixed"


def test_mappings_append_overwrite_and_remove() -> None:
    request = OutgoingRequest("POST", "https://h.example/a", {"q": ["1"], "s": ["2"]}, [("A", "1"), ("b", "2")])
    change_request(
        request,
        {
            "append:header.a": "$request.path.id",
            "overwrite:header.B": "x",
            "remove:querystring.s": "''",
            "append:querystring.q": "$context.stage",
            "overwrite:path": "/to/$request.path.id",
        },
        call(),
    )
    assert request.headers == [("A", "1"), ("a", "7"), ("B", "x")]
    assert (request.query, request.url) == ({"q": ["1", "dev"]}, "https://h.example/to/7")


def test_a_response_is_changed_as_the_mapping_for_its_status_says() -> None:
    answer = EndpointAnswer(404, [("X-Old", "1"), ("Y", "2")], b"")
    mappings = {
        "404": {"overwrite:statuscode": "200", "append:header.new": "$response.header.x-old", "remove:header.y": "''"}
    }
    assert changed_response(answer, mappings, call()) == (200, [("X-Old", "1"), ("new", "1")])
    assert changed_response(answer, {"500": {"overwrite:statuscode": "200"}}, call())[0] == 404


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (401, b'{"message":"Unauthorized"}'),
        (403, b'{"message":"Forbidden"}'),
        (404, b'{"message":"Not Found"}'),
        (500, b'{"message":"Internal Server Error"}'),
        (503, b'{"message":"Service Unavailable"}'),
    ],
)
def test_errors_have_awss_words(status: int, body: bytes) -> None:
    assert (HttpError(status).response().status, HttpError(status).response().body) == (status, body)
