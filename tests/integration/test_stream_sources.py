"""Kinesis and DynamoDB streams that invoke functions: order, filters, failures, halves, resharding, kills, restarts.

Source: AWS Lambda developer guide, "Using Lambda with Kinesis", "Using Lambda with DynamoDB".
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from .conftest import Project, Running, eventually
from .emulated import EmulatedAws
from .queues import ENVIRON

HANDLER = """
import base64, json, time
import thawd

def texts(event):
    for record in event["Records"]:
        if "kinesis" in record:
            yield record["kinesis"]["sequenceNumber"], base64.b64decode(record["kinesis"]["data"]).decode()
        else:
            yield record["dynamodb"]["SequenceNumber"], record["dynamodb"]["Keys"]["id"]["S"]

def handler(event, context):
    told = list(texts(event))
    thawd.bucket("seen").write(f"{time.time_ns()}-{context.aws_request_id}.json", json.dumps(event).encode())
    if any("bad" in text for _, text in told):
        raise ValueError("as asked")
    return {"batchItemFailures": [{"itemIdentifier": number} for number, text in told if "partial" in text]}
"""
CONFIG = """
[functions.f]
handler = "app.handler"
[buckets.seen]
"""
# How often the server is killed; `make endurance` sets 20.
KILLS = int(os.environ.get("THAWD_KILLS", "2"))
_names = itertools.count(1)


class Streams:
    """One server that reads streams, and what its function was passed."""

    def __init__(self, project: Project, aws: EmulatedAws) -> None:
        self.project = project
        self.aws = aws
        self.kinesis, self.dynamodb = aws.client("kinesis"), aws.client("dynamodb")
        self.running: Running

    def environ(self) -> dict[str, str]:
        return {**ENVIRON, "AWS_ENDPOINT_URL": self.aws.url}

    def stream(self, shards: int = 1) -> str:
        """Make a Kinesis stream and return its ARN."""
        name = f"stream{next(_names)}"
        self.kinesis.create_stream(StreamName=name, ShardCount=shards)
        return str(self.kinesis.describe_stream(StreamName=name)["StreamDescription"]["StreamARN"])

    def put(self, arn: str, *texts: str, key: str = "k") -> list[str]:
        """Write records and return their sequence numbers."""
        return [
            self.kinesis.put_record(StreamARN=arn, Data=text.encode(), PartitionKey=key)["SequenceNumber"]
            for text in texts
        ]

    def table(self) -> tuple[str, str]:
        """Make a table with a stream; return its name and the stream's ARN."""
        name = f"table{next(_names)}"
        made = self.dynamodb.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        )
        return name, made["TableDescription"]["LatestStreamArn"]

    def map(self, arn: str, **given: Any) -> str:
        """Make a mapping, wait until it is enabled, and return its UUID."""
        client = self.running.client()
        parameters = {"FunctionName": "f", "EventSourceArn": arn, "StartingPosition": "TRIM_HORIZON", **given}
        uuid = str(client.create_event_source_mapping(**parameters)["UUID"])
        self.until(uuid, "Enabled")
        return uuid

    def until(self, uuid: str, state: str) -> None:
        client = self.running.client()
        eventually(lambda: client.get_event_source_mapping(UUID=uuid)["State"] == state, what=state)

    def batches(self) -> list[list[str]]:
        """The texts or keys of each invocation's records, in the order of the invocations."""
        return [[text_of(record) for record in event["Records"]] for event in self.events()]

    def events(self) -> list[dict[str, Any]]:
        folder = self.project.root / "seen"
        return [json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))]

    def texts(self) -> list[str]:
        return [text for batch in self.batches() for text in batch]

    def until_seen(self, *texts: str) -> None:
        eventually(lambda: set(texts) <= set(self.texts()), what=f"records {texts}")


def text_of(record: dict[str, Any]) -> str:
    if "kinesis" in record:
        return base64.b64decode(record["kinesis"]["data"]).decode()
    return str(record["dynamodb"]["Keys"]["id"]["S"])


@pytest.fixture
def streams(project: Project, aws: EmulatedAws) -> Iterator[Streams]:
    project.code(HANDLER)
    project.config(CONFIG)
    made = Streams(project, aws)
    with project.up(environ=made.environ()) as made.running:
        yield made


def test_a_mapping_of_a_kinesis_stream_has_awss_form_and_passes_awss_event(streams: Streams) -> None:
    arn = streams.stream()
    (number,) = streams.put(arn, "first", key="pk")
    client = streams.running.client()
    made = client.create_event_source_mapping(FunctionName="f", EventSourceArn=arn, StartingPosition="TRIM_HORIZON")
    uuid = made["UUID"]
    shown = {name: value for name, value in made.items() if name not in ("UUID", "LastModified", "ResponseMetadata")}
    assert shown == {
        "BatchSize": 100,
        "BisectBatchOnFunctionError": False,
        "DestinationConfig": {"OnFailure": {}},
        "EventSourceArn": arn,
        "EventSourceMappingArn": f"arn:aws:lambda:us-east-1:000000000000:event-source-mapping:{uuid}",
        "FunctionArn": "arn:aws:lambda:us-east-1:000000000000:function:f",
        "FunctionResponseTypes": [],
        "LastProcessingResult": "No records processed",
        "MaximumBatchingWindowInSeconds": 0,
        "MaximumRecordAgeInSeconds": -1,
        "MaximumRetryAttempts": -1,
        "ParallelizationFactor": 1,
        "StartingPosition": "TRIM_HORIZON",
        "State": "Creating",
        "StateTransitionReason": "User action",
        "TumblingWindowInSeconds": 0,
    }
    streams.until_seen("first")
    (record,) = streams.events()[0]["Records"]
    arrived = record["kinesis"].pop("approximateArrivalTimestamp")
    assert abs(arrived - datetime.now(UTC).timestamp()) < 60
    assert record == {
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "partitionKey": "pk",
            "sequenceNumber": number,
            "data": base64.b64encode(b"first").decode(),
        },
        "eventSource": "aws:kinesis",
        "eventVersion": "1.0",
        "eventID": f"shardId-000000000000:{number}",
        "eventName": "aws:kinesis:record",
        "invokeIdentityArn": client.get_function_configuration(FunctionName="f")["Role"],
        "awsRegion": "us-east-1",
        "eventSourceARN": arn,
    }
    eventually(
        lambda: client.get_event_source_mapping(UUID=uuid)["LastProcessingResult"] == "OK", what="the batch's result"
    )
    with pytest.raises(ClientError, match="provided mapping already exists") as twice:
        client.create_event_source_mapping(FunctionName="f", EventSourceArn=arn, StartingPosition="LATEST")
    assert twice.value.response["ResponseMetadata"]["HTTPStatusCode"] == 409


def test_changes_of_a_table_are_passed_in_order_with_their_images(streams: Streams) -> None:
    name, arn = streams.table()
    streams.map(arn)
    item = {"id": {"S": "a"}, "blob": {"B": b"foobar"}, "tags": {"SS": ["x"]}, "deep": {"M": {"n": {"N": "1"}}}}
    streams.dynamodb.put_item(TableName=name, Item=item)
    streams.dynamodb.put_item(TableName=name, Item={"id": {"S": "a"}})
    streams.dynamodb.delete_item(TableName=name, Key={"id": {"S": "a"}})

    def records() -> list[dict[str, Any]]:
        return [record for event in streams.events() for record in event["Records"]]

    eventually(lambda: len(records()) == 3, what="three changes")
    inserted, modified, removed = records()
    assert [one["eventName"] for one in (inserted, modified, removed)] == ["INSERT", "MODIFY", "REMOVE"]
    assert {key: inserted[key] for key in ("eventVersion", "eventSource", "awsRegion", "eventSourceARN")} == {
        "eventVersion": "1.1",
        "eventSource": "aws:dynamodb",
        "awsRegion": "us-east-1",
        "eventSourceARN": arn,
    }
    assert inserted["dynamodb"]["NewImage"] == {**item, "blob": {"B": base64.b64encode(b"foobar").decode()}}
    assert modified["dynamodb"]["OldImage"] == inserted["dynamodb"]["NewImage"]
    assert "NewImage" not in removed["dynamodb"]
    assert isinstance(inserted["dynamodb"]["ApproximateCreationDateTime"], float)


def test_filters_decide_what_is_passed(streams: Streams) -> None:
    kinesis = streams.stream()
    patterns = [{"Pattern": '{"data": {"kind": ["wanted"]}}'}, {"Pattern": '{"partitionKey": ["special"]}'}]
    streams.map(kinesis, FilterCriteria={"Filters": patterns})
    streams.put(kinesis, '{"kind": "other"}', "no json", '{"kind": "wanted"}')
    streams.put(kinesis, "special one", key="special")
    streams.until_seen('{"kind": "wanted"}', "special one")
    assert len(streams.texts()) == 2
    name, table = streams.table()
    refused = {"Filters": [{"Pattern": "no json"}]}
    with pytest.raises(ClientError, match=r"Invalid filter pattern definition\."):
        streams.map(table, FilterCriteria=refused)
    streams.map(table, FilterCriteria={"Filters": [{"Pattern": '{"eventName": ["REMOVE"]}'}]})
    streams.dynamodb.put_item(TableName=name, Item={"id": {"S": "gone"}})
    streams.dynamodb.delete_item(TableName=name, Key={"id": {"S": "gone"}})
    streams.until_seen("gone")
    assert streams.events()[-1]["Records"][0]["eventName"] == "REMOVE"


def test_a_batch_that_fails_is_tried_again_then_described_to_the_destination(streams: Streams) -> None:
    arn, queue = streams.stream(), streams.aws.queue(f"failed{next(_names)}")
    numbers = streams.put(arn, "fine", "bad one", "later")
    streams.map(
        arn,
        BatchSize=10,
        MaximumRetryAttempts=1,
        BisectBatchOnFunctionError=True,
        DestinationConfig={"OnFailure": {"Destination": queue}},
    )
    streams.until_seen("later")
    eventually(lambda: ["later"] in streams.batches(), what="the rest of the batch")
    # The whole, its first half, its second half, whose parts are tried alone: the bad record twice.
    assert streams.batches() == [["fine", "bad one", "later"], ["fine"], ["bad one", "later"]] + 2 * [["bad one"]] + [
        ["later"]
    ]
    (message,) = streams.aws.messages(queue)
    told = json.loads(message["Body"])
    info = told.pop("KinesisBatchInfo")
    assert told.pop("timestamp").endswith("Z")
    assert told["requestContext"].pop("requestId")
    assert told == {
        "requestContext": {
            "functionArn": "arn:aws:lambda:us-east-1:000000000000:function:f",
            "condition": "RetryAttemptsExhausted",
            "approximateInvokeCount": 2,
        },
        "responseContext": {"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"},
        "version": "1.0",
    }
    assert {name: info[name] for name in ("shardId", "startSequenceNumber", "endSequenceNumber", "batchSize")} == {
        "shardId": "shardId-000000000000",
        "startSequenceNumber": numbers[1],
        "endSequenceNumber": numbers[1],
        "batchSize": 1,
    }


def test_a_handler_that_names_a_failure_gets_the_rest_again(streams: Streams) -> None:
    arn = streams.stream()
    streams.put(arn, "one", "partial", "three")
    streams.map(arn, BatchSize=3, MaximumRetryAttempts=1, FunctionResponseTypes=["ReportBatchItemFailures"])
    streams.put(arn, "four")
    streams.until_seen("four")
    assert streams.batches() == [["one", "partial", "three"], ["partial", "three"], ["four"]]
    streams.running.until_said("discarded 2 records of shardId-000000000000")


def test_latest_passes_only_what_comes_later_even_after_a_restart(project: Project, aws: EmulatedAws) -> None:
    project.code(HANDLER)
    project.config(CONFIG)
    streams = Streams(project, aws)
    arn, (name, table) = streams.stream(), streams.table()
    streams.put(arn, "before")
    streams.dynamodb.put_item(TableName=name, Item={"id": {"S": "before too"}})
    with project.up(environ=streams.environ()) as streams.running:
        streams.map(arn, StartingPosition="LATEST")
        streams.map(table, StartingPosition="LATEST")
        eventually(lambda: positions(project) == 2, what="the beginnings of both")
    streams.put(arn, "while it was off")
    with project.up(environ=streams.environ()) as streams.running:
        streams.put(arn, "now")
        streams.dynamodb.put_item(TableName=name, Item={"id": {"S": "now too"}})
        streams.until_seen("while it was off", "now", "now too")
    assert "before" not in streams.texts()


def positions(project: Project) -> int:
    """How many shards have a stored position."""
    with sqlite3.connect(project.data / "thawd.db") as db:
        (count,) = db.execute("SELECT count(*) FROM stream_positions").fetchone()
    return int(count)


@pytest.mark.timeout(120 + 20 * KILLS)
def test_a_server_killed_again_and_again_passes_everything_in_order(project: Project, aws: EmulatedAws) -> None:
    project.code(HANDLER)
    project.config(CONFIG)
    streams = Streams(project, aws)
    arn, (name, table) = streams.stream(2), streams.table()
    with project.up(environ=streams.environ()) as streams.running:
        streams.map(arn, BatchSize=2, ParallelizationFactor=3)
        streams.map(table, BatchSize=2)
    keys, each = ("a", "b", "c"), 20 * KILLS
    written: list[str] = []
    for first in range(0, each, 20):
        with project.up(environ=streams.environ()) as streams.running:
            streams.until_seen(*written)
            for number in range(first, first + 20):
                for key in keys:
                    streams.put(arn, f"{key}{number}", key=key)
                streams.dynamodb.put_item(TableName=name, Item={"id": {"S": f"row{number}"}})
                written += [f"{key}{number}" for key in (*keys, "row")]
            streams.running.stop(number=signal.SIGKILL)
            late = len(written) - len(set(streams.texts()))
            print(f"killed with {late} of {len(written)} records not yet passed on")
    with project.up(environ=streams.environ()) as streams.running:
        streams.until_seen(*written)
    told = streams.texts()
    for key in (*keys, "row"):
        once = list(dict.fromkeys(int(text[len(key) :]) for text in told if text.startswith(key)))
        assert once == list(range(each)), key
    print(f"{KILLS} kills, {len(written)} records, {len(told) - len(written)} passed on twice")


def test_a_shard_that_was_split_is_read_before_its_children(streams: Streams) -> None:
    arn = streams.stream()
    streams.put(arn, *(f"before{number}" for number in range(5)))
    shard = streams.kinesis.list_shards(StreamARN=arn)["Shards"][0]
    streams.kinesis.split_shard(StreamARN=arn, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(2**127))
    streams.put(arn, *(f"after{number}" for number in range(5)))
    streams.map(arn, BatchSize=1)
    streams.until_seen("after4")
    assert streams.texts() == [f"before{number}" for number in range(5)] + [f"after{number}" for number in range(5)]


def test_what_is_not_there_or_not_supported_is_refused(streams: Streams) -> None:
    client = streams.running.client()
    absent = "arn:aws:kinesis:us-east-1:123456789012:stream/absent"

    def refused(arn: str, **given: Any) -> str:
        with pytest.raises(ClientError) as error:
            client.create_event_source_mapping(FunctionName="f", EventSourceArn=arn, **given)
        assert error.value.response["Error"]["Code"] == "InvalidParameterValueException"
        return str(error.value.response["Error"]["Message"])

    assert refused(absent, StartingPosition="LATEST") == f"Stream not found: {absent}"
    arn, (_, table) = streams.stream(), streams.table()
    gone = f"{table}0"
    assert refused(gone, StartingPosition="LATEST") == f"Stream not found: {gone}"
    assert "Value null at 'startingPosition'" in refused(arn)
    assert refused(table, StartingPosition="AT_TIMESTAMP", StartingPositionTimestamp=1) == (
        f"Unsupported starting position for arn type: {table}"
    )
    assert "ScalingConfig" in refused(arn, StartingPosition="LATEST", ScalingConfig={"MaximumConcurrency": 2})
    assert "at least 60 seconds" in refused(arn, StartingPosition="LATEST", MaximumRecordAgeInSeconds=30)
    queue = "arn:aws:sqs:us-east-1:123456789012:absent"
    assert refused(queue).startswith(
        "Error occurred while ReceiveMessage. SQS Error Code: AWS.SimpleQueueService.NonEx"
    )


def test_a_stream_made_anew_under_the_same_name_is_read_from_its_start(streams: Streams) -> None:
    arn = streams.stream()
    streams.put(arn, "old1", "old2")
    uuid = streams.map(arn)
    streams.until_seen("old2")
    client = streams.running.client()
    client.update_event_source_mapping(UUID=uuid, Enabled=False)
    streams.until(uuid, "Disabled")
    name = arn.rpartition("/")[2]
    streams.kinesis.delete_stream(StreamName=name)
    streams.kinesis.create_stream(StreamName=name, ShardCount=1)
    streams.put(arn, "new1", "new2", "new3")
    client.update_event_source_mapping(UUID=uuid, Enabled=True)
    streams.until_seen("new1", "new2", "new3")
    streams.running.until_said("was made again")
    client.delete_event_source_mapping(UUID=uuid)
    eventually(lambda: not client.list_event_source_mappings()["EventSourceMappings"], what="the deletion")
    assert positions(streams.project) == 0
