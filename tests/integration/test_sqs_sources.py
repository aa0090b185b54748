"""Queues that invoke functions: batches, filters, partial failures, long handlers, redrive, kills, pauses."""

from __future__ import annotations

import importlib
import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Project, Running, eventually
from .queues import ACCOUNT, ENVIRON, Sqs, emulated

HANDLER = """
import json, time, uuid
import thawd

def handler(event, context):
    bucket = thawd.bucket("seen")
    bucket.write(f"batch-{uuid.uuid4()}.json", json.dumps(event).encode())
    failures = []
    for record in event["Records"]:
        body = json.loads(record["body"])
        if body.get("gate"):
            while True:
                try:
                    bucket.read(body["gate"])
                    break
                except FileNotFoundError:
                    time.sleep(0.02)
        if body.get("raise"):
            raise ValueError("as asked")
        if body.get("fail"):
            failures.append({"itemIdentifier": record["messageId"]})
        time.sleep(body.get("pause", 0))
    bucket.write(f"done-{uuid.uuid4()}.json", json.dumps([record["messageId"] for record in event["Records"]]).encode())
    return {"batchItemFailures": failures}
"""


@pytest.fixture(scope="module")
def sqs() -> Iterator[Sqs]:
    with emulated() as running:
        yield running


class Seen:
    """What the handler received."""

    def __init__(self, project: Project) -> None:
        self.folder = project.root / "seen"

    def batches(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_bytes()) for path in sorted(self.folder.glob("batch-*.json"))]

    def records(self) -> list[dict[str, Any]]:
        return [record for batch in self.batches() for record in batch["Records"]]

    def ids(self) -> Counter[str]:
        return Counter(record["messageId"] for record in self.records())

    def done(self) -> set[str]:
        """Return the ids of the messages that the handler finished."""
        return {one for path in self.folder.glob("done-*.json") for one in json.loads(path.read_bytes())}

    def open_gate(self, name: str) -> None:
        (self.folder / name).write_bytes(b"open")


def configure(project: Project, *sources: str, server: str = "", more: str = "") -> Seen:
    """Configure a function `f` with the sources. Each source is given as lines of its table in thawd.toml."""
    project.code(HANDLER)
    tables = "".join(f"\n[[functions.f.sources]]\n{source}\n" for source in sources)
    project.config(
        f'{server}\n[functions.f]\nhandler = "app.handler"\ntimeout_s = 60\n{tables}\n[buckets.seen]\n{more}'
    )
    return Seen(project)


def source(running: Running, name: str) -> dict[str, Any]:
    """Return one entry of `thawd source list`."""
    done = running.project.command("source", "list", "--json")
    assert done.returncode == 0, done.stderr
    return next(one for one in json.loads(done.stdout) if one["name"] == name)


def test_records_are_lambdas_and_messages_are_deleted(project: Project, sqs: Sqs) -> None:
    url = sqs.queue("records")
    seen = configure(project, f'sqs = "{url}"')
    sent = sqs.client.send_message(
        QueueUrl=url,
        MessageBody='{"number": 1}',
        MessageAttributes={
            "text": {"DataType": "String", "StringValue": "x"},
            "bytes": {"DataType": "Binary", "BinaryValue": b"\0\1"},
        },
    )
    with project.up(environ=ENVIRON):
        eventually(seen.batches, what="the batch")
        eventually(lambda: sqs.depth(url) == (0, 0), what="the deletion")
    [event] = seen.batches()
    [record] = event.pop("Records")
    assert event == {}
    assert record.pop("receiptHandle")
    attributes = record.pop("attributes")
    assert attributes["ApproximateReceiveCount"] == "1"
    assert set(attributes) == {
        "ApproximateReceiveCount",
        "SentTimestamp",
        "SenderId",
        "ApproximateFirstReceiveTimestamp",
    }
    lists: dict[str, list[str]] = {"stringListValues": [], "binaryListValues": []}
    assert record == {
        "messageId": sent["MessageId"],
        "body": '{"number": 1}',
        "messageAttributes": {
            "text": {"stringValue": "x", "dataType": "String", **lists},
            "bytes": {"binaryValue": "AAE=", "dataType": "Binary", **lists},
        },
        "md5OfBody": sent["MD5OfMessageBody"],
        "md5OfMessageAttributes": sent["MD5OfMessageAttributes"],
        "eventSource": "aws:sqs",
        "eventSourceARN": sqs.arn(url),
        "awsRegion": "us-east-1",
    }


def test_a_window_gathers_more_than_one_reception_and_batches_have_a_size(project: Project, sqs: Sqs) -> None:
    url = sqs.queue("windows")
    seen = configure(project, f'sqs = "{url}"\nbatch_size = 25\nwindow_s = 8')
    ids = sqs.send(url, ({"number": number} for number in range(60)))
    with project.up(environ=ENVIRON):
        # Once a batch was full, several pollers read at the same time. Then the emulated queue, like SQS, can deliver a
        # message to two of them.
        eventually(lambda: set(seen.ids()) == set(ids), what="all messages")
        eventually(lambda: sqs.depth(url) == (0, 0), what="the deletion")
    # The pollers may divide the remaining messages among them.
    sizes = sorted(len(batch["Records"]) for batch in seen.batches())
    assert sizes[-1] == 25
    assert len(sizes) < 6


def test_messages_that_match_no_filter_are_deleted(project: Project, sqs: Sqs) -> None:
    url = sqs.queue("filters")
    filters = 'filters = [{ body = { kind = ["order"], size = [{ numeric = [">", 5] }] } }]'
    seen = configure(project, f'sqs = "{url}"\n{filters}')
    bodies = [{"kind": "order", "size": 9}, {"kind": "order", "size": 5}, {"kind": "refund", "size": 9}, {"size": 9}]
    wanted = sqs.send(url, bodies)[0]
    sqs.client.send_message(QueueUrl=url, MessageBody="no JSON")
    with project.up(environ=ENVIRON) as running:
        eventually(lambda: sqs.depth(url) == (0, 0), what="an empty queue")
        assert seen.ids() == Counter([wanted])

        def shown() -> tuple[int, int, str]:
            found = source(running, "f/filters")
            return found["received"], found["filtered"], found["last_result"]

        eventually(lambda: shown() == (5, 4, "OK"), what="what is told of the batch")


def test_failed_items_alone_come_again(project: Project, sqs: Sqs) -> None:
    url = sqs.queue("partial", VisibilityTimeout="4")
    seen = configure(project, f'sqs = "{url}"\nreport_batch_item_failures = true')
    ids = sqs.send(url, [{"number": 1}, {"fail": True}, {"number": 2}])
    with project.up(environ=ENVIRON):
        eventually(lambda: seen.ids()[ids[1]] >= 2, what="two attempts")
        sqs.client.purge_queue(QueueUrl=url)
    assert (seen.ids()[ids[0]], seen.ids()[ids[2]]) == (1, 1)


def test_without_reports_an_answer_is_not_looked_at(project: Project, sqs: Sqs) -> None:
    url = sqs.queue("unreported", VisibilityTimeout="10")
    seen = configure(project, f'sqs = "{url}"')
    ids = sqs.send(url, [{"fail": True}])
    with project.up(environ=ENVIRON):
        eventually(lambda: seen.batches() and sqs.depth(url) == (0, 0), what="the deletion")
    assert seen.ids() == Counter(ids)


def test_a_message_that_always_fails_ends_where_the_queues_redrive_policy_says(project: Project, sqs: Sqs) -> None:
    dead = sqs.queue("dead")
    policy = json.dumps({"deadLetterTargetArn": sqs.arn(dead), "maxReceiveCount": 2})
    url = sqs.queue("redriven", VisibilityTimeout="4", RedrivePolicy=policy)
    seen = configure(project, f'sqs = "{url}"\nbatch_size = 1')
    bad, good = sqs.send(url, [{"raise": True}, {"number": 1}])
    with project.up(environ=ENVIRON):
        eventually(lambda: sqs.depth(dead) == (1, 0), what="the dead letter")
        eventually(lambda: sqs.depth(url) == (0, 0), what="an empty queue")
    assert seen.ids() == Counter({bad: 2, good: 1})


def test_a_handler_that_outlives_the_visibility_timeout_keeps_its_message(project: Project, sqs: Sqs) -> None:
    policy = json.dumps({"deadLetterTargetArn": sqs.arn(sqs.queue("long-dead")), "maxReceiveCount": 4})
    url = sqs.queue("long", VisibilityTimeout="4", RedrivePolicy=policy)
    seen = configure(project, f'sqs = "{url}"\nbatch_size = 1')
    [long] = sqs.send(url, [{"gate": "gate"}])
    with project.up(environ=ENVIRON) as running:
        eventually(seen.batches, what="the beginning")
        # A failing message returns after the visibility timeout. Four attempts take more than ten seconds, which is how
        # long thawd holds messages at first.
        [failing] = sqs.send(url, [{"raise": True}])
        eventually(lambda: seen.ids()[failing] >= 4, what="four attempts of the other")
        assert seen.ids()[long] == 1
        seen.open_gate("gate")
        eventually(lambda: sqs.depth(url) == (0, 0), what="an empty queue")
        assert source(running, "f/long")["last_result"] in ("OK", "PROBLEM: Function call failed")
    assert seen.ids()[long] == 1


def test_a_killed_server_loses_no_message(project: Project, sqs: Sqs) -> None:
    url = sqs.queue("killed", VisibilityTimeout="3")
    seen = configure(project, f'sqs = "{url}"\nbatch_size = 5')
    ids = sqs.send(url, ({"number": number, "pause": 0.02} for number in range(150)))
    for kills in range(1, 4):
        with project.up(environ=ENVIRON) as running:
            eventually(lambda: len(seen.done()) >= 30 * kills, what="some messages")  # noqa: B023
            running.stop(number=signal.SIGKILL)
    with project.up(environ=ENVIRON):
        eventually(lambda: sqs.depth(url) == (0, 0), what="an empty queue")
    assert seen.done() == set(ids)


def test_a_source_is_paused_and_resumed_across_restarts(project: Project, sqs: Sqs) -> None:
    url = sqs.queue("paused", VisibilityTimeout="1")
    seen = configure(project, f'sqs = "{url}"')
    with project.up(environ=ENVIRON) as running:
        done = project.command("source", "pause", "f/paused")
        assert done.returncode == 0, done.stderr
        eventually(lambda: source(running, "f/paused")["state"] == "Disabled", what="the pause")
    ids = sqs.send(url, [{"number": 1}])
    with project.up(environ=ENVIRON) as running:
        assert source(running, "f/paused")["state"] == "Disabled"
        # The long poll that the pause cancelled may still receive the message, which hides it for the visibility
        # timeout.
        assert sum(sqs.depth(url)) == 1
        assert not seen.batches()
        [mapping] = running.client().list_event_source_mappings(FunctionName="f")["EventSourceMappings"]
        assert (mapping["State"], mapping["EventSourceArn"]) == ("Disabled", sqs.arn(url))
        assert project.command("source", "resume", "f/paused").stdout.startswith("f/paused: ")
        eventually(lambda: sqs.depth(url) == (0, 0), what="an empty queue")
        assert seen.ids() == Counter(ids)
        unknown = project.command("source", "pause", "absent")
        assert unknown.returncode == 1
        assert "f/paused" in unknown.stderr


def test_a_queue_that_is_not_there_is_told_once_and_read_once_it_is(project: Project, sqs: Sqs) -> None:
    url = f"{sqs.url}/{ACCOUNT}/late"
    seen = configure(project, f'sqs = "{url}"')
    with project.up(environ=ENVIRON) as running:
        eventually(lambda: "PROBLEM" in source(running, "f/late")["last_result"], what="the problem")
        assert sqs.queue("late") == url
        ids = sqs.send(url, [{"number": 1}])
        eventually(lambda: seen.ids() == Counter(ids), what="the message")
        running.until_said("can be read again")
        told = [line for line in running.output if "source f/late" in line]
    assert ["cannot be read" in told[0], "can be read again" in told[-1], len(told)] == [True, True, 2]


def test_a_reload_takes_sources_over(project: Project, sqs: Sqs) -> None:
    first, second = sqs.queue("first"), sqs.queue("second")
    seen = configure(project, f'sqs = "{first}"')
    with project.up(environ=ENVIRON) as running:
        ids = sqs.send(first, [{"number": 1}])
        eventually(lambda: seen.ids() == Counter(ids), what="the first message")
        configure(project, f'sqs = "{second}"')
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "configuration reloaded" in running.output, what="the reload")
        left = sqs.send(first, [{"number": 2}])
        ids += sqs.send(second, [{"number": 3}])
        eventually(lambda: seen.ids() == Counter(ids), what="the second message")
        assert not set(left) & set(seen.ids())
        with_names = project.command("source", "list").stdout
        assert "f/second" in with_names
        assert "f/first" not in with_names


def test_mappings_of_the_api_work_and_are_there_after_a_restart(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.root.mkdir()
    seen = configure(project)
    with project.up("--aws") as running:
        queues = Sqs(running.url)
        url = queues.queue("api")
        made = running.client().create_event_source_mapping(
            FunctionName="f", EventSourceArn=queues.arn(url), BatchSize=2, ScalingConfig={"MaximumConcurrency": 2}
        )
        ids = queues.send(url, ({"number": number} for number in range(7)))
        eventually(lambda: seen.ids() == Counter(ids), what="the messages")
        eventually(lambda: queues.depth(url) == (0, 0), what="an empty queue")
        assert max(len(batch["Records"]) for batch in seen.batches()) <= 2

        def state() -> str:
            return str(running.client().get_event_source_mapping(UUID=made["UUID"])["State"])

        eventually(lambda: state() == "Enabled", what="the mapping's state")
        eventually(lambda: "OK" in project.command("source", "list").stdout, what="what is told of the last batch")
    with project.up("--aws") as running:
        mapping = running.client().get_event_source_mapping(UUID=made["UUID"])
        assert (mapping["State"], mapping["BatchSize"]) == ("Enabled", 2)
        running.client().delete_event_source_mapping(UUID=made["UUID"])
        eventually(lambda: not running.client().list_event_source_mappings()["EventSourceMappings"], what="its end")


def test_metrics_tell_of_sources(project: Project, sqs: Sqs) -> None:
    import urllib.request

    url = sqs.queue("metrics")
    seen = configure(project, f'sqs = "{url}"')
    sqs.send(url, [{"number": 1}])
    with project.up(environ=ENVIRON) as running:
        eventually(seen.batches, what="the batch")
        with urllib.request.urlopen(f"{running.url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    assert 'thawd_source_events_total{function="f",source="f/metrics"} 1.0' in text
    assert 'thawd_source_enabled{function="f",source="f/metrics"} 1.0' in text


def test_messages_of_a_fifo_queue_keep_the_order_of_their_group(project: Project, sqs: Sqs) -> None:
    url = sqs.queue("ordered.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    seen = configure(project, f'sqs = "{url}"')
    for number in range(14):
        sqs.client.send_message(
            QueueUrl=url, MessageBody=json.dumps({"number": number}), MessageGroupId=f"group{number % 2}"
        )
    with project.up(environ=ENVIRON):
        eventually(lambda: len(seen.done()) == 14, what="all messages")
        eventually(lambda: sqs.depth(url) == (0, 0), what="the deletion")
    sizes = [len(batch["Records"]) for batch in seen.batches()]
    assert (sum(sizes), max(sizes) <= 10) == (14, True)
    for batch in seen.batches():
        numbers = [json.loads(record["body"])["number"] for record in batch["Records"]]
        groups = [record["attributes"]["MessageGroupId"] for record in batch["Records"]]
        assert groups == [f"group{number % 2}" for number in numbers]
        assert numbers == sorted(numbers)
    assert len(seen.records()) == 14


def test_a_mapping_of_the_file_is_changed_in_the_file_alone(project: Project, sqs: Sqs) -> None:
    url = sqs.queue("declared")
    configure(project, f'sqs = "{url}"\nbatch_size = 5')
    with project.up(environ=ENVIRON) as running:
        client = running.client()
        [mapping] = client.list_event_source_mappings()["EventSourceMappings"]
        assert (mapping["BatchSize"], mapping["State"]) == (5, "Enabled")
        for refused in (
            lambda: client.update_event_source_mapping(UUID=mapping["UUID"], BatchSize=6),
            lambda: client.delete_event_source_mapping(UUID=mapping["UUID"]),
            lambda: client.create_event_source_mapping(FunctionName="f", EventSourceArn=sqs.arn(url)),
        ):
            with pytest.raises(client.exceptions.ResourceConflictException):
                refused()
        assert client.update_event_source_mapping(UUID=mapping["UUID"], Enabled=False)["State"] == "Disabling"
        eventually(lambda: source(running, "f/declared")["state"] == "Disabled", what="the pause")
        assert project.command("source", "resume", mapping["UUID"]).returncode == 0
        eventually(lambda: source(running, "f/declared")["state"] == "Enabled", what="its end")


POWERTOOLS = """
import json
import sys

sys.path.append({site_packages!r})

import thawd
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response

processor = BatchProcessor(event_type=EventType.SQS)


def one(record):
    if record.json_body.get("fail"):
        raise ValueError("as asked")
    thawd.bucket("seen").write(f"done-{{record.message_id}}.json", json.dumps([record.message_id]).encode())


def handler(event, context):
    return process_partial_response(event=event, record_handler=one, processor=processor, context=context)
"""


def test_a_handler_that_powertools_processes_batches_for_works_unchanged(project: Project, sqs: Sqs) -> None:
    dead = sqs.queue("powertools-dead")
    policy = json.dumps({"deadLetterTargetArn": sqs.arn(dead), "maxReceiveCount": 2})
    url = sqs.queue("powertools", VisibilityTimeout="4", RedrivePolicy=policy)
    seen = configure(project, f'sqs = "{url}"\nreport_batch_item_failures = true')
    site_packages = str(Path(importlib.import_module("aws_lambda_powertools").__file__ or "").parents[1])
    project.code(POWERTOOLS.format(site_packages=site_packages))
    ids = sqs.send(url, [{"number": 1}, {"fail": True}, {"number": 2}])
    with project.up(environ=ENVIRON):
        eventually(lambda: sqs.depth(dead) == (1, 0) and sqs.depth(url) == (0, 0), what="the dead letter")
    assert seen.done() == {ids[0], ids[2]}
