"""SQS for tests: moto's server in a process of its own, which outlives the thawd under test, and its client."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import boto3

ENVIRON = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
"""What a thawd that reads these queues finds in its environment."""


class Sqs:
    """The emulated service.

    Attributes:
        url: of it.
        client: a boto3 client of it.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = boto3.client(
            "sqs", endpoint_url=url, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
        )

    def queue(self, name: str, **attributes: str) -> str:
        """Make a queue; its URL."""
        return str(self.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])

    def arn(self, url: str) -> str:
        """The ARN of a queue."""
        return str(
            self.client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        )

    def send(self, url: str, bodies: Iterable[Any]) -> list[str]:
        """Send messages, JSON of each; their ids, in order."""
        entries = [{"Id": str(n), "MessageBody": json.dumps(body)} for n, body in enumerate(bodies)]
        ids = []
        for start in range(0, len(entries), 10):
            answer = self.client.send_message_batch(QueueUrl=url, Entries=entries[start : start + 10])
            found = {one["Id"]: one["MessageId"] for one in answer["Successful"]}
            ids += [found[entry["Id"]] for entry in entries[start : start + 10]]
        return ids

    def depth(self, url: str) -> tuple[int, int]:
        """How many messages wait, and how many are in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return int(found[names[0]]), int(found[names[1]])


@contextlib.contextmanager
def emulated() -> Iterator[Sqs]:
    """The service while it lasts."""
    process = subprocess.Popen(
        [sys.executable, "-m", "thawd.emulated_aws"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "MOTO_ACCOUNT_ID": "000000000000"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Sqs(f"http://127.0.0.1:{int(process.stdout.readline())}")
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
