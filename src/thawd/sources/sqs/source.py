"""Runs event source mappings: for each mapping, a poller reads the queue and invokes the function.

`thawd.control.event_source_mappings` creates, changes and deletes mappings.
Source: AWS Lambda developer guide, "Using Lambda with Amazon SQS"; "Scaling behavior".
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from thawd.control.event_source_mapping_records import UNPROCESSED, SourceMapping
from thawd.errors import ResourceNotFoundException, ThawdError
from thawd.grammar import queue_names
from thawd.grammar.event_patterns import Pattern
from thawd.invocation import MAX_PAYLOAD_BYTES, Invocation, Result
from thawd.scheduling.dispatcher import Dispatcher
from thawd.sources.sqs import records
from thawd.sources.sqs.batch import Batching, ReceivedMessage, SourceProgress
from thawd.sources.sqs.client import Endpoint, RawMessage, SourceError, SqsQueue
from thawd.sources.sqs.receiver import Receiver, Throttled
from thawd.system.retry import Backoff, is_set_within

# How long a batch may wait for an environment, seconds. Its messages are held during that time.
_QUEUE_S = 300.0
_LOOK_S = 2.0
_THROTTLE_FIRST_S = 0.5
# Size of an event without its records.
_ENVELOPE_BYTES = len(records.event([]))


class SqsPoller:
    """Reads one queue for one function.

    Args:
        mapping: the event source mapping.
        dispatcher: runs the function.
        endpoint: address of SQS; None: as configured by AWS's environment variables and files.
        progress: the source's figures so far, which the poller continues.
        report: takes a line for the operator.

    Attributes:
        mapping: the event source mapping.
        progress: the source's figures.
        receiver: receives the messages.
        task: the task in which the receiver runs; None: the receiver does not run yet.
    """

    def __init__(
        self,
        mapping: SourceMapping,
        dispatcher: Dispatcher,
        *,
        endpoint: Endpoint | None,
        progress: SourceProgress,
        report: Callable[[str], None],
    ) -> None:
        queue = queue_names.parse(mapping.url or mapping.source)
        assert queue is not None, "thawd.config or thawd.control has checked the name of the queue"
        self.mapping = mapping
        self.progress = progress
        self.task: asyncio.Task[None] | None = None
        self._region = queue.region
        self._dispatcher = dispatcher
        self._patterns = [Pattern(text) for text in mapping.patterns]
        self.receiver = Receiver(
            SqsQueue(queue, endpoint=endpoint),
            open_=self._open,
            handle=self._handle,
            batching=Batching(
                mapping.batch_size,
                mapping.window_s,
                MAX_PAYLOAD_BYTES - _ENVELOPE_BYTES,
                ordered=queue.is_fifo,
            ),
            room=self._room,
            progress=progress,
            report=lambda text: report(f"thawd: source {mapping.name}: {text}"),
        )

    def _open(self, message: RawMessage) -> bytes | None:
        encoded = msgspec.json.encode(records.record(message, arn=self.mapping.source, region=self._region))
        return encoded if records.is_wanted(self._patterns, encoded, message["Body"]) else None

    def _room(self) -> int:
        """Return how many batches may be handled at the same time; 0: the function is missing or cannot run."""
        mapping = self.mapping
        try:
            entry = self._dispatcher.entry(mapping.function, mapping.qualifier)
            if self._dispatcher.family(mapping.function).latest.function.reserved_concurrency == 0:
                self.progress.last_result = "PROBLEM: the function's reserved concurrency is 0"
                return 0
            most = self._dispatcher.most_at_once(mapping.function)
        except ResourceNotFoundException as error:
            self.progress.last_result = f"PROBLEM: {error.message}"
            return 0
        if entry.state == "Failed" and entry.pool is None and entry.wanted is None:
            self.progress.last_result = f"PROBLEM: {entry.reason}"
            return 0
        return most if mapping.maximum_concurrency is None else min(most, mapping.maximum_concurrency)

    async def _handle(self, messages: Sequence[ReceivedMessage]) -> set[str]:
        ids = [message.id for message in messages]
        invocation = Invocation(
            self.mapping.function,
            records.event(message.content for message in messages),
            time.monotonic() + _QUEUE_S,
            asynchronous=True,
            qualifier=self.mapping.qualifier,
        )
        result = await self._invoke(invocation, since=min(message.received_at for message in messages))
        failed: set[str] | None = set()
        if result.function_error is not None:
            failed = None
        elif self.mapping.reports_failures:
            failed = records.failures(result.payload, ids)
        self.progress.last_result = "PROBLEM: Function call failed" if failed is None else "OK"
        return set(ids) if failed is None else failed

    async def _invoke(self, invocation: Invocation, *, since: float) -> Result:
        """Invoke the function with a batch. If it cannot run now, retry with back-off during the visibility timeout.

        Args:
            invocation: the invocation whose event is the batch.
            since: when the batch's first message was received, ``time.monotonic()`` seconds.

        Raises:
            Throttled: the function could not run during the visibility timeout, or the source is stopping.
        """
        backoff = Backoff(first_s=_THROTTLE_FIRST_S)
        while True:
            try:
                return await self._dispatcher.invoke(invocation)
            except ThawdError as error:
                now_s = time.monotonic()
                wait_s = backoff.failed(now_s)
                if since + self.receiver.visibility_s - now_s < wait_s or self.receiver.stopping.is_set():
                    raise Throttled(error.message) from error
            await is_set_within(self.receiver.stopping, wait_s)


class SqsPollers:
    """The pollers of all mappings. Implements `thawd.control.event_source_mappings.Pollers`.

    Args:
        dispatcher: runs functions.
        endpoint: address of SQS; None: as configured by AWS's environment variables and files.
        report: takes a line for the operator.
        settled: called with a mapping's UUID once its last change has been carried out.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        endpoint: Endpoint | None,
        report: Callable[[str], None],
        settled: Callable[[str], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._endpoint = endpoint
        self._report = report
        self._settled = settled
        self._tasks: asyncio.TaskGroup | None = None
        self._pollers: dict[str, SqsPoller] = {}
        self._progress: dict[str, SourceProgress] = {}
        self._under_way = 0
        self._ended = asyncio.Event()
        self._ended.set()

    async def run(self, started: asyncio.Event) -> None:
        """Run pollers until cancelled. Sets `started` when `apply` can be called."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            started.set()
            await asyncio.Event().wait()

    def apply(self, mapping: SourceMapping) -> None:
        """Start, replace or stop the poller of a mapping, so that its queue is read as the mapping now says."""
        old = self._pollers.pop(mapping.uuid, None)
        if old is not None:
            old.receiver.stop()
        progress = self._progress.setdefault(mapping.uuid, SourceProgress())
        if mapping.enabled:
            # Reset the queue's figures, because the mapping may name a different queue now.
            progress.waiting = progress.in_flight = progress.trouble = None
            poller = SqsPoller(
                mapping, self._dispatcher, endpoint=self._endpoint, progress=progress, report=self._report
            )
            self._pollers[mapping.uuid] = poller
            self._run(poller)
            asyncio.get_running_loop().call_soon(self._settled, mapping.uuid)
        else:
            self._settle_after(old, mapping.uuid)

    def remove(self, uuid: str) -> None:
        """Stop reading for a mapping, and forget its figures."""
        old = self._pollers.pop(uuid, None)
        self._progress.pop(uuid, None)
        if old is not None:
            old.receiver.stop()
        self._settle_after(old, uuid)

    def last_result(self, uuid: str) -> str:
        """Return the result of a mapping's last batch, in the form of ``LastProcessingResult``."""
        progress = self._progress.get(uuid)
        return UNPROCESSED if progress is None else progress.last_result

    def progress(self, uuid: str) -> SourceProgress:
        """Return the figures of a mapping."""
        return self._progress.get(uuid) or SourceProgress()

    def stop(self) -> None:
        """Receive no more messages. Running batches are completed."""
        for poller in self._pollers.values():
            poller.receiver.stop()

    async def settled(self, patience_s: float) -> None:
        """Wait until handled messages have been deleted from their queues, at most `patience_s` seconds."""
        await is_set_within(self._ended, patience_s)

    async def look(self) -> None:
        """Update the lengths of all queues. If a queue does not answer within seconds, its last figures are kept."""

        async def one(poller: SqsPoller) -> None:
            with contextlib.suppress(SourceError, TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await poller.receiver.look()

        await asyncio.gather(*(one(poller) for poller in self._pollers.values()))

    def _run(self, poller: SqsPoller) -> None:
        assert self._tasks is not None, "run() must be called first"
        self._under_way += 1
        self._ended.clear()

        def ended(_: asyncio.Task[Any]) -> None:
            self._under_way -= 1
            if not self._under_way:
                self._ended.set()

        poller.task = self._tasks.create_task(poller.receiver.run())
        poller.task.add_done_callback(ended)

    def _settle_after(self, poller: SqsPoller | None, uuid: str) -> None:
        """Report a mapping's change as carried out after its old poller has ended."""
        if poller is None or poller.task is None:
            asyncio.get_running_loop().call_soon(self._settled, uuid)
        else:
            poller.task.add_done_callback(lambda _: self._settled(uuid))
