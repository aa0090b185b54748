"""Serves function URLs: HTTP addresses that each belong to one function, open to all or only to signed requests.

Requests become events of payload format 2.0, and handlers' answers become responses:
`thawd.gateway.function_urls.events_and_responses` has the conversions, and the differences from routes with the same
format. The URL's own settings, not `server.key`, decide who may call.

Source: AWS Lambda developer guide, "Creating and managing Lambda function URLs", "Invoking Lambda function URLs",
"Control access to Lambda function URLs".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from thawd.errors import RequestTooLargeException, ThawdError
from thawd.gateway import cors
from thawd.gateway.function_urls import events_and_responses as function_url_event
from thawd.gateway.function_urls.events_and_responses import Caller
from thawd.gateway.function_urls.table import PATH_PREFIX, Url, UrlTable, id_in
from thawd.gateway.hosts import may_ask
from thawd.gateway.http import (
    ARRIVED,
    JSON,
    Budget,
    ClientGoneError,
    Message,
    Receive,
    Scope,
    Send,
    header,
    raw_path_of,
    read_body,
    respond,
    respond_json,
    trace_of,
)
from thawd.gateway.role_keys import Identity
from thawd.gateway.routes.endpoint import MAX_BODY_BYTES, request_of, respond_whole
from thawd.gateway.routes.payload_formats import MalformedResponseError
from thawd.gateway.routes.streamed_answer import StreamedAnswer
from thawd.gateway.routes.streamed_head import whole
from thawd.gateway.sigv4 import SignatureError, SignedRequest, check_claim, is_signed, verify
from thawd.gateway.tenants import routed_tenant
from thawd.invocation import Invocation, new_request_id
from thawd.scheduling.dispatcher import Dispatcher

LOCAL_KEYS: Mapping[str, str] = {"test": "test"}
"""Id and secret of the access key that is accepted if none is configured and only this machine can reach the port."""


# AWS's words, with the address of AWS's page.
_FORBIDDEN = (
    b'{"Message":"Forbidden. For troubleshooting Function URL authorization issues, see: '
    b'https://docs.aws.amazon.com/lambda/latest/dg/urls-auth.html"}'
)


@dataclass(frozen=True, slots=True)
class Access:
    """Who may call function URLs.

    Attributes:
        keys: secrets by access key id.
        is_local: whether only this machine is meant to call. If so, requests that web pages of other origins send are
            refused, unless the URL's own CORS settings allow these origins.
        key: the server's key; None: there is none. Function URLs do not require the key. If a request contains the key,
            the event is made without it.
        identify: returns the function whose access key this is; None: it is the key of somebody else.
    """

    keys: Mapping[str, str]
    is_local: bool
    key: str | None = None
    identify: Callable[[str], Identity | None] = lambda access_key: None


class FunctionUrlApi:
    """Serves function URLs.

    Args:
        table: the function URLs that exist.
        dispatcher: runs invocations.
        access: who may call.
        queue_timeout_s: how long a request may wait for an environment, seconds.
        budget: limits the memory for request bodies.
    """

    def __init__(
        self, table: UrlTable, dispatcher: Dispatcher, access: Access, *, queue_timeout_s: float, budget: Budget
    ) -> None:
        self.table = table
        self._dispatcher = dispatcher
        self._access = access
        self._queue_timeout_s = queue_timeout_s
        self._budget = budget

    def addressed(self, scope: Scope) -> str | None:
        """The identifier of a function URL in the request's path or host name; None if neither is of that form.

        Returns "" if the path begins like that of a function URL, but the identifier in it is malformed. A URL with the
        returned identifier need not exist.
        """
        path: str = scope["path"]
        if path.startswith(PATH_PREFIX):
            return id_in(path) or ""
        if not self.table:
            return None
        host = header(scope, b"host")
        if host is None or b".lambda-url." not in host.lower():
            return None
        return id_in(host.decode("latin-1"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send, *, identifier: str) -> None:
        """Serve one request; errors are answered, not raised."""
        url = self.table.find(f"{PATH_PREFIX}{identifier}")
        if url is None:
            await _refuse(send, "AccessDeniedException")
            return
        shared = url.settings.cors
        if shared is not None and cors.is_preflight(scope):
            await respond(send, 200, cors.preflight_headers(shared, scope))
            return
        if self._access.is_local and not _may_call(scope, url):
            await _refuse(send, "AccessDeniedException")
            return
        send = cors.adding(send, shared, scope)
        try:
            self._check_claim(scope, url)
            with self._budget.hold(scope, most_bytes=MAX_BODY_BYTES):
                body = await read_body(scope, receive, limit_bytes=MAX_BODY_BYTES, operation="InvokeFunction")
                caller = self._caller(scope, url, body)
                await self._invoke(scope, receive, send, url, body, caller)
        except SignatureError as error:
            await _refuse(send, error.code)
        except RequestTooLargeException as error:
            await respond_json(send, 413, {"Message": error.message})
        except ThawdError as error:
            await respond_json(send, error.status, {"Message": error.message})
        except ClientGoneError:
            return

    def _caller(self, scope: Scope, url: Url, body: bytes) -> Caller | None:
        """The signer of the request; None when the URL requires no signature.

        Raises:
            SignatureError: the signature is missing or wrong (403).
        """
        if url.settings.auth_type == "NONE":
            return None
        access_key = verify(_signed(scope, body), self._access.keys, now_s=time.time())
        return Caller(access_key, self._access.identify(access_key))

    def _check_claim(self, scope: Scope, url: Url) -> None:
        """Check the parts of a signature that do not depend on the body: key id, service, date and signed headers.

        This is called before the body is read. `_caller` verifies the signature itself once the body has been read.

        Raises:
            SignatureError: as `_caller` (403).
        """
        if url.settings.auth_type != "NONE":
            request = _signed(scope, b"")
            if not is_signed(request):
                raise SignatureError("AccessDeniedException", "Forbidden")
            check_claim(request, self._access.keys, now_s=time.time())

    async def _invoke(
        self, scope: Scope, receive: Receive, send: Send, url: Url, body: bytes, caller: Caller | None
    ) -> None:
        request_id, trace_id = new_request_id(), trace_of(scope)
        send = _with_ids(send, request_id, trace_id)
        request = request_of(
            scope,
            body,
            route_key="$default",
            trace_id=trace_id,
            key=self._access.key,
            was_signed=caller is not None,
        )
        event = function_url_event.event(request, url, caller, now_s=time.time(), request_id=request_id)
        deadline = time.monotonic() + self._queue_timeout_s
        payload = msgspec.json.encode(event)
        invocation = Invocation(
            url.function,
            payload,
            deadline,
            request_id,
            trace_id=trace_id,
            qualifier=url.qualifier,
            tenant_id=routed_tenant(scope, self._dispatcher, url.function, url.qualifier),
            arrived_s=scope.get(ARRIVED, 0.0),
        )
        # A web application's answer is sent in parts only if the URL streams; of one that does not, the client gets the
        # same answer whole.
        streams = url.settings.invoke_mode == "RESPONSE_STREAM"
        streamed = None
        if streams:
            streamed = StreamedAnswer(
                invocation, send, method=scope["method"], fail=lambda: _fail(send, invocation), receive=receive
            )
        try:
            result = await self._dispatcher.invoke(invocation)
            if streamed is not None and streamed.has_begun:
                await streamed.end(is_complete=result.function_error is None)
            elif result.function_error is not None:
                await _fail(send, invocation)
            elif result.content_type is not None:
                await respond_whole(scope, send, whole(result.content_type, result.payload))
            elif streams:
                # The handler does not stream. As on Lambda, its whole answer becomes the body, unchanged.
                invocation.answered_status = 200
                await respond(send, 200, [JSON], result.payload)
            else:
                await respond_whole(scope, send, function_url_event.response(result.payload))
        except MalformedResponseError:
            await _fail(send, invocation)
        except ThawdError:
            if streamed is None or not streamed.has_begun:
                raise
        finally:
            if streamed is not None:
                await streamed.drop()


def _signed(scope: Scope, body: bytes) -> SignedRequest:
    return SignedRequest(
        method=scope["method"],
        raw_path=raw_path_of(scope),
        query=scope["query_string"].decode("latin-1"),
        headers=scope["headers"],
        body=body,
    )


def _with_ids(send: Send, request_id: str, trace_id: str) -> Send:
    """Wrap `send` so that answers have headers with the request id and the trace id."""
    names = [
        (b"x-amzn-requestid", request_id.encode()),
        (b"x-amzn-trace-id", trace_id.partition(";")[0].encode("latin-1")),
    ]

    async def send_with_ids(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *names]}
        await send(message)

    return send_with_ids


def _may_call(scope: Scope, url: Url) -> bool:
    """Whether no web page sends the request, or its page is of this machine, the URL's origin or an allowed origin."""
    shared = url.settings.cors
    return may_ask(scope, allows=lambda origin: shared is not None and cors.allows(shared, origin))


async def _refuse(send: Send, code: str) -> None:
    await respond(send, 403, [JSON, (b"x-amzn-errortype", code.encode())], _FORBIDDEN)


async def _fail(send: Send, invocation: Invocation) -> None:
    """Answer 502: the function failed, or its answer is not a valid response."""
    invocation.answered_status = 502
    await respond(send, 502, [JSON], b"Internal Server Error")
