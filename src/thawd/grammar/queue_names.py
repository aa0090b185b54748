"""Names of SQS queues: ARNs and URLs. Pure.

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
# Hosts of AWS, of private endpoints, and of emulators that name the region as AWS does.
_HOST = re.compile(rf"(?:[a-z0-9-]+\.)?sqs\.(?P<new>{_REGION})\..+|(?P<old>{_REGION})\.queue\.amazonaws\.com")


@dataclass(frozen=True, slots=True)
class QueueName:
    """An SQS queue.

    Attributes:
        arn: Amazon Resource Name.
        region: region of the queue.
        account: account of the queue, twelve digits.
        name: name of the queue; that of a FIFO queue ends in ``.fifo``.
        url: URL of the queue; None: ask SQS for it.
        endpoint: URL of SQS; None: the endpoint that the AWS configuration of this process names.
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
    """The queue that an ARN or a URL names; None if `text` is neither.

    A URL also names the endpoint, for example an emulator's. Its region is `REGION` unless the host names one.
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
