"""Kinesis data streams for DynamoDB in the emulator: which records a stream gets of a table's changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.dynamodb.models import dynamodb_backends
from moto.dynamodbstreams.models import dynamodbstreams_backends

from thawd.server.emulator import dynamodb_streams, kinesis_destinations

_ACCOUNT = "123456789012"  # moto's
_KEY: dict[str, Any] = {
    "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
    "BillingMode": "PAY_PER_REQUEST",
}


class _World:
    """A table and a stream."""

    def __init__(self) -> None:
        self.tables, self.streams = (
            boto3.client(name, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test")
            for name in ("dynamodb", "kinesis")
        )
        self.tables.create_table(TableName="notes", **_KEY)
        self.streams.create_stream(StreamName="changes", ShardCount=1)
        self.arn = self.streams.describe_stream(StreamName="changes")["StreamDescription"]["StreamARN"]
        self.place = {"TableName": "notes", "StreamArn": self.arn}

    def enable(self, **settings: str) -> None:
        self.tables.enable_kinesis_streaming_destination(
            **self.place, **({"EnableKinesisStreamingConfiguration": settings} if settings else {})
        )

    def put(self, **item: str) -> None:
        self.tables.put_item(TableName="notes", Item={name: {"S": value} for name, value in item.items()})

    def records(self) -> list[dict[str, Any]]:
        [shard] = self.streams.describe_stream(StreamName="changes")["StreamDescription"]["Shards"]
        iterator = self.streams.get_shard_iterator(
            StreamName="changes", ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        return [json.loads(each["Data"]) for each in self.streams.get_records(ShardIterator=iterator)["Records"]]

    def states(self) -> list[str]:
        described = self.tables.describe_kinesis_streaming_destination(TableName="notes")
        return [each["DestinationStatus"] for each in described["KinesisDataStreamDestinations"]]


@pytest.fixture
def world() -> Iterator[_World]:
    kinesis_destinations.install_operations()
    kinesis_destinations.install_records()
    kinesis_destinations.install_numbers()
    dynamodb_streams.install()
    with mock_aws():
        yield _World()


def test_each_change_of_an_item_becomes_a_record_with_the_item_before_and_after(world: _World) -> None:
    world.put(id="0", text="before the destination")
    world.enable()
    world.put(id="1", text="a")
    world.tables.update_item(
        TableName="notes",
        Key={"id": {"S": "1"}},
        UpdateExpression="SET #t = :t",
        ExpressionAttributeNames={"#t": "text"},
        ExpressionAttributeValues={":t": {"S": "b"}},
    )
    world.tables.delete_item(TableName="notes", Key={"id": {"S": "1"}})
    made, changed, gone = world.records()
    assert [each["eventName"] for each in (made, changed, gone)] == ["INSERT", "MODIFY", "REMOVE"]
    assert (made["tableName"], made["eventSource"], made["recordFormat"]) == (
        "notes",
        "aws:dynamodb",
        "application/json",
    )
    assert made["dynamodb"]["NewImage"] == {"id": {"S": "1"}, "text": {"S": "a"}}
    assert "OldImage" not in made["dynamodb"]
    assert (changed["dynamodb"]["OldImage"]["text"], changed["dynamodb"]["NewImage"]["text"]) == (
        {"S": "a"},
        {"S": "b"},
    )
    assert gone["dynamodb"]["Keys"] == {"id": {"S": "1"}}
    assert 1.6e12 < made["dynamodb"]["ApproximateCreationDateTime"] < 1e13


def test_a_write_that_changes_nothing_leaves_no_record(world: _World) -> None:
    world.enable()
    world.put(id="1", text="a")
    world.put(id="1", text="a")
    assert len(world.records()) == 1


def test_a_refused_transaction_leaves_no_record_and_a_good_one_all(world: _World) -> None:
    world.enable()
    puts = [{"Put": {"TableName": "notes", "Item": {"id": {"S": each}}}} for each in ("1", "2")]
    missing = {
        "ConditionCheck": {
            "TableName": "notes",
            "Key": {"id": {"S": "9"}},
            "ConditionExpression": "attribute_exists(id)",
        }
    }
    with pytest.raises(ClientError, match="ConditionalCheckFailed"):
        world.tables.transact_write_items(TransactItems=[*puts, missing])
    assert world.records() == []
    world.tables.transact_write_items(TransactItems=puts)
    assert [each["dynamodb"]["Keys"]["id"]["S"] for each in world.records()] == ["1", "2"]


def test_the_tables_own_stream_gets_its_records_too_and_begins_and_ends_by_itself(world: _World) -> None:
    world.enable()
    stream = {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"}
    world.tables.update_table(TableName="notes", StreamSpecification=stream)
    arn = world.tables.describe_table(TableName="notes")["Table"]["LatestStreamArn"]
    world.put(id="1", text="a")
    reader = dynamodbstreams_backends[_ACCOUNT]["us-east-1"]
    shard = dynamodb_backends[_ACCOUNT]["us-east-1"].tables["notes"].stream_shard
    iterator = reader.get_shard_iterator(arn, shard.id, "TRIM_HORIZON")
    [own] = reader.get_records(iterator.arn, 10)["Records"]
    assert "NewImage" not in own["dynamodb"]
    assert [each["eventName"] for each in world.records()] == ["INSERT"]


def test_a_disabled_destination_gets_nothing_and_is_listed(world: _World) -> None:
    world.enable()
    world.tables.disable_kinesis_streaming_destination(**world.place)
    world.put(id="1")
    assert (world.records(), world.states()) == ([], ["DISABLED"])
    with pytest.raises(ClientError, match="no active Kinesis Streaming Destination"):
        world.tables.disable_kinesis_streaming_destination(**world.place)
    world.enable(ApproximateCreationDateTimePrecision="MICROSECOND")
    world.put(id="2")
    [record] = world.records()
    assert record["dynamodb"]["ApproximateCreationDateTimePrecision"] == "MICROSECOND"
    assert record["dynamodb"]["ApproximateCreationDateTime"] > 1e15


def test_a_stream_or_table_that_does_not_exist_is_refused(world: _World) -> None:
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        world.tables.enable_kinesis_streaming_destination(TableName="notes", StreamArn=world.arn + "x")
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        world.tables.enable_kinesis_streaming_destination(TableName="other", StreamArn=world.arn)
    world.enable()
    with pytest.raises(ClientError, match="is ACTIVE"):
        world.enable()


def test_writes_go_on_when_the_stream_is_deleted(world: _World) -> None:
    world.enable()
    world.streams.delete_stream(StreamName="changes")
    world.put(id="1")
    assert world.states() == ["ENABLE_FAILED"]
