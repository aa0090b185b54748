"""Encodes requests as bytes, and decides which answers are right."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from thawd.bench.connection import Answer
from thawd.errors import StoreError

# AWS and thawd accept a signature for five minutes. Requests that are sent later than a minute after they were signed
# are signed again.
_FRESH_S = 60.0
# Characters that are not percent-encoded. Source: RFC 3986, 2.2. The percent sign is one of them, because parts of the
# URL may be encoded already.
_AS_IT_IS = "!#$&'()*+,/:;=?@[]%|"

_SECRET_PARAMETERS = ("X-Amz-Signature", "X-Amz-Security-Token", "Signature")

Credentials = Callable[[str, bytes, Mapping[str, str]], Mapping[str, str]]
"""Returns the headers that authenticate a request; its arguments are the path, the body and the other headers."""


@dataclass(frozen=True, slots=True)
class Target:
    """Address of the requests.

    Attributes:
        url: absolute URL, ``http`` or ``https``.
        method: HTTP method.
        headers: headers in addition to those that every request has.
        credentials: returns the headers that authenticate a request; None: no such headers are needed.
    """

    url: str
    method: str
    headers: Mapping[str, str]
    credentials: Credentials | None = None

    @property
    def host(self) -> str:
        """Name or address of the host."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """TCP port."""
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def is_encrypted(self) -> bool:
        """Whether connections use TLS."""
        return urlsplit(self.url).scheme == "https"

    @property
    def path(self) -> str:
        """Path and query for the request line. Characters that are not allowed in it are percent-encoded."""
        parts = urlsplit(self.url)
        return quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_AS_IT_IS)


def check_url(url: str) -> None:
    """Check that requests can be sent to a URL.

    Raises:
        StoreError: the URL is invalid, has another scheme than http or https, or names no host.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        usable = usable and parts.netloc.isascii()
    except ValueError:
        usable = False
    if not usable or any(c.isspace() or ord(c) < 32 for c in url):
        raise StoreError(f"{url!r} is not a URL that begins with http:// or https:// and names a host")


def without_credentials(url: str) -> tuple[str, dict[str, str]]:
    """Remove user name and password from a URL, so that reports can show it.

    Returns:
        The URL without them, and an ``Authorization`` header that contains them (empty: the URL had none).
    """
    parts = urlsplit(url)
    credentials, at, place = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    name, _, password = credentials.partition(":")
    encoded = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
    return parts._replace(netloc=place).geturl(), {"Authorization": f"Basic {encoded}"}


def shown(url: str) -> str:
    """Return a URL for reports, with ``***`` in place of the signature and security token of a presigned request."""
    start, question, query = url.partition("?")
    pairs = (pair.partition("=") for pair in query.split("&"))
    return (
        start
        + question
        + "&".join(
            f"{name}{equals}{'***' if equals and unquote(name) in _SECRET_PARAMETERS else value}"
            for name, equals, value in pairs
        )
    )


class Requests:
    """The encoded requests of a run.

    Args:
        target: address of the requests.
        payloads: bodies, used in rotation.
    """

    def __init__(self, target: Target, payloads: Sequence[bytes]) -> None:
        self._target = target
        self._payloads = list(payloads) or [b""]
        self._encoded: list[bytes] = []
        self._encoded_s = 0.0

    def __getitem__(self, index: int) -> bytes:
        """Return the encoded request number `index`, counted from 0. If its signature is old, sign it again."""
        is_stale = self._target.credentials is not None and time.monotonic() - self._encoded_s > _FRESH_S
        if not self._encoded or is_stale:
            self._encoded = [self._encode(payload) for payload in self._payloads]
            self._encoded_s = time.monotonic()
        return self._encoded[index % len(self._encoded)]

    def _encode(self, payload: bytes) -> bytes:
        target = self._target
        headers = {"Host": urlsplit(target.url).netloc, "User-Agent": "thawd-bench"}
        if payload or target.method != "GET":
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(payload))}
        headers |= target.headers
        if target.credentials is not None:
            headers |= target.credentials(target.path, payload, headers)
        lines = [f"{target.method} {target.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + payload


@dataclass(frozen=True, slots=True)
class Expected:
    """Properties of a right answer.

    Attributes:
        statuses: HTTP statuses that are right; empty: 200 to 299.
        text: text that the first 64 KiB of the body must contain; empty: any body is right.
    """

    statuses: frozenset[int] = frozenset()
    text: bytes = b""

    def outcome(self, answer: Answer) -> str:
        """Classify an answer: ``ok``, or the kind of error.

        The kinds of error are ``time-out``, ``connection`` (refused, broken, or not HTTP), ``throttle`` (429), ``HTTP``
        followed by the status, ``function`` followed by the value of `X-Amz-Function-Error`, and
        ``unexpected answer`` (the expected text is missing).
        """
        if answer.trouble:
            return answer.trouble
        status = answer.status
        if not (status in self.statuses if self.statuses else 200 <= status < 300):
            return "throttle" if status == 429 else f"HTTP {status}"
        if answer.function_error and not self.statuses:
            return f"function {answer.function_error.decode('latin-1')}"
        if self.text and self.text not in answer.body:
            return "unexpected answer"
        return "ok"
