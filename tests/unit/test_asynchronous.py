"""`thawd.queue.invoker`: a stored event runs, is retried or becomes a dead letter, and is never lost."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from tests.unit.execution_fakes import claim, until
from tests.unit.invoker_post import FAILED, TABLE, Post
from thawd.errors import TooManyRequestsException
from thawd.invocation import Result
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import Event
from thawd.system.inline import run_inline

pytestmark = [pytest.mark.in_memory, pytest.mark.usefixtures("quick")]


def test_an_accepted_event_is_run_and_forgotten(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path) as post:
            await post.accept()
            await post.settled()
            (invocation,) = post.dispatcher.got
            assert (invocation.payload, invocation.request_id) == (b'{"n": 1}', "id-1")
            assert invocation.asynchronous

    claim(work)


@pytest.mark.parametrize(("retries", "runs"), [(0, 1), (1, 2), (2, 3)])
def test_a_function_error_is_retried_as_often_as_configured_then_given_up(
    tmp_path: Path, retries: int, runs: int
) -> None:
    async def work() -> None:
        async with Post(tmp_path, maximum_retry_attempts=retries, on_failure=TABLE) as post:
            post.dispatcher.outcomes = [FAILED]
            await post.accept()
            await post.settled(dead=1)
            assert [i.request_id for i in post.dispatcher.got] == ["id-1"] * runs
            (dead,) = await post.dead_letters.page("f")
            assert (dead.condition, dead.attempts) == ("RetriesExhausted", runs)
            record = json.loads(await (await post.tables.get("out")).get("id-1") or b"")
            assert record["requestContext"] == {
                "requestId": "id-1",
                "functionArn": f"{post.function.arn}:$LATEST",
                "condition": "RetriesExhausted",
                "approximateInvokeCount": runs,
            }
            assert record["requestPayload"] == {"n": 1}
            assert record["responsePayload"] == {"errorType": "E"}
            assert record["responseContext"] == {
                "statusCode": 200,
                "executedVersion": "$LATEST",
                "functionError": "Unhandled",
            }

    claim(work)


def test_throttles_do_not_use_up_retries(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path, maximum_retry_attempts=0) as post:
            post.dispatcher.outcomes = [*[TooManyRequestsException("Rate Exceeded.")] * 4, Result(b"1")]
            await post.accept()
            await post.settled()
            assert len(post.dispatcher.got) == 5
            assert await post.dead_letters.page("f") == []

    claim(work)


def test_an_event_that_is_throttled_while_its_request_is_served_inline_waits_before_it_is_tried_again(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with Post(tmp_path) as post:
            await post.accept()
            await post.settled()  # from here on, the lane gets new events without reading them
            post.dispatcher.outcomes = [*[TooManyRequestsException("Rate Exceeded.")] * 6, Result(b"1")]
            loop = asyncio.get_running_loop()
            accepted = loop.create_future()

            async def accept() -> None:
                await post.accept(request_id="id-2")
                accepted.set_result(len(post.dispatcher.got))

            loop.call_soon(run_inline, accept(), loop.create_task)
            assert await accepted == 2
            await post.settled()
            assert len(post.dispatcher.got) == 8

    claim(work)


def test_an_event_that_is_too_old_is_given_up_without_being_run(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path, maximum_event_age_s=60, on_failure=TABLE) as post:
            from thawd.stores.events.event_rows import NewEvent

            event = NewEvent(function="f", payload=b"1", request_id="old")
            await post.queue.put([event], now=time.time() - 61)
            post.invoker.wake({"f"})
            await post.settled(dead=1)
            assert post.dispatcher.got == []
            record = json.loads(await (await post.tables.get("out")).get("old") or b"")
            assert record["requestContext"]["condition"] == "EventAgeExceeded"
            assert record["requestContext"]["approximateInvokeCount"] == 0
            assert "responsePayload" not in record

    claim(work)


def test_an_event_waits_for_an_environment_no_longer_than_its_age_allows(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path, maximum_event_age_s=3600) as post:
            from thawd.stores.events.event_rows import NewEvent

            event = NewEvent(function="f", payload=b"1", request_id="old")
            await post.queue.put([event], now=time.time() - 3500)
            post.invoker.wake({"f"})
            await post.settled()
            assert post.dispatcher.got[0].queue_deadline - time.monotonic() <= 100.5

    claim(work)


def test_events_run_beside_each_other_and_only_so_many(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path) as post:
            post.dispatcher.gate.clear()
            for number in range(30):
                await post.accept(request_id=f"id-{number}")
            limit = post.invoker.most_at_once("f")
            await until(lambda: post.dispatcher.running == limit)
            post.dispatcher.gate.set()
            await post.settled()
            assert post.dispatcher.most == limit
            assert len({i.request_id for i in post.dispatcher.got}) == 30

    claim(work)


def test_no_more_events_begin_than_the_share_of_this_machine_in_its_cluster(tmp_path: Path) -> None:
    # Else some would be throttled, and a throttle pauses all events of the function for a second or more.
    async def work() -> None:
        async with Post(tmp_path) as post:
            post.dispatcher.share = 2
            post.dispatcher.gate.clear()
            for number in range(10):
                await post.accept(request_id=f"id-{number}")
            await until(lambda: post.dispatcher.running == 2)
            post.dispatcher.gate.set()
            await post.settled()
            assert post.dispatcher.most == 2

    claim(work)


class CountingQueue(EventQueue):
    """Counts the calls of `lease`."""

    asked = 0

    async def lease(self, function: str, *, limit: int, now: float | None = None) -> list[Event]:
        self.asked += 1
        return await super().lease(function, limit=limit, now=now)


def test_events_that_wait_for_others_to_end_cost_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path, queue=CountingQueue) as post:
            assert isinstance(post.queue, CountingQueue)
            post.dispatcher.gate.clear()
            limit = post.invoker.most_at_once("f")
            for number in range(limit + 3):
                await post.accept(request_id=f"id-{number}")
            await until(lambda: post.dispatcher.running == limit)
            for _ in range(100):  # each one gives the lane time for several rounds
                await post.queue.depth()
            assert post.queue.asked < 3 * limit + 20
            post.dispatcher.gate.set()
            await post.settled()

    claim(work)


def test_an_operator_whose_terminal_is_gone_does_not_take_the_invoker_down(tmp_path: Path) -> None:
    async def work() -> None:
        def broken(line: str) -> None:
            raise BrokenPipeError

        async with Post(tmp_path, report=broken, maximum_retry_attempts=0) as post:
            post.dispatcher.outcomes = [FAILED]
            await post.accept()
            await post.settled(dead=1)
            post.dispatcher.outcomes = [Result(b"1")]
            await post.accept(request_id="id-2")
            await until(lambda: any(i.request_id == "id-2" for i in post.dispatcher.got))

    claim(work)


def test_large_payloads_are_not_read_far_ahead(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path) as post:
            post.dispatcher.gate.clear()
            payload = b'"' + b"x" * 1_000_000 + b'"'
            for number in range(30):
                await post.accept(payload, request_id=f"id-{number}")
            limit = post.invoker.most_at_once("f")
            await until(lambda: post.dispatcher.running == limit)
            for _ in range(20):
                await post.queue.depth()
            assert (await post.queue.depth())["f"].leased <= limit + 10
            post.dispatcher.gate.set()
            await post.settled()

    claim(work)


def test_a_throttled_function_waits_as_a_whole_and_tries_with_one_event(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path) as post:
            post.dispatcher.outcomes = [TooManyRequestsException("Rate Exceeded.")]
            for number in range(40):
                await post.accept(request_id=f"id-{number}")
            await until(lambda: len(post.dispatcher.got) > post.invoker.most_at_once("f") + 2)
            tried = len(post.dispatcher.got)
            assert tried < 20, "each event is tried for itself"
            post.dispatcher.outcomes = [Result(b"1")]
            await post.settled()
            ran = [invocation.request_id for invocation in post.dispatcher.got]
            assert set(ran) == {f"id-{number}" for number in range(40)}

    claim(work)


def test_a_mistake_of_ours_with_one_event_ends_it_and_no_other(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path) as post:
            post.dispatcher.broken = "id-1"
            await post.accept()
            await post.accept(request_id="id-2")
            await post.settled(dead=1)
            (letter,) = await post.dead_letters.page("f")
            assert (letter.request_id, letter.condition, letter.attempts) == ("id-1", "InternalError", 3)

    claim(work)
