"""Records of streams: which of a batch a handler's answer names as failed, and what a discarded batch is called.

Source: AWS Lambda developer guide, "Implementing partial batch responses" (successes and failures).
"""

from __future__ import annotations

import json

import pytest

from thawd.sources.streams.lambda_event import StreamRecord, batch_info, event, first_failure, object_key, time_text


def record(number: int, *, at: float = 1_657_720_081.5) -> StreamRecord:
    return StreamRecord(str(number), "key", f"identity{number}", at, json.dumps({"number": number}).encode())


RECORDS = [record(number) for number in range(1, 4)]


@pytest.mark.parametrize(
    "answer",
    ["", "null", '""', "[]", "{}", '{"other": 1}', '{"batchItemFailures": []}', '{"batchItemFailures": null}'],
)
def test_answers_that_mean_success(answer: str) -> None:
    assert first_failure(answer.encode(), RECORDS) is None


@pytest.mark.parametrize("failures", [[""], [None], [4], ["unknown"], ["3", "unknown"], ["2", ""]], ids=json.dumps)
def test_an_answer_that_names_no_record_of_the_batch_fails_all_of_it(failures: list[object]) -> None:
    answer = {"batchItemFailures": [{"itemIdentifier": one} for one in failures]}
    assert first_failure(json.dumps(answer).encode(), RECORDS) == 0


@pytest.mark.parametrize(
    "answer",
    [
        '{"batchItemFailures": [{"foo": "1"}]}',
        '{"batchItemFailures": [3]}',
        '{"batchItemFailures": "1"}',
        '"text"',
        "1{",
    ],
)
def test_an_answer_of_another_form_fails_the_whole_batch(answer: str) -> None:
    assert first_failure(answer.encode(), RECORDS) == 0


def test_the_first_of_the_failures_counts() -> None:
    answer = b'{"batchItemFailures": [{"itemIdentifier": "3"}, {"itemIdentifier": "2"}]}'
    assert first_failure(answer, RECORDS) == 1


def test_an_event_contains_its_records_in_order() -> None:
    assert json.loads(event(RECORDS)) == {"Records": [{"number": number} for number in (1, 2, 3)]}


def test_a_discarded_batch_is_described_as_the_service_of_the_stream_does() -> None:
    kinesis = batch_info(RECORDS, service="kinesis", shard="shard", arn="arn")["KinesisBatchInfo"]
    dynamodb = batch_info(RECORDS, service="dynamodb", shard="shard", arn="arn")["DDBStreamBatchInfo"]
    assert kinesis["approximateArrivalOfFirstRecord"] == "2022-07-13T13:48:01.500Z"
    assert dynamodb["approximateArrivalOfFirstRecord"] == "2022-07-13T13:48:01Z"
    assert (kinesis["startSequenceNumber"], kinesis["endSequenceNumber"], kinesis["batchSize"]) == ("1", "3", 3)


def test_times_and_keys_of_objects_have_awss_form() -> None:
    assert time_text(0) == "1970-01-01T00:00:00.000Z"
    assert object_key("uuid", "shardId-1", at=0, unique="x") == (
        "aws/lambda/uuid/shardId-1/1970/01/01/1970-01-01T00.00.00-x"
    )
