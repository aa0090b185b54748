"""What is sent, as bytes, and what of an answer is right."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from thawd.bench.connection import Answer
from thawd.errors import StoreError

# Signatures hold for five minutes at AWS and here; requests are made anew before.
_FRESH_S = 60.0
# Source: RFC 3986, 2.2, and what is encoded already.
_AS_IT_IS = "!#$&'()*+,/:;=?@[]%|"

_SECRET_PARAMETERS = ("X-Amz-Signature", "X-Amz-Security-Token", "Signature")

Credentials = Callable[[str, bytes, Mapping[str, str]], Mapping[str, str]]
"""Headers that let a request in, from its path, body and other headers."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go.

    Attributes:
        url: absolute, ``http`` or ``https``.
        method: of HTTP.
        headers: besides those that every request has.
        credentials: what lets requests in; None: nothing is needed.
    """

    url: str
    method: str
    headers: Mapping[str, str]
    credentials: Credentials | None = None

    @property
    def host(self) -> str:
        """The host's name or address."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The port."""
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection is a TLS one."""
        return urlsplit(self.url).scheme == "https"

    @property
    def path(self) -> str:
        """What stands in the request line; what may not stand there, such as an umlaut, is percent-encoded."""
        parts = urlsplit(self.url)
        return quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_AS_IT_IS)


def check_url(url: str) -> None:
    """Let an address pass to which requests can be sent.

    Raises:
        StoreError: it is none.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        usable = usable and parts.netloc.isascii()
    except ValueError:
        usable = False
    if not usable or any(c.isspace() or ord(c) < 32 for c in url):
        raise StoreError(f"{url!r} is no address that begins with http:// or https:// and names a host")


def without_credentials(url: str) -> tuple[str, dict[str, str]]:
    """An address without the name and password in it, which are in nobody's report, and the header that says them."""
    parts = urlsplit(url)
    credentials, at, place = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    name, _, password = credentials.partition(":")
    encoded = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
    return parts._replace(netloc=place).geturl(), {"Authorization": f"Basic {encoded}"}


def shown(url: str) -> str:
    """An address as reports show it: without what lets a request in that is presigned."""
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
    """The requests of a run, ready to be sent.

    Args:
        target: where they go.
        payloads: bodies; they are sent in turn.
    """

    def __init__(self, target: Target, payloads: Sequence[bytes]) -> None:
        self._target = target
        self._payloads = list(payloads) or [b""]
        self._made: list[bytes] = []
        self._made_s = 0.0

    def __getitem__(self, index: int) -> bytes:
        """The bytes of the request number `index`, from 0."""
        if not self._made or (self._target.credentials is not None and time.monotonic() - self._made_s > _FRESH_S):
            self._made = [self._make(payload) for payload in self._payloads]
            self._made_s = time.monotonic()
        return self._made[index % len(self._made)]

    def _make(self, payload: bytes) -> bytes:
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
    """What counts as a right answer.

    Attributes:
        statuses: of HTTP; empty: 200 to 299.
        text: must occur in the first 64 KiB of the body; empty: anything is right.
    """

    statuses: frozenset[int] = frozenset()
    text: bytes = b""

    def outcome(self, answer: Answer) -> str:
        """``ok``, or the kind of what is wrong.

        The kinds: ``time-out``, ``connection`` (refused, broken, or no HTTP), ``throttle`` (429), ``HTTP`` and the
        status, ``function`` and `X-Amz-Function-Error`, ``unexpected answer`` (the text is not in it).
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
