"""`thawd.queue.outcome_delivery`: everything that must be reported about an event is reported, whatever destinations
do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.execution_fakes import claim, until
from tests.unit.invoker_post import FAILED, Away, Post
from thawd.destinations.delivery import Delivery, DestinationContext, Destinations
from thawd.errors import DestinationRefused, DestinationUnavailable, ResourceNotFoundException, StoreFullError
from thawd.invocation import Result
from thawd.queue import outcome_delivery
from thawd.queue.outcome_delivery import _AT_ONCE as AT_ONCE
from thawd.queue.outcome_delivery import DeadLetterCause, Outcome
from thawd.resources import Destination
from thawd.stores.events import event_queue as queue_module
from thawd.stores.events.event_rows import Depth, NewEvent
from thawd.telemetry.metrics import DeliveryOutcome

pytestmark = [pytest.mark.in_memory, pytest.mark.usefixtures("quick")]

HOOK, QUEUE = Destination("http", "http://127.0.0.1/"), Destination("sqs", "arn:aws:sqs:us-east-1:000000000000:dead")
NEXT = Destination("function", "next")
HOOK_TOO = Destination("http", "http://127.0.0.1/failed")


class Scripted(Destinations):
    """Destinations that follow `script`: for each kind of destination the errors of its first tries, then success."""

    def __init__(self, tables: Any, buckets: Any) -> None:
        super().__init__(tables, buckets, DestinationContext())
        self.script: dict[str, list[Exception]] = {}
        self.taken: list[Delivery] = []

    async def deliver(self, delivery: Delivery) -> list[NewEvent]:
        if errors := self.script.get(delivery.destination.kind):
            raise errors.pop(0)
        if delivery.destination.kind == "function":
            return await super().deliver(delivery)
        self.taken.append(delivery)
        return []


AWAY, NO = (lambda: DestinationUnavailable("away")), (lambda: DestinationRefused("never"))


@pytest.mark.parametrize("hook", [[], [AWAY], [AWAY, AWAY, AWAY], [NO], [AWAY, NO]])
@pytest.mark.parametrize("dead", [[], [AWAY], [NO], [AWAY, NO]])
def test_the_record_and_the_dead_letter_of_an_event_go_their_ways_whatever_the_other_does(
    tmp_path: Path, hook: list[Callable[[], Exception]], dead: list[Callable[[], Exception]]
) -> None:
    async def work() -> None:
        async with Post(
            tmp_path, stores=Scripted, on_failure=HOOK, dead_letter=QUEUE, maximum_retry_attempts=0
        ) as post:
            post.stores.script = {"http": [make() for make in hook], "sqs": [make() for make in dead]}
            post.dispatcher.outcomes = [FAILED]
            await post.accept()
            await post.settled(dead=1)
            expected = [kind for kind, errors in (("http", hook), ("sqs", dead)) if NO not in errors]
            assert [made.destination.kind for made in post.stores.taken] == expected
            (letter,) = await post.dead_letters.page("f")
            assert (letter.condition, letter.attempts) == ("RetriesExhausted", 1)
            assert letter.error.count("never") == (NO in hook) + (NO in dead)
            assert len(post.dispatcher.got) == 1
            for destination, errors in ((HOOK, hook), (QUEUE, dead)):
                assert sum(f"cannot be delivered to {destination} now" in line for line in post.told) == (
                    AWAY in errors
                )

    claim(work)


def test_a_failure_is_on_the_disk_before_anyone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a crash in between would make the event run again, possibly with success: it would have a row and a
    dead letter."""
    seen: list[Depth] = []

    async def work() -> None:
        async with Post(tmp_path, stores=Scripted, on_failure=HOOK, maximum_retry_attempts=0) as post:

            async def deliver(self: Scripted, delivery: Delivery) -> list[NewEvent]:
                seen.append((await post.queue.depth())["f"])
                return []

            monkeypatch.setattr(Scripted, "deliver", deliver)
            post.dispatcher.outcomes = [FAILED]
            await post.accept()
            await post.settled(dead=1)
            assert seen == [Depth(0, 0, 0, 1)]

    claim(work)


@pytest.mark.parametrize("tries", [[NO], [AWAY, NO], [AWAY, AWAY, NO]])
@pytest.mark.parametrize("dead", [[], [AWAY], [NO]])
def test_a_success_that_is_refused_at_once_or_later_is_told_as_a_failure(
    tmp_path: Path, tries: list[Callable[[], Exception]], dead: list[Callable[[], Exception]]
) -> None:
    async def work() -> None:
        async with Post(
            tmp_path,
            stores=Scripted,
            on_success=HOOK,
            on_failure=Destination("sns", "arn:aws:sns:us-east-1:000000000000:failed"),
            dead_letter=QUEUE,
        ) as post:
            post.stores.script = {"http": [make() for make in tries], "sqs": [make() for make in dead]}
            await post.accept()
            await post.settled(dead=1)
            expected = ["sns", "sqs"] if NO not in dead else ["sns"]
            assert [made.destination.kind for made in post.stores.taken] == expected
            about = json.loads(post.stores.taken[0].body)["requestContext"]
            assert (about["condition"], about["approximateInvokeCount"]) == ("DestinationRefused", 1)
            (letter,) = await post.dead_letters.page("f")
            assert (letter.condition, letter.attempts) == ("DestinationRefused", 1)
            assert letter.error.count("never") == 1 + (NO in dead)
            assert len(post.dispatcher.got) == 1

    claim(work)


@pytest.mark.parametrize("failed", [HOOK_TOO, NEXT])
@pytest.mark.parametrize("dead", [[], [AWAY], [NO]])
def test_a_success_whose_destination_stays_away_is_told_as_a_failure_and_a_redrive_brings_it_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: Destination, dead: list[Callable[[], Exception]]
) -> None:
    # Given a destination that is unavailable for longer than the limit
    patience_s, away = outcome_delivery._PATIENCE_S, [AWAY(), AWAY()]

    scripted = Scripted.deliver

    async def deliver(self: Scripted, delivery: Delivery) -> list[NewEvent]:
        is_hook = delivery.destination == HOOK
        monkeypatch.setattr(outcome_delivery, "_PATIENCE_S", 0.0 if is_hook else patience_s)
        if is_hook and away:
            raise away.pop()
        if not is_hook:
            return await scripted(self, delivery)
        self.taken.append(delivery)
        return []

    monkeypatch.setattr(Scripted, "deliver", deliver)

    async def work() -> None:
        async with Post(tmp_path, stores=Scripted, on_success=HOOK, on_failure=failed, dead_letter=QUEUE) as post:
            post.stores.script = {"sqs": [make() for make in dead]}
            await post.accept()
            await post.settled(dead=1)
            # Then the destination for failures gets a record with the handler's answer
            if failed == NEXT:
                (told,) = [json.loads(event.payload) for event in await post.queue.lease("next", limit=5)]
            else:
                (told,) = [json.loads(made.body) for made in post.stores.taken if made.destination == failed]
            assert told["requestContext"]["condition"] == "DestinationFailed"
            assert told["requestContext"]["functionArn"].endswith(":function:f:$LATEST")
            assert told["requestPayload"] == {"n": 1}
            assert told["responsePayload"] == {"label": "cat"}
            letters = [made for made in post.stores.taken if made.destination == QUEUE]
            assert [made.body for made in letters] == ([b'{"n": 1}'] if NO not in dead else [])
            (letter,) = await post.dead_letters.page("f")
            assert (letter.condition, letter.attempts, letter.has_outcome) == ("DestinationFailed", 1, True)
            # And a redrive delivers the answer without another run
            await post.dead_letters.redrive([letter.id])
            post.outcomes.wake()
            await post.settled()
            (brought,) = [made for made in post.stores.taken if made.destination == HOOK]
            assert (brought.success, json.loads(brought.body)["requestContext"]["condition"]) == (True, "Success")
            assert len(post.dispatcher.got) == 1

    claim(work)


def test_what_is_left_to_be_told_survives_a_restart(tmp_path: Path) -> None:
    async def before() -> None:
        async with Post(
            tmp_path, stores=Scripted, on_failure=HOOK, dead_letter=QUEUE, maximum_retry_attempts=0
        ) as post:
            post.stores.script = {"sqs": [AWAY() for _ in range(10_000)]}
            post.dispatcher.outcomes = [FAILED]
            await post.accept()
            await post.settled(delivering=1)
            await until(lambda: [made.destination for made in post.stores.taken] == [HOOK])

    async def after() -> None:
        async with Post(tmp_path, stores=Scripted) as post:
            await post.settled(dead=1)
            (made,) = post.stores.taken
            assert made.destination == QUEUE
            assert made.attributes["ErrorCode"] == "200"
            assert made.body == b'{"n": 1}'

    claim(before)
    claim(after)


@pytest.mark.parametrize("queue_is_away", [False, True])
def test_a_function_is_told_of_a_failure_in_the_transaction_that_gives_the_event_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue_is_away: bool
) -> None:
    inserted = []
    insert = queue_module.insert

    def noting(connection: Any, events: Any, **rest: Any) -> None:
        if events:
            state = connection.execute("SELECT state FROM events WHERE request_id = 'id-1'").fetchone()
            inserted.append((len(events), state[0]))
        insert(connection, events, **rest)

    monkeypatch.setattr(queue_module, "insert", noting)

    async def work() -> None:
        async with Post(
            tmp_path, stores=Scripted, on_failure=NEXT, dead_letter=QUEUE, maximum_retry_attempts=0
        ) as post:
            post.stores.script = {"sqs": [AWAY()] if queue_is_away else []}
            post.dispatcher.outcomes = [FAILED]
            told: list[set[str]] = []
            post.outcomes.on_follow_ups = told.append
            await post.accept()
            await post.settled(dead=1)
            assert (await post.queue.depth())["next"] == Depth(queued=1)
            (event,) = await post.queue.lease("next", limit=5)
            assert b'"condition":"RetriesExhausted"' in event.payload
            assert inserted == [(1, queue_module.DEAD)]
            assert told == [{"next"}]

    claim(work)


class NoFunctions(Scripted):
    """Destinations of a server that has no function as a destination."""

    def __init__(self, tables: Any, buckets: Any) -> None:
        super().__init__(tables, buckets)
        self._context = DestinationContext(exists=self._none)

    @staticmethod
    def _none(name: str, qualifier: str | None) -> object:
        raise ResourceNotFoundException(f"Function not found: {name}")


def test_a_failure_whose_function_is_missing_is_a_dead_letter_that_says_so_and_the_handler_runs_once(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with Post(tmp_path, stores=NoFunctions, on_failure=NEXT, maximum_retry_attempts=0) as post:
            post.dispatcher.outcomes = [FAILED]
            await post.accept()
            await post.settled(dead=1)
            (letter,) = await post.dead_letters.page("f")
            assert (letter.condition, letter.attempts) == ("RetriesExhausted", 1)
            assert "Function not found: next" in letter.error
            assert len(post.dispatcher.got) == 1
            assert not [line for line in post.told if "inside thawd" in line]

    claim(work)


@pytest.mark.parametrize("outcome", [FAILED, Result(b"1")])
def test_a_delivery_to_a_function_is_counted_once(tmp_path: Path, outcome: Result) -> None:
    async def work() -> None:
        options = {"on_success": NEXT, "on_failure": NEXT, "maximum_retry_attempts": 0}
        async with Post(tmp_path, stores=Scripted, **options) as post:
            post.dispatcher.outcomes = [outcome]
            await post.accept()
            await post.settled(dead=int(outcome is FAILED))
            deliveries = post.stores._context.metrics.function("f").deliveries
            assert deliveries == {("function", DeliveryOutcome.DELIVERED): 1}

    claim(work)


def test_a_success_that_a_function_cannot_be_told_of_is_given_up_and_told_as_such(tmp_path: Path) -> None:
    async def work() -> None:
        async with Post(tmp_path, stores=NoFunctions, on_success=NEXT, on_failure=HOOK) as post:
            await post.accept()
            await post.settled(dead=1)
            (letter,) = await post.dead_letters.page("f")
            assert letter.condition == "DestinationRefused"
            assert "Function not found: next" in letter.error
            (made,) = post.stores.taken
            assert b'"condition":"DestinationRefused"' in made.body
            assert "next" not in await post.queue.depth()

    claim(work)


def test_what_is_left_of_an_outcome_keeps_why_the_rest_did_not_get_there() -> None:
    made = [
        Delivery(destination=to, function="f", request_id="1", key="k", body=b"{}", success=False)
        for to in (HOOK, QUEUE)
    ]
    first = Outcome(made[0], DeadLetterCause("broken", "RetriesExhausted"), (made[1],))
    left = first.after("A refused it")
    assert left is not None
    assert (left.delivery, left.cause) == (made[1], DeadLetterCause("broken; and A refused it", "RetriesExhausted"))
    assert left.after("B refused it") is None
    assert left.cause_after("B refused it") == DeadLetterCause(
        "broken; and A refused it; and B refused it", "RetriesExhausted"
    )


def test_while_the_state_file_takes_nothing_outcomes_are_delivered_seldom_and_that_is_told_once(tmp_path: Path) -> None:
    async def before() -> None:
        async with Post(tmp_path, stores=Away, on_success=HOOK) as post:
            for number in range(30):
                await post.accept(request_id=f"id-{number}")
            await post.settled(delivering=30)

    async def after() -> None:
        post = Post(tmp_path, stores=Scripted, on_success=HOOK)
        full, tried, done = True, 0, post.queue.done

        async def fails(ids: Any, **rest: Any) -> None:
            nonlocal tried, asked
            tried += 1
            if full:
                await until(lambda: tried >= AT_ONCE)
                asked = 0 if tried == AT_ONCE else asked
                raise StoreFullError("the disk is full")
            await done(ids, **rest)

        asked, next_due = 0, post.outcomes._outbox.next_due

        async def counted(**rest: Any) -> float | None:
            nonlocal asked
            asked += 1
            return await next_due(**rest)

        post.queue.done = fails  # type: ignore[method-assign]
        post.outcomes._outbox.next_due = counted  # type: ignore[method-assign]
        async with post:
            await until(lambda: tried == AT_ONCE + 3)
            assert post.outcomes.in_delivery == 1
            assert asked <= 4, "what is due and may not be tried costs nothing"
            assert len([line for line in post.told if "the disk is full" in line]) == 1
            full = False
            await post.settled()
            assert {made.request_id for made in post.stores.taken} == {f"id-{number}" for number in range(30)}

    claim(before)
    claim(after)
