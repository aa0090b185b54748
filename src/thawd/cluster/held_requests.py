"""Requests that wait where they entered for an environment of any machine. Used by the event loop only.

The pool of this machine has a line of its own, and a request in it can run only here. So once that line is long enough
to keep all environments here busy, further requests are held before it, until another machine has an idle environment,
or the line here is shorter.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque


class HeldRequests:
    """The held requests of this machine, by version."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many requests are held."""
        return self._count

    async def wait(self, identity: str, *, until_s: float, is_first: bool) -> None:
        """Wait until it is this request's turn to look for an environment again.

        Args:
            identity: identifier of the version.
            until_s: when to stop waiting, ``time.monotonic()`` seconds.
            is_first: whether the request has waited already, so that it goes before the others.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = self._lines.setdefault(identity, deque())
        (line.appendleft if is_first else line.append)(turn)
        self._count += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until_s - time.monotonic()):
                    await turn
        finally:
            self._count -= 1
            if turn in line:
                line.remove(turn)
            if not line and self._lines.get(identity) is line:
                del self._lines[identity]

    def wake(self, identity: str, count: int = 1) -> None:
        """Let the first `count` requests of a version look for an environment."""
        line = self._lines.get(identity)
        while line and count > 0:
            turn = line.popleft()
            if not turn.done():
                turn.set_result(None)
                count -= 1

    def wake_each(self, count: int = 1) -> None:
        """Let the first `count` requests of each version look for an environment."""
        for identity in list(self._lines):
            self.wake(identity, count)
