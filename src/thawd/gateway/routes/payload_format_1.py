"""Payload format 1.0 of HTTP APIs: makes events from requests, and responses from handlers' answers.

REST APIs, whose events are alike, have a module of their own: `server.emulator.api_gateway.rest.proxy_events`.

Besides the names of fields, format 1.0 differs from format 2.0 in these points:

- Several values of one header or query parameter stay separate in ``multiValueHeaders`` and
  ``multiValueQueryStringParameters``; ``headers`` and ``queryStringParameters`` contain only the last value.
- Fields of the event for which the request has no value are null.
- Cookies are in the header ``cookie``, not in a field of their own.
- An answer must be an object with a ``statusCode``. The default type of its body is JSON, not plain text.

No side effects.

Source: API Gateway developer guide, "Lambda proxy integrations in API Gateway" (input and output format), and "Create
AWS Lambda proxy integrations for HTTP APIs in API Gateway" (payload format version 1.0).
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, unquote

from thawd.gateway.routes.payload_formats import (
    Headers,
    IntegrationRequest,
    MalformedResponseError,
    Response,
    body_of,
    decode_answer,
    event_body,
    header_values,
    multi_headers,
    request_time,
    single_headers,
    status_of,
    wire_header,
)
from thawd.invocation import new_request_id
from thawd.resources import ACCOUNT_ID

# Fields of ``requestContext.identity`` that are always null in thawd's events.
_IDENTITY = (
    "accessKey",
    "accountId",
    "apiKey",
    "apiKeyId",
    "caller",
    "clientCert",
    "cognitoAuthenticationProvider",
    "cognitoAuthenticationType",
    "cognitoIdentityId",
    "cognitoIdentityPoolId",
    "principalOrgId",
    "user",
    "userArn",
)


def event(request: IntegrationRequest, *, now_s: float, request_id: str | None = None) -> dict[str, Any]:
    """The event for `request`; `now_s` is the time in seconds since the epoch."""
    headers = header_values(request)
    last = {name: values[-1] for name, values in headers.items()}
    query: dict[str, list[str]] = {}
    for name, value in parse_qsl(request.query, keep_blank_values=True, errors="replace"):
        query.setdefault(name, []).append(value)
    body, is_base64 = event_body(request, last.get("content-type", ""))
    resource = request.route_key.partition(" ")[2] or request.route_key
    return {
        "version": "1.0",
        "resource": resource,
        "path": unquote(request.raw_path),
        "httpMethod": request.method,
        "headers": last,
        "multiValueHeaders": headers,
        "queryStringParameters": {name: values[-1] for name, values in query.items()} or None,
        "multiValueQueryStringParameters": query or None,
        "pathParameters": dict(request.path_parameters) or None,
        "stageVariables": dict(request.stage_variables) or None,
        "requestContext": _context(request, last, resource, now_s=now_s, request_id=request_id or new_request_id()),
        "body": body if request.body else None,
        "isBase64Encoded": is_base64,
    }


def _context(
    request: IntegrationRequest, headers: dict[str, str], resource: str, *, now_s: float, request_id: str
) -> dict[str, Any]:
    domain = headers.get("host", "localhost")
    identity: dict[str, str | None] = dict.fromkeys(_IDENTITY)
    identity |= {"sourceIp": request.source_ip, "userAgent": headers.get("user-agent", "")}
    return {
        "accountId": ACCOUNT_ID,
        "apiId": "thawd",
        "authorizer": {"claims": None, "scopes": None},
        "domainName": domain,
        "domainPrefix": re.split("[.:]", domain, maxsplit=1)[0],
        "extendedRequestId": request_id,
        "httpMethod": request.method,
        "identity": identity,
        "path": unquote(request.raw_path),
        "protocol": request.protocol,
        "requestId": request_id,
        "requestTime": request_time(now_s),
        "requestTimeEpoch": int(now_s * 1000),
        "resourceId": None,
        "resourcePath": resource,
        "stage": "$default",
    }


def response(payload: bytes) -> Response:
    """The HTTP response for a handler's answer.

    ``headers`` and ``multiValueHeaders`` are sent together; a pair of name and value that is in both is sent once.

    Raises:
        MalformedResponseError: API Gateway does not accept the answer, for example because it has no ``statusCode``.
    """
    answer = decode_answer(payload)
    if not isinstance(answer, dict):
        raise MalformedResponseError(
            "the handler's answer is not an object; payload format 1.0 requires one with a statusCode, for example "
            '{"statusCode": 200, "body": "text"}'
        )
    if "statusCode" not in answer:
        raise MalformedResponseError("the handler's answer has no statusCode, which payload format 1.0 requires")
    status = status_of(answer["statusCode"])
    pairs = [(name, value) for name, values in multi_headers(answer.get("multiValueHeaders") or {}) for value in values]
    single = single_headers(answer.get("headers") or {})
    headers: Headers = [wire_header(*pair) for pair in (*(pair for pair in single if pair not in pairs), *pairs)]
    body = body_of(answer, status)
    if body and not any(name == b"content-type" for name, _ in headers):
        headers.append((b"content-type", b"application/json"))
    return Response(status, headers, body)
