"""What API Gateway's payload formats 1.0 and 2.0 share: types for requests and responses, checks of handlers' answers.

No side effects.

Source: API Gateway developer guide, "Create AWS Lambda proxy integrations for HTTP APIs in API Gateway".
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

# Source: RFC 9110, 5.6.2 Tokens.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Source: RFC 9110, 5.5 Field Values. The HTTP server would fail on a header with one of these characters.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# Source: RFC 9110, 6.4.1 Content Semantics: answers with these statuses have no body.
WITHOUT_BODY = (204, 205, 304)
_TEXT_TYPES = ("application/json", "application/javascript", "application/xml")
# Headers of a handler's answer that are ignored, because the HTTP server itself sets them.
_CONNECTIONS_OWN = ("content-length", "transfer-encoding", "connection")
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class IntegrationRequest:
    """The parts of a request that an event is made from.

    Attributes:
        method: in upper case.
        raw_path: percent-encoded path.
        query: percent-encoded query string, without the question mark.
        headers: names in lower case.
        body: as received.
        source_ip: the client's address.
        protocol: for example ``HTTP/1.1``.
        route_key: the route that matched.
        path_parameters: values of the route's parameters, decoded.
        stage_variables: variables of the API's stage.
        scheme: ``https``, if thawd's port or a trusted proxy encrypts; else ``http``.
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
    stage_variables: Mapping[str, str] = field(default_factory=dict)
    scheme: str = "http"


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response.

    Attributes:
        status: HTTP status.
        headers: as sent, cookies included.
        body: as sent.
        announced_bytes: size of the body that a GET request would get; None: that of `body`. For answers to HEAD.
    """

    status: int
    headers: Headers
    body: bytes
    announced_bytes: int | None = None


class MalformedResponseError(Exception):
    """The handler's answer is not an HTTP response; the message says why."""


def header_values(request: IntegrationRequest) -> dict[str, list[str]]:
    """The values of each header of a request, in the order received, and the headers that API Gateway adds.

    A client can send headers ``x-forwarded-*``, too. As on AWS, the last address in ``x-forwarded-for`` is that of the
    client, whatever it has sent, and ``x-forwarded-proto`` is how the client has connected. If the client is a trusted
    proxy, both are what the proxy says (`IntegrationRequest.source_ip`, `IntegrationRequest.scheme`).
    """
    values: dict[str, list[str]] = {}
    for name, value in request.headers:
        values.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    hops = ",".join(values.get("x-forwarded-for", ())).split(",")
    addresses = [hop.strip() for hop in hops if hop.strip()]
    if addresses[-1:] != [request.source_ip]:
        addresses.append(request.source_ip)
    values["x-forwarded-for"] = [", ".join(addresses)]
    values["x-forwarded-proto"] = [request.scheme]
    port = values.get("host", [""])[-1].rpartition(":")[2]
    values.setdefault("x-forwarded-port", [port if port.isdigit() else "443" if request.scheme == "https" else "80"])
    return values


def text_of(body: bytes, content_type: str) -> str | None:
    """The body as text; None: the event contains it as Base64, because of its type or because it is not UTF-8."""
    if not body:
        return ""
    media_type = content_type.split(";", maxsplit=1)[0].strip().lower()
    is_text = media_type.startswith("text/") or media_type in _TEXT_TYPES or media_type.endswith(("+json", "+xml"))
    try:
        return body.decode() if is_text else None
    except UnicodeDecodeError:
        return None


def event_body(request: IntegrationRequest, content_type: str) -> tuple[str, bool]:
    """The event's ``body`` and ``isBase64Encoded``."""
    text = text_of(request.body, content_type)
    return (base64.b64encode(request.body).decode(), True) if text is None else (text, False)


def request_time(now_s: float) -> str:
    """A time (seconds since the epoch) in the Common Log Format, as API Gateway writes it."""
    return time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(now_s))


def decode_answer(payload: bytes) -> Any:
    """Decode the handler's answer.

    Raises:
        MalformedResponseError: the answer is not JSON.
    """
    try:
        return msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedResponseError(f"the handler's answer is not JSON: {error}") from None


def status_of(value: Any) -> int:
    """The status in ``statusCode``, which may be a number or text.

    Raises:
        MalformedResponseError: `value` is not an HTTP status from 200 to 599.
    """
    try:
        status = int(value)
    except (TypeError, ValueError):
        raise MalformedResponseError(f"statusCode is {value!r}; it must be a number from 200 to 599") from None
    if not 200 <= status <= 599:
        raise MalformedResponseError(f"statusCode is {status}; it must be from 200 to 599")
    return status


def single_headers(values: Any) -> list[tuple[str, str]]:
    """The ``headers`` of an answer, names in lower case, without null values and headers that the HTTP server sets.

    Raises:
        MalformedResponseError: the headers cannot be sent.
    """
    if not isinstance(values, dict):
        raise MalformedResponseError(
            f"headers is a {type(values).__name__}; it must be a JSON object with one value for each header"
        )
    kept = []
    for name, value in values.items():
        if value is None or name.lower() in _CONNECTIONS_OWN:
            continue
        kept.append((checked_name(name), header_text(value)))
    return kept


def multi_headers(values: Any) -> list[tuple[str, list[str]]]:
    """The ``multiValueHeaders`` of an answer, checked and filtered as by `single_headers`.

    Raises:
        MalformedResponseError: the headers cannot be sent.
    """
    if not isinstance(values, dict) or not all(isinstance(listed, list) for listed in values.values()):
        raise MalformedResponseError("multiValueHeaders must be a JSON object with a list for each header")
    return [
        (checked_name(name), [header_text(value) for value in listed if value is not None])
        for name, listed in values.items()
        if name.lower() not in _CONNECTIONS_OWN
    ]


def checked_name(name: str) -> str:
    """A header's name, in lower case.

    Raises:
        MalformedResponseError: `name` is not a valid header name.
    """
    if not _TOKEN.fullmatch(name):
        raise MalformedResponseError(f"{name!r} is not a valid header name")
    return name.lower()


def header_text(value: Any) -> str:
    """A header's value as text.

    Raises:
        MalformedResponseError: the value has line breaks or other control characters.
    """
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if _CONTROL.search(text):
        raise MalformedResponseError("a header's value must not contain line breaks or other control characters")
    return text


def cookie_values(values: Any) -> list[str]:
    """The ``cookies`` of an answer, each for a separate ``Set-Cookie`` header.

    Raises:
        MalformedResponseError: the cookies cannot be sent.
    """
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise MalformedResponseError("cookies must be a list of strings")
    return [header_text(value) for value in values]


def wire_header(name: str, value: str) -> tuple[bytes, bytes]:
    """A header as the bytes to send."""
    return name.encode("latin-1", "replace"), value.encode("latin-1", "replace")


def body_of(answer: Mapping[str, Any], status: int) -> bytes:
    """The ``body`` of an answer as the bytes to send; empty if `status` allows no body.

    Raises:
        MalformedResponseError: the body is not text, or not valid Base64 although ``isBase64Encoded`` is true.
    """
    if status in WITHOUT_BODY:
        return b""
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
        raise MalformedResponseError("isBase64Encoded is true, but body is not valid Base64") from None
