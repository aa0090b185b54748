"""Reading a request's body and writing an answer, on the bare ASGI interface.

The invoke path goes without Starlette's request and response objects, which cost it a quarter of its rate.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import Any

import msgspec

from thawd.errors import RequestTooLargeException, ThawdError, TooManyRequestsException
from thawd.invocation import new_trace_header

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

# A body that comes in pieces has to be there after so long: what is half read holds memory.
_BODY_S = 60.0
_SMALL_BYTES = 1 << 16
# Bodies under way at once, all requests together: some forty of the largest.
BUDGET_BYTES = 256 << 20

JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")


class ClientGoneError(Exception):
    """The client closed the connection before it had sent its request."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header `name` (lower case), or None."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def raw_path_of(scope: Scope) -> str:
    """The path as it was sent, percent-encoded, without the query."""
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw_path.decode("latin-1").split("?")[0]


def trace_of(scope: Scope) -> str:
    """The trace header that a request carries, or a new one."""
    return (header(scope, b"x-amzn-trace-id") or b"").decode("latin-1") or new_trace_header()


class Budget:
    """Memory for the bodies of requests that are being read or run; small bodies are not counted."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0

    @contextlib.contextmanager
    def hold(self, scope: Scope, *, most_bytes: int) -> Iterator[None]:
        """Set memory for the request's body aside while it is dealt with.

        Args:
            scope: the request.
            most_bytes: the largest body taken, which one of unknown length is counted as.

        Raises:
            TooManyRequestsException: others hold all of it (429).
        """
        announced = header(scope, b"content-length")
        size = int(announced) if announced is not None and announced.isdigit() else most_bytes
        size = 0 if size <= _SMALL_BYTES else min(size, most_bytes)
        if size and self._used_bytes + size > self._limit_bytes:
            raise TooManyRequestsException(
                f"Rate Exceeded. (requests under way hold {self._used_bytes >> 20} MiB already)",
                reason="ConcurrentInvocationLimitExceeded",
            )
        self._used_bytes += size
        try:
            yield
        finally:
            self._used_bytes -= size


async def read_body(scope: Scope, receive: Receive, *, limit_bytes: int, operation: str) -> bytes:
    """The request's body, whole.

    Raises:
        RequestTooLargeException: it is over `limit_bytes` (413); what is left of it is not read.
        ClientGoneError: the client went away, or took longer than `_BODY_S` to send it.
    """
    announced = header(scope, b"content-length")
    if announced is not None and announced.isdigit() and int(announced) > limit_bytes:
        raise _too_large(limit_bytes, operation)
    message = await receive()
    body: bytes = message.get("body", b"")
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    if not message.get("more_body"):
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes, operation)
        return body
    try:
        async with asyncio.timeout(_BODY_S):
            return await _read_rest(receive, body, limit_bytes=limit_bytes, operation=operation)
    except TimeoutError:
        raise ClientGoneError from None


async def _read_rest(receive: Receive, body: bytes, *, limit_bytes: int, operation: str) -> bytes:
    parts = [body]
    size = len(body)
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit_bytes:
            raise _too_large(limit_bytes, operation)
        more = message.get("more_body", False)
    return b"".join(parts)


def _too_large(limit_bytes: int, operation: str) -> RequestTooLargeException:
    return RequestTooLargeException(f"Request must be smaller than {limit_bytes} bytes for the {operation} operation")


async def respond(send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes = b"") -> None:
    """Send a whole answer."""
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def respond_json(send: Send, status: int, value: Any) -> None:
    """Send `value` as JSON."""
    await respond(send, status, [JSON], msgspec.json.encode(value))


async def respond_error(send: Send, error: ThawdError, *, request_id: str) -> None:
    """Send `error` the way the Lambda API does: ``x-amzn-ErrorType``, and a JSON body with Type, Message and Reason."""
    document = {
        "Type": "User" if error.status < 500 else "Service",
        # AWS spells the field differently from shape to shape; clients read either.
        "Message": error.message,
        "message": error.message,
    }
    if error.reason is not None:
        document["Reason"] = error.reason
    headers = [
        JSON,
        (b"x-amzn-errortype", error.type.encode()),
        (b"x-amzn-requestid", request_id.encode()),
    ]
    if error.status == 429:
        headers.append((b"retry-after", b"1"))
    await respond(send, error.status, headers, msgspec.json.encode(document))
