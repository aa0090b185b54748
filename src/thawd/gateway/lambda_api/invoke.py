"""The Invoke API: ``POST /2015-03-31/functions/{name}/invocations``.

Source: AWS Lambda API reference, "Invoke".
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable

from thawd.errors import InvalidParameterValueException, InvalidRequestContentException, ThawdError
from thawd.gateway.http import JSON, Budget, Headers, Scope, Send, respond, respond_now
from thawd.gateway.lambda_api.invoke_request import InvokeOperation
from thawd.gateway.server_timing import timing
from thawd.invocation import Invocation, Result
from thawd.scheduling.dispatcher import Dispatcher

Accept = Callable[[Invocation], Awaitable[None]]
"""Stores an asynchronous invocation; returns once it is durable."""


class InvokeApi(InvokeOperation):
    """Serves Invoke.

    Args:
        dispatcher: runs synchronous invocations.
        accept: stores asynchronous invocations.
        queue_timeout_s: how long a synchronous invocation may wait for an environment, seconds.
        budget: limits the memory for request bodies.
    """

    title = "InvokeFunction"
    prefix = "/2015-03-31/functions/"
    suffix = "/invocations"
    kinds = ("RequestResponse", "Event", "DryRun")

    def __init__(self, dispatcher: Dispatcher, *, accept: Accept, queue_timeout_s: float, budget: Budget) -> None:
        super().__init__(dispatcher, queue_timeout_s=queue_timeout_s, budget=budget)
        self._accept = accept

    async def _run(self, scope: Scope, send: Send, invocation: Invocation, kind: str) -> None:
        id_header = (b"x-amzn-requestid", invocation.request_id.encode())
        if kind == "DryRun":
            await respond(send, 204, [id_header])
        elif kind == "Event":
            await self._accept(invocation)
            await respond(send, 202, [id_header])
        else:
            was_sent = False

            def answer(result: Result) -> None:
                nonlocal was_sent
                was_sent = respond_now(send, 200, _headers(scope, invocation, result, id_header), result.payload)

            invocation.on_result = answer
            result = await self._dispatcher.invoke(invocation)
            if not was_sent:
                await respond(send, 200, _headers(scope, invocation, result, id_header), result.payload)


class InvokeAsyncApi(InvokeOperation):
    """Serves InvokeAsync, the operation that AWS has kept from before Invoke: the same as an invocation of type Event.

    Source: AWS Lambda API reference, "InvokeAsync".
    """

    title = "InvokeAsync"
    prefix = "/2014-11-13/functions/"
    suffix = "/invoke-async"
    kinds = ("Event",)
    has_qualifier = False

    def __init__(self, dispatcher: Dispatcher, *, accept: Accept, queue_timeout_s: float, budget: Budget) -> None:
        super().__init__(dispatcher, queue_timeout_s=queue_timeout_s, budget=budget)
        self._accept = accept

    def _answered(self, error: ThawdError) -> ThawdError:
        if isinstance(error, InvalidParameterValueException):  # an error that InvokeAsync does not have
            return InvalidRequestContentException(error.message)
        return error

    async def _run(self, scope: Scope, send: Send, invocation: Invocation, kind: str) -> None:
        await self._accept(invocation)
        await respond(send, 202, [JSON, (b"x-amzn-requestid", invocation.request_id.encode())], b'{"Status":202}')


def _headers(scope: Scope, invocation: Invocation, result: Result, id_header: tuple[bytes, bytes]) -> Headers:
    """The headers of the answer to a synchronous invocation."""
    headers = [
        JSON if result.content_type is None else (b"content-type", result.content_type.encode()),
        id_header,
        (b"x-amz-executed-version", result.executed_version.encode()),
        (b"x-amzn-trace-id", (invocation.trace_id or "").encode("latin-1")),
        *timing(scope, result),
    ]
    if result.function_error is not None:
        headers.append((b"x-amz-function-error", result.function_error.encode()))
    if invocation.want_log_tail:
        headers.append((b"x-amz-log-result", base64.b64encode(result.log_tail)))
    return headers
