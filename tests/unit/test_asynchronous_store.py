"""The asynchronous invoker and its store: what is not read again, and the effects of a failing or slow store."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.unit.execution_fakes import claim, until
from tests.unit.invoker_post import FAILED, Post
from thawd.errors import StoreError
from thawd.invocation import Result
from thawd.queue.invoker import PER_CPU
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import Event

pytestmark = [pytest.mark.in_memory, pytest.mark.usefixtures("quick")]


class FailingQueue(EventQueue):
    """Fails the next calls of the methods named in `failing`."""

    failing: list[str]

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.failing = []

    async def _or_fail(self, name: str, call: Awaitable[Any]) -> Any:
        if name in self.failing:
            self.failing.remove(name)
            call.close()  # type: ignore[attr-defined]
            raise StoreError(f"{name}: the disk is full")
        return await call

    async def done(self, ids: Any, **rest: Any) -> None:
        await self._or_fail("done", super().done(ids, **rest))

    async def lease(self, function: str, *, limit: int, now: float | None = None) -> list[Event]:
        found: list[Event] = await self._or_fail("lease", super().lease(function, limit=limit, now=now))
        return found

    async def retry(self, event_id: int, *, at: float, error: str, counts: bool = True) -> None:
        await self._or_fail("retry", super().retry(event_id, at=at, error=error, counts=counts))

    async def dead_letter(self, event_id: int, **rest: Any) -> None:
        await self._or_fail("dead_letter", super().dead_letter(event_id, **rest))


@pytest.mark.parametrize("failing", [["done"], ["lease"], ["retry"], ["dead_letter"], ["done", "done", "done"]])
def test_an_error_of_the_store_loses_nothing_and_is_told(tmp_path: Path, failing: list[str]) -> None:
    async def work() -> None:
        async with Post(tmp_path, queue=FailingQueue, maximum_retry_attempts=1) as post:
            assert isinstance(post.queue, FailingQueue)
            post.queue.failing = list(failing)
            fails = failing[0] in ("retry", "dead_letter")
            post.dispatcher.outcomes = [FAILED] if fails else [Result(b"1")]
            await post.accept()
            await until(lambda: not post.queue.failing)
            await post.settled(dead=int(fails))
            assert post.told

    claim(work)


@pytest.mark.parametrize(("failing", "outcome"), [("done", Result(b"1")), ("dead_letter", FAILED), ("retry", FAILED)])
def test_a_handler_does_not_run_again_because_its_outcome_could_not_be_stored(
    tmp_path: Path, failing: str, outcome: Result
) -> None:
    async def work() -> None:
        async with Post(tmp_path, queue=FailingQueue, maximum_retry_attempts=int(failing == "retry")) as post:
            assert isinstance(post.queue, FailingQueue)
            steps: list[str] = []
            post.invoker.on_step = lambda request_id, kind, detail: steps.append(kind)
            post.queue.failing = [failing]
            post.dispatcher.outcomes = [outcome, Result(b"1")]
            await post.accept()
            await until(lambda: not post.queue.failing)
            await post.settled(dead=int(failing == "dead_letter"))
            assert len(post.dispatcher.got) == 1 + (failing == "retry")
            await until(lambda: steps == {"done": [], "dead_letter": ["dead letter"], "retry": ["retry"]}[failing])

    claim(work)


def test_an_event_whose_lease_failed_is_tried_again_soon(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path, queue=FailingQueue) as post:
            post.queue.failing = ["lease"]  # type: ignore[attr-defined]
            await post.accept()
            await until(lambda: post.dispatcher.got)

    claim(work)


class EarlyQueue(EventQueue):
    """The timer fires a little early, as uvloop's do (they count whole milliseconds), and the disk is slow."""

    async def lease(self, function: str, *, limit: int, now: float | None = None) -> list[Event]:
        found = await super().lease(function, limit=limit, now=(now or time.time()) - 0.002)
        await asyncio.sleep(0.005)
        return found


def test_a_retry_that_comes_due_while_the_store_is_asked_is_not_overslept(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path, queue=EarlyQueue) as post:
            post.dispatcher.outcomes = [FAILED, Result(b"1")]
            await post.accept()
            await until(lambda: len(post.dispatcher.got) == 2)

    claim(work)


def test_events_that_are_the_next_run_without_being_read(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path) as post:
            lease = mock.Mock(wraps=post.queue.lease)
            with mock.patch.object(post.queue, "lease", lease):
                for number in range(200):
                    await post.accept(request_id=f"next-{number}")
                await post.settled()
            assert [i.request_id for i in post.dispatcher.got] == [f"next-{number}" for number in range(200)]
            assert lease.call_count < 40  # a few, for events that came while the lane looked for others

    claim(work)


def test_events_keep_their_order_when_more_come_than_are_kept_in_memory(tmp_path: Path) -> None:
    # Some run, and of the others at most eight are read ahead: less than 4 MiB, and then one more read of 4 MiB.
    count = PER_CPU * (os.cpu_count() or 1) + 12

    async def work() -> None:
        async with Post(tmp_path) as post:
            await post.accept()
            await post.settled()
            post.dispatcher.gate.clear()
            for number in range(count):
                await post.accept(b"x" * 1_000_000, request_id=f"large-{number}")
            assert 1 <= (await post.queue.depth())["f"].queued < count
            post.dispatcher.gate.set()
            await post.settled()
            assert [i.request_id for i in post.dispatcher.got[1:]] == [f"large-{number}" for number in range(count)]

    claim(work)
