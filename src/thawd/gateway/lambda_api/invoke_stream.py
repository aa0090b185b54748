"""The operation InvokeWithResponseStream: ``POST /2021-11-15/functions/{name}/response-streaming-invocations``.

Source: AWS Lambda API reference, "InvokeWithResponseStream".
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from thawd.gateway.http import Scope, Send, respond
from thawd.gateway.lambda_api import event_stream
from thawd.gateway.lambda_api.invoke_request import InvokeOperation
from thawd.gateway.streamed_invocation import Streamed
from thawd.invocation import Invocation, Result


class InvokeStreamApi(InvokeOperation):
    """Serves InvokeWithResponseStream."""

    title = "InvokeWithResponseStream"
    prefix = "/2021-11-15/functions/"
    suffix = "/response-streaming-invocations"
    kinds = ("RequestResponse", "DryRun")

    async def _run(self, scope: Scope, send: Send, invocation: Invocation, kind: str) -> None:
        if kind == "DryRun":
            await respond(send, 204, [(b"x-amzn-requestid", invocation.request_id.encode())])
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
    details: dict[str, Any] = {}
    if result.function_error is not None:
        details["ErrorCode"] = error_type(result.payload) or result.function_error
        details["ErrorDetails"] = result.payload.decode("utf-8", "replace")
    if with_log:
        details["LogResult"] = base64.b64encode(result.log_tail).decode()
    return msgspec.json.encode(details)


def error_type(document: bytes) -> str | None:
    """The ``errorType`` of an error document; None if the document has none."""
    try:
        error = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    kind = error.get("errorType") if isinstance(error, dict) else None
    return kind if isinstance(kind, str) else None
