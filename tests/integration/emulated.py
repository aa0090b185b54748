"""AWS, emulated in a process of its own for tests."""

from __future__ import annotations

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
"""Whose everything is unless it is told another account."""


class AwsAt:
    """AWS at a URL: clients of it, and what tests make there.

    Args:
        url: where it is.
        account: whose queues are made there.
    """

    def __init__(self, url: str, account: str = ACCOUNT_ID) -> None:
        self.url = url
        self.account = account

    def client(self, service: str) -> Any:
        """A boto3 client of it."""
        return client_of(self.url, service, retries=None)

    def queue(self, name: str) -> str:
        """Make a queue; its ARN."""
        self.client("sqs").create_queue(QueueName=name)
        return f"arn:aws:sqs:us-east-1:{self.account}:{name}"

    def messages(self, arn: str) -> list[dict[str, Any]]:
        """What lies in a queue, taken out of it."""
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
        """Make a topic and a queue that gets what is published; their ARNs."""
        queue, sns = self.queue(f"{name}-subscribed"), self.client("sns")
        topic = sns.create_topic(Name=name)["TopicArn"]
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue)
        return topic, queue

    def bus(self, name: str) -> tuple[str, str]:
        """Make an event bus and a queue that gets the events of Lambda; their ARNs."""
        queue, events = self.queue(f"{name}-ruled"), self.client("events")
        arn = events.create_event_bus(Name=name)["EventBusArn"]
        events.put_rule(Name="all", EventBusName=name, EventPattern='{"source": ["lambda"]}')
        events.put_targets(Rule="all", EventBusName=name, Targets=[{"Id": "queue", "Arn": queue}])
        return arn, queue

    def make_table(self, name: str, *, key: str = "key", kind: str = "S", sort: str | None = None) -> None:
        """A table in DynamoDB."""
        keys = [(key, kind, "HASH")] + ([(sort, "S", "RANGE")] if sort else [])
        client = self.client("dynamodb")
        client.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": n, "KeyType": t} for n, _, t in keys],
            AttributeDefinitions=[{"AttributeName": n, "AttributeType": k} for n, k, _ in keys],
            BillingMode="PAY_PER_REQUEST",
        )
        client.close()


class EmulatedAws(AwsAt):
    """moto's server, as `thawd up --aws` runs it.

    Args:
        folder: keeps what it holds; None: that ends with it.
        account: whose everything is.
    """

    def __init__(self, folder: Path | None = None, *, account: str = MOTO_ACCOUNT) -> None:
        super().__init__("", account if folder is None else ACCOUNT_ID)
        self._folder = folder

    def __enter__(self) -> EmulatedAws:
        # With a folder as thawd starts it: as the account that thawd's own ARNs are of.
        arguments = [] if self._folder is None else [str(self._folder)]
        self._process = prestarted.Popen(
            [sys.executable, "-m", "thawd.server.emulator.program", *arguments],
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

    def stop(self) -> None:
        """End it; what it held is gone, unless a folder keeps it."""
        self._process.communicate()

    def empty(self) -> None:
        """Forget all that it holds."""
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/moto-api/reset", b"", method="POST")):
            pass

    def kill(self) -> None:
        """Kill it with -9."""
        self._process.kill()
        self._process.wait()


class There:
    """A bucket in the emulated S3, as people and other programs use it."""

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
