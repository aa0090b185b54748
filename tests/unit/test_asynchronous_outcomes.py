"""Outcomes of asynchronous events: each is reported once, even if its destination refuses it or is unavailable."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.execution_fakes import claim, until
from tests.unit.invoker_post import BUCKET, FAILED, TABLE, Away, Post
from thawd.destinations.delivery import Destinations
from thawd.errors import InvalidParameterValueException
from thawd.invocation import Result
from thawd.queue import outcome_delivery
from thawd.resources import Destination

pytestmark = [pytest.mark.in_memory, pytest.mark.usefixtures("quick")]


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


@pytest.mark.parametrize("payload", [b'{"errorMessage": "\xff"}', b"[" * 100_000 + b"]" * 100_000])
@pytest.mark.parametrize("error", [None, "Unhandled"])
def test_an_answer_that_is_no_json_to_anybody_else_is_recorded_as_text_and_runs_once(
    tmp_path: Path, payload: bytes, error: str | None
) -> None:
    # Given answers that a custom runtime may give: not UTF-8, or nested too deeply
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


def test_while_a_destination_is_away_its_outcome_is_kept_and_the_handler_not_run_again(tmp_path: Path) -> None:
    async def before() -> None:
        async with Post(tmp_path, stores=Away, on_success=TABLE) as post:
            await post.accept()
            await post.settled(delivering=1)
            await until(lambda: post.stores.tries >= 3)
            assert len(post.dispatcher.got) == 1
            assert len([line for line in post.told if "cannot be delivered to table:out now" in line]) == 1

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
            assert letter.error == "table:out refused the outcome: too large"
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
