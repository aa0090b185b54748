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
from thawd.state.queue import Event
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


class Destinations:
    """Stores outcomes. Storing the same one again replaces it, so that a repeated attempt leaves one."""

    def __init__(self, tables: Tables, buckets: Mapping[str, Bucket]) -> None:
        self._tables = tables
        self._buckets = buckets

    async def succeeded(self, destination: Destination, event: Event, result: Result, *, arn: str) -> None:
        """Store a handler's answer: in a table as the item of the event's row, in a bucket as the whole record.

        Raises:
            StoreError: it could not be stored.
        """
        if destination.kind == "table":
            await self._put(destination, event, as_item(result.payload))
        else:
            check_json(result.payload)
            made = record(event, arn=arn, condition="Success", result=result, attempts=event.attempts + 1)
            await self._write(destination, event, msgspec.json.encode(made))

    async def failed(self, destination: Destination, event: Event, made: Mapping[str, Any]) -> None:
        """Store the record of an event that was given up.

        Raises:
            StoreError: it could not be stored.
        """
        data = msgspec.json.encode(made)
        if destination.kind == "table":
            await self._put(destination, event, data)
        else:
            await self._write(destination, event, data)

    async def _put(self, destination: Destination, event: Event, item: bytes) -> None:
        table = await self._tables.get(destination.name)
        await table.put(event.row_key or event.request_id, item)

    async def _write(self, destination: Destination, event: Event, data: bytes) -> None:
        bucket = self._buckets.get(destination.name)
        if bucket is None:
            raise ServiceException(f"there is no bucket {destination.name}")
        await asyncio.to_thread(write_object, bucket.path, f"{event.request_id}.json", data)


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
