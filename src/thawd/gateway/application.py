"""The ASGI application: checks the key, decides by path which part of the gateway serves a request.

Order: the Invoke API, thawd's own pages under ``/_thawd``, requests that say they are meant for S3, declared routes,
buckets, the ``$default`` route.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from thawd.errors import AccessDeniedException, ResourceNotFoundException, ThawdError
from thawd.gateway.http import Receive, Scope, Send, header, respond, respond_error, respond_json
from thawd.gateway.invoke import PREFIX, SUFFIX, InvokeApi
from thawd.gateway.objects import ObjectApi
from thawd.gateway.routes import RoutesApi
from thawd.invocation import new_request_id

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(slots=True)
class Parts:
    """What the application hands requests to; replaced as a whole when the configuration is read anew.

    Attributes:
        invoke: the Invoke API.
        routes: declared routes.
        objects: buckets.
        status: makes the document for ``/_thawd/status``.
        count_table: number of items in a table.
        metrics: makes the text for ``/metrics``.
        key: what clients must present, None when the server listens on loopback only.
    """

    invoke: InvokeApi
    routes: RoutesApi
    objects: ObjectApi
    status: Callable[[], Awaitable[Mapping[str, Any]]]
    count_table: Callable[[str], Awaitable[int]]
    metrics: Callable[[], Awaitable[bytes]]
    key: str | None


class Application:
    """The whole of the HTTP port."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return
        try:
            await self._serve(scope, receive, send)
        except asyncio.CancelledError:
            return  # the server stops, and gives up those who have not sent their request

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = self.parts
        path: str = scope["path"]
        if parts.key is not None or header(scope, b"origin") is not None:
            try:
                _authorize(scope, parts.key)
            except ThawdError as error:
                await respond_error(send, error, request_id=new_request_id())
                return
        if path.startswith(PREFIX) and path.endswith(SUFFIX):
            await parts.invoke(scope, receive, send)
        elif path.startswith("/_thawd/") or path == "/metrics":
            await self._own(scope, send)
        elif parts.objects.claims(scope):
            await parts.objects(scope, receive, send)
        else:
            await self._declared(scope, receive, send)

    async def _declared(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = self.parts
        raw_path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1").split("?")[0]
        found = parts.routes.table.find(scope["method"], raw_path)
        is_object = parts.objects.owns(scope["path"])
        if found is not None and not (is_object and found[0].key == "$default"):
            await parts.routes(scope, receive, send, route=found[0], parameters=found[1])
        elif is_object:
            await parts.objects(scope, receive, send)
        elif allowed := parts.routes.table.methods(raw_path):
            allow = (b"allow", ", ".join(allowed).encode())
            body = msgspec.json.encode({"message": f"Method Not Allowed; this path takes {', '.join(allowed)}"})
            await respond(send, 405, [(b"content-type", b"application/json"), allow], body)
        else:
            # A known error type, so that SDKs show it instead of stumbling over the body.
            error = ResourceNotFoundException(f"Nothing is served at {scope['path']}; see `thawd up` for what is.")
            await respond_error(send, error, request_id=new_request_id())

    async def _own(self, scope: Scope, send: Send) -> None:
        path: str = scope["path"]
        try:
            if path == "/metrics":
                await respond(send, 200, [(b"content-type", b"text/plain; version=0.0.4")], await self.parts.metrics())
            elif path == "/_thawd/status":
                await respond_json(send, 200, await self.parts.status())
            elif path.startswith("/_thawd/tables/"):
                name = unquote(path.removeprefix("/_thawd/tables/"))
                await respond_json(send, 200, {"name": name, "count": await self.parts.count_table(name)})
            else:
                raise ResourceNotFoundException(f"There is no {path}; there are /_thawd/status and /metrics")
        except ThawdError as error:
            await respond_error(send, error, request_id=new_request_id())


def _authorize(scope: Scope, key: str | None) -> None:
    """Let the request pass, or say why not.

    Without a key (loopback only), a page from elsewhere that a browser on this machine shows must not be able to run
    functions: such requests carry their origin, which must be this machine.

    Raises:
        AccessDeniedException: no key, a wrong key, or a foreign origin (403).
    """
    if key is None:
        origin = (header(scope, b"origin") or b"").decode("latin-1")
        try:
            host = urlsplit(origin).hostname
        except ValueError:
            host = None
        if host not in _LOOPBACK_NAMES:
            raise AccessDeniedException(
                f"Requests from pages of {origin or 'an unknown origin'} are refused; set server.key and send it"
            )
        return
    given = header(scope, b"x-api-key")
    if given is None:
        given = (header(scope, b"authorization") or b"").removeprefix(b"Bearer ")
    if not hmac.compare_digest(given, key.encode()):
        raise AccessDeniedException("The key is missing or wrong; send it as X-Api-Key or as Authorization: Bearer")
