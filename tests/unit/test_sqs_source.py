"""A running event source mapping, with a scripted dispatcher."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from thawd.control.event_source_mapping_records import SourceMapping
from thawd.errors import ResourceNotFoundException, TooManyRequestsException
from thawd.invocation import Invocation, Result
from thawd.resources import Function
from thawd.sources.progress import SourceProgress
from thawd.sources.sqs.batch import ReceivedMessage
from thawd.sources.sqs.receiver import StaysInQueue, Throttled
from thawd.sources.sqs.source import SqsPoller

ARN = "arn:aws:sqs:eu-west-1:123456789012:orders"


class Dispatcher:
    """Gives one scripted answer for each invocation.

    Attributes:
        answers: results, or errors to raise.
        invoked: the invocations it received.
    """

    def __init__(self, function: Function | None, *answers: Result | Exception) -> None:
        self.function = function
        self.answers = list(answers)
        self.invoked: list[Invocation] = []
        self.state, self.pool = "Active", object()

    def entry(self, name: str, qualifier: str | None = None) -> Any:
        if self.function is None:
            raise ResourceNotFoundException(f"Function not found: {name}")
        return SimpleNamespace(
            function=self.function, state=self.state, pool=self.pool, publish=None, reason="it does not build"
        )

    def family(self, name: str) -> Any:
        return SimpleNamespace(latest=self.entry(name))

    def most_at_once(self, name: str) -> int:
        return 7

    def refuses_loop(self, function: str, trace_id: str | None) -> bool:
        return trace_id == "of a loop"

    async def invoke(self, invocation: Invocation) -> Result:
        self.invoked.append(invocation)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def function(tmp_path: Any = "/", **changes: Any) -> Function:
    return Function(name="f", handler="a.b", code=tmp_path, **changes)


def poller(dispatcher: Dispatcher, **given: Any) -> SqsPoller:
    mapping = SourceMapping(uuid="u", source=ARN, function="f", qualifier="live", given=given)
    return SqsPoller(mapping, dispatcher, endpoint=None, progress=SourceProgress(), report=lambda _: None)  # type: ignore[arg-type]


def message(number: int) -> dict[str, Any]:
    body = json.dumps({"number": number})
    return {"MessageId": f"id{number}", "ReceiptHandle": f"h{number}", "Body": body, "MD5OfBody": "m", "Attributes": {}}


def letters(made: SqsPoller, count: int) -> list[ReceivedMessage]:
    found = []
    for number in range(count):
        content = made._open(message(number))
        assert content is not None
        found.append(ReceivedMessage(message(number), content))
    return found


def handle(made: SqsPoller, count: int = 2) -> set[str]:
    return asyncio.run(made._handle(letters(made, count)))


def test_a_batch_is_one_asynchronous_invocation_of_the_qualifier() -> None:
    dispatcher = Dispatcher(function(), Result(b"null"))
    assert handle(poller(dispatcher)) == set()
    [invocation] = dispatcher.invoked
    assert (invocation.function, invocation.qualifier, invocation.asynchronous) == ("f", "live", True)
    records = json.loads(invocation.payload)["Records"]
    assert [record["messageId"] for record in records] == ["id0", "id1"]
    assert {(record["eventSourceARN"], record["awsRegion"]) for record in records} == {(ARN, "eu-west-1")}


@pytest.mark.parametrize(
    ("types", "result", "failed", "told"),
    [
        ([], Result(b"{}", function_error="Unhandled"), {"id0", "id1"}, "PROBLEM: Function call failed"),
        ([], Result(b'{"batchItemFailures": [{"itemIdentifier": "id0"}]}'), set(), "OK"),
        (["ReportBatchItemFailures"], Result(b'{"batchItemFailures": [{"itemIdentifier": "id0"}]}'), {"id0"}, "OK"),
        (["ReportBatchItemFailures"], Result(b'"x"'), {"id0", "id1"}, "PROBLEM: Function call failed"),
        (
            ["ReportBatchItemFailures"],
            Result(b"{}", function_error="U"),
            {"id0", "id1"},
            "PROBLEM: Function call failed",
        ),
    ],
)
def test_what_failed_is_what_lambda_takes_for_failed(
    types: list[str], result: Result, failed: set[str], told: str
) -> None:
    made = poller(Dispatcher(function(), result), FunctionResponseTypes=types)
    assert handle(made) == failed
    assert made.progress.last_result == told


def test_a_throttled_batch_is_tried_again_while_its_messages_are_hidden_anyway() -> None:
    dispatcher = Dispatcher(function(), TooManyRequestsException("Rate Exceeded."), Result(b"null"))
    assert handle(poller(dispatcher)) == set()
    assert len(dispatcher.invoked) == 2
    assert dispatcher.invoked[0].request_id == dispatcher.invoked[1].request_id


def test_a_batch_that_is_throttled_for_longer_goes_back() -> None:
    dispatcher = Dispatcher(function(), TooManyRequestsException("Rate Exceeded."))
    made = poller(dispatcher)
    made.receiver.visibility_s = 0
    with pytest.raises(Throttled, match="Rate Exceeded"):
        handle(made)


@pytest.mark.parametrize(
    ("given", "most"),
    [({}, 7), ({"ScalingConfig": {"MaximumConcurrency": 3}}, 3), ({"ScalingConfig": {"MaximumConcurrency": 100}}, 7)],
)
def test_as_many_batches_run_as_the_function_has_environments(given: dict[str, Any], most: int) -> None:
    assert poller(Dispatcher(function()), **given)._room() == most


def test_a_function_that_cannot_run_is_not_polled_for() -> None:
    absent = poller(Dispatcher(None))
    assert absent._room() == 0
    assert absent.progress.last_result == "PROBLEM: Function not found: f"
    stopped = poller(Dispatcher(function(reserved_concurrency=0)))
    assert stopped._room() == 0
    assert "reserved concurrency is 0" in stopped.progress.last_result
    broken = Dispatcher(function())
    broken.state, broken.pool = "Failed", None  # type: ignore[assignment]
    failed = poller(broken)
    assert failed._room() == 0
    assert failed.progress.last_result == "PROBLEM: it does not build"


def test_a_message_of_a_loop_stays_in_the_queue() -> None:
    made = poller(Dispatcher(function()))
    with pytest.raises(StaysInQueue, match="break the loop"):
        made._open({**message(0), "Attributes": {"AWSTraceHeader": "of a loop"}})


def test_messages_that_match_no_pattern_are_not_wanted() -> None:
    made = poller(Dispatcher(function()), FilterCriteria={"Filters": [{"Pattern": '{"body": {"number": [1]}}'}]})
    assert made._open(message(0)) is None
    assert made._open(message(1)) is not None
