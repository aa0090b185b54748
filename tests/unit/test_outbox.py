"""`thawd.stores.events.outbox`: outcomes are stored with their events, and all functions' outcomes get their turn."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.unit.queued_events import new, reopened
from thawd.stores.database import Database
from thawd.stores.events.dead_letters import DeadLetters
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import Depth
from thawd.stores.events.outbox import Outbox

pytestmark = pytest.mark.in_memory


def test_an_outcome_waits_beside_its_event_until_that_ends(tmp_path: Path) -> None:
    async def stored(queue: EventQueue, db: Database) -> None:
        await queue.put([new(i) for i in range(3)])
        events = await queue.lease("f", limit=3)
        for event in events:
            await queue.deliver_later(event.id, b"outcome %d" % event.id, at=100 + event.id, error="down", counts=True)
        assert await queue.lease("f", limit=3, now=1e12) == []
        assert await queue.depth() == {"f": Depth(delivering=3)}

    async def after(queue: EventQueue, db: Database) -> None:
        outbox = Outbox(db)
        assert await outbox.next_due(now=50) == 101
        (first,) = await outbox.lease(limit=9, now=101)
        assert (first.document, first.tries) == (b"outcome 1", 0)
        await outbox.retry(first.id, at=500, error="still down")
        assert [each.id for each in await outbox.lease(limit=9, now=200)] == [2, 3]
        assert await outbox.lease(limit=9, now=200) == []
        assert await outbox.next_due(now=200) == 500
        await queue.done([2])
        outbox.ended(2)
        await queue.dead_letter(3, error="away", condition="DestinationFailed", counts=False, outcome=b"outcome 3")
        outbox.ended(3)
        (again,) = await outbox.lease(limit=9, now=600)
        assert (again.id, again.tries) == (1, 1)
        await queue.dead_letter(1, error="refused", condition="DestinationRefused", counts=False)
        dead = DeadLetters(db)
        assert [(letter.id, letter.has_outcome) for letter in await dead.page()] == [(1, False), (3, True)]
        assert await queue.depth() == {"f": Depth(dead=2)}
        assert set(await dead.redrive([1, 2, 3, 4])) == {"f"}
        assert await queue.depth() == {"f": Depth(queued=1, delivering=1)}
        (event,) = await queue.lease("f", limit=9)
        assert (event.id, event.attempts) == (1, 0)

    reopened(tmp_path, stored)
    reopened(tmp_path, after)


def test_outcomes_of_all_functions_have_their_turn_however_many_one_has(queue: EventQueue, db: Database) -> None:
    async def scenario() -> None:
        names = [f"f{number}" for number in range(5)]
        await queue.put([new(i, name) for name in names for i in range(40 if name == "f0" else 4)])
        for name in names:
            for event in await queue.lease(name, limit=40):
                await queue.deliver_later(event.id, b"", at=event.id, error="down", counts=True)
        outbox = Outbox(db)
        begun = [each.function for each in await outbox.lease(limit=3, now=1000)]
        for _ in range(12):  # one delivery ends, and another takes its place
            outbox.ended(next(iter(outbox._leased)))
            (more,) = await outbox.lease(limit=1, now=1000)
            begun.append(more.function)
        assert begun == names * 3

    asyncio.run(scenario())
