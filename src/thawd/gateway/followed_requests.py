"""Notes the requests that traced handlers send to services which this server answers, such as S3 and DynamoDB.

AWS's SDKs send the handler's trace header with each request. Requests that invoke functions are noted elsewhere, by the
tracer. What is noted contains the service, the operation and the bucket, and no key, header or body.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from functools import partial

from thawd.gateway.aws.refusals import service_of
from thawd.gateway.http import Message, Receive, Scope, Send, header
from thawd.grammar import trace_headers
from thawd.grammar.trace_headers import TraceContext
from thawd.invocation import new_span_ids
from thawd.recording.calls import Calls
from thawd.recording.spans import CLIENT, Span

Serve = Callable[[Scope, Receive, Send], Awaitable[None]]
_SERVICE = re.compile(r"[a-z0-9-]{1,40}")
_BUCKET = re.compile(r"/([a-z0-9.-]{3,63})(?:/|$)")
_TARGET = re.compile(r"(?:\w+\.)?(\w{1,60})")
_SMITHY_OPERATION = re.compile(r"/service/\w{1,60}/operation/(\w{1,60})")


class FollowedRequests:
    """Follows requests.

    Attributes:
        calls: gets what is noted; None: no function is traced, and nothing is followed.
    """

    def __init__(self) -> None:
        self.calls: Calls | None = None

    def follow(self, serve: Serve) -> Serve:
        """Return what serves a request instead of `serve`: the same, if nothing is followed."""
        return serve if self.calls is None else partial(_serve, self.calls, serve)


async def _serve(calls: Calls, serve: Serve, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request, and note it if a handler that is traced here may have sent it."""
    context = trace_headers.parsed((header(scope, b"x-amzn-trace-id") or b"").decode("latin-1"))
    if context is None or not context.sampled or not calls.knows(context.trace_id):
        await serve(scope, receive, send)
        return
    status = 0

    async def noting(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        await send(message)

    began_at = time.time()
    try:
        await serve(scope, receive, noting)
    finally:
        calls.request(_span_of(scope, context, status, (began_at, time.time())))


def _span_of(scope: Scope, context: TraceContext, status: int, times: tuple[float, float]) -> Span:
    """Return the span of a request; `status` is 0 if it got no answer."""
    service = service_of(scope) or "s3"
    name = f"{service if _SERVICE.fullmatch(service) else 'service'} {_operation_of(scope, service)}"
    attributes = {"http.response.status_code": status} if status else {}
    ids = (context.trace_id, new_span_ids()[0], context.parent_id)
    return Span("", *ids, name, CLIENT, *times, attributes, not 0 < status < 400)


def _operation_of(scope: Scope, service: str) -> str:
    """Return the operation, as far as the head of the request shows it: ``GetItem``, ``PUT uploads`` or ``POST``."""
    method, path = str(scope["method"]), str(scope["path"])
    target = _TARGET.fullmatch((header(scope, b"x-amz-target") or b"").decode("latin-1"))
    if target is not None or (target := _SMITHY_OPERATION.fullmatch(path)) is not None:
        return target[1]
    bucket = _BUCKET.match(path) if service == "s3" else None
    return method if bucket is None else f"{method} {bucket[1]}"
