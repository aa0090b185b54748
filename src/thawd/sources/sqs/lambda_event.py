"""Makes Lambda's event from SQS messages, and reads the failures from a handler's answer. No side effects.

Source: AWS Lambda developer guide, "Using Lambda with Amazon SQS", "Implementing partial batch responses", "Using event
filtering with an Amazon SQS event source".
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from thawd.grammar.event_patterns import Pattern, decode


def record(message: Mapping[str, Any], *, arn: str, region: str) -> dict[str, Any]:
    """Return one message as an element of the event's ``Records``.

    Args:
        message: the message as boto3 returns it.
        arn: the queue's ARN.
        region: the queue's region.
    """
    made: dict[str, Any] = {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": dict(message.get("Attributes", {})),
        "messageAttributes": {name: _attribute(value) for name, value in message.get("MessageAttributes", {}).items()},
        "md5OfBody": message["MD5OfBody"],
        "eventSource": "aws:sqs",
        "eventSourceARN": arn,
        "awsRegion": region,
    }
    if message.get("MD5OfMessageAttributes"):
        made["md5OfMessageAttributes"] = message["MD5OfMessageAttributes"]
    return made


def _attribute(value: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if "StringValue" in value:
        made["stringValue"] = value["StringValue"]
    if "BinaryValue" in value:
        made["binaryValue"] = base64.b64encode(value["BinaryValue"]).decode()
    return {**made, "stringListValues": [], "binaryListValues": [], "dataType": value.get("DataType", "String")}


def event(records: Iterable[bytes]) -> bytes:
    """Return a batch's event as JSON text, from the JSON texts of its records."""
    return b'{"Records":[' + b",".join(records) + b"]}"


def is_wanted(patterns: Sequence[Pattern], encoded: bytes, body: str) -> bool:
    """Return whether a message matches one of the patterns. Without patterns, every message does.

    A pattern on fields of the body matches only bodies that are JSON objects or lists; a pattern on the body itself
    matches only bodies that are neither.

    Args:
        patterns: the mapping's patterns.
        encoded: the record, JSON text.
        body: the message's body.
    """
    if not patterns:
        return True
    document = decode(encoded)
    try:
        parsed = decode(body)
    except ValueError:
        parsed = None
    is_json = isinstance(parsed, dict | list)
    for pattern in patterns:
        forms = pattern.forms_of("body")
        if ("object" in forms and not is_json) or ("list" in forms and is_json):
            continue
        if pattern.matches({**document, "body": parsed} if "object" in forms else document):
            return True
    return False


def failures(answer: bytes, ids: Iterable[str]) -> set[str] | None:
    """Return the ids of the messages that a handler's answer names as failed.

    If the answer has no ``batchItemFailures``, or an empty list there, all messages succeeded. The answer is not valid
    if an item has no ``itemIdentifier``, or if the identifier is empty or not that of a message of the batch.

    Args:
        answer: the handler's answer, JSON text.
        ids: ids of the messages of the batch.

    Returns:
        The ids; None: the answer is not valid, so all messages have failed.
    """
    try:
        decoded = msgspec.json.decode(answer or b"null", type=_Answer | None)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    named = {one.itemIdentifier for one in (decoded.batchItemFailures or () if decoded is not None else ())}
    return named if named <= set(ids) else None


class _Failure(msgspec.Struct):
    itemIdentifier: str  # noqa: N815 - AWS's name


class _Answer(msgspec.Struct):
    batchItemFailures: list[_Failure] | None = None  # noqa: N815 - AWS's name
