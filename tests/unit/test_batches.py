"""`thawd.stores.events.batches`: items that arrive together are written together, and each fails alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.execution_fakes import turns
from thawd.errors import StoreError
from thawd.stores.events.batches import Batches


class Disk:
    """Writes numbers when the test lets it. Refuses those in `wrong`."""

    def __init__(self) -> None:
        self.written: list[list[int]] = []
        self.wrong: dict[int, BaseException] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def write(self, items: list[int]) -> list[str]:
        self.written.append(list(items))
        await self.gate.wait()
        for item in items:
            if item in self.wrong:
                raise self.wrong[item]
        return [f"written {item}" for item in items]


async def added(batches: Batches[int, str], *items: int) -> list[Any]:
    return await asyncio.gather(*(batches.add(item) for item in items), return_exceptions=True)


async def test_what_comes_while_a_write_is_under_way_is_written_next_all_together_and_in_order() -> None:
    disk = Disk()
    disk.gate.clear()
    batches: Batches[int, str] = Batches(disk.write)
    first = asyncio.ensure_future(added(batches, 1))
    await turns()
    rest = asyncio.ensure_future(added(batches, 2, 3, 4))
    await turns()
    assert disk.written == [[1]]
    disk.gate.set()
    assert await first == ["written 1"]
    assert await rest == ["written 2", "written 3", "written 4"]
    assert disk.written == [[1], [2, 3, 4]]
    assert await added(batches, 5) == ["written 5"]


async def test_one_that_cannot_be_written_fails_alone() -> None:
    disk = Disk()
    disk.wrong[2] = ValueError("no such thing as 2")
    batches: Batches[int, str] = Batches(disk.write)
    one, two, three = await added(batches, 1, 2, 3)
    assert (one, three) == ("written 1", "written 3")
    assert two is disk.wrong[2]
    assert disk.written == [[1, 2, 3], [1], [2], [3]]


async def test_of_two_that_came_together_the_sound_one_is_written() -> None:
    disk = Disk()
    disk.wrong[1] = ValueError("no such thing as 1")
    assert await added(Batches(disk.write), 1, 2) == [disk.wrong[1], "written 2"]


async def test_one_that_came_alone_is_not_tried_again() -> None:
    disk = Disk()
    disk.wrong[1] = ValueError("no such thing as 1")
    assert await added(Batches(disk.write), 1) == [disk.wrong[1]]
    assert disk.written == [[1]]


async def test_where_the_disk_takes_nothing_all_are_told_at_the_first_try() -> None:
    disk = Disk()
    disk.wrong[2] = StoreError("the disk is full")
    assert await added(Batches(disk.write), 1, 2, 3) == [disk.wrong[2]] * 3
    assert disk.written == [[1, 2, 3]]


async def test_who_went_away_meanwhile_keeps_nobody_from_the_result() -> None:
    for wrong in (False, True):
        disk = Disk()
        disk.gate.clear()
        if wrong:
            disk.wrong[3] = ValueError("no such thing as 3")
        batches: Batches[int, str] = Batches(disk.write)
        tasks = [asyncio.ensure_future(batches.add(item)) for item in (1, 2, 3)]
        await turns()
        tasks[0].cancel()
        if wrong:
            tasks[2].cancel()
        await turns()
        disk.gate.set()
        assert await tasks[1] == "written 2"


async def test_a_write_that_is_cancelled_is_told_to_all_and_tried_no_more() -> None:
    disk = Disk()
    disk.wrong[1] = asyncio.CancelledError()
    batches: Batches[int, str] = Batches(disk.write)
    results = await added(batches, 1, 2)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert disk.written == [[1, 2]]
    disk.wrong.clear()
    assert await added(batches, 4) == ["written 4"]


def test_others_are_waited_for_as_long_as_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def noted(wait_s: float, callback: Any) -> Any:
            waited.append(wait_s)
            return loop.call_soon(callback)

        monkeypatch.setattr(loop, "call_later", noted)
        for options, expected in (({}, []), ({"patience_s": 0.25}, [0.25])):
            batches: Batches[int, str] = Batches(Disk().write, **options)
            assert await batches.add(1) == "written 1"
            assert waited == expected

    asyncio.run(main())


async def test_a_write_that_waits_for_its_patience_begins_earlier_if_it_can_share_a_commit() -> None:
    disk = Disk()
    batches: Batches[int, str] = Batches(disk.write, patience_s=3600)
    batches.begin_now()
    await turns()
    assert disk.written == []
    for number in (1, 3):  # the second write waits for its patience again
        both = asyncio.ensure_future(added(batches, number, number + 1))
        await turns()
        assert len(disk.written) == number // 2
        batches.begin_now()
        batches.begin_now()
        assert await both == [f"written {number}", f"written {number + 1}"]
    assert disk.written == [[1, 2], [3, 4]]
