"""Builds the subsystem that records invocations, and the pages under ``/_thawd/`` that show them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from thawd.config.settings import ServerSettings
from thawd.destinations.delivery import Delivery
from thawd.environments.store_calls import Note
from thawd.environments.trace_variables import TraceTargets
from thawd.errors import NoThreadError, StoreError
from thawd.gateway.followed_requests import FollowedRequests
from thawd.gateway.http import Budget
from thawd.gateway.thawd_api.queue import QueueOperations
from thawd.invocation import Invocation
from thawd.recording.calls import Calls
from thawd.recording.minute_counts import Counter
from thawd.recording.open_traces import OpenTraces
from thawd.recording.recorder import Recorder
from thawd.recording.records import Records
from thawd.recording.redaction import Redactor
from thawd.recording.segment_joining import SegmentJoiner, Source
from thawd.recording.segment_receiver import SegmentReceiver, opened
from thawd.recording.span_sender import SpanSender
from thawd.recording.spans import DeliveryAttempt, Span
from thawd.recording.tracer import Tracer
from thawd.resources import ACTIVE, Function
from thawd.scheduling.dispatcher import Dispatcher
from thawd.scheduling.ended_invocations import Reporting
from thawd.server.assembly.costs import FunctionCosts
from thawd.server.assembly.execution import SpawnTask
from thawd.stores.invocations.record_file import RecordFile
from thawd.telemetry.console import complain
from thawd.telemetry.metrics import Metrics
from thawd.window.endpoint import Window
from thawd.window.live import Live
from thawd.window.session import Sessions
from thawd.window.sources import ClusterPages, Sources

_DAY_S = 86_400.0


@dataclass(slots=True)
class PageInputs:
    """What the pages need from other subsystems.

    Attributes:
        status: makes the status document.
        queue: the operations on the queue and on dead letters.
        flush_logs: writes the log lines that wait to be written.
        wait_s: how long an invocation from a page may wait for an environment, seconds.
        budget: limits the memory for the bodies of requests.
        cluster: knows the machines of the cluster; None: this machine runs alone.
    """

    status: Callable[[], Awaitable[Mapping[str, Any]]]
    queue: QueueOperations
    flush_logs: Callable[[], None]
    wait_s: float
    budget: Budget
    cluster: ClusterPages | None = None


class RecordingSubsystem:
    """Records the invocations of one server, or says why it does not.

    Args:
        server: the server's settings.
        dispatcher: reports invocations.
        metrics: the counters of all functions.
        port: the server's port for requests; X-Ray's segments are received on the UDP port with the same number.
        spawn_task: runs a coroutine in the background.
        report: takes a line for the operator.

    Attributes:
        redactor: replaces secret values.
        file: the file with the records; None: no invocation is recorded.
        live: the pages that are open.
        recorder: writes records; None: no invocation is recorded.
        records: reads records; None: no invocation is recorded.
        why_none: why no invocation is recorded; empty: invocations are recorded.
        tracer: traces invocations; None: none is traced.
        targets: where functions send what they trace; None: nothing is traced yet.
        followed: notes requests of traced handlers to services of AWS; the HTTP application has it.
    """

    def __init__(
        self,
        server: ServerSettings,
        dispatcher: Dispatcher,
        metrics: Metrics,
        *,
        port: int,
        spawn_task: SpawnTask,
        report: Callable[[str], object] = complain,
    ) -> None:
        secrets = [server.key, server.webhook_secret, *server.access_keys.values()]
        self.redactor = Redactor(server.redact, secrets=[secret for secret in secrets if secret])
        self.live = Live()
        self._dispatcher, self._data = dispatcher, server.data
        self._record_days = server.record_days
        self._costs: FunctionCosts | None = None
        self._sessions = Sessions(server.key, list(server.access_keys.values()))
        self.file: RecordFile | None = None
        self.recorder: Recorder | None = None
        self.records: Records | None = None
        self.why_none = ""
        self.tracer: Tracer | None = None
        self.targets: TraceTargets | None = None
        self.followed = FollowedRequests()
        self._sender: SpanSender | None = None
        self._receiver: SegmentReceiver | None = None
        self._collector, self._ratio, self._port, self._report = server.traces, server.trace_ratio, port, report
        self._record(server, metrics, spawn_task)
        if server.traces is not None:
            self._sender = SpanSender(server.traces, report=report)
            self._begin_tracing()

    def _record(self, server: ServerSettings, metrics: Metrics, spawn_task: SpawnTask) -> None:
        """Begin to record invocations, or note why none is recorded."""
        report = self._report
        if server.record_days == 0:
            self.why_none = "server.record_days is 0"
            return
        try:
            self.file = RecordFile(
                server.data / "records.db",
                max_bytes=server.record_max_mb << 20,
                max_age_s=server.record_days * _DAY_S,
                report=report,
            )
        except (StoreError, NoThreadError) as error:
            self.why_none = error.message
            report(f"thawd: invocations are not recorded: {error.message}")
            return
        self.recorder = Recorder(
            self.file, self.redactor, Counter(metrics.functions), spawn_task=spawn_task, report=report
        )
        self.recorder.on_written = self.live.changed
        self.records = Records(self.file, self.recorder)
        self._dispatcher.reporting = Reporting(self.recorder.record, per_s=server.record_per_s)

    def targets_of(self, function: Function) -> TraceTargets | None:
        """Return where a function sends what it traces; None: it is not traced.

        The first function that is traced because of its own settings makes this server begin to trace.
        """
        if self._collector is None and (function.tracing != ACTIVE or self.recorder is None):
            return None
        if self.tracer is None:
            self._begin_tracing()
        return self.targets

    def note_of(self, function: Function, stream: str) -> Note | None:
        """Return what notes the operations on tables and buckets of an environment; None: nothing. See `TableServices`.

        Args:
            function: the function that the environment runs.
            stream: its log stream.
        """
        calls = None if self.recorder is None else self.recorder.calls
        is_traced = self._collector is not None or function.tracing == ACTIVE
        return partial(calls.store_call, stream) if calls is not None and is_traced else None

    def _begin_tracing(self) -> None:
        """Give invocations their spans, and receive the segments that functions send."""
        open_traces, sender = OpenTraces(), self._sender
        calls = None if self.recorder is None else Calls(open_traces)

        def accept(span: Span, source: Source) -> bool:
            is_sent = sender is not None and sender.offer(span)
            is_kept = calls is not None and calls.offer(span, source)
            return is_sent or is_kept

        joiner = SegmentJoiner(open_traces, self.redactor, accept)
        self._receiver = opened(self._port, joiner, report=self._report)
        self.targets = TraceTargets(self._collector, self._receiver.address if self._receiver else None)
        is_open = calls is not None or self._receiver is not None
        tracer = Tracer(sender, ratio=self._ratio, open_traces=open_traces if is_open else None, calls=calls)
        if calls is not None and self.recorder is not None:
            calls.source_of = joiner.source_of
            self.recorder.calls = self.followed.calls = calls
        if self._dispatcher.reporting is None:
            self._dispatcher.reporting = Reporting(None, per_s=0.0)
        self._dispatcher.reporting.trace(tracer)
        self.tracer = self._dispatcher.tracer = tracer

    def works(self) -> tuple[Coroutine[None, None, None], ...]:
        """The subsystem's background work."""
        return () if self.recorder is None else (self.recorder.run(),)

    def pages(self, sources: PageInputs) -> Window:
        """Return the pages for people; a reload of the configuration makes them again, and keeps sessions."""
        if self._costs is None:
            self._costs = FunctionCosts(
                self.records, why_none=self.why_none, logs=self._data / "logs", record_days=self._record_days
            )
        return Window(
            Sources(
                records=self.records,
                why_none=self.why_none,
                redactor=self.redactor,
                status=sources.status,
                queue=sources.queue,
                dispatcher=self._dispatcher,
                logs=self._data / "logs",
                flush_logs=sources.flush_logs,
                wait_s=sources.wait_s,
                budget=sources.budget,
                cluster=sources.cluster,
                cost=self._costs.estimate,
            ),
            self._sessions,
            self.live,
        )

    async def accept(self, invocation: Invocation, store: Callable[[Invocation], Awaitable[None]]) -> None:
        """Store an event, with a span if it is traced.

        Args:
            invocation: the event.
            store: stores it.
        """
        tracer = self.tracer
        traced = None if tracer is None else tracer.accepting(invocation)
        if tracer is None or traced is None:
            await store(invocation)
            return
        began_at = time.time()
        await store(invocation)
        tracer.accepted(invocation, traced, began_at)

    def delivered(self, delivery: Delivery, began_at: float, error: str) -> None:
        """An outcome was delivered, or not; see `DestinationContext.on_delivery`."""
        if self.tracer is not None:
            kind = delivery.destination.kind
            times = (began_at, time.time())
            self.tracer.delivered(
                DeliveryAttempt(delivery.function, delivery.request_id, delivery.trace_id, kind, *times, error)
            )

    async def close(self) -> None:
        """Write what waits, and close the file; call this when no more invocations run."""
        if self._receiver is not None:
            await asyncio.to_thread(self._receiver.close)
        if self._sender is not None:
            await asyncio.to_thread(self._sender.close)
        if self.recorder is not None and self.file is not None:
            await self.recorder.close()
            self.file.close()
