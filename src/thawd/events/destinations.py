"""Where the outcome of an asynchronous invocation goes: a table or a bucket.

Source of the record's fields: AWS Lambda developer guide, "Retaining records of asynchronous invocations".
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from thawd.errors import InvalidParameterValueException, ServiceException, StoreError
from thawd.invocation import Result
from thawd.resources import Bucket, Destination
from thawd.state.events import Event, NewEvent
from thawd.state.tables import Tables

_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode


def record(event: Event, *, arn: str, condition: str, result: Result | None, attempts: int) -> dict[str, Any]:
    """Lambda's record of an invocation.

    Args:
        event: the event.
        arn: of the function.
        condition: ``Success``, ``RetriesExhausted`` or ``EventAgeExceeded``.
        result: of the last attempt, None when there was none.
        attempts: how often the function was invoked with it.
    """
    made: dict[str, Any] = {
        "version": "1.0",
        "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z",
        "requestContext": {
            "requestId": event.request_id,
            "functionArn": f"{arn}:$LATEST",
            "condition": condition,
            "approximateInvokeCount": attempts,
        },
        "requestPayload": msgspec.Raw(event.payload),
    }
    if result is not None:
        made["responseContext"] = {"statusCode": 200, "executedVersion": result.executed_version}
        if result.function_error is not None:
            made["responseContext"]["functionError"] = result.function_error
        made["responsePayload"] = msgspec.Raw(result.payload)
    return made


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """An outcome on its way to its destination. It can be stored and tried again; one that arrives twice leaves one.

    Attributes:
        destination: where to.
        function: whose outcome it is.
        request_id: of the invocation.
        key: under which a table or a bucket stores it.
        body: the item or the record, JSON text in UTF-8.
        success: whether it is an answer, not the record of an event that was given up.
    """

    destination: Destination
    function: str
    request_id: str
    key: str
    body: bytes
    success: bool


class Destinations:
    """Makes deliveries and carries them out."""

    def __init__(self, tables: Tables, buckets: Mapping[str, Bucket]) -> None:
        self._tables = tables
        self._buckets = buckets

    def success(self, destination: Destination, event: Event, result: Result, *, arn: str) -> Delivery:
        """A handler's answer: for a table the item of the event's row, for others the whole record.

        Raises:
            InvalidParameterValueException: the answer is no JSON.
        """
        if destination.kind == "table":
            body = as_item(result.payload)
        else:
            check_json(result.payload)
            made = record(event, arn=arn, condition="Success", result=result, attempts=event.attempts + 1)
            body = msgspec.json.encode(made)
        return _delivery(destination, event, body, success=True)

    def failure(
        self,
        destination: Destination,
        event: Event,
        *,
        arn: str,
        condition: str,
        result: Result | None,
        attempts: int,
    ) -> Delivery:
        """The record of an event that was given up; the arguments are those of `record`."""
        made = record(event, arn=arn, condition=condition, result=result, attempts=attempts)
        return _delivery(destination, event, msgspec.json.encode(made), success=False)

    def as_event(self, delivery: Delivery) -> NewEvent | None:
        """The event that a delivery to a function is; None for other destinations."""
        return None

    async def deliver(self, delivery: Delivery) -> None:
        """Bring it to its destination; when this returns it is there to stay.

        Raises:
            ThawdError: it was not taken; `ThawdError.retryable` says whether it may be another time.
        """
        destination = delivery.destination
        if destination.kind == "table":
            table = await self._tables.get(destination.name)
            await table.put(delivery.key, delivery.body)
            return
        bucket = self._buckets.get(destination.name)
        if bucket is None:
            raise ServiceException(f"there is no bucket {destination.name}")
        await asyncio.to_thread(write_object, bucket.path, delivery.key, delivery.body)


def _delivery(destination: Destination, event: Event, body: bytes, *, success: bool) -> Delivery:
    key = event.row_key or event.request_id if destination.kind == "table" else f"{event.request_id}.json"
    return Delivery(
        destination=destination,
        function=event.function,
        request_id=event.request_id,
        key=key,
        body=body,
        success=success,
    )


def check_json(payload: bytes) -> None:
    """Make sure that a handler's answer is JSON: Python's encoder lets NaN through, as on Lambda.

    Raises:
        InvalidParameterValueException: it is not.
    """
    try:
        _decode_raw(payload)
    except msgspec.DecodeError as error:
        raise InvalidParameterValueException(f"the handler's answer is no JSON: {error}; NaN is none") from None


def as_item(payload: bytes) -> bytes:
    """A handler's answer as an item of a table: an object as it is, anything else as ``{"value": …}``."""
    value = payload.lstrip()
    return payload if value.startswith(b"{") else b'{"value":' + payload + b"}"


def write_object(folder: Path, key: str, data: bytes) -> None:
    """Write an object so that it appears at once and whole.

    Raises:
        StoreError: it could not be written.
    """
    path = folder / key
    # Hidden until it is whole. Not by `tempfile`, whose files only their owner can read.
    staged = path.parent / f".thawd-{secrets.token_hex(16)}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            staged.replace(path)
        except BaseException:
            staged.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StoreError(f"{path} could not be written: {error.strerror}; free space or mend its folder") from error
