"""Builds the subsystem for log groups (API, subscription filters, queries, retention) and for metrics."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

from thawd.cloudwatch.logs.groups import LogGroups
from thawd.cloudwatch.logs.metric_filters import made_by
from thawd.cloudwatch.logs.queries import Queries
from thawd.cloudwatch.logs.subscriptions import Subscriptions, payload
from thawd.cloudwatch.metrics.embedded import MARK, embedded
from thawd.cloudwatch.metrics.history import MetricHistory
from thawd.cloudwatch.metrics.recorder import LAMBDA, MetricRecorder
from thawd.config.settings import ServerSettings
from thawd.control.names import parse_function
from thawd.errors import StoreError
from thawd.gateway.aws.proxy import AwsProxy
from thawd.gateway.logs.endpoint import LogsApi
from thawd.gateway.logs.filter_operations import FilterOperations
from thawd.gateway.metrics.endpoint import MetricsApi
from thawd.invocation import Invocation
from thawd.resources import Function
from thawd.server.assembly.events import EventSubsystem
from thawd.server.assembly.execution import ExecutionSubsystem
from thawd.server.assembly.kinesis import KinesisStreams
from thawd.stores.database import Database
from thawd.stores.log_events import LogStore
from thawd.stores.metric_history import MetricStore
from thawd.telemetry.metrics import Metrics
from thawd.telemetry.samples import Samples

_FUNCTIONS = "lambda"
# Metrics in log lines count if their time is at most this far from now. Source: embedded metric format, "Timestamp".
_EMBEDDED_S = 2 * 60 * 60


class CloudWatchSubsystem:
    """The log groups and the metrics of one server.

    Args:
        state: the state file.
        server: the server's settings.
        execution: runs functions.
        events: asynchronous events.
        metrics: the counts of invocations.
        emulated: URL of the emulator of other AWS services, and what passes requests on to it; None: there is none.

    Attributes:
        logs: serves the Logs API.
        metrics: serves the CloudWatch metrics API.
        stream_ages: see `SourceSubsystem.stream_ages`.
    """

    def __init__(
        self,
        state: Database,
        server: ServerSettings,
        *,
        execution: ExecutionSubsystem,
        events: EventSubsystem,
        metrics: Metrics,
        emulated: tuple[str, AwsProxy] | None,
    ) -> None:
        launcher = execution.launcher
        self._execution = execution
        self._events = events
        self._counts = metrics
        self.stream_ages: Callable[[], list[tuple[str, str, int, float]]] = list
        self._read: dict[str, int] = {}
        self._kinesis = None if emulated is None else KinesisStreams(emulated[0])
        self._groups = LogGroups(
            LogStore(state),
            Path(server.data) / "logs",
            max_bytes=server.log_max_mb << 20,
            flush=launcher.flush_logs,
        )
        self._subscriptions = Subscriptions(self._groups, self._deliver)
        self._groups.on_change = self._subscriptions.changed
        self._groups.on_events = self._events_put
        launcher.on_lines = self._lines_written
        self._queries = Queries(
            self._groups, state.path, spawn_task=execution.spawn_task, spare_own_programs=launcher.spare_own_programs
        )
        filters = FilterOperations(
            self._groups,
            self._subscriptions,
            find_function=self._find_function,
            has_stream=None if self._kinesis is None else self._kinesis.exists,
        )
        self.logs = LogsApi(self._groups, filters, self._queries)
        history = MetricStore(state)
        self._recorder = MetricRecorder(history, metrics, self._count)
        self.metrics = MetricsApi(MetricHistory(history), self._recorder, elsewhere=emulated and emulated[1])

    async def open(self) -> None:
        """Read what is stored.

        Raises:
            StoreError: it cannot be read.
        """
        await self._groups.open()
        await self._recorder.begin()

    def works(self) -> tuple[Coroutine[None, None, None], ...]:
        """The subsystem's background work."""
        return self._groups.run(), self._subscriptions.run(), self._recorder.run()

    def stop(self) -> None:
        """Stop running queries."""
        self._queries.close()

    async def close(self) -> None:
        """Write what was measured; call this when no more invocations run."""
        with contextlib.suppress(StoreError):  # reported by the writes before
            await self._recorder.write()

    def _lines_written(self, group: str, lines: bytes) -> None:
        self._subscriptions.wake(group)
        if self._groups.metric_filters(group):
            found = (line.split(b"\t", 2) for line in lines.split(b"\n"))
            self._make_metrics(group, [parts[2] for parts in found if len(parts) == 3])
        if MARK in lines:
            for line in lines.split(b"\n"):
                if MARK in line:
                    self._record_embedded(line.split(b"\t", 2)[-1])

    def _events_put(self, group: str, messages: Sequence[bytes]) -> None:
        self._subscriptions.wake(group)
        if self._groups.metric_filters(group):
            self._make_metrics(group, messages)
        for message in messages:
            if MARK in message:
                self._record_embedded(message)

    def _make_metrics(self, group: str, messages: Sequence[bytes]) -> None:
        """Have the metric filters of a group look at messages, in a thread."""
        filters, now = self._groups.metric_filters(group), time.time()

        async def make() -> None:
            for found in await asyncio.to_thread(made_by, filters, messages):
                self._recorder.put(*found, now)

        self._execution.spawn_task(make())

    def _record_embedded(self, message: bytes) -> None:
        now = time.time()
        for found in embedded(message):
            at_s = now if found.at_s is None else found.at_s
            if abs(at_s - now) < _EMBEDDED_S:
                self._recorder.put(found.namespace, found.dimensions, found.metric, found.samples, at_s)

    async def _count(self) -> dict[str, dict[str, float]]:
        """The counters of each function, by AWS's name of the metric. First, metrics in log lines are read."""
        self._execution.launcher.flush_logs()
        self._record_ages()
        await self._events.measure(self._counts)
        counts: dict[str, dict[str, float]] = {}
        for name, figures in self._counts.events.items():
            counts[name] = {
                "AsyncEventsReceived": figures["events_accepted"],
                "AsyncEventsDropped": figures["events_given_up"],
            }
        for name, function in self._counts.functions.items():
            counts.setdefault(name, {}).update(
                DeadLetterErrors=function.dead_letter_errors,
                DestinationDeliveryFailures=function.destination_failures,
                RecursiveInvocationsDropped=function.recursive_invocations_dropped,
            )
        return counts

    def _record_ages(self) -> None:
        """Record the age of the last record of each stream that has been read since the last call."""
        for mapping, function, received, age_s in self.stream_ages():
            if received > self._read.get(mapping, 0):
                samples = Samples()
                samples.add(age_s * 1000)
                metric = ("IteratorAge", "Milliseconds")
                self._recorder.put(LAMBDA, (("FunctionName", function),), metric, samples, time.time())
            self._read[mapping] = received

    def _find_function(self, arn: str) -> Function:
        """The function with this ARN.

        Raises:
            ResourceNotFoundException: there is no such function (404).
        """
        name, qualifier = parse_function(arn)
        return self._execution.dispatcher.entry(name, qualifier).function

    async def _deliver(self, destination: str, document: bytes, stream: str) -> None:
        """Deliver a compressed document of a subscription filter; it is stored when this returns.

        Raises:
            ResourceNotFoundException: the destination does not exist (404).
            ThawdError: the destination does not accept the document now.
        """
        if destination.split(":")[2] != _FUNCTIONS:
            if self._kinesis is not None:
                await self._kinesis.put(destination, document, stream)
            return
        name, qualifier = parse_function(destination)
        self._execution.dispatcher.entry(name, qualifier)
        await self._events.invoker.accept(
            Invocation(name, payload(document), time.monotonic(), asynchronous=True, qualifier=qualifier)
        )
