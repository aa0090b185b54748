"""One execution environment: a process that runs one invocation at a time.

The process is killed if an invocation takes longer than the function's time limit. If the handler takes lists of
events, the process runs one batch at a time. A `ConcurrentEnvironment` runs several invocations at the same time.

The platform's end of the control channel is a plain asyncio protocol: it sends one frame for each invocation, and the
result comes back in one frame. If the answer is streamed, a frame for each part comes before that. The standard output
and error of the process arrive through a pipe. Before the platform returns a result, it reads everything that the pipe
contains, so the log of the invocation is complete by then.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from thawd.environments.channels import Channels, FrameProtocol, attach
from thawd.environments.child_processes import Child
from thawd.environments.external_extensions import Extensions
from thawd.environments.init_phase import InitError, ReadyHead, describe_exit, error_document
from thawd.environments.invocation_deadline import InvocationDeadline
from thawd.environments.invoke_frames import invoke_head
from thawd.environments.log_tails import LogTails
from thawd.environments.output import OutputPipe
from thawd.environments.peak_memory import PeakMemory
from thawd.environments.platform_log import platform_log
from thawd.environments.result_frames import Answer, Ended, ResultHead, check_body, decode_head, failure, timed_out
from thawd.environments.results import result_of
from thawd.environments.runtime_api.endpoint import RuntimeApi
from thawd.environments.sandbox.memory import MemoryLimit
from thawd.environments.store_call_channel import CallChannel, ServiceHandler
from thawd.environments.suspension import Suspender
from thawd.environments.tenant_check import check_tenant
from thawd.environments.version import Version
from thawd.invocation import Invocation, Result, StartKind
from thawd.system.inline import InlineFuture
from thawd.telemetry.logs.writer import LogStream
from thawd.wire import frames
from thawd.wire.response_stream import ResponseStream

_LAST_WORDS_S = 0.5
# Source: AWS Lambda developer guide, "Understanding the Lambda execution environment lifecycle", shutdown phase.
_SHUTDOWN_S = 2.0
_DECODERS = {frames.RESULT: decode_head}
encode = msgspec.json.Encoder().encode


class Environment:
    """A live execution environment. Package `starts` starts it, and the pool leases it to invocations.

    Attributes:
        version: the version that it runs.
        identifier: 32 hexadecimal digits, unique.
        kind: how it was started.
        tenant_id: the only tenant that it serves; None: it has served no tenant, or its function has no tenants.
        provisioned: whether it belongs to the provisioned concurrency, so that it is kept while idle.
        dying: whether it must get no further invocation, because it was killed or has lost its channel, or will be
            killed when the invocations that run in it have ended.
        idle_since: when it last became idle, ``time.monotonic()`` seconds.
        busy_since: when its invocation began, ``time.monotonic()`` seconds; None while it is idle.
        ended: set when it can no longer be used.
        on_end: called once when it has ended.
        ready: a future; done when the process has reported that it can serve, or failed with InitError.
        parked: a future of a spare (a thawed copy that waits until an environment is needed); done when its process
            waits for `resume`. The result is the reason why the spare must not be used, or None.
        child: its process, None until `adopt`.
        init_ms: time from the request for its start until it was ready, milliseconds. A spare's start is requested
            when it is to become an environment.
        prepare_ms: the part of `init_ms` spent inside the process: on init, or on the fork or restore with the
            after-restore hooks.
        hooks_ms: the part of `prepare_ms` spent in the after-restore hooks.
        restored: whether it is a copy, or a fork, of a process in which the before-snapshot hooks have run.
        waited_for_init: whether `init_ms` contains the init of the process that it is a copy or a fork of.
        billed_restore_ms: the part of `init_ms` that Lambda bills for a restore: the runtime's repairs and the hooks;
            0 for an environment that was not restored.
        hooks_since_s: when its after-restore hooks began, ``time.monotonic()`` seconds; None before that.
        served: number of invocations that have begun in it.
        duration_ms: duration of the last invocation, measured inside the process, milliseconds. If several ran at the
            same time: how long at least one of them ran.
        memory_limit: enforces its memory limit. None: the process of a cold start does not run yet, or a fork or copy
            is not ready yet.
        has_folder: whether it has its own temporary folder.
        inherited_bytes: for a fork or a copy, size of the files in its temporary folder that init left there and that
            other forks or copies share; else 0.
        suspender: stops its processes (SIGSTOP) between invocations; None: they keep running.
    """

    def __init__(
        self, version: Version, *, identifier: str, kind: StartKind, stream: LogStream, channels: Channels
    ) -> None:
        self.version = version
        self.identifier = identifier
        self.kind = kind
        self.tenant_id: str | None = None
        self.provisioned = False
        self.dying = False
        self.idle_since = 0.0
        self.init_ms = 0.0
        self.prepare_ms = self.hooks_ms = 0.0
        self.restored = False
        self.waited_for_init = False
        self.billed_restore_ms = 0.0
        self.hooks_since_s: float | None = None
        self.served = 0
        self.duration_ms = 0.0
        self.stream = stream
        self.log = platform_log(version, stream)
        self.on_end: Callable[[Environment], None] = lambda environment: None
        self.memory_limit: MemoryLimit | None = None
        self.suspender: Suspender | None = None
        self.has_folder = False
        self.inherited_bytes = 0
        self.busy_since: float | None = None
        self.child: Child | None = None
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[ReadyHead] = loop.create_future()
        self.parked: asyncio.Future[str | None] = loop.create_future()
        self.ended = asyncio.Event()
        self._answers: list[Answer] = []
        self._expected = 0
        self._answer: InlineFuture[list[Answer]] | None = None
        self._deadline = InvocationDeadline(self._on_timeout)
        self._is_unanswered = False
        self._timed_out = False
        self._peak_kib = 0
        self._closes = False
        self._stream: ResponseStream | None = None
        self._channels = channels
        self._output = OutputPipe(channels.output, stream)
        self._control: FrameProtocol | RuntimeApi
        self._control = FrameProtocol(self._on_frame, self._on_control_lost, decoders=_DECODERS)
        self._control_lost = False
        self._calls: CallChannel | None = None
        self._api: RuntimeApi | None = None
        self._extensions: Extensions | None = None
        self._fault: tuple[str, str] | None = None
        self._arn = version.function.arn

    def connect_api(self, api: RuntimeApi, extensions: Extensions) -> None:
        """Attach to the Runtime API, over which the function's program communicates, instead of the channels."""
        self._output.open()
        self._channels.control.close()
        self._channels.services.close()
        self._control = self._api = api
        self._extensions = extensions
        api.attach(self._on_frame, on_answer=self._on_api_answer, on_lost=self._on_control_lost)
        extensions.on_fault = self._on_fault

    async def connect(self, services: ServiceHandler) -> None:
        """Attach to the channels; `services` answers the calls that the process makes."""
        self._output.open()
        assert isinstance(self._control, FrameProtocol)
        try:
            await attach(self._control, self._channels.control)
        except BaseException:
            self._channels.services.close()
            raise
        self._calls = CallChannel(services, on_invalid=self.kill)
        await self._calls.open(self._channels.services)

    @property
    def is_quiet(self) -> bool:
        """Whether all work on the last invocation is done, including the work of extensions."""
        return self._api is None or self._api.extensions.all_waiting()

    @property
    def extension_groups(self) -> list[int]:
        """The process groups of the environment's extensions."""
        return [] if self._extensions is None else self._extensions.groups()

    def resume(self) -> None:
        """Make the spare an environment: let its process continue. `ready` is done when it can serve."""
        assert isinstance(self._control, FrameProtocol)
        self._control.send(frames.GO_ON, b"{}", b"")

    def touch(self, written: bytes, read: bytes) -> None:
        """Let the spare touch pages while it waits (`thawd.environments.starts.touched_pages`)."""
        if written or read:
            assert isinstance(self._control, FrameProtocol)
            self._control.send(frames.TOUCH, encode({"written": len(written)}), written + read)

    def drain(self) -> None:
        """Copy to the log what the environment's processes have written so far."""
        self._output.drain()

    def adopt(self, child: Child) -> None:
        """Take `child` as the environment's process: the environment ends when this process ends."""
        self.child = child
        if self._api is not None:
            self._api.pid = child.pid
        child.ended.add_done_callback(self._on_exit)

    def kill(self) -> None:
        """End the environment by killing its process.

        If the environment is idle and has extensions, the process first gets SIGTERM, and half a second to end. If it
        is idle and its application has a shutdown (ASGI's lifespan), it gets two seconds for that. The running
        invocation fails, with ``Runtime.ExitError`` unless another reason was recorded.
        """
        self.dying = True
        if self.child is None:
            return
        is_idle = self.ready.done() and not self._may_compute()
        if self._extensions is not None and is_idle:
            if self.suspender is not None:
                self.suspender.busy(self)  # a stopped process cannot handle SIGTERM
            if self._extensions.wind_down(self.child):
                return
        if is_idle and self._closes:
            self._let_close(self.child)
            return
        self.child.kill()

    def _may_compute(self) -> bool:
        """Return whether the process may still run a handler, perhaps that of an invocation whose caller has gone."""
        return self._is_unanswered

    def _let_close(self, child: Child) -> None:
        """Let an idle process run its application's shutdown, because its channel ends; kill it 2 seconds later."""
        if child.leaving or child.ended.done():
            return
        assert isinstance(self._control, FrameProtocol)
        if self.suspender is not None:
            self.suspender.busy(self)  # a stopped process cannot read the end of its channel
        child.killed = child.leaving = True
        self._control.finish()
        asyncio.get_running_loop().call_later(_SHUTDOWN_S, child.kill)

    def end_because(self, reason: str) -> None:
        """End the environment, and give `reason` in the log and in the error of the running invocation."""
        self._fault = ("Runtime.ExitError", f"Runtime exited with error: {reason}")
        self.stream.line(f"thawd: the execution environment is ended: {reason}")
        self.kill()

    def abandon(self) -> None:
        """Close an environment whose process was not started."""
        self._on_gone()

    def mark_ready(self, *, init_ms: float) -> None:
        """Record that the environment became ready, `init_ms` milliseconds after the request for its start."""
        head = self.ready.result()
        self.init_ms = init_ms
        self.restored, self._closes = head.restored, head.closes
        inside_ms = head.restore_ms if self.kind == StartKind.THAW else head.init_ms
        self.prepare_ms, self.hooks_ms = min(init_ms, inside_ms + head.renew_ms + head.hooks_ms), head.hooks_ms
        if self.restored:
            self.billed_restore_ms = head.renew_ms + head.hooks_ms
            self._output.drain()
            self.log.restore_report(init_ms)
        self._mark_idle()

    def include_init(self, since_s: float) -> None:
        """Let `init_ms` begin at `since_s` (``time.monotonic()``), because the start waited for an init then."""
        self.init_ms, self.waited_for_init = (time.monotonic() - since_s) * 1000, True

    async def invoke(self, invocation: Invocation, *, init_ms: float | None) -> Result:
        """Run `invocation` and return its result, which contains an error document when the function failed.

        Args:
            invocation: what to run; the time limit starts now.
            init_ms: how long the environment took to start, milliseconds, if the invocation waited for that; else None.
        """
        check_tenant(self.tenant_id, invocation)
        tails = LogTails(self.stream, (invocation,)) if invocation.want_log_tail else None
        (answer,) = await self._answers_to((invocation,), tails)
        return result_of(self, invocation, answer, tails, init_ms=init_ms, size=self._expected)

    async def invoke_batch(self, invocations: Sequence[Invocation], *, init_ms: float | None) -> list[Result]:
        """Run `invocations` together, and return the result of each. Only a handler that takes lists can run several.

        Args:
            invocations: what to run; the time limit of all of them starts now.
            init_ms: as for `invoke`.
        """
        check_tenant(self.tenant_id, *invocations)
        tails = LogTails(self.stream, invocations) if any(each.want_log_tail for each in invocations) else None
        answers = zip(invocations, await self._answers_to(invocations, tails), strict=True)
        return [
            result_of(self, invocation, answer, tails, init_ms=init_ms, size=self._expected)
            for invocation, answer in answers
        ]

    async def _answers_to(self, invocations: Sequence[Invocation], tails: LogTails | None) -> list[Answer]:
        """Run `invocations` together, and return head and body of each answer. `tails` collects the log tails."""
        self.served += len(invocations)
        self._answers, self._expected = [], len(invocations)
        self._answer = InlineFuture(asyncio.get_running_loop())
        self._timed_out, self._stream = False, None
        for invocation in invocations:
            if invocation.stream is not None:
                self._begin_stream(invocation.stream)
        self.busy_since = time.monotonic()
        if self.suspender is not None:
            self.suspender.busy(self)
        if tails is None:
            for invocation in invocations:
                self.log.start(invocation.request_id)
        else:
            tails.start(lambda invocation: self.log.start(invocation.request_id))
        self._deadline.begin(self.version.function.timeout_s)
        try:
            self._is_unanswered = True
            self._send(invocations)
            answers = await self._answer
            self._is_unanswered = False
        except Ended as ended:
            limit_s = self.version.function.timeout_s
            answers = [
                timed_out(each.request_id, limit_s, peak_kib=self._peak_kib)
                if self._timed_out
                else self._failure(each, ended.status, self.busy_since)
                for each in invocations
            ]
        finally:
            self._deadline.end()
            self._answer, self._answers = None, []  # an idle environment keeps no answer in memory
            self.busy_since = None
            if self._stream is not None:
                self._end_stream()
        self._output.drain()
        self._mark_idle()
        if tails is not None:
            tails.end_output()
        return answers

    def _mark_idle(self) -> None:
        """Let the suspender stop the environment until the next invocation, once its extensions are idle too."""
        if self.suspender is not None:
            self.suspender.idle(self)

    def _send(self, invocations: Sequence[Invocation]) -> None:
        if self.ended.is_set():
            raise Ended(self.child.ended.result() if self.child is not None else None)
        for item, invocation in enumerate(invocations):
            timeout_s = self.version.function.timeout_s
            head = invoke_head(invocation, arn=self._arn, timeout_s=timeout_s, stream=self._stream)
            if self._expected > 1:
                head["item"], head["of"] = item, self._expected
            self._control.send(frames.INVOKE, encode(head), invocation.payload)

    def _failure(self, invocation: Invocation, status: int | None, begun_s: float) -> Answer:
        """Return the answer for an invocation that began at `begun_s`, and whose process ended with `status`."""
        error_type, message = self._fault or ("Runtime.ExitError", describe_exit(status))
        return failure(invocation.request_id, error_type, message, duration_s=time.monotonic() - begun_s)

    def _on_frame(self, kind: int, head: Any, body: bytes) -> None:
        if kind == frames.RESULT and self._answer is not None:
            check_body(head, body)
            self._on_answer(head, body)
        elif kind == frames.PART and self._stream is not None:
            if not self._stream.put(head["type"], body):
                # The part is too large. The runtime keeps to the size limit, so user code wrote to its descriptor.
                self.kill()
        elif kind == frames.READY and not self.ready.done():
            self.ready.set_result(msgspec.convert(head, ReadyHead))
        elif kind == frames.INIT_ERROR and not self.ready.done():
            self.ready.set_exception(InitError.reported(head["message"], body))
        elif kind == frames.STAGE and head["stage"] == frames.PARKED and not self.parked.done():
            self.parked.set_result(head["refused"])
        elif kind == frames.STAGE and not self.ready.done():
            self.hooks_since_s = time.monotonic()
        else:
            self.kill()

    def _begin_stream(self, stream: ResponseStream) -> None:
        """Let the invocation's stream take the parts of the answer from now on.

        A handler that takes lists sends no parts: its answers are passed on whole, even to clients that can take parts.
        """
        stream.executed_version = self.version.number
        if self.version.function.batch is None:
            self._stream = stream
            stream.attach(self._control)

    def _end_stream(self) -> None:
        """Resume reading the channel, even if the client is still taking the parts of the response."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.detach()

    def _on_api_answer(self, head: dict[str, Any], body: bytes) -> None:
        """Take an answer that arrived over the Runtime API."""
        self._on_answer(ResultHead(**head), body)

    def _on_answer(self, head: ResultHead, body: bytes) -> None:
        if self._timed_out and head.failed:
            return  # the process failed because it was killed at the time limit; `_failure` reports the time-out
        if self._answer is None or self._answer.done():
            return
        if head.item != len(self._answers):
            self.kill()  # the runtime answers a batch's items in order, so user code has written to its descriptor
            return
        self._answers.append((head, body))
        if len(self._answers) < self._expected:
            return
        if isinstance(self._control, FrameProtocol) and self._control.is_drained():
            self._answer.set_result_now(self._answers)
        else:
            # First, a program's request must be answered, or what user code has written to the descriptor be handled.
            self._answer.set_result_soon(self._answers)

    def _on_fault(self, error_type: str, message: str) -> None:
        """An extension has failed: end the environment."""
        self._fault = error_type, message
        if not self.ready.done():
            document = error_document(error_type, f"Error: {message}")
            self.ready.set_exception(InitError(message, document, by_function=True))
            self.ready.exception()  # marks it as retrieved: asyncio logs an exception that nobody retrieves
        self.dying = True
        if self.child is not None:
            self.child.kill()

    def _on_timeout(self) -> None:
        self._timed_out = True
        self._peak_kib = 0 if self.child is None else PeakMemory(self.child.pid).kib()  # before the process is killed
        self.kill()

    def _on_control_lost(self) -> None:
        self._control_lost = True
        self.dying = True
        if self.child is not None and self.child.ended.done():
            self._on_gone()
        elif self.child is not None:
            self.child.make_sure()

    def _on_exit(self, _: asyncio.Future[int | None]) -> None:
        # The socket may still hold data that the process sent before it died, so read until the end of the stream.
        # Another process that inherited the descriptor could keep the stream open, so this wait has a time limit.
        if self._stream is not None:
            self._stream.detach()
        self.dying = True  # set before the last answer is passed on, so that the pool leases the environment no more
        if self._control_lost:
            self._on_gone()
        else:
            if self._api is not None:
                self._api.runtime_ended()
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._on_gone)

    def _on_gone(self) -> None:
        """The process is dead: fail the futures that wait for it, close descriptors, call `on_end`. Runs only once."""
        if self.ended.is_set():
            return
        if self._extensions is None:
            self._output.close()
        else:
            self._output.drain()
        self.ended.set()
        status = self.child.ended.result() if self.child is not None else None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Ended(status))
        if not self.ready.done():
            self.ready.set_exception(InitError.of_exit(self.child))
            self.ready.exception()  # marks it as retrieved: asyncio logs an exception that nobody retrieves
        if not self.parked.done():
            self.parked.set_exception(InitError.of_exit(self.child))
            self.parked.exception()
        self._close()
        self.on_end(self)

    def _close(self) -> None:
        self._deadline.close()
        os.close(self._channels.lifeline)
        if self._extensions is not None:
            # Extensions may run two seconds longer than the program. Until they end, they need the endpoint, the log
            # and the cgroup.
            if self.suspender is not None:
                self.suspender.busy(self)
            is_leaving = self.child is not None and self.child.leaving
            reason = "timeout" if self._timed_out else "spindown" if is_leaving else "failure"
            self._extensions.finish(reason, on_end=self._extensions_ended)
        else:
            self._control.close()
            if self.memory_limit is not None:
                self.memory_limit.close()
        if self._calls is not None:
            self._calls.close()
        if self.suspender is not None:
            self.suspender.forget(self)

    def _extensions_ended(self) -> None:
        """All extensions have ended: close the log pipe and the memory limit."""
        self._output.close()
        if self.memory_limit is not None:
            self.memory_limit.close()
