"""Selects lines of a function's log: by request id, by a pattern and by time. Knows which invocation a line belongs to.

Lines between an invocation's START and REPORT in the same log stream belong to it. If an environment runs several
invocations at a time, their lines mix, and a line belongs to the invocation that it names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_START = re.compile(rb"START RequestId: ([0-9a-f-]{36}) ")
_JSON_START = re.compile(rb'"type":"platform\.start".*?"requestId":"([0-9a-f-]{36})"')
_ENDS = (b"REPORT RequestId: ", b'"type":"platform.report"')
_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass(slots=True)
class RequestIds:
    """Finds the request id of each line of a log. Give it the lines in their order."""

    _running: dict[bytes, bytes] = field(default_factory=dict)

    def of(self, stream: bytes, message: bytes) -> bytes:
        """Return the request id of a line; empty if it belongs to no invocation, for example during init."""
        found = _START.match(message) or (_JSON_START.search(message) if message[:1] == b"{" else None)
        if found is not None:
            self._running[stream] = found[1]
            return found[1]
        named = _ID.search(message)
        current = self._running.get(stream, b"")
        if any(message.startswith(end) if end[:1] == b"R" else end in message for end in _ENDS):
            self._running.pop(stream, None)
        if named is not None and (not current or message.startswith((b"REPORT ", b"END "))):
            return named[0]
        return current


@dataclass(slots=True)
class Selection:
    """Which lines of a log are wanted.

    Attributes:
        pattern: regular expression that a message must contain; None: any message.
        request: beginning of a request id; empty: the lines of all invocations, and the others.
        since_ms: lines written before this time are not wanted; milliseconds since 1970.
    """

    pattern: re.Pattern[bytes] | None = None
    request: bytes = b""
    since_ms: int = 0
    _ids: RequestIds = field(default_factory=RequestIds)

    @property
    def wants_all(self) -> bool:
        """Whether every line is wanted."""
        return self.pattern is None and not self.request and not self.since_ms

    def take(self, stream: bytes, message: bytes) -> tuple[bool, bytes]:
        """Return whether a line is wanted, apart from its time, and its request id."""
        request_id = self._ids.of(stream, message)
        if self.request and not request_id.startswith(self.request) and self.request not in message:
            return False, request_id
        return self.pattern is None or self.pattern.search(message) is not None, request_id
