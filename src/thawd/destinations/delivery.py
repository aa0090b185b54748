"""Where the outcome of an asynchronous invocation goes: made here as a delivery, and carried out here.

A delivery can be stored and tried again: it holds all that is needed. Each kind of destination has a time limit, and
each destination its own slots, so that one that hangs delays no other. A function is no such place: what it is told is
an event for the queue, which whoever acknowledges the outcome stores in the same transaction.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from thawd.destinations import lineage
from thawd.destinations.aws import Aws
from thawd.destinations.record import as_item, attributes, check_json, object_key, record, with_condition
from thawd.destinations.slots import Slots
from thawd.destinations.webhook import Webhooks
from thawd.errors import DestinationRefused, DestinationUnavailable, ResourceNotFoundException, StoreError, ThawdError
from thawd.grammar.destination_names import function_of
from thawd.invocation import MAX_ASYNC_PAYLOAD_BYTES, Result, new_request_id
from thawd.resources import Bucket, Destination, Function
from thawd.stores.events.records import Event, NewEvent
from thawd.stores.objects.remote import ObjectWriter
from thawd.stores.tables.access import Tables
from thawd.system import folders
from thawd.telemetry.metrics import DeliveryOutcome, Metrics

LIMIT_S: Mapping[str, float] = {
    "table": 30.0,
    "bucket": 30.0,
    "s3": 15.0,
    "http": 10.0,
    "sqs": 15.0,
    "sns": 15.0,
    "events": 15.0,
}
"""How long one delivery may take, by kind, seconds, the wait for a slot included."""
# Library and extra that a kind needs. An S3 ARN needs none where the bucket is ours.
_EXTRAS = {
    "http": ("httpx", "webhook"),
    "sqs": ("boto3", "aws"),
    "sns": ("boto3", "aws"),
    "events": ("boto3", "aws"),
}


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """An outcome on its way to its destination. It can be stored and tried again; one that arrives twice leaves one.

    Attributes:
        destination: where to.
        function: whose outcome it is.
        request_id: of the invocation.
        key: under which a table or a bucket stores it; the same on each try, for receivers that look for that.
        body: the item, the record or the dead letter, JSON text in UTF-8.
        success: whether it is an answer, not the record of an event that was given up.
        attributes: of a message, beside its body.
        trace_id: trace header of the invocation; None: it had none.
    """

    destination: Destination
    function: str
    request_id: str
    key: str
    body: bytes
    success: bool
    attributes: dict[str, str] = {}
    trace_id: str | None = None


@dataclass(frozen=True, slots=True)
class Outside:
    """What deliveries beyond tables and buckets need.

    Attributes:
        exists: raises `ResourceNotFoundException` when there is no function of a name and qualifier.
        may_loop: whether a function may be invoked by what it caused itself, for ever.
        bucket: the bucket elsewhere of a name; None: there is none.
        aws_endpoint: address of the emulated AWS; None: AWS as its usual variables and files have it.
        webhook_secret: what records to an address are signed with; None: they are not.
        metrics: counts.
    """

    exists: Callable[[str, str | None], object] = lambda name, qualifier: None
    may_loop: Callable[[str], bool] = lambda name: False
    bucket: Callable[[str], ObjectWriter | None] = lambda name: None
    aws_endpoint: str | None = None
    webhook_secret: str | None = None
    metrics: Metrics = field(default_factory=Metrics)


class Destinations:
    """Makes deliveries and carries them out."""

    def __init__(self, tables: Tables, buckets: Mapping[str, Bucket], outside: Outside | None = None) -> None:
        self._tables = tables
        self._buckets = buckets
        self._outside = outside or Outside()
        self._slots = Slots()
        self._aws = Aws(self._outside.aws_endpoint)
        self._webhooks = Webhooks(self._outside.webhook_secret)
        self._limits: set[asyncio.Timeout] = set()  # of the deliveries under way
        self._broken_off = False

    def success(self, destination: Destination, event: Event, result: Result, *, arn: str) -> Delivery:
        """A handler's answer: for a table the item of the event's row, for others the whole record.

        Raises:
            InvalidParameterValueException: the answer is no JSON.
        """
        if destination.kind == "table":
            body = as_item(result.payload)
        else:
            check_json(result.payload)
            made = record(event, arn=arn, condition="Success", result=result, attempts=event.attempts + 1)
            body = msgspec.json.encode(made)
        return _delivery(destination, event, body, success=True)

    def failure(
        self,
        destination: Destination,
        event: Event,
        *,
        arn: str,
        condition: str,
        result: Result | None,
        attempts: int,
    ) -> Delivery:
        """The record of an event that was given up; the arguments are those of `record`."""
        made = record(event, arn=arn, condition=condition, result=result, attempts=attempts)
        return _delivery(destination, event, msgspec.json.encode(made), success=False)

    def failures(
        self, function: Function, event: Event, *, condition: str, result: Result | None, attempts: int
    ) -> list[Delivery]:
        """All that is to be told of an event that was given up: the record, and the payload as a dead letter.

        The arguments are those of `record`; a function may have a destination and a dead-letter queue, as on Lambda.
        Functions to be told come last: that happens when the event ends.
        """
        made = []
        if function.on_failure is not None:
            made.append(
                self.failure(
                    function.on_failure,
                    event,
                    arn=function.arn,
                    condition=condition,
                    result=result,
                    attempts=attempts,
                )
            )
        if function.dead_letter is not None:
            letter = _delivery(function.dead_letter, event, event.payload, success=False)
            beside = attributes(event, condition=condition, result=result)
            made.append(msgspec.structs.replace(letter, attributes=beside))
        return sorted(made, key=lambda one: one.destination.kind == "function")

    def as_event(self, delivery: Delivery) -> NewEvent | None:
        """The event that tells a function of an outcome; None when the destination is no function.

        Raises:
            DestinationRefused: there is no such function, the record is larger than an event may be, or the chain of
                functions that invoke each other has come through this one too often.
        """
        if delivery.destination.kind != "function":
            return None
        try:
            made = self._event(delivery)
        except DestinationRefused:
            self._count(delivery, DeliveryOutcome.REFUSED)
            raise
        self._count(delivery, DeliveryOutcome.DELIVERED)
        return made

    def _event(self, delivery: Delivery) -> NewEvent:
        name, qualifier = function_of(delivery.destination)
        try:
            self._outside.exists(name, qualifier)
        except ResourceNotFoundException as error:
            raise DestinationRefused(f"{delivery.destination}: {error.message}") from None
        if len(delivery.body) > MAX_ASYNC_PAYLOAD_BYTES:
            raise DestinationRefused(
                f"{delivery.destination} takes events of {MAX_ASYNC_PAYLOAD_BYTES:,} bytes, and the record has "
                f"{len(delivery.body):,}"
            )
        trace_id, rounds = lineage.advance(delivery.trace_id, source=delivery.function, target=name)
        if rounds > lineage.MAX_ROUNDS and not self._outside.may_loop(name):
            self._outside.metrics.function(name).recursive_invocations_dropped += 1
            raise DestinationRefused(
                f"{delivery.destination} has been invoked {lineage.MAX_ROUNDS} times in one chain of invocations, "
                "which is taken for a loop; break it, or allow it by PutFunctionRecursionConfig"
            )
        return NewEvent(
            function=name,
            payload=delivery.body,
            request_id=new_request_id(),
            source=f"destination:{delivery.function}",
            trace_id=trace_id,
            qualifier=qualifier,
        )

    async def deliver(self, delivery: Delivery) -> None:
        """Bring it to its destination; when this returns it is there to stay.

        Raises:
            ThawdError: it was not taken; `ThawdError.retryable` says whether it may be another time.
        """
        limit_s = LIMIT_S.get(delivery.destination.kind, 0.0)
        try:
            await self._bring_within(delivery, limit_s)
        except TimeoutError:
            self._count(delivery, DeliveryOutcome.UNAVAILABLE)
            when = "before thawd was stopped" if self._broken_off else f"within {limit_s:g} s"
            raise DestinationUnavailable(f"{delivery.destination} did not take the record {when}") from None
        except ThawdError as error:
            outcome = DeliveryOutcome.UNAVAILABLE if error.retryable else DeliveryOutcome.REFUSED
            self._count(delivery, outcome)
            raise
        self._count(delivery, DeliveryOutcome.DELIVERED)

    async def _bring_within(self, delivery: Delivery, limit_s: float) -> None:
        if self._broken_off:
            raise TimeoutError
        async with asyncio.timeout(limit_s) as limit:
            self._limits.add(limit)
            try:
                await self._bring(delivery)
            finally:
                self._limits.discard(limit)

    async def _bring(self, delivery: Delivery) -> None:
        destination = delivery.destination
        if destination.kind == "table":
            table = await self._tables.get(destination.name)
            await table.put(delivery.key, delivery.body)
        elif destination.kind in ("bucket", "s3") and destination.name in self._buckets:
            bucket = self._buckets[destination.name]
            await self._slots.in_thread(destination, lambda: write_object(bucket.path, delivery.key, delivery.body))
        elif destination.kind in ("bucket", "s3") and (elsewhere := self._outside.bucket(destination.name)) is not None:
            async with self._slots.of(destination):
                await elsewhere.put(delivery.key, delivery.body)
        elif destination.kind == "bucket":
            raise DestinationRefused(f"there is no bucket {destination.name}")
        elif destination.kind == "http":
            async with self._slots.of(destination):
                await self._webhooks.post(destination, delivery.body, request_id=delivery.request_id, key=delivery.key)
        elif destination.kind == "function":
            raise DestinationRefused(f"{destination} is told by an event, see as_event")
        else:
            await self._slots.in_thread(destination, lambda: self._aws.send(delivery))

    def _count(self, delivery: Delivery, outcome: DeliveryOutcome) -> None:
        counters = self._outside.metrics.function(delivery.function)
        counters.deliveries[delivery.destination.kind, outcome] += 1
        if outcome is DeliveryOutcome.DELIVERED:
            return
        if delivery.attributes:
            counters.dead_letter_errors += 1
        else:
            counters.destination_failures += 1

    def break_off(self) -> None:
        """Have deliveries under way fail as unavailable at once, and those to come, too: thawd stops."""
        self._broken_off = True
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(0.0)

    async def close(self) -> None:
        """Drop all connections."""
        await self._webhooks.close()


def missing_extras(functions: Iterable[Function]) -> list[str]:
    """What of thawd's extras the destinations of these functions need and is not installed, a line each."""
    lines: dict[str, str] = {}
    for function in functions:
        for destination in filter(None, (function.on_success, function.on_failure, function.dead_letter)):
            library, extra = _EXTRAS.get(destination.kind, ("", ""))
            if library and importlib.util.find_spec(library) is None:
                way_out = f"which is not installed; install it with: pip install 'thawd[{extra}]'"
                lines.setdefault(library, f"{function.name}: its destination {destination} needs {library}, {way_out}")
    return list(lines.values())


def told_as(delivery: Delivery, condition: str) -> Delivery:
    """The delivery of a failure, under another condition; a dead letter has none in it."""
    if delivery.attributes:
        return delivery
    return msgspec.structs.replace(delivery, body=with_condition(delivery.body, condition))


def _delivery(destination: Destination, event: Event, body: bytes, *, success: bool) -> Delivery:
    return Delivery(
        destination=destination,
        function=event.function,
        request_id=event.request_id,
        key=_key(destination, event, success=success),
        body=body,
        success=success,
        trace_id=event.trace_id,
    )


def _key(destination: Destination, event: Event, *, success: bool) -> str:
    if destination.kind == "table":
        return event.row_key or event.request_id
    if destination.kind == "bucket":
        return f"{event.request_id}.json"
    if destination.kind == "s3":
        return object_key(event)
    return f"{event.request_id}-{'success' if success else 'failure'}"


def write_object(folder: Path, key: str, data: bytes) -> None:
    """Write an object so that it appears at once and whole; when this returns, it and its name are on the disk.

    Raises:
        StoreError: it could not be written.
    """
    path = folder / key
    try:
        folders.make(path.parent)
        with folders.replacing(path) as file:
            file.write(data)
    except OSError as error:
        raise StoreError(f"{path} could not be written: {error.strerror}; free space or mend its folder") from error
