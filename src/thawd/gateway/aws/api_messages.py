"""Requests to emulated APIs of API Gateway, and responses of them, as thawd and the emulator exchange them.

thawd finds the API in a request's host name or path. The emulator, a separate process, serves the API. A request and a
response are each passed on as one body: a line of JSON, then the body as the client sent it or as the client gets it.
So what HTTP libraries on the way would change arrives unchanged: the encoding of the path, and headers with several
values.

====================================================  ==========================================
address                                               what it is
====================================================  ==========================================
``http://ID.execute-api.localhost:PORT/STAGE/PATH``   the form of AWS, with thawd's host and port
``/_aws/execute-api/ID/STAGE/PATH``                   for clients that cannot resolve such names
``/restapis/ID/STAGE/_user_request_/PATH``            a form that other emulators use
====================================================  ==========================================

An HTTP API with a stage ``$default`` has no STAGE in its address. With a custom domain name instead of ``ID``, the path
begins with the path of a mapping instead of a stage. No side effects.

Source of the first form: API Gateway developer guide, "Invoke REST APIs in API Gateway".
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote

_HOST = re.compile(r"([a-z0-9]+)\.execute-api\.[a-z0-9.-]+(?::\d+)?", re.IGNORECASE)
_AWS_HOST = re.compile(r"[a-z0-9]+\.execute-api\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?(?::\d+)?", re.IGNORECASE)
_BY_PATH = "/_aws/execute-api/"
_USER_REQUEST = re.compile(r"/restapis/([A-Za-z0-9]+)/([^/]+)/_user_request_(/.*)?")
EXECUTE_PATH = "/_thawd/execute-api"
"""Path at the emulator to which requests to APIs are passed on."""
DOMAINS_PATH = "/_thawd/api-domains"
"""Path at the emulator of the list of custom domain names."""
INTERNAL_HEADER = "x-thawd-api"
"""Header of thawd's own requests to these paths. A web page cannot send it to another site without permission."""

Headers = list[tuple[str, str]]


class ApiAddress(NamedTuple):
    """The API that a request is for.

    Attributes:
        identifier: id of the API, or a custom domain name.
        path: percent-encoded path from the stage, or from the path of a mapping, on.
        in_host: whether the host name contains the identifier.
    """

    identifier: str
    path: str
    in_host: bool

    @property
    def is_custom_host(self) -> bool:
        """Whether the host name is a custom domain name, which somebody has made with API Gateway's API."""
        return self.in_host and "." in self.identifier


def api_of(host: str, raw_path: str) -> ApiAddress | None:
    """The API that a request is for; None: it is for no API. Custom domain names in `host` are not recognised.

    Args:
        host: the ``Host`` header.
        raw_path: percent-encoded path.
    """
    if match := _HOST.fullmatch(host):
        return ApiAddress(match[1].lower(), raw_path, in_host=True)
    if raw_path.startswith(_BY_PATH):
        identifier, slash, rest = raw_path.removeprefix(_BY_PATH).partition("/")
        return ApiAddress(unquote(identifier).lower(), slash + rest or "/", in_host=False) if identifier else None
    if match := _USER_REQUEST.fullmatch(raw_path):
        return ApiAddress(match[1].lower(), f"/{match[2]}{match[3] or '/'}", in_host=False)
    return None


def is_aws_host(host: str) -> bool:
    """Whether `host` has the form of the host names of AWS's APIs, which no other site can own."""
    return _AWS_HOST.fullmatch(host) is not None


@dataclass(slots=True)
class ApiRequest:
    """A request to an API.

    Attributes:
        identifier: id of the API, or a custom domain name.
        in_host: whether the host name contains the identifier.
        method: in upper case.
        path: percent-encoded path from the stage, or from the path of a mapping, on.
        sent_path: percent-encoded path as the client sent it; it is what a signature was made from.
        query: percent-encoded query string, without the question mark.
        headers: in the order received, names in lower case.
        source_ip: address of the client.
        protocol: for example ``HTTP/1.1``.
        foreign_origin: if a web page of another site sends the request to a server without a key, the origin of that
            page, "null" if it is unknown; otherwise "".
        signer: who has signed the request, with the fields of ``requestContext.authorizer.iam``; empty if nobody has;
            only ``error`` if the signature is wrong.
        body: as received.
    """

    identifier: str
    in_host: bool
    method: str
    path: str
    sent_path: str
    query: str = ""
    headers: Headers = field(default_factory=list)
    source_ip: str = "127.0.0.1"
    protocol: str = "HTTP/1.1"
    foreign_origin: str = ""
    signer: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""

    def header(self, name: str) -> str | None:
        """The last value of a header, by its name in lower case; None: the request has no such header."""
        return next((value for key, value in reversed(self.headers) if key == name), None)


@dataclass(slots=True)
class ApiResponse:
    """A response of an API.

    Attributes:
        status: HTTP status.
        headers: as sent.
        body: as sent.
    """

    status: int
    headers: Headers = field(default_factory=list)
    body: bytes = b""


def encoded(message: ApiRequest | ApiResponse) -> bytes:
    """A message as it is passed on."""
    fields = asdict(message)
    body: bytes = fields.pop("body")
    return json.dumps(fields).encode() + b"\n" + body


def decoded_request(passed: bytes) -> ApiRequest:
    """The request that was passed on.

    Raises:
        ValueError: `passed` is no such request.
    """
    fields, body = _decoded(passed)
    return ApiRequest(**fields, body=body)


def decoded_response(passed: bytes) -> ApiResponse:
    """The response that was passed on.

    Raises:
        ValueError: `passed` is no such response.
    """
    fields, body = _decoded(passed)
    return ApiResponse(**fields, body=body)


def _decoded(passed: bytes) -> tuple[dict[str, Any], bytes]:
    line, _, body = passed.partition(b"\n")
    fields = json.loads(line)
    fields["headers"] = [(name, value) for name, value in fields["headers"]]
    return fields, body
