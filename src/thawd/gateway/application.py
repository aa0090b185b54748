"""The ASGI application of the HTTP port: checks a request's key or signature and decides which part serves the request.

The first of these parts that matches a request serves it: emulated APIs (with ``thawd up --aws``), function URLs,
downloads of uploaded code, Invoke and InvokeWithResponseStream, the control plane (the Lambda API's other operations),
thawd's own pages (``/_thawd`` and ``/metrics``), the CloudWatch metrics API, the AWS emulator (moto, with ``thawd up
--aws``), the Logs API, buckets if the request is recognisably meant for S3 whatever its path, declared routes, buckets
by the request's path, the ``$default`` route.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote

import msgspec

from thawd.errors import AccessDeniedException, MethodNotAllowedException, ResourceNotFoundException, ThawdError
from thawd.gateway.api_signatures import Gate
from thawd.gateway.aws.api_messages import ApiAddress
from thawd.gateway.aws.apis import EmulatedApis
from thawd.gateway.aws.error_documents import ServiceError
from thawd.gateway.aws.proxy import AwsProxy
from thawd.gateway.aws.refusals import foreign_service, refuse, refuse_unserved
from thawd.gateway.cors import allows, is_preflight
from thawd.gateway.followed_requests import FollowedRequests
from thawd.gateway.function_urls.endpoint import FunctionUrlApi
from thawd.gateway.hosts import Hosts, refusal
from thawd.gateway.http import (
    READING,
    ClientGoneError,
    Receive,
    Scope,
    Send,
    header,
    raw_path_of,
    respond,
    respond_error,
    respond_json,
)
from thawd.gateway.key_check import check_key, has_key
from thawd.gateway.lambda_api.control import CODE_PREFIX, ControlApi
from thawd.gateway.lambda_api.invoke import InvokeApi, InvokeAsyncApi
from thawd.gateway.lambda_api.invoke_stream import InvokeStreamApi
from thawd.gateway.logs.endpoint import LogsApi, is_emulated, is_logs_request
from thawd.gateway.metrics.endpoint import MetricsApi, is_metrics_request
from thawd.gateway.routes.endpoint import RoutesApi
from thawd.gateway.s3.endpoint import ObjectApi
from thawd.gateway.thawd_api.cluster import PREFIX as CLUSTER_PREFIX
from thawd.gateway.thawd_api.cluster import ClusterApi
from thawd.gateway.thawd_api.invocations import InvocationsApi
from thawd.gateway.thawd_api.machines import MachinesApi
from thawd.gateway.thawd_api.probes import PROBES, answer_probe
from thawd.gateway.thawd_api.queue import QueueApi
from thawd.gateway.thawd_api.sources import PREFIX as SOURCES_PREFIX
from thawd.gateway.thawd_api.sources import SourcesApi
from thawd.invocation import new_request_id
from thawd.resources import Cors
from thawd.system.inline import in_task
from thawd.telemetry.exposition import negotiated

_PAGES = ("/metrics", "/_thawd/status")
_TABLES = "/_thawd/tables/"
_OPEN = (CODE_PREFIX, "/_thawd")
_INVOKING = (InvokeApi.prefix, InvokeStreamApi.prefix, InvokeAsyncApi.prefix)


class StatusDocument(Protocol):
    """Makes the document for ``/_thawd/status``."""

    def __call__(self, *, memory: bool = False) -> Awaitable[Mapping[str, Any]]:
        """Return the document; with `memory`, also how much memory is in use (`thawd.scheduling.status`)."""


@dataclass(slots=True)
class GatewayParts:
    """The APIs that serve requests. A reload of the configuration replaces all of them together.

    Attributes:
        invoke: the Invoke API.
        routes: serves declared routes.
        objects: serves buckets.
        logs: the Logs API.
        cloudwatch: the CloudWatch metrics API; None: it is not served.
        status: makes the document for ``/_thawd/status``.
        count_table: returns the number of items in a table, by the table's name.
        readiness: says whether the server is ready (`thawd.gateway.thawd_api.probes`).
        metrics: makes the answer for ``/metrics`` in a format of `thawd.telemetry.exposition`.
        control: the control plane of the Lambda API.
        key: the key that clients must send; None: they need no key, and the server listens on loopback only.
        urls: serves function URLs; each URL's own settings decide who may call it.
        invoke_stream: InvokeWithResponseStream.
        sources: thawd's own operations on event sources.
        cluster: thawd's own operations on this machine of a cluster; None: machines do not find each other.
        machines: what the machines of a cluster are and know; None: this machine runs alone.
        aws: passes requests for other AWS services on to the emulator; None without ``--aws``.
        apis: serves requests to the emulator's APIs; None without ``--aws``.
        gate: checks the signatures of requests to the Lambda API, the Logs API and `queue`; None: these requests need
            no signature.
        hosts: the host names that a request's ``Host`` may have; None: every name is accepted, because a key protects
            the server.
        queue: the operators' API for the queue of asynchronous events and for dead letters.
        invocations: serves recorded invocations.
        window: serves thawd's pages for people, and checks by itself who may see them; None: there are none.
    """

    invoke: InvokeApi
    routes: RoutesApi
    objects: ObjectApi
    logs: LogsApi
    status: StatusDocument
    count_table: Callable[[str], Awaitable[int]]
    metrics: Callable[[str], Awaitable[bytes]]
    readiness: Callable[[], str]
    control: ControlApi
    key: str | None
    urls: FunctionUrlApi | None = None
    cloudwatch: MetricsApi | None = None
    invoke_stream: InvokeStreamApi | None = None
    invoke_async: InvokeAsyncApi | None = None
    aws: AwsProxy | None = None
    apis: EmulatedApis | None = None
    sources: SourcesApi | None = None
    cluster: ClusterApi | None = None
    machines: MachinesApi | None = None
    gate: Gate | None = None
    queue: QueueApi | None = None
    hosts: Hosts | None = None
    invocations: InvocationsApi | None = None
    window: Pages | None = None


class Pages(Protocol):
    """Pages for people, which check by themselves who may see them."""

    def claims(self, scope: Scope) -> bool:
        """Whether a request is for one of the pages."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""


class Application:
    """The ASGI application that serves the HTTP port.

    Attributes:
        begins_inline: a request begins without a task (`thawd.system.inline`); what needs one awaits `in_task` first.
        on_unserved: called with a request for which nothing is served, and the status and the reason of its answer.
        followed: notes requests of traced handlers to services of AWS that this server answers.
    """

    begins_inline = True

    def __init__(self, parts: GatewayParts, followed: FollowedRequests | None = None) -> None:
        self.parts = parts
        self.followed = followed or FollowedRequests()
        self.on_unserved: Callable[[Scope, int, str], None] = lambda scope, status, reason: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; the arguments are ASGI's."""
        if scope["type"] != "http":
            return
        try:
            await self._serve(scope, receive, send)
        except asyncio.CancelledError:
            return  # the server is stopping and does not wait for incomplete requests

    def _invoking(self, path: str) -> InvokeStreamApi | InvokeAsyncApi | None:
        """What serves a request that invokes a function by another operation than Invoke; None: it does not."""
        return next(
            (
                api
                for api in (self.parts.invoke_stream, self.parts.invoke_async)
                if api is not None and api.claims(path)
            ),
            None,
        )

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = self.parts
        path: str = scope["path"]
        address = None
        if parts.apis is not None and parts.apis.may_be_addressed(scope):
            await in_task()
            address = await parts.apis.addressed(scope)
        if not self._serves_host(scope, address):
            refused = AccessDeniedException(refusal((header(scope, b"host") or b"").decode("latin-1")))
            await _refuse(scope, send, refused)
            return
        if parts.apis is not None and address is not None:
            await parts.apis(scope, receive, send, address=address)
            return
        if parts.urls is not None and (addressed := parts.urls.addressed(scope)) is not None:
            await in_task()
            await parts.urls(scope, receive, send, identifier=addressed)
            return
        if path.startswith(_OPEN) and await self._without_key(scope, receive, send):
            return
        if parts.gate is not None or scope["method"] == "OPTIONS":
            admitted = await self._admit(scope, receive, send)
            if admitted is None:
                return
            receive = admitted
        elif not await self._may_ask(scope, send):
            return
        if InvokeApi.claims(path):
            await parts.invoke(scope, receive, send)
        elif (api := self._api_of(scope, path)) is not None:
            await in_task()
            await api(scope, receive, send)
        else:
            await self._route_or_object(scope, receive, send)

    async def _without_key(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Serve a request that needs no key here, because what serves it checks it. Return whether it is one."""
        parts = self.parts
        path: str = scope["path"]
        if path in PROBES:
            await answer_probe(scope, send, readiness=parts.readiness)
        elif path.startswith(CODE_PREFIX):
            await in_task()
            await parts.control.code(scope, send)  # the link itself is signed
        elif parts.window is not None and parts.window.claims(scope):
            await in_task()
            await parts.window(scope, receive, send)
        else:
            return False
        return True

    def _api_of(self, scope: Scope, path: str) -> Callable[[Scope, Receive, Send], Awaitable[None]] | None:
        """What serves a request that is neither for Invoke nor for a route; None: that depends on the routes."""
        parts = self.parts
        if (invoking := self._invoking(path)) is not None:
            return invoking
        if parts.control.claims(path):
            return parts.control
        if path.startswith("/_thawd/") or path == "/metrics":
            return self._own_page
        if (service := self._other_service(scope)) is not None:
            return self.followed.follow(service)
        return self.followed.follow(parts.objects) if parts.objects.claims(scope) else None

    def _serves_host(self, scope: Scope, address: ApiAddress | None) -> bool:
        """Whether the request's ``Host`` is accepted: it may be a custom domain name of the API that is addressed."""
        hosts = self.parts.hosts
        return hosts is None or (address is not None and address.is_custom_host) or hosts.serves(scope)

    def _other_service(self, scope: Scope) -> Callable[[Scope, Receive, Send], Awaitable[None]] | None:
        """What serves a request for a service of AWS other than Lambda and S3; None: it is for none of them."""
        parts = self.parts
        if parts.cloudwatch is not None and is_metrics_request(scope):
            return parts.cloudwatch
        if parts.aws is not None and parts.aws.claims(scope):
            return parts.aws
        if not is_logs_request(scope):
            return None
        return parts.aws if parts.aws is not None and is_emulated(scope) else parts.logs

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """Check the request's key or signature.

        Returns:
            The ASGI callable that gives the request's body; None if this method has answered the request.
        """
        parts = self.parts
        if parts.gate is not None and self._is_api(scope) and not has_key(scope, parts.key):
            await in_task()
            return await parts.gate.admit(scope, receive, send)
        if is_preflight(scope) and self._cors_for(scope) is not None:
            await parts.routes.preflight(scope, send)
            return None
        return receive if await self._may_ask(scope, send) else None

    async def _may_ask(self, scope: Scope, send: Send) -> bool:
        """Check the request's key, or whether a foreign page sends it. If it is refused, answer it and return False."""
        try:
            check_key(scope, self.parts.key, allows=partial(self._cors_allows, scope))
        except ThawdError as error:
            await _refuse(scope, send, error)
            return False
        return True

    def _cors_allows(self, scope: Scope, origin: str) -> bool:
        shared = self._cors_for(scope)
        return shared is not None and allows(shared, origin)

    def _is_api(self, scope: Scope) -> bool:
        """Whether `gate` checks the request: it is for an API of AWS, the queue, records, machines, or sources."""
        path: str = scope["path"]
        if path == SOURCES_PREFIX or path.startswith((SOURCES_PREFIX + "/", CLUSTER_PREFIX + "/")):
            return True
        for own in (self.parts.queue, self.parts.invocations, self.parts.machines):
            if own is not None and own.claims(path):
                return True
        is_lambda = path.startswith(_INVOKING) or self.parts.control.claims(path)
        return is_lambda or is_logs_request(scope) or is_metrics_request(scope)

    def _cors_for(self, scope: Scope) -> Cors | None:
        """The settings of http.cors; None if there are none, or if another API than the routes serves the request."""
        cors = self.parts.routes.http.cors
        path: str = scope["path"]
        if cors is None or path.startswith((*_INVOKING, "/_thawd/")) or path == "/metrics":
            return None
        parts, objects = self.parts, self.parts.objects
        is_of_other_api = (
            parts.control.claims(path)
            or header(scope, b"x-amz-target") is not None
            or is_metrics_request(scope)
            or (parts.aws is not None and parts.aws.claims(scope))
            or objects.claims(scope)
            or objects.owns(path)
        )
        return None if is_of_other_api else cors

    async def _route_or_object(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = self.parts
        raw_path = raw_path_of(scope)
        found = parts.routes.table.find(scope["method"], raw_path)
        is_object = parts.objects.owns(scope["path"])
        if found is not None and not (is_object and found[0].key == "$default"):
            await parts.routes(scope, receive, send, route=found[0], parameters=found[1])
        elif is_object:
            await in_task()
            await self.followed.follow(parts.objects)(scope, receive, send)
        elif (service := foreign_service(scope)) is not None:
            await refuse_unserved(scope, send, service)
        elif allowed := parts.routes.table.methods(raw_path):
            allow = (b"allow", ", ".join(allowed).encode())
            reason = f"Method Not Allowed; this path accepts {', '.join(allowed)}"
            self.on_unserved(scope, 405, reason)
            body = msgspec.json.encode({"message": reason})
            await respond(send, 405, [(b"content-type", b"application/json"), allow], body)
        else:
            # AWS's SDKs know ResourceNotFoundException, so they show its message. They fail to parse other bodies.
            error = ResourceNotFoundException(
                f"Nothing is served at {scope['path']}; the output of `thawd up` lists what is served."
            )
            self.on_unserved(scope, 404, "nothing is served at this path")
            await respond_error(send, error, request_id=new_request_id())

    async def _own_page(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        try:
            if scope["method"] not in READING and (path in _PAGES or path.startswith(_TABLES)):
                raise MethodNotAllowedException(f"{path} accepts GET, not {scope['method']}", allowed=READING)
            if path == "/metrics":
                content_type = negotiated(header(scope, b"accept"))
                body = await self.parts.metrics(content_type)
                await respond(send, 200, [(b"content-type", content_type.encode()), (b"vary", b"accept")], body)
            elif self.parts.queue is not None and self.parts.queue.claims(path):
                await self.parts.queue(scope, receive, send)
            elif self.parts.invocations is not None and self.parts.invocations.claims(path):
                await self.parts.invocations(scope, send)
            elif self.parts.machines is not None and self.parts.machines.claims(path):
                await self.parts.machines(scope, send)
            elif path == "/_thawd/status":
                document = await self.parts.status(memory="memory" in parse_qs(scope["query_string"].decode("latin-1")))
                await respond_json(send, 200, document)
            elif self.parts.sources is not None and (path + "/").startswith(SOURCES_PREFIX + "/"):
                await self.parts.sources(scope, send)
            elif self.parts.cluster is not None and path.startswith(CLUSTER_PREFIX + "/"):
                await self.parts.cluster(scope, send)
            elif path.startswith(_TABLES):
                name = unquote(path.removeprefix(_TABLES))
                await respond_json(send, 200, {"name": name, "count": await self.parts.count_table(name)})
            else:
                raise ResourceNotFoundException(
                    f"There is no page {path}; thawd's own pages are /metrics, and status, health, ready, queue, dead, "
                    "sources, invocations, machines (of a cluster) and tables/NAME under /_thawd/. Pages for people "
                    "are served to browsers, which send Accept: text/html"
                )
        except ClientGoneError:
            return
        except ThawdError as error:
            await respond_error(send, error, request_id=new_request_id())


async def _refuse(scope: Scope, send: Send, error: ThawdError) -> None:
    """Refuse a request, in the protocol of an AWS service if the request is signed for one."""
    if foreign_service(scope) is None:
        await respond_error(send, error, request_id=new_request_id())
    else:
        await refuse(scope, send, ServiceError(error.type, error.message, error.status, new_request_id()))
