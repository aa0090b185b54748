"""Calls of SQS in threads: messages whose receiver was cancelled are returned to the queue."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from thawd.sources.aws_calls import in_thread


@pytest.mark.parametrize("when", ["before", "together"])
def test_what_comes_when_its_caller_is_cancelled_is_given_back(when: str) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        begun, go, given_back = threading.Event(), threading.Event(), threading.Event()
        got: list[str] = []

        def work() -> str:
            begun.set()
            go.wait()
            return "messages"

        def unwanted(value: str) -> None:
            got.append(value)
            given_back.set()

        calling = asyncio.create_task(in_thread(work, unwanted=unwanted))
        await asyncio.to_thread(begun.wait)
        if when == "before":
            calling.cancel()
            await asyncio.wait({calling})
            go.set()
        else:
            # The loop is blocked until the answer has come. So the cancellation comes before any task has seen the
            # answer.
            go.set()
            while not loop._ready:  # type: ignore[attr-defined]
                time.sleep(0.001)  # noqa: ASYNC251 - that is what is meant
            loop.call_soon(calling.cancel)
            await asyncio.wait({calling})
        assert calling.cancelled()
        assert await asyncio.to_thread(given_back.wait, 60)
        assert got == ["messages"]

    asyncio.run(scenario())
