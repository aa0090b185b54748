"""Events for a queue, identified by numbers, and a queue opened as by a new process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from thawd.stores.database import Database
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import Event, NewEvent
from thawd.stores.events.running_marks import Marks
from thawd.stores.schema import open_state


def new(number: int, function: str = "f") -> NewEvent:
    """Make an event that `numbers` identifies by this number."""
    return NewEvent(function=function, payload=b'{"n":%d}' % number, request_id=f"request-{number}")


def numbers(events: list[Event]) -> list[int]:
    """Return the numbers of these events."""
    return [int(event.request_id.removeprefix("request-")) for event in events]


def reopened(folder: Path, part: Callable[[EventQueue, Database], Awaitable[None]], **options: int) -> None:
    """Run `part` as a new process would: the state file and the marks are opened as they were left."""
    db = open_state(folder / "thawd.db")
    marks = Marks(folder / "running")

    async def main() -> None:
        queue = EventQueue(db, marks=marks, **options)
        await queue.recover()
        await part(queue, db)

    asyncio.run(main())
    marks.close()
    db.close()
