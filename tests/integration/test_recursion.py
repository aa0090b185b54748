"""`thawd up --aws`: a function that invokes itself, directly or through a service, is stopped after 16 invocations."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.integration.conftest import Project, Running, eventually
from tests.integration.emulated import AwsAt

CODE = """
import boto3, json, os, thawd
TOPIC = "arn:aws:sns:us-east-1:000000000000:loop"
NAME = os.environ["AWS_LAMBDA_FUNCTION_NAME"]
client = boto3.client({"queue": "sqs", "topic": "sns", "objects": "s3"}.get(NAME, "lambda"))
def handler(event, context):
    name = context.function_name
    thawd.table("seen").put(context.aws_request_id, {"function": name})
    if name in ("synchronous", "allowed"):
        left = event.get("left", 40)
        if left:
            try:
                answer = client.invoke(FunctionName=name, Payload='{"left": %d}' % (left - 1))
            except client.exceptions.RecursiveInvocationException as error:
                return str(error)
            return json.load(answer["Payload"])
    elif name == "asynchronous":
        client.invoke(FunctionName=name, InvocationType="Event", Payload="{}")
    elif name == "queue":
        client.send_message(QueueUrl=client.get_queue_url(QueueName="loop")["QueueUrl"], MessageBody="again")
    elif name == "topic":
        client.publish(TopicArn=TOPIC, Message="again")
    else:
        client.put_object(Bucket="loop", Key=context.aws_request_id, Body=b"again")
"""
NAMES = ("synchronous", "allowed", "asynchronous", "queue", "topic", "objects")
CONFIG = "[tables.seen]\n" + "".join(
    f'[functions.{name}]\nhandler = "app.handler"\nmaximum_retry_attempts = 0\n' for name in NAMES
)
ARN = "arn:aws:lambda:us-east-1:000000000000:function:"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("recursion"))
    project.code(CODE)
    project.config(CONFIG)
    return project


@pytest.fixture(scope="module")
def running(project: Project) -> Iterator[Running]:
    with project.up("--aws") as served:
        yield served


def invocations(project: Project, name: str) -> int:
    lines = project.command("table", "seen", "--json").stdout.splitlines()
    return sum(json.loads(line)["function"] == name for line in lines)


def dropped(running: Running, name: str) -> int:
    return int(running.function(name)["recursive_invocations_dropped"])


def test_a_function_that_invokes_itself_by_the_sdk_gets_awss_error(project: Project, running: Running) -> None:
    client = AwsAt(running.url).client("lambda")
    answer = client.invoke(FunctionName="synchronous", Payload=b"{}")
    assert json.load(answer["Payload"]) == (
        "An error occurred (RecursiveInvocationException) when calling the Invoke operation: Lambda has detected your "
        "function being invoked in a recursive loop with other Amazon Web Services resources and stopped your "
        "function's invocation."
    )
    assert (invocations(project, "synchronous"), dropped(running, "synchronous")) == (16, 1)


def test_a_function_that_may_loop_is_not_stopped(project: Project, running: Running) -> None:
    client = AwsAt(running.url).client("lambda")
    client.put_function_recursion_config(FunctionName="allowed", RecursiveLoop="Allow")
    assert "FunctionError" not in client.invoke(FunctionName="allowed", Payload=b'{"left": 20}')
    assert invocations(project, "allowed") == 21


def test_asynchronous_loops_end_as_dead_letters(project: Project, running: Running) -> None:
    aws = AwsAt(running.url)
    topic = aws.client("sns").create_topic(Name="loop")["TopicArn"]
    aws.client("sns").subscribe(TopicArn=topic, Protocol="lambda", Endpoint=f"{ARN}topic")
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="loop")
    rule = {"LambdaFunctionArn": f"{ARN}objects", "Events": ["s3:ObjectCreated:*"]}
    s3.put_bucket_notification_configuration(
        Bucket="loop", NotificationConfiguration={"LambdaFunctionConfigurations": [rule]}
    )
    aws.client("lambda").invoke(FunctionName="asynchronous", InvocationType="Event", Payload=b"{}")
    aws.client("sns").publish(TopicArn=topic, Message="begin")
    s3.put_object(Bucket="loop", Key="begin", Body=b"")
    for name in ("asynchronous", "topic", "objects"):
        eventually(lambda name=name: running.function(name)["dead"] == 1, what=f"the end of the loop of {name}")
        assert (invocations(project, name), dropped(running, name)) == (16, 1)
    assert "RecursiveInvocation" in project.command("dead", "list").stdout


def test_the_messages_of_a_loop_go_where_the_queues_redrive_policy_says(project: Project, running: Running) -> None:
    aws = AwsAt(running.url)
    policy = {"deadLetterTargetArn": aws.queue("stopped"), "maxReceiveCount": 1}
    sqs = aws.client("sqs")
    attributes = {"RedrivePolicy": json.dumps(policy), "VisibilityTimeout": "1"}
    url = sqs.create_queue(QueueName="loop", Attributes=attributes)["QueueUrl"]
    aws.client("lambda").create_event_source_mapping(
        FunctionName="queue", EventSourceArn="arn:aws:sqs:us-east-1:000000000000:loop"
    )
    sqs.send_message(QueueUrl=url, MessageBody="begin")
    stopped = sqs.get_queue_url(QueueName="stopped")["QueueUrl"]

    def waiting() -> int:
        found = sqs.get_queue_attributes(QueueUrl=stopped, AttributeNames=["ApproximateNumberOfMessages"])
        return int(found["Attributes"]["ApproximateNumberOfMessages"])

    eventually(lambda: waiting() == 1, what="the message in the dead-letter queue")
    assert (invocations(project, "queue"), dropped(running, "queue")) == (16, 1)
    running.until_said("stays in the queue: queue has been invoked 16 times")
