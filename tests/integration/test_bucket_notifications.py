"""Remote buckets that report their objects through an SQS queue."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Project, eventually
from tests.integration.emulated import EmulatedAws, There
from tests.integration.remote_buckets import rows
from tests.integration.watched import ALL
from thawd.resources import RemoteBucket, StoreUrl
from thawd.sources.aws_calls import Endpoint
from thawd.sources.buckets.remote_notifications import NotifiedBucketWatcher
from thawd.sources.buckets.remote_stores import WatcherStores
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.objects.catalog import ObjectCatalog
from thawd.stores.objects.listings import Listings
from thawd.stores.schema import open_state

pytestmark = pytest.mark.usefixtures("aws_credentials")


class Notified:
    """A queue for notifications, and a watcher that reads it."""

    def __init__(self, aws: EmulatedAws, name: str, folder: Path) -> None:
        self.sqs = aws.client("sqs")
        self.queue_url: str = self.sqs.create_queue(QueueName=name)["QueueUrl"]
        self.arn: str = self.sqs.get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=["QueueArn"])[
            "Attributes"
        ]["QueueArn"]
        self.log: list[str] = []
        self.is_full = False
        self._folder = folder
        self._aws = aws
        self.bucket = RemoteBucket(
            name="photos",
            url=StoreUrl(text="s3://there/in", shown="s3://there/in"),
            bucket="there",
            prefix="in/",
            notify=ALL,
            notifications=self.arn,
        )

    def send(self, *bodies: object) -> None:
        for body in bodies:
            self.sqs.send_message(QueueUrl=self.queue_url, MessageBody=json.dumps(body))

    def left(self) -> int:
        """Return the number of messages that are still in the queue, received or not."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)

    def events(self, *, leaving: int = 0) -> list[dict[str, Any]]:
        """Return the events from the queue's messages, once at most `leaving` messages are left in it."""

        async def scenario() -> list[dict[str, Any]]:
            db = open_state(self._folder / "thawd.db")
            queue = EventQueue(db)
            watcher = NotifiedBucketWatcher(
                self.bucket,
                watcher_stores=WatcherStores(ObjectCatalog(db), Listings(db), lambda: self.is_full),
                endpoint=Endpoint(self._aws.url),
                log=self.log.append,
                on_events=lambda functions: None,
            )
            watching = asyncio.create_task(watcher.run())
            while await asyncio.to_thread(self.left) > leaving:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            if leaving:
                while not self.log:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            watching.cancel()
            await asyncio.wait({watching})
            found = []
            while leased := await queue.lease("f", limit=100):
                await queue.done([event.id for event in leased])
                found += [record for event in leased for record in json.loads(event.payload)["Records"]]
            db.close()
            return found

        return asyncio.run(scenario())


@pytest.fixture
def notified(aws: EmulatedAws, tmp_path: Path, request: pytest.FixtureRequest) -> Notified:
    return Notified(aws, f"q{abs(hash(request.node.name)) % 10**12}", tmp_path)


def record_of(key: str, sequencer: str, *, name: str = "ObjectCreated:Put", bucket: str = "there") -> dict[str, Any]:
    """Return a record in S3's format."""
    described: dict[str, Any] = {"key": key, "sequencer": sequencer}
    if name.startswith("ObjectCreated"):
        described |= {"size": 5, "eTag": f"etag-{sequencer}", "versionId": "v1"}
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": "eu-west-1",
        "eventTime": "2026-11-20T12:00:00.123Z",
        "eventName": name,
        "s3": {"configurationId": "theirs", "bucket": {"name": bucket}, "object": described},
    }


def test_records_are_passed_on_as_s3_made_them(notified: Notified) -> None:
    copied = record_of("in/%C3%BC+%2B.png", "0A", name="ObjectCreated:Copy")
    removed = record_of("in/gone.png", "0B", name="ObjectRemoved:DeleteMarkerCreated")
    others = [record_of("in/x", "0C", bucket="other"), record_of("out/x", "0D")]
    tagging = record_of("in/x", "0E", name="ObjectTagging:Put")
    notified.send(
        {"Records": [copied, *others, tagging]},
        {"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "there"},
        {"Type": "Notification", "Message": json.dumps({"Records": [removed]})},
    )
    found = notified.events()
    assert sorted(found, key=str) == sorted([copied, removed], key=str)
    assert notified.log == []


def test_what_comes_again_or_too_late_gives_no_event(notified: Notified) -> None:
    # Given sequencers of different lengths, which are compared from the left
    first, second = record_of("in/a", "0055AED6DCD90281E5"), record_of("in/a", "0055AED6DCD90281E6")
    longer = record_of("in/a", "0055AED6DCD90281E601")
    notified.send({"Records": [second]})
    assert notified.events() == [second]
    notified.send({"Records": [first]}, {"Records": [second]}, {"Records": [first, second]})
    assert notified.events() == []
    notified.send({"Records": [longer]}, {"Records": [record_of("in/b", "00")]})
    assert Counter(r["s3"]["object"]["key"] for r in notified.events()) == {"in/a": 1, "in/b": 1}


def test_several_happenings_of_a_key_in_one_message_are_events_in_their_order(notified: Notified) -> None:
    happened = [
        record_of("in/a", "03"),
        record_of("in/a", "01"),
        record_of("in/a", "02", name="ObjectRemoved:Delete"),
    ]
    notified.send({"Records": happened})
    assert [r["s3"]["object"]["sequencer"] for r in notified.events()] == ["01", "02", "03"]


def test_messages_that_are_no_notifications_are_told_once_and_stay(notified: Notified) -> None:
    notified.send("hello", {"Records": [{"eventName": 1}]}, {"Records": [record_of("in/a", "01")]})
    assert len(notified.events(leaving=2)) == 1
    assert notified.left() == 2
    assert len(notified.log) == 1
    assert "not S3 notifications" in notified.log[0]


def test_what_cannot_be_read_does_not_hold_up_the_notifications_beside_it(notified: Notified) -> None:
    # Given messages that look like notifications, each of which would cause an error in a different place
    nowhere, huge, late = (record_of("in/x", "01") for _ in range(3))
    del nowhere["s3"]["bucket"]
    huge["s3"]["object"]["size"] = 1 << 70
    late["eventTime"] = "9999-01-01T00:00:00Z"
    good = record_of("in/a", "01")
    for body in ("no JSON", "[" * 5000 + "]" * 5000):
        notified.sqs.send_message(QueueUrl=notified.queue_url, MessageBody=body)
    notified.send({"Records": [nowhere]}, {"Records": [huge]}, {"Records": [late]}, {"Records": [good]})
    # Then the valid one causes its event
    assert notified.events(leaving=5) == [good]
    assert notified.left() == 5
    assert len(notified.log) == 1


CODE = """
import json, urllib.parse, thawd

def handler(event, context):
    record = event["Records"][0]
    return {"name": record["eventName"], "region": record["awsRegion"]}
"""


def serve(project: Project, queue: str, there: str, endpoint: str) -> None:
    project.code(CODE)
    project.config(
        f"""
        [functions.f]
        handler = "app.handler"
        on_success = "table:sizes"

        [buckets.photos]
        url = "s3://{there}/in?endpoint={endpoint}"
        notifications = "{queue}"
        notify = [{{ function = "f", suffix = ".png" }}]

        [tables.sizes]
        """
    )


def test_a_server_killed_again_and_again_makes_one_row_of_each_object(project: Project, aws: EmulatedAws) -> None:
    here = Notified(aws, "killed", project.root)
    serve(project, here.queue_url, "there", aws.url)
    keys = {f"in/{number:03d}.png" for number in range(150)}
    here.sqs.set_queue_attributes(QueueUrl=here.queue_url, Attributes={"VisibilityTimeout": "1"})
    for key in sorted(keys):
        here.send({"Records": [record_of(key, "01")]})
    for least in (1, 40, 90):
        with project.up() as running:
            eventually(lambda least=least: len(rows(project)) >= least, what="some rows")
            running.process.send_signal(signal.SIGKILL)
            running.process.wait()
    with project.up() as running:
        eventually(lambda: len(rows(project)) == len(keys) and here.left() == 0, what="all rows")
        assert running.status()["functions"]["f"]["dead"] == 0
    assert set(rows(project)) == keys


def test_s3_tells_a_queue_and_the_source_is_paused_and_resumed(project: Project, aws: EmulatedAws) -> None:
    there = There(aws, "told-there")
    here = Notified(aws, "told", project.root)
    # A stopping server's long poll may still receive a message. The short timeout makes it visible again soon.
    here.sqs.set_queue_attributes(QueueUrl=here.queue_url, Attributes={"VisibilityTimeout": "1"})
    there.s3.put_bucket_notification_configuration(
        Bucket=there.name,
        NotificationConfiguration={"QueueConfigurations": [{"QueueArn": here.arn, "Events": ["s3:ObjectCreated:*"]}]},
    )
    serve(project, here.queue_url, there.name, aws.url)
    with project.up():
        there.put("in/a.png")
        eventually(lambda: "in/a.png" in rows(project), what="the row")
        assert rows(project)["in/a.png"]["name"] == "ObjectCreated:Put"
        (source,) = json.loads(project.command("source", "list", "--json").stdout)
        assert (source["name"], source["kind"], source["function"]) == ("bucket:photos", "bucket", "f")
        assert (source["state"], source["queue"]) == ("Enabled", here.queue_url)
        assert project.command("source", "pause", "bucket:photos").stdout == "bucket:photos: Disabled\n"
    # And it stays paused across a restart
    there.put("in/b.png")
    with project.up():
        assert "Disabled" in project.command("source", "list").stdout
        assert here.left() == 1
        assert set(rows(project)) == {"in/a.png"}
        assert project.command("source", "resume", "bucket:photos").stdout == "bucket:photos: Enabled\n"
        eventually(lambda: "in/b.png" in rows(project), what="the second row")


def test_a_listed_bucket_is_paused_and_resumed_and_shows_its_lag(project: Project, aws: EmulatedAws) -> None:
    there = There(aws, "listed-there")
    serve(project, "", there.name, aws.url)
    config = project.root / "thawd.toml"
    config.write_text(config.read_text().replace('notifications = ""', "poll_s = 1"))
    with project.up() as running:
        assert project.command("source", "pause", "bucket:photos").returncode == 0
    there.put("in/a.png")
    with project.up() as running:
        (source,) = json.loads(project.command("source", "list", "--json").stdout)
        assert (source["state"], source["last_result"]) == ("Disabled", "No listing yet")
        assert "not listed yet" in project.command("source", "list").stdout
        project.command("source", "resume", "bucket:photos")
        eventually(lambda: "in/a.png" in rows(project), what="the row")
        # The event starts before the listing ends.
        eventually(lambda: "s ago; objects: 1" in project.command("source", "list").stdout, what="the listing's end")
        with urllib.request.urlopen(f"{running.url}/metrics") as answer:
            metrics = answer.read().decode()
        assert 'thawd_source_events_total{function="f",source="bucket:photos"} 1.0' in metrics, metrics
        unknown = project.command("source", "pause", "bucket:other")
        assert "bucket:photos" in unknown.stderr
