"""Calls an ASGI application, such as one of FastAPI, Starlette or Django, with the request in an event.

Source: asgi.readthedocs.io, "HTTP & WebSocket ASGI Message Format".
"""

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional

from thawd.runtime import coroutines
from thawd.runtime.faults import Fault
from thawd.runtime.http_apps.handler import HttpHandler, report_exception
from thawd.runtime.http_apps.lifespan import Lifespan
from thawd.runtime.http_apps.requests import HttpRequest
from thawd.runtime.http_apps.responses import INVALID_ANSWER, Response

if TYPE_CHECKING:
    from thawd.runtime.http_apps.parts import Parts

# An application that still runs this long after the end of its answer works in the background: the client gets the
# answer meanwhile.
_BACKGROUND_S = 0.005


class AsgiHandler(HttpHandler):
    """An ASGI application as a handler. Making it runs the application's startup.

    Raises:
        Fault: the startup has failed.
    """

    def __init__(self, application: Any) -> None:
        self.application = application
        self.lifespan = Lifespan(application)
        self.lifespan.start()
        anyio = sys.modules.get("anyio")
        if anyio is not None:
            # Starlette and FastAPI use this library, which loads most of its code at the first use. That takes 10 ms,
            # which the snapshot is to contain.
            coroutines.finish(anyio.sleep(0))

    def serve(self, request: HttpRequest, response: Response, event: Any, context: Any) -> None:
        """See `HttpHandler.serve`."""
        scope = self._scope(request)
        scope["aws.event"], scope["aws.context"] = event, context
        coroutines.finish(self._serve(scope, request.body, response))

    async def answer(self, event: Any, context: Any, parts: "Parts", *, streams: bool) -> "tuple[bytes, Optional[str]]":
        """Answer the request in `event` while the application serves others.

        Args:
            event: the event.
            context: its context.
            parts: takes the answer.
            streams: whether the answer may be sent in parts. If not, it is a document for Lambda's HTTP integrations.

        Returns:
            The answer if it is returned whole, and its content type (None: JSON).
        """
        from thawd.runtime import invoking

        request, response = self.begun(event, parts.stream if streams else None)
        if not response.begun:
            scope = self._scope(request)
            scope["aws.event"], scope["aws.context"] = event, context
            try:
                await self._serve(scope, request.body, response, parts)
            except Exception as error:
                if parts.is_gone:  # there is nobody to answer
                    report_exception(error, context)
                else:
                    self.failed(error, response, context)
        if not streams:
            return invoking.marshal(response.document(is_format_1=request.is_format_1)), None
        if parts.is_gone:
            return b"", parts.stream.content_type
        return await parts.finish(response.rest()), parts.stream.content_type

    @property
    def closing(self) -> Optional[Callable[[], None]]:
        """Runs the application's shutdown; None: it has none."""
        return self.lifespan.stop if self.lifespan.is_open else None

    def _scope(self, request: HttpRequest) -> Dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version,
            "method": request.method,
            "scheme": request.scheme,
            "path": request.prefix + request.path,
            "raw_path": request.raw_path.encode("ascii"),
            "query_string": request.query.encode("latin-1", "replace"),
            "root_path": request.prefix,
            "headers": [(name.encode("latin-1", "replace"), _bytes(value)) for name, value in request.headers],
            "client": (request.client, 0),
            "server": request.server,
            "state": self.lifespan.state.copy(),
        }

    async def _serve(
        self, scope: Dict[str, Any], body: bytes, response: Response, parts: "Optional[Parts]" = None
    ) -> None:
        loop = asyncio.get_running_loop()
        answered = asyncio.Event()
        timer: Any = None
        unread = True
        if parts is not None:
            parts.on_gone = answered.set

        async def receive() -> Dict[str, Any]:
            nonlocal unread
            if unread:
                unread = False
                return {"type": "http.request", "body": body, "more_body": False}
            await answered.wait()
            return {"type": "http.disconnect"}

        async def send(message: Dict[str, Any]) -> None:
            nonlocal timer
            kind = message["type"]
            if kind == "http.response.start":
                headers = [(_text(name), _text(value)) for name, value in message.get("headers", ())]
                response.begin(message["status"], headers)
            elif kind == "http.response.body":
                more = message.get("more_body", False)
                data = bytes(message.get("body", b""))
                if parts is not None and (more or response.streams):
                    size = parts.slice_bytes
                    for at in range(0, len(data) - size, size):
                        await parts.room()
                        response.write(data[at : at + size], more=True)
                    data = data[max(0, len(data) - 1) // size * size :]
                    await parts.room()
                response.write(data, more=more)
                if not more:
                    answered.set()
                    timer = loop.call_later(_BACKGROUND_S, response.send_now)
            else:
                raise Fault(INVALID_ANSWER, "the application has sent the message %r, not an answer" % kind)

        try:
            await self.application(scope, receive, send)
        finally:
            if timer is not None:
                timer.cancel()
        if not response.begun:
            raise Fault(INVALID_ANSWER, "the application has ended without an answer")


def _text(data: Any) -> str:
    return bytes(data).decode("latin-1")


def _bytes(value: str) -> bytes:
    """A header's value. An event holds values as text whose characters are the bytes that were received."""
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        return value.encode()
