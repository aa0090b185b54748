"""AWS services, emulated in a separate process for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from tests import prestarted
from tests.clients import client_of
from thawd.resources import ACCOUNT_ID

MOTO_ACCOUNT = "123456789012"
"""The account that owns moto's resources unless another is set."""


class AwsAt:
    """AWS at a URL: its clients, and methods that create resources for tests.

    Args:
        url: address of the service.
        account: id of the account that owns the queues made here.
    """

    def __init__(self, url: str, account: str = ACCOUNT_ID) -> None:
        self.url = url
        self.account = account
        self._clients: dict[tuple[str, str], Any] = {}

    def client(self, service: str) -> Any:
        """Return the boto3 client for this address, which all tests share: leave its events as they are."""
        key = (self.url, service)
        if key not in self._clients:  # making one takes longer than most calls
            self._clients[key] = client_of(self.url, service, retries=None)
        return self._clients[key]

    def queue(self, name: str) -> str:
        """Make a queue and return its ARN."""
        self.client("sqs").create_queue(QueueName=name)
        return f"arn:aws:sqs:us-east-1:{self.account}:{name}"

    def messages(self, arn: str) -> list[dict[str, Any]]:
        """Receive and delete the messages of a queue, and return them."""
        client, found = self.client("sqs"), []
        url = client.get_queue_url(QueueName=arn.split(":")[5])["QueueUrl"]
        while batch := client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], WaitTimeSeconds=0
        ).get("Messages"):
            found += batch
            for message in batch:
                client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return found

    def topic(self, name: str) -> tuple[str, str]:
        """Make a topic and a queue that gets its messages; return both ARNs."""
        queue, sns = self.queue(f"{name}-subscribed"), self.client("sns")
        topic = sns.create_topic(Name=name)["TopicArn"]
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue)
        return topic, queue

    def bus(self, name: str) -> tuple[str, str]:
        """Make an event bus and a queue that gets Lambda's events from it; return both ARNs."""
        queue, events = self.queue(f"{name}-ruled"), self.client("events")
        arn = events.create_event_bus(Name=name)["EventBusArn"]
        events.put_rule(Name="all", EventBusName=name, EventPattern='{"source": ["lambda"]}')
        events.put_targets(Rule="all", EventBusName=name, Targets=[{"Id": "queue", "Arn": queue}])
        return arn, queue

    def make_table(self, name: str, *, key: str = "key", kind: str = "S", sort: str | None = None) -> None:
        """Make a table in DynamoDB."""
        keys = [(key, kind, "HASH")] + ([(sort, "S", "RANGE")] if sort else [])
        self.client("dynamodb").create_table(
            TableName=name,
            KeySchema=[{"AttributeName": n, "KeyType": t} for n, _, t in keys],
            AttributeDefinitions=[{"AttributeName": n, "AttributeType": k} for n, k, _ in keys],
            BillingMode="PAY_PER_REQUEST",
        )


class EmulatedAws(AwsAt):
    """moto's server, as `thawd up --aws` runs it.

    Args:
        folder: folder to keep its data in; with None the data is lost when it stops.
        account: id of the account that owns everything.
    """

    def __init__(self, folder: Path | None = None, *, account: str = MOTO_ACCOUNT) -> None:
        super().__init__("", account if folder is None else ACCOUNT_ID)
        self._folder = folder

    def __enter__(self) -> EmulatedAws:
        # With a folder it runs as thawd starts it, with the account id of thawd's own ARNs.
        arguments = [] if self._folder is None else [str(self._folder)]
        self._process = prestarted.Popen(
            [sys.executable, "-m", "thawd.server.emulator.moto_program", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "MOTO_ACCOUNT_ID": self.account},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.communicate()
        self.url = f"http://127.0.0.1:{int(line)}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def stop(self) -> None:
        """Stop it. Its data is lost, unless it keeps it in a folder."""
        self._process.communicate()

    def connect_to_itself(self) -> None:
        """Let it call its own services where it would call thawd: it has no functions then."""
        assert self._process.stdin is not None
        connection = {"url": self.url, "access_key": "test", "secret": "test"}
        self._process.stdin.write(json.dumps(connection).encode() + b"\n")
        self._process.stdin.flush()

    def empty(self) -> None:
        """Delete all its data."""
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/moto-api/reset", b"", method="POST")):
            pass

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._process.kill()
        self._process.wait()


class There:
    """A bucket in the emulated S3, as other programs see it."""

    def __init__(self, aws: EmulatedAws, name: str) -> None:
        self.name = name
        self.url = aws.url
        self.s3 = aws.client("s3")
        self.s3.create_bucket(Bucket=name)

    def put(self, key: str, body: bytes = b"x") -> None:
        self.s3.put_object(Bucket=self.name, Key=key, Body=body)

    def get(self, key: str) -> bytes:
        body: bytes = self.s3.get_object(Bucket=self.name, Key=key)["Body"].read()
        return body

    def stored(self) -> set[str]:
        return {entry["Key"] for entry in self.s3.list_objects_v2(Bucket=self.name).get("Contents", [])}

    def delete(self, key: str) -> None:
        self.s3.delete_object(Bucket=self.name, Key=key)
