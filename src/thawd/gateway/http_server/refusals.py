"""The answers to requests that cannot be parsed or served, and the exceptions that end parsing."""

from __future__ import annotations

import msgspec

_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    503: "Service Unavailable",
}


def too_many_headers(most: int) -> str:
    """The message for a request that has more than `most` headers."""
    return f"The request has too many headers; at most {most} are allowed"


def refusal(status: int, message: str) -> bytes:
    """A whole answer with this status, one of `_REASONS`, after which the connection is closed."""
    body = msgspec.json.encode({"message": message})
    retry = b"Retry-After: 1\r\n" if status == 503 else b""
    head = b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%bConnection: close\r\n\r\n"
    return head % (status, _REASONS[status].encode(), len(body), retry) + body


class RefusedHeadError(Exception):
    """The head of a request is refused. Raised in a method that the parser calls, which ends parsing.

    Attributes:
        status: one of `_REASONS`.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NextRequestError(Exception):
    """The data contains a second request. Raised in a method that the parser calls, which ends parsing."""
