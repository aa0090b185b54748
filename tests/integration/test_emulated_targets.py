"""`thawd up --aws`: emulated SNS topics and EventBridge rules invoke functions, and other targets work beside them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.conftest import Project, Running, eventually
from tests.integration.emulated import AwsAt

CODE = """
import thawd
def handler(event, context):
    thawd.table("seen").put(context.aws_request_id, {"event": event, "arn": context.invoked_function_arn})
"""
CONFIG = """
[functions.f]
handler = "app.handler"
[tables.seen]
"""
FUNCTION = "arn:aws:lambda:us-east-1:000000000000:function:f"
ROLE = "arn:aws:iam::000000000000:role/r"
ABSENT = "arn:aws:lambda:us-east-1:000000000000:function:absent"


@pytest.fixture
def project(project: Project) -> Project:
    project.code(CODE)
    project.config(CONFIG)
    return project


@pytest.fixture
def running(project: Project) -> Iterator[Running]:
    with project.up("--aws") as served:
        yield served


def seen(project: Project, count: int) -> list[Any]:
    """The events that the function got, once there are `count`."""
    eventually(lambda: len(project.rows("seen")) >= count, what=f"{count} events")
    return [row["event"] for row in project.rows("seen").values()]


def test_a_topic_invokes_its_functions_with_snss_event_and_its_queues_get_the_message_too(
    project: Project, running: Running
) -> None:
    aws = AwsAt(running.url)
    topic, queue = aws.topic("news")
    sns = aws.client("sns")
    subscribed = [
        sns.subscribe(TopicArn=topic, Protocol="lambda", Endpoint=arn, ReturnSubscriptionArn=True)["SubscriptionArn"]
        for arn in (ABSENT, FUNCTION)
    ]
    message_id = sns.publish(
        TopicArn=topic,
        Message="hello",
        Subject="greeting",
        MessageAttributes={"kind": {"DataType": "String", "StringValue": "small"}},
    )["MessageId"]
    (event,) = seen(project, 1)
    (record,) = event["Records"]
    assert (record["EventSource"], record["EventSubscriptionArn"]) == ("aws:sns", subscribed[1])
    said = record["Sns"]
    assert (said["MessageId"], said["TopicArn"], said["Message"], said["Subject"]) == (
        message_id,
        topic,
        "hello",
        "greeting",
    )
    assert said["MessageAttributes"] == {"kind": {"Type": "String", "Value": "small"}}
    assert len(aws.messages(queue)) == 1
    running.until_said("the topic news could not invoke")
    sns.set_subscription_attributes(
        SubscriptionArn=subscribed[1], AttributeName="FilterPolicy", AttributeValue='{"kind": ["large"]}'
    )
    for kind in ("small", "large"):
        sns.publish(
            TopicArn=topic,
            Message=kind,
            MessageAttributes={"kind": {"DataType": "String", "StringValue": kind}},
        )
    events = seen(project, 2)
    assert [
        event["Records"][0]["Sns"]["Message"] for event in events if event["Records"][0]["Sns"]["Message"] != "hello"
    ] == ["large"]


def test_a_rule_invokes_its_functions_with_the_event_or_the_input_that_the_target_describes(
    project: Project, running: Running
) -> None:
    aws = AwsAt(running.url)
    events, queue = aws.client("events"), aws.queue("beside")
    events.put_rule(Name="orders", EventPattern='{"source": ["shop"]}')
    transformer = {
        "InputPathsMap": {"id": "$.detail.id", "tags": "$.detail.tags", "first": "$.detail.tags[0]"},
        "InputTemplate": '{"id": <id>, "text": "order <id> has \\"<first>\\"", "tags": <tags>, '
        '"rule": "<aws.events.rule-name>"}',
    }
    targets = [
        {"Id": "whole", "Arn": FUNCTION},
        {"Id": "constant", "Arn": FUNCTION, "Input": '{"constant": [1]}'},
        {"Id": "path", "Arn": FUNCTION, "InputPath": "$.detail"},
        {"Id": "made", "Arn": FUNCTION, "InputTransformer": transformer},
        {"Id": "no JSON", "Arn": FUNCTION, "InputTransformer": {"InputTemplate": "{<nothing>}"}},
        {"Id": "absent", "Arn": ABSENT},
        {"Id": "queue", "Arn": queue},
    ]
    events.put_targets(Rule="orders", Targets=targets)
    detail = {"id": 7, "tags": ['a "b"', "c"]}
    entry = {"Source": "shop", "DetailType": "order", "Detail": json.dumps(detail)}
    assert events.put_events(Entries=[entry, {**entry, "Source": "elsewhere"}])["FailedEntryCount"] == 0
    got = seen(project, 4)
    assert len(got) == 4
    (whole,) = [event for event in got if "detail-type" in event]
    assert (whole["source"], whole["detail-type"], whole["detail"]) == ("shop", "order", detail)
    assert whole["time"].endswith("Z")
    assert {"constant": [1]} in got
    assert detail in got
    assert {"id": 7, "text": 'order 7 has "a "b""', "tags": detail["tags"], "rule": "orders"} in got
    assert len(aws.messages(queue)) == 1
    running.until_said("the rule orders could not invoke")


def test_a_rule_delivers_to_topics_machines_streams_and_buses_and_one_that_fails_keeps_none_from_its_event(
    project: Project, running: Running
) -> None:
    aws = AwsAt(running.url)
    events, states = aws.client("events"), aws.client("stepfunctions")
    topic, subscribed = aws.topic("ruled")
    kinesis = aws.client("kinesis")
    kinesis.create_stream(StreamName="ruled", ShardCount=1)
    stream = kinesis.describe_stream(StreamName="ruled")["StreamDescription"]["StreamARN"]
    bus = events.create_event_bus(Name="next")["EventBusArn"]
    there, lost = aws.queue("there"), aws.queue("lost")
    events.put_rule(Name="there", EventBusName="next", EventPattern='{"detail": {"n": [{"numeric": [">", 6]}]}}')
    events.put_targets(Rule="there", EventBusName="next", Targets=[{"Id": "1", "Arn": there, "InputPath": "$.detail"}])
    definition = json.dumps({"StartAt": "T", "States": {"T": {"Type": "Task", "Resource": FUNCTION, "End": True}}})
    machine = states.create_state_machine(name="ruled", definition=definition, roleArn=ROLE)["stateMachineArn"]
    arns = {"topic": topic, "machine": machine, "stream": stream, "bus": bus}
    targets: list[dict[str, Any]] = [{"Id": name, "Arn": arn} for name, arn in arns.items()]
    targets[1]["InputPath"] = "$.detail"
    dead = {"DeadLetterConfig": {"Arn": lost}}
    unknown = "arn:aws:batch:us-east-1:000000000000:job-queue/none"
    targets += [{"Id": "absent", "Arn": ABSENT, **dead}, {"Id": "unknown", "Arn": unknown}]
    events.put_rule(Name="many", EventPattern='{"source": [{"prefix": "sh"}]}')
    events.put_targets(Rule="many", Targets=targets)
    entry = {"Source": "shop", "DetailType": "order", "Detail": '{"n": 7}'}
    assert events.put_events(Entries=[entry])["FailedEntryCount"] == 0
    assert seen(project, 1) == [{"n": 7}]
    (message,) = aws.messages(subscribed)
    assert json.loads(json.loads(message["Body"])["Message"])["detail"] == {"n": 7}
    iterator = kinesis.get_shard_iterator(
        StreamName="ruled", ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    (record,) = kinesis.get_records(ShardIterator=iterator)["Records"]
    assert json.loads(record["Data"])["source"] == "shop"
    (message,) = aws.messages(there)
    assert json.loads(message["Body"]) == {"n": 7}
    (message,) = aws.messages(lost)
    assert json.loads(message["Body"])["detail"] == {"n": 7}
    told = {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
    assert (told["TARGET_ARN"], told["ERROR_CODE"]) == (ABSENT, "ResourceNotFoundException")
    running.until_said("has no targets of the service batch")


def test_schedules_invoke_functions_and_call_any_operation(project: Project, running: Running) -> None:
    aws = AwsAt(running.url)
    scheduler, url = aws.client("scheduler"), f"{running.url}/000000000000/called"
    queue = aws.queue("called")
    now = f"at({time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime())})"
    settings = {"ScheduleExpression": now, "FlexibleTimeWindow": {"Mode": "OFF"}, "ActionAfterCompletion": "DELETE"}
    role = {"RoleArn": ROLE}
    call = {"Arn": "arn:aws:scheduler:::aws-sdk:sqs:sendMessage"}
    call["Input"] = json.dumps({"QueueUrl": url, "MessageBody": "<aws.scheduler.schedule-arn>"})
    scheduler.create_schedule(Name="function", Target={"Arn": FUNCTION, "Input": '{"n": 1}', **role}, **settings)
    scheduler.create_schedule(Name="any", Target={**call, **role}, **settings)
    assert seen(project, 1) == [{"n": 1}]
    eventually(lambda: not scheduler.list_schedules()["Schedules"], what="the end of both schedules")
    (message,) = aws.messages(queue)
    assert message["Body"] == "arn:aws:scheduler:us-east-1:000000000000:schedule/default/any"
    for wrong in ({"ScheduleExpression": "rate(1 fortnight)"}, {"ScheduleExpressionTimezone": "Mars/Olympus"}):
        with pytest.raises(scheduler.exceptions.ValidationException):
            scheduler.create_schedule(Name="wrong", Target={"Arn": FUNCTION, **role}, **{**settings, **wrong})
