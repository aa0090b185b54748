"""Kinesis data streams for DynamoDB: changes of a table's items become records of a stream.

This runs in the emulator's own process. moto does not have these operations. A table's destinations are saved with the
table.

Guarantees:
- a change becomes one record in each active destination, also if the table has no stream of its own;
- a transaction that is refused leaves no record, and neither does a write that changes nothing;
- two changes at one time have different sequence numbers.

Source: DynamoDB developer guide, "Using Kinesis Data Streams to capture changes to DynamoDB"; DynamoDB API reference.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

_ATTRIBUTE, _SHARD = "thawd_kinesis_destinations", "stream_shard"
_MILLISECOND = "MILLISECOND"
_UNITS = {_MILLISECOND: 1_000, "MICROSECOND": 1_000_000}
# Source: DynamoDB API reference, "EnableKinesisStreamingDestination".
_MOST_DESTINATIONS = 2
_pending = threading.local()


def install_operations() -> None:
    """Change ``moto.dynamodb.responses``: add the operations."""
    from moto.dynamodb.responses import DynamoHandler

    operations = {"enable": _enable, "disable": _disable, "describe": _describe, "update": _update}
    for verb, operation in operations.items():
        setattr(DynamoHandler, f"{verb}_kinesis_streaming_destination", _answering(operation))


def install_records() -> None:
    """Change ``moto.dynamodb.models``: let changes of items reach the destinations."""
    from moto.dynamodb.models import DynamoDBBackend
    from moto.dynamodb.models.table import Table

    # A property takes the place of the attribute; the value stays in the object, so saved states are as before.
    def shard_of(table: Any) -> Any:
        shard = table.__dict__.get(_SHARD)
        return _Recorder(table, shard) if _active(table) else shard

    def set_shard(table: Any, shard: Any) -> None:
        table.__dict__[_SHARD] = shard.shard if isinstance(shard, _Recorder) else shard

    setattr(Table, _SHARD, property(shard_of, set_shard))
    transact = DynamoDBBackend.transact_write_items

    def transact_write_items(backend: Any, transact_items: list[dict[str, Any]]) -> None:
        with _together():
            transact(backend, transact_items)

    setattr(DynamoDBBackend, "transact_write_items", transact_write_items)  # noqa: B010 - mypy forbids to assign it


def install_numbers() -> None:
    """Change ``moto.kinesis.models``: two records at one time do not get the same sequence number."""
    from moto.kinesis.models import Shard

    put_record, lock = Shard.put_record, threading.Lock()

    def put_alone(shard: Any, *given: Any, **named: Any) -> str:
        with lock:
            return put_record(shard, *given, **named)

    setattr(Shard, "put_record", put_alone)  # noqa: B010 - mypy forbids to assign it


def table_shard(table: Any) -> Any:
    """The shard of a table's own stream; None: it has no stream."""
    shard = table.stream_shard
    return shard.shard if isinstance(shard, _Recorder) else shard


class _Recorder:
    """Stands for the shard of a table's stream while the table has destinations.

    Attributes:
        shard: the shard of the table's own stream; None: it has none.
    """

    def __init__(self, table: Any, shard: Any) -> None:
        self._table, self.shard = table, shard

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shard, name)

    def add(self, old: Any, new: Any) -> None:
        """Record a change: None stands for an item that was not there, or is no longer."""
        from moto.dynamodb.models.table import StreamRecord

        if self.shard is not None:
            self.shard.add(old, new)
        if old is not None and new is not None and old.to_json() == new.to_json():
            return
        name = "INSERT" if old is None else "REMOVE" if new is None else "MODIFY"
        record = StreamRecord(self._table, "NEW_AND_OLD_IMAGES", name, old, new, 0).to_json()
        sends = [_send(self._table, arn, destination, record) for arn, destination in _active(self._table).items()]
        waiting = getattr(_pending, "sends", None)
        if waiting is not None:
            waiting += sends
            return
        for send in sends:
            send()


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Send the records of a transaction when it has succeeded."""
    sends: list[Callable[[], None]] = []
    _pending.sends = sends
    try:
        yield
    finally:
        _pending.sends = None
    for send in sends:
        send()


def _send(table: Any, arn: str, destination: dict[str, Any], record: dict[str, Any]) -> Callable[[], None]:
    """What puts a record into a stream.

    Source: DynamoDB developer guide, "Working with Kinesis Data Streams and DynamoDB Streams", for the record's form.
    """
    change = record["dynamodb"]
    precision = destination["ApproximateCreationDateTimePrecision"]
    changed = {name: change[name] for name in ("Keys", "NewImage", "OldImage", "SizeBytes") if name in change}
    changed["ApproximateCreationDateTime"] = int(change["ApproximateCreationDateTime"].timestamp() * _UNITS[precision])
    if precision != _MILLISECOND:
        changed["ApproximateCreationDateTimePrecision"] = precision
    document = {
        "awsRegion": table.region_name,
        "eventID": record["eventID"],
        "eventName": record["eventName"],
        "userIdentity": None,
        "recordFormat": "application/json",
        "tableName": table.name,
        "dynamodb": changed,
        "eventSource": "aws:dynamodb",
    }
    data = base64.b64encode(json.dumps(document).encode()).decode()
    key = json.dumps(change["Keys"], sort_keys=True)[:256]

    def send() -> None:
        from moto.core.exceptions import JsonRESTError
        from moto.kinesis.models import kinesis_backends

        try:
            kinesis_backends[table.account_id][table.region_name].put_record(arn, "", key, "", data)
        except JsonRESTError:  # the stream was deleted
            destination["DestinationStatus"] = "ENABLE_FAILED"
            destination["DestinationStatusDescription"] = "The stream does not exist."

    return send


def _destinations(table: Any) -> dict[str, dict[str, Any]]:
    """The destinations of a table by the ARN of their stream, also those that were disabled."""
    found: dict[str, dict[str, Any]] = table.__dict__.setdefault(_ATTRIBUTE, {})
    return found


def _active(table: Any) -> dict[str, dict[str, Any]]:
    known: dict[str, dict[str, Any]] = table.__dict__.get(_ATTRIBUTE, {})
    return {arn: each for arn, each in known.items() if each["DestinationStatus"] == "ACTIVE"}


def _answering(operation: Callable[[Any, dict[str, Any]], dict[str, Any]]) -> Callable[[Any], Any]:
    def answer(handler: Any) -> Any:
        from moto.core.responses import ActionResult

        table = handler.dynamodb_backend.get_table(handler.body["TableName"])
        return ActionResult({"TableName": table.name, **operation(table, handler.body)})

    return answer


def _enable(table: Any, body: dict[str, Any]) -> dict[str, Any]:
    """EnableKinesisStreamingDestination. It is active immediately."""
    arn, known = body["StreamArn"], _destinations(table)
    if arn in _active(table):
        raise _invalid(f"Table is not in a valid state to enable Kinesis Streaming Destination: {arn} is ACTIVE")
    if len(_active(table)) == _MOST_DESTINATIONS:
        raise _invalid(f"A table has at most {_MOST_DESTINATIONS} Kinesis Streaming Destinations")
    _check_stream(table, arn)
    settings = body.get("EnableKinesisStreamingConfiguration") or {}
    precision = settings.get("ApproximateCreationDateTimePrecision", _MILLISECOND)
    known[arn] = {"DestinationStatus": "ACTIVE", "ApproximateCreationDateTimePrecision": precision}
    return _changing(arn, "ENABLING", EnableKinesisStreamingConfiguration=settings)


def _disable(table: Any, body: dict[str, Any]) -> dict[str, Any]:
    """DisableKinesisStreamingDestination."""
    _active_one(table, body)["DestinationStatus"] = "DISABLED"
    return _changing(body["StreamArn"], "DISABLING")


def _update(table: Any, body: dict[str, Any]) -> dict[str, Any]:
    """UpdateKinesisStreamingDestination."""
    settings = body.get("UpdateKinesisStreamingConfiguration") or {}
    _active_one(table, body).update(settings)
    return _changing(body["StreamArn"], "UPDATING", UpdateKinesisStreamingConfiguration=settings)


def _describe(table: Any, body: dict[str, Any]) -> dict[str, Any]:
    """DescribeKinesisStreamingDestination."""
    return {"KinesisDataStreamDestinations": [{"StreamArn": arn, **each} for arn, each in _destinations(table).items()]}


def _changing(arn: str, status: str, **more: Any) -> dict[str, Any]:
    return {"StreamArn": arn, "DestinationStatus": status, **{name: each for name, each in more.items() if each}}


def _active_one(table: Any, body: dict[str, Any]) -> dict[str, Any]:
    found = _active(table).get(body["StreamArn"])
    if found is None:
        raise _invalid(f"Table has no active Kinesis Streaming Destination {body['StreamArn']}")
    return found


def _check_stream(table: Any, arn: str) -> None:
    from moto.core.exceptions import JsonRESTError
    from moto.kinesis.models import kinesis_backends

    try:
        kinesis_backends[table.account_id][table.region_name].describe_stream(arn, "")
    except JsonRESTError:
        from moto.dynamodb.exceptions import ResourceNotFoundException

        raise ResourceNotFoundException(msg=f"Requested resource not found: Stream: {arn} not found") from None


def _invalid(message: str) -> Exception:
    from moto.dynamodb.exceptions import MockValidationException

    return MockValidationException(message)
