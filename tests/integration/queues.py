"""SQS for tests: moto's server in a separate process, which keeps running when the tested thawd stops, and its
client."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from tests.clients import client_of

from .emulated import MOTO_ACCOUNT, EmulatedAws

ENVIRON = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
"""Environment variables for a thawd that reads these queues."""
ACCOUNT = MOTO_ACCOUNT
"""The account that owns the queues."""


class Sqs:
    """The emulated service.

    Attributes:
        url: its address.
        client: a boto3 client for it.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = client_of(url, "sqs", retries=None)

    def queue(self, name: str, **attributes: str) -> str:
        """Make a queue and return its URL."""
        return str(self.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])

    def arn(self, url: str) -> str:
        """Return the ARN of a queue."""
        return str(
            self.client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        )

    def send(self, url: str, bodies: Iterable[Any]) -> list[str]:
        """Send messages, each as JSON, and return their ids in order."""
        entries = [{"Id": str(n), "MessageBody": json.dumps(body)} for n, body in enumerate(bodies)]
        ids = []
        for start in range(0, len(entries), 10):
            answer = self.client.send_message_batch(QueueUrl=url, Entries=entries[start : start + 10])
            found = {one["Id"]: one["MessageId"] for one in answer["Successful"]}
            ids += [found[entry["Id"]] for entry in entries[start : start + 10]]
        return ids

    def depth(self, url: str) -> tuple[int, int]:
        """Return how many messages wait, and how many are in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return int(found[names[0]]), int(found[names[1]])


@contextlib.contextmanager
def emulated() -> Iterator[Sqs]:
    """Run the emulated SQS."""
    with EmulatedAws() as aws:
        yield Sqs(aws.url)
