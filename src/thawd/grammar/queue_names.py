"""Parses ARNs and URLs of SQS queues. No side effects.

Source: Amazon SQS developer guide, "Queue and message identifiers"; AWS general reference, "Amazon SQS endpoints".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from thawd.resources import REGION

_NAME = r"(?P<name>[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo)"
_ARN = re.compile(rf"arn:(?P<partition>aws[a-z-]*):sqs:(?P<region>[a-z0-9-]+):(?P<account>\d{{12}}):{_NAME}")
_URL = re.compile(rf"(?P<endpoint>https?://(?P<host>[^/\s?#@]+))/(?P<account>\d{{12}})/{_NAME}")
_REGION = r"[a-z]{2}(?:-[a-z]+)+-\d"
# Host names that contain the region: those of AWS, of private endpoints, and of emulators that use AWS's form.
_HOST = re.compile(rf"(?:[a-z0-9-]+\.)?sqs\.(?P<new>{_REGION})\..+|(?P<old>{_REGION})\.queue\.amazonaws\.com")


@dataclass(frozen=True, slots=True)
class QueueName:
    """An SQS queue.

    Attributes:
        arn: Amazon Resource Name.
        region: region of the queue.
        account: account of the queue, twelve digits.
        name: name of the queue; the name of a FIFO queue ends in ``.fifo``.
        url: URL of the queue; None: unknown, so a request to SQS must find it.
        endpoint: URL of SQS; None: the endpoint in this process's AWS configuration.
    """

    arn: str
    region: str
    account: str
    name: str
    url: str | None = None
    endpoint: str | None = None

    @property
    def is_fifo(self) -> bool:
        """Whether the queue is a FIFO queue, which keeps its messages in order."""
        return self.name.endswith(".fifo")


def parse(text: str) -> QueueName | None:
    """Return the queue that an ARN or a URL names; None: `text` is neither.

    If `text` is a URL, it also gives the endpoint. The region is the one in the URL's host, or `REGION` if the host has
    none.
    """
    if match := _ARN.fullmatch(text):
        return QueueName(text, match["region"], match["account"], match["name"])
    match = _URL.fullmatch(text)
    if match is None:
        return None
    host = _HOST.fullmatch(match["host"])
    region = (host["new"] or host["old"]) if host is not None else REGION
    partition = "aws-cn" if match["host"].endswith(".cn") else "aws"
    arn = f"arn:{partition}:sqs:{region}:{match['account']}:{match['name']}"
    return QueueName(arn, region, match["account"], match["name"], url=text, endpoint=match["endpoint"])
