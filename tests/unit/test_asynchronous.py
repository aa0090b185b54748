"""Claims about `thawd.queue.invoker`: a stored event is run, retried, given up and told, and never lost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.execution_fakes import until, within
from thawd.destinations.delivery import Destinations
from thawd.errors import (
    InvalidParameterValueException,
    ResourceNotFoundException,
    ServiceException,
    ThawdError,
    TooManyRequestsException,
)
from thawd.invocation import Invocation, Result
from thawd.queue import invoker, outcome_delivery
from thawd.queue.invoker import AsyncInvoker
from thawd.queue.outcome_delivery import Outcomes
from thawd.resources import Bucket, Destination, Function, Table
from thawd.stores.events.dead_letters import DeadLetters
from thawd.stores.events.marks import Marks
from thawd.stores.events.outbox import Outbox
from thawd.stores.events.queue import EventQueue
from thawd.stores.events.records import Depth, Event, NewEvent
from thawd.stores.schema import open_state
from thawd.stores.tables.access import Tables

pytestmark = pytest.mark.in_memory

TABLE = Destination("table", "out")
BUCKET = Destination("bucket", "out-bucket")
FAILED = Result(b'{"errorType": "E"}', function_error="Unhandled")


class FakeDispatcher:
    """Answers invocations with what the test put into `outcomes`, the last one again and again."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.outcomes: list[Result | ThawdError] = [Result(b'{"label": "cat"}')]
        self.got: list[Invocation] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.running = 0
        self.most = 0
        self.broken = ""

    def entry(self, name: str) -> Any:
        if name != self.function.name:
            raise ResourceNotFoundException(name)
        return SimpleNamespace(function=self.function)

    def asynchronous(self, name: str, qualifier: str | None) -> Function:
        return self.entry(name).function

    def most_at_once(self, name: str) -> int:
        return 64 if self.entry(name) else 0

    async def invoke(self, invocation: Invocation) -> Result:
        self.got.append(invocation)
        if invocation.request_id == self.broken:
            raise ValueError("a mistake of ours")
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, ThawdError):
            raise outcome
        return outcome


class Post:
    """An invoker over a real queue and real destinations."""

    def __init__(
        self,
        folder: Path,
        *,
        queue: Callable[[Any], EventQueue] = EventQueue,
        stores: Callable[..., Any] = Destinations,
        marks: bool = False,
        report: Callable[[str], None] | None = None,
        **function: Any,
    ) -> None:
        self.state = open_state(folder / "thawd.db")
        self.queue = EventQueue(self.state, marks=Marks(folder / "running")) if marks else queue(self.state)
        self.tables = Tables({"out": Table(name="out", path=folder / "out.table")})
        (folder / "bucket").mkdir(exist_ok=True)
        self.bucket = folder / "bucket"
        self.function = Function(name="f", handler="m.f", code=folder, **function)
        self.dispatcher = FakeDispatcher(self.function)
        self.told: list[str] = []
        self.stores = stores(self.tables, {"out-bucket": Bucket(name="out-bucket", path=self.bucket)})
        report = report or self.told.append
        self.outcomes = Outcomes(self.queue, Outbox(self.state), self.stores, report=report)
        self.dead_letters = DeadLetters(self.state)
        self.invoker = AsyncInvoker(
            self.queue,
            self.dispatcher,  # type: ignore[arg-type]
            self.stores,
            self.outcomes,
            retry_wait_s=0.01,
            report=report,
        )

    async def __aenter__(self) -> Post:
        await self.queue.recover()
        started = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self.invoker.run(started))
        await within(started.wait())
        self.invoker.declare(["f"])
        return self

    async def __aexit__(self, *_: object) -> None:
        assert not self.task.done(), "the invoker has ended by itself"
        self.task.cancel()
        await asyncio.wait([self.task])
        self.state.close()
        self.tables.close()

    async def accept(self, payload: bytes = b'{"n": 1}', request_id: str = "id-1") -> None:
        await self.invoker.accept(Invocation("f", payload, 0.0, request_id, asynchronous=True))

    async def settled(self, **depth: int) -> None:
        """Wait until exactly so many events of f are queued, leased and dead."""
        end_s = time.monotonic() + 120
        while True:
            now = (await self.queue.depth()).get("f")
            if (now or Depth()) == Depth(**depth):
                return
            assert time.monotonic() < end_s, now
            await asyncio.sleep(0.002)


def claim(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(300):
            await work()

    asyncio.run(main())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invoker, "_BACKOFF_FIRST_S", 0.02)
    monkeypatch.setattr(outcome_delivery, "_BACKOFF_FIRST_S", 0.02)


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


def test_an_event_that_succeeds_at_last_is_told_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path, on_success=BUCKET) as post:
            post.dispatcher.outcomes = [FAILED, Result(b'{"label": "cat"}')]
            await post.accept()
            await post.settled()
            (file,) = post.bucket.iterdir()
            record = json.loads(file.read_bytes())
            assert record["requestContext"]["condition"] == "Success"
            assert record["requestContext"]["approximateInvokeCount"] == 2
            assert record["responsePayload"] == {"label": "cat"}

    claim(work)


@pytest.mark.parametrize(
    ("payload", "item"), [(b' {"a": 1}', {"a": 1}), (b"5", {"value": 5}), (b'[{"a": 1}]', {"value": [{"a": 1}]})]
)
def test_a_result_is_the_item_of_its_row(tmp_path: Path, payload: bytes, item: Any) -> None:
    async def work() -> None:
        async with Post(tmp_path, on_success=TABLE) as post:
            post.dispatcher.outcomes = [Result(payload)]
            await post.accept()
            await post.settled()
            assert json.loads(await (await post.tables.get("out")).get("id-1") or b"") == item

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


def test_an_event_that_is_too_old_is_given_up_without_being_run(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path, maximum_event_age_s=60, on_failure=TABLE) as post:
            from thawd.stores.events.records import NewEvent

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
            from thawd.stores.events.records import NewEvent

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


class CountingQueue(EventQueue):
    """Counts how often it is asked."""

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
            for _ in range(100):  # each lets the lane come round more than once
                await post.queue.depth()
            assert post.queue.asked < 3 * limit + 20
            post.dispatcher.gate.set()
            await post.settled()

    claim(work)


@pytest.mark.parametrize("payload", [b"NaN", b'{"score": NaN}', b'"' + b"x" * (2 << 20) + b'"'])
def test_a_result_that_its_table_refuses_is_a_failure_of_that_event_and_does_not_run_it_for_ever(
    tmp_path: Path, payload: bytes
) -> None:
    async def work() -> None:
        async with Post(tmp_path, on_success=TABLE, maximum_retry_attempts=2) as post:
            post.dispatcher.outcomes = [Result(payload)]
            await post.accept()
            await until(lambda: len(post.dispatcher.got) > 3 or post.told)
            end_s = time.monotonic() + 1.0
            while len(post.dispatcher.got) <= 6 and time.monotonic() < end_s:
                if (await post.queue.depth())["f"].dead:
                    break
                await asyncio.sleep(0.005)
            assert len(post.dispatcher.got) <= 3, "the function is run again and again"

    claim(work)


@pytest.mark.parametrize("payload", [b'{"errorMessage": "\xff"}', b"[" * 1500 + b"]" * 1500])
@pytest.mark.parametrize("error", [None, "Unhandled"])
def test_an_answer_that_is_no_json_to_anybody_else_is_recorded_as_text_and_runs_once(
    tmp_path: Path, payload: bytes, error: str | None
) -> None:
    # Given what a runtime of the user's own may answer: no UTF-8, or nested without end
    async def work() -> None:
        letters = Destination("bucket", "out-bucket")
        async with Post(
            tmp_path, on_success=BUCKET, on_failure=BUCKET, dead_letter=letters, maximum_retry_attempts=0
        ) as post:
            post.dispatcher.outcomes = [Result(payload, function_error=error)]
            await post.accept()
            await post.settled(dead=1)
            assert len(post.dispatcher.got) == 1
            (letter,) = await post.dead_letters.page()
            assert letter.condition == ("DestinationRefused" if error is None else "RetriesExhausted")
            made = Destinations(post.tables, {}).failure(
                BUCKET, letter, arn="arn", condition="x", result=Result(payload, function_error=error), attempts=1
            )
            assert json.loads(made.body)["responsePayload"] == payload.decode(errors="replace")

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


def test_after_stop_no_event_is_begun_and_those_under_way_end(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path) as post:
            post.dispatcher.gate.clear()
            await post.accept()
            await until(lambda: post.dispatcher.running)
            post.invoker.stop()
            await post.accept(request_id="id-2")
            post.dispatcher.gate.set()
            await post.settled(queued=1)
            assert [i.request_id for i in post.dispatcher.got] == ["id-1"]

    claim(work)


def test_events_of_a_function_that_is_gone_stay_stored_and_run_when_it_is_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path) as post:
            post.invoker.declare([])
            await post.accept()
            await post.settled(queued=1)
            post.invoker.declare(["f"])
            await post.settled()
            assert len(post.dispatcher.got) == 1

    claim(work)


def test_an_event_that_is_put_back_while_its_function_is_gone_runs_when_that_is_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path) as post:
            post.dispatcher.outcomes = [TooManyRequestsException("Rate Exceeded."), Result(b"1")]
            post.dispatcher.gate.clear()
            await post.accept()
            await until(lambda: post.dispatcher.running)
            post.invoker.declare([])
            post.dispatcher.gate.set()
            await post.settled(queued=1)
            post.invoker.declare(["f"])
            await post.settled()
            assert [i.request_id for i in post.dispatcher.got] == ["id-1", "id-1"]

    claim(work)


def test_events_that_were_read_ahead_for_a_function_that_is_gone_are_given_up_when_they_are_old(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path) as post:
            post.dispatcher.gate.clear()
            limit = post.invoker.most_at_once("f")
            for number in range(limit + 5):
                await post.accept(request_id=f"id-{number}")
            await until(lambda: post.dispatcher.running == limit)
            await post.settled(leased=limit + 5)
            post.invoker.declare([])
            post.dispatcher.gate.set()
            await post.settled(queued=5)
            assert (
                await post.queue.dead_letter_older("f", time.time() + 60, error="gone", condition="ResourceNotFound")
                == 5
            )

    claim(work)


class SlowQueue(EventQueue):
    """What has been leased is told late."""

    async def lease(self, function: str, *, limit: int, now: float | None = None) -> list[Event]:
        found = await super().lease(function, limit=limit, now=now)
        await asyncio.sleep(0.01)
        return found


def test_an_event_runs_once_although_its_function_comes_and_goes_meanwhile(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path, queue=SlowQueue) as post:
            for number in range(200):
                await post.accept(request_id=f"id-{number}")
                post.invoker.declare([])
                if number % 2:
                    await asyncio.sleep(0.001)
                post.invoker.declare(["f"])
            await post.settled()
            assert len(post.dispatcher.got) == 200

    claim(work)


def test_an_event_is_not_given_up_for_a_function_that_goes_just_as_it_begins(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path) as post:
            await post.accept()
            declared, gone = post.dispatcher.asynchronous, asyncio.Event()

            def goes(name: str, qualifier: str | None) -> Function:
                post.invoker.declare([])
                gone.set()
                raise ResourceNotFoundException(name)

            post.dispatcher.asynchronous = goes  # type: ignore[method-assign]
            await within(gone.wait())
            await post.settled(queued=1)
            post.dispatcher.asynchronous = declared  # type: ignore[method-assign]
            post.invoker.declare(["f"])
            await post.settled()
            assert len(post.dispatcher.got) == 1

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


def test_what_was_under_way_when_the_invoker_was_stopped_runs_again_with_the_same_id(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path) as post:
            post.dispatcher.gate.clear()
            await post.accept()
            await until(lambda: post.dispatcher.running)
        async with Post(tmp_path) as post:
            await post.settled()
            assert post.dispatcher.got[0].request_id == "id-1"

    claim(work)


class Away(Destinations):
    """Destinations that are away until `back` is set, or refuse."""

    def __init__(self, tables: Any, buckets: Any) -> None:
        super().__init__(tables, buckets)
        self.back = asyncio.Event()
        self.error: ThawdError = ServiceException("nobody listens")
        self.tries = 0

    async def deliver(self, delivery: Any) -> list[NewEvent]:
        self.tries += 1
        if not self.back.is_set():
            raise self.error
        return await super().deliver(delivery)


def test_while_a_destination_is_away_its_outcome_is_kept_and_the_handler_not_run_again(tmp_path: Path) -> None:
    async def before() -> None:
        async with Post(tmp_path, stores=Away, on_success=TABLE) as post:
            await post.accept()
            await post.settled(delivering=1)
            await until(lambda: post.stores.tries >= 3)
            assert len(post.dispatcher.got) == 1
            assert len([line for line in post.told if "table:out cannot be reached" in line]) == 1

    async def after() -> None:
        async with Post(tmp_path, stores=Away, on_success=TABLE) as post:
            post.stores.back.set()
            await post.settled()
            assert await (await post.tables.get("out")).get("id-1") == b'{"label": "cat"}'
            assert not post.dispatcher.got

    claim(before)
    claim(after)


def test_the_record_of_an_event_given_up_waits_for_its_destination_and_then_it_is_a_dead_letter(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path, stores=Away, on_failure=TABLE, maximum_retry_attempts=0) as post:
            post.dispatcher.outcomes = [FAILED]
            await post.accept()
            await post.settled(delivering=1)
            post.stores.back.set()
            await post.settled(dead=1)
            (letter,) = await post.dead_letters.page("f")
            assert (letter.condition, letter.attempts, letter.has_outcome) == ("RetriesExhausted", 1, False)
            item = json.loads(await (await post.tables.get("out")).get("id-1") or b"")
            assert item["requestContext"]["approximateInvokeCount"] == 1

    claim(work)


def test_a_destination_that_begins_to_refuse_ends_the_event_as_a_dead_letter(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path, stores=Away, on_success=TABLE) as post:
            await post.accept()
            await post.settled(delivering=1)
            post.stores.error = InvalidParameterValueException("too large")
            await post.settled(dead=1)
            (letter,) = await post.dead_letters.page("f")
            assert letter.condition == "DestinationRefused"
            assert letter.error == "table:out refused it: too large"
            assert len(post.dispatcher.got) == 1

    claim(work)


def test_a_destination_that_stays_away_ends_the_event_and_a_redrive_tries_the_same_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome_delivery, "_PATIENCE_S", 0.0)

    async def work() -> None:
        async with Post(tmp_path, stores=Away, on_success=TABLE) as post:
            await post.accept()
            await post.settled(dead=1)
            (letter,) = await post.dead_letters.page("f")
            assert (letter.condition, letter.has_outcome) == ("DestinationFailed", True)
            post.stores.back.set()
            await post.dead_letters.redrive([letter.id])
            post.outcomes.wake()
            await post.settled()
            assert await (await post.tables.get("out")).get("id-1") == b'{"label": "cat"}'
            assert len(post.dispatcher.got) == 1

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


def test_an_event_that_kills_the_server_again_and_again_is_given_up(tmp_path: Path) -> None:
    async def dies() -> None:
        post = Post(tmp_path, marks=True)
        await post.queue.recover()
        if not (await post.queue.depth()):
            await post.accept()
        for event in await post.queue.lease("f", limit=1):
            post.queue.begins(event)
        post.state.close()
        post.tables.close()

    async def after() -> None:
        async with Post(tmp_path, marks=True) as post:
            await post.settled(dead=1)
            (letter,) = await post.dead_letters.page("f")
            assert letter.condition == "Interrupted"
            assert letter.error == "the server died 10 times while this event ran"
            assert not post.dispatcher.got

    for _ in range(10):
        claim(dies)
    claim(after)


def test_events_that_ran_when_the_server_died_thrice_run_one_at_a_time(tmp_path: Path) -> None:
    async def dies() -> None:
        post = Post(tmp_path, marks=True)
        await post.queue.recover()
        if not (await post.queue.depth()):
            for number in range(3):
                await post.accept(request_id=f"id-{number}")
        for event in await post.queue.lease("f", limit=3):
            post.queue.begins(event)
        post.state.close()
        post.tables.close()

    async def after() -> None:
        async with Post(tmp_path, marks=True) as post:
            await post.accept(request_id="innocent")
            await post.settled()
            suspects = [i.request_id for i in post.dispatcher.got if i.request_id != "innocent"]
            assert sorted(suspects) == ["id-0", "id-1", "id-2"]
            assert post.dispatcher.most <= 2

    for _ in range(3):
        claim(dies)
    claim(after)


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
