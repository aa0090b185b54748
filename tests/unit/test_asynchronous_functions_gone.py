"""Asynchronous events of functions that are removed, added again, or both."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.unit.execution_fakes import claim, until, within
from tests.unit.invoker_post import Post
from thawd.errors import ResourceNotFoundException, TooManyRequestsException
from thawd.invocation import Result
from thawd.resources import Function
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import Event

pytestmark = [pytest.mark.in_memory, pytest.mark.usefixtures("quick")]


def test_events_of_a_function_that_is_gone_stay_stored_and_run_when_it_is_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path) as post:
            post.invoker.declare([])
            await post.accept()
            await post.settled(queued=1)
            post.invoker.declare(["f"])
            await post.settled()
            assert len(post.dispatcher.got) == 1

    claim(work)


def test_an_event_that_is_put_back_while_its_function_is_gone_runs_when_that_is_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path) as post:
            post.dispatcher.outcomes = [TooManyRequestsException("Rate Exceeded."), Result(b"1")]
            post.dispatcher.gate.clear()
            await post.accept()
            await until(lambda: post.dispatcher.running)
            post.invoker.declare([])
            post.dispatcher.gate.set()
            await post.settled(queued=1)
            post.invoker.declare(["f"])
            await post.settled()
            assert [i.request_id for i in post.dispatcher.got] == ["id-1", "id-1"]

    claim(work)


def test_events_that_were_read_ahead_for_a_function_that_is_gone_are_given_up_when_they_are_old(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path) as post:
            post.dispatcher.gate.clear()
            limit = post.invoker.most_at_once("f")
            for number in range(limit + 5):
                await post.accept(request_id=f"id-{number}")
            await until(lambda: post.dispatcher.running == limit)
            await post.settled(leased=limit + 5)
            post.invoker.declare([])
            post.dispatcher.gate.set()
            await post.settled(queued=5)
            given_up = 0
            while given_up < 5:  # the lane ends a little after the running events have
                given_up += await post.queue.dead_letter_older(
                    "f", time.time() + 60, error="gone", condition="ResourceNotFound"
                )
            assert given_up == 5

    claim(work)


class SlowQueue(EventQueue):
    """Returns leased events late."""

    async def lease(self, function: str, *, limit: int, now: float | None = None) -> list[Event]:
        found = await super().lease(function, limit=limit, now=now)
        await asyncio.sleep(0.01)
        return found


def test_an_event_runs_once_although_its_function_comes_and_goes_meanwhile(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path, queue=SlowQueue) as post:
            for number in range(200):
                await post.accept(request_id=f"id-{number}")
                post.invoker.declare([])
                if number % 2:
                    await asyncio.sleep(0.001)
                post.invoker.declare(["f"])
            await post.settled()
            assert len(post.dispatcher.got) == 200

    claim(work)


def test_an_event_is_not_given_up_for_a_function_that_goes_just_as_it_begins(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path) as post:
            await post.accept()
            declared, gone = post.dispatcher.asynchronous, asyncio.Event()

            def goes(name: str, qualifier: str | None) -> Function:
                post.invoker.declare([])
                gone.set()
                raise ResourceNotFoundException(name)

            post.dispatcher.asynchronous = goes  # type: ignore[method-assign]
            await within(gone.wait())
            await post.settled(queued=1)
            post.dispatcher.asynchronous = declared  # type: ignore[method-assign]
            post.invoker.declare(["f"])
            await post.settled()
            assert len(post.dispatcher.got) == 1

    claim(work)
