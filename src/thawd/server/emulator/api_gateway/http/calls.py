"""A request to a route of an HTTP API, its events for functions, and the values of its variables. No side effects.

Source: API Gateway developer guide, "Create AWS Lambda proxy integrations for HTTP APIs in API Gateway" (payload
formats), "Control access to HTTP APIs with AWS Lambda authorizers" (the authorizer's event) and "Transform API requests
and responses for HTTP APIs" (variables).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from thawd.gateway.aws.api_messages import ApiRequest
from thawd.gateway.routes import payload_format_1, payload_format_2
from thawd.gateway.routes.payload_formats import IntegrationRequest
from thawd.resources import ACCOUNT_ID, REGION
from thawd.server.emulator.api_gateway.http.definitions import Fields, HttpDefinition
from thawd.server.emulator.api_gateway.json_paths import member_at
from thawd.server.emulator.api_gateway.rest.calls import domain_of

_VARIABLE = re.compile(r"\$\{((?:request|context|stageVariables|response)\.[^}]+)\}|\$([\w.$-]+)")


@dataclass(slots=True)
class HttpCall:
    """A request to an HTTP API, while it is served.

    Attributes:
        request: as received.
        api_id: id of the API.
        stage: name of the stage.
        variables: stage variables.
        definition: the API.
        path: percent-encoded path after the stage.
        raw_path: percent-encoded path with the stage or the key of an API mapping, as events have it.
        request_id: identifies the request.
        now_s: seconds since the epoch.
        route: fields of the route that matched.
        parameters: decoded path parameters.
        authorizer: ``requestContext.authorizer`` of payload format 2.0; None: the route has no authorizer.
    """

    request: ApiRequest
    api_id: str
    stage: str
    variables: dict[str, str]
    definition: HttpDefinition
    path: str
    raw_path: str
    request_id: str
    now_s: float
    route: Fields = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    authorizer: Fields | None = None

    def arn(self) -> str:
        """Return the ARN of the method and path, for authorizers."""
        place = f"{self.api_id}/{self.stage}/{self.request.method}{self.path}"
        return f"arn:aws:execute-api:{REGION}:{ACCOUNT_ID}:{place}"


def _integration_request(call: HttpCall) -> IntegrationRequest:
    request = call.request
    return IntegrationRequest(
        method=request.method,
        raw_path=call.raw_path,
        query=request.query,
        headers=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers],
        body=request.body,
        source_ip=request.source_ip,
        protocol=request.protocol,
        route_key=call.route["routeKey"],
        path_parameters=call.parameters,
        stage_variables=call.variables,
    )


def event(call: HttpCall, version: str) -> Fields:
    """Return the event for a function, in payload format ``1.0`` or ``2.0``."""
    made = payload_format_1 if version == "1.0" else payload_format_2
    document: Fields = made.event(_integration_request(call), now_s=call.now_s, request_id=call.request_id)
    context = document["requestContext"]
    domain = domain_of(call.request, call.api_id)
    context |= {
        "apiId": call.api_id,
        "stage": call.stage,
        "domainName": domain,
        "domainPrefix": domain.partition(".")[0],
    }
    if version == "1.0":
        if call.authorizer is not None:
            context["authorizer"] = _flat_authorizer(call.authorizer)
    elif call.authorizer is not None:
        context["authorizer"] = call.authorizer
    return document


def _flat_authorizer(authorizer: Fields) -> Fields:
    """``requestContext.authorizer`` of payload format 1.0."""
    (kind, said), *_ = authorizer.items()
    return dict(said or {}) if kind in ("jwt", "lambda") else {kind: said}


def authorizer_event(call: HttpCall, version: str, identity: list[str]) -> Fields:
    """Return the event for an authorizer's function.

    Args:
        call: the call.
        version: the payload format, ``1.0`` or ``2.0``.
        identity: values of the identity sources.
    """
    document = event(call, version)
    for name in ("body", "isBase64Encoded", "version"):
        document.pop(name, None)
    if version == "1.0":
        joined = ",".join(identity) or None
        return {
            "version": "1.0",
            "type": "REQUEST",
            "methodArn": call.arn(),
            "identitySource": joined,
            "authorizationToken": joined,
            **document,
        }
    return {
        "version": "2.0",
        "type": "REQUEST",
        "routeArn": call.arn(),
        "identitySource": identity or None,
        **document,
    }


def value_of(name: str, call: HttpCall) -> str | None:
    """Return the value of a variable such as ``request.header.authorization``; None: the request has none.

    Args:
        name: the variable, without the dollar sign.
        call: the call.
    """
    place, _, rest = name.partition(".")
    if place == "stageVariables":
        return call.variables.get(rest)
    if place == "context":
        found = _context(call, rest)
        return None if found is None else str(found)
    return _of_request(call, *rest.partition(".")[::2]) if place == "request" else None


def _of_request(call: HttpCall, kind: str, key: str) -> str | None:
    values: list[str] = []
    if kind == "header":
        values = [value for header, value in call.request.headers if header == key.lower()]
    elif kind == "querystring":
        values = parse_qs(call.request.query, keep_blank_values=True).get(key) or []
    elif kind == "path":
        return call.parameters.get(key) if key else call.path
    elif kind == "body":
        return _of_body(call.request.body, key)
    return ",".join(values) if values else None


def _of_body(body: bytes, path: str) -> str | None:
    text = body.decode("utf-8", "replace")
    if not path:
        return text
    try:
        found = member_at(path, json.loads(text))
    except ValueError:
        return None
    return found if found is None or isinstance(found, str) else json.dumps(found)


def _context(call: HttpCall, name: str) -> Any:
    request = call.request
    known = {
        "routeKey": call.route.get("routeKey"),
        "stage": call.stage,
        "apiId": call.api_id,
        "requestId": call.request_id,
        "httpMethod": request.method,
        "path": call.raw_path,
        "protocol": request.protocol,
        "accountId": ACCOUNT_ID,
        "domainName": domain_of(request, call.api_id),
        "identity.sourceIp": request.source_ip,
        "identity.userAgent": request.header("user-agent"),
    }
    if name in known:
        return known[name]
    if name.startswith("authorizer."):
        merged: Fields = {}
        for said in (call.authorizer or {}).values():
            merged |= said or {}
        return member_at(name.removeprefix("authorizer."), merged)
    return None


def filled(text: str, call: HttpCall) -> str:
    """Return a text with the values of its variables: ``$request.path.id`` or ``${request.path.id}``."""
    return _VARIABLE.sub(lambda match: value_of(match[1] or match[2], call) or "", text)
