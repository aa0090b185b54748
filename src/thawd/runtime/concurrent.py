"""Runs several invocations at the same time, on one event loop, for an ``async def`` handler.

The platform sends INVOKE frames while other invocations run, each with a number. The RESULT of an invocation carries
its number, so results may come in any order. With CANCEL, the platform gives up an invocation, for example because its
time limit has passed: its task is cancelled, and no RESULT follows.

Each invocation is an asyncio task with a context of its own (PEP 567), so that records of ``logging`` get the right
request id. The variable ``_X_AMZN_TRACE_ID`` is not set, because all invocations share the process's variables.
"""

import contextvars
import os
import time
from typing import Any, Dict, Optional, Tuple

from thawd.runtime import coroutines, invoking, logs, process
from thawd.runtime.channel import Channel
from thawd.runtime.context import context_of
from thawd.runtime.faults import Fault
from thawd.runtime.handler import Handler, is_asynchronous
from thawd.wire import frames

_INVALID = "Runtime.InvalidConcurrentHandler"


class ConcurrentHandler:
    """An ``async def`` handler that can run several invocations at the same time.

    Raises:
        Fault: the handler is not ``async def``, or streams its answer.
    """

    def __init__(self, handler: Handler) -> None:
        if getattr(handler, "streams", None) is True:
            raise Fault(
                _INVALID,
                "the function has the option `concurrency`, so its answers are sent whole, but `thawd.streaming` has "
                "made its handler a streaming handler; remove the option or the decorator",
            )
        if not is_asynchronous(handler):
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
        answer: Tuple[bytes, bool] = coroutines.finish(self.answer(request, now_s=now_s))
        return answer

    async def answer(self, request: frames.Frame, *, now_s: float) -> Tuple[bytes, bool]:
        """Run one invocation; returns the answer as JSON text, and whether it is an error document.

        Args:
            request: the INVOKE frame.
            now_s: when the invocation began, ``time.monotonic()`` seconds.

        Raises:
            SystemExit: the handler called ``sys.exit``.
        """
        request_id = request.head["id"]
        self._request_id.set(request_id)
        try:
            answer = self._handler(invoking.unmarshal(request.body), context_of(request.head, now_s=now_s))
            if hasattr(type(answer), "__await__"):
                answer = await answer
            return invoking.marshal(answer), False
        except SystemExit as error:
            invoking.write_exit(error, request_id)
            raise
        except BaseException as error:  # an exception of user code must not end the loop
            return invoking.failed(error, request_id, names_request=True)


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
        self._peak = process.OwnPeakMemory()
        self._owner = os.getpid()

    def run(self) -> None:
        self._loop.add_reader(self._channel.fd, self._on_readable)
        self._loop.call_soon(self._take)  # frames that were received together with an earlier one
        try:
            self._loop.run_forever()
        finally:
            self._loop.remove_reader(self._channel.fd)

    def _on_readable(self) -> None:
        if os.getpid() != self._owner or not self._channel.read():
            os._exit(0)
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
            elif frame.kind == self._until:
                self._loop.stop()
                return
            else:
                os._exit(0)

    async def _run(self, number: int, request: frames.Frame, started_s: float) -> None:
        body, failed = await self._handler.answer(request, now_s=started_s)
        process.flush_output()
        if os.getpid() != self._owner:
            os._exit(0)  # this is a child that the handler forked and that also returned from the handler
        if self._tasks.pop(number, None) is None:
            return  # the platform has given up the invocation
        duration_ms = (time.monotonic() - started_s) * 1000
        head = {"duration_ms": duration_ms, "peak_kib": self._peak.kib(), "failed": failed, "number": number}
        try:
            self._channel.send(frames.RESULT, head, body)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)
