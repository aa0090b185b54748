"""`thawd.server.emulator.api_gateway.rest.integrations`: integrations with mappings, and the errors of REST APIs.

Source: API Gateway developer guide, "Set up mock integrations", "Integration passthrough behaviors", "Content type
conversions in API Gateway" and "Gateway response types". Recorded answers were published as snapshots of the tests of
LocalStack.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.unit.rest_calls import call, definition
from thawd.gateway.routes.payload_formats import MalformedResponseError
from thawd.server.emulator.api_gateway.api_services import ApiServices
from thawd.server.emulator.api_gateway.function_invocations import ApiFunctions, function_in, with_variables
from thawd.server.emulator.api_gateway.request_routing import sendable
from thawd.server.emulator.api_gateway.rest.gateway_responses import KINDS, GatewayError, response_for
from thawd.server.emulator.api_gateway.rest.integrations import integrate, select_response


def nothing(*_: Any) -> Any:
    raise AssertionError("not to be used here")


SERVICES = ApiServices(ApiFunctions(nothing), nothing, nothing, nothing)


def mock(template: str | None, responses: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    templates = {} if template is None else {"application/json": template}
    return {
        "type": "MOCK",
        "requestTemplates": templates,
        "integrationResponses": responses or {"200": {"statusCode": "200"}},
        **fields,
    }


@pytest.mark.parametrize(
    "template",
    [
        '{"statusCode": 200}',
        "{statusCode: 200}",  # the AWS CDK writes this
        "{'statusCode': 200}",
        '{"statusCode": 200, "more": {"a": 1}}',
    ],
)
def test_a_mock_integration_takes_its_status_from_the_template(template: str) -> None:
    assert integrate(call(integration=mock(template)), SERVICES).status == 200


@pytest.mark.parametrize("template", ["{}", '{"statusCode": "200"}', "statusCode: 200", '{"statusCode": true}', None])
def test_a_mock_integration_without_a_status_fails(template: str | None) -> None:
    with pytest.raises(GatewayError) as failed:
        integrate(call(integration=mock(template)), SERVICES)
    assert (failed.value.kind, failed.value.status) == ("DEFAULT_5XX", 500)


@pytest.mark.parametrize(
    ("behavior", "content_type", "is_refused"),
    [
        ("WHEN_NO_MATCH", "text/plain", False),
        ("WHEN_NO_TEMPLATES", "text/plain", True),
        ("NEVER", "text/plain", True),
        ("NEVER", "application/json; charset=utf-8", False),
        ("NEVER", None, False),
    ],
)
def test_a_body_without_a_template_passes_or_is_refused(
    behavior: str, content_type: str | None, is_refused: bool
) -> None:
    made = call(
        method="POST",
        body=b'{"statusCode": 200}',
        headers=[("content-type", content_type)] if content_type else [],
        integration=mock('{"statusCode": 200}', passthroughBehavior=behavior),
    )
    if is_refused:
        with pytest.raises(GatewayError) as refused:
            integrate(made, SERVICES)
        assert (refused.value.status, refused.value.message) == (415, "Unsupported Media Type")
    else:
        assert integrate(made, SERVICES).status == 200


RESPONSES = {
    "200": {"statusCode": "200"},
    "400": {"statusCode": "400", "selectionPattern": ".*four hundred.*"},
    "500": {"statusCode": "500", "selectionPattern": r"5\d{2}"},
}


@pytest.mark.parametrize(
    ("selector", "status"),
    [("", "200"), ("raising four hundred here", "400"), ("503", "500"), ("5030", "200"), ("other", "200")],
)
def test_the_pattern_that_matches_all_of_the_error_selects_the_response(selector: str, status: str) -> None:
    assert select_response(selector, RESPONSES)["statusCode"] == status


def test_without_a_response_that_fits_the_configuration_is_wrong() -> None:
    with pytest.raises(GatewayError) as failed:
        select_response("x", {"400": RESPONSES["400"]})
    assert failed.value.kind == "API_CONFIGURATION_ERROR"


def test_the_response_has_mapped_headers_template_and_overrides() -> None:
    responses = {
        "200": {
            "statusCode": "200",
            "responseParameters": {"method.response.header.X-A": "'1'", "method.response.header.Date": "'now'"},
            "responseTemplates": {
                "application/json": "#set($context.responseOverride.status = 418)"
                '#set($context.responseOverride.header.X-B = "2")hello $input.params("id")'
            },
        }
    }
    response = integrate(call(integration=mock('{"statusCode": 200}', responses)), SERVICES)
    assert (response.status, response.body) == (418, b"hello 7")
    assert response.headers == [
        ("X-A", "1"), ("x-amzn-Remapped-Date", "now"), ("X-B", "2"), ("Content-Type", "application/json"),
    ]  # fmt: skip


def test_what_the_request_template_sets_reaches_the_response_template() -> None:
    template = '#set($context.responseOverride.header.X-Early = "yes"){"statusCode": 200}'
    response = integrate(call(integration=mock(template)), SERVICES)
    assert ("X-Early", "yes") in response.headers


@pytest.mark.parametrize(
    ("accept", "expected"),
    [("application/xml", b"<x/>"), ("application/json", b"{}"), ("text/plain", b"{}"), (None, b"{}")],
)
def test_the_requests_accept_selects_the_response_template(accept: str | None, expected: bytes) -> None:
    responses = {
        "200": {"statusCode": "200", "responseTemplates": {"application/xml": "<x/>", "application/json": "{}"}}
    }
    made = call(integration=mock('{"statusCode": 200}', responses), headers=[("accept", accept)] if accept else [])
    assert integrate(made, SERVICES).body == expected


class Functions:
    """A stand-in for thawd's Lambda API, which answers with what it is told to."""

    def __init__(self, answer: Any, *, is_error: bool = False) -> None:
        self.answer, self.is_error = answer, is_error
        self.invoked: list[dict[str, Any]] = []
        self.meta = self
        self.events = self

    def register(self, *_: Any) -> None:
        """Accept the handler that adds the trace header."""

    def invoke(self, **given: Any) -> dict[str, Any]:
        self.invoked.append(given)
        body = self

        class Payload:
            def read(self) -> bytes:
                return json.dumps(body.answer).encode()

        return {"Payload": Payload(), **({"FunctionError": "Unhandled"} if self.is_error else {})}


URI = "arn:aws:apigateway:us-east-1:lambda:path/2015-03-31/functions/{}/invocations"
ARN = "arn:aws:lambda:us-east-1:000000000000:function:f"


def behind(functions: Functions) -> ApiServices:
    return ApiServices(ApiFunctions(lambda: functions), nothing, nothing, nothing)


def aws(**fields: Any) -> dict[str, Any]:
    return {
        "type": "AWS",
        "uri": URI.format(ARN),
        "httpMethod": "POST",
        "integrationResponses": {"200": {"statusCode": "200"}},
        **fields,
    }


def test_a_function_gets_what_the_template_makes_and_its_answer_is_the_body() -> None:
    functions = Functions("Pass")
    integration = aws(requestTemplates={"application/json": '{"id": "$input.params("id")"}'})
    response = integrate(call(integration=integration), behind(functions))
    assert (response.status, response.body) == (200, b'"Pass"')
    (invoked,) = functions.invoked
    assert (invoked["FunctionName"], invoked["InvocationType"], invoked["Payload"]) == (
        ARN,
        "RequestResponse",
        b'{"id": "7"}',
    )


def test_the_header_x_amz_invocation_type_makes_the_invocation_asynchronous() -> None:
    functions = Functions(None)
    integration = aws(requestParameters={"integration.request.header.X-Amz-Invocation-Type": "'Event'"})
    integrate(call(integration=integration, method="POST", body=b"{}"), behind(functions))
    assert functions.invoked[0]["InvocationType"] == "Event"


def test_a_function_with_another_method_than_post_is_a_mistake_of_the_configuration() -> None:
    with pytest.raises(GatewayError) as failed:
        integrate(call(integration=aws(httpMethod="GET")), behind(Functions({})))
    assert failed.value.status == 500


def test_the_converted_answer_of_a_function_is_binary() -> None:
    functions = Functions(base64.b64encode(b"\x89PNG").decode())
    responses = {"200": {"statusCode": "200", "contentHandling": "CONVERT_TO_BINARY"}}
    response = integrate(call(integration=aws(integrationResponses=responses)), behind(functions))
    assert response.body == b"\x89PNG"


def test_a_binary_request_becomes_text_before_the_template() -> None:
    functions = Functions({})
    integration = aws(contentHandling="CONVERT_TO_TEXT", requestTemplates={"image/png": '{"picture": "$input.body"}'})
    made = call(
        method="POST",
        body=b"\x89PNG",
        headers=[("content-type", "image/png")],
        integration=integration,
        deployed=definition(settings={"binaryMediaTypes": ["image/png"]}),
    )
    integrate(made, behind(functions))
    assert functions.invoked[0]["Payload"] == b'{"picture": "iVBORw=="}'


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        (URI.format(ARN), ARN),
        (URI.format(ARN + ":live"), ARN + ":live"),
        (ARN, ARN),
        (ARN + ":1", ARN + ":1"),
        ("arn:aws:apigateway:us-east-1:sqs:path/x", None),
        ("https://example.com/functions", None),
    ],
)
def test_the_function_in_a_uri(uri: str, expected: str | None) -> None:
    assert function_in(uri) == expected


def test_stage_variables_are_filled_into_uris() -> None:
    assert with_variables("f:${stageVariables.alias}-${stageVariables.none}", {"alias": "live"}) == "f:live-"


def refused(error: GatewayError, configured: dict[str, Any] | None = None) -> Any:
    def render(template: str, variables: dict[str, Any]) -> str:
        return template.replace("$context.error.messageString", variables["messageString"])

    return response_for(error, configured or {}, render=render, value_of=lambda text: text.strip("'"))


@pytest.mark.parametrize(
    ("kind", "status", "body"),
    [
        ("MISSING_AUTHENTICATION_TOKEN", 403, b'{"message":"Missing Authentication Token"}'),
        ("INVALID_API_KEY", 403, b'{"message":"Forbidden"}'),
        ("UNAUTHORIZED", 401, b'{"message":"Unauthorized"}'),
        ("ACCESS_DENIED", 403, b'{"Message":"User is not authorized to access this resource"}'),
        ("AUTHORIZER_CONFIGURATION_ERROR", 500, b'{"message":null}'),
        ("THROTTLED", 429, b'{"message":"Too Many Requests"}'),
        ("QUOTA_EXCEEDED", 429, b'{"message":"Limit Exceeded"}'),
        ("UNSUPPORTED_MEDIA_TYPE", 415, b'{"message":"Unsupported Media Type"}'),
        ("DEFAULT_5XX", 500, b'{"message": "Internal server error"}'),
        ("INTEGRATION_TIMEOUT", 504, b'{"message": "Endpoint request timed out"}'),
    ],
)
def test_errors_have_awss_status_type_and_body(kind: str, status: int, body: bytes) -> None:
    response = refused(GatewayError(kind))
    assert (response.status, response.body) == (status, body)
    assert ("x-amzn-ErrorType", KINDS[kind].error_type) in response.headers


def test_gateway_responses_change_errors_and_default_ones_those_without_their_own() -> None:
    configured = {
        "DEFAULT_4XX": {"responseParameters": {"gatewayresponse.header.X-From": "'default'"}},
        "UNAUTHORIZED": {
            "statusCode": "418",
            "responseTemplates": {"text/plain": "no: $context.error.messageString"},
        },
    }
    own = refused(GatewayError("UNAUTHORIZED"), configured)
    assert (own.status, own.body, dict(own.headers)["Content-Type"]) == (418, b'no: "Unauthorized"', "text/plain")
    assert dict(own.headers)["X-From"] == "default"
    other = refused(GatewayError("THROTTLED"), configured)
    assert (other.status, dict(other.headers)["X-From"]) == (429, "default")
    assert "X-From" not in dict(refused(GatewayError("DEFAULT_5XX"), configured).headers)


def test_a_part_of_a_request_that_cannot_be_in_a_header_fails_before_it_is_sent() -> None:
    responses = {
        "200": {
            "statusCode": "200",
            "responseParameters": {"method.response.header.X-Page": "method.request.querystring.page"},
        }
    }
    for query in ("page=1%0D%0ASet-Cookie:%20a=b", "page=1"):
        answer = integrate(call(query=query, integration=mock('{"statusCode": 200}', responses)), SERVICES)
        if query == "page=1":
            assert ("X-Page", "1") in sendable(answer).headers
        else:
            with pytest.raises(MalformedResponseError):
                sendable(answer)
