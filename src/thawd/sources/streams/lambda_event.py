"""Makes Lambda's event from records of a stream, and the documents about batches. No side effects.

Source: AWS Lambda developer guide, "Using AWS Lambda with Amazon Kinesis", "… with Amazon DynamoDB", "Using event
filtering with …", "Configuring destinations for failed invocations", "Implementing partial batch responses".
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from thawd.grammar.event_patterns import Pattern, decode
from thawd.sources.streams.client import RawRecord


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """One record of a shard.

    Attributes:
        sequence: the record's sequence number.
        key: what orders it: the partition key, or the item's key. Records with the same key are processed in order.
        identity: identifies the record besides its sequence number.
        arrived_at: when it was written, seconds since the epoch.
        content: the element of the event's ``Records``, JSON text.
        wanted: whether a filter lets it pass.
    """

    sequence: str
    key: str
    identity: str
    arrived_at: float
    content: bytes
    wanted: bool = True


def kinesis_record(raw: RawRecord, *, shard: str, arn: str, region: str, role: str) -> dict[str, Any]:
    """Return a record of a Kinesis stream as an element of the event's ``Records``.

    Args:
        raw: the record as boto3 returns it.
        shard: id of its shard.
        arn: ARN of the event source.
        region: region of the stream.
        role: ARN of the function's role.
    """
    return {
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "partitionKey": raw["PartitionKey"],
            "sequenceNumber": raw["SequenceNumber"],
            "data": base64.b64encode(raw["Data"]).decode(),
            "approximateArrivalTimestamp": round(raw["ApproximateArrivalTimestamp"].timestamp(), 3),
        },
        "eventSource": "aws:kinesis",
        "eventVersion": "1.0",
        "eventID": f"{shard}:{raw['SequenceNumber']}",
        "eventName": "aws:kinesis:record",
        "invokeIdentityArn": role,
        "awsRegion": region,
        "eventSourceARN": arn,
    }


def dynamodb_record(raw: RawRecord, *, arn: str) -> dict[str, Any]:
    """Return a record of a DynamoDB stream as an element of the event's ``Records``; binary values become Base64.

    Args:
        raw: the record as boto3 returns it.
        arn: ARN of the stream.
    """
    change = dict(raw["dynamodb"])
    created = change.get("ApproximateCreationDateTime")
    if created is not None:
        change["ApproximateCreationDateTime"] = float(int(created.timestamp()))
    for name in ("Keys", "NewImage", "OldImage"):
        if name in change:
            change[name] = {key: _attribute(value) for key, value in change[name].items()}
    made = {
        "eventID": raw["eventID"],
        "eventName": raw["eventName"],
        "eventVersion": raw.get("eventVersion", "1.1"),
        "eventSource": "aws:dynamodb",
        "awsRegion": raw["awsRegion"],
        "dynamodb": change,
        "eventSourceARN": arn,
    }
    if raw.get("userIdentity"):  # of an item that its time to live removed
        identity = raw["userIdentity"]
        made["userIdentity"] = {"principalId": identity.get("PrincipalId"), "type": identity.get("Type")}
    return made


def _attribute(value: Any) -> Any:
    """Return an attribute value in DynamoDB's JSON form, with binary values as Base64 text."""
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {name: _attribute(inner) for name, inner in value.items()}
    if isinstance(value, list | set):
        return [_attribute(inner) for inner in value]
    return value


def stream_record(  # noqa: PLR0913 - what a record is made from
    raw: RawRecord, *, service: str, shard: str, arn: str, region: str, role: str, patterns: Sequence[Pattern]
) -> StreamRecord:
    """Return a record with its content and whether the filters let it pass.

    Args:
        raw: the record as boto3 returns it.
        service: ``kinesis`` or ``dynamodb``.
        shard: id of its shard.
        arn: ARN of the event source.
        region: region of the stream.
        role: ARN of the function's role.
        patterns: the mapping's patterns; empty: every record passes.
    """
    if service == "kinesis":
        arrived_at = raw["ApproximateArrivalTimestamp"].timestamp()
        made = kinesis_record(raw, shard=shard, arn=arn, region=region, role=role)
        sequence, key = raw["SequenceNumber"], raw["PartitionKey"]
        identity = f"{arrived_at:.3f} {key}"
    else:
        made = dynamodb_record(raw, arn=arn)
        change = made["dynamodb"]
        created = raw["dynamodb"].get("ApproximateCreationDateTime")
        arrived_at = created.timestamp() if created is not None else 0.0
        sequence, identity = change["SequenceNumber"], raw["eventID"]
        key = msgspec.json.encode(change.get("Keys", {}), order="sorted").decode()
    content = msgspec.json.encode(made)
    wanted = not patterns or _is_wanted(patterns, content, service)
    return StreamRecord(sequence, key, identity, arrived_at, content, wanted)


def _is_wanted(patterns: Sequence[Pattern], content: bytes, service: str) -> bool:
    """Return whether a record matches one of the patterns.

    For Kinesis, a pattern sees the fields of ``kinesis`` at the top, with the data decoded: as JSON if it is JSON, else
    as text. A pattern on fields of the data matches only JSON data.
    """
    document = decode(content)
    if service != "kinesis":
        return any(pattern.matches(document) for pattern in patterns)
    inner = document.pop("kinesis")
    data = base64.b64decode(inner["data"])
    parsed: Any = None
    try:
        text = data.decode()
        parsed = decode(text)
    except ValueError:
        text = data.decode(errors="replace")
    inner["data"] = parsed if isinstance(parsed, dict | list) else text
    merged = {**document, **inner}
    return any(pattern.matches(merged) for pattern in patterns)


def event(records: Sequence[StreamRecord]) -> bytes:
    """Return a batch's event as JSON text."""
    return b'{"Records":[' + b",".join(record.content for record in records) + b"]}"


def first_failure(answer: bytes, records: Sequence[StreamRecord]) -> int | None:
    """Return the index of the first record that a handler's answer names as failed; None: all succeeded.

    If the answer is not valid, for example because it names a record that is not in the batch, the first record counts
    as failed, and with it the whole batch.
    """
    try:
        decoded = msgspec.json.decode(answer or b"null")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 0
    if decoded in (None, "", [], {}):
        return None
    if not isinstance(decoded, dict):
        return 0
    failures = decoded.get("batchItemFailures")
    if failures is None:
        return None
    if not isinstance(failures, list):
        return 0
    indexes = {record.sequence: index for index, record in enumerate(records)}
    named = [one.get("itemIdentifier") if isinstance(one, dict) else None for one in failures]
    return min((indexes.get(one, 0) if isinstance(one, str) else 0 for one in named), default=None)


def batch_info(records: Sequence[StreamRecord], *, service: str, shard: str, arn: str) -> dict[str, Any]:
    """Return what a discarded batch was, by the name under which a record of the failure contains it.

    Args:
        records: the records of the batch; empty: the last invocation of a tumbling window, which has none.
        service: ``kinesis`` or ``dynamodb``.
        shard: id of their shard.
        arn: ARN of the event source.
    """
    milliseconds = service == "kinesis"
    if not records:
        name = "KinesisBatchInfo" if milliseconds else "DDBStreamBatchInfo"
        return {name: {"shardId": shard, "batchSize": 0, "streamArn": arn}}
    return {
        "KinesisBatchInfo" if milliseconds else "DDBStreamBatchInfo": {
            "shardId": shard,
            "startSequenceNumber": records[0].sequence,
            "endSequenceNumber": records[-1].sequence,
            "approximateArrivalOfFirstRecord": time_text(records[0].arrived_at, milliseconds=milliseconds),
            "approximateArrivalOfLastRecord": time_text(records[-1].arrived_at, milliseconds=milliseconds),
            "batchSize": len(records),
            "streamArn": arn,
        }
    }


def time_text(at: float, *, milliseconds: bool = True) -> str:
    """Return a time, in seconds since the epoch, as AWS writes it in records of failures."""
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds" if milliseconds else "seconds")
    return text.replace("+00:00", "Z")


def object_key(mapping: str, shard: str, *, at: float, unique: str) -> str:
    """Return the key of the object that contains a failure's record, in AWS's form.

    Args:
        mapping: UUID of the event source mapping.
        shard: id of the shard.
        at: the time, seconds since the epoch.
        unique: text that no other record has.
    """
    shown = re.sub(r"[^A-Za-z0-9_-]", "-", shard)
    return f"aws/lambda/{mapping}/{shown}/{datetime.fromtimestamp(at, UTC):%Y/%m/%d/%Y-%m-%dT%H.%M.%S}-{unique}"
