"""Runs event source mappings: for each mapping, a poller reads the queue or stream and invokes the function.

`thawd.control.event_source_mappings` creates, changes and deletes mappings.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from thawd.control.event_source_mapping_records import UNPROCESSED, SourceMapping
from thawd.destinations.delivery import Destinations
from thawd.errors import StoreError
from thawd.scheduling.dispatcher import Dispatcher
from thawd.sources.aws_calls import Endpoint, SourceError
from thawd.sources.progress import SourceProgress
from thawd.sources.sqs.source import SqsPoller, queue_problem
from thawd.sources.streams.source import StreamPoller, stream_problem
from thawd.stores.stream_positions import StreamPositions

_LOOK_S = 2.0
# How long the creation of a mapping waits to learn whether its queue or stream exists.
_CHECK_S = 5.0


class Poller(Protocol):
    """Reads the queue or stream of one mapping."""

    async def run(self) -> None:
        """Read until `stop` is called. Return when the running batches have ended."""

    def stop(self) -> None:
        """Read no more. Running batches are completed."""

    async def look(self) -> None:
        """Update the figures that only the service knows, such as the length of a queue.

        Raises:
            SourceError: the service cannot be asked.
        """


@dataclass(frozen=True, slots=True)
class PollingContext:
    """The objects that pollers use.

    Attributes:
        dispatcher: runs functions.
        endpoint: an emulator of AWS; None: as configured by AWS's environment variables and files.
        report: takes a line for the operator.
        positions: stores how far streams have been processed.
        destinations: take the records of discarded batches.
        role: returns the ARN of a function's role.
    """

    dispatcher: Dispatcher
    endpoint: Endpoint | None
    report: Callable[[str], None]
    positions: StreamPositions
    destinations: Destinations
    role: Callable[[str], str]


class MappingPollers:
    """The pollers of all mappings. Implements `thawd.control.event_source_mappings.Pollers`.

    Args:
        context: the objects that pollers use.
        settled: called with a mapping's UUID once its last change has been carried out.
    """

    def __init__(self, context: PollingContext, *, settled: Callable[[str], None]) -> None:
        self._context = context
        self._settled = settled
        self._tasks: asyncio.TaskGroup | None = None
        self._pollers: dict[str, Poller] = {}
        self._running: dict[Poller, asyncio.Task[None]] = {}
        self._progress: dict[str, SourceProgress] = {}
        self._ended = asyncio.Event()
        self._ended.set()

    async def run(self, started: asyncio.Event) -> None:
        """Run pollers until cancelled. Sets `started` when `apply` can be called."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            started.set()
            await asyncio.Event().wait()

    async def problem(self, mapping: SourceMapping) -> str | None:
        """Return why the queue or stream of a new mapping cannot be read, in AWS's words: it does not exist.

        If the service does not say so, for example because it cannot be reached, None is returned.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CHECK_S):
                if mapping.is_stream:
                    return await stream_problem(mapping, endpoint=self._context.endpoint)
                return await queue_problem(mapping, endpoint=self._context.endpoint)
        return None

    def apply(self, mapping: SourceMapping) -> None:
        """Start, replace or stop the poller of a mapping, according to the mapping's current settings."""
        old = self._stop(mapping.uuid)
        progress = self._progress.setdefault(mapping.uuid, SourceProgress())
        if mapping.enabled:
            # Reset the source's figures, because the mapping may name a different source now.
            progress.waiting = progress.in_flight = progress.trouble = None
            poller = self._make(mapping, progress)
            self._pollers[mapping.uuid] = poller
            # Two pollers of one stream would pass the same records twice, and out of order.
            self._run(poller, after=old if mapping.is_stream else None)
            asyncio.get_running_loop().call_soon(self._settled, mapping.uuid)
        else:
            self._settle_after(old, mapping.uuid)

    def remove(self, mapping: SourceMapping) -> None:
        """Stop reading for a mapping, and delete its figures.

        Also delete the position up to which it has read, unless the mapping is declared in thawd.toml.
        """
        old = self._stop(mapping.uuid)
        self._progress.pop(mapping.uuid, None)
        if mapping.is_stream and not mapping.declared:
            assert self._tasks is not None, "run() must be called first"
            self._tasks.create_task(self._forget(mapping.uuid, old))
        else:
            self._settle_after(old, mapping.uuid)

    def last_result(self, uuid: str) -> str:
        """Return the result of a mapping's last batch, in the form of ``LastProcessingResult``."""
        progress = self._progress.get(uuid)
        return UNPROCESSED if progress is None else progress.last_result

    def progress(self, uuid: str) -> SourceProgress:
        """Return the figures of a mapping."""
        return self._progress.get(uuid) or SourceProgress()

    def stop(self) -> None:
        """Read no more. Running batches are completed."""
        for poller in self._pollers.values():
            poller.stop()

    async def settled(self, patience_s: float) -> None:
        """Wait until handled messages have been deleted from their queues, at most `patience_s` seconds.

        For streams, wait until it is stored how far they have been processed.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._ended.wait()

    async def look(self) -> None:
        """Update the lengths of all queues. If a queue does not answer within seconds, its last figures are kept."""

        async def one(poller: Poller) -> None:
            with contextlib.suppress(SourceError, TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await poller.look()

        await asyncio.gather(*(one(poller) for poller in self._pollers.values()))

    def _make(self, mapping: SourceMapping, progress: SourceProgress) -> Poller:
        context = self._context
        if mapping.is_stream:
            return StreamPoller(
                mapping,
                context.dispatcher,
                endpoint=context.endpoint,
                progress=progress,
                report=context.report,
                positions=context.positions,
                destinations=context.destinations,
                role=context.role,
            )
        return SqsPoller(
            mapping, context.dispatcher, endpoint=context.endpoint, progress=progress, report=context.report
        )

    def _stop(self, uuid: str) -> asyncio.Task[None] | None:
        """Stop the poller of a mapping. Return the task in which it still runs."""
        old = self._pollers.pop(uuid, None)
        if old is None:
            return None
        old.stop()
        return self._running.get(old)

    def _run(self, poller: Poller, *, after: asyncio.Task[None] | None) -> None:
        assert self._tasks is not None, "run() must be called first"
        self._ended.clear()

        async def run() -> None:
            if after is not None:
                await asyncio.wait({after})
            await poller.run()

        def ended(_: asyncio.Task[Any]) -> None:
            del self._running[poller]
            if not self._running:
                self._ended.set()

        self._running[poller] = self._tasks.create_task(run())
        self._running[poller].add_done_callback(ended)

    async def _forget(self, uuid: str, old: asyncio.Task[None] | None) -> None:
        if old is not None:
            await asyncio.wait({old})
        with contextlib.suppress(StoreError):  # no other mapping has this UUID, so what is left does not matter
            await self._context.positions.forget(uuid)
        self._settled(uuid)

    def _settle_after(self, old: asyncio.Task[None] | None, uuid: str) -> None:
        """Report a mapping's change as carried out after its old poller has ended."""
        if old is None:
            asyncio.get_running_loop().call_soon(self._settled, uuid)
        else:
            old.add_done_callback(lambda _: self._settled(uuid))
