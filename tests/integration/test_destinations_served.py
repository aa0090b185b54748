"""Destinations of a running server, set in thawd.toml and through the Lambda API, from event to record."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.conftest import ROLE, zipped
from tests.ports import quiet_port

from .conftest import Project, Running, eventually
from .emulated import AwsAt, EmulatedAws
from .receiving import ACCOUNT, Receiver, receiving

ARN = f"arn:aws:lambda:us-east-1:{ACCOUNT}:function:"
CODE = """
def handler(event, context):
    if event.get("fail"):
        raise ValueError("as asked")
    return {"n": event.get("n")}

def tell(event, context):
    return {"was": event["responsePayload"], "from": event["requestContext"]["functionArn"]}

def told(event, context):
    return {"n": event["requestPayload"]["n"]}

def again(event, context):
    return {"n": 0}
"""


def send(running: Running, name: str, event: Any, **parameters: Any) -> str:
    """Invoke asynchronously and return the request id."""
    answer = running.client().invoke(FunctionName=name, InvocationType="Event", Payload=json.dumps(event), **parameters)
    return str(answer["ResponseMetadata"]["RequestId"])


def count(running: Running, name: str) -> int:
    """Return the number of a function's invocations."""
    return sum(kind["count"] for kind in running.function(name)["invocations"].values())


def test_outcomes_go_to_an_address_and_nobody_reads_the_secret_in_the_log(project: Project, receiver: Receiver) -> None:
    project.code(CODE)
    hook = f"{receiver.url}/hidden-path?token=hidden-token"
    project.config(
        f"""
        [functions.f]
        handler = "app.handler"
        on_success = "{hook}"
        on_failure = "{hook}"
        maximum_retry_attempts = 0
        """
    )
    receiver.statuses = [500, 200, 200, 404]
    with project.up(environ={"THAWD_WEBHOOK_SECRET": "hidden-secret"}) as running:
        first = send(running, "f", {"n": 1})
        eventually(lambda: len(receiver.got) == 2, what="the second try")
        second = send(running, "f", {"fail": 1})
        eventually(lambda: len(receiver.got) == 3, what="the failure's record")
        send(running, "f", {"n": 2})
        eventually(lambda: running.function("f")["dead"] == 2, what="both dead letters")
        records = [json.loads(got.body) for got in receiver.got]
        assert [record["requestContext"]["requestId"] for record in records[:3]] == [first, first, second]
        assert [record["requestContext"]["condition"] for record in records[:3]] == [
            "Success",
            "Success",
            "RetriesExhausted",
        ]
        assert all("webhook-signature" in got.headers for got in receiver.got)
        status = running.function("f")
        assert status["deliveries"]["http"]["unavailable"] == 1
        assert status["destination_failures"] >= 2
    assert "hidden" not in "\n".join(running.output)


def test_an_outcome_is_the_event_of_the_next_function(project: Project) -> None:
    project.code(CODE)
    project.config(
        """
        [functions.first]
        handler = "app.handler"
        on_success = "function:next"
        [functions.next]
        handler = "app.tell"
        on_success = "table:out"
        [tables.out]
        """
    )
    with project.up() as running:
        for number in range(20):
            send(running, "first", {"n": number})
        eventually(lambda: len(project.rows("out")) == 20, what="the rows")
        found = project.rows("out").values()
        assert sorted(row["was"]["n"] for row in found) == list(range(20))
        assert {row["from"] for row in found} == {f"{ARN}first:$LATEST"}
        assert running.function("first")["deliveries"] == {"function": {"delivered": 20}}


def test_the_next_function_is_told_exactly_once_though_the_server_is_killed_again_and_again(project: Project) -> None:
    """Each event for `next` has its own request id, and so its own row: a second event for the same outcome would
    show."""
    project.code(CODE)
    project.config(
        """
        [functions.first]
        handler = "app.handler"
        on_success = "function:next"
        on_failure = "function:next"
        maximum_retry_attempts = 0
        [functions.next]
        handler = "app.told"
        on_success = "table:out"
        [tables.out]
        """
    )
    sent = 0
    for _ in range(6):
        with project.up() as running:
            client = running.client()
            for _ in range(25):
                client.invoke(
                    FunctionName="first", InvocationType="Event", Payload=json.dumps({"n": sent, "fail": sent % 2})
                )
                sent += 1
            running.process.kill()
            running.process.wait()
    with project.up() as running:

        def left() -> int:
            """Count from a single status document: events move from one count, and from one function, to another."""
            functions = running.status()["functions"]
            states = ("queued", "leased", "delivering")
            return sum(int(functions[name][state]) for name in ("first", "next") for state in states)

        eventually(lambda: left() == 0, what="an empty queue")
    found = [row["n"] for row in project.rows("out").values()]
    assert sorted(found) == list(range(sent))


def test_functions_that_invoke_each_other_for_ever_are_stopped_after_16_rounds(project: Project) -> None:
    project.code(CODE)
    project.config(
        """
        [functions.ping]
        handler = "app.again"
        on_success = "function:pong"
        [functions.pong]
        handler = "app.again"
        on_success = "arn:aws:lambda:us-east-1:000000000000:function:ping"
        """
    )
    with project.up() as running:
        send(running, "ping", {})
        eventually(lambda: running.function("pong")["dead"] == 1, what="the end of the loop")
        assert (count(running, "ping"), count(running, "pong")) == (16, 16)
        assert running.function("ping")["recursive_invocations_dropped"] == 1
        assert "1 invocation dropped as a loop" in project.command("status").stdout
        running.until_said("assumes a loop")


def test_a_hanging_destination_does_not_hold_up_the_end_of_the_server(project: Project, receiver: Receiver) -> None:
    project.code(CODE)
    project.config(
        f"""
        [functions.web]
        handler = "app.handler"
        on_success = "{receiver.url}"
        [functions.cloud]
        handler = "app.handler"
        on_success = "arn:aws:sns:us-east-1:{ACCOUNT}:t"
        """
    )
    receiver.gate.clear()
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_ENDPOINT_URL": receiver.url}
    with project.up(environ=keys) as running:
        send(running, "web", {"n": 1})
        send(running, "cloud", {"n": 2})
        eventually(lambda: len(receiver.got) >= 2, what="both requests")
        assert running.stop(number=signal.SIGTERM) == 0
    assert not any("Traceback" in line for line in running.output), running.output


class Cloud:
    """A server with `--aws`, and the emulated services beside it."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.aws = AwsAt(running.url)

    def create(self, name: str, **parameters: Any) -> None:
        code = zipped(app__py=CODE)
        client = self.running.client()
        client.create_function(
            FunctionName=name,
            Runtime=f"python{sys.version_info[0]}.{sys.version_info[1]}",
            Role=ROLE,
            Handler=parameters.pop("Handler", "app.handler"),
            Code={"ZipFile": code},
            **parameters,
        )
        client.get_waiter("function_active_v2").wait(FunctionName=name, WaiterConfig={"Delay": 0.05})

    def configure(self, name: str, *, success: str = "", failure: str = "", **parameters: Any) -> None:
        config = {"OnSuccess": {"Destination": success}, "OnFailure": {"Destination": failure}}
        self.running.client().put_function_event_invoke_config(
            FunctionName=name,
            MaximumRetryAttempts=0,
            DestinationConfig={outcome: to for outcome, to in config.items() if to["Destination"]},
            **parameters,
        )

    def message(self, queue: str) -> dict[str, Any]:
        """Return the one message that arrives in a queue."""
        (found,) = eventually(lambda: self.aws.messages(queue), what=f"a message in {queue}")
        return dict(found)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    project = Project(tmp_path_factory.mktemp("cloud"))
    project.config("[buckets.failed]\n")
    with project.up("--aws") as running:
        yield Cloud(running)


def test_a_configured_queue_topic_and_bus_get_the_records_with_the_alias_in_the_arn(cloud: Cloud) -> None:
    queue, (topic, subscribed), (bus, ruled) = cloud.aws.queue("q"), cloud.aws.topic("t"), cloud.aws.bus("b")
    cloud.create("f")
    client = cloud.running.client()
    number = client.publish_version(FunctionName="f")["Version"]
    client.create_alias(FunctionName="f", Name="live", FunctionVersion=number)
    cloud.configure("f", success=queue, failure=topic)
    cloud.configure("f", success=bus, Qualifier="live")
    send(cloud.running, "f", {"n": 1})
    record = json.loads(cloud.message(queue)["Body"])
    assert (record["requestContext"]["functionArn"], record["responsePayload"]) == (f"{ARN}f:$LATEST", {"n": 1})
    send(cloud.running, "f", {"fail": 1})
    record = json.loads(json.loads(cloud.message(subscribed)["Body"])["Message"])
    assert record["requestContext"]["condition"] == "RetriesExhausted"
    assert record["responsePayload"]["errorMessage"] == "as asked"
    send(cloud.running, "f", {"n": 2}, Qualifier="live")
    event = json.loads(cloud.message(ruled)["Body"])
    assert event["resources"] == [bus, f"{ARN}f:live"]
    assert event["detail"]["requestContext"]["functionArn"] == f"{ARN}f:live"
    assert event["detail"]["responseContext"] == {"statusCode": 200, "executedVersion": number}


def test_events_given_up_go_to_an_own_bucket_under_awss_name(cloud: Cloud) -> None:
    cloud.create("to-bucket")
    cloud.configure("to-bucket", failure="arn:aws:s3:::failed")
    request_id = send(cloud.running, "to-bucket", {"fail": 1})
    folder = cloud.running.project.root / "failed/aws/lambda/async/to-bucket"
    (path,) = eventually(lambda: list(folder.glob("*/*/*/[!.]*")), what="the object")
    assert path.name.endswith(f"-{request_id}")
    assert json.loads(path.read_bytes())["requestPayload"] == {"fail": 1}


def test_a_dead_letter_queue_gets_the_payload_of_what_any_version_gave_up(cloud: Cloud) -> None:
    dead, told = cloud.aws.queue("dead"), cloud.aws.queue("told")
    cloud.create("dying")
    client = cloud.running.client()
    number = client.publish_version(FunctionName="dying")["Version"]
    client.update_function_configuration(FunctionName="dying", DeadLetterConfig={"TargetArn": dead})
    client.get_waiter("function_updated_v2").wait(FunctionName="dying", WaiterConfig={"Delay": 0.05})
    cloud.configure("dying", failure=told, Qualifier=number)
    request_id = send(cloud.running, "dying", {"fail": 1}, Qualifier=number)
    letter = cloud.message(dead)
    assert json.loads(letter["Body"]) == {"fail": 1}
    values = {name: one["StringValue"] for name, one in letter["MessageAttributes"].items()}
    assert values == {"RequestID": request_id, "ErrorCode": "200", "ErrorMessage": "as asked"}
    assert json.loads(cloud.message(told)["Body"])["requestContext"]["requestId"] == request_id


def test_a_function_of_the_api_tells_another_by_its_alias_and_a_loop_may_be_allowed(cloud: Cloud) -> None:
    queue = cloud.aws.queue("chained")
    cloud.create("chain-1")
    cloud.create("chain-2", Handler="app.tell")
    client = cloud.running.client()
    number = client.publish_version(FunctionName="chain-2")["Version"]
    client.create_alias(FunctionName="chain-2", Name="live", FunctionVersion=number)
    cloud.configure("chain-2", success=queue, Qualifier="live")
    cloud.configure("chain-1", success=f"{ARN}chain-2:live")
    send(cloud.running, "chain-1", {"n": 7})
    record = json.loads(cloud.message(queue)["Body"])
    assert record["responsePayload"] == {"was": {"n": 7}, "from": f"{ARN}chain-1:$LATEST"}
    assert record["requestContext"]["functionArn"] == f"{ARN}chain-2:live"
    for name in ("round-1", "round-2"):
        cloud.create(name, Handler="app.again")
    cloud.configure("round-1", success=f"{ARN}round-2")
    cloud.configure("round-2", success=f"{ARN}round-1")
    for name in ("round-1", "round-2"):
        client.put_function_recursion_config(FunctionName=name, RecursiveLoop="Allow")
    send(cloud.running, "round-1", {})
    eventually(lambda: count(cloud.running, "round-1") > 17, what="more rounds than a loop has")
    client.delete_function_event_invoke_config(FunctionName="round-1")


def test_without_an_emulator_aws_is_found_by_its_usual_variables(project: Project) -> None:
    project.code(CODE)
    project.config(
        f"""
        [functions.f]
        handler = "app.handler"
        on_success = "arn:aws:sqs:us-east-1:{ACCOUNT}:done"
        """
    )
    with EmulatedAws(account=ACCOUNT) as aws:
        queue = aws.queue("done")
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_ENDPOINT_URL": aws.url}
        with project.up(environ=keys) as running:
            send(running, "f", {"n": 1})
            (message,) = eventually(lambda: aws.messages(queue), what="the message")
            assert json.loads(message["Body"])["responsePayload"] == {"n": 1}


def test_what_a_destination_did_not_take_while_it_was_down_comes_when_it_is_up(project: Project) -> None:
    project.code(CODE)
    port = quiet_port()
    project.config(f'[functions.f]\nhandler = "app.handler"\non_success = "http://127.0.0.1:{port}"\n')
    with project.up() as running:
        request_id = send(running, "f", {"n": 1})
        eventually(lambda: running.function("f")["destination_failures"], what="a failed try")
        with receiving(port) as receiver:
            eventually(lambda: receiver.got, what="the record")
            assert json.loads(receiver.got[0].body)["requestContext"]["requestId"] == request_id
            eventually(lambda: running.function("f")["leased"] + running.function("f")["queued"] == 0, what="rest")
