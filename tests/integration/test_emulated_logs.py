"""With --aws, log groups of stacks are thawd's, and subscription filters deliver to Kinesis streams of the emulator."""

from __future__ import annotations

import gzip
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import client_of
from tests.integration.conftest import Project, Running, eventually
from tests.integration.stack_operations import stack_status

TEMPLATE: dict[str, Any] = {
    "Resources": {
        "Group": {
            "Type": "AWS::Logs::LogGroup",
            "Properties": {"LogGroupName": "/stack/logs", "RetentionInDays": 7, "Tags": [{"Key": "a", "Value": "b"}]},
        },
        "Named": {"Type": "AWS::Logs::LogGroup", "Properties": {}},
        "Stream": {
            "Type": "AWS::Logs::LogStream",
            "Properties": {"LogGroupName": {"Ref": "Group"}, "LogStreamName": "s"},
        },
        "Filter": {
            "Type": "AWS::Logs::SubscriptionFilter",
            "Properties": {
                "LogGroupName": {"Ref": "Group"},
                "FilterPattern": "",
                "DestinationArn": "arn:aws:kinesis:us-east-1:000000000000:stream/sink",
                "RoleArn": "arn:aws:iam::000000000000:role/r",
            },
        },
        "Metric": {
            "Type": "AWS::Logs::MetricFilter",
            "Properties": {
                "LogGroupName": {"Ref": "Group"},
                "FilterPattern": "ERROR",
                "MetricTransformations": [
                    {"MetricName": "errors", "MetricNamespace": "stack", "MetricValue": "1", "DefaultValue": "0"}
                ],
            },
        },
    },
    "Outputs": {"Arn": {"Value": {"Fn::GetAtt": ["Group", "Arn"]}}, "Name": {"Value": {"Ref": "Named"}}},
}


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder))
        project.code("def handler(event, context):\n    return event\n")
        project.config('[functions.f]\nhandler = "app.handler"\n')
        with project.up("--aws") as server:
            yield server


def test_a_stacks_groups_and_filters_are_thawds_and_end_with_the_stack(running: Running) -> None:
    kinesis, logs = client_of(running.url, "kinesis"), client_of(running.url, "logs")
    cloudformation = client_of(running.url, "cloudformation")
    kinesis.create_stream(StreamName="sink", ShardCount=1)
    kinesis.get_waiter("stream_exists").wait(StreamName="sink", WaiterConfig={"Delay": 1})
    cloudformation.create_stack(StackName="s", TemplateBody=json.dumps(TEMPLATE))
    cloudformation.get_waiter("stack_create_complete").wait(StackName="s", WaiterConfig={"Delay": 1})
    [stack] = cloudformation.describe_stacks(StackName="s")["Stacks"]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
    [group] = logs.describe_log_groups(logGroupNamePrefix="/stack/logs")["logGroups"]
    assert (group["retentionInDays"], group["metricFilterCount"], group["arn"]) == (7, 1, outputs["Arn"])
    assert logs.list_tags_log_group(logGroupName="/stack/logs")["tags"] == {"a": "b"}
    assert logs.describe_log_groups(logGroupNamePrefix=outputs["Name"])["logGroups"]

    event = {"timestamp": int(time.time() * 1000), "message": "an ERROR"}
    logs.put_log_events(logGroupName="/stack/logs", logStreamName="s", logEvents=[event])
    [shard] = kinesis.list_shards(StreamName="sink")["Shards"]
    iterator = kinesis.get_shard_iterator(
        StreamName="sink", ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    [record] = eventually(lambda: kinesis.get_records(ShardIterator=iterator)["Records"], what="the record")
    document = json.loads(gzip.decompress(record["Data"]))
    assert [each["message"] for each in document["logEvents"]] == ["an ERROR"]
    assert (document["logGroup"], document["logStream"]) == ("/stack/logs", "s")

    changed = json.loads(json.dumps(TEMPLATE))
    changed["Resources"]["Group"]["Properties"]["RetentionInDays"] = 14
    cloudformation.update_stack(StackName="s", TemplateBody=json.dumps(changed))
    eventually(
        lambda: logs.describe_log_groups(logGroupNamePrefix="/stack")["logGroups"][0]["retentionInDays"] == 14,
        what="the update",
    )

    # IteratorAge: a function reads the stream.
    lambda_client = client_of(running.url, "lambda")
    lambda_client.create_event_source_mapping(
        FunctionName="f",
        EventSourceArn="arn:aws:kinesis:us-east-1:000000000000:stream/sink",
        StartingPosition="TRIM_HORIZON",
    )
    cloudwatch = client_of(running.url, "cloudwatch")
    asked = {"Namespace": "AWS/Lambda", "MetricName": "IteratorAge"}
    eventually(lambda: cloudwatch.list_metrics(**asked)["Metrics"], what="the age of the stream's record")
    assert stack_status(cloudformation, "s") == "UPDATE_COMPLETE"  # the clean-up of the update has ended, too
    cloudformation.delete_stack(StackName="s")
    eventually(
        lambda: not logs.describe_log_groups(logGroupNamePrefix="/stack")["logGroups"], what="the stack's deletion"
    )


def test_operations_on_alarms_go_to_the_emulator_and_metrics_are_thawds(running: Running) -> None:
    cloudwatch = client_of(running.url, "cloudwatch")
    cloudwatch.put_metric_alarm(
        AlarmName="a",
        MetricName="Errors",
        Namespace="AWS/Lambda",
        Statistic="Sum",
        Period=60,
        EvaluationPeriods=1,
        Threshold=1.0,
        ComparisonOperator="GreaterThanThreshold",
    )
    assert [alarm["AlarmName"] for alarm in cloudwatch.describe_alarms()["MetricAlarms"]] == ["a"]
    running.invoke("f", 1)
    found = cloudwatch.list_metrics(Namespace="AWS/Lambda", MetricName="Invocations")["Metrics"]
    assert {"Name": "FunctionName", "Value": "f"} in [each for metric in found for each in metric["Dimensions"]]


def test_resource_policies_are_the_emulators(running: Running) -> None:
    logs = client_of(running.url, "logs")
    policy = {"Version": "2012-10-17", "Statement": []}
    logs.put_resource_policy(policyName="events", policyDocument=json.dumps(policy))
    (found,) = logs.describe_resource_policies()["resourcePolicies"]
    assert (found["policyName"], json.loads(found["policyDocument"])) == ("events", policy)
    logs.delete_resource_policy(policyName="events")
    assert logs.describe_resource_policies()["resourcePolicies"] == []
