"""Builds the subsystem for log groups: their API, subscription filters, queries and retention."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path

from thawd.cloudwatch.logs.groups import LogGroups
from thawd.cloudwatch.logs.queries import Queries
from thawd.cloudwatch.logs.subscriptions import Subscriptions, payload
from thawd.config.settings import ServerSettings
from thawd.control.names import parse_function
from thawd.gateway.logs.endpoint import LogsApi
from thawd.gateway.logs.filter_operations import FilterOperations
from thawd.invocation import Invocation
from thawd.resources import Function
from thawd.server.assembly.execution import ExecutionSubsystem
from thawd.server.assembly.kinesis import KinesisStreams
from thawd.stores.database import Database
from thawd.stores.log_events import LogStore

_LAMBDA = "lambda"


class CloudWatchSubsystem:
    """The log groups of one server.

    Args:
        state: the state file.
        server: the server's settings.
        execution: runs functions.
        accept: stores an asynchronous invocation.
        aws: URL of the emulator of other AWS services; None: there is none.

    Attributes:
        logs: serves the Logs API.
    """

    def __init__(
        self,
        state: Database,
        server: ServerSettings,
        *,
        execution: ExecutionSubsystem,
        accept: Callable[[Invocation], Awaitable[None]],
        aws: str | None,
    ) -> None:
        launcher = execution.launcher
        self._execution = execution
        self._accept = accept
        self._kinesis = None if aws is None else KinesisStreams(aws)
        self._groups = LogGroups(
            LogStore(state),
            Path(server.data) / "logs",
            max_bytes=server.log_max_mb << 20,
            flush=launcher.flush_logs,
        )
        self._subscriptions = Subscriptions(self._groups, self._deliver)
        self._groups.on_change = self._subscriptions.changed
        self._groups.on_events = self._subscriptions.wake
        launcher.on_lines = self._lines_written
        self._queries = Queries(self._groups, state.path, spawn_task=execution.spawn_task, helped=launcher.helped)
        filters = FilterOperations(
            self._groups,
            self._subscriptions,
            find_function=self._find_function,
            has_stream=None if self._kinesis is None else self._kinesis.exists,
        )
        self.logs = LogsApi(self._groups, filters, self._queries)

    async def open(self) -> None:
        """Read what is stored.

        Raises:
            StoreError: it cannot be read.
        """
        await self._groups.open()

    def works(self) -> tuple[Coroutine[None, None, None], ...]:
        """The subsystem's background work."""
        return self._groups.run(), self._subscriptions.run()

    def stop(self) -> None:
        """Stop running queries."""
        self._queries.close()

    def _lines_written(self, group: str, lines: bytes) -> None:
        self._subscriptions.wake(group)

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
        if destination.split(":")[2] != _LAMBDA:
            if self._kinesis is not None:
                await self._kinesis.put(destination, document, stream)
            return
        name, qualifier = parse_function(destination)
        self._execution.dispatcher.entry(name, qualifier)
        await self._accept(
            Invocation(name, payload(document), time.monotonic(), asynchronous=True, qualifier=qualifier)
        )
