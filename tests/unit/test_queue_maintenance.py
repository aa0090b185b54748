"""`thawd.queue.maintenance`: events whose function no longer exists become dead letters, and others do not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from thawd.queue.maintenance import Upkeep
from thawd.stores.events.dead_letters import DeadLetters
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import NewEvent
from thawd.stores.schema import open_state

pytestmark = pytest.mark.in_memory


def test_events_of_functions_that_a_stop_takes_away_are_not_given_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        state = open_state(tmp_path / "thawd.db")
        queue = EventQueue(state)
        names = ["f"]
        upkeep = Upkeep(
            state, queue, DeadLetters(state), names=lambda: names, retention_s=1e9, report=lambda line: None
        )
        # Given an event that is older than the age limit, whose function exists
        await queue.put([NewEvent(function="f", payload=b"1", request_id="id")], now=1.0)
        await upkeep.sweep()
        assert (await queue.depth())["f"].queued == 1
        # When the server stops, which removes the function
        upkeep.stop()
        names.clear()
        await upkeep.sweep()
        # Then it waits for the next start
        assert (await queue.depth())["f"].queued == 1
        state.close()

    asyncio.run(scenario())


def test_old_events_of_a_function_that_is_gone_for_good_are_given_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        state = open_state(tmp_path / "thawd.db")
        queue = EventQueue(state)
        told: list[str] = []
        upkeep = Upkeep(state, queue, DeadLetters(state), names=list, retention_s=1e18, report=told.append)
        await queue.put([NewEvent(function="f", payload=b"1", request_id="id")], now=1.0)
        await queue.put([NewEvent(function="f", payload=b"1", request_id="id-2")])
        await upkeep.sweep()
        depth = (await queue.depth())["f"]
        assert (depth.queued, depth.dead) == (1, 1)
        assert told == ["thawd: 1 event of f is now a dead letter: there is no function with that name any more"]
        state.close()

    asyncio.run(scenario())


def test_who_asks_again_and_again_takes_no_memory(tmp_path: Path) -> None:
    async def scenario() -> None:
        state = open_state(tmp_path / "thawd.db")
        queue = EventQueue(state)
        upkeep = Upkeep(state, queue, DeadLetters(state), names=list, retention_s=1e9, report=lambda line: None)
        await upkeep.overview()
        await queue.put([NewEvent(function="f", payload=b"1", request_id="id")])
        for _ in range(50):
            shown = await upkeep.overview()
        assert shown["f"]["accepted"] == 1
        assert shown["f"]["accepted_per_s"] > 0
        assert len(upkeep._samples) <= 2
        state.close()

    asyncio.run(scenario())
