"""Log groups of a whole server: subscription filters invoke functions, live tails follow, the AWS CLI works."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import shell_programs
from tests.clients import client_of
from tests.integration.conftest import DEADLINE_S, Project, Running, eventually

SINK = """
import base64, gzip, json, thawd

def handler(event, context):
    document = json.loads(gzip.decompress(base64.b64decode(event["awslogs"]["data"])))
    thawd.table("sunk").put(context.aws_request_id, document)

def app(event, context):
    print("app says", event)
    return context.log_stream_name
"""
CONFIG = """
[functions.app]
handler = "app.app"
[functions.sink]
handler = "app.handler"
[tables.sunk]
path = "sunk.db"
"""
APP = "/aws/lambda/app"
SINK_ARN = "arn:aws:lambda:us-east-1:000000000000:function:sink"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder))
        project.code(SINK)
        project.config(CONFIG)
        with project.up() as server:
            yield server


@pytest.fixture(scope="module")
def logs(running: Running) -> Any:
    return client_of(running.url, "logs", inject_host_prefix=False)


def sunk(project: Project, group: str) -> list[dict[str, Any]]:
    """The documents that the sink got from a group."""
    return [row for row in project.rows("sunk").values() if row["logGroup"] == group]


def put(logs: Any, group: str, *messages: str) -> None:
    at = int(time.time() * 1000)
    events = [{"timestamp": at, "message": message} for message in messages]
    logs.put_log_events(logGroupName=group, logStreamName="s", logEvents=events)


def test_what_a_function_prints_and_what_clients_put_reaches_the_subscribed_function(
    running: Running, logs: Any
) -> None:
    stream, _ = running.invoke("app", "before the filter")
    logs.put_subscription_filter(
        logGroupName=APP, filterName="words", filterPattern='"app says"', destinationArn=SINK_ARN
    )
    logs.create_log_stream(logGroupName=APP, logStreamName="s")
    running.invoke("app", "one")
    put(logs, APP, "app says two", "something else")

    def both() -> list[dict[str, Any]] | None:
        documents = sunk(running.project, APP)
        return documents if sum(len(each["logEvents"]) for each in documents) >= 2 else None

    found = eventually(both, what="the delivery")
    by_stream = {document["logStream"]: document for document in found}
    [event] = by_stream[stream]["logEvents"]
    assert event["message"] == "app says one\n"
    [known] = [e for e in logs.filter_log_events(logGroupName=APP)["events"] if e["message"] == event["message"]]
    assert (known["eventId"], known["timestamp"]) == (event["id"], event["timestamp"])
    assert [event["message"] for event in by_stream["s"]["logEvents"]] == ["app says two"]
    for document in found:
        assert (document["messageType"], document["owner"]) == ("DATA_MESSAGE", "000000000000")
        assert document["subscriptionFilters"] == ["words"]
    logs.delete_subscription_filter(logGroupName=APP, filterName="words")


def test_what_arrives_around_a_kill_is_delivered_after_it(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.code(SINK)
    project.config(CONFIG)
    sent: list[str] = []
    for attempt in range(3):
        with project.up() as server:
            logs = client_of(server.url, "logs")
            if attempt == 0:
                logs.create_log_group(logGroupName="g")
                logs.create_log_stream(logGroupName="g", logStreamName="s")
                logs.put_subscription_filter(
                    logGroupName="g", filterName="all", filterPattern="", destinationArn=SINK_ARN
                )
            for index in range(5):
                sent.append(f"{attempt} {index}")
                put(logs, "g", sent[-1])
            if attempt < 2:
                server.stop(number=signal.SIGKILL)
                continue

            def arrived() -> bool:
                got = [event["message"] for document in sunk(project, "g") for event in document["logEvents"]]
                return set(got) == set(sent)

            eventually(arrived, what="every event")


def test_a_group_that_is_made_again_has_no_filters(running: Running, logs: Any) -> None:
    group = f"g{next(_numbers)}"
    logs.create_log_group(logGroupName=group)
    logs.create_log_stream(logGroupName=group, logStreamName="s")
    logs.put_subscription_filter(logGroupName=group, filterName="a", filterPattern="", destinationArn=SINK_ARN)
    put(logs, group, "delivered")
    eventually(lambda: sunk(running.project, group), what="the delivery")
    logs.delete_log_group(logGroupName=group)
    logs.create_log_group(logGroupName=group)
    assert logs.describe_subscription_filters(logGroupName=group)["subscriptionFilters"] == []


def test_a_live_tail_shows_what_arrives_and_ends_with_its_client(running: Running, logs: Any) -> None:
    running.invoke("app", "too early")
    arn = f"arn:aws:logs:us-east-1:000000000000:log-group:{APP}"
    answer = logs.start_live_tail(logGroupIdentifiers=[arn], logEventFilterPattern='"app says"')
    events = iter(answer["responseStream"])
    start = next(events)["sessionStart"]
    assert (start["logGroupIdentifiers"], start["logEventFilterPattern"]) == ([arn], '"app says"')
    stream, _ = running.invoke("app", "in time")
    for event in events:
        update = event["sessionUpdate"]
        assert update["sessionMetadata"] == {"sampled": False}
        if update["sessionResults"]:
            break
    [result] = update["sessionResults"]
    assert result["message"] == "app says in time\n"
    assert (result["logStreamName"], result["logGroupIdentifier"]) == (stream, f"000000000000:{APP}")
    answer["responseStream"].close()


def test_a_live_tail_of_an_absent_group_is_refused_before_it_begins(logs: Any) -> None:
    with pytest.raises(logs.exceptions.ResourceNotFoundException, match="The specified log group does not exist"):
        logs.start_live_tail(logGroupIdentifiers=["arn:aws:logs:us-east-1:000000000000:log-group:absent"])


def command(running: Running, *arguments: str) -> list[str]:
    return [
        *(sys.executable, "-m", "awscli", "logs", *arguments, "--output", "json"),
        *("--endpoint-url", running.url, "--region", "us-east-1", "--no-sign-request"),
    ]


def test_the_aws_cli_makes_groups_puts_events_and_queries(running: Running) -> None:
    def aws(*arguments: str) -> Any:
        program = [shell_programs.command("aws"), *command(running, *arguments)[3:]]
        done = subprocess.run(program, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        return json.loads(done.stdout) if done.stdout.strip() else None

    named = ("--log-group-name", "cli")
    assert aws("create-log-group", *named) is None
    assert aws("create-log-stream", *named, "--log-stream-name", "s") is None
    event = f"timestamp={int(time.time() * 1000)},message=hello"
    assert "nextSequenceToken" in aws("put-log-events", *named, "--log-stream-name", "s", "--log-events", event)
    now = int(time.time())
    period = ("--start-time", str(now - 60), "--end-time", str(now + 60))
    query = aws("start-query", *named, *period, "--query-string", "fields @message | limit 1")["queryId"]
    found = eventually(
        lambda: r if (r := aws("get-query-results", "--query-id", query))["status"] == "Complete" else None
    )
    assert found["results"][0][0] == {"field": "@message", "value": "hello"}
    assert aws("delete-log-group", *named) is None


def test_the_aws_cli_follows_a_live_tail(running: Running) -> None:
    arguments = ("start-live-tail", "--log-group-identifiers", f"arn:aws:logs:us-east-1:000000000000:log-group:{APP}")
    process = subprocess.Popen(
        command(running, *arguments),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "AWS_DISABLE_HOST_PREFIX_INJECTION": "true", "PYTHONUNBUFFERED": "1"},
    )
    stop = threading.Event()

    def invoke() -> None:
        while not stop.wait(0.2):  # the session begins at some time
            running.invoke("app", "for the command line")

    thread = threading.Thread(target=invoke)
    thread.start()
    try:
        assert process.stdout is not None
        assert any("app says for the command line" in line for line in process.stdout)
    finally:
        stop.set()
        thread.join()
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_the_payload_is_base64_of_gzip() -> None:
    from thawd.cloudwatch.logs.subscriptions import payload

    event = json.loads(payload(gzip.compress(b"{}")))
    assert gzip.decompress(base64.b64decode(event["awslogs"]["data"])) == b"{}"
