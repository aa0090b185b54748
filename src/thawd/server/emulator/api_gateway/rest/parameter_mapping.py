"""Maps parameters of REST APIs, such as ``integration.request.header.X`` from ``method.request.querystring.y``.

Source: API Gateway developer guide, "Parameter mapping examples for REST APIs for API Gateway". On AWS, header
names are case-sensitive. Here they are not, because it is not known in which case the client sent them. No side
effects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from thawd.server.emulator.api_gateway.json_paths import member_at
from thawd.server.emulator.api_gateway.rest.calls import RestCall
from thawd.server.emulator.api_gateway.rest.definitions import Fields
from thawd.server.emulator.api_gateway.rest.gateway_responses import GatewayError

Mapped = dict[str, dict[str, Any]]
_REQUEST, _RESPONSE = "method.request.", "integration.response."
_OPENING = ("{", "[", '"', "'")
# Headers that a mapping may not set.
_FORBIDDEN = frozenset({"content-length", "transfer-encoding", "x-amzn-trace-id", "x-amzn-apigateway-api-id"})
_FORBIDDEN_AT_AWS = _FORBIDDEN | {"authorization", "connection", "expect", "proxy-authenticate", "te"}


def integration_parameters(call: RestCall) -> Mapped:
    """Return the parameters of the integration's request, by place (``header``, ``path``, ``querystring``) and name.

    Raises:
        GatewayError: the body is not JSON although a mapping reads from it, or a mapping sets a header that it may not.
    """
    mapped: Mapped = {"header": {}, "path": {}, "querystring": {}}
    for target, expression in (call.integration.get("requestParameters") or {}).items():
        place, _, name = target.removeprefix("integration.request.").partition(".")
        value = value_of(expression, call)
        if value not in (None, "", []) and place in mapped:
            mapped[place][name] = value
    forbidden = _FORBIDDEN_AT_AWS if str(call.integration.get("type", "")).startswith("AWS") else _FORBIDDEN
    if refused := [name for name in mapped["header"] if name.lower() in forbidden]:
        raise GatewayError("DEFAULT_5XX", reason=f"a mapping sets the header {refused[0]}, which API Gateway forbids")
    return mapped


def response_headers(
    parameters: Mapping[str, str], call: RestCall, headers: Mapping[str, list[str]], body: str
) -> Fields:
    """Return the headers of the method's response.

    Args:
        parameters: the integration response's parameters.
        call: the call.
        headers: headers of the integration's response, names in lower case.
        body: body of the integration's response.

    Raises:
        GatewayError: the body is not JSON although a mapping reads from it.
    """
    made: Fields = {}
    for target, expression in parameters.items():
        if expression.startswith(_RESPONSE):
            value = _of_response(expression.removeprefix(_RESPONSE), headers, body)
        else:
            value = value_of(expression, call)
        if value not in (None, ""):
            made[target.removeprefix("method.response.header.")] = as_text(value)
    return made


def value_of(expression: str, call: RestCall) -> Any:
    """Return the value of a mapping expression for a request; None: there is none.

    Raises:
        GatewayError: the expression reads from the body, and the body is not JSON.
    """
    if expression.startswith("'") and expression.endswith("'") and len(expression) > 1:
        return expression[1:-1]
    if expression.startswith("stageVariables."):
        return call.stage.variables.get(expression.removeprefix("stageVariables."))
    if expression.startswith("context."):
        return member_at(expression.removeprefix("context."), call.context)
    if not expression.startswith(_REQUEST):
        return None
    return _of_request(call, *expression.removeprefix(_REQUEST).partition(".")[::2])


def _of_request(call: RestCall, place: str, name: str) -> Any:
    if place == "body":
        return _of_body(call.body_text, name, lambda: GatewayError("BAD_REQUEST_BODY", "Invalid JSON in request body"))
    if place == "path":
        return call.path_parameters.get(name)
    if place in ("querystring", "multivaluequerystring"):
        values = call.query.get(name) or []
        return (values[-1] if values else None) if place == "querystring" or len(values) == 1 else values
    if place in ("header", "multivalueheader"):
        values = [value for key, listed in call.headers.items() if key.lower() == name.lower() for value in listed]
        return (",".join(values) if place == "multivalueheader" else values[-1]) if values else None
    return None


def as_text(value: Any) -> str:
    """Return a value as the text of a parameter."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _of_response(expression: str, headers: Mapping[str, list[str]], body: str) -> Any:
    place, _, name = expression.partition(".")
    if place == "body":
        return _of_body(body, name, lambda: GatewayError("DEFAULT_5XX", reason="the integration's answer is not JSON"))
    values = headers.get(name.lower()) or []
    return (",".join(values) if place == "multivalueheader" else values[-1]) if values else None


def _of_body(body: str, path: str, failure: Any) -> Any:
    text = body.strip() or "{}"
    if not path:
        document = text
        if text.startswith(_OPENING):
            _decoded(text, failure)
        return document
    return member_at(path, _decoded(text, failure) if text.startswith(_OPENING) else {})


def _decoded(text: str, failure: Any) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise failure() from None
