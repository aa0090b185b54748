"""Sends the load, in a closed or an open loop, from one process with one event loop.

A closed loop keeps a number of requests in flight: it sends the next one when an answer has arrived. It measures
service time. While the server stalls, it sends fewer requests, so it shows less of the stall than users notice. An
open loop sends at given times, however slow the answers are. It measures latency from the time at which a request
should have been sent. Otherwise the time that requests wait during a stall would be missing in the figures (coordinated
omission).
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import json
import ssl
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from thawd.bench.connection import Answer, Connection, clock_ns
from thawd.bench.pacing import Timer
from thawd.bench.requests import Expected, Requests, Target
from thawd.bench.samples import OK, Samples

_SHOWN_BYTES = 300
# Servers close idle connections (uvicorn after 5 s), and a request sent at that moment would be lost. An open loop does
# not use a connection again that was idle for this long.
_STALE_NS = 3_000_000_000
# Before the load begins, this many connections are opened at the same time: one at a time would take long if the server
# is distant, and all at once would be refused by servers that accept only a few at a time.
_OPENED_AT_ONCE = 64
# In a closed loop, pause after an attempt to connect to a server that refused the connection.
_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a load, and the answers that it expects.

    Attributes:
        timeout_s: time after which a request without a complete answer has failed, seconds.
        connections: largest number of connections of an open loop; a closed loop has one for each request in flight.
        expected: describes a right answer.
    """

    timeout_s: float = 900.0
    connections: int = 2000
    expected: Expected = field(default_factory=Expected)


class Load:
    """Base class of both loops: manages connections, records answers, and detects the end of the load.

    Args:
        target: address of the requests.
        requests: the encoded requests.
        limits: limits of the load.

    Attributes:
        samples: record of all requests that have ended.
        begun_ns: beginning of the load, by `clock_ns`.
        sent: number of requests sent.
        waiting: for each request that is due and waits for a connection, the time at which it should have been sent.
        stopped: whether `stop` was called.
    """

    def __init__(self, target: Target, requests: Requests, limits: Limits) -> None:
        self._target = target
        self._requests = requests
        self._limits = limits
        self._context = ssl.create_default_context() if target.is_encrypted else None
        self._connecting: set[asyncio.Task[None]] = set()
        self._connections: set[Connection] = set()
        self._idle: list[Connection] = []
        self._done = asyncio.Event()
        self._is_finished = False
        self.stopped = False
        self.samples = Samples()
        self.begun_ns = 0
        self.sent = 0
        self.waiting: collections.deque[int] = collections.deque()

    async def run(self, connections: int) -> Samples:
        """Open connections, send all requests, and wait for the answers.

        Args:
            connections: number of connections that are opened before the load begins.

        Raises:
            OSError: the target accepts no connections.
        """
        was_frozen = gc.get_freeze_count() > 0
        try:
            first = await self._open_first(connections)
            self._idle = [connection for connection in reversed(first) if connection.alive]
            gc.collect()
            gc.freeze()  # the garbage collector skips the objects that exist now, so its pauses are shorter
            self.begun_ns = clock_ns()
            if not self.stopped:
                self._begin()
            await self._done.wait()
        finally:
            if not was_frozen:  # otherwise this process had frozen objects of its own, and they stay frozen
                gc.unfreeze()
            self._is_finished = True
            for connection in self._connections:
                connection.close()
            for task in self._connecting:
                task.cancel()
        return self.samples

    async def _open_first(self, count: int) -> list[Connection]:
        """Open `count` connections. If the load ends meanwhile, because of Ctrl-C, return an empty list."""
        gate = asyncio.Semaphore(_OPENED_AT_ONCE)

        async def one() -> Connection:
            async with gate:
                return await self._open()

        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(one()) for _ in range(count)]
        ended = loop.create_task(self._done.wait())
        opening = asyncio.gather(*tasks)
        try:
            await asyncio.wait((opening, ended), return_when=asyncio.FIRST_COMPLETED)
            return opening.result() if opening.done() else []
        finally:
            for task in (*tasks, ended):
                task.cancel()
            await asyncio.gather(opening, ended, return_exceptions=True)

    def stop(self) -> None:
        """Send no further requests; the load ends when the requests in flight have ended."""
        self.stopped = True
        self.waiting.clear()
        self._check_end()

    def abandon(self) -> None:
        """End the load without waiting for answers; requests in flight are not counted."""
        self.stop()
        self._is_finished = True
        self._done.set()

    @property
    def in_flight(self) -> int:
        """Number of requests that were sent and have not been completely answered."""
        return self.sent - len(self.samples)

    def answered(self, connection: Connection, answer: Answer) -> None:
        """Record an answer, and continue the load. See `connection.Owner`."""
        if self._is_finished:
            return
        intended_ns, sent_ns = connection.tag
        self._record(intended_ns, sent_ns, answer)
        if not connection.alive:
            self._connections.discard(connection)
        self._free(connection)
        self._check_end()

    def lost(self, connection: Connection) -> None:
        """Forget a connection that was closed while it was idle. See `connection.Owner`."""
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _record(self, intended_ns: int, sent_ns: int, answer: Answer) -> None:
        outcome = self._limits.expected.outcome(answer)
        begun_ns = self.begun_ns
        if outcome != OK and outcome not in self.samples.examples:
            self.samples.examples[outcome] = _message_of(answer)
        self.samples.add(intended_ns - begun_ns, sent_ns - begun_ns, answer.done_ns - begun_ns, outcome, answer.timing)

    def _send(self, connection: Connection, intended_ns: int | None) -> None:
        now_ns = clock_ns()
        connection.tag = (now_ns if intended_ns is None else intended_ns, now_ns)
        request = self._requests[self.sent]
        self.sent += 1
        connection.send(request)

    async def _open(self) -> Connection:
        """Open a connection.

        Raises:
            OSError: the target refused the connection, or did not accept it in time.
        """
        connection = Connection(self, timeout_s=self._limits.timeout_s)
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection, self._target.host, self._target.port, ssl=self._context
                )
        except TimeoutError as error:
            raise OSError(str(error) or f"no connection within {self._limits.timeout_s:g} s") from None
        self._connections.add(connection)
        return connection

    def _open_soon(self) -> None:
        """Open a connection in the background, to send a waiting request on it."""
        task = asyncio.get_running_loop().create_task(self._opened())
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _opened(self) -> None:
        try:
            connection = await self._open()
        except OSError as error:
            self._refused(error)
        else:
            self._free(connection)
        self._check_end()

    def _refused(self, error: Exception) -> None:
        """Record that a request failed because its connection could not be opened."""
        if self.waiting:
            intended_ns = self.waiting.popleft()
            answer = Answer()
            answer.done_ns, answer.trouble = clock_ns(), "connection"
            answer.body = str(error).encode()
            self.sent += 1
            self._record(intended_ns, answer.done_ns, answer)

    def _begin(self) -> None:
        raise NotImplementedError

    def _free(self, connection: Connection | None) -> None:
        """Send the next request on a connection that has become idle, or replace one that is closed.

        Args:
            connection: the connection; None: it could not be opened.
        """
        raise NotImplementedError

    def _is_over(self) -> bool:
        raise NotImplementedError

    def _check_end(self) -> None:
        if not self.in_flight and not self.waiting and (self.stopped or self._is_over()):
            self._done.set()


def _message_of(answer: Answer) -> str:
    """Return what to report about a wrong answer: its error message, or the beginning of its body."""
    if 300 <= answer.status < 400 and answer.location:
        return f"to {answer.location[:_SHOWN_BYTES].decode('latin-1')}; redirects are not followed"
    if answer.function_error:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            error = json.loads(answer.body)
            return f"{error['errorType']}: {error['errorMessage']}"[:_SHOWN_BYTES]
    said = answer.body[:_SHOWN_BYTES].decode(errors="replace")
    return f"{answer.error_type.decode('latin-1')} {said}".strip()


class ClosedLoop(Load):
    """A closed loop: each connection sends its next request when the answer to the last one has arrived.

    Args:
        target: address of the requests.
        requests: the encoded requests.
        limits: limits of the load.
        count: largest number of requests; None: no limit.
        duration_s: seconds after which no more requests are sent; None: no limit.
    """

    def __init__(
        self, target: Target, requests: Requests, limits: Limits, *, count: int | None, duration_s: float | None
    ) -> None:
        super().__init__(target, requests, limits)
        self._count = count
        self._duration_ns = None if duration_s is None else int(duration_s * 1e9)

    def _begin(self) -> None:
        idle, self._idle = self._idle, []
        for connection in reversed(idle):
            self._free(connection)

    def _free(self, connection: Connection | None) -> None:
        if self.stopped or self._is_over():
            self.waiting.clear()
            return
        if connection is not None and connection.alive:
            self._send(connection, self.waiting.popleft() if self.waiting else None)
        elif self._count is None or self.sent + len(self.waiting) < self._count:
            self.waiting.append(clock_ns())
            self._open_soon()

    def _refused(self, error: Exception) -> None:
        super()._refused(error)
        asyncio.get_running_loop().call_later(_AGAIN_S, self._retry)

    def _retry(self) -> None:
        if not self._done.is_set():
            self._free(None)
            self._check_end()

    def _is_over(self) -> bool:
        if self._count is not None and self.sent >= self._count:
            return True
        return self._duration_ns is not None and clock_ns() - self.begun_ns >= self._duration_ns


class OpenLoop(Load):
    """An open loop: requests are sent at given times.

    Args:
        target: address of the requests.
        requests: the encoded requests.
        limits: limits of the load.
        offsets: intended time of each request, seconds after the beginning, ascending.

    Attributes:
        late_ns: for each request for which a connection was free when it was due, how late this client sent it.
        without_connection: number of requests that waited because all `Limits.connections` were in use.
    """

    def __init__(self, target: Target, requests: Requests, limits: Limits, *, offsets: Iterator[float]) -> None:
        super().__init__(target, requests, limits)
        self._offsets = offsets
        self._next_ns: int | None = None
        self._timer = Timer()
        self.late_ns: array[int] = array("q")
        self.without_connection = 0

    async def run(self, connections: int) -> Samples:
        """See `Load.run`."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._timer.fd, self._wake)
        try:
            return await super().run(connections)
        finally:
            loop.remove_reader(self._timer.fd)
            self._timer.close()

    def _begin(self) -> None:
        self._advance()
        self._wake()

    def _advance(self) -> None:
        offset_s = next(self._offsets, None)
        self._next_ns = None if offset_s is None else self.begun_ns + int(offset_s * 1e9)

    def _wake(self) -> None:
        self._timer.clear()
        while not self.stopped and self._next_ns is not None:
            if self._next_ns > clock_ns():
                self._timer.wake_at(self._next_ns)
                return
            self._due(self._next_ns)
            self._advance()
        self._check_end()

    def _due(self, intended_ns: int) -> None:
        while self._idle:
            connection = self._idle.pop()
            if clock_ns() - connection.idle_since_ns > _STALE_NS:
                connection.close()
                self._connections.discard(connection)
            elif connection.alive:
                self.late_ns.append(clock_ns() - intended_ns)
                self._send(connection, intended_ns)
                return
        self.waiting.append(intended_ns)
        if len(self._connections) + len(self._connecting) < self._limits.connections:
            self._open_soon()
        else:
            self.without_connection += 1

    def _free(self, connection: Connection | None) -> None:
        if connection is not None and connection.alive:
            if self.waiting:
                self._send(connection, self.waiting.popleft())
            else:
                connection.idle_since_ns = clock_ns()
                self._idle.append(connection)
        elif len(self.waiting) > len(self._connecting):
            self._open_soon()

    def _is_over(self) -> bool:
        return self._next_ns is None
