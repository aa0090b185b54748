"""`thawd up --aws`: emulated SNS topics and EventBridge rules invoke functions, and other targets work beside them."""

from __future__ import annotations

import json
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

    def rows() -> list[Any]:
        return [json.loads(line) for line in project.command("table", "seen", "--json").stdout.splitlines()]

    eventually(lambda: len(rows()) >= count, what=f"{count} events")
    return [row["event"] for row in rows()]


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
