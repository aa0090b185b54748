"""`thawd.stores.objects.catalog`: one transaction for objects and events, one winner, constant memory and cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from thawd.errors import StoreError
from thawd.stores.database import Database
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import Depth, NewEvent
from thawd.stores.objects.catalog import ObjectCatalog, ObjectChange, ObjectRecord, successor
from thawd.stores.schema import open_state

pytestmark = pytest.mark.in_memory


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = open_state(tmp_path / "thawd.db")
    yield database
    database.close()


@pytest.fixture
def catalog(db: Database) -> ObjectCatalog:
    return ObjectCatalog(db)


def record(key: bytes, size: int = 1, inode: int = 7) -> ObjectRecord:
    return ObjectRecord(key=key, inode=inode, size=size, mtime_ns=3, ctime_ns=4, etag="0" * 32)


def change(key: bytes, *, expected: int = 0, size: int = 1, announce: bool = True) -> ObjectChange:
    return ObjectChange(key=key, expected=expected, now=record(key, size), announce=announce)


def one_event(happened: ObjectChange, sequencer: int) -> list[NewEvent]:
    return [NewEvent(function="f", payload=happened.key, request_id=str(sequencer))]


def test_recorded_objects_are_found_with_any_key_and_inode(catalog: ObjectCatalog) -> None:
    async def scenario() -> None:
        keys = [b"a.png", b"\xff\xfe", b"x\ny", "ü/ 😀".encode(), b"%41+ '\""]
        changes = [
            ObjectChange(key=key, expected=0, now=record(key, inode=2**64 - 1 - i), announce=False)
            for i, key in enumerate(keys)
        ]
        await catalog.apply("b", changes, events_for=one_event)
        found = await catalog.lookup("b", [*keys, b"unknown"])
        assert list(found) == keys
        assert [found[key].inode for key in keys] == [2**64 - 1 - i for i in range(5)]
        assert await catalog.lookup("other", keys) == {}
        assert await catalog.count("b") == 5
        assert await catalog.count("other") == 0

    asyncio.run(scenario())


def test_a_change_and_its_events_are_one_transaction(catalog: ObjectCatalog, db: Database) -> None:
    queue = EventQueue(db)

    def fail(_change: ObjectChange, _sequencer: int) -> list[NewEvent]:
        raise ValueError("no event")

    async def scenario() -> None:
        with pytest.raises(ValueError, match="no event"):
            await catalog.apply("b", [change(b"quiet", announce=False), change(b"loud")], events_for=fail)
        assert await catalog.count("b") == 0
        applied = await catalog.apply("b", [change(b"quiet", announce=False), change(b"loud")], events_for=one_event)
        assert (applied.functions, applied.events, applied.conflicts) == ({"f"}, 1, [])
        assert await queue.depth() == {"f": Depth(queued=1)}
        assert [event.payload for event in await queue.lease("f", limit=9)] == [b"loud"]

    asyncio.run(scenario())


def test_of_two_who_saw_the_same_change_one_wins(catalog: ObjectCatalog, db: Database) -> None:
    async def scenario() -> None:
        outcomes = await asyncio.gather(*(catalog.apply("b", [change(b"k")], events_for=one_event) for _ in range(20)))
        assert sum(outcome.events for outcome in outcomes) == 1
        assert sum(outcome.conflicts == [b"k"] for outcome in outcomes) == 19
        assert await EventQueue(db).depth() == {"f": Depth(queued=1)}

    asyncio.run(scenario())


def test_one_who_was_overtaken_changes_nothing(catalog: ObjectCatalog) -> None:
    async def scenario() -> None:
        await catalog.apply("b", [change(b"k", size=1)], events_for=one_event)
        seen = (await catalog.lookup("b", [b"k"]))[b"k"].sequencer
        await catalog.apply("b", [change(b"k", size=2, expected=seen)], events_for=one_event)
        late = await catalog.apply("b", [change(b"k", size=1, expected=seen)], events_for=one_event)
        gone = ObjectChange(key=b"k", expected=seen, now=None, announce=True)
        later = await catalog.apply("b", [gone], events_for=one_event)
        assert late.conflicts == later.conflicts == [b"k"]
        assert (await catalog.lookup("b", [b"k"]))[b"k"].size == 2

    asyncio.run(scenario())


def test_sequencers_grow_even_over_removal_restart_and_a_clock_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequencers: list[int] = []

    def note(_change: ObjectChange, sequencer: int) -> list[NewEvent]:
        sequencers.append(sequencer)
        return []

    async def scenario(catalog: ObjectCatalog) -> None:
        await catalog.apply("b", [change(b"k"), change(b"l")], events_for=note)
        found = await catalog.lookup("b", [b"k", b"l"])
        removed = [ObjectChange(key=k, expected=r.sequencer, now=None, announce=True) for k, r in found.items()]
        await catalog.apply("b", removed, events_for=note)
        assert await catalog.count("b") == 0

    for clock in (2_000_000_000_000_000_000, 1_000_000_000_000_000_000):
        monkeypatch.setattr("thawd.stores.objects.catalog.time.time_ns", lambda clock=clock: clock)
        db = open_state(tmp_path / "s.db")
        asyncio.run(scenario(ObjectCatalog(db)))
        db.close()
    assert sequencers == sorted(set(sequencers))
    assert len(sequencers) == 8


def test_pages_hold_all_keys_with_a_prefix_in_the_order_of_their_bytes(catalog: ObjectCatalog) -> None:
    async def scenario() -> None:
        keys = [b"a", b"a/1", b"a/2", b"a0", b"b", b"\xff", b"\xff\xff1", b"\xff\xff2"]
        await catalog.apply("b", [change(key) for key in keys], events_for=one_event)
        await catalog.apply("c", [change(b"a/other")], events_for=one_event)

        async def read(prefix: bytes, limit: int) -> list[bytes]:
            found: list[bytes] = []
            start = b""
            while page := await catalog.page("b", prefix=prefix, start=start, limit=limit):
                found += [each.key for each in page]
                start = found[-1] + b"\0"
            return found

        for limit in (1, 3, 100):
            assert await read(b"", limit) == sorted(keys)
            assert await read(b"a/", limit) == [b"a/1", b"a/2"]
            assert await read(b"\xff\xff", limit) == [b"\xff\xff1", b"\xff\xff2"]
            assert await read(b"z", limit) == []

    asyncio.run(scenario())


def test_the_successor_of_a_prefix_is_the_first_key_without_it() -> None:
    assert successor(b"a/") == b"a0"
    assert successor(b"a\xff") == b"b"
    assert successor(b"\xff\xff") is None
    assert successor(b"") is None


def test_a_closed_store_is_told(db: Database, catalog: ObjectCatalog) -> None:
    db.close()
    with pytest.raises(StoreError, match="closed"):
        asyncio.run(catalog.count("b"))
