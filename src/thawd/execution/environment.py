"""One execution environment: a process, one invocation at a time, a time limit enforced by killing.

The platform's end of the control channel is a plain asyncio protocol; one frame out, one frame in. What the process
writes to its standard output and error comes through a pipe, and is drained before an answer counts as complete, so
that an invocation's log is whole when its result is returned.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec

from thawd import wire
from thawd.execution.children import Child
from thawd.execution.ends import Ends, FrameProtocol
from thawd.execution.memory import MemoryLimit
from thawd.execution.output import OutputPipe
from thawd.execution.version import Version
from thawd.invocation import LOG_TAIL_BYTES, Invocation, Result, StartKind
from thawd.telemetry.logs import LogStream

_LAST_WORDS_S = 0.5
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class InitError(Exception):
    """The function's init phase failed.

    Attributes:
        document: the error document that its callers get.
        from_outside: whether the process was killed by somebody else, so that another try may well succeed.
    """

    def __init__(self, message: str, document: bytes, *, from_outside: bool = False) -> None:
        super().__init__(message)
        self.document = document
        self.from_outside = from_outside

    @classmethod
    def of_exit(cls, child: Child | None) -> InitError:
        """For a process that ended before it had said how init went."""
        status = child.ended.result() if child is not None else None
        message = describe_exit(status)
        killed = status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        return cls(
            message,
            _document("Runtime.ExitError", f"Error: {message}"),
            from_outside=killed and child is not None and not child.killed,
        )


ServiceHandler = Callable[[dict[str, Any], bytes], Awaitable[tuple[dict[str, Any], bytes]]]


class Environment:
    """A live execution environment; made by the spawner, used by the pool.

    Attributes:
        version: what it runs.
        identifier: 32 hexadecimal digits, unique.
        kind: how it was started.
        provisioned: whether it is kept however long it is idle.
        dying: whether it was killed or has lost its channel, so that it must not be used any more.
        idle_since: ``time.monotonic()`` seconds of its last release.
        ended: set when it can no longer be used.
        init_ms: time from spawning to ready, milliseconds.
        served: invocations begun.
    """

    def __init__(self, version: Version, *, identifier: str, kind: StartKind, stream: LogStream, ends: Ends) -> None:
        self.version = version
        self.identifier = identifier
        self.kind = kind
        self.provisioned = False
        self.dying = False
        self.idle_since = 0.0
        self.init_ms = 0.0
        self.served = 0
        self.stream = stream
        self.on_end: Callable[[Environment], None] = lambda environment: None
        self.memory_limit: MemoryLimit | None = None
        self.busy_since: float | None = None
        self.child: Child | None = None
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[dict[str, Any]] = loop.create_future()
        self.ended = asyncio.Event()
        self._answer: asyncio.Future[tuple[dict[str, Any], bytes]] | None = None
        self._timed_out = False
        self._ends = ends
        self._output = OutputPipe(ends.output, stream)
        self._control = FrameProtocol(self._on_frame, self._on_control_lost)
        self._control_lost = False
        self._services: FrameProtocol | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def connect(self, services: ServiceHandler) -> None:
        """Attach to the channels, and serve the process's calls by `services`."""
        loop = asyncio.get_running_loop()
        self._output.open()
        await loop.create_unix_connection(lambda: self._control, sock=self._ends.control)
        on_call = self._make_on_call(services)
        self._services = FrameProtocol(on_call, lambda: None)
        protocol = self._services
        await loop.create_unix_connection(lambda: protocol, sock=self._ends.services)

    def adopt(self, child: Child) -> None:
        """The process is `child`: when it ends, so does the environment."""
        self.child = child
        child.ended.add_done_callback(self._on_exit)

    def kill(self) -> None:
        """End the environment now; what runs in it fails with ``Runtime.ExitError``."""
        self.dying = True
        if self.child is not None:
            self.child.kill()

    async def invoke(self, invocation: Invocation, *, init_ms: float | None) -> Result:
        """Run `invocation`; always a result, an error document when the function failed.

        Args:
            invocation: what to run; the time limit starts now.
            init_ms: time of the start to report with it, None when it did not wait for one.
        """
        function = self.version.function
        stream = self.stream
        self.served += 1
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        self._timed_out = False
        self.busy_since = time.monotonic()
        if invocation.want_log_tail:
            stream.begin_tail(LOG_TAIL_BYTES)
        stream.line(f"START RequestId: {invocation.request_id} Version: {self.version.qualifier}")
        timer = loop.call_later(function.timeout_s, self._on_timeout)
        self._send(invocation)
        try:
            head, body = await self._answer
        except _Ended as ended:
            head, body = self._failure(invocation, ended.status)
        finally:
            timer.cancel()
            self._answer = None
            self.busy_since = None
        self._output.drain()
        return self._result(invocation, head, body, init_ms=init_ms)

    def _send(self, invocation: Invocation) -> None:
        function = self.version.function
        head = {
            "id": invocation.request_id,
            "arn": function.arn,
            "left_ms": function.timeout_s * 1000,
        }
        if invocation.trace_id:
            head["trace"] = invocation.trace_id
        if invocation.client_context:
            head["client"] = invocation.client_context
        if self.ended.is_set():
            assert self._answer is not None
            self._answer.set_exception(_Ended(self.child.ended.result() if self.child is not None else None))
            return
        self._control.send(wire.INVOKE, _encode(head), invocation.payload)

    def _failure(self, invocation: Invocation, status: int | None) -> tuple[dict[str, Any], bytes]:
        """The answer for an invocation whose environment ended under it. Source: Lambda's wording, lambda-facts."""
        timeout_s = self.version.function.timeout_s
        prefix = f"RequestId: {invocation.request_id} Error: "
        started = self.busy_since or time.monotonic()
        head = {"duration_ms": (time.monotonic() - started) * 1000, "peak_kib": 0, "failed": True}
        if self._timed_out:
            head["duration_ms"] = timeout_s * 1000.0
            message = f"Task timed out after {timeout_s:.2f} seconds"
            self.stream.line(f"{_now_text()} {invocation.request_id} {message}")
            return head, _document("Sandbox.Timedout", prefix + message)
        message = describe_exit(status)
        self.stream.line(prefix + message)
        return head, _document("Runtime.ExitError", prefix + message)

    def _result(self, invocation: Invocation, head: dict[str, Any], body: bytes, *, init_ms: float | None) -> Result:
        duration_ms = head["duration_ms"]
        memory_mib = math.ceil(head["peak_kib"] / 1024)
        billed_ms = math.ceil(duration_ms + (init_ms or 0.0))
        stream = self.stream
        stream.line(f"END RequestId: {invocation.request_id}")
        init = "" if init_ms is None else f"Init Duration: {init_ms:.2f} ms\t"
        stream.line(
            f"REPORT RequestId: {invocation.request_id}\tDuration: {duration_ms:.2f} ms\t"
            f"Billed Duration: {billed_ms} ms\tMemory Size: {self.version.function.memory_mb} MB\t"
            f"Max Memory Used: {memory_mib} MB\t{init}"
        )
        return Result(
            payload=body,
            function_error="Unhandled" if head["failed"] else None,
            executed_version=self.version.qualifier,
            start_kind=StartKind.WARM if init_ms is None else self.kind,
            duration_ms=duration_ms,
            init_ms=init_ms,
            max_memory_mib=memory_mib,
            log_tail=stream.end_tail() if invocation.want_log_tail else b"",
        )

    def _on_frame(self, kind: int, head: Any, body: bytes) -> None:
        if kind == wire.RESULT and self._answer is not None:
            if not self._answer.done():
                self._answer.set_result((_checked(head, body), body))
        elif kind == wire.READY and not self.ready.done():
            self.ready.set_result(head)
        elif kind == wire.INIT_ERROR and not self.ready.done():
            self.ready.set_exception(InitError(head["message"], body))
        else:
            self.kill()

    def _on_timeout(self) -> None:
        self._timed_out = True
        self.kill()

    def _on_control_lost(self) -> None:
        self._control_lost = True
        self.dying = True
        if self.child is not None and self.child.ended.done():
            self._on_gone()
        elif self.child is not None:
            self.child.make_sure()

    def _on_exit(self, _: asyncio.Future[int | None]) -> None:
        # What it sent before it died is still in the socket; the end of the stream comes after that. A process that
        # inherited the descriptor could hold the stream open, so there is a limit to the patience.
        if self._control_lost:
            self._on_gone()
        else:
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._on_gone)

    def _on_gone(self) -> None:
        """The process is dead: whoever waits is told, descriptors are closed, the pool is told. Once."""
        if self.ended.is_set():
            return
        self._output.close()
        self.ended.set()
        status = self.child.ended.result() if self.child is not None else None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(_Ended(status))
        if not self.ready.done():
            self.ready.set_exception(InitError.of_exit(self.child))
            self.ready.exception()  # nobody may be waiting any more
        self._close()
        self.on_end(self)

    def _close(self) -> None:
        os.close(self._ends.lifeline)
        self._control.close()
        if self._services is not None:
            self._services.close()
        if self.memory_limit is not None:
            self.memory_limit.close()

    def _make_on_call(self, services: ServiceHandler) -> Callable[[int, Any, bytes], None]:
        async def answer(head: dict[str, Any], body: bytes) -> None:
            reply, data = await services(head, body)
            if self._services is not None:
                self._services.send(wire.REPLY, _encode(reply), data)

        def on_call(kind: int, head: Any, body: bytes) -> None:
            if kind != wire.CALL or not isinstance(head, dict):
                self.kill()
                return
            task = asyncio.get_running_loop().create_task(answer(head, body))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

        return on_call


class _Ended(Exception):
    """The process ended while an invocation ran in it; `status` is the wait status, None when unknown."""

    def __init__(self, status: int | None) -> None:
        super().__init__(status)
        self.status = status


def describe_exit(status: int | None) -> str:
    """Lambda's words for a wait status."""
    if status is None:
        return "Runtime exited without providing a reason"
    if os.WIFSIGNALED(status):
        return f"Runtime exited with error: signal: {_SIGNALS.get(os.WTERMSIG(status), os.WTERMSIG(status))}"
    code = os.WEXITSTATUS(status)
    if code == 0:
        return "Runtime exited without providing a reason"
    return f"Runtime exited with error: exit status {code}"


# Go's names of signals, which Lambda prints.
_SIGNALS = {
    2: "interrupt",
    4: "illegal instruction",
    6: "aborted",
    7: "bus error",
    8: "floating point exception",
    9: "killed",
    11: "segmentation fault",
    13: "broken pipe",
    15: "terminated",
}


class _ResultHead(msgspec.Struct):
    duration_ms: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    peak_kib: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
    failed: bool


def _checked(head: Any, body: bytes) -> dict[str, Any]:
    """The head of a RESULT, in which figures are figures; user code can write to the descriptor.

    Raises:
        msgspec.ValidationError: they are not.
        ValueError: the body is no text.
    """
    body.decode()
    return msgspec.structs.asdict(msgspec.convert(head, _ResultHead))


def _document(error_type: str, message: str) -> bytes:
    return _encode({"errorType": error_type, "errorMessage": message})


def _now_text() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
