"""Remote buckets, watched through the notifications that S3 sends to an SQS queue.

An S3 event message contains records, one for each change of an object. A message is deleted once its records are queued
as events; an event contains the record unchanged. S3 sends each notification at least once, and not always in order. So
a notification causes no event if it is older than the catalog's record of its key, or repeats that record.

Source: Amazon S3 user guide, "Event message structure", on ``sequencer``; "Configuring notification by using Amazon
SNS or Amazon SQS".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from thawd.errors import StoreError
from thawd.grammar import queue_names
from thawd.invocation import new_request_id
from thawd.resources import RemoteBucket
from thawd.sources.aws_calls import Endpoint
from thawd.sources.buckets import s3_event
from thawd.sources.buckets.notification_rules import functions_for
from thawd.sources.buckets.remote_stores import WatcherStores
from thawd.sources.progress import SourceProgress
from thawd.sources.sqs.batch import Batching, ReceivedMessage
from thawd.sources.sqs.client import RawMessage, SqsQueue
from thawd.sources.sqs.receiver import Receiver, Throttled
from thawd.stores.events.event_rows import NewEvent
from thawd.stores.objects.catalog import ObjectChange, ObjectRecord
from thawd.system.retry import SayOnce

# Most batches of messages that are handled at the same time.
_ROOM = 4
_SEQUENCER_DIGITS = 32
# Parsing raises these errors if a message is not a notification. Any program with access to the queue can send such
# messages, and they must not delay notifications.
_FOREIGN = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
# The largest number that the catalog can store.
_MOST = (1 << 63) - 1


class ObjectNotification(NamedTuple):
    """One record of S3's event message, parsed.

    Attributes:
        message_id: id of the SQS message that contained the record.
        bucket: name of the bucket.
        name: event name, for example ``ObjectCreated:Copy``.
        key: the object's complete key.
        size: the object's size, bytes; 0 if the record has none.
        at_ns: time of the event, nanoseconds since the epoch.
        mark: the sequencer, which orders the notifications of a key, followed by the ETag.
        record: the record as S3 sent it.
    """

    message_id: str
    bucket: str
    name: str
    key: bytes
    size: int
    at_ns: int
    mark: str
    record: Mapping[str, Any]


class NotifiedBucketWatcher:
    """Watches one bucket through its notifications. `RemoteBucketWatcher` (`remote`) watches one by listing.

    Args:
        bucket: the bucket. Its configuration must name a queue for notifications.
        watcher_stores: the stores that the watcher records into.
        endpoint: address of SQS; None: as configured by AWS's environment variables and files.
        log: takes lines for the operator.
        on_events: called with the names of functions that have new events in the asynchronous queue.

    Attributes:
        bucket: the bucket.
        events: number of events queued so far.
    """

    def __init__(
        self,
        bucket: RemoteBucket,
        *,
        watcher_stores: WatcherStores,
        endpoint: Endpoint | None,
        log: Callable[[str], None],
        on_events: Callable[[set[str]], None],
    ) -> None:
        queue = queue_names.parse(bucket.notifications or "")
        assert queue is not None, "thawd.config has checked the name of the queue"
        self.bucket = bucket
        self.events = 0
        self._queue = SqsQueue(queue, endpoint=endpoint)
        self._watcher_stores = watcher_stores
        self._log = log
        self._on_events = on_events
        self._catalog = f"{bucket.identity} {queue.arn}"
        self._going = asyncio.Event()
        self._going.set()
        self._progress = SourceProgress()
        self._receiver: Receiver | None = None
        self._recording = asyncio.Lock()
        self._reports = SayOnce(log)

    async def run(self) -> None:
        """Receive notifications until cancelled."""
        try:
            while True:
                await self._going.wait()
                self._receiver = Receiver(
                    self._queue,
                    open_=_open,
                    handle=self._handle,
                    batching=Batching(),
                    room=lambda: 0 if self._watcher_stores.is_full() else _ROOM,
                    progress=self._progress,
                    report=lambda text: self._log(f"bucket {self.bucket.name}: {self.bucket.notifications} {text}"),
                )
                await self._receiver.run()
        finally:
            # A task may have been cancelled after the commit of its events and before the call that announces them. So
            # announce all functions of the bucket.
            self._on_events({notification.function for notification in self.bucket.notify})

    def pause(self) -> None:
        """Receive no more notifications. New ones stay in the SQS queue for its retention period."""
        self._going.clear()
        if self._receiver is not None:
            self._receiver.stop()

    def resume(self) -> None:
        """Receive notifications again."""
        self._going.set()

    def status(self) -> dict[str, Any]:
        """Return the watcher's state and figures, as ``thawd source`` shows them."""
        progress = self._progress
        return {
            "name": f"bucket:{self.bucket.name}",
            "kind": "bucket",
            "function": ", ".join(sorted({notification.function for notification in self.bucket.notify})),
            "state": "Enabled" if self._going.is_set() else "Disabled",
            "last_result": progress.last_result,
            "url": str(self.bucket.url),
            "queue": self.bucket.notifications,
            "waiting": progress.waiting,
            "in_flight": progress.in_flight,
            "oldest_s": round(progress.oldest_s, 3),
            "received": progress.received,
            "failed": progress.failed,
            "events": self.events,
        }

    async def _handle(self, messages: Sequence[ReceivedMessage]) -> set[str]:
        if self._watcher_stores.is_full():
            raise Throttled("too many events wait (the limit is server.max_queued)")
        failed: set[str] = set()
        found: list[ObjectNotification] = []
        for message in messages:
            try:
                found += object_notifications(message.content, message_id=message.id)
            except _FOREIGN as error:
                failed.add(message.id)
                self._report_foreign(error)
        ours = [one for one in found if self._is_ours(one)]
        try:
            async with self._recording:
                for batch in _one_of_each_key(ours):
                    failed |= await self._record(batch)
        except StoreError as error:
            raise Throttled(error.message) from error
        self._progress.last_result = "PROBLEM: messages that are not notifications" if failed else "OK"
        return failed

    def _is_ours(self, notification: ObjectNotification) -> bool:
        return notification.bucket == self.bucket.bucket and notification.key.startswith(self.bucket.prefix.encode())

    async def _record(self, batch: Mapping[bytes, ObjectNotification]) -> set[str]:
        """Record the notifications that are new; queue their events. Return the ids of messages to receive again."""
        known = await self._watcher_stores.objects.lookup(self._catalog, list(batch))
        changes = [
            ObjectChange(
                key=key,
                expected=known[key].sequencer if key in known else 0,
                now=_record_of(one) if one.name.startswith("ObjectCreated:") else None,
                announce=True,
            )
            for key, one in batch.items()
            if key not in known or _is_news(one, known[key])
        ]
        if not changes:
            return set()
        applied = await self._watcher_stores.objects.apply(
            self._catalog, changes, events_for=lambda change, _: self._events_of(batch[change.key])
        )
        self.events += applied.events
        if applied.functions:
            self._on_events(applied.functions)
        return {batch[key].message_id for key in applied.conflicts}

    def _events_of(self, notification: ObjectNotification) -> list[NewEvent]:
        functions = functions_for(self.bucket.notify, key=notification.key, event_name=notification.name)
        payload = msgspec.json.encode({"Records": [notification.record]})
        return [
            NewEvent(
                function=function,
                payload=payload,
                request_id=new_request_id(),
                source=f"bucket:{self.bucket.name}",
                row_key=s3_event.row_key(notification.key),
            )
            for function in functions
        ]

    def _report_foreign(self, error: Exception) -> None:
        self._reports.say(
            f"bucket {self.bucket.name}: {self.bucket.notifications} contains messages that are not S3 notifications "
            f"({error!r}); they stay in the queue until its redrive policy moves them or they expire",
            cause="foreign",
        )


def object_notifications(body: bytes, *, message_id: str) -> list[ObjectNotification]:
    """Parse the records of created and removed objects in a message, which may have been sent through SNS.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError: the message is no notification.
    """
    document = msgspec.json.decode(body)
    if document.get("Type") == "Notification":
        document = msgspec.json.decode(document["Message"])
    if document.get("Event") == "s3:TestEvent":
        return []
    return [
        _parse(record, message_id)
        for record in document["Records"]
        if record["eventName"].partition(":")[0] in ("ObjectCreated", "ObjectRemoved")
    ]


def _parse(record: Mapping[str, Any], message_id: str) -> ObjectNotification:
    described = record["s3"]["object"]
    sequencer = str(described.get("sequencer", "")).upper().ljust(_SEQUENCER_DIGITS, "0")
    size = int(described.get("size", 0))
    at_ns = int(datetime.fromisoformat(record["eventTime"]).timestamp() * 1_000_000) * 1000
    if not (0 <= size <= _MOST and 0 <= at_ns <= _MOST):
        raise ValueError("its size or its time is out of range")
    return ObjectNotification(
        message_id=message_id,
        bucket=record["s3"]["bucket"]["name"],
        name=record["eventName"],
        key=unquote_to_bytes(described["key"].replace("+", " ")),
        size=size,
        at_ns=at_ns,
        mark=f"{sequencer} {described.get('eTag', '')}",
        record=record,
    )


def _record_of(notification: ObjectNotification) -> ObjectRecord:
    return ObjectRecord(
        key=notification.key,
        inode=0,
        size=notification.size,
        mtime_ns=notification.at_ns,
        ctime_ns=0,
        etag=notification.mark,
    )


def _is_news(notification: ObjectNotification, known: ObjectRecord) -> bool:
    """Return whether a notification is not older than the key's record, and does not repeat the record."""
    then, now = known.etag[:_SEQUENCER_DIGITS], notification.mark[:_SEQUENCER_DIGITS]
    return now > then or (now == then and (notification.mark, notification.at_ns) != (known.etag, known.mtime_ns))


def _one_of_each_key(found: Iterable[ObjectNotification]) -> list[dict[bytes, ObjectNotification]]:
    """Split notifications into batches with at most one for each key. Those of a key stay ordered by sequencer."""
    batches: list[dict[bytes, ObjectNotification]] = []
    for one in sorted(found, key=lambda one: one.mark[:_SEQUENCER_DIGITS]):
        batch = next((batch for batch in batches if one.key not in batch), None)
        if batch is None:
            batch = {}
            batches.append(batch)
        batch[one.key] = one
    return batches


def _open(message: RawMessage) -> bytes:
    return str(message["Body"]).encode()
