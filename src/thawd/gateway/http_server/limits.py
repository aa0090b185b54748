"""How many connections there may be, how long they may take, and what they may hold: the limits of one server.

Holds the list of open connections, ends those that are over their time, and closes those that rest when there is no
room for another. Knows nothing of HTTP; the protocol is in `connections`.

What a connection is at any moment:

- *resting*: no request of it is being dealt with: it is new, between two requests, or in the middle of a head. It may
  be closed at any time, and is, the one that has rested longest first, when room is needed; of the older half first
  those whose clients have read all that was answered.
- *at work*: a request is being dealt with. It is not closed for room; its only deadline is for the body to go on.
- *stalled*: so much of its answer waits for the client to read that no more is written. It may take its time while
  there is room; when hardly any connection rests, the one that has stalled longest is closed.
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

MOST_CONNECTIONS = 4096
"""However many descriptors there are: each connection takes some 10 KiB."""
_FEWEST_CONNECTIONS = 16
_UNLIMITED_DESCRIPTORS = 1 << 20
# Such a part of all connections is left to those that rest when others stall: who has just connected rests, too.
_RESTING_SHARE = 8


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits.

    Attributes:
        connections: most connections at once.
        head_bytes: most bytes of a request's line and headers together; more is answered 431. The same holds for what
            is no content in a chunked body: sizes, extensions, trailers.
        headers: most headers of a request; more is answered 431.
        head_s: how long the head of a request may take from its first byte on, or a new connection to its first whole
            head, seconds.
        idle_s: how long a connection may rest between two requests, seconds.
        stall_s: how long no byte of an unfinished body may come, seconds.
        unread_s: how long a client may read nothing of an answer that was given, seconds.
        discard_s: how long no byte may come of what is read for nothing after the answer was sent, seconds: a client
            that sends sees the answer only when it is done, and a reset if nobody reads.
        discard_bytes: how much of it.
        unfinished_bytes: most bytes of unfinished heads, all connections together.
        held_bytes: most bytes of pipelined requests that wait for the one before them, all connections together.
    """

    connections: int = MOST_CONNECTIONS
    head_bytes: int = 64 * 1024
    headers: int = 512
    head_s: float = 20.0
    idle_s: float = 5.0
    stall_s: float = 30.0
    unread_s: float = 600.0
    discard_s: float = 30.0
    discard_bytes: int = 64 << 20
    unfinished_bytes: int = 8 << 20
    held_bytes: int = 8 << 20


def most_connections() -> int:
    """As many connections as leave two thirds of the descriptors to the work behind them: a file for each, and more."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = _UNLIMITED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return max(_FEWEST_CONNECTIONS, min(MOST_CONNECTIONS, descriptors // 3))


class Limited(Protocol):
    """A connection, as far as limits go.

    Attributes:
        deadline_s: when it is over its time, on the loop's clock; infinite: never.
        head_bytes: of a head that is not complete yet.
        held_bytes: of requests that wait for the one before them.
    """

    deadline_s: float
    head_bytes: int
    held_bytes: int

    def expire(self, now_s: float) -> None:
        """It is over its time."""

    def has_unread(self) -> bool:
        """Whether a part of an answer waits for the client to read."""

    def end(self) -> None:
        """Close it now."""


class Connections:
    """The open connections of one server.

    Args:
        limits: that hold.
        complain: tells the operator.
    """

    def __init__(self, limits: ConnectionLimits, *, complain: Callable[[str], None]) -> None:
        self.limits = limits
        self._complain = complain
        self._open: set[Limited] = set()
        # Ordered by when they began to rest, to send a head, or not to read.
        self._resting: OrderedDict[Limited, None] = OrderedDict()
        self._sending: OrderedDict[Limited, None] = OrderedDict()
        self._stalled: OrderedDict[Limited, None] = OrderedDict()
        self._unfinished_bytes = 0
        self._held_bytes = 0
        self._has_complained = False
        self._sweeping: asyncio.TimerHandle | None = None
        self._sweep_s = min(1.0, min(limits.head_s, limits.idle_s, limits.stall_s, limits.discard_s) / 4)

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Limited) -> bool:
        """Take a new connection in; False: there is no room, and all the others are at work and read."""
        has_room = len(self._open) < self.limits.connections or self._make_room()
        self._open.add(connection)
        self._resting[connection] = None
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(self._sweep_s, self._sweep)
        return has_room

    def leave(self, connection: Limited) -> None:
        """The connection is closed."""
        self._open.discard(connection)
        self._resting.pop(connection, None)
        self._stalled.pop(connection, None)
        self.head_is_over(connection)
        self.hold(connection, 0)

    def work(self, connection: Limited) -> None:
        """A request of it is being dealt with from now on."""
        self._resting.pop(connection, None)

    def rest(self, connection: Limited) -> None:
        """No request of it is being dealt with any more."""
        if connection in self._open:
            self._resting[connection] = None

    def stall(self, connection: Limited) -> None:
        """Its client does not read: no more is written to it."""
        if connection in self._open:
            self._stalled[connection] = None

    def go_on(self, connection: Limited) -> None:
        """Its client has read."""
        self._stalled.pop(connection, None)

    def head_goes_on(self, connection: Limited, size: int) -> None:
        """`size` more bytes of a head came that is not complete yet."""
        if not connection.head_bytes:
            self._sending[connection] = None
        connection.head_bytes += size
        self._unfinished_bytes += size
        while self._unfinished_bytes > self.limits.unfinished_bytes:
            oldest = next(iter(self._sending))
            self.head_is_over(oldest)
            oldest.end()

    def head_is_over(self, connection: Limited) -> None:
        """The head is complete, or will never be."""
        self._unfinished_bytes -= connection.head_bytes
        connection.head_bytes = 0
        self._sending.pop(connection, None)

    def hold(self, connection: Limited, size: int) -> bool:
        """`size` bytes are held for a connection in the place of those that were; False: that is too much."""
        self._held_bytes += size - connection.held_bytes
        connection.held_bytes = size
        return self._held_bytes <= self.limits.held_bytes

    def _make_room(self) -> bool:
        """Close the connection that has rested longest, or stalled longest if few rest; False: there is none."""
        if not self._has_complained:
            self._has_complained = True
            self._complain(
                f"thawd: {len(self._open)} connections are open, as many as there may be; those without a request, "
                "or whose client does not read, are closed, oldest first, and others answered 503. More open files "
                f"(ulimit -n) allow for more, up to {MOST_CONNECTIONS}"
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
        # Of the older half: were it of all, whoever leaves much unread would have those closed that have just come.
        older = islice(self._resting, (len(self._resting) + 1) // 2)
        return next((each for each in older if not each.has_unread()), next(iter(self._resting), None))

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        try:
            for connection in [each for each in self._open if each.deadline_s <= now_s]:
                connection.deadline_s = math.inf
                connection.expire(now_s)
        finally:  # a mistake with one connection is told by the loop, and costs the others one round
            self._sweeping = loop.call_later(self._sweep_s, self._sweep) if self._open else None
