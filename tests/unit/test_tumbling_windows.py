"""`thawd.sources.streams.windows`: which records belong together, Lambda's event, and the state between invocations."""

from __future__ import annotations

import json

import pytest

from thawd.sources.streams.lambda_event import StreamRecord
from thawd.sources.streams.windows import MAX_STATE_BYTES, Window, WindowError

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/s"


def record(number: int, arrived_at: float) -> StreamRecord:
    return StreamRecord(str(number), "k", "", arrived_at, b'{"number": %d}' % number)


def window(length_s: int = 60, *, start: int | None = None, state: str = "") -> Window:
    return Window(length_s, shard="shard-1", arn=ARN, start=start, state=state)


def test_an_event_has_awss_fields() -> None:
    made = window(120)
    made.open_for(record(1, 1607497475.3))
    assert json.loads(made.event([record(1, 1607497475.3)])) == {
        "Records": [{"number": 1}],
        "window": {"start": "2020-12-09T07:04:00Z", "end": "2020-12-09T07:06:00Z"},
        "state": {},
        "shardId": "shard-1",
        "eventSourceARN": ARN,
        "isFinalInvokeForWindow": False,
        "isWindowTerminatedEarly": False,
    }


def test_the_state_of_an_answer_is_passed_on_until_the_window_closes() -> None:
    made = window()
    made.open_for(record(1, 61))
    made.take(b'{"state": {"sum": 1.50}, "batchItemFailures": []}')
    last = json.loads(made.event([]))
    assert (last["Records"], last["state"]) == ([], {"sum": 1.5})
    assert last["isFinalInvokeForWindow"]
    assert not last["isWindowTerminatedEarly"]
    assert (made.start, made.state) == (60, '{"sum": 1.50}')
    again = window(start=made.start, state=made.state)
    assert again.event([]) == made.event([])
    made.close()
    assert (made.start, made.state) == (None, "")
    made.open_for(record(2, 130))
    assert json.loads(made.event([record(2, 130)]))["state"] == {}


def test_a_record_belongs_to_the_window_in_which_it_was_written_and_a_late_one_to_the_open_one() -> None:
    made = window()
    assert made.includes(record(1, 5))
    made.open_for(record(1, 60))
    assert [made.includes(record(1, at)) for at in (59.0, 60.0, 119.9, 120.0)] == [True, True, True, False]


@pytest.mark.parametrize("answer", ["null", "{}", "[]", '"state"', '{"state": null}', "", "{", '{"State": {}}'])
def test_an_answer_without_a_state_is_a_failure(answer: str) -> None:
    made = window()
    made.open_for(record(1, 1))
    with pytest.raises(WindowError, match="contains no state"):
        made.take(answer.encode())


def test_a_state_of_more_than_a_mebibyte_ends_the_window_early() -> None:
    made = window()
    made.open_for(record(1, 1))
    made.take(json.dumps({"state": "x" * (MAX_STATE_BYTES - 2)}).encode())
    assert not made.is_too_large
    made.take(json.dumps({"state": "x" * MAX_STATE_BYTES}).encode())
    assert made.is_too_large
    last = json.loads(made.event([]))
    assert (last["isFinalInvokeForWindow"], last["isWindowTerminatedEarly"]) == (True, True)
