"""Reads request bodies and writes answers, directly on the ASGI interface.

With the request and response objects of a web framework, the Invoke API would serve a quarter fewer requests per
second. See docs/decisions/0014-asgi.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec

from thawd.errors import (
    MethodNotAllowedException,
    RequestTimeoutException,
    RequestTooLargeException,
    ThawdError,
    TooManyRequestsException,
)
from thawd.grammar import trace_headers
from thawd.invocation import new_trace_header

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

# Longest time to receive a body that arrives in pieces. The time is limited because an incomplete body occupies memory.
_BODY_S = 60.0
_SMALL_BYTES = 1 << 16
# Memory for the bodies of all open requests together, enough for about forty synchronous events of the largest size.
# Bodies of up to `_SMALL_BYTES` have a separate budget, which large bodies cannot use up.
BUDGET_BYTES = 256 << 20
_SMALL_BUDGET_BYTES = 32 << 20
# Memory for incomplete bodies. If they need more, thawd refuses requests with slow bodies, the slowest first. A body is
# slow if its last full `_SMALL_BYTES` arrived at least `_SLOW_S` seconds ago.
_SLOW_BUDGET_BYTES = 24 << 20
_SLOW_S = 1.0

# How AWS's service model describes the error documents: most have ``Type`` and ``message``; these spell ``Message``.
_CAPITAL = frozenset(
    {
        "AccessDeniedException",
        "CodeSigningConfigNotFoundException",
        "CodeVerificationFailedException",
        "ResourceInUseException",
        "ResourceNotFoundException",
        "ServiceException",
    }
)
# These errors are not in the service model: AWS's front end answers with them before the service sees the request.
_WITHOUT_TYPE = frozenset(
    {"ValidationException", "SerializationException", "AccessDeniedException", "RequestEntityTooLargeException"}
)

_BY_NAME = "thawd.headers"  # under this key of a scope, `header` stores a dict of the headers by name
ARRIVED = "thawd.arrived_s"
"""Key of a scope: when the request's head arrived, ``time.monotonic()`` seconds. Only thawd's own server sets it."""
JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")
READING = ("GET", "HEAD")
"""The methods of requests that only read one of thawd's own pages."""


class ClientGoneError(Exception):
    """The client closed the connection before it had sent the whole request."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header `name` (lower case), or None."""
    kept = scope.get(_BY_NAME)
    by_name = kept[1] if kept is not None and kept[0] is scope["headers"] else keep_by_name(scope)
    value: bytes | None = by_name.get(name)
    return value


def headers_by_name(scope: Scope) -> Mapping[bytes, bytes]:
    """The first header of each name (lower case): a quicker way than several calls of `header`."""
    kept = scope.get(_BY_NAME)
    if kept is None or kept[0] is not scope["headers"]:
        return keep_by_name(scope)
    by_name: dict[bytes, bytes] = kept[1]
    return by_name


def keep_by_name(scope: Scope) -> dict[bytes, bytes]:
    """Store the headers by name in the scope, for `header`, and return them: the first one of each name."""
    listed = scope["headers"]
    by_name = dict(reversed(listed))  # reversed, so that of several headers with one name the first one remains
    scope[_BY_NAME] = (listed, by_name)
    return by_name


def raw_path_of(scope: Scope) -> str:
    """The path as it was sent, percent-encoded, without the query."""
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw_path.decode("latin-1").split("?")[0]


def trace_of(scope: Scope) -> str:
    """The X-Ray trace header of a request, from its ``X-Amzn-Trace-Id`` and ``traceparent``; a new one without them."""
    by_name = headers_by_name(scope)
    own = by_name.get(b"x-amzn-trace-id", b"").decode("latin-1")
    traceparent = by_name.get(b"traceparent")
    if traceparent is not None:
        own = trace_headers.joined(own, traceparent.decode("latin-1"))
    return own or new_trace_header()


class _Incomplete:
    """Counts the bytes of the bodies that are being received. If these need too much memory, it refuses slow bodies.

    A body is represented by the `asyncio.Timeout` that limits its time: to refuse the body, the timeout is set to
    expire at once. `_bodies` begins with the slowest body, the one whose last full 64 KiB arrived the longest time ago.
    """

    def __init__(self) -> None:
        self._bodies: OrderedDict[asyncio.Timeout, tuple[int, int, float]] = OrderedDict()
        self._held_bytes = 0
        self._is_waiting = False

    def add(self, body: asyncio.Timeout, size: int) -> None:
        """Count `size` more bytes of a body."""
        now_s = asyncio.get_running_loop().time()
        held, recent, since_s = self._bodies.get(body, (0, 0, now_s))
        recent += size
        self._held_bytes += size
        self._bodies[body] = (held + size, recent, since_s)
        if recent >= _SMALL_BYTES:
            self._bodies[body] = (held + size, 0, now_s)
            self._bodies.move_to_end(body)
        if self._held_bytes > _SLOW_BUDGET_BYTES and not self._is_waiting:
            self._check_later()  # not at once: the event loop may not yet have read all data that has arrived

    def _check_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._is_waiting = True
        loop.call_later(_SLOW_S / 4, self._refuse_slow, loop.time() + _SLOW_S / 4)

    def _refuse_slow(self, due_s: float) -> None:
        """Refuse slow bodies, the slowest first, until the bodies need at most `_SLOW_BUDGET_BYTES` together.

        If they need more and none of them is slow, or if the event loop is late, this checks again later.

        Args:
            due_s: when this call was due, in seconds of the event loop's clock.
        """
        now_s = asyncio.get_running_loop().time()
        self._is_waiting = False
        if now_s - due_s > _SLOW_S / 4:
            self._check_later()  # the event loop is late: it may not yet have read data of a body that seems slow
            return
        while self._held_bytes > _SLOW_BUDGET_BYTES:
            slowest = next(iter(self._bodies))
            if now_s - self._bodies[slowest][2] < _SLOW_S:
                self._check_later()
                return
            self.remove(slowest)
            with contextlib.suppress(RuntimeError):  # raised if the timeout is expiring already
                slowest.reschedule(now_s)

    def remove(self, body: asyncio.Timeout) -> None:
        """Stop counting a body that is complete or was refused."""
        held, _, _ = self._bodies.pop(body, (0, 0, 0.0))
        self._held_bytes -= held


_incomplete_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Incomplete] = weakref.WeakKeyDictionary()


def _incomplete_bodies() -> _Incomplete:
    """The incomplete bodies of the running event loop. There is one event loop for each server."""
    loop = asyncio.get_running_loop()
    found = _incomplete_by_loop.get(loop)
    if found is None:
        found = _incomplete_by_loop[loop] = _Incomplete()
    return found


class Budget:
    """Limits the memory for the bodies of all requests that have not been answered yet.

    Attributes:
        used_bytes: memory reserved for bodies of more than 64 KiB.
        small_bytes: memory reserved for bodies of up to 64 KiB, which has a limit of its own.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0
        self.small_bytes = 0

    def hold(self, scope: Scope, *, most_bytes: int) -> Held:
        """Reserve memory for the request's body until the ``with`` block of the returned object ends.

        The caller answers the request within this block.

        Args:
            scope: the request.
            most_bytes: size of the largest body accepted; a body of unknown length counts as this many bytes.

        Raises:
            TooManyRequestsException: other requests have reserved too much of the budget (429).
        """
        announced = header(scope, b"content-length")
        size = int(announced) if announced is not None and announced.isdigit() else most_bytes
        size = min(size, most_bytes)
        if size <= _SMALL_BYTES:
            if self.small_bytes + size > _SMALL_BUDGET_BYTES:
                raise _too_many(self.small_bytes)
            self.small_bytes += size
            return Held(self, 0, size)
        if self.used_bytes + size > self._limit_bytes:
            raise _too_many(self.used_bytes)
        self.used_bytes += size
        return Held(self, size, 0)


class Held:
    """Memory that a `Budget` has reserved for one request; the end of the ``with`` block releases this memory."""

    __slots__ = ("_budget", "_small_bytes", "_used_bytes")

    def __init__(self, budget: Budget, used_bytes: int, small_bytes: int) -> None:
        self._budget = budget
        self._used_bytes = used_bytes
        self._small_bytes = small_bytes

    def __enter__(self) -> None:
        """Do nothing: `Budget.hold` has reserved the memory already."""

    def __exit__(self, *error: object) -> None:
        """Release the memory."""
        self._budget.used_bytes -= self._used_bytes
        self._budget.small_bytes -= self._small_bytes


def _too_many(used_bytes: int) -> TooManyRequestsException:
    return TooManyRequestsException(
        f"Rate Exceeded. (the bodies of requests in progress already occupy {used_bytes >> 20} MiB; try again later)",
        reason="ConcurrentInvocationLimitExceeded",
    )


async def read_body(scope: Scope, receive: Receive, *, limit_bytes: int, operation: str) -> bytes:
    """The whole body of the request.

    Raises:
        RequestTooLargeException: the body has more than `limit_bytes` (413); the rest of it is not read.
        RequestTimeoutException: the body was not complete after `_BODY_S` seconds, or it arrived slowly while the
            memory for incomplete bodies was used up (408).
        ClientGoneError: the client closed the connection.
    """
    announced = header(scope, b"content-length")
    if announced is not None and announced.isdigit() and int(announced) > limit_bytes:
        raise _too_large(limit_bytes, operation)
    take_body = getattr(getattr(receive, "__self__", None), "take_body", None)
    body: bytes | None = None if take_body is None else take_body()
    if body is not None:  # thawd's own server has the whole body already
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes, operation)
        return body
    message = await receive()
    body = message.get("body", b"")
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    if not message.get("more_body"):
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes, operation)
        return body
    try:
        async with asyncio.timeout(_BODY_S) as limit:
            incomplete = _incomplete_bodies()
            try:
                incomplete.add(limit, len(body))
                received = partial(incomplete.add, limit)
                return await _read_rest(receive, body, received, limit_bytes=limit_bytes, operation=operation)
            finally:
                incomplete.remove(limit)
    except TimeoutError:
        raise RequestTimeoutException("The body of the request arrived too slowly; send the request again") from None


async def _read_rest(
    receive: Receive, body: bytes, received: Callable[[int], None], *, limit_bytes: int, operation: str
) -> bytes:
    parts = [body]
    size = len(body)
    more = True
    try:
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            received(len(parts[-1]))
            if size > limit_bytes:
                raise _too_large(limit_bytes, operation)
            more = message.get("more_body", False)
        return b"".join(parts)
    finally:
        parts.clear()  # an error's traceback would keep the parts alive until the next garbage collection


def _too_large(limit_bytes: int, operation: str) -> RequestTooLargeException:
    return RequestTooLargeException(f"Request must be smaller than {limit_bytes} bytes for the {operation} operation")


def respond(
    send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes = b""
) -> Coroutine[Any, Any, None]:
    """Send a complete answer. To be awaited. An answer 204 must have no body."""
    headers = _with_length(status, headers, body)
    send_whole = getattr(getattr(send, "__self__", None), "send_whole", None)
    if send_whole is not None:  # thawd's own server; see `thawd.gateway.http_server.answers`
        coroutine: Coroutine[Any, Any, None] = send_whole(status, headers, body)
        return coroutine
    return _respond_in_two(send, status, headers, body)


def respond_now(send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
    """Send a complete answer within this call, if that is possible without waiting. Return whether it was sent."""
    send_now = getattr(getattr(send, "__self__", None), "send_now", None)
    if send_now is None:
        return False
    was_sent: bool = send_now(status, _with_length(status, headers, body), body)
    return was_sent


def _with_length(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> list[tuple[bytes, bytes]]:
    """Add the length of the body. An answer 204 has neither.

    Source: RFC 9110, section 8.6: "A server MUST NOT send a Content-Length header field in any response with a status
    code of 1xx (Informational) or 204 (No Content)".
    """
    return [*headers] if status == HTTPStatus.NO_CONTENT else [*headers, (b"content-length", b"%d" % len(body))]


async def _respond_in_two(send: Send, status: int, headers: Headers, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def respond_json(send: Send, status: int, value: Any) -> None:
    """Send `value` as JSON."""
    await respond(send, status, [JSON], msgspec.json.encode(value))


async def respond_error(send: Send, error: ThawdError, *, request_id: str) -> None:
    """Send `error` the way the Lambda API does: ``x-amzn-ErrorType``, and a JSON body with Type, Message and Reason."""
    document: dict[str, str | None]
    is_typed = error.is_typed and error.type not in _WITHOUT_TYPE
    document = {} if not is_typed else {"Type": "User" if error.status < 500 else "Service"}
    document["Message" if error.type in _CAPITAL else "message"] = error.message or None
    if error.reason is not None:
        document["Reason"] = error.reason
    headers = [
        JSON,
        (b"x-amzn-errortype", error.type.encode()),
        (b"x-amzn-requestid", request_id.encode()),
    ]
    if error.status == 429:
        headers.append((b"retry-after", b"1"))
    if isinstance(error, MethodNotAllowedException):
        headers.append((b"allow", ", ".join(error.allowed).encode()))  # RFC 9110, 15.5.6, requires this header
    await respond(send, error.status, headers, msgspec.json.encode(document))
