"""HTTP API events: a request as an event of payload format 2.0, and a handler's answer as a response. Pure.

Source: API Gateway developer guide, "Working with AWS Lambda proxy integrations for HTTP APIs".
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from thawd.invocation import new_request_id
from thawd.resources import ACCOUNT_ID

# Source: RFC 9110, 5.6.2 Tokens, and 6.4.1 Content Semantics: these have no body.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_WITHOUT_BODY = (204, 205, 304)
_TEXT_TYPES = ("application/json", "application/javascript", "application/xml")
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Request:
    """What an event is made of.

    Attributes:
        method: in capitals.
        raw_path: percent-encoded path.
        query: percent-encoded query string, without the question mark.
        headers: names in lower case.
        body: as received.
        source_ip: the client's address.
        protocol: for example ``HTTP/1.1``.
        route_key: the route that matched.
        path_parameters: values of the route's parameters, decoded.
    """

    method: str
    raw_path: str
    query: str
    headers: Headers
    body: bytes
    source_ip: str
    protocol: str
    route_key: str
    path_parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response.

    Attributes:
        status: HTTP status.
        headers: as they go out, cookies included.
        body: as it goes out.
    """

    status: int
    headers: Headers
    body: bytes


class MalformedResponseError(Exception):
    """The handler's answer is no HTTP response; the message says what is wrong with it."""


def event(request: Request, *, now_s: float, request_id: str | None = None) -> dict[str, Any]:
    """The event for `request`; `now_s` in seconds since the epoch."""
    headers: dict[str, str] = {}
    cookies: list[str] = []
    for name_bytes, value_bytes in request.headers:
        name, value = name_bytes.decode("latin-1"), value_bytes.decode("latin-1")
        if name == "cookie":
            cookies += [cookie.strip() for cookie in value.split(";") if cookie.strip()]
        else:
            headers[name] = f"{headers[name]},{value}" if name in headers else value
    headers.setdefault("x-forwarded-for", request.source_ip)
    headers.setdefault("x-forwarded-proto", "http")
    port = headers.get("host", "").rpartition(":")[2]
    headers.setdefault("x-forwarded-port", port if port.isdigit() else "80")
    text = _as_text(request.body, headers.get("content-type", ""))
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
            "time": time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(now_s)),
            "timeEpoch": int(now_s * 1000),
        },
        "isBase64Encoded": text is None,
    }
    if cookies:
        made["cookies"] = cookies
    if request.query:
        made["queryStringParameters"] = _query_parameters(request.query)
    if request.path_parameters:
        made["pathParameters"] = dict(request.path_parameters)
    if request.body:
        made["body"] = base64.b64encode(request.body).decode() if text is None else text
    return made


def _as_text(body: bytes, content_type: str) -> str | None:
    """The body as text when its type is one that API Gateway passes as text and it is UTF-8; None for Base64."""
    if not body:
        return ""
    media_type = content_type.split(";", maxsplit=1)[0].strip().lower()
    is_text = media_type.startswith("text/") or media_type in _TEXT_TYPES or media_type.endswith(("+json", "+xml"))
    try:
        return body.decode() if is_text else None
    except UnicodeDecodeError:
        return None


def _query_parameters(query: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True, errors="replace"):
        values[name] = f"{values[name]},{value}" if name in values else value
    return values


def response(payload: bytes) -> Response:
    """The HTTP response for a handler's answer: one with ``statusCode`` is taken as told, any other is a JSON body.

    Raises:
        MalformedResponseError: it has a ``statusCode`` but its fields are not what API Gateway accepts.
    """
    try:
        answer = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedResponseError(f"it is not JSON: {error}") from None
    if not isinstance(answer, dict) or "statusCode" not in answer:
        body = answer.encode() if isinstance(answer, str) else payload
        return Response(200, [(b"content-type", b"application/json")], body)
    status = _status(answer["statusCode"])
    headers: Headers = []
    for name, value in _headers(answer.get("headers") or {}).items():
        headers.append((name.lower().encode("latin-1", "replace"), value.encode("latin-1", "replace")))
    for cookie in _cookies(answer.get("cookies")):
        headers.append((b"set-cookie", _one_line(cookie).encode("latin-1", "replace")))
    body = b"" if status in _WITHOUT_BODY else _body(answer)
    if body and not any(name == b"content-type" for name, _ in headers):
        headers.append((b"content-type", b"text/plain; charset=utf-8"))
    return Response(status, headers, body)


def _cookies(values: Any) -> list[str]:
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise MalformedResponseError("cookies must be a list of strings")
    return values


def _status(value: Any) -> int:
    try:
        status = int(value)
    except (TypeError, ValueError):
        raise MalformedResponseError(f"statusCode is {value!r}; it must be a number from 200 to 599") from None
    if not 200 <= status <= 599:
        raise MalformedResponseError(f"statusCode is {status}; it must be from 200 to 599")
    return status


def _headers(values: Any) -> dict[str, str]:
    if not isinstance(values, dict):
        raise MalformedResponseError(f"headers is a {type(values).__name__}; it must be an object of names and values")
    kept = {}
    for name, value in values.items():
        # The length is counted from the body that goes out; a connection's own headers are not the handler's.
        if value is None or name.lower() in ("content-length", "transfer-encoding", "connection"):
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if not _TOKEN.fullmatch(name):
            raise MalformedResponseError(f"{name!r} is no name of a header")
        kept[name] = _one_line(text)
    return kept


def _one_line(value: str) -> str:
    if any(c in value for c in "\r\n\0"):
        raise MalformedResponseError("a header's value must not contain line breaks")
    return value


def _body(answer: Mapping[str, Any]) -> bytes:
    body = answer.get("body")
    if body is None:
        return b""
    if not isinstance(body, str):
        raise MalformedResponseError(f"body is a {type(body).__name__}; it must be a string (use json.dumps)")
    if not answer.get("isBase64Encoded"):
        return body.encode("utf-8", "replace")
    try:
        return base64.b64decode(body, validate=True)
    except ValueError:
        raise MalformedResponseError("isBase64Encoded is true, but body is not Base64") from None
