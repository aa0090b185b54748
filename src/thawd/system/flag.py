"""A flag that coroutines wait for: an `asyncio.Event` that takes little memory while nobody waits.

An `asyncio.Event` takes 750 bytes, and a server needs several flags for each function.
"""

from __future__ import annotations

import asyncio


class Flag:
    """A flag, which is not set at first. All coroutines that use it must run on one event loop."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._is_set

    def set(self) -> None:
        """Set the flag. All waiting coroutines go on."""
        self._is_set = True
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Clear the flag. Coroutines that `set` has woken continue nevertheless."""
        self._is_set = False

    async def wait(self) -> None:
        """Wait until the flag is set."""
        if self._is_set:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            # If the wait was cancelled, the waiter is still in the list.
            if self._waiters is not None and waiter in self._waiters:
                self._waiters.remove(waiter)
