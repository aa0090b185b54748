"""Calls the integration of a REST API's method and makes the method's response.

Source: API Gateway developer guide, "Choose an API Gateway API integration type", "Integration passthrough behaviors",
"Content type conversions in API Gateway" and "Set up mock integrations". Which headers are dropped and renamed, that an
error message of a function selects the response, and that a function's method must be POST were recorded on AWS.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from thawd.gateway.aws.api_messages import ApiResponse, Headers
from thawd.gateway.routes.payload_formats import WITHOUT_BODY, MalformedResponseError
from thawd.server.emulator.api_gateway.api_services import ApiServices
from thawd.server.emulator.api_gateway.function_invocations import (
    FunctionAnswer,
    InvocationFailed,
    InvocationTimeout,
    function_in,
    with_variables,
)
from thawd.server.emulator.api_gateway.integration_requests import (
    EndpointAnswer,
    EndpointFailed,
    EndpointTimeout,
    OutgoingRequest,
    local_request,
    send,
    service_request,
)
from thawd.server.emulator.api_gateway.rest.calls import RestCall, is_binary
from thawd.server.emulator.api_gateway.rest.definitions import Fields
from thawd.server.emulator.api_gateway.rest.gateway_responses import GatewayError
from thawd.server.emulator.api_gateway.rest.mapping_templates import Rendered, TemplateError, rendered
from thawd.server.emulator.api_gateway.rest.parameter_mapping import (
    Mapped,
    as_text,
    integration_parameters,
    response_headers,
)
from thawd.server.emulator.api_gateway.rest.proxy_events import proxy_event, proxy_response

_TIMEOUT_MS = 29_000
_STATUS = re.compile(r"^\s*\{.*?['\"]?statusCode['\"]?\s*:\s*(\d{3})\b.*\}\s*$", re.DOTALL)
_PATH_VARIABLE = re.compile(r"\{([\w.$-]+)\+?\}")
_NOT_SENT = ("expect", "proxy-authenticate", "te", "via")
_RENAMED = frozenset({"connection", "content-length", "date", "server"})
_RENAMED_TOO = frozenset(
    {
        "authorization",
        "content-md5",
        "expect",
        "host",
        "max-forwards",
        "proxy-authenticate",
        "trailer",
        "upgrade",
        "user-agent",
        "www-authenticate",
    }
)
_LEFT_OUT = frozenset({"transfer-encoding", "keep-alive", "proxy-authenticate", "te", "trailer", "upgrade"})


def integrate(call: RestCall, services: ApiServices) -> ApiResponse:
    """Call the integration of a method and make the response.

    Raises:
        GatewayError: the integration failed, or its definition is wrong.
    """
    kind = call.integration.get("type")
    try:
        if kind == "AWS_PROXY":
            return _function_proxy(call, services)
        if kind == "HTTP_PROXY":
            return _http_proxy(call, services)
        if kind in ("AWS", "HTTP", "MOCK"):
            return _mapped(call, services)
    except EndpointTimeout as error:
        raise GatewayError("INTEGRATION_TIMEOUT", reason=str(error)) from error
    except InvocationTimeout as error:
        raise GatewayError("INTEGRATION_TIMEOUT", reason=str(error)) from error
    except EndpointFailed as error:
        message = "Network error communicating with endpoint"
        raise GatewayError("INTEGRATION_FAILURE", message, status=504, reason=str(error)) from error
    except InvocationFailed as error:
        raise GatewayError("DEFAULT_5XX", reason=str(error)) from error
    except TemplateError as error:
        raise GatewayError("DEFAULT_5XX", reason=str(error)) from error
    raise GatewayError("DEFAULT_5XX", reason=f"the method has no integration of a known type ({kind})")


def _timeout_s(call: RestCall) -> float:
    return int(call.integration.get("timeoutInMillis") or _TIMEOUT_MS) / 1000


def _invoke(call: RestCall, services: ApiServices, event: bytes, *, is_asynchronous: bool) -> FunctionAnswer:
    function = function_in(with_variables(call.integration.get("uri") or "", call.stage.variables))
    if function is None:
        raise GatewayError("DEFAULT_5XX", reason=f"the integration's URI names no function: {call.integration['uri']}")
    method = call.integration.get("httpMethod") or call.request.method
    if method != "POST":
        raise GatewayError("DEFAULT_5XX", reason=f"the integration of a function needs the method POST, not {method}")
    return services.functions.invoke(
        function,
        event,
        timeout_s=_timeout_s(call),
        is_asynchronous=is_asynchronous,
        trace=call.header("x-amzn-trace-id") or "",
    )


# Proxies


def _function_proxy(call: RestCall, services: ApiServices) -> ApiResponse:
    integration_parameters(call)  # a forbidden mapping fails here, too, although no mapping has an effect
    answer = _invoke(call, services, json.dumps(proxy_event(call)).encode(), is_asynchronous=False)
    if answer.is_error:
        raise GatewayError("DEFAULT_5XX", status=502, reason="the function failed")
    try:
        response = proxy_response(
            answer.payload, accept=call.header("accept"), binary_types=call.stage.definition.binary_types
        )
    except MalformedResponseError as error:
        raise GatewayError("DEFAULT_5XX", status=502, reason=f"malformed answer of the function: {error}") from error
    response.headers.append(("X-Amzn-Trace-Id", call.header("x-amzn-trace-id") or ""))
    return response


def _http_proxy(call: RestCall, services: ApiServices) -> ApiResponse:
    mapped = integration_parameters(call)
    left_out = (*_NOT_SENT, "host", "content-encoding")
    headers = {name: ",".join(values) for name, values in call.headers.items() if name.lower() not in left_out}
    for name in ("X-Forwarded-For", "X-Forwarded-Port", "X-Forwarded-Proto"):
        headers.pop(name, None)
    headers |= {name: as_text(value) for name, value in mapped["header"].items()}
    query = {name: list(values) for name, values in call.query.items()}
    for name, value in mapped["querystring"].items():
        query.setdefault(name, []).extend(value if isinstance(value, list) else [as_text(value)])
    request = local_request(_outgoing(call, headers, query, call.request.body, mapped), services.connection)
    answer = send(request, timeout_s=_timeout_s(call))
    return ApiResponse(answer.status, _passed_on(answer.headers, _RENAMED), answer.body)


def _outgoing(
    call: RestCall, headers: dict[str, str], query: dict[str, list[str]], body: bytes, mapped: Mapped
) -> OutgoingRequest:
    uri = with_variables(call.integration.get("uri") or "", call.stage.variables)
    url = _PATH_VARIABLE.sub(lambda match: as_text(mapped["path"].get(match[1], match[0])), uri)
    url, _, fixed = url.partition("?")
    for pair in filter(None, fixed.split("&")):
        name, _, value = pair.partition("=")
        query.setdefault(name, []).append(value)
    method = call.integration.get("httpMethod") or "ANY"
    names = {name.lower() for name in headers}
    defaults = {"Accept": "application/json", "User-Agent": f"AmazonAPIGateway_{call.stage.api_id}"}
    content_type = call.request.header("content-type")
    if content_type and call.request.method not in ("GET", "HEAD", "OPTIONS"):
        defaults["Content-Type"] = content_type
    sent = [(name, value) for name, value in defaults.items() if name.lower() not in names]
    sent += [(name, value) for name, value in headers.items() if name.lower() not in _NOT_SENT]
    if not any(name.lower() == "x-amzn-trace-id" for name, _ in sent):
        sent.append(("X-Amzn-Trace-Id", call.header("x-amzn-trace-id") or ""))
    sent.append(("X-Amzn-Apigateway-Api-Id", call.stage.api_id))
    return OutgoingRequest(call.request.method if method == "ANY" else method, url, query, sent, body)


def _passed_on(headers: Headers, renamed: frozenset[str]) -> Headers:
    made: Headers = []
    for name, value in headers:
        if name.lower() in renamed:
            made.append((f"x-amzn-Remapped-{name}", value))
        elif name.lower() not in _LEFT_OUT:
            made.append((name, value))
    return made


# Integrations with mappings


def _mapped(call: RestCall, services: ApiServices) -> ApiResponse:
    template = _request_template(call)
    content = _request_body(call)
    mapped = integration_parameters(call)
    made = Rendered("", {}, {})
    if template:
        made = _render(template, _text_of(content), call)
        content = made.text.encode()
    for place in ("header", "path", "querystring"):
        mapped[place] |= {name: as_text(value) for name, value in (made.requestOverride.get(place) or {}).items()}
    answer, selector = _called(call, services, mapped, content)
    return _method_response(call, answer, selector, made)


def _request_template(call: RestCall) -> str | None:
    """Return the template for the request's content type; None: the body passes through.

    Raises:
        GatewayError: there is none, and the body may not pass through (415).
    """
    templates = call.integration.get("requestTemplates") or {}
    template = templates.get(call.content_type) or templates.get("$default")
    behavior = call.integration.get("passthroughBehavior") or "WHEN_NO_MATCH"
    may_pass = behavior == "WHEN_NO_MATCH" or (behavior == "WHEN_NO_TEMPLATES" and not templates)
    if template is None and call.content_type not in templates and not may_pass:
        raise GatewayError("UNSUPPORTED_MEDIA_TYPE")
    return template or None


def _request_body(call: RestCall) -> bytes:
    """Return the body as the integration's ``contentHandling`` says."""
    handling, body = call.integration.get("contentHandling"), call.request.body
    if is_binary(call.header("content-type"), call.stage.definition.binary_types):
        return base64.b64encode(body) if handling == "CONVERT_TO_TEXT" else body
    return _decoded(body) if handling == "CONVERT_TO_BINARY" else body


def _decoded(body: bytes) -> bytes:
    if body[:1] == b'"' == body[-1:]:
        body = body[1:-1]  # a text that a function has returned
    try:
        return base64.b64decode(body, validate=True)
    except ValueError as error:
        raise GatewayError("DEFAULT_5XX", reason="the body is to be converted to binary, and is not Base64") from error


def _text_of(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise GatewayError("DEFAULT_5XX", reason="a template cannot map a binary body") from error


def _render(template: str, body: str, call: RestCall, overrides: Rendered | None = None) -> Rendered:
    context = dict(call.context)
    if overrides is not None:
        context |= {"requestOverride": overrides.requestOverride, "responseOverride": overrides.responseOverride}
    parameters = {"path": call.path_parameters, "querystring": call.last_query(), "header": call.last_headers()}
    return rendered(template, body=body, parameters=parameters, context=context, stage_variables=call.stage.variables)


def _called(call: RestCall, services: ApiServices, mapped: Mapped, body: bytes) -> tuple[EndpointAnswer, str]:
    """Return the integration's answer, and the text that selects the integration response."""
    kind, uri = call.integration["type"], call.integration.get("uri") or ""
    if kind == "MOCK":
        status = _mock_status(body)
        return EndpointAnswer(status, [], b""), str(status)
    if kind == "AWS" and ":lambda:path/" in uri:
        kinds = [as_text(v) for name, v in mapped["header"].items() if name.lower() == "x-amz-invocation-type"]
        is_asynchronous = kinds == ["Event"]
        try:
            json.loads(body or b"{}")
        except ValueError as error:
            raise GatewayError("DEFAULT_5XX", reason="the event that the template has made is not JSON") from error
        answer = _invoke(call, services, body or b"{}", is_asynchronous=is_asynchronous)
        return EndpointAnswer(200, [("content-type", "application/json")], answer.payload), _error_in(answer.payload)
    headers = {name: as_text(value) for name, value in mapped["header"].items()}
    query = {
        name: [as_text(one) for one in value] if isinstance(value, list) else [as_text(value)]
        for name, value in mapped["querystring"].items()
    }
    request = _outgoing(call, headers, query, body, mapped)
    if kind == "AWS":
        request.headers = [pair for pair in request.headers if pair[0] != "X-Amzn-Apigateway-Api-Id"]
        try:
            request = service_request(request.url, request, services.connection())
        except ValueError as error:
            raise GatewayError("DEFAULT_5XX", reason=str(error)) from error
    else:
        request = local_request(request, services.connection)
    answer_ = send(request, timeout_s=_timeout_s(call))
    return answer_, str(answer_.status)


def _mock_status(body: bytes) -> int:
    text = body.decode("utf-8", "replace")
    try:
        found = json.loads(text)
        status = found.get("statusCode") if isinstance(found, dict) else None
    except ValueError:  # AWS also reads {statusCode: 200}, which the AWS CDK writes
        match = _STATUS.match(text)
        status = int(match[1]) if match else None
    if isinstance(status, bool) or not isinstance(status, int):
        raise GatewayError("DEFAULT_5XX", reason="the request template of a mock integration has no number statusCode")
    return status


def _error_in(payload: bytes) -> str:
    try:
        answer = json.loads(payload)
    except ValueError:
        return ""
    return str(answer.get("errorMessage") or "") if isinstance(answer, dict) else ""


def select_response(selector: str, responses: dict[str, Fields]) -> Fields:
    """Return the integration response whose pattern matches all of `selector`, else the one without a pattern.

    Raises:
        GatewayError: there is none.
    """
    default = None
    for response in responses.values():
        pattern = response.get("selectionPattern")
        if not pattern:
            default = default or response
        elif re.fullmatch(pattern, selector):
            return response
    if default is None:
        raise GatewayError("API_CONFIGURATION_ERROR", reason=f"no integration response fits {selector!r}")
    return default


def _method_response(call: RestCall, answer: EndpointAnswer, selector: str, made: Rendered) -> ApiResponse:
    setting = select_response(selector, call.integration.get("integrationResponses") or {})
    body = _response_body(call, answer, setting.get("contentHandling"))
    mapped = response_headers(
        setting.get("responseParameters") or {}, call, answer.by_name(), answer.body.decode("utf-8", "replace")
    )
    template = _response_template(call, setting.get("responseTemplates") or {})
    override: dict[str, Any] = made.responseOverride
    if template:
        again = _render(template, _text_of(body), call, made)
        body, override = again.text.encode(), again.responseOverride
    status = override.get("status")
    code = int(setting["statusCode"])
    if isinstance(status, int) and not isinstance(status, bool) and 100 <= status < 600:
        code = status
    headers = {**mapped, **{name: as_text(value) for name, value in (override.get("header") or {}).items()}}
    sent = _passed_on(list(headers.items()), _RENAMED | _RENAMED_TOO)
    if not any(name.lower() == "content-type" for name, _ in sent):
        sent.append(("Content-Type", "application/json"))
    if call.integration["type"] != "MOCK":
        sent.append(("X-Amzn-Trace-Id", call.header("x-amzn-trace-id") or ""))
    return ApiResponse(code, sent, b"" if code in WITHOUT_BODY else body)


def _response_template(call: RestCall, templates: dict[str, str | None]) -> str | None:
    if not templates:
        return None
    accepted = (call.header("accept") or "").strip()
    chosen = templates.get(accepted) or templates.get("application/json")
    return chosen or next(iter(templates.values()))


def _response_body(call: RestCall, answer: EndpointAnswer, handling: str | None) -> bytes:
    """Return the integration's body as ``contentHandling`` and the request's ``Accept`` say."""
    types = call.stage.definition.binary_types
    payload_type = (answer.by_name().get("content-type") or [""])[-1]
    accepts_binary = is_binary((call.header("accept") or "").partition(",")[0], types)
    if is_binary(payload_type, types):
        is_text = handling == "CONVERT_TO_TEXT" or (handling is None and not accepts_binary)
        return base64.b64encode(answer.body) if is_text else answer.body
    to_binary = handling == "CONVERT_TO_BINARY" or (handling is None and accepts_binary)
    return _decoded(answer.body) if to_binary and answer.body else answer.body
