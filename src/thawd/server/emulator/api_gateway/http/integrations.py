"""Calls the integration of an HTTP API's route and makes the response.

Source: API Gateway developer guide, "Create integrations for HTTP APIs in API Gateway": Lambda functions in payload
formats 1.0 and 2.0, HTTP endpoints, AWS services.
"""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qsl

from thawd.gateway.aws.api_messages import ApiResponse
from thawd.gateway.routes import payload_format_1, payload_format_2
from thawd.gateway.routes.payload_formats import MalformedResponseError
from thawd.server.emulator import template_values
from thawd.server.emulator.api_gateway.api_services import ApiServices
from thawd.server.emulator.api_gateway.function_invocations import (
    InvocationFailed,
    InvocationTimeout,
    function_in,
    with_variables,
)
from thawd.server.emulator.api_gateway.http import parameters
from thawd.server.emulator.api_gateway.http.calls import HttpCall, event, filled
from thawd.server.emulator.api_gateway.http.definitions import Fields
from thawd.server.emulator.api_gateway.http.errors import HttpError
from thawd.server.emulator.api_gateway.integration_requests import (
    EndpointFailed,
    EndpointTimeout,
    OutgoingRequest,
    local_request,
    send,
)

_TIMEOUT_MS = 30_000
_PATH_VARIABLE = re.compile(r"\{(\w+)\+?\}")
_NOT_PASSED_ON = frozenset(
    {"connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect"}
)
_SERVICES = {"EventBridge": "events", "SQS": "sqs", "StepFunctions": "stepfunctions", "Kinesis": "kinesis"}


def integrate(call: HttpCall, services: ApiServices) -> ApiResponse:
    """Call the integration of a route and make the response.

    Raises:
        HttpError: the integration failed, or its definition is wrong.
    """
    target = (call.route.get("target") or "").removeprefix("integrations/")
    integration = call.definition.integrations.get(target)
    if integration is None:
        raise HttpError(500, reason=f"the route {call.route['routeKey']} has no integration")
    timeout_s = int(integration.get("timeoutInMillis") or _TIMEOUT_MS) / 1000
    try:
        if integration.get("integrationSubtype"):
            return _service(call, integration, services)
        if integration.get("integrationType") == "AWS_PROXY":
            return _function(call, integration, services, timeout_s)
        if integration.get("integrationType") == "HTTP_PROXY":
            return _endpoint(call, integration, services, timeout_s)
    except (InvocationTimeout, EndpointTimeout, EndpointFailed) as error:
        raise HttpError(503, reason=str(error)) from error
    except (InvocationFailed, MalformedResponseError) as error:
        raise HttpError(500, reason=str(error)) from error
    raise HttpError(500, reason=f"integrations of the type {integration.get('integrationType')} cannot be served")


def _function(call: HttpCall, integration: Fields, services: ApiServices, timeout_s: float) -> ApiResponse:
    function = function_in(with_variables(integration.get("integrationUri") or "", call.variables))
    if function is None:
        raise HttpError(500, reason=f"the integration's URI names no function: {integration.get('integrationUri')}")
    version = integration.get("payloadFormatVersion") or "1.0"
    answer = services.functions.invoke(
        function,
        json.dumps(event(call, version)).encode(),
        timeout_s=timeout_s,
        trace=call.request.header("x-amzn-trace-id") or "",
    )
    if answer.is_error:
        raise HttpError(500, reason="the function failed")
    made = (payload_format_1 if version == "1.0" else payload_format_2).response(answer.payload)
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in made.headers]
    return ApiResponse(made.status, headers, made.body)


def _endpoint(call: HttpCall, integration: Fields, services: ApiServices, timeout_s: float) -> ApiResponse:
    uri = with_variables(integration.get("integrationUri") or "", call.variables)
    url = _PATH_VARIABLE.sub(lambda match: call.parameters.get(match[1], match[0]), uri)
    method = integration.get("integrationMethod") or "ANY"
    query: dict[str, list[str]] = {}
    for name, value in parse_qsl(call.request.query, keep_blank_values=True):
        query.setdefault(name, []).append(value)
    host = call.request.header("host") or ""
    headers = [(name, value) for name, value in call.request.headers if name not in _NOT_PASSED_ON]
    headers.append(("forwarded", f"by=127.0.0.1;for={call.request.source_ip};host={host};proto=http"))
    request = OutgoingRequest(
        call.request.method if method == "ANY" else method, url, query, headers, call.request.body
    )
    parameters.change_request(request, integration.get("requestParameters") or {}, call)
    answer = send(local_request(request, services.connection), timeout_s=timeout_s)
    status, made = parameters.changed_response(answer, integration.get("responseParameters") or {}, call)
    kept = [(name, value) for name, value in made if name.lower() not in (*_NOT_PASSED_ON, "date", "server")]
    return ApiResponse(status, kept, answer.body)


def _service(call: HttpCall, integration: Fields, services: ApiServices) -> ApiResponse:
    """Call an operation of an AWS service, such as ``SQS-SendMessage``, with the integration's parameters."""
    from botocore.exceptions import BotoCoreError, ClientError

    name, _, operation = str(integration["integrationSubtype"]).partition("-")
    client = services.client(_SERVICES.get(name, name.lower()))
    methods = {api: method for method, api in client.meta.method_to_api_mapping.items()}
    if operation not in methods:
        raise HttpError(500, reason=f"{name} has no operation {operation}")
    values = {key: _value(filled(text, call)) for key, text in (integration.get("requestParameters") or {}).items()}
    values.pop("Region", None)
    if name == "EventBridge" and operation == "PutEvents":
        values = {"Entries": [values]}
    shape = client.meta.service_model.operation_model(operation).input_shape
    try:
        answer = getattr(client, methods[operation])(**template_values.fitted(shape, values))
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        document: Any = {"message": error.response["Error"].get("Message", "")}
    except BotoCoreError as error:
        raise HttpError(500, reason=f"{name}-{operation}: {error}") from error
    else:
        status = 200
        document = {key: value for key, value in answer.items() if key != "ResponseMetadata"}
    return ApiResponse(status, [("Content-Type", "application/json")], json.dumps(document, default=str).encode())


def _value(text: str) -> Any:
    """Return the value of a parameter: JSON objects and arrays as such, other texts as they are."""
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text
