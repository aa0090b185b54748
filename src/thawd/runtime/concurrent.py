"""Runs several invocations at the same time, on one event loop, for an ``async def`` handler.

The platform sends INVOKE frames while other invocations run, each with a number. The RESULT of an invocation carries
its number, so results may come in any order. With CANCEL, the platform gives up an invocation, for example because its
time limit has passed: its task is cancelled, and no RESULT follows.

An ASGI application is such a handler, too. Its answers may be streamed (`thawd.runtime.http_apps.parts`). When a client
has gone, the application is told so; it decides itself when to end.

Each invocation is an asyncio task with a context of its own (PEP 567), so that records of ``logging`` get the right
request id. The variable ``_X_AMZN_TRACE_ID`` is not set, because all invocations share the process's variables.
"""

import contextvars
import os
import sys
import time
from typing import Any, Callable, Dict, Optional, Tuple

from thawd.runtime import coroutines, faults, invoking, logs, process
from thawd.runtime.channel import Channel
from thawd.runtime.context import context_of
from thawd.runtime.faults import Fault
from thawd.runtime.handler import Handler
from thawd.runtime.handler_kinds import is_asynchronous
from thawd.wire import frames

_INVALID = "Runtime.InvalidConcurrentHandler"


class ConcurrentHandler:
    """An ``async def`` handler, or an ASGI application, that can run several invocations at the same time.

    Attributes:
        answers_whole: whether the handler is an application, which has a shutdown.
        closing: runs the application's shutdown; None: there is none to run.

    Raises:
        Fault: the handler is not ``async def``, or streams its answer.
    """

    def __init__(self, handler: Handler) -> None:
        asgi = sys.modules.get("thawd.runtime.http_apps.asgi")
        self._application: Any = handler if asgi is not None and isinstance(handler, asgi.AsgiHandler) else None
        self.answers_whole = self._application is not None
        if self._application is None and getattr(handler, "streams", None) is True:
            raise Fault(
                _INVALID,
                "the function has the option `concurrency`, but its handler streams its answers, or is a WSGI "
                "application or a typed function; remove the option, or make the handler an ordinary `async def` or "
                "an ASGI application",
            )
        if self._application is None and not is_asynchronous(handler):
            raise Fault(
                _INVALID,
                "the function has the option `concurrency`, so its invocations share one event loop, but its handler "
                "is not `async def`; make it `async def` and await whatever it waits for, or remove the option",
            )
        self._handler = handler
        self._request_id: "contextvars.ContextVar[str]" = contextvars.ContextVar("thawd_request_id", default="")
        logs.find_request_id = self._request_id.get

    def run_alone(self, request: frames.Frame, *, now_s: float) -> Tuple[bytes, bool]:
        """Run one invocation to its end, while no other runs; returns as `answer` does."""
        body, failed, _ = coroutines.finish(self.answer(request, self.parts_for(request, None), now_s=now_s))
        return body, failed

    def parts_for(self, request: frames.Frame, channel: Optional[Channel]) -> Any:
        """Return what takes the answer of an application; None: the handler is no application.

        Args:
            request: the INVOKE frame.
            channel: the channel to the platform; None: the answer is returned whole.
        """
        if self._application is None:
            return None
        from thawd.runtime.http_apps.parts import Parts

        limit_bytes = request.head.get("stream") if channel is not None else None
        return Parts(channel, request.head.get("number", 0), limit_bytes)

    @property
    def closing(self) -> Optional[Callable[[], None]]:
        """Runs the application's shutdown; None: there is none to run."""
        closing: Optional[Callable[[], None]] = getattr(self._application, "closing", None)
        return closing

    async def answer(self, request: frames.Frame, parts: Any, *, now_s: float) -> Tuple[bytes, bool, Optional[str]]:
        """Run one invocation.

        Args:
            request: the INVOKE frame.
            parts: what `parts_for` returned for it.
            now_s: when the invocation began, ``time.monotonic()`` seconds.

        Returns:
            The answer, empty if it was sent in parts; whether it is an error document; its content type (None: JSON).

        Raises:
            SystemExit: the handler called ``sys.exit``.
        """
        request_id = request.head["id"]
        self._request_id.set(request_id)
        try:
            event, context = invoking.unmarshal(request.body), context_of(request.head, now_s=now_s)
            if parts is not None:
                streams = "stream" in request.head
                body, content_type = await self._application.answer(event, context, parts, streams=streams)
                return body, False, content_type
            answer = self._handler(event, context)
            if hasattr(type(answer), "__await__"):
                answer = await answer
            return invoking.marshal(answer), False, None
        except SystemExit as error:
            invoking.write_exit(error, request_id)
            raise
        except BaseException as error:  # an exception of user code must not end the loop
            return (*invoking.failed(error, request_id, names_request=True), None)


def serve(channel: Channel, handler: ConcurrentHandler, *, until: Optional[int] = None) -> None:
    """Answer invocations as they come. When the platform closes the channel, the process ends.

    Args:
        channel: channel to the platform.
        handler: the function's handler.
        until: the kind of frame on which to return; None: never return. The platform sends it when no invocation runs.
    """
    _Server(channel, handler, until=until).run()


class _Server:
    """Runs the event loop, and on it the invocations."""

    def __init__(self, channel: Channel, handler: ConcurrentHandler, *, until: Optional[int]) -> None:
        self._channel = channel
        self._handler = handler
        self._until = until
        self._loop = coroutines.event_loop()
        self._tasks: Dict[int, Any] = {}
        self._parts: Dict[int, Any] = {}
        self._has_ended = False
        self._peak = process.OwnPeakMemory()
        self._owner = os.getpid()

    def run(self) -> None:
        self._loop.add_reader(self._channel.fd, self._on_readable)
        self._loop.call_soon(self._take)  # frames that were received together with an earlier one
        try:
            self._loop.run_forever()
        finally:
            self._loop.remove_reader(self._channel.fd)
        if self._has_ended:
            from thawd.runtime.loop import end

            for task in self._tasks.values():
                task.cancel()
            end(self._handler)

    def _on_readable(self) -> None:
        if os.getpid() != self._owner:
            os._exit(0)
        if not self._channel.read():
            self._has_ended = True
            self._loop.stop()
            return
        self._take()

    def _take(self) -> None:
        for frame in self._channel.received():
            if frame.kind == frames.INVOKE:
                number = frame.head.get("number", 0)
                self._tasks[number] = self._loop.create_task(self._run(number, frame, time.monotonic()))
            elif frame.kind == frames.CANCEL:
                task = self._tasks.pop(frame.head["number"], None)
                if task is not None:
                    task.cancel()
            elif frame.kind in (frames.TAKEN, frames.GONE):
                parts = self._parts.get(frame.head["number"])
                if parts is not None and frame.kind == frames.TAKEN:
                    parts.taken(frame.head["bytes"])
                elif parts is not None:
                    parts.gone()
            elif frame.kind == self._until:
                self._loop.stop()
                return
            else:
                os._exit(0)

    async def _run(self, number: int, request: frames.Frame, started_s: float) -> None:
        parts = self._handler.parts_for(request, self._channel)
        if parts is not None:
            self._parts[number] = parts
        try:
            body, failed, content_type = await self._handler.answer(request, parts, now_s=started_s)
        finally:
            self._parts.pop(number, None)
        process.flush_output()
        if os.getpid() != self._owner:
            os._exit(0)  # this is a child that the handler forked and that also returned from the handler
        if self._tasks.pop(number, None) is None:
            return  # the platform has given up the invocation
        duration_ms = (time.monotonic() - started_s) * 1000
        head: Dict[str, Any] = {"duration_ms": duration_ms, "peak_kib": self._peak.kib()}
        head.update(failed=failed, number=number)
        if content_type is not None and not failed:
            head["type"] = content_type
        logged = faults.logged.pop(request.head["id"], None)
        if logged is not None:
            head["logged"] = logged
        try:
            self._channel.send(frames.RESULT, head, body)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)
