"""Runs asynchronous tests: each on a separate loop, and errors that the loop would only log fail the test."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

DEADLINE_S = 300.0


def run(claim: Coroutine[Any, Any, None]) -> None:
    """Run a test to its end.

    Raises:
        TimeoutError: it took longer than DEADLINE_S.
        AssertionError: it failed, or left an exception that was never retrieved.
    """
    asyncio.run(_checked(claim))


async def _checked(claim: Coroutine[Any, Any, None]) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with asyncio.timeout(DEADLINE_S):
        await claim
    assert complaints == []
