"""The records of asynchronous invocations that destinations receive. No side effects; only the clock is read.

Source of the record's fields and of the object keys: AWS Lambda developer guide, "Capturing records of Lambda
asynchronous invocations".
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from thawd.errors import InvalidParameterValueException
from thawd.invocation import Result
from thawd.resources import LATEST
from thawd.stores.events.event_rows import Event

MAX_ERROR_BYTES = 1024
"""Most bytes of an error message in a message attribute of a dead letter."""

# Errors that decoding raises if a payload is not JSON. A custom runtime can answer with any bytes.
_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode


class _ErrorDocument(msgspec.Struct):
    error_message: str | None = msgspec.field(default=None, name="errorMessage")


class _Context(msgspec.Struct):
    function_arn: str = msgspec.field(name="functionArn")


class _Record(msgspec.Struct):
    context: _Context = msgspec.field(name="requestContext")


def record(event: Event, *, arn: str, condition: str, result: Result | None, attempts: int) -> dict[str, Any]:
    """Return Lambda's record of an invocation.

    Args:
        event: the event.
        arn: ARN of the function, without a qualifier.
        condition: ``Success``, ``RetriesExhausted``, ``EventAgeExceeded``, ``DestinationRefused`` or
            ``DestinationFailed``.
        result: result of the last attempt; None: there was no attempt.
        attempts: how many times the function was invoked with the event.
    """
    made: dict[str, Any] = {
        "version": "1.0",
        "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z",
        "requestContext": {
            "requestId": event.request_id,
            "functionArn": f"{arn}:{event.qualifier or LATEST}",
            "condition": condition,
            "approximateInvokeCount": attempts,
        },
        "requestPayload": msgspec.Raw(event.payload),
    }
    if result is not None:
        made["responseContext"] = {"statusCode": 200, "executedVersion": result.executed_version}
        if result.function_error is not None:
            made["responseContext"]["functionError"] = result.function_error
        made["responsePayload"] = _embedded(result.payload)
    return made


def with_condition(body: bytes, condition: str) -> bytes:
    """Return an encoded record with its condition replaced."""
    made = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    context = {**msgspec.json.decode(made["requestContext"]), "condition": condition}
    return msgspec.json.encode({**made, "requestContext": context})


def _embedded(payload: bytes) -> msgspec.Raw | str:
    """Return an answer in a form that a record can contain: JSON is unchanged, anything else becomes a JSON string."""
    try:
        return _checked(payload)
    except _NO_JSON:
        return payload.decode(errors="replace")


def check_json(payload: bytes) -> None:
    """Refuse a handler's answer that is not JSON. Python's `json` module can write NaN, which is not JSON.

    Raises:
        InvalidParameterValueException: the answer is not JSON.
    """
    try:
        _checked(payload)
    except _NO_JSON as error:
        raise InvalidParameterValueException(
            f"the handler's answer is not JSON: {error} (NaN and Infinity are not JSON)"
        ) from None


def _checked(payload: bytes) -> msgspec.Raw:
    payload.decode()  # decoding to msgspec.Raw does not check that the text is UTF-8
    return _decode_raw(payload)


def as_item(payload: bytes) -> bytes:
    """Return a handler's answer as a table item: an object is unchanged, anything else becomes ``{"value": …}``."""
    value = payload.lstrip()
    return payload if value.startswith(b"{") else b'{"value":' + payload + b"}"


def object_key(event: Event) -> str:
    """Return a record's object key in AWS's form. Its UUID is the request id, so a retry replaces the object."""
    at = datetime.fromtimestamp(event.accepted_at, UTC)
    return f"aws/lambda/async/{event.function}/{at:%Y/%m/%d/%Y-%m-%dT%H.%M.%S}-{event.request_id}"


def attributes(event: Event, *, condition: str, result: Result | None) -> dict[str, str]:
    """Return a dead letter's message attributes: ``RequestID``, ``ErrorCode``, and ``ErrorMessage`` cut to 1 KiB."""
    message = condition if result is None else _error_message(result.payload)
    shown = "".join(character if character.isprintable() else " " for character in message) or condition
    return {
        "RequestID": event.request_id,
        "ErrorCode": "200" if result is not None else "429",
        "ErrorMessage": shown.encode(errors="replace")[:MAX_ERROR_BYTES].decode(errors="ignore"),
    }


def _error_message(payload: bytes) -> str:
    try:
        found = msgspec.json.decode(payload, type=_ErrorDocument).error_message
    except _NO_JSON:
        found = None
    return payload.decode(errors="replace") if found is None else found


def arn_in(body: bytes) -> str:
    """Return the qualified function ARN that a record contains."""
    return msgspec.json.decode(body, type=_Record).context.function_arn
