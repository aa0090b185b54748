"""Makes the deliveries of asynchronous invocations, and carries them out.

A delivery contains everything that is needed to carry it out, so it can be stored and tried again. Each kind of
destination has a time limit, and each destination has slots of its own (at most 8 deliveries to it run at the same
time), so that a destination that hangs does not delay others.

A delivery to a function becomes an event in the queue: `thawd.queue.outcome_delivery` stores that event in the same
transaction that ends the event whose outcome is delivered.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from thawd.destinations.aws import Aws
from thawd.destinations.record import as_item, attributes, check_json, object_key, record, with_condition
from thawd.destinations.slots import Slots
from thawd.destinations.webhook import Webhooks
from thawd.errors import DestinationRefused, DestinationUnavailable, ResourceNotFoundException, StoreError, ThawdError
from thawd.grammar import lineage
from thawd.grammar.destination_names import function_of
from thawd.invocation import MAX_ASYNC_PAYLOAD_BYTES, Result, new_request_id
from thawd.resources import Bucket, Destination, Function
from thawd.stores.events.event_rows import Event, NewEvent
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
"""Time limit of one delivery by kind of destination, seconds, including the wait for a slot."""
# By kind of destination, the library that it needs and thawd's extra that installs the library. The kind s3 is missing,
# because an S3 ARN can name one of thawd's own buckets, which needs no library.
_EXTRAS = {
    "http": ("httpx", "webhook"),
    "sqs": ("boto3", "aws"),
    "sns": ("boto3", "aws"),
    "events": ("boto3", "aws"),
}


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A document and the destination to send it to. It can be stored and tried again.

    Attributes:
        destination: the destination.
        function: name of the function that was invoked.
        request_id: request id of the invocation.
        key: the key in a table or bucket, where a repeated delivery replaces the first. Other receivers can use it to
            drop repeated deliveries, because it is the same on each attempt.
        body: the table item, the record or the dead letter's payload, JSON text in UTF-8.
        success: true for a handler's answer, false for a failure.
        attributes: message attributes, sent beside the body; only a dead letter has them.
        trace_id: trace header of the event; if the invocation was traced, its parent is the invocation's span. None:
            there is none.
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
class DestinationContext:
    """What deliveries need besides the tables and buckets on this machine.

    Attributes:
        exists: raises `ResourceNotFoundException` if there is no function with the given name and qualifier.
        may_loop: returns whether a function is allowed to invoke itself again and again through its own deliveries.
        bucket: returns the writer of the remote bucket with the given name; None: there is no such bucket.
        aws_endpoint: URL of an AWS emulator; None: AWS, configured by its usual environment variables and files.
        webhook_secret: key that signs records sent to URLs; None: records are not signed.
        metrics: counts deliveries.
        on_delivery: called after each attempt of a delivery: the delivery, when the attempt began, seconds since 1970,
            and the type of the error; empty: the destination has the record.
    """

    exists: Callable[[str, str | None], object] = lambda name, qualifier: None
    may_loop: Callable[[str], bool] = lambda name: False
    bucket: Callable[[str], ObjectWriter | None] = lambda name: None
    aws_endpoint: str | None = None
    webhook_secret: str | None = None
    metrics: Metrics = field(default_factory=Metrics)
    on_delivery: Callable[[Delivery, float, str], None] = lambda delivery, began_at, error: None


class Destinations:
    """Makes deliveries and carries them out.

    Args:
        tables: the tables on this machine.
        buckets: the buckets on this machine, by name.
        context: what deliveries to other destinations need; None: the defaults of `DestinationContext`.

    Attributes:
        on_outcome: called with each delivery that was tried, and with its outcome.
    """

    def __init__(
        self, tables: Tables, buckets: Mapping[str, Bucket], context: DestinationContext | None = None
    ) -> None:
        self._tables = tables
        self._buckets = buckets
        self._context = context or DestinationContext()
        self._slots = Slots()
        self._aws = Aws(self._context.aws_endpoint)
        self._webhooks = Webhooks(self._context.webhook_secret)
        self._limits: set[asyncio.Timeout] = set()  # timeouts of the running deliveries
        self._broken_off = False
        self.on_outcome: Callable[[Delivery, DeliveryOutcome], None] = lambda delivery, outcome: None

    def success(self, destination: Destination, event: Event, result: Result, *, arn: str) -> Delivery:
        """Return the delivery of a handler's answer: a table gets the answer as an item, others get the whole record.

        Raises:
            InvalidParameterValueException: the answer is not JSON.
        """
        if destination.kind == "table":
            body = as_item(result.payload)
        else:
            check_json(result.payload)
            body = msgspec.json.encode(
                record(event, arn=arn, condition="Success", result=result, attempts=event.attempts + 1)
            )
        return _delivery(destination, event, body, result, success=True)

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
        """Return the delivery of a failure's record to `destination`. The other arguments are passed to `record`."""
        body = msgspec.json.encode(record(event, arn=arn, condition=condition, result=result, attempts=attempts))
        return _delivery(destination, event, body, result, success=False)

    def failures(
        self, function: Function, event: Event, *, condition: str, result: Result | None, attempts: int
    ) -> list[Delivery]:
        """Return all deliveries of a failure: the record to the destination, and the payload to the dead-letter queue.

        As on Lambda, a function can have both. Deliveries to functions come last, because they are stored when the
        event ends. `condition`, `result` and `attempts` are passed to `record`.
        """
        deliveries = []
        if function.on_failure is not None:
            deliveries.append(
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
            letter = _delivery(function.dead_letter, event, event.payload, result, success=False)
            beside = attributes(event, condition=condition, result=result)
            deliveries.append(msgspec.structs.replace(letter, attributes=beside))
        return sorted(deliveries, key=lambda one: one.destination.kind == "function")

    async def deliver(self, delivery: Delivery) -> list[NewEvent]:
        """Deliver a record to its destination.

        Returns:
            If the destination is a function, the event that invokes it: the record is delivered when the caller's
            transaction has stored that event. Otherwise an empty list: the destination has stored the record.

        Raises:
            ThawdError: the destination did not accept the record; `ThawdError.retryable` says whether a later attempt
                may succeed. A delivery to a function is refused if the function does not exist, if the record exceeds
                the size limit for events, or if one chain of invocations has invoked the function too often.
        """
        began_at = time.time()
        try:
            follow_ups = await self._deliver(delivery)
        except ThawdError as error:
            self._context.on_delivery(delivery, began_at, error.type)
            raise
        self._context.on_delivery(delivery, began_at, "")
        return follow_ups

    async def _deliver(self, delivery: Delivery) -> list[NewEvent]:
        limit_s = LIMIT_S.get(delivery.destination.kind, 0.0)
        follow_ups: list[NewEvent] = []
        try:
            if delivery.destination.kind == "function":
                follow_ups.append(self._event(delivery))
            else:
                await self._send_with_limit(delivery, limit_s)
        except TimeoutError:
            self._count(delivery, DeliveryOutcome.UNAVAILABLE)
            when = "before thawd was stopped" if self._broken_off else f"within {limit_s:g} s"
            raise DestinationUnavailable(f"{delivery.destination} did not accept the record {when}") from None
        except ThawdError as error:
            outcome = DeliveryOutcome.UNAVAILABLE if error.retryable else DeliveryOutcome.REFUSED
            self._count(delivery, outcome)
            raise
        self._count(delivery, DeliveryOutcome.DELIVERED)
        return follow_ups

    def _event(self, delivery: Delivery) -> NewEvent:
        name, qualifier = function_of(delivery.destination)
        try:
            self._context.exists(name, qualifier)
        except ResourceNotFoundException as error:
            raise DestinationRefused(f"{delivery.destination}: {error.message}") from None
        if len(delivery.body) > MAX_ASYNC_PAYLOAD_BYTES:
            raise DestinationRefused(
                f"{delivery.destination} takes events of at most {MAX_ASYNC_PAYLOAD_BYTES:,} bytes, and the record has "
                f"{len(delivery.body):,}"
            )
        trace_id = lineage.advanced(delivery.trace_id, delivery.function)
        if lineage.invocations(trace_id, name) >= lineage.MAX_INVOCATIONS and not self._context.may_loop(name):
            self._context.metrics.function(name).recursive_invocations_dropped += 1
            raise DestinationRefused(
                f"{delivery.destination} has been invoked {lineage.MAX_INVOCATIONS} times in one chain of invocations, "
                "so thawd assumes a loop; break the loop, or allow it with PutFunctionRecursionConfig"
            )
        return NewEvent(
            function=name,
            payload=delivery.body,
            request_id=new_request_id(),
            source=f"destination:{delivery.function}",
            trace_id=trace_id,
            qualifier=qualifier,
        )

    async def _send_with_limit(self, delivery: Delivery, limit_s: float) -> None:
        if self._broken_off:
            raise TimeoutError
        async with asyncio.timeout(limit_s) as limit:
            self._limits.add(limit)
            try:
                await self._send(delivery)
            finally:
                self._limits.discard(limit)

    async def _send(self, delivery: Delivery) -> None:
        destination = delivery.destination
        if destination.kind == "table":
            table = await self._tables.get(destination.name)
            await table.put(delivery.key, delivery.body)
        elif destination.kind in ("bucket", "s3") and destination.name in self._buckets:
            bucket = self._buckets[destination.name]
            await self._slots.in_thread(destination, lambda: write_object(bucket.path, delivery.key, delivery.body))
        elif destination.kind in ("bucket", "s3") and (elsewhere := self._context.bucket(destination.name)) is not None:
            async with self._slots.of(destination):
                await elsewhere.put(delivery.key, delivery.body)
        elif destination.kind == "bucket":
            raise DestinationRefused(f"there is no bucket {destination.name}")
        elif destination.kind == "http":
            async with self._slots.of(destination):
                await self._webhooks.post(destination, delivery.body, request_id=delivery.request_id, key=delivery.key)
        else:
            await self._slots.in_thread(destination, lambda: self._aws.send(delivery))

    def _count(self, delivery: Delivery, outcome: DeliveryOutcome) -> None:
        counters = self._context.metrics.function(delivery.function)
        counters.count_delivery(delivery.destination.kind, outcome)
        self.on_outcome(delivery, outcome)
        if outcome is DeliveryOutcome.DELIVERED:
            return
        if delivery.attributes:
            counters.dead_letter_errors += 1
        else:
            counters.destination_failures += 1

    def break_off(self) -> None:
        """Make the running deliveries, and all later ones, fail with `DestinationUnavailable`: thawd is stopping.

        A delivery to a function does not fail, because it sends nothing.
        """
        self._broken_off = True
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(0.0)

    async def close(self) -> None:
        """Close all connections."""
        await self._webhooks.close()


def missing_extras(functions: Iterable[Function]) -> list[str]:
    """Return one line for each library that destinations of these functions need and that is not installed."""
    lines: dict[str, str] = {}
    for function in functions:
        for destination in filter(None, (function.on_success, function.on_failure, function.dead_letter)):
            library, extra = _EXTRAS.get(destination.kind, ("", ""))
            if library and importlib.util.find_spec(library) is None:
                way_out = f"which is not installed; install it with: pip install 'thawd[{extra}]'"
                lines.setdefault(library, f"{function.name}: its destination {destination} needs {library}, {way_out}")
    return list(lines.values())


def under_condition(delivery: Delivery, condition: str) -> Delivery:
    """Return a failure's delivery with `condition` in its record.

    A delivery to a dead-letter queue is returned unchanged, because it contains no record.
    """
    if delivery.attributes:  # the message of a dead-letter queue contains the payload, not a record
        return delivery
    return msgspec.structs.replace(delivery, body=with_condition(delivery.body, condition))


def _delivery(destination: Destination, event: Event, body: bytes, result: Result | None, *, success: bool) -> Delivery:
    return Delivery(
        destination=destination,
        function=event.function,
        request_id=event.request_id,
        key=_key(destination, event, success=success),
        body=body,
        success=success,
        trace_id=(None if result is None else result.trace_id) or event.trace_id,
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
    """Write an object so that readers only ever see it complete. When this returns, it and its name are on the disk.

    Raises:
        StoreError: the object could not be written.
    """
    path = folder / key
    try:
        folders.make(path.parent)
        with folders.replacing(path) as file:
            file.write(data)
    except OSError as error:
        raise StoreError(
            f"{path} could not be written: {error.strerror}; check that the disk has free space and that thawd may "
            "write to the folder"
        ) from error
