"""One batch of a stream: halves, retries, ages, throttles, stops, and destinations that cannot be reached."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from thawd.control.event_source_mapping_records import SourceMapping
from thawd.destinations.delivery import Delivery
from thawd.errors import DestinationRefused, DestinationUnavailable, TooManyRequestsException
from thawd.invocation import Invocation, Result
from thawd.sources.progress import SourceProgress
from thawd.sources.streams import batch
from thawd.sources.streams.batch import BatchRun, ShardContext, Stopped
from thawd.sources.streams.lambda_event import StreamRecord

QUEUE = "arn:aws:sqs:eu-west-1:123456789012:lost"
PARTIAL = {"FunctionResponseTypes": ["ReportBatchItemFailures"]}
FAILED = Result(b"{}", function_error="Unhandled")
Answer = Result | Exception


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_RETRY_FIRST_S", 0.0001)
    monkeypatch.setattr(batch, "_RETRY_LONGEST_S", 0.0001)


class House:
    """Gives the function's and the destination's answers, and notes what came to them.

    Attributes:
        invoked: the numbers of the records of each invocation.
        delivered: the documents that the destination took or refused.
        done: the numbers of the records that are done, in order.
        reports: lines for the operator.
        stopping: set to stop the batch.
    """

    def __init__(self, answer: Callable[[list[int]], Answer], *refusals: Exception) -> None:
        self._answer = answer
        self._refusals = list(refusals)
        self.invoked: list[list[int]] = []
        self.delivered: list[Delivery] = []
        self.done: list[int] = []
        self.reports: list[str] = []
        self.stopping = asyncio.Event()
        self.progress = SourceProgress()

    async def invoke(self, invocation: Invocation) -> Result:
        numbers = [one["number"] for one in json.loads(invocation.payload)["Records"]]
        self.invoked.append(numbers)
        answer = self._answer(numbers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def deliver(self, delivery: Delivery) -> None:
        self.delivered.append(delivery)
        if self._refusals:
            raise self._refusals.pop(0)

    async def note(self, records: Any) -> None:
        self.done += [int(one.sequence) for one in records]

    def run(self, records: list[StreamRecord], **given: Any) -> None:
        mapping = SourceMapping(
            uuid="u", source="arn:aws:kinesis:eu-west-1:123456789012:stream/s", function="f", given=given
        )
        context = ShardContext(
            mapping,
            "kinesis",
            "shard",
            self,
            self,
            self.progress,
            self.reports.append,
            self.stopping,  # type: ignore[arg-type]
        )
        asyncio.run(BatchRun(context, records, self.note).run())


def record(number: int, *, age_s: float = 0.0) -> StreamRecord:
    content = json.dumps({"number": number}).encode()
    return StreamRecord(str(number), "key", "identity", time.time() - age_s, content)


def records(count: int) -> list[StreamRecord]:
    return [record(number) for number in range(1, count + 1)]


def fails_at(bad: int) -> Callable[[list[int]], Answer]:
    return lambda numbers: FAILED if bad in numbers else Result(b"null")


def to_queue() -> dict[str, Any]:
    return {"DestinationConfig": {"OnFailure": {"Destination": QUEUE}}}


def test_a_batch_that_fails_is_split_until_the_bad_record_is_alone() -> None:
    house = House(fails_at(3))
    house.run(records(4), BisectBatchOnFunctionError=True, MaximumRetryAttempts=1)
    assert house.invoked == [[1, 2, 3, 4], [1, 2], [3, 4], [3], [3], [4]]  # a split is no retry
    assert house.done == [1, 2, 3, 4]
    assert house.reports == ["discarded 1 records of shard, 3 to 3: RetryAttemptsExhausted"]


def test_an_answer_that_names_a_record_splits_the_batch_there() -> None:
    def answer(numbers: list[int]) -> Result:
        failures = [{"itemIdentifier": str(number)} for number in numbers if number == 3 and len(house.invoked) == 1]
        return Result(json.dumps({"batchItemFailures": failures}).encode())

    house = House(answer)
    house.run(records(5), BisectBatchOnFunctionError=True, MaximumRetryAttempts=0, **PARTIAL)
    assert (house.invoked, house.done) == ([[1, 2, 3, 4, 5], [3, 4, 5]], [1, 2, 3, 4, 5])
    assert house.reports == []


def test_without_a_limit_a_batch_is_tried_until_it_succeeds() -> None:
    house = House(lambda _: FAILED if len(house.invoked) < 20 else Result(b"null"))
    house.run(records(2))
    assert (house.invoked, house.done, house.reports) == ([[1, 2]] * 20, [1, 2], [])
    assert house.progress.last_result == "OK"


def test_records_that_are_too_old_are_discarded_and_the_others_invoked() -> None:
    house = House(lambda _: Result(b"null"))
    house.run([record(1, age_s=90), record(2, age_s=70), record(3)], MaximumRecordAgeInSeconds=60, **to_queue())
    assert (house.invoked, house.done) == ([[3]], [1, 2, 3])
    [delivery] = house.delivered
    document = json.loads(delivery.body)
    assert document["requestContext"]["condition"] == "RecordAgeExceeded"
    assert "responseContext" not in document
    assert document["KinesisBatchInfo"]["batchSize"] == 2


def test_a_throttled_attempt_does_not_count_as_one() -> None:
    answers: list[Answer] = [TooManyRequestsException("Rate Exceeded."), FAILED, Result(b"null")]
    house = House(lambda _: answers.pop(0))
    house.run(records(1), MaximumRetryAttempts=1)
    assert (house.invoked, house.done, house.reports) == ([[1]] * 3, [1], [])


def test_a_destination_that_cannot_be_reached_is_tried_until_it_takes_the_description() -> None:
    house = House(lambda _: FAILED, DestinationUnavailable("it is away"), DestinationUnavailable("it is away"))
    house.run(records(2), MaximumRetryAttempts=0, **to_queue())
    assert len(house.delivered) == 3
    assert len({delivery.key for delivery in house.delivered}) == 1
    assert json.loads(house.delivered[-1].body)["requestContext"]["approximateInvokeCount"] == 1
    assert house.done == [1, 2]


def test_a_destination_that_refuses_the_description_does_not_hold_up_the_shard() -> None:
    house = House(lambda _: FAILED, DestinationRefused("it takes nothing"))
    house.run(records(2), MaximumRetryAttempts=0, **to_queue())
    [line] = house.reports
    assert "discarded 2 records of shard, 1 to 2: RetryAttemptsExhausted" in line
    assert "it takes nothing" in line
    assert house.done == [1, 2]


@pytest.mark.parametrize("when", ["before", "between attempts", "while the destination is away"])
def test_a_stop_leaves_what_is_not_done_in_the_stream(when: str) -> None:
    def answer(_: list[int]) -> Result:
        if when == "between attempts":
            house.stopping.set()
        return FAILED

    house = House(answer, *[DestinationUnavailable("it is away")] * 9)
    if when == "before":
        house.stopping.set()
    if when == "while the destination is away":
        deliver = house.deliver

        async def stopped(delivery: Delivery) -> None:
            house.stopping.set()
            await deliver(delivery)

        house.deliver = stopped  # type: ignore[method-assign]
    attempts = {"MaximumRetryAttempts": 0} if when.startswith("while") else {}
    with pytest.raises(Stopped):
        house.run(records(2), **attempts, **to_queue())
    assert house.done == []
    assert len(house.invoked) == (0 if when == "before" else 1)
