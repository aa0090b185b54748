"""Tumbling windows of streams: each window's records reach its state, once it is over, also after a kill.

Source: AWS Lambda developer guide, "Implementing stateful Kinesis Data Streams processing in Lambda".
"""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from .conftest import Project, Running, eventually
from .emulated import EmulatedAws
from .queues import ENVIRON

HANDLER = """
import base64, json, time
import thawd

def handler(event, context):
    thawd.bucket("seen").write(f"{time.time_ns()}-{context.aws_request_id}.json", json.dumps(event).encode())
    texts = [base64.b64decode(record["kinesis"]["data"]).decode() for record in event["Records"]]
    if "large" in texts:
        return {"state": {"texts": [], "more": "x" * 1_100_000}}
    if "stateless" in texts:
        return None
    if not event["isFinalInvokeForWindow"]:
        return {"state": {"texts": event["state"].get("texts", []) + texts}}
"""
CONFIG = """
[functions.f]
handler = "app.handler"
[buckets.seen]
"""
_names = itertools.count(1)


class Windows:
    """A server whose function builds up states, and what the function was passed."""

    def __init__(self, project: Project, aws: EmulatedAws) -> None:
        project.code(HANDLER)
        project.config(CONFIG)
        self.project = project
        self.aws = aws
        self.kinesis = aws.client("kinesis")
        self.environ = {**ENVIRON, "AWS_ENDPOINT_URL": aws.url}
        self.running: Running

    def stream(self) -> str:
        name = f"windows{next(_names)}"
        self.kinesis.create_stream(StreamName=name, ShardCount=1)
        return str(self.kinesis.describe_stream(StreamName=name)["StreamDescription"]["StreamARN"])

    def put(self, arn: str, *texts: str) -> None:
        for text in texts:
            self.kinesis.put_record(StreamARN=arn, Data=text.encode(), PartitionKey="k")

    def map(self, arn: str, seconds: int, **given: Any) -> None:
        parameters = {"StartingPosition": "TRIM_HORIZON", "TumblingWindowInSeconds": seconds, **given}
        self.running.client().create_event_source_mapping(FunctionName="f", EventSourceArn=arn, **parameters)

    def events(self, arn: str) -> list[dict[str, Any]]:
        events = [json.loads(path.read_bytes()) for path in sorted((self.project.root / "seen").glob("*.json"))]
        return [event for event in events if event["eventSourceARN"] == arn]

    def finals(self, arn: str) -> list[dict[str, Any]]:
        return [event for event in self.events(arn) if event["isFinalInvokeForWindow"]]

    def summed(self, arn: str) -> list[str]:
        """The texts in the states of the windows that are over."""
        return [text for event in self.finals(arn) for text in event["state"].get("texts", [])]


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory, aws: EmulatedAws) -> Iterator[Windows]:
    made = Windows(Project(tmp_path_factory.mktemp("windows")), aws)
    with made.project.up(environ=made.environ) as made.running:
        yield made


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_the_last_invocation_of_a_window_gets_what_its_invocations_have_returned(windows: Windows) -> None:
    arn = windows.stream()
    windows.map(arn, 2, BatchSize=2)
    texts = [str(number) for number in range(9)]
    windows.put(arn, *texts)
    eventually(lambda: windows.summed(arn) == texts, what="the states of all windows")
    for event in windows.events(arn):
        start, end = seconds(event["window"]["start"]), seconds(event["window"]["end"])
        assert (end - start, start % 2) == (2, 0)
        arrived = [record["kinesis"]["approximateArrivalTimestamp"] for record in event["Records"]]
        assert all(start <= at < end for at in arrived)
        assert event["shardId"].startswith("shardId-")
        assert event["isFinalInvokeForWindow"] is (not arrived)
        assert not event["isWindowTerminatedEarly"]
    starts = [event["window"]["start"] for event in windows.finals(arn)]
    assert sorted(set(starts)) == starts


def test_a_state_that_is_too_large_ends_its_window_early_and_the_next_record_begins_anew(windows: Windows) -> None:
    arn = windows.stream()
    windows.put(arn, "large", "after")
    windows.map(arn, 1, BatchSize=1)
    eventually(lambda: windows.summed(arn) == ["after"], what="the end of both windows")
    first, early, after, *_ = windows.events(arn)
    assert (early["isFinalInvokeForWindow"], early["isWindowTerminatedEarly"]) == (True, True)
    assert len(early["state"]["more"]) == 1_100_000
    assert (first["state"], after["state"]) == ({}, {})


def test_an_answer_without_a_state_is_a_failure(windows: Windows) -> None:
    arn = windows.stream()
    windows.put(arn, "stateless", "after")
    windows.map(arn, 1, BatchSize=1, MaximumRetryAttempts=1)
    eventually(lambda: windows.summed(arn) == ["after"], what="the state of the next record")
    texts = [len(event["Records"]) for event in windows.events(arn)]
    assert texts.count(1) == 3  # twice the first record, then the other one
    windows.running.until_said("discarded 1 records of shardId-000000000000")


def test_a_window_needs_one_batch_of_a_shard_at_a_time(windows: Windows) -> None:
    client = windows.running.client()
    with pytest.raises(client.exceptions.InvalidParameterValueException, match="a shard has one state"):
        windows.map(windows.stream(), 10, ParallelizationFactor=2)


def test_the_state_of_a_window_survives_a_kill(project: Project, aws: EmulatedAws) -> None:
    windows = Windows(project, aws)
    arn = windows.stream()
    with project.up(environ=windows.environ) as windows.running:
        windows.map(arn, 5, BatchSize=1)
        windows.put(arn, "0", "1", "2")
        eventually(lambda: len(windows.events(arn)) >= 3, what="three invocations")
        windows.running.process.send_signal(signal.SIGKILL)
        windows.running.process.wait()
    windows.put(arn, "3", "4")
    with project.up(environ=windows.environ) as windows.running:
        eventually(lambda: "4" in windows.summed(arn), what="the last state")
        summed = windows.summed(arn)
        # A batch whose invocation had ended, and whose state was not stored yet, comes a second time.
        assert [text for text, _ in itertools.groupby(summed)] == ["0", "1", "2", "3", "4"]
