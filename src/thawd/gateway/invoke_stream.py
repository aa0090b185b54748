"""The API's InvokeWithResponseStream: ``POST /2021-11-15/functions/{name}/response-streaming-invocations``.

Source: AWS Lambda API reference, "InvokeWithResponseStream".
"""

from __future__ import annotations

import base64
import time
from typing import Any

import msgspec

from thawd.errors import ResourceNotFoundException, ThawdError
from thawd.execution.dispatcher import Dispatcher
from thawd.gateway import event_stream
from thawd.gateway.http import (
    Budget,
    ClientGoneError,
    Receive,
    Scope,
    Send,
    read_body,
    respond,
    respond_error,
    trace_of,
)
from thawd.gateway.invoke import check_json, client_context, one_of, resolve_name
from thawd.gateway.streamed import Streamed
from thawd.invocation import MAX_PAYLOAD_BYTES, Invocation, Result, new_request_id

PREFIX = "/2021-11-15/functions/"
SUFFIX = "/response-streaming-invocations"


class InvokeStreamApi:
    """Serves InvokeWithResponseStream.

    Args:
        dispatcher: runs invocations.
        queue_timeout_s: how long one may wait for an environment, seconds.
        budget: memory for bodies.
    """

    def __init__(self, dispatcher: Dispatcher, *, queue_timeout_s: float, budget: Budget) -> None:
        self._dispatcher = dispatcher
        self._queue_timeout_s = queue_timeout_s
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; errors are answered, not raised."""
        request_id = new_request_id()
        try:
            await self._serve(scope, receive, send, request_id)
        except ThawdError as error:
            await respond_error(send, error, request_id=request_id)
        except ClientGoneError:
            return

    async def _serve(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        if scope["method"] != "POST":
            raise ResourceNotFoundException(f"InvokeWithResponseStream takes POST, not {scope['method']}")
        function, qualifier = resolve_name(scope, scope["path"][len(PREFIX) : -len(SUFFIX)])
        kind = one_of(scope, b"x-amz-invocation-type", "invocationType", ("RequestResponse", "DryRun"))
        log_type = one_of(scope, b"x-amz-log-type", "logType", ("None", "Tail"))
        self._dispatcher.entry(function, qualifier)
        with self._budget.hold(scope, most_bytes=MAX_PAYLOAD_BYTES):
            body = await read_body(scope, receive, limit_bytes=MAX_PAYLOAD_BYTES, operation="InvokeWithResponseStream")
            invocation = Invocation(
                function,
                check_json(body) if body else b"{}",
                time.monotonic() + self._queue_timeout_s,
                request_id,
                client_context=client_context(scope),
                trace_id=trace_of(scope),
                want_log_tail=log_type == "Tail",
                qualifier=qualifier,
            )
            if kind == "DryRun":
                await respond(send, 204, [(b"x-amzn-requestid", request_id.encode())])
            else:
                await self._stream(send, invocation)

    async def _stream(self, send: Send, invocation: Invocation) -> None:
        async with Streamed(self._dispatcher, invocation) as answer:
            is_in_parts = await answer.begun()
            version = answer.stream.executed_version
            if not is_in_parts:
                version = (await answer.result()).executed_version
            headers = [
                (b"content-type", event_stream.CONTENT_TYPE),
                (b"x-amzn-requestid", invocation.request_id.encode()),
                (b"x-amz-executed-version", version.encode()),
                (b"x-amzn-trace-id", (invocation.trace_id or "").encode("latin-1")),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while (data := await answer.stream.take()) is not None:
                await _send_chunks(send, data)
            result = await answer.result()
            if not is_in_parts and result.function_error is None:
                await _send_chunks(send, result.payload)
            last = event_stream.invoke_complete(_completion(result, with_log=invocation.want_log_tail))
            await send({"type": "http.response.body", "body": last})


async def _send_chunks(send: Send, data: bytes) -> None:
    for chunk in event_stream.payload_chunks(data):
        await send({"type": "http.response.body", "body": chunk, "more_body": True})


def _completion(result: Result, *, with_log: bool) -> bytes:
    told: dict[str, Any] = {}
    if result.function_error is not None:
        told["ErrorCode"] = error_type(result.payload) or result.function_error
        told["ErrorDetails"] = result.payload.decode("utf-8", "replace")
    if with_log:
        told["LogResult"] = base64.b64encode(result.log_tail).decode()
    return msgspec.json.encode(told)


def error_type(document: bytes) -> str | None:
    """``errorType`` of an error document; None where it has none."""
    try:
        told = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    kind = told.get("errorType") if isinstance(told, dict) else None
    return kind if isinstance(kind, str) else None
