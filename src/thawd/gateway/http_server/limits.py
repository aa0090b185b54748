"""Limits on one server's connections: how many may be open, how long they may take, how much memory they may use.

This module keeps the list of open connections, closes those whose deadline has passed, and closes resting ones to make
room for new ones. It does not deal with HTTP, which is the task of the module `connections`.

A connection is in one of three states:

- *resting*: it has no complete request. It is new, between two requests, or in the middle of a head (request line and
  headers). It may be closed at any time to make room for another. The one to close is chosen from the half that has
  rested longest: the longest-resting one whose client has read all answers, or, if there is none, the longest-resting.
- *at work*: a request is being served. It is never closed to make room; its only deadline is on the body's progress.
- *stalled*: the client has left so much of the answer unread that the server writes no more. When room is needed and
  few connections are resting, the one that has been stalled longest is closed.
"""

from __future__ import annotations

import asyncio
import math
import resource
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from thawd.system.retry import SayOnce

MOST_CONNECTIONS = 4096
"""Limit on open connections, even if there are file descriptors for more: each needs about 10 KiB of memory."""
_FEWEST_CONNECTIONS = 16
_UNLIMITED_DESCRIPTORS = 1 << 20
# If at most one in this many of the allowed connections is resting, a stalled one is closed instead of a resting one.
# A connection that was just opened is resting, too; otherwise it would be closed before its client can send a request.
_RESTING_SHARE = 8


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of a server's connections.

    Attributes:
        connections: how many connections may be open at a time.
        head_bytes: how many bytes a request's line and headers may have together; a larger head is answered 431. The
            framing of a chunked body (sizes, extensions, trailers) has the same limit.
        headers: how many headers a request may have; more are answered 431.
        head_s: how long the head of a request may take from its first byte, seconds. The first byte on a new connection
            must also arrive within this time.
        idle_s: how long a connection may rest between two requests, seconds.
        stall_s: longest pause between two bytes of an unfinished body, seconds.
        unread_s: how long a client may read nothing of an answer that the application has finished, seconds.
        discard_s: longest pause between two bytes that are discarded after the answer was sent, seconds. Discarding is
            needed because some clients read the answer only after they have sent the whole request, and closing the
            socket with unread data would reset the connection.
        discard_bytes: how many bytes may be discarded after an answer; when more arrive, the connection is closed. It
            is more than the largest request that an API accepts (70 MB), so that a client that sends a little more than
            that can still read why its request was refused.
        unfinished_bytes: how many bytes the unfinished heads of all connections may have together.
        held_bytes: how many bytes all pipelined requests that wait for an earlier request may have together.
    """

    connections: int = MOST_CONNECTIONS
    head_bytes: int = 64 * 1024
    headers: int = 512
    head_s: float = 20.0
    idle_s: float = 5.0
    stall_s: float = 30.0
    unread_s: float = 600.0
    discard_s: float = 30.0
    discard_bytes: int = 128 << 20
    unfinished_bytes: int = 8 << 20
    held_bytes: int = 8 << 20


def most_connections() -> int:
    """How many connections may be open: a third of this process's limit on open files, within fixed bounds.

    The other descriptors are for the files and environments that requests need.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = _UNLIMITED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return max(_FEWEST_CONNECTIONS, min(MOST_CONNECTIONS, descriptors // 3))


class Limited(Protocol):
    """The part of a connection that `Connections` uses.

    Attributes:
        deadline_s: when `expire` is called, in seconds of the event loop's clock; infinite: never.
        head_bytes: size of the part of an incomplete head that has arrived; 0: there is no incomplete head.
        held_bytes: size of the pipelined requests that wait until the request before them is answered.
    """

    deadline_s: float
    head_bytes: int
    held_bytes: int

    def expire(self, now_s: float) -> None:
        """Called when the deadline has passed."""

    def has_unread(self) -> bool:
        """Whether a part of an answer is unsent because the client has not read enough."""

    def end(self) -> None:
        """Close the connection now."""


class Connections:
    """The open connections of one server.

    Args:
        limits: the server's limits.
        complain: reports a problem to the operator.

    Attributes:
        is_ending: whether each connection is closed after its next answer.
    """

    def __init__(self, limits: ConnectionLimits, *, complain: Callable[[str], None]) -> None:
        self.limits = limits
        self.is_ending = False
        self._reports = SayOnce(complain)
        self._open: set[Limited] = set()
        # Connections that rest, that have received a part of a head, and that are stalled. Each group is in the order
        # in which the connections joined it.
        self._resting: OrderedDict[Limited, None] = OrderedDict()
        self._sending: OrderedDict[Limited, None] = OrderedDict()
        self._stalled: OrderedDict[Limited, None] = OrderedDict()
        self._unfinished_bytes = 0
        self._held_bytes = 0
        self._sweeping: asyncio.TimerHandle | None = None
        self._sweep_s = min(1.0, min(limits.head_s, limits.idle_s, limits.stall_s, limits.discard_s) / 4)

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Limited) -> bool:
        """Add a new connection; False: there is no room, since all others are at work and none can be closed."""
        has_room = len(self._open) < self.limits.connections or self._make_room()
        self._open.add(connection)
        self._resting[connection] = None
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(self._sweep_s, self._sweep)
        return has_room

    def leave(self, connection: Limited) -> None:
        """Remove a connection that has closed."""
        self._open.discard(connection)
        self._resting.pop(connection, None)
        self._stalled.pop(connection, None)
        self.head_is_over(connection)
        self.hold(connection, 0)

    def work(self, connection: Limited) -> None:
        """Mark the connection as at work: it has a request to serve."""
        self._resting.pop(connection, None)

    def rest(self, connection: Limited) -> None:
        """Mark the connection as resting: it has no request to serve at present."""
        if connection in self._open:
            self._resting[connection] = None

    def stall(self, connection: Limited) -> None:
        """Mark the connection as stalled: its client does not read, so the server writes no more."""
        if connection in self._open:
            self._stalled[connection] = None

    def go_on(self, connection: Limited) -> None:
        """Mark the connection as no longer stalled: its client has read."""
        self._stalled.pop(connection, None)

    def head_goes_on(self, connection: Limited, size: int) -> None:
        """Count `size` more bytes of an incomplete head; beyond the limit, close connections, the oldest head first."""
        if not connection.head_bytes:
            self._sending[connection] = None
        connection.head_bytes += size
        self._unfinished_bytes += size
        while self._unfinished_bytes > self.limits.unfinished_bytes:
            oldest = next(iter(self._sending))
            self.head_is_over(oldest)
            oldest.end()

    def head_is_over(self, connection: Limited) -> None:
        """Stop counting the bytes of a head that is complete or was abandoned."""
        self._unfinished_bytes -= connection.head_bytes
        connection.head_bytes = 0
        self._sending.pop(connection, None)

    def hold(self, connection: Limited, size: int) -> bool:
        """Set `held_bytes` of a connection to `size`; False: all connections together exceed the limit."""
        self._held_bytes += size - connection.held_bytes
        connection.held_bytes = size
        return self._held_bytes <= self.limits.held_bytes

    def _make_room(self) -> bool:
        """Close one resting or stalled connection; False: all connections are at work, so none can be closed."""
        self._reports.say(
            f"thawd: {len(self._open)} connections are open, which is the limit. thawd closes connections that have no "
            "request or whose client does not read, oldest first; if it can close none, it answers new connections "
            f"with 503. To allow more, up to {MOST_CONNECTIONS}, raise the limit on open files (ulimit -n)",
            cause="full",
        )
        victim = self._victim()
        if victim is None:
            return False
        self._open.discard(victim)
        self._resting.pop(victim, None)
        self._stalled.pop(victim, None)
        victim.end()
        return True

    def _victim(self) -> Limited | None:
        if self._stalled and len(self._resting) <= self.limits.connections // _RESTING_SHARE:
            return next(iter(self._stalled))
        # Only the older half of the resting connections is considered. Otherwise, if the older ones have unread
        # answers, the newest connections would be closed before their clients can send a request.
        older = islice(self._resting, (len(self._resting) + 1) // 2)
        return next((each for each in older if not each.has_unread()), next(iter(self._resting), None))

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        try:
            for connection in [each for each in self._open if each.deadline_s <= now_s]:
                connection.deadline_s = math.inf
                connection.expire(now_s)
        finally:  # asyncio reports an exception of one connection; the others are checked again in the next round
            self._sweeping = loop.call_later(self._sweep_s, self._sweep) if self._open else None
