"""HTTP routes: finds the function for a method and path by API Gateway's rules, runs it and sends its answer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

import msgspec

from thawd.errors import RequestTooLargeException, ThawdError
from thawd.gateway import cors
from thawd.gateway.http import (
    ARRIVED,
    JSON,
    Budget,
    ClientGoneError,
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
from thawd.gateway.lambda_api.invoke import Accept
from thawd.gateway.routes import payload_format_1, payload_format_2, streamed_head
from thawd.gateway.routes.payload_formats import Headers, IntegrationRequest, MalformedResponseError, Response
from thawd.gateway.routes.remove_credentials import without_credentials
from thawd.gateway.routes.streamed_answer import StreamedAnswer
from thawd.gateway.server_timing import timing
from thawd.gateway.tenants import routed_tenant
from thawd.invocation import MAX_ASYNC_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES, Invocation, new_request_id
from thawd.resources import HttpApi, Route
from thawd.scheduling.dispatcher import Dispatcher

# Events contain a body in Base64. In an event of the largest size, a body of this size leaves 21 KiB for the other
# fields.
MAX_BODY_BYTES = MAX_PAYLOAD_BYTES * 3 // 4 - 16_384
_DEFAULT = "$default"
_PLAIN = HttpApi()
_NOTHING: Mapping[str, str] = {}
_FORMATS = {"1.0": payload_format_1, "2.0": payload_format_2}


class RouteTable:
    """Finds the route for a request. Among the routes that match, the most specific one is chosen.

    In a path, literal segments take precedence over parameters (``{id}``), and parameters over ``{rest+}``. A method
    takes precedence over ANY. ``$default`` matches all other requests.

    Source: API Gateway developer guide, "Routing API requests".
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self._default = next((route for route in routes if route.key == _DEFAULT), None)
        parsed: list[tuple[Route, str, list[str]]] = []
        for route in routes:
            method, _, path = route.key.partition(" ")
            if path:
                parsed.append((route, method, _segments(path)))
        self._routes = sorted(
            parsed,
            key=lambda entry: ([_weight(s) for s in entry[2]], entry[1] == "ANY"),
        )

    def find(self, method: str, raw_path: str) -> tuple[Route, dict[str, str]] | None:
        """The route for a request and the values of its path parameters; None if no route matches."""
        asked = _segments(raw_path)
        for route, wanted, segments in self._routes:
            if wanted in (method, "ANY"):
                parameters = _match(segments, asked)
                if parameters is not None:
                    return route, parameters
        return (self._default, {}) if self._default is not None else None

    def methods(self, raw_path: str) -> list[str]:
        """The methods that have a route for the path: the value of an ``Allow`` header."""
        asked = _segments(raw_path)
        return sorted({wanted for _, wanted, segments in self._routes if _match(segments, asked) is not None})


def _segments(path: str) -> list[str]:
    return path.strip("/").split("/") if path.strip("/") else []


def _weight(segment: str) -> int:
    if segment.endswith("+}"):
        return 2
    return 1 if segment.startswith("{") else 0


def _match(segments: list[str], asked: list[str]) -> dict[str, str] | None:
    parameters: dict[str, str] = {}
    for index, segment in enumerate(segments):
        if segment.endswith("+}"):
            if index >= len(asked):
                return None
            parameters[segment[1:-2]] = unquote("/".join(asked[index:]))
            return parameters
        if index >= len(asked):
            return None
        if segment.startswith("{"):
            parameters[segment[1:-1]] = unquote(asked[index])
        elif segment != unquote(asked[index]):
            return None
    return parameters if len(segments) == len(asked) else None


class RoutesApi:
    """Answers requests for routes by invoking their functions.

    Args:
        routes: as declared in thawd.toml.
        dispatcher: runs invocations.
        queue_timeout_s: how long a request may wait for an environment, seconds.
        budget: limits the memory for request bodies.
        http: the settings that all routes share.
        accept: stores asynchronous invocations; None: no route is asynchronous.
        key: the server's key, which is removed from events; None: there is none.

    Attributes:
        table: the routes.
        http: the settings that all routes share.
    """

    def __init__(  # noqa: PLR0913 - only the composition root calls it
        self,
        routes: Sequence[Route],
        dispatcher: Dispatcher,
        *,
        queue_timeout_s: float,
        budget: Budget,
        http: HttpApi = _PLAIN,
        accept: Accept | None = None,
        key: str | None = None,
    ) -> None:
        self.table = RouteTable(routes)
        self.http = http
        self._dispatcher = dispatcher
        self._queue_timeout_s = queue_timeout_s
        self._budget = budget
        self._accept = accept
        self._key = key

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, *, route: Route, parameters: dict[str, str]
    ) -> None:
        """Serve one request that `RouteTable.find` matched; errors are answered, not raised."""
        payload_format = _FORMATS[route.payload_format]
        send = cors.adding(send, self.http.cors, scope)
        if route.asynchronous:
            await self._store(scope, receive, send, route, parameters)
            return
        streamed: StreamedAnswer | None = None
        try:
            with self._budget.hold(scope, most_bytes=MAX_BODY_BYTES):
                trace_id = trace_of(scope)
                request = await self._request(scope, receive, route, parameters, trace_id=trace_id)
                payload = msgspec.json.encode(payload_format.event(request, now_s=time.time()))
                invocation = Invocation(
                    route.function,
                    payload,
                    time.monotonic() + self._queue_timeout_s,
                    trace_id=trace_id,
                    tenant_id=routed_tenant(scope, self._dispatcher, route.function),
                    arrived_s=scope.get(ARRIVED, 0.0),
                )
                streamed = StreamedAnswer(
                    invocation, send, method=scope["method"], fail=lambda: _fail(send, invocation), receive=receive
                )
                result = await self._dispatcher.invoke(invocation)
            if streamed.has_begun:
                await streamed.end(is_complete=result.function_error is None)
                return
            if result.function_error is not None:
                await _fail(send, invocation)
                return
            answer = (
                payload_format.response(result.payload)
                if result.content_type is None
                else streamed_head.whole(result.content_type, result.payload)
            )
        except MalformedResponseError as error:
            invocation.answered_status = 500
            await respond_json(send, 500, {"message": "Internal Server Error", "reason": str(error)})
        except RequestTooLargeException:
            await respond_json(send, 413, {"message": "Request Entity Too Large"})
        except ThawdError as error:
            if streamed is None or not streamed.has_begun:
                await respond_json(send, error.status, {"message": error.message})
        except ClientGoneError:
            return
        else:
            await respond_whole(scope, send, answer, timing(scope, result))
        finally:
            if streamed is not None:
                await streamed.drop()

    async def _store(
        self, scope: Scope, receive: Receive, send: Send, route: Route, parameters: dict[str, str]
    ) -> None:
        """Store the request as an asynchronous event. Answer 202 with the request id once the event is durable."""
        assert self._accept is not None, "the composition root passes `accept`"
        limit_bytes = MAX_ASYNC_PAYLOAD_BYTES
        request_id = new_request_id()
        try:
            with self._budget.hold(scope, most_bytes=limit_bytes):
                trace_id = trace_of(scope)
                request = await self._request(
                    scope, receive, route, parameters, trace_id=trace_id, limit_bytes=limit_bytes
                )
                event = _FORMATS[route.payload_format].event(request, now_s=time.time(), request_id=request_id)
                payload = msgspec.json.encode(event)
                if len(payload) > limit_bytes:
                    await respond_json(send, 413, {"message": "Request Entity Too Large"})
                    return
                deadline = time.monotonic() + self._queue_timeout_s
                await self._accept(
                    Invocation(
                        route.function,
                        payload,
                        deadline,
                        request_id=request_id,
                        trace_id=trace_id,
                        asynchronous=True,
                        tenant_id=routed_tenant(scope, self._dispatcher, route.function),
                    )
                )
        except RequestTooLargeException:
            await respond_json(send, 413, {"message": "Request Entity Too Large"})
        except ThawdError as error:
            headers = [JSON, (b"retry-after", b"1")] if error.status == 429 else [JSON]
            await respond(send, error.status, headers, msgspec.json.encode({"message": error.message}))
        except ClientGoneError:
            return
        else:
            body = msgspec.json.encode({"requestId": request_id})
            await respond(send, 202, [JSON, (b"x-amzn-requestid", request_id.encode())], body)

    async def preflight(self, scope: Scope, send: Send) -> None:
        """Answer a browser's preflight request, for any path."""
        assert self.http.cors is not None
        await respond(send, 204, cors.preflight_headers(self.http.cors, scope))

    async def _request(
        self,
        scope: Scope,
        receive: Receive,
        route: Route,
        parameters: dict[str, str],
        *,
        trace_id: str,
        limit_bytes: int = MAX_BODY_BYTES,
    ) -> IntegrationRequest:
        body = await read_body(scope, receive, limit_bytes=limit_bytes, operation="route")
        return request_of(
            scope,
            body,
            route_key=route.key,
            trace_id=trace_id,
            path_parameters=parameters,
            stage_variables=self.http.stage_variables,
            key=self._key,
        )


async def _fail(send: Send, invocation: Invocation) -> None:
    """Answer 500: the function failed, or its streamed answer is malformed."""
    invocation.answered_status = 500
    await respond_json(send, 500, {"message": "Internal Server Error"})


async def respond_whole(scope: Scope, send: Send, answer: Response, more: Headers | None = None) -> None:
    """Send a whole answer; `more` are further headers. The answer to HEAD may announce the length of GET's body."""
    headers = [*answer.headers, *(more or ())]
    if scope["method"] == "HEAD" and answer.announced_bytes is not None:
        headers.append((b"content-length", b"%d" % answer.announced_bytes))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body"})
    else:
        await respond(send, answer.status, headers, answer.body)


def request_of(  # noqa: PLR0913 - an event is made from all of these
    scope: Scope,
    body: bytes,
    *,
    route_key: str,
    trace_id: str,
    path_parameters: Mapping[str, str] = _NOTHING,
    stage_variables: Mapping[str, str] = _NOTHING,
    key: str | None = None,
    was_signed: bool = False,
) -> IntegrationRequest:
    """Make an `IntegrationRequest` from an ASGI scope and the body.

    Args:
        scope: the request's ASGI scope.
        body: the request's body.
        route_key: the route that matched.
        trace_id: value of the invocation's trace header. If the request has no trace header, the event gets a trace
            header with only the root id of this value, as on AWS.
        path_parameters: values of the route's parameters, decoded.
        stage_variables: variables of the API's stage.
        key: the server's key, which is removed from the event; None: there is none.
        was_signed: whether thawd has checked the request's signature; if so, the signature is not in the event.
    """
    query = scope["query_string"].decode("latin-1")
    headers, query = without_credentials(scope["headers"], query, key=key, was_signed=was_signed)
    if header(scope, b"x-amzn-trace-id") is None:
        headers = [*headers, (b"x-amzn-trace-id", trace_id.partition(";")[0].encode("latin-1"))]
    return IntegrationRequest(
        method=scope["method"],
        raw_path=raw_path_of(scope),
        query=query,
        headers=headers,
        body=body,
        source_ip=(scope.get("client") or ("127.0.0.1", 0))[0],
        scheme=scope.get("scheme", "http"),
        protocol=f"HTTP/{scope.get('http_version', '1.1')}",
        route_key=route_key,
        path_parameters=path_parameters,
        stage_variables=stage_variables,
    )
