"""The operation StartLiveTail: an answer that lasts, in AWS's event stream format.

Source: CloudWatch Logs API reference, "StartLiveTail"; botocore's ``initial-response``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from thawd.cloudwatch.logs.errors import InvalidParameterException
from thawd.cloudwatch.logs.live_tails import LiveTails, Selection, Update
from thawd.errors import StoreError
from thawd.gateway.http import Receive, Send
from thawd.gateway.lambda_api import event_stream
from thawd.gateway.logs.event_operations import pattern_of
from thawd.gateway.logs.requests import Request, identified
from thawd.invocation import new_request_id
from thawd.resources import ACCOUNT_ID

_LONGEST_S = 3 * 60 * 60
_JSON = "application/json"


async def serve(tails: LiveTails, request: Request, send: Send, receive: Receive, *, request_id: str) -> None:
    """Answer one request until the client disconnects.

    Args:
        tails: the sessions of the server.
        request: the checked input.
        send: sends the answer.
        receive: says when the client has disconnected; the body has been read already.
        request_id: the id of the request.

    Raises:
        InvalidParameterException: the selection makes no sense (400); not raised after the answer has begun.
        ThawdError: see `LiveTails.follow`; not raised after the answer has begun.
    """
    updates = tails.follow(_selection(request))
    async with contextlib.aclosing(updates):
        await anext(updates)  # raises before the answer begins
        await _follow(updates, request, send, receive, request_id=request_id)


async def _follow(
    updates: AsyncGenerator[Update, None], request: Request, send: Send, receive: Receive, *, request_id: str
) -> None:
    """Send the answer, and one update after the other, until the client disconnects."""
    headers = [(b"content-type", event_stream.CONTENT_TYPE), (b"x-amzn-requestid", request_id.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    start = {
        "requestId": request_id,
        "sessionId": new_request_id(),
        "logGroupIdentifiers": request["logGroupIdentifiers"],
        "logEventFilterPattern": request.get("logEventFilterPattern", ""),
        "logStreamNames": request.get("logStreamNames", []),
        "logStreamNamePrefixes": request.get("logStreamNamePrefixes", []),
    }
    first = event_stream.event("initial-response", b"{}", content_type=_JSON) + _event("sessionStart", start)
    await send({"type": "http.response.body", "body": first, "more_body": True})
    until_s = time.monotonic() + _LONGEST_S
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        async for update in updates:
            if gone.done():
                break
            if time.monotonic() > until_s:
                end = _exception("SessionTimeoutException", "The session has lasted for three hours.")
                await send({"type": "http.response.body", "body": end, "more_body": True})
                break
            body = _event("sessionUpdate", _document(update))
            await send({"type": "http.response.body", "body": body, "more_body": True})
    except (StoreError, OSError) as error:
        end = _exception("SessionStreamingException", f"The log cannot be read: {error}")
        await send({"type": "http.response.body", "body": end, "more_body": True})
    finally:
        gone.cancel()
    await send({"type": "http.response.body", "body": b""})


def _exception(kind: str, message: str) -> bytes:
    headers = {":message-type": "exception", ":exception-type": kind, ":content-type": _JSON}
    return event_stream.message(headers, msgspec.json.encode({"message": message}))


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _selection(request: Request) -> Selection:
    groups = [identified(each, "logGroupIdentifiers") for each in request["logGroupIdentifiers"]]
    streams, prefixes = request.get("logStreamNames"), request.get("logStreamNamePrefixes")
    if streams is not None and prefixes is not None:
        raise InvalidParameterException("logStreamNames and logStreamNamePrefixes cannot both be specified.")
    if len(groups) > 1 and (streams is not None or prefixes is not None):
        raise InvalidParameterException(
            "logStreamNames and logStreamNamePrefixes can be specified only with one log group."
        )
    return Selection(
        groups,
        pattern_of(request.get("logEventFilterPattern")),
        None if streams is None else frozenset(streams),
        None if prefixes is None else tuple(prefixes),
    )


def _document(update: Update) -> dict[str, Any]:
    return {
        "sessionMetadata": {"sampled": update.is_sample},
        "sessionResults": [
            {
                "ingestionTime": event.ingested_ms,
                "logGroupIdentifier": f"{ACCOUNT_ID}:{group}",
                "logStreamName": event.stream,
                "message": event.text,
                "timestamp": event.time_ms,
            }
            for group, event in update.events
        ],
    }


def _event(kind: str, document: dict[str, Any]) -> bytes:
    return event_stream.event(kind, msgspec.json.encode(document), content_type=_JSON)
