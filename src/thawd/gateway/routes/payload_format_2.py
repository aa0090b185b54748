"""Payload format 2.0 of HTTP APIs: makes events from requests, and responses from handlers' answers.

No side effects.

Source: API Gateway developer guide, "Create AWS Lambda proxy integrations for HTTP APIs in API Gateway".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from thawd.gateway.routes.payload_formats import (
    Headers,
    IntegrationRequest,
    MalformedResponseError,
    Response,
    body_of,
    cookie_values,
    decode_answer,
    event_body,
    header_values,
    request_time,
    single_headers,
    status_of,
    wire_header,
)
from thawd.invocation import new_request_id
from thawd.resources import ACCOUNT_ID

__all__ = ["IntegrationRequest", "MalformedResponseError", "Response", "event", "head_of", "response", "response_of"]


def event(request: IntegrationRequest, *, now_s: float, request_id: str | None = None) -> dict[str, Any]:
    """The event for `request`; `now_s` is the time in seconds since the epoch."""
    values = header_values(request)
    lines = values.pop("cookie", [])
    cookies = [cookie.strip() for line in lines for cookie in line.split(";") if cookie.strip()]
    headers = {name: ",".join(listed) for name, listed in values.items()}
    body, is_base64 = event_body(request, headers.get("content-type", ""))
    domain = headers.get("host", "localhost")
    made: dict[str, Any] = {
        "version": "2.0",
        "routeKey": request.route_key,
        "rawPath": unquote(request.raw_path),
        "rawQueryString": request.query,
        "headers": headers,
        "requestContext": {
            "accountId": ACCOUNT_ID,
            "apiId": "thawd",
            "domainName": domain,
            "domainPrefix": re.split("[.:]", domain, maxsplit=1)[0],
            "http": {
                "method": request.method,
                "path": unquote(request.raw_path),
                "protocol": request.protocol,
                "sourceIp": request.source_ip,
                "userAgent": headers.get("user-agent", ""),
            },
            "requestId": request_id or new_request_id(),
            "routeKey": request.route_key,
            "stage": "$default",
            "time": request_time(now_s),
            "timeEpoch": int(now_s * 1000),
        },
        "isBase64Encoded": is_base64,
    }
    if cookies:
        made["cookies"] = cookies
    if request.query:
        made["queryStringParameters"] = _query_parameters(request.query)
    if request.path_parameters:
        made["pathParameters"] = dict(request.path_parameters)
    if request.stage_variables:
        made["stageVariables"] = dict(request.stage_variables)
    if request.body:
        made["body"] = body
    return made


def _query_parameters(query: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True, errors="replace"):
        values[name] = f"{values[name]},{value}" if name in values else value
    return values


def response(payload: bytes) -> Response:
    """The HTTP response for a handler's answer.

    An answer with ``statusCode`` describes the response. Any other answer becomes the response's JSON body.

    Raises:
        MalformedResponseError: the answer has a ``statusCode`` but fields that API Gateway does not accept.
    """
    answer = decode_answer(payload)
    if not isinstance(answer, dict) or "statusCode" not in answer:
        body = answer.encode("utf-8", "replace") if isinstance(answer, str) else payload
        return Response(200, [(b"content-type", b"application/json")], body)
    return response_of(answer, content_type=b"text/plain; charset=utf-8")


def response_of(answer: Mapping[str, Any], *, content_type: bytes) -> Response:
    """The HTTP response for an answer that has a ``statusCode``.

    Args:
        answer: the handler's answer, decoded.
        content_type: the ``Content-Type`` of a body if the answer names none.

    Raises:
        MalformedResponseError: the answer has fields that API Gateway does not accept.
    """
    status, headers = head_of(answer)
    body = body_of(answer, status)
    if body and not any(name == b"content-type" for name, _ in headers):
        headers.append((b"content-type", content_type))
    return Response(status, headers, body)


def head_of(answer: Mapping[str, Any]) -> tuple[int, Headers]:
    """Status and headers, cookies included, of an answer that has a ``statusCode``.

    Raises:
        MalformedResponseError: API Gateway does not accept the status, a header or the cookies.
    """
    status = status_of(answer["statusCode"])
    headers = [wire_header(name, value) for name, value in single_headers(answer.get("headers") or {})]
    headers += [wire_header("set-cookie", cookie) for cookie in cookie_values(answer.get("cookies"))]
    return status, headers
