"""How an asynchronous test runs: on a loop of its own, and whatever that loop would only log fails it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

DEADLINE_S = 300.0


def run(claim: Coroutine[Any, Any, None]) -> None:
    """Run a test to its end.

    Raises:
        TimeoutError: it took longer than DEADLINE_S.
        AssertionError: it failed, or left an exception that nobody saw.
    """
    asyncio.run(_checked(claim))


async def _checked(claim: Coroutine[Any, Any, None]) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with asyncio.timeout(DEADLINE_S):
        await claim
    assert complaints == []
