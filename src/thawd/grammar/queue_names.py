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
# AWS's own, private ones, and those of emulators that name the region as AWS does.
_HOST = re.compile(rf"(?:[a-z0-9-]+\.)?sqs\.(?P<new>{_REGION})\..+|(?P<old>{_REGION})\.queue\.amazonaws\.com")


@dataclass(frozen=True, slots=True)
class QueueName:
    """A queue.

    Attributes:
        arn: its Amazon Resource Name.
        region: where it is.
        account: whose it is, twelve digits.
        name: its own name; that of a FIFO queue ends in ``.fifo``.
        url: its URL; None: to be asked for.
        endpoint: where SQS answers; None: as the surroundings say.
    """

    arn: str
    region: str
    account: str
    name: str
    url: str | None = None
    endpoint: str | None = None

    @property
    def is_fifo(self) -> bool:
        """Whether its messages keep their order."""
        return self.name.endswith(".fifo")


def parse(given: str) -> QueueName | None:
    """The queue that an ARN or a URL names; None when it is neither.

    A URL says where SQS answers, so that an emulator is named by it; its region is `REGION` unless its host tells.
    """
    if match := _ARN.fullmatch(given):
        return QueueName(given, match["region"], match["account"], match["name"])
    match = _URL.fullmatch(given)
    if match is None:
        return None
    host = _HOST.fullmatch(match["host"])
    region = (host["new"] or host["old"]) if host is not None else REGION
    partition = "aws-cn" if match["host"].endswith(".cn") else "aws"
    arn = f"arn:{partition}:sqs:{region}:{match['account']}:{match['name']}"
    return QueueName(arn, region, match["account"], match["name"], url=given, endpoint=match["endpoint"])
