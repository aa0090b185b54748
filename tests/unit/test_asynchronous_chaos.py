"""`thawd.queue.invoker` under faults of all kinds: no event is lost, stuck for ever, or run twice at the same time.

Functions are added and removed, the store fails, destinations are unavailable, dead letters are redriven.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.execution_fakes import claim
from tests.unit.invoker_post import FAILED, TABLE, Post
from thawd.destinations.delivery import Destinations
from thawd.errors import (
    InvalidParameterValueException,
    ResourceNotFoundException,
    ServiceException,
    StoreError,
    TooManyRequestsException,
)
from thawd.invocation import Invocation, Result
from thawd.queue import invoker, outcome_delivery, retry_waits
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import Depth, Event, NewEvent

pytestmark = pytest.mark.in_memory

STEPS = 120


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_waits, "FIRST_WAIT_S", 0.005)
    monkeypatch.setattr(outcome_delivery, "_BACKOFF_FIRST_S", 0.005)
    for module in (invoker, outcome_delivery):
        # a task that sleeps although there is work makes the test fail
        monkeypatch.setattr(module, "_RECHECK_S", 3600.0)
    monkeypatch.setattr(retry_waits, "LONGEST_WAIT_S", 0.02)


class ShakyQueue(EventQueue):
    """Fails at random, and is sometimes slow."""

    dice: random.Random
    shaky = True

    async def _perhaps(self, call: Awaitable[Any]) -> Any:
        if not self.shaky or self.dice.random() > 0.1:
            value = await call
            await asyncio.sleep(self.dice.choice((0.0, 0.0, 0.002)))
            return value
        call.close()  # type: ignore[attr-defined]
        raise StoreError("the disk is shaky")

    async def done(self, *args: Any, **rest: Any) -> None:
        await self._perhaps(super().done(*args, **rest))

    async def lease(self, *args: Any, **rest: Any) -> list[Event]:
        if self.shaky and self.dice.random() < 0.1:
            raise StoreError("the disk is shaky")
        found = await super().lease(*args, **rest)
        await asyncio.sleep(self.dice.choice((0.0, 0.0, 0.002)))
        return found

    async def retry(self, *args: Any, **rest: Any) -> None:
        await self._perhaps(super().retry(*args, **rest))

    async def dead_letter(self, *args: Any, **rest: Any) -> None:
        await self._perhaps(super().dead_letter(*args, **rest))

    async def deliver_later(self, *args: Any, **rest: Any) -> None:
        await self._perhaps(super().deliver_later(*args, **rest))


class ShakyDestinations(Destinations):
    """Is unavailable at random, and sometimes refuses."""

    dice: random.Random

    async def deliver(self, delivery: Any) -> list[NewEvent]:
        if self.dice.random() < 0.2:
            raise ServiceException("nobody listens")
        if self.dice.random() < 0.02:
            raise InvalidParameterValueException("never")
        return []


async def depth_of(post: Post) -> Depth:
    return (await post.queue.depth()).get("f") or Depth()


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_every_event_comes_to_an_end_and_runs_once_at_a_time(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)

    async def work() -> None:
        async with Post(tmp_path, queue=ShakyQueue, stores=ShakyDestinations, on_success=TABLE) as post:
            assert isinstance(post.queue, ShakyQueue)
            post.queue.dice = post.stores.dice = dice
            running, begun = set(), Counter[str]()

            async def invoke(invocation: Invocation) -> Result:
                assert invocation.request_id not in running, "it runs twice at once"
                running.add(invocation.request_id)
                begun[invocation.request_id] += 1
                await asyncio.sleep(dice.random() * 0.005)
                running.discard(invocation.request_id)
                chance = dice.random()
                if chance < 0.1:
                    raise TooManyRequestsException("Rate Exceeded.")
                if chance < 0.15:
                    raise ResourceNotFoundException("it has just gone")
                return FAILED if chance < 0.35 else Result(b"{}")

            post.dispatcher.invoke = invoke  # type: ignore[method-assign]
            accepted = 0
            for _ in range(STEPS):
                for _ in range(dice.randrange(6)):
                    accepted += 1
                    await post.accept(request_id=f"id-{accepted}")
                chance = dice.random()
                if chance < 0.5:
                    post.invoker.declare(["f"] if chance > 0.15 else [])
                elif chance > 0.9:
                    post.invoker.wake(set(await post.dead_letters.redrive(await post.dead_letters.ids())))
                    post.outcomes.wake()
                await asyncio.sleep(dice.random() * 0.004)
            post.queue.shaky = False
            post.invoker.declare(["f"])
            while (depth := await depth_of(post)).queued + depth.leased + depth.delivering:  # noqa: ASYNC110 - polls
                await asyncio.sleep(0.01)
            assert len(begun) == accepted
            flow = (await post.queue.flow())["f"]
            assert flow.accepted == accepted == flow.done + depth.dead
            assert not [line for line in post.told if "failed inside thawd" in line]

    claim(work)
