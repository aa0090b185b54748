"""The HTTP request in an event of API Gateway, payload formats 1.0 and 2.0, or of a function URL.

Source: API Gateway developer guide, "Create AWS Lambda proxy integrations for HTTP APIs in API Gateway".
"""

import base64
from typing import Any, Dict, List, NamedTuple, Tuple
from urllib.parse import quote, urlencode

from thawd.runtime.faults import Fault

# The characters of a path that need no percent-encoding. Source: RFC 3986, 3.3.
_PATH_CHARACTERS = "/!$&'()*+,;=:@-._~"


class HttpRequest(NamedTuple):
    """A request.

    Attributes:
        method: in upper case.
        path: decoded path.
        query: percent-encoded query string, without the question mark.
        headers: names in lower case, and values.
        body: the body's bytes.
        client: the client's address.
        scheme: ``http`` or ``https``.
        http_version: for example ``1.1``.
        prefix: the beginning of the path that leads to the application, and that `path` does not contain: that of a
            function URL with a path of its own; empty for others.
        is_format_1: whether the event has payload format 1.0, so that the answer must have it, too.
    """

    method: str
    path: str
    query: str
    headers: List[Tuple[str, str]]
    body: bytes
    client: str
    scheme: str
    http_version: str
    is_format_1: bool
    prefix: str = ""

    def header(self, name: str, default: str = "") -> str:
        """The value of a header, by its name in lower case; the last one if there are several."""
        for key, value in reversed(self.headers):
            if key == name:
                return value
        return default

    @property
    def raw_path(self) -> str:
        """The percent-encoded path, the prefix included."""
        return self.prefix + quote(self.path, safe=_PATH_CHARACTERS)

    @property
    def server(self) -> Tuple[str, int]:
        """Host name and port in the ``Host`` header; the scheme's port if it names none."""
        host = self.header("host", "localhost")
        name, colon, port = host.rpartition(":")
        if colon and port.isdecimal():
            return name, int(port)
        return host, 443 if self.scheme == "https" else 80

    @property
    def asks_for_websocket(self) -> bool:
        """Whether the client wants to open a WebSocket."""
        return self.header("upgrade").lower() == "websocket"


def is_http(event: Any) -> bool:
    """Whether an event is that of an HTTP request."""
    context = event.get("requestContext") if isinstance(event, dict) else None
    if not isinstance(context, dict):
        return False
    http = context.get("http")
    return (isinstance(http, dict) and "method" in http) or "httpMethod" in event


def request_of(event: Any) -> HttpRequest:
    """Return the request in an event.

    Raises:
        Fault: the event is not that of an HTTP request.
    """
    if is_http(event):
        context = event["requestContext"]
        return _format_1(event, context) if "httpMethod" in event else _format_2(event, context["http"])
    raise Fault(
        "Runtime.NotAnHttpEvent",
        "the handler is a web application and can only answer HTTP requests, but this event is not one (it has no "
        "requestContext with a method): call the function over a route or a function URL, or make a handler with the "
        "parameters (event, context) for other events",
    )


def _format_2(event: Dict[str, Any], http: Dict[str, Any]) -> HttpRequest:
    headers = [(name.lower(), str(value)) for name, value in (event.get("headers") or {}).items()]
    if event.get("cookies"):
        headers.append(("cookie", "; ".join(event["cookies"])))
    return HttpRequest(
        method=http["method"].upper(),
        path=event.get("rawPath") or http.get("path") or "/",
        query=event.get("rawQueryString") or "",
        headers=headers,
        body=_body(event),
        client=http.get("sourceIp") or "",
        scheme=_scheme(headers),
        http_version=_version(http.get("protocol")),
        is_format_1=False,
        prefix=_prefix(event, headers),
    )


def _format_1(event: Dict[str, Any], context: Dict[str, Any]) -> HttpRequest:
    many = event.get("multiValueHeaders") or {name: [text] for name, text in (event.get("headers") or {}).items()}
    headers = [(name.lower(), str(value)) for name, values in many.items() for value in values or ()]
    queries = event.get("multiValueQueryStringParameters") or event.get("queryStringParameters") or {}
    return HttpRequest(
        method=event["httpMethod"].upper(),
        path=event.get("path") or "/",
        query=urlencode(queries, doseq=True),
        headers=headers,
        body=_body(event),
        client=(context.get("identity") or {}).get("sourceIp") or "",
        scheme=_scheme(headers),
        http_version=_version(context.get("protocol")),
        is_format_1=True,
    )


def _prefix(event: Dict[str, Any], headers: List[Tuple[str, str]]) -> str:
    """The prefix that thawd reports. A header that only the client can have sent has no effect."""
    context = event["requestContext"]
    own = "/_urls/%s" % context.get("apiId")
    # Only events of function URLs have the field "authentication".
    return own if "authentication" in context and ("x-forwarded-prefix", own) in headers else ""


def _scheme(headers: List[Tuple[str, str]]) -> str:
    """The scheme that the last proxy reports."""
    for name, value in headers:
        if name == "x-forwarded-proto":
            return "https" if value.split(",")[-1].strip().lower() == "https" else "http"
    return "http"


def _version(protocol: Any) -> str:
    name, _, version = str(protocol or "").partition("/")
    return version if name == "HTTP" and version else "1.1"


def _body(event: Dict[str, Any]) -> bytes:
    body = event.get("body") or ""
    return base64.b64decode(body) if event.get("isBase64Encoded") else body.encode("utf-8", "surrogatepass")
