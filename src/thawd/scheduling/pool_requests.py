"""The requests of one version that wait for an environment; if the handler takes lists, they are joined into batches.

Joining delays no request for which an environment is available: the environment takes the requests that wait, up to the
size of a batch. It can delay only the start of one more environment: while other environments of the version run or
start, a batch that is not full waits for more requests, up to the window (``window_ms`` of the option ``batch``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from thawd.invocation import MAX_PAYLOAD_BYTES, Invocation
from thawd.resources import Function
from thawd.scheduling.leases import Lease
from thawd.system.inline import InlineFuture
from thawd.system.retry import TIMER_EARLY_S

# Shortest time between two searches for requests whose deadline has passed.
_OVERDUE_EVERY_S = 0.02
# Longest time between two such searches while a request waits whose deadline has passed.
_OVERDUE_AGAIN_S = 0.5


class Waiter:
    """A request in line.

    Attributes:
        invocation: the request.
        lease: the lease that the request gets, or the error that says why it gets none.
    """

    __slots__ = ("invocation", "lease")

    def __init__(self, invocation: Invocation) -> None:
        self.invocation = invocation
        self.lease: InlineFuture[Lease] = InlineFuture(asyncio.get_running_loop())

    def give_back(self, release: Callable[[Lease], None]) -> None:
        """End the request's lease, if it got one, because its caller was cancelled and will not use the lease."""
        if not self.lease.done() or self.lease.cancelled() or self.lease.exception() is not None:
            return
        lease = self.lease.result()
        if lease.batch is None:
            release(lease)
        else:
            lease.batch.leave(self.invocation)

    def fail(self, error: Exception) -> None:
        """End the wait with `error`, unless the wait has ended already."""
        if not self.lease.done():
            self.lease.set_exception(error)


class Owner(Protocol):
    """The methods of a pool that its line calls. A reference to the pool takes less memory than two of its methods."""

    def grow(self) -> None:
        """Look for one more environment, which the requests in line may need.

        Either the window of a batch that is not full has ended, or a batch began but left some requests waiting,
        because all payloads together would have been too large or because a request must run alone.
        """

    def expire(self, waiter: Waiter) -> None:
        """Handle a request that still waits at its deadline.

        Called again at least every `_OVERDUE_AGAIN_S` seconds, as long as the request waits.
        """


class Line:
    """The requests that wait, in order of arrival; synchronous ones before asynchronous ones.

    Args:
        function: says how requests are joined, and how many may run in one environment at the same time.
        owner: the pool.
    """

    __slots__ = (
        "_asynchronous",
        "_most_in_environment",
        "_overdue_s",
        "_overdue_timer",
        "_owner",
        "_size",
        "_synchronous",
        "_timer",
        "_window_ends_s",
        "_window_s",
    )

    def __init__(self, function: Function, owner: Owner) -> None:
        batch = function.batch
        self._owner = owner
        self._overdue_s = 0.0
        self._overdue_timer: asyncio.TimerHandle | None = None
        self._window_ends_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._size = 1 if batch is None else batch.size
        self._most_in_environment = function.most_in_environment
        self._window_s = 0.0 if batch is None else batch.window_ms / 1000
        # Lists and not deques, although `pop(0)` moves all items: an empty deque takes ten times the memory, and most
        # functions have no request that waits.
        self._synchronous: list[Waiter] = []
        self._asynchronous: list[Waiter] = []

    def __bool__(self) -> bool:
        """Return whether a request waits. Quicker than the number."""
        return bool(self._synchronous or self._asynchronous)

    def __len__(self) -> int:
        return len(self._synchronous) + len(self._asynchronous)

    def add(self, invocation: Invocation) -> Waiter:
        """Add a request to the line, behind the requests of the same kind (synchronous or asynchronous)."""
        waiter = Waiter(invocation)
        if self._window_s:
            self._set_window(invocation)
        (self._asynchronous if invocation.asynchronous else self._synchronous).append(waiter)
        if self._overdue_timer is None or invocation.queue_deadline < self._overdue_s:
            self._look_for_overdue_at(invocation.queue_deadline)
        return waiter

    def remove(self, waiter: Waiter) -> bool:
        """Remove a request. Return whether it was in line."""
        queue = self._asynchronous if waiter.invocation.asynchronous else self._synchronous
        if waiter not in queue:
            return False
        queue.remove(waiter)
        return True

    def take(self) -> list[Waiter]:
        """Remove and return the requests that run next, together in one environment; [] if none waits.

        They are at most as many as a batch may have, and the total size of their payloads is at most the limit for one
        payload. A request that must run alone is not joined.
        """
        taken: list[Waiter] = []
        left_bytes = MAX_PAYLOAD_BYTES
        for queue in (self._synchronous, self._asynchronous):
            while queue and len(taken) < self._size:
                first = queue[0]
                if not first.lease.done():
                    left_bytes -= len(first.invocation.payload)
                    if taken and (left_bytes < 0 or first.invocation.alone):
                        return self._cut_short(taken)
                    taken.append(first)
                queue.pop(0)
                if taken and taken[-1].invocation.alone:
                    return self._cut_short(taken)
        return taken

    def _cut_short(self, taken: list[Waiter]) -> list[Waiter]:
        if len(self) and self._size > 1:
            asyncio.get_running_loop().call_soon(self._owner.grow)
        return taken

    def environments_wanted(self, *, is_served: bool) -> int:
        """Return how many environments the requests in line need.

        A batch that is not full counts only once its window has ended.

        Args:
            is_served: whether an environment of the version is busy or starts. If not, a batch that is not full counts
                immediately.
        """
        full, rest = divmod(len(self), self._most_in_environment)
        if not rest or (is_served and time.monotonic() < self._window_ends_s):
            return full
        return full + 1

    def _set_window(self, invocation: Invocation) -> None:
        if len(self) % self._size == 0:  # `invocation` is the first of a new batch
            self._window_ends_s = time.monotonic() + self._window_s
        if invocation.queue_deadline <= self._window_ends_s + TIMER_EARLY_S:
            self._window_ends_s = 0.0  # the request's deadline passes before the window ends: do not wait for its end
        self._set_timer()

    def _set_timer(self) -> None:
        wait_s = self._window_ends_s - time.monotonic()
        if wait_s > 0 and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait_s + TIMER_EARLY_S, self._window_ended)

    def _window_ended(self) -> None:
        """Ask for an environment because a window has ended. If another window has begun since, wait for its end."""
        self._timer = None
        if len(self):
            self._owner.grow()
            self._set_timer()

    def _look_for_overdue_at(self, deadline_s: float) -> None:
        """Set the timer that looks for overdue requests. All requests share it; a timer for each would cost time."""
        if self._overdue_timer is not None:
            self._overdue_timer.cancel()
        self._overdue_s = deadline_s
        wait_s = max(0.0, deadline_s - time.monotonic()) + TIMER_EARLY_S
        self._overdue_timer = asyncio.get_running_loop().call_later(wait_s, self._look_for_overdue)

    def _look_for_overdue(self) -> None:
        self._overdue_timer = None
        now_s = time.monotonic()
        for waiter in [*self._synchronous, *self._asynchronous]:
            if not waiter.lease.done() and waiter.invocation.queue_deadline <= now_s:
                self._owner.expire(waiter)
        deadlines = [each.invocation.queue_deadline for each in (*self._synchronous, *self._asynchronous)]
        if deadlines:
            next_s = min((each if each > now_s else now_s + _OVERDUE_AGAIN_S) for each in deadlines)
            self._look_for_overdue_at(max(next_s, now_s + _OVERDUE_EVERY_S))

    def fail(self, make_error: Callable[[], Exception]) -> None:
        """End the wait of all requests, each with an error of its own."""
        for waiter in (*self._synchronous, *self._asynchronous):
            waiter.fail(make_error())

    def is_next_alone(self) -> bool:
        """Return whether the request that is next must have an environment to itself."""
        waiting = (each for each in (*self._synchronous, *self._asynchronous) if not each.lease.done())
        first = next(waiting, None)
        return first is not None and first.invocation.alone

    def is_urgent(self) -> bool:
        """Return whether a synchronous request waits."""
        waiting = self._synchronous
        return bool(waiting) and (not waiting[0].lease.done() or any(not waiter.lease.done() for waiter in waiting))
