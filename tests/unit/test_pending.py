"""`thawd.sources.buckets.pending`: a key is held once and comes at its time, and no more keys are held than allowed."""

from __future__ import annotations

import asyncio

import pytest

from thawd.sources.buckets.files import UnfinishedFile
from thawd.sources.buckets.pending import DueKey, PendingKeys


def test_keys_come_when_they_are_due_earliest_first() -> None:
    pending = PendingKeys(10)
    for key, due in ((b"c", 3.0), (b"a", 1.0), (b"b", 2.0)):
        assert pending.push(key, due)
    assert pending.next_due() == 1.0
    assert pending.take(0.5, 10) == []
    assert [due.key for due in pending.take(2.0, 10)] == [b"a", b"b"]
    assert [due.key for due in pending.take(9.0, 10)] == [b"c"]
    assert pending.next_due() is None
    assert len(pending) == 0


def test_a_key_is_held_once_at_its_earliest_time_with_what_is_remembered_of_it() -> None:
    pending = PendingKeys(10)
    unfinished = UnfinishedFile(wait_s=2.0)
    pending.push(b"a", 5.0, unfinished=unfinished)
    pending.push(b"a", 1.0)
    pending.push(b"a", 9.0)
    assert len(pending) == 1
    assert pending.take(1.0, 10) == [DueKey(b"a", unfinished)]
    assert pending.take(99.0, 10) == []


def test_of_two_memories_the_longer_one_is_kept() -> None:
    pending = PendingKeys(10)
    longer = UnfinishedFile(seen=(1, 2, 3), since=10.0)
    for other in (UnfinishedFile(seen=(1, 2, 3), since=20.0), UnfinishedFile(), None):
        for order in ((longer, other), (other, longer)):
            for unfinished in order:
                pending.push(b"a", 1.0, unfinished=unfinished)
            assert pending.take(1.0, 10) == [DueKey(b"a", longer)]


def test_no_more_keys_are_held_than_allowed_but_known_ones_may_come_earlier() -> None:
    pending = PendingKeys(2)
    assert pending.push(b"a", 5.0)
    assert pending.push(b"b", 5.0)
    assert not pending.push(b"c", 1.0)
    assert pending.push(b"a", 1.0)
    assert [due.key for due in pending.take(5.0, 1)] == [b"a"]
    assert pending.push(b"c", 1.0)


def test_many_changes_of_time_leave_nothing_behind() -> None:
    pending = PendingKeys(10)
    for due in range(1000, 0, -1):
        pending.push(b"a", float(due))
        pending.take(0.0, 10)
    assert [due.key for due in pending.take(1.0, 10)] == [b"a"]
    assert pending.next_due() is None
    assert pending._heap == []


def test_a_waiter_is_woken_by_an_earlier_time_and_not_before() -> None:
    async def scenario() -> None:
        pending = PendingKeys(10)
        pending.push(b"late", 100.0)
        waiter = asyncio.ensure_future(pending.wait(30.0))
        await asyncio.sleep(0)
        pending.push(b"later", 200.0)
        await asyncio.sleep(0)
        assert not waiter.done()
        pending.push(b"early", 1.0)
        await asyncio.wait_for(waiter, 120)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pending.wait(None), 0.01)
        await pending.wait(0.01)

    asyncio.run(scenario())
