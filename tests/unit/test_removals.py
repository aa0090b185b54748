"""`thawd.stores.events.removals`: a removal of dead letters can be undone for some minutes; then they are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.queued_events import new
from thawd.errors import ResourceNotFoundException, TooManyRequestsException
from thawd.queue.maintenance import Upkeep
from thawd.queue.operator_view import OperatorView
from thawd.stores import clock
from thawd.stores.database import Database
from thawd.stores.events import removals as module
from thawd.stores.events.copied_events import changes
from thawd.stores.events.dead_letters import DeadLetters, Selection
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import Depth, NewEvent
from thawd.stores.events.removals import KEPT_S, Removals
from thawd.stores.schema import MIGRATIONS, open_state

pytestmark = pytest.mark.in_memory


async def buried(queue: EventQueue, count: int = 3, *, outcome: bytes | None = None) -> list[int]:
    """Make so many dead letters; return their ids."""
    await queue.put([new(number) for number in range(count)], now=5)
    events = await queue.lease("f", limit=count)
    for event in events:
        if outcome is not None:
            await queue.deliver_later(event.id, outcome, at=0, error="", counts=True)
        await queue.dead_letter(event.id, error="boom", condition="RetriesExhausted", outcome=outcome, now=50.0)
    return [event.id for event in events]


def _ids(found: list[module.Removal]) -> list[tuple[int, int]]:
    return [(each.id, each.count) for each in found]


def test_what_was_removed_comes_back_as_it_was(queue: EventQueue, db: Database) -> None:
    async def scenario() -> None:
        dead, removals = DeadLetters(db), Removals(db)
        ids = await buried(queue, outcome=b"an outcome")
        before = await dead.page()
        count, removal = await removals.remove([ids[0], 99, ids[2]])
        assert count == 2
        assert removal is not None
        assert removal.until - removal.removed_at == KEPT_S
        assert [letter.id for letter in await dead.page()] == [ids[1]]
        assert await removals.list() == [removal]
        assert await removals.undo(removal.id) == 2
        after = await dead.page()
        assert after == before
        assert [(each.payload, each.has_outcome, each.buried_at) for each in after][:1] == [(b'{"n":0}', True, 50.0)]
        assert await queue.depth() == {"f": Depth(dead=3)}
        assert await removals.list() == []

    asyncio.run(scenario())


def test_a_removed_dead_letter_is_nowhere_and_does_nothing(db: Database) -> None:
    async def scenario() -> None:
        queue = EventQueue(db, max_queued=1)
        dead, removals = DeadLetters(db), Removals(db)
        (number,) = await buried(queue, 1)
        await removals.remove([number])
        assert await queue.depth() == {}
        assert (await dead.ids(), await dead.find([number]), await dead.page("f")) == ([], [], [])
        assert await dead.redrive([number]) == {}
        assert await dead.remove([number]) == 0
        assert await dead.remove_older(1e12) == 0
        await queue.dead_letter(number, error="again", condition="RetriesExhausted")
        assert await queue.lease("f", limit=9) == []
        assert await queue.next_due("f") is None
        assert len(await queue.put([new(1)])) == 1  # it takes no room in the queue
        with pytest.raises(TooManyRequestsException):
            await queue.put([new(2)])

    asyncio.run(scenario())


def test_an_undo_is_possible_once_also_for_two_people_at_once(queue: EventQueue, db: Database) -> None:
    async def scenario() -> None:
        removals = Removals(db)
        ids = await buried(queue)
        _, removal = await removals.remove(ids)
        assert removal is not None
        assert sum(await asyncio.gather(removals.undo(removal.id), removals.undo(removal.id))) == 3
        assert await removals.undo(removal.id) == 0
        assert sorted(await DeadLetters(db).ids()) == ids

    asyncio.run(scenario())


def test_an_undo_does_not_bring_back_what_was_removed_again_later(queue: EventQueue, db: Database) -> None:
    async def scenario() -> None:
        removals = Removals(db)
        ids = await buried(queue)
        _, first = await removals.remove(ids)
        assert first is not None
        await removals.undo(first.id)
        _, second = await removals.remove(ids[:1])
        assert second is not None
        assert await removals.undo(first.id) == 0
        assert _ids(await removals.list()) == [(second.id, 1)]
        assert second.id > first.id

    asyncio.run(scenario())


def test_of_a_removal_and_a_redrive_at_once_each_gets_what_the_other_has_not(queue: EventQueue, db: Database) -> None:
    async def scenario() -> None:
        dead, removals = DeadLetters(db), Removals(db)
        ids = await buried(queue, 40)
        redriven, (removed, removal) = await asyncio.gather(dead.redrive(ids[::2]), removals.remove(ids))
        assert redriven.total() + removed == 40
        assert removal is not None
        assert await queue.depth() == ({"f": Depth(queued=redriven.total())} if redriven else {})
        assert await removals.undo(removal.id) == removed
        assert (await queue.depth())["f"] == Depth(queued=redriven.total(), dead=removed)
        # An undo after a redrive brings back no event that was queued again.
        again = await dead.redrive(await dead.ids())
        assert again.total() == removed
        assert await removals.undo(removal.id) == 0
        assert (await queue.depth())["f"] == Depth(queued=40)

    asyncio.run(scenario())


def test_after_ten_minutes_what_was_removed_is_gone_with_its_payload(
    queue: EventQueue, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        removals = Removals(db)
        ids = await buried(queue, outcome=b"an outcome")
        now = clock.now()
        monkeypatch.setattr(clock, "now", lambda: now)
        _, removal = await removals.remove(ids)
        assert removal is not None
        upkeep = Upkeep(db, queue, DeadLetters(db), names=lambda: ["f"], retention_s=1e12, report=lambda line: None)
        monkeypatch.setattr(clock, "now", lambda: now + KEPT_S - 1)
        await upkeep.sweep()
        assert _ids(await removals.list()) == [(removal.id, 3)]
        monkeypatch.setattr(clock, "now", lambda: now + KEPT_S + 1)
        assert await removals.list() == []
        assert await removals.undo(removal.id) == 0  # also before the next sweep
        await upkeep.sweep()
        for table in ("events", "payloads", "deliveries", "removed", "removals"):
            rows = await db.read(lambda c, table=table: c.execute(f"SELECT count(*) FROM {table}").fetchone())  # type: ignore[misc]
            assert rows == (0,), table

    asyncio.run(scenario())


def test_after_the_clock_was_set_back_nothing_is_kept_for_longer(
    queue: EventQueue, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        removals = Removals(db)
        _, removal = await removals.remove(await buried(queue))
        assert removal is not None
        monkeypatch.setattr(clock, "now", lambda: removal.removed_at - 86_400)
        await removals.purge()
        assert await removals.undo(removal.id) == 0

    asyncio.run(scenario())


def test_too_many_or_too_large_dead_letters_are_removed_for_good(queue: EventQueue, db: Database) -> None:
    async def scenario() -> None:
        ids = await buried(queue, 9)
        few, small = Removals(db, most_letters=3), Removals(db, most_bytes=3 * len(b'{"n":0}'))
        for removals, part in ((few, ids[:4]), (small, ids[4:8])):
            assert not await removals.fits(part)
            assert await removals.fits(part[1:])
            assert await removals.remove(part) == (4, None)
            assert await removals.list() == []
        assert await queue.depth() == {"f": Depth(dead=1)}

    asyncio.run(scenario())


@pytest.mark.parametrize("make", [lambda db: Removals(db, most_letters=5), lambda db: Removals(db, most_bytes=35)])
def test_the_oldest_removals_make_room_for_new_ones(
    queue: EventQueue, db: Database, make: Callable[[Database], Removals]
) -> None:
    async def scenario() -> None:
        removals = make(db)
        ids = await buried(queue, 7)
        made = [(await removals.remove(part))[1] for part in (ids[:2], ids[2:4], ids[4:6])]
        assert all(made)
        assert [each.count for each in await removals.list()] == [2, 2]
        assert made[0] is not None
        assert await removals.undo(made[0].id) == 0
        # Two at once exceed the limit no more than one does.
        await asyncio.gather(removals.remove(ids[6:]), removals.remove([]))
        assert sum(each.count for each in await removals.list()) <= 5

    asyncio.run(scenario())


def test_an_undo_before_a_removal_has_ended_loses_nothing(
    queue: EventQueue, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 1)

    async def scenario() -> None:
        removals = Removals(db)
        ids = await buried(queue, 30)
        removing = asyncio.create_task(removals.remove(ids))
        undone = 0
        while not removing.done():
            for each in await removals.list():
                undone += await removals.undo(each.id)
            await asyncio.sleep(0)
        count, removal = await removing
        assert count == 30
        assert removal is not None
        undone += await removals.undo(removal.id)
        assert undone == 30
        assert await queue.depth() == {"f": Depth(dead=30)}
        assert await removals.list() == []

    asyncio.run(scenario())


def test_a_restart_keeps_removals(tmp_path: Path) -> None:
    path = tmp_path / "thawd.db"

    async def first() -> int:
        state = open_state(path)
        _, removal = await Removals(state).remove(await buried(EventQueue(state)))
        state.close()
        assert removal is not None
        return removal.id

    async def second(removal_id: int) -> None:
        state = open_state(path)
        queue = EventQueue(state)
        assert await queue.recover() == 0
        assert _ids(await Removals(state).list()) == [(removal_id, 3)]
        assert await Removals(state).undo(removal_id) == 3
        assert await queue.depth() == {"f": Depth(dead=3)}
        state.close()

    asyncio.run(second(asyncio.run(first())))


def test_dead_letters_of_the_version_before_are_removed_and_restored(tmp_path: Path) -> None:
    path = tmp_path / "thawd.db"
    without = next(number for number, step in enumerate(MIGRATIONS) if "CREATE TABLE removals" in step)

    async def scenario() -> None:
        old = Database(path, migrations=MIGRATIONS[:without])
        ids = await buried(EventQueue(old))
        old.close()
        state = open_state(path)
        _, removal = await Removals(state).remove(ids)
        assert removal is not None
        assert await Removals(state).undo(removal.id) == 3
        assert await EventQueue(state).depth() == {"f": Depth(dead=3)}
        state.close()

    asyncio.run(scenario())


def test_the_copy_of_a_removed_dead_letter_goes_so_that_no_other_machine_takes_it_over(
    queue: EventQueue, db: Database
) -> None:
    async def scenario() -> None:
        (number,) = await buried(queue, 1)
        await db.write(lambda c: c.execute("UPDATE events SET copy_key = 'k' WHERE id = ?", (number,)))
        _, removal = await Removals(db).remove([number])
        assert removal is not None
        (change,) = await db.read(lambda c: changes(c, 10))
        assert (change.key, change.progress) == ("k", None)
        assert await Removals(db).undo(removal.id) == 1
        assert [(each.key, each.progress) for each in await db.read(lambda c: changes(c, 10))] == [("k", None)]

    asyncio.run(scenario())


def test_operators_get_documents_about_removals(queue: EventQueue, db: Database) -> None:
    async def scenario() -> None:
        dead, woken = DeadLetters(db), set[str]()
        upkeep = Upkeep(db, queue, dead, names=lambda: ["f"], retention_s=1e12, report=lambda line: None)
        view = OperatorView(dead, Removals(db), upkeep, wake=woken.update)
        ids = await buried(queue)
        everything = Selection(all=True)
        assert await view.preview(everything) == {"count": 3, "unknown": [], "can_undo": True}
        document = await view.remove(Selection(ids=[ids[0], 99]))
        assert (document["count"], document["unknown"], document["undo"]["count"]) == (1, [99], 1)
        assert (await view.removals())["removals"] == [document["undo"]]
        assert await view.undo(document["undo"]["id"]) == {"count": 1}
        with pytest.raises(ResourceNotFoundException, match="was undone before, or is older than 10 minutes"):
            await view.undo(document["undo"]["id"])
        assert (await view.remove(Selection(function="g")))["undo"] is None
        assert await view.redrive(everything) == {"count": 3, "unknown": []}
        assert woken == {"f"}
        assert (await view.remove(everything)) == {"count": 0, "unknown": [], "undo": None}

    asyncio.run(scenario())


def test_a_payload_of_a_removed_dead_letter_is_not_read_to_remove_it(queue: EventQueue, db: Database) -> None:
    async def scenario() -> None:
        await queue.put([NewEvent(function="f", payload=b"x" * 1_000_000, request_id="r")])
        (event,) = await queue.lease("f", limit=1)
        await queue.dead_letter(event.id, error="e", condition="c")
        before = await db.read(lambda c: c.execute("PRAGMA page_count").fetchone())
        assert await Removals(db).fits([event.id])
        await Removals(db).remove([event.id])
        after = await db.read(lambda c: c.execute("PRAGMA page_count").fetchone())
        assert after[0] - before[0] < 100_000 // 4096  # it is not copied

    asyncio.run(scenario())
