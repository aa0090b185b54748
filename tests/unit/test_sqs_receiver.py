"""The receiver with a queue in memory: what it deletes, holds and releases, and how it handles failures."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from thawd.sources.aws_calls import SourceError
from thawd.sources.progress import SourceProgress
from thawd.sources.sqs import receiver
from thawd.sources.sqs.batch import Batching, ReceivedMessage
from thawd.sources.sqs.client import QueueLook, RawMessage
from thawd.sources.sqs.receiver import Receiver, Throttled


class Queue:
    """A queue in memory. The test gives what each call of `receive` returns.

    Attributes:
        trouble: the error with which every call fails; None lets calls succeed.
        refused: handles for which deletion and extension fail once.
        calls: all calls except those of `receive`.
    """

    def __init__(self) -> None:
        self.coming: asyncio.Queue[list[RawMessage]] = asyncio.Queue()
        self.trouble: str | None = None
        self.refused: set[str] = set()
        self.calls: list[tuple[str, tuple[str, ...], int]] = []
        self.visibility_s = 60
        self.holds: list[int | None] = []
        self.released: list[str] = []

    def put(self, *bodies: str) -> None:
        self.coming.put_nowait(
            [{"MessageId": body, "ReceiptHandle": f"h-{body}", "Body": body, "Attributes": {}} for body in bodies]
        )

    def _fail(self) -> None:
        if self.trouble is not None:
            raise SourceError(self.trouble)

    async def receive(self, *, most: int, wait_s: int, hold_s: int | None = None) -> list[RawMessage]:
        self._fail()
        self.holds.append(hold_s)
        if wait_s == 0 and self.coming.empty():
            return []
        messages = await self.coming.get()
        assert len(messages) <= most
        return messages

    async def delete(self, handles: Sequence[str]) -> list[str]:
        self._fail()
        failed = [handle for handle in handles if handle in self.refused]
        self.refused -= set(failed)
        self.calls.append(("delete", tuple(handles), 0))
        return failed

    async def set_visibility(self, handles: Sequence[str], wait_s: int) -> list[str]:
        self._fail()
        failed = [handle for handle in handles if handle in self.refused]
        self.refused -= set(failed)
        self.calls.append(("visibility", tuple(handles), wait_s))
        return failed

    async def look(self) -> QueueLook:
        self._fail()
        return QueueLook(0, 0, self.visibility_s)

    def release(self, messages: Sequence[RawMessage]) -> None:
        self.released += [message["Body"] for message in messages]

    def deleted(self) -> list[str]:
        return sorted(handle[2:] for verb, handles, _ in self.calls if verb == "delete" for handle in handles)


class House:
    """A running receiver, and the batches that it passed on."""

    def __init__(self, **batching: Any) -> None:
        self.queue = Queue()
        self.batches: list[list[str]] = []
        self.outcome: Callable[[list[str]], set[str]] = lambda ids: set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.most = 4
        self.told: list[str] = []
        self.opened_in: list[threading.Thread] = []
        self.changed = asyncio.Event()
        self.progress = SourceProgress()
        self.receiver = Receiver(
            self.queue,  # type: ignore[arg-type]
            open_=self._open,
            handle=self._handle,
            batching=Batching(**batching),
            room=lambda: self.most,
            progress=self.progress,
            report=self.told.append,
        )

    def _open(self, message: RawMessage) -> bytes | None:
        body: str = message["Body"]
        self.opened_in.append(threading.current_thread())
        if body.startswith("broken"):
            raise RecursionError(body)
        return None if body.startswith("unwanted") else body.encode()

    async def _handle(self, letters: Sequence[ReceivedMessage]) -> set[str]:
        ids = [letter.id for letter in letters]
        self.batches.append(ids)
        await self.gate.wait()
        return self.outcome(ids)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(300):
            while not condition():  # noqa: ASYNC110 - the things waited for are lists
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def working(**batching: Any) -> AsyncIterator[House]:
    house = House(**batching)
    running = asyncio.create_task(house.receiver.run())
    try:
        yield house
    finally:
        house.gate.set()
        house.receiver.stop()
        await running


def test_what_was_handled_is_deleted_and_what_failed_is_not() -> None:
    async def scenario() -> None:
        async with working() as house:
            house.outcome = lambda ids: {"b"}
            house.queue.put("a", "b", "c")
            await house.until(house.queue.deleted)
            assert house.queue.deleted() == ["a", "c"]
            await house.until(lambda: house.progress.failed == 1)
        # Only the queue's own visibility timeout holds the message, and it continues.
        assert [call for call in house.queue.calls if call[0] == "visibility"] == []

    asyncio.run(scenario())


def test_nothing_is_deleted_before_the_handler_has_ended() -> None:
    async def scenario() -> None:
        async with working() as house:
            house.gate.clear()
            house.queue.put("a")
            await house.until(lambda: house.batches)
            assert house.queue.deleted() == []
            house.gate.set()
            await house.until(lambda: house.queue.deleted() == ["a"])

    asyncio.run(scenario())


def test_what_is_not_wanted_is_deleted_and_not_handed_over() -> None:
    async def scenario() -> None:
        async with working() as house:
            house.queue.put("unwanted-1", "unwanted-2")
            house.queue.put("a", "unwanted-3")
            await house.until(lambda: len(house.queue.deleted()) == 4)
            assert house.batches == [["a"]]
            assert (house.progress.received, house.progress.filtered) == (4, 3)

    asyncio.run(scenario())


def test_a_batch_gathers_until_it_is_full() -> None:
    async def scenario() -> None:
        async with working(most=3, window_s=300) as house:
            house.queue.put("a", "b")
            await house.until(lambda: house.progress.received == 2)
            assert house.batches == []
            house.queue.put("c")
            await house.until(lambda: house.batches == [["a", "b", "c"]])

    asyncio.run(scenario())


def test_a_batch_goes_when_its_window_is_over() -> None:
    async def scenario() -> None:
        async with working(most=100, window_s=0.5) as house:
            house.queue.put("a", "b")
            await house.until(lambda: house.batches == [["a", "b"]])

    asyncio.run(scenario())


def test_a_batch_is_no_larger_than_an_event_may_be() -> None:
    async def scenario() -> None:
        async with working(most=10, window_s=0.2, most_bytes=25) as house:
            house.queue.put("a" * 10, "b" * 10, "c" * 10, "d" * 40)
            await house.until(lambda: len(house.batches) == 3)
            assert house.batches == [["a" * 10, "b" * 10], ["c" * 10], ["d" * 40]]
            await house.until(lambda: len(house.queue.deleted()) == 4)

    asyncio.run(scenario())


@pytest.mark.parametrize("fails", [False, True])
def test_what_does_not_fit_waits_where_the_queue_keeps_an_order_and_goes_back_after_a_failure(fails: bool) -> None:
    async def scenario() -> None:
        async with working(most_bytes=8, ordered=True) as house:
            # Given a batch of a FIFO queue, with its first messages in progress
            house.gate.clear()
            house.outcome = lambda ids: {"bbb"} & set(ids) if fails else set()
            house.queue.put("aaa", "bbb", "ccc", "ddd", "eee")
            await house.until(lambda: house.receiver._in_progress == 3)
            assert house.batches == [["aaa", "bbb"]]
            house.gate.set()
            # Then the messages behind them are handled if they succeed, and released if they fail
            if fails:
                await house.until(lambda: len(house.queue.released) == 3)
                assert sorted(house.queue.released) == ["ccc", "ddd", "eee"]
                assert house.batches == [["aaa", "bbb"]]
            else:
                await house.until(lambda: len(house.queue.deleted()) == 5)
                assert house.batches == [["aaa", "bbb"], ["ccc", "ddd"], ["eee"]]

    asyncio.run(scenario())


def test_a_message_that_cannot_be_dealt_with_holds_up_no_other() -> None:
    async def scenario() -> None:
        async with working() as house:
            house.queue.put("a", "broken", "b")
            await house.until(house.queue.deleted)
            assert house.batches == [["a", "b"]]
            assert house.queue.deleted() == ["a", "b"]
            assert house.progress.trouble is None
            assert len(house.told) == 1
            assert "message broken" in house.told[0]

    asyncio.run(scenario())


def test_the_event_loop_does_not_wait_while_a_large_message_is_looked_into() -> None:
    async def scenario() -> None:
        async with working() as house:
            house.queue.put("a", "b" * 20_000)
            await house.until(house.queue.deleted)
        small, large = house.opened_in
        assert small is threading.main_thread()
        assert large is not threading.main_thread()

    asyncio.run(scenario())


def test_no_more_batches_are_under_way_than_there_is_room_for() -> None:
    async def scenario() -> None:
        async with working() as house:
            house.most = 2
            house.gate.clear()
            for body in "abc":
                house.queue.put(body)
            await house.until(lambda: len(house.batches) == 2)
            await asyncio.sleep(0)
            assert house.queue.coming.qsize() == 1
            house.gate.set()
            await house.until(lambda: len(house.batches) == 3)

    asyncio.run(scenario())


def test_a_queue_with_much_in_it_is_read_by_several_at_once_and_an_empty_one_by_one() -> None:
    async def scenario() -> None:
        async with working(most=1) as house:
            house.most = 100
            await house.until(lambda: len(house.queue.holds) == 1)
            for number in range(8):
                house.queue.put(str(number))
            await house.until(lambda: len(house.queue.deleted()) == 8)
            await house.until(lambda: len(house.queue.holds) == 8 + 5)
            assert house.progress.received == 8

    asyncio.run(scenario())


def test_messages_of_a_short_timeout_are_held_from_the_beginning_and_go_back_by_it() -> None:
    async def scenario() -> None:
        house = House()
        house.queue.visibility_s = 2
        running = asyncio.create_task(house.receiver.run())
        house.outcome = set
        house.queue.put("a")
        await house.until(lambda: house.queue.calls)
        assert house.queue.holds[0] == 10
        assert house.queue.calls == [("visibility", ("h-a",), 2)]
        house.receiver.stop()
        await running

    asyncio.run(scenario())


def test_a_batch_that_takes_long_is_held_again_and_again(monkeypatch: Any) -> None:
    monkeypatch.setattr(receiver, "_SHORTEST_HOLD_S", 0)
    monkeypatch.setattr(receiver, "_HOLD_S", 0)
    monkeypatch.setattr(receiver, "_RECHECK_S", 0.01)

    async def scenario() -> None:
        house = House()
        house.queue.visibility_s = 0
        running = asyncio.create_task(house.receiver.run())
        house.gate.clear()
        house.queue.put("a", "b")
        held = ("visibility", ("h-a", "h-b"), 0)
        await house.until(lambda: house.queue.calls.count(held) >= 3)
        house.gate.set()
        await house.until(house.queue.deleted)
        seen = len(house.queue.calls)
        house.receiver.stop()
        await running
        assert len(house.queue.calls) == seen

    asyncio.run(scenario())


def test_a_message_whose_hold_was_refused_is_held_at_the_next_look(monkeypatch: Any) -> None:
    monkeypatch.setattr(receiver, "_SHORTEST_HOLD_S", 0)
    monkeypatch.setattr(receiver, "_HOLD_S", 1000)
    monkeypatch.setattr(receiver, "_RECHECK_S", 0.01)

    async def scenario() -> None:
        async with working() as house:
            house.queue.visibility_s = 0
            house.queue.refused = {"h-b"}
            house.gate.clear()
            house.queue.put("a", "b")
            await house.until(lambda: len(house.queue.calls) == 2)
            assert [handles for _, handles, _ in house.queue.calls] == [("h-a", "h-b"), ("h-b",)]

    asyncio.run(scenario())


def test_throttled_messages_go_back_with_a_wait_that_grows() -> None:
    async def scenario() -> None:
        async with working() as house:

            def refuse(ids: list[str]) -> set[str]:
                raise Throttled("no room")

            house.outcome = refuse
            house.queue.put("a")
            await house.until(lambda: house.queue.calls)
            assert house.queue.calls == [("visibility", ("h-a",), 1)]
            assert house.progress.last_result == "PROBLEM: no room"
            house.queue.put("a")
            await house.until(lambda: len(house.queue.calls) == 2)
            assert house.queue.calls[1] == ("visibility", ("h-a",), 2)
            house.outcome = lambda ids: set()
            house.queue.put("a")
            await house.until(lambda: house.queue.deleted() == ["a"])

    asyncio.run(scenario())


def test_a_deletion_that_fails_is_tried_again_for_what_is_left() -> None:
    async def scenario() -> None:
        async with working() as house:
            house.queue.refused = {"h-b"}
            house.queue.put("a", "b")
            await house.until(lambda: len(house.queue.calls) == 2)
            assert house.queue.calls == [("delete", ("h-a", "h-b"), 0), ("delete", ("h-b",), 0)]

    asyncio.run(scenario())


def test_trouble_is_told_once_and_its_end_too(monkeypatch: Any) -> None:
    monkeypatch.setattr(receiver, "_BACKOFF_FIRST_S", 0.001)

    async def scenario() -> None:
        house = House()
        house.queue.trouble = "down"
        running = asyncio.create_task(house.receiver.run())
        await house.until(lambda: house.progress.troubles >= 3)
        assert house.progress.last_result == "PROBLEM: down"
        house.queue.trouble = None
        house.queue.put("a")
        await house.until(lambda: house.queue.deleted() == ["a"])
        assert house.told == ["cannot be read; thawd keeps trying: down", "can be read again"]
        house.receiver.stop()
        await running

    asyncio.run(scenario())


def test_a_batch_that_is_gathered_when_the_source_stops_goes_back_at_once() -> None:
    async def scenario() -> None:
        async with working(most=10, window_s=300) as house:
            house.queue.put("a", "b")
            await house.until(lambda: house.progress.received == 2)
        await house.until(lambda: sorted(house.queue.released) == ["a", "b"])
        assert house.batches == []

    asyncio.run(scenario())


def test_a_stop_lets_batches_under_way_end() -> None:
    async def scenario() -> None:
        house = House()
        running = asyncio.create_task(house.receiver.run())
        house.gate.clear()
        house.queue.put("a")
        await house.until(lambda: house.batches)
        house.receiver.stop()
        await asyncio.sleep(0)
        assert not running.done()
        house.gate.set()
        await running
        assert house.queue.deleted() == ["a"]

    asyncio.run(scenario())


def test_a_mistake_in_handling_ends_neither_the_source_nor_the_message() -> None:
    async def scenario() -> None:
        async with working() as house:

            def break_(ids: list[str]) -> set[str]:
                raise KeyError("a bug")

            house.outcome = break_
            house.queue.put("a")
            await house.until(lambda: house.told)
            house.outcome = lambda ids: set()
            house.queue.put("b")
            await house.until(lambda: house.queue.deleted() == ["b"])

    asyncio.run(scenario())
