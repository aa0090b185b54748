"""Passes a batch of a stream's records to a function until it is done: invoked with success, or discarded.

Guarantee: the records of a batch are passed on in order, and none is given up without either success of an invocation
that contained it or a discard, which the mapping's ``MaximumRetryAttempts`` or ``MaximumRecordAgeInSeconds`` must ask
for. A discarded batch is described to the mapping's on-failure destination first.

Source: AWS Lambda developer guide, "How Lambda processes records from stream and queue-based event sources";
"Configuring error handling controls", "Implementing partial batch responses".
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from thawd.control.event_source_mapping_records import SourceMapping
from thawd.control.names import function_arn
from thawd.destinations.delivery import Delivery, Destinations
from thawd.errors import ThawdError
from thawd.grammar.destination_names import parse_arn
from thawd.invocation import Invocation, Result, new_request_id
from thawd.scheduling.dispatcher import Dispatcher
from thawd.sources.progress import SourceProgress
from thawd.sources.streams.lambda_event import StreamRecord, batch_info, event, first_failure, object_key, time_text
from thawd.sources.streams.windows import Window, WindowError
from thawd.system.retry import Backoff, is_set_within

# How long a batch may wait for an environment before the attempt counts as throttled, seconds.
_QUEUE_S = 300.0
_RETRY_FIRST_S, _RETRY_LONGEST_S = 0.5, 60.0
_ENDLESS = -1


class Stopped(Exception):
    """The source is being stopped; the records that are not done stay in the stream."""


@dataclass(frozen=True, slots=True)
class ShardContext:
    """The objects that the batches of one shard share.

    Attributes:
        mapping: the event source mapping.
        service: ``kinesis`` or ``dynamodb``.
        shard: id of the shard.
        dispatcher: runs the function.
        destinations: take records of discarded batches.
        progress: the source's figures.
        report: takes a line for the operator.
        stopping: set when no more invocations may start.
    """

    mapping: SourceMapping
    service: str
    shard: str
    dispatcher: Dispatcher
    destinations: Destinations
    progress: SourceProgress
    report: Callable[[str], None]
    stopping: asyncio.Event


@dataclass(slots=True)
class _Part:
    """Records that are invoked together, and how many attempts with them have failed."""

    records: Sequence[StreamRecord]
    failures: int = 0


Done = Callable[[Sequence[StreamRecord]], Awaitable[None]]
"""Called with records that are done, in order."""


class BatchRun:
    """One batch, until it succeeds or is discarded.

    Args:
        context: what the batches of the shard share.
        records: the records, in the shard's order; empty: the last invocation of the window that is open.
        done: called with each part of the records that is done.
        window: the shard's tumbling window, whose state is updated before `done` is called; None: it has none.
    """

    def __init__(
        self, context: ShardContext, records: Sequence[StreamRecord], done: Done, *, window: Window | None = None
    ) -> None:
        self._context = context
        self._mapping = context.mapping
        self._done = done
        self._window = window
        self._parts: deque[_Part] = deque([_Part(records)])
        self._backoff = Backoff(first_s=_RETRY_FIRST_S, longest_s=_RETRY_LONGEST_S)

    async def run(self) -> None:
        """Return once all records are done.

        Raises:
            Stopped: the source is being stopped.
        """
        while self._parts:
            part = self._parts.popleft()
            expired = self._expired(part.records)
            if expired:
                await self._discard(_Part(part.records[:expired], part.failures), "RecordAgeExceeded", None)
                if expired < len(part.records):
                    self._parts.appendleft(_Part(part.records[expired:], part.failures))
                continue
            await self._attempt(part)

    async def _attempt(self, part: _Part) -> None:
        if self._context.stopping.is_set():
            raise Stopped
        invocation = Invocation(
            self._mapping.function,
            event(part.records) if self._window is None else self._window.event(part.records),
            time.monotonic() + _QUEUE_S,
            asynchronous=True,
            qualifier=self._mapping.qualifier,
        )
        progress = self._context.progress
        try:
            result = await self._context.dispatcher.invoke(invocation)
        except ThawdError as error:  # the function cannot run now: no attempt
            progress.last_result = f"PROBLEM: {error.message}"
            self._parts.appendleft(part)
            await self._rest()
            return
        failed_at = self._failed_at(result, part.records)
        if self._window is not None and part.records and failed_at != 0:
            try:
                self._window.take(result.payload)
            except WindowError as error:
                failed_at = 0
                result = Result(
                    msgspec.json.encode({"errorMessage": str(error), "errorType": "Function.NoState"}),
                    function_error="Unhandled",
                    executed_version=result.executed_version,
                )
        if failed_at is None:
            progress.last_result = "OK"
            self._backoff.succeeded()
            await self._done(part.records)
            return
        progress.last_result = "PROBLEM: Function call failed"
        progress.failed += len(part.records) - failed_at
        if failed_at:
            await self._done(part.records[:failed_at])
            if self._mapping.bisects:  # the answer has split the batch, which does not count as a retry
                self._parts.appendleft(_Part(part.records[failed_at:], part.failures))
                await self._rest()
                return
        await self._failed(_Part(part.records[failed_at:], part.failures), result, invocation.request_id)

    def _failed_at(self, result: Result, records: Sequence[StreamRecord]) -> int | None:
        if result.function_error is not None:
            return 0
        has_names = self._mapping.reports_failures and records
        return first_failure(result.payload, records) if has_names else None

    async def _failed(self, part: _Part, result: Result, request_id: str) -> None:
        """Decide what follows a failed attempt: two halves, a retry, or discarding the batch."""
        middle = len(part.records) // 2
        if self._mapping.bisects and middle:  # a split does not count as a retry
            self._parts.extendleft(
                [_Part(part.records[middle:], part.failures), _Part(part.records[:middle], part.failures)]
            )
        elif self._mapping.most_retries != _ENDLESS and part.failures >= self._mapping.most_retries:
            part.failures += 1
            await self._discard(part, "RetryAttemptsExhausted", result, request_id=request_id)
            self._backoff.succeeded()
            return
        else:
            self._parts.appendleft(_Part(part.records, part.failures + 1))
        await self._rest()

    async def _rest(self) -> None:
        if await is_set_within(self._context.stopping, self._backoff.failed(time.monotonic())):
            raise Stopped

    def _expired(self, records: Sequence[StreamRecord]) -> int:
        """Return how many records at the beginning are older than the mapping allows."""
        most_s = self._mapping.most_age_s
        if most_s == _ENDLESS:
            return 0
        limit = time.time() - most_s
        return next((index for index, one in enumerate(records) if one.arrived_at >= limit), len(records))

    async def _discard(self, part: _Part, condition: str, result: Result | None, *, request_id: str = "") -> None:
        """Describe records to the on-failure destination and count them as done.

        While the destination cannot be reached, this waits. If the destination refuses the description for good, the
        operator is told which records were discarded.

        Raises:
            Stopped: the source is being stopped, and the destination has not answered.
        """
        context, records = self._context, part.records
        if records:
            shown = f"{len(records)} records of {context.shard}, {records[0].sequence} to {records[-1].sequence}"
        else:
            shown = f"the state of a window of {context.shard}"
        if self._mapping.on_failure is None:
            context.report(f"discarded {shown}: {condition}")
        else:
            delivery = self._delivery(part, condition, result, request_id or new_request_id())
            backoff = Backoff(first_s=_RETRY_FIRST_S, longest_s=_RETRY_LONGEST_S)
            while True:
                try:
                    await context.destinations.deliver(delivery)
                    break
                except ThawdError as error:
                    if not error.retryable:
                        context.report(f"discarded {shown}: {condition}; no record of it: {error.message}")
                        break
                    context.progress.last_result = f"PROBLEM: {error.message}"
                    if await is_set_within(context.stopping, backoff.failed(time.monotonic())):
                        raise Stopped from error
        await self._done(records)

    def _delivery(self, part: _Part, condition: str, result: Result | None, request_id: str) -> Delivery:
        """Return the delivery of a discarded batch's description.

        Source of its form: developer guide, "Configuring destinations for failed invocations".
        """
        context, mapping, now = self._context, self._mapping, time.time()
        document: dict[str, Any] = {
            "requestContext": {
                "requestId": request_id,
                "functionArn": function_arn(mapping.function, mapping.qualifier),
                "condition": condition,
                "approximateInvokeCount": max(1, part.failures),
            }
        }
        if result is not None:
            document["responseContext"] = {
                "statusCode": 200,
                "executedVersion": result.executed_version,
                "functionError": result.function_error,
            }
        document |= {"version": "1.0", "timestamp": time_text(now)}
        document |= batch_info(part.records, service=context.service, shard=context.shard, arn=mapping.source)
        assert mapping.on_failure is not None, "the caller has checked it"
        destination = parse_arn(mapping.on_failure)
        assert destination is not None, "thawd.control has checked it"
        key = f"{request_id}-failure"
        if destination.kind == "s3":
            document["payload"] = msgspec.Raw(event(part.records))
            key = object_key(mapping.uuid, context.shard, at=now, unique=str(uuid.uuid4()))
        return Delivery(
            destination=destination,
            function=mapping.function,
            request_id=request_id,
            key=key,
            body=msgspec.json.encode(document),
            success=False,
        )
