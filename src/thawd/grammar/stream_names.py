"""Parses ARNs of Kinesis and DynamoDB streams. No side effects.

Source: service authorization reference, "Resource types defined by Amazon Kinesis Data Streams" and "… by Amazon
DynamoDB".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PLACE = r"arn:aws[a-z-]*:{service}:(?P<region>[a-z0-9-]+):(?P<account>\d{{12}})"
_KINESIS = re.compile(
    _PLACE.format(service="kinesis") + r":stream/(?P<name>[a-zA-Z0-9_.-]{1,128})(?P<consumer>/consumer/[!-~]+)?"
)
_DYNAMODB = re.compile(
    _PLACE.format(service="dynamodb") + r":table/(?P<name>[a-zA-Z0-9_.-]{1,255})/stream/(?P<label>[0-9T:.-]+)"
)


@dataclass(frozen=True, slots=True)
class StreamName:
    """A stream.

    Attributes:
        arn: ARN of the stream; for a consumer of a Kinesis stream, the ARN of that stream.
        service: ``kinesis`` or ``dynamodb``.
        region: region of the stream.
        name: name of the stream, or of the table.
    """

    arn: str
    service: str
    region: str
    name: str


def parse(arn: str) -> StreamName | None:
    """Return the stream that an ARN names; None: it names none."""
    if match := _KINESIS.fullmatch(arn):
        return StreamName(arn.removesuffix(match["consumer"] or ""), "kinesis", match["region"], match["name"])
    if match := _DYNAMODB.fullmatch(arn):
        return StreamName(arn, "dynamodb", match["region"], match["name"])
    return None
