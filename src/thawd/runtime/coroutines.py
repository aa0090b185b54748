"""Runs what an ``async def`` handler returns, on one event loop that this process keeps as long as it lives.

All invocations use the same loop, because objects that a handler creates once and keeps, such as a client with its
connections, belong to the loop on which they were created.

This module is imported only for functions that need it, because importing asyncio takes 20 to 40 ms.
"""

import asyncio
import warnings
from typing import Any

_kept: Any = None


def event_loop() -> Any:
    """The event loop of all invocations: that of the main thread at the first call, or a new one.

    ``asyncio.run`` in user code leaves the main thread without a loop. The loop of the invocations stays the same.
    """
    global _kept  # noqa: PLW0603 - one loop for the process
    if _kept is None or _kept.is_closed():
        _kept = _event_loop_of_thread()
    else:
        asyncio.set_event_loop(_kept)
    return _kept


def _event_loop_of_thread() -> Any:
    """The event loop of the main thread, which init may have created; a new one if there is none or it is closed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            loop: Any = asyncio.get_event_loop()
        except RuntimeError:
            loop = None
    if loop is None or loop.is_closed():
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
    return loop


def finish(awaitable: Any) -> Any:
    """Run the event loop until `awaitable` is done; returns its result or raises its exception."""
    return event_loop().run_until_complete(value_of(awaitable))


async def value_of(awaitable: Any) -> Any:
    """Wait for `awaitable`, which may be an object that is not a coroutine; returns its result."""
    return await awaitable
