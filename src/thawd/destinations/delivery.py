"""Makes the deliveries of asynchronous invocations, and carries them out.

A delivery holds all that is needed to make it: it can be stored and tried again. Each kind of destination has a time
limit, and each destination its own slots, so that one that hangs delays no other. A function is delivered to by an
event for the queue, which `thawd.queue.outcome_delivery` stores in the transaction that ends the outcome's own event.
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
"""How long one delivery may take, by kind, seconds, the wait for a slot included."""
# Library and extra that a kind needs. An S3 ARN needs none where the bucket is thawd's own.
_EXTRAS = {
    "http": ("httpx", "webhook"),
    "sqs": ("boto3", "aws"),
    "sns": ("boto3", "aws"),
    "events": ("boto3", "aws"),
}


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """An outcome with its destination. It can be stored and tried again; where it has a key, a repetition replaces it.

    Attributes:
        destination: where it is delivered.
        function: the function that was invoked.
        request_id: request id of the invocation.
        key: key in a table or a bucket; the same on each try, for receivers that drop repeated deliveries.
        body: the item, the record or the dead letter's payload, JSON text in UTF-8.
        success: whether it is an answer, not the record of a failure.
        attributes: message attributes, beside the body; only a dead letter has them.
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
class DestinationContext:
    """What deliveries need besides tables and buckets of this machine.

    Attributes:
        exists: raises `ResourceNotFoundException` when there is no function of a name and qualifier.
        may_loop: whether a function may go on when its own deliveries invoke it again and again.
        bucket: the remote bucket of a name; None: there is none.
        aws_endpoint: address of an emulated AWS; None: AWS as its usual environment variables and files say.
        webhook_secret: key that signs records to an address; None: they are not signed.
        metrics: counts deliveries.
    """

    exists: Callable[[str, str | None], object] = lambda name, qualifier: None
    may_loop: Callable[[str], bool] = lambda name: False
    bucket: Callable[[str], ObjectWriter | None] = lambda name: None
    aws_endpoint: str | None = None
    webhook_secret: str | None = None
    metrics: Metrics = field(default_factory=Metrics)


class Destinations:
    """Makes deliveries and carries them out.

    Args:
        tables: the tables.
        buckets: the buckets of this machine, by name.
        context: what other destinations need; None: the defaults.
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
        self._limits: set[asyncio.Timeout] = set()  # of the deliveries that run
        self._broken_off = False

    def success(self, destination: Destination, event: Event, result: Result, *, arn: str) -> Delivery:
        """The delivery of a handler's answer: for a table the item of the event's row, for others the whole record.

        Raises:
            InvalidParameterValueException: the answer is no JSON.
        """
        if destination.kind == "table":
            body = as_item(result.payload)
        else:
            check_json(result.payload)
            body = msgspec.json.encode(
                record(event, arn=arn, condition="Success", result=result, attempts=event.attempts + 1)
            )
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
        """The delivery of the record of a failure; the arguments are those of `record`."""
        body = msgspec.json.encode(record(event, arn=arn, condition=condition, result=result, attempts=attempts))
        return _delivery(destination, event, body, success=False)

    def failures(
        self, function: Function, event: Event, *, condition: str, result: Result | None, attempts: int
    ) -> list[Delivery]:
        """All deliveries of a failure: the record to the destination, and the payload to the dead-letter queue.

        The arguments are those of `record`; a function may have a destination and a dead-letter queue, as on Lambda.
        Deliveries to functions come last: they are stored when the event ends.
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
            letter = _delivery(function.dead_letter, event, event.payload, success=False)
            beside = attributes(event, condition=condition, result=result)
            deliveries.append(msgspec.structs.replace(letter, attributes=beside))
        return sorted(deliveries, key=lambda one: one.destination.kind == "function")

    async def deliver(self, delivery: Delivery) -> list[NewEvent]:
        """Deliver a record to its destination.

        Returns:
            Where the destination is a function, the event that invokes it: the record arrives by the transaction in
            which the caller stores it. Else an empty list: the record is at its destination to stay.

        Raises:
            ThawdError: it was not taken; `ThawdError.retryable` says whether it may be another time. A function refuses
                when it does not exist, when the record is larger than an event may be, or when the chain of functions
                that invoke each other has come through it too often.
        """
        limit_s = LIMIT_S.get(delivery.destination.kind, 0.0)
        follow_ups: list[NewEvent] = []
        try:
            if delivery.destination.kind == "function":
                follow_ups.append(self._event(delivery))
            else:
                await self._send_within(delivery, limit_s)
        except TimeoutError:
            self._count(delivery, DeliveryOutcome.UNAVAILABLE)
            when = "before thawd was stopped" if self._broken_off else f"within {limit_s:g} s"
            raise DestinationUnavailable(f"{delivery.destination} did not take the record {when}") from None
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
                f"{delivery.destination} takes events of {MAX_ASYNC_PAYLOAD_BYTES:,} bytes, and the record has "
                f"{len(delivery.body):,}"
            )
        trace_id, rounds = lineage.advance(delivery.trace_id, source=delivery.function, target=name)
        if rounds > lineage.MAX_ROUNDS and not self._context.may_loop(name):
            self._context.metrics.function(name).recursive_invocations_dropped += 1
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

    async def _send_within(self, delivery: Delivery, limit_s: float) -> None:
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
        counters.deliveries[delivery.destination.kind, outcome] += 1
        if outcome is DeliveryOutcome.DELIVERED:
            return
        if delivery.attributes:
            counters.dead_letter_errors += 1
        else:
            counters.destination_failures += 1

    def break_off(self) -> None:
        """Make the deliveries that run fail now, as unavailable, and later ones too: thawd stops."""
        self._broken_off = True
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(0.0)

    async def close(self) -> None:
        """Close all connections."""
        await self._webhooks.close()


def missing_extras(functions: Iterable[Function]) -> list[str]:
    """Libraries that the destinations of these functions need and that are not installed, one line each."""
    lines: dict[str, str] = {}
    for function in functions:
        for destination in filter(None, (function.on_success, function.on_failure, function.dead_letter)):
            library, extra = _EXTRAS.get(destination.kind, ("", ""))
            if library and importlib.util.find_spec(library) is None:
                way_out = f"which is not installed; install it with: pip install 'thawd[{extra}]'"
                lines.setdefault(library, f"{function.name}: its destination {destination} needs {library}, {way_out}")
    return list(lines.values())


def under_condition(delivery: Delivery, condition: str) -> Delivery:
    """The record of a failure with another condition; a message for a dead-letter queue has none in it."""
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
    """Write an object so that it appears complete; when this returns, it and its name are on the disk.

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
