"""An execution environment whose process runs several invocations at the same time, for an ``async def`` handler.

Guarantees:
- each invocation has its own time limit, answer and error;
- an invocation that exceeds its time limit fails alone. The platform tells the process to cancel it, and gives the
  process no further invocations. The process is killed when its other invocations have ended, because the handler may
  have been interrupted anywhere;
- if the process ends, all invocations that run in it fail.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from thawd.environments.environment import Environment, encode
from thawd.environments.log_tails import OwnTail
from thawd.environments.peak_memory import PeakMemory
from thawd.environments.result_frames import Answer, Ended, check_body, timed_out
from thawd.environments.tenant_check import check_tenant
from thawd.invocation import Invocation, Result
from thawd.wire import frames


class _TimedOut(Exception):
    """The invocation has exceeded its time limit."""


class ConcurrentEnvironment(Environment):
    """A live execution environment that runs several invocations at the same time.

    The pool limits how many they are. `busy_since` is when the first of those that run now began.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._running: dict[int, asyncio.Future[Answer]] = {}
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
        if invocation.stream is not None:
            invocation.stream.executed_version = self.version.number
        self.log.start(invocation.request_id)
        timer = loop.call_later(self.version.function.timeout_s, self._time_out, answer)
        if self.ended.is_set():
            answer.set_exception(self._end())
        else:
            self._control.send(frames.INVOKE, encode({**self._head(invocation), "number": number}), invocation.payload)
        try:
            head, body = await answer
        except Ended as ended:
            head, body = self._failure(invocation, ended.status, begun_s)
        except _TimedOut:
            peak_kib = 0 if self.child is None else PeakMemory(self.child.pid).kib()
            self._give_up(number)
            head, body = timed_out(invocation.request_id, self.version.function.timeout_s, peak_kib=peak_kib)
        except asyncio.CancelledError:
            self._give_up(number)
            if tail is not None:
                tail.finish(invocation, lambda: None)
            raise
        finally:
            timer.cancel()
            self._running.pop(number, None)
            busy_since = self.busy_since or begun_s
            if not self._running:
                self.busy_since = None
        self._output.drain()
        if not self._running:
            self._mark_idle()
        result = self._result(invocation, head, body, tail, init_ms=init_ms)
        self.duration_ms = (time.monotonic() - busy_since) * 1000
        return result

    def _time_out(self, answer: asyncio.Future[Answer]) -> None:
        if not answer.done():
            answer.set_exception(_TimedOut())

    def _give_up(self, number: int) -> None:
        """Tell the process to cancel an invocation, and let it end when the others have ended."""
        self.dying = True
        if not self.ended.is_set():
            self._control.send(frames.CANCEL, encode({"number": number}), b"")

    def _on_frame(self, kind: int, head: Any, body: bytes) -> None:
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
