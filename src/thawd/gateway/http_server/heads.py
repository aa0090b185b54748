"""The heads of requests, parsed. A head is the request line and the headers.

Most clients send the same head again and again over a connection. A connection therefore keeps the last head, and does
not parse bytes that are equal to it again: parsing depends on nothing but the bytes.
"""

from __future__ import annotations

import time
import urllib.parse
from typing import Any

import httptools

from thawd.gateway.http import ARRIVED, Scope, keep_by_name
from thawd.gateway.http_server.refusals import RefusedHeadError

# A longer head is parsed each time, so that connections keep little memory.
_MOST_KEPT_BYTES = 2048
_FORWARDED = (b"x-forwarded-for", b"x-forwarded-proto")


class RequestHead:
    """The head of one request.

    Attributes:
        body_bytes: size of the body that the head announces; None: the body is chunked.
        keep_alive: whether the connection stays open after the answer.
        expects_continue: whether the client waits for ``100 Continue`` before it sends the body.
        asks_for_upgrade: whether the client asks for another protocol. thawd ignores that.
        is_forwarded: whether a proxy has added headers about the client that it forwards for.
        text: the bytes of the head, if equal bytes need not be parsed again; else None.
    """

    __slots__ = (
        "_scope",
        "asks_for_upgrade",
        "body_bytes",
        "expects_continue",
        "is_forwarded",
        "keep_alive",
        "text",
    )

    def __init__(
        self, parser: httptools.HttpRequestParser, url: bytes, headers: list[tuple[bytes, bytes]], scope: Scope
    ) -> None:
        """Take what the parser has found.

        Args:
            parser: the parser, which has just read the last header.
            url: the target in the request line.
            headers: names in lower case, and values.
            scope: the parts of the ASGI scope that are the same for all requests on the connection.

        Raises:
            httptools.HttpParserInvalidURLError: the target is not a URL.
            RefusedHeadError: there are several Host headers, or the body has a coding that thawd does not know.
        """
        http_version = parser.get_http_version()
        parsed = httptools.parse_url(url)
        path = parsed.path.decode("ascii")
        self._scope: dict[str, Any] = {
            **scope,
            "http_version": http_version,
            "method": parser.get_method().decode("ascii"),
            "path": urllib.parse.unquote(path) if "%" in path else path,
            "raw_path": parsed.path,
            "query_string": parsed.query or b"",
            "headers": headers,
        }
        by_name = keep_by_name(self._scope)
        _check(headers, by_name)
        self.body_bytes = _announced_bytes(by_name)
        self.keep_alive: bool = http_version != "1.0" and parser.should_keep_alive()
        self.expects_continue = b"expect" in by_name and any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in headers
        )
        self.asks_for_upgrade: bool = parser.should_upgrade()
        self.is_forwarded = any(name in by_name for name in _FORWARDED)
        self.text: bytes | None = None

    def keep(self, text: bytes) -> None:
        """Remember the bytes of the head, if a request with equal bytes can be served without the parser."""
        is_plain = self.keep_alive and not self.expects_continue and not self.asks_for_upgrade
        if is_plain and self.body_bytes is not None and len(text) <= _MOST_KEPT_BYTES:
            self.text = text

    def scope(self) -> dict[str, Any]:
        """The ASGI scope for a request with this head, which has just arrived."""
        scope = self._scope.copy()
        scope[ARRIVED] = time.monotonic()
        return scope


def _check(headers: list[tuple[bytes, bytes]], by_name: dict[bytes, bytes]) -> None:
    """Refuse a head that a proxy and thawd may understand differently.

    Raises:
        RefusedHeadError: see `RequestHead`.

    Source: RFC 9112, 3.2 "Request Target", 6.1 "Transfer-Encoding".
    """
    if [name for name, _ in headers].count(b"host") > 1:
        raise RefusedHeadError(400, "The request has several Host headers; send one")
    if b"transfer-encoding" in by_name:
        codings = b",".join(value for name, value in headers if name == b"transfer-encoding")
        if codings.strip().lower() != b"chunked":
            raise RefusedHeadError(
                501, f"The transfer coding {codings.decode('latin-1')[:80]!r} is not supported; send chunked only"
            )


def _announced_bytes(by_name: dict[bytes, bytes]) -> int | None:
    """The size of the body that the headers announce; None: the body is chunked.

    The parser has already refused a Content-Length that is not a number, and a request with both Content-Length and
    Transfer-Encoding.
    """
    if b"transfer-encoding" in by_name:
        return None
    return int(by_name.get(b"content-length", 0))
