"""An execution environment whose process runs several invocations at the same time, for an ``async def`` handler.

Guarantees:
- each invocation has its own time limit, answer and error;
- an invocation that exceeds its time limit fails alone. The platform tells the process to cancel it, and gives the
  process no further invocations. The process is killed when its other invocations have ended, because the handler may
  have been interrupted anywhere. An application that streams its answer is first told that its client has gone: if it
  then ends by itself within `_LEAVE_S`, the process lives on;
- a client that reads slowly holds up its own answer only;
- if the process ends, all invocations that run in it fail.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from thawd.environments.environment import Environment, encode
from thawd.environments.invoke_frames import invoke_head
from thawd.environments.log_tails import OwnTail
from thawd.environments.peak_memory import PeakMemory
from thawd.environments.result_frames import Answer, Ended, check_body, timed_out
from thawd.environments.results import result_of
from thawd.environments.tenant_check import check_tenant
from thawd.invocation import Invocation, Result
from thawd.wire import frames
from thawd.wire.response_stream import ResponseStream

# How long an application whose stream exceeds the time limit has to end by itself, seconds.
_LEAVE_S = 2.0
# What a client has taken is reported to the process in steps of this size, a quarter of what an answer may be ahead of
# its client (`thawd.runtime.http_apps.parts`). So a stream of short events needs no reports.
_REPORTED_BYTES = 64 << 10


class _TimedOut(Exception):
    """The invocation has exceeded its time limit."""


class ConcurrentEnvironment(Environment):
    """A live execution environment that runs several invocations at the same time.

    The pool limits how many they are. `busy_since` is when the first of those that run now began.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._running: dict[int, asyncio.Future[Answer]] = {}
        self._streams: dict[int, ResponseStream] = {}
        self._numbers = 0
        self._expected = 1

    async def invoke(self, invocation: Invocation, *, init_ms: float | None) -> Result:
        """See `Environment.invoke`. If the caller is cancelled, the invocation is given up as after a time-out."""
        check_tenant(self.tenant_id, invocation)
        self.served += 1
        number, self._numbers = self._numbers, self._numbers + 1
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        begun_s = time.monotonic()
        if not self._running:
            self.busy_since = begun_s
            if self.suspender is not None:
                self.suspender.busy(self)
        self._running[number] = answer
        tail = OwnTail(self.stream) if invocation.want_log_tail else None
        stream = invocation.stream
        if stream is not None:
            self._attach(number, stream)
        self.log.start(invocation.request_id)
        timer = loop.call_later(self.version.function.timeout_s, self._time_out, answer)
        if self.ended.is_set():
            answer.set_exception(self._end())
        else:
            head_of = invoke_head(invocation, arn=self._arn, timeout_s=self.version.function.timeout_s, stream=stream)
            self._control.send(frames.INVOKE, encode({**head_of, "number": number}), invocation.payload)
        try:
            head, body = await self._answer_to(number, invocation, answer, begun_s)
        except asyncio.CancelledError:
            self._give_up(number)
            if tail is not None:
                tail.finish(invocation, lambda: None)
            raise
        finally:
            timer.cancel()
            self._running.pop(number, None)
            self._detach(number)
            busy_since = self.busy_since or begun_s
            if not self._running:
                self.busy_since = None
        self._output.drain()
        if not self._running:
            self._mark_idle()
        result = result_of(self, invocation, (head, body), tail, init_ms=init_ms, size=1)
        self.duration_ms = (time.monotonic() - busy_since) * 1000
        return result

    async def _answer_to(
        self, number: int, invocation: Invocation, answer: asyncio.Future[Answer], begun_s: float
    ) -> Answer:
        try:
            return await answer
        except Ended as ended:
            return self._failure(invocation, ended.status, begun_s)
        except _TimedOut:
            peak_kib = 0 if self.child is None else PeakMemory(self.child.pid).kib()
            if not await self._leaves(number):
                self._give_up(number)
            return timed_out(invocation.request_id, self.version.function.timeout_s, peak_kib=peak_kib)

    def _may_compute(self) -> bool:
        return bool(self._running)

    def _attach(self, number: int, stream: ResponseStream) -> None:
        """Let the invocation's stream take the parts of its answer from now on."""
        stream.executed_version = self.version.number
        self._streams[number] = stream
        unreported = 0

        def taken(size_bytes: int) -> None:
            nonlocal unreported
            unreported += size_bytes
            if unreported >= _REPORTED_BYTES:
                self._tell(frames.TAKEN, {"number": number, "bytes": unreported})
                unreported = 0

        stream.on_taken = taken
        stream.on_gone = lambda: self._tell(frames.GONE, {"number": number})

    def _detach(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.on_taken = stream.on_gone = None

    def _tell(self, kind: int, head: dict[str, int]) -> None:
        if not self.ended.is_set():
            self._control.send(kind, encode(head), b"")

    async def _leaves(self, number: int) -> bool:
        """Tell an application that streams an answer that the client has gone. Return whether it ends soon."""
        stream = self._streams.get(number)
        if stream is None or not stream.has_begun:
            return False
        stream.gone()
        self._running[number] = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(self._running[number], _LEAVE_S)
        except (TimeoutError, Ended):
            return False
        return True

    def _time_out(self, answer: asyncio.Future[Answer]) -> None:
        if not answer.done():
            answer.set_exception(_TimedOut())

    def _give_up(self, number: int) -> None:
        """Tell the process to cancel an invocation, and let it end when the others have ended."""
        self.dying = True
        if not self.ended.is_set():
            self._control.send(frames.CANCEL, encode({"number": number}), b"")

    def _on_frame(self, kind: int, head: Any, body: bytes) -> None:
        if kind == frames.PART:
            if not 0 <= head["number"] < self._numbers:
                self.kill()  # as below
            elif (stream := self._streams.get(head["number"])) is not None and not stream.put(head["type"], body):
                self.kill()  # the runtime keeps to the size limit, so user code has written to its descriptor
            return
        if kind != frames.RESULT:
            super()._on_frame(kind, head, body)
            return
        check_body(head, body)
        if head.number >= self._numbers:
            self.kill()  # no invocation has this number, so user code has written to its descriptor
            return
        answer = self._running.get(head.number)
        if answer is not None and not answer.done():  # else it was given up, and the process did not know that yet
            answer.set_result((head, body))

    def _on_gone(self) -> None:
        super()._on_gone()
        for answer in self._running.values():
            if not answer.done():
                answer.set_exception(self._end())

    def _end(self) -> Ended:
        return Ended(self.child.ended.result() if self.child is not None else None)
