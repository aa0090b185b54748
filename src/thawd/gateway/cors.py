"""CORS as thawd's configuration defines it: makes the headers of answers to preflight requests and of other answers.

Where CORS is configured, a preflight request (``OPTIONS`` with ``Origin`` and ``Access-Control-Request-Method``) never
reaches the function, and the configured CORS headers replace those that a handler sets. As on AWS, a preflight request
is answered with 204 for a route and with 200 for a function URL. No side effects.

Source: API Gateway developer guide, "Configure CORS for HTTP APIs in API Gateway"; Lambda developer guide,
"Creating and managing Lambda function URLs", Cross-origin resource sharing (CORS).
"""

from __future__ import annotations

from urllib.parse import urlsplit

from thawd.gateway.http import Headers, Message, Scope, Send, header
from thawd.resources import Cors

_PREFIX = b"access-control-"
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def is_this_machine(origin: str) -> bool:
    """Whether `origin` names this machine as localhost, 127.0.0.1 or ::1."""
    try:
        return urlsplit(origin).hostname in _LOOPBACK_NAMES
    except ValueError:
        return False


def allows(cors: Cors, origin: str) -> bool:
    """Whether web pages of `origin` may send requests.

    In `cors`, ``*`` allows every origin, and ``https://*`` every origin with that scheme. A star in any other place is
    not a wildcard.
    """
    origin = origin.lower()
    for allowed in cors.allow_origins:
        if allowed == "*" or origin == allowed.lower():
            return True
        if allowed.endswith("://*") and origin.startswith(allowed[:-1].lower()):
            return True
    return False


def is_preflight(scope: Scope) -> bool:
    """Whether the request is a browser's preflight request."""
    return (
        scope["method"] == "OPTIONS"
        and header(scope, b"origin") is not None
        and header(scope, b"access-control-request-method") is not None
    )


def preflight_headers(cors: Cors, scope: Scope) -> Headers:
    """The headers that answer a preflight request; empty for an origin that is not allowed."""
    origin = (header(scope, b"origin") or b"").decode("latin-1")
    if not allows(cors, origin):
        return []
    asked = (header(scope, b"access-control-request-headers") or b"").decode("latin-1")
    method = (header(scope, b"access-control-request-method") or b"").decode("latin-1")
    headers = [*_origin_headers(cors, origin)]
    headers.append((b"access-control-allow-methods", _listed(cors.allow_methods, method, cors)))
    if cors.allow_headers:
        headers.append((b"access-control-allow-headers", _listed(cors.allow_headers, asked, cors)))
    if cors.max_age_s:
        headers.append((b"access-control-max-age", str(cors.max_age_s).encode()))
    return headers


def _listed(values: tuple[str, ...], asked: str, cors: Cors) -> bytes:
    # Source: Fetch standard: for a request with credentials, "*" is a literal name and not a wildcard,
    # so the answer names what the browser asked for.
    if "*" in values and cors.allow_credentials:
        return asked.encode("latin-1", "replace")
    return ",".join(values).encode("latin-1", "replace")


def _origin_headers(cors: Cors, origin: str) -> Headers:
    if "*" in cors.allow_origins:
        headers = [(b"access-control-allow-origin", b"*")]
    else:
        headers = [(b"access-control-allow-origin", origin.encode("latin-1", "replace")), (b"vary", b"Origin")]
    if cors.allow_credentials:
        headers.append((b"access-control-allow-credentials", b"true"))
    return headers


def answer_headers(cors: Cors, origin: str, headers: Headers) -> Headers:
    """The headers of an answer to a page of `origin`: `headers`, with their CORS headers replaced by those of `cors`.

    If `cors` does not allow `origin`, the answer has no CORS headers. ``Vary: Origin`` is not added to one that has it.
    """
    kept = [(name, value) for name, value in headers if not name.lower().startswith(_PREFIX)]
    if not allows(cors, origin):
        return kept
    already = {name for name, value in kept if name.lower() == b"vary" and b"origin" in _words(value)}
    kept += [(name, value) for name, value in _origin_headers(cors, origin) if not (already and name == b"vary")]
    if cors.expose_headers:
        kept.append((b"access-control-expose-headers", ",".join(cors.expose_headers).encode("latin-1", "replace")))
    return kept


def _words(value: bytes) -> set[bytes]:
    return {word.strip().lower() for word in value.split(b",")}


def adding(send: Send, cors: Cors | None, scope: Scope) -> Send:
    """Wrap `send` so that answers get the CORS headers of `cors` instead of those that a handler sets.

    Returns `send` itself if `cors` is None or the request has no ``Origin``.
    """
    origin = header(scope, b"origin")
    if cors is None or origin is None:
        return send
    text = origin.decode("latin-1")

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": answer_headers(cors, text, list(message["headers"]))}
        await send(message)

    return with_headers
