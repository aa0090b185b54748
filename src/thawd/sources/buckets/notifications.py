"""Buckets elsewhere, watched by the notifications that S3 itself sends to an SQS queue.

A message is deleted once its records are queued as events. S3 sends a notification at least once, and not always in
order: what is older than what was recorded of a key, or the same, gives no event. Records are passed on as they are.

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
from thawd.sources.buckets import s3_event
from thawd.sources.buckets.remote_stores import Books
from thawd.sources.sqs.batch import Batching, Letter, SourceProgress
from thawd.sources.sqs.client import Endpoint, RawMessage, SqsQueue
from thawd.sources.sqs.receiver import Receiver, Throttled
from thawd.stores.events.records import NewEvent
from thawd.stores.objects.catalog import ObjectChange, ObjectRecord

_ROOM = 4
_SEQUENCER_DIGITS = 32
# Anybody may put anything into a queue: what of it is no notification must not hold up those beside it.
_FOREIGN = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
_MOST = (1 << 63) - 1


class Happening(NamedTuple):
    """A record of S3's, taken apart.

    Attributes:
        letter: id of the message that it came in.
        bucket: name of the bucket.
        name: event name, for example ``ObjectCreated:Copy``.
        key: the object's complete key.
        size: bytes; 0 where it does not say.
        at_ns: when, nanoseconds since the epoch.
        mark: orders the happenings of a key, with the ETag behind it.
        record: as S3 made it.
    """

    letter: str
    bucket: str
    name: str
    key: bytes
    size: int
    at_ns: int
    mark: str
    record: Mapping[str, Any]


class NotifiedBucketWatcher:
    """Watches one bucket by its notifications; `thawd.sources.buckets.remote.RemoteBucketWatcher` does it by listing.

    Args:
        bucket: the bucket; it names a queue.
        books: where it is recorded.
        endpoint: where SQS is; None: where the surroundings say.
        log: takes lines for the operator.
        on_events: told the functions that have new events in the queue.
    """

    def __init__(
        self,
        bucket: RemoteBucket,
        *,
        books: Books,
        endpoint: Endpoint | None,
        log: Callable[[str], None],
        on_events: Callable[[set[str]], None],
    ) -> None:
        queue = queue_names.parse(bucket.notifications or "")
        assert queue is not None, "thawd.config has checked it"
        self.bucket = bucket
        self.events = 0
        self._queue = SqsQueue(queue, endpoint=endpoint)
        self._books = books
        self._log = log
        self._on_events = on_events
        self._catalog = f"{bucket.identity} {queue.arn}"
        self._going = asyncio.Event()
        self._going.set()
        self._progress = SourceProgress()
        self._receiver: Receiver | None = None
        self._recording = asyncio.Lock()
        self._said_foreign = False

    async def run(self) -> None:
        """Receive until cancelled."""
        try:
            while True:
                await self._going.wait()
                self._receiver = Receiver(
                    self._queue,
                    open_=_open,
                    handle=self._handle,
                    batching=Batching(),
                    room=lambda: 0 if self._books.is_full() else _ROOM,
                    progress=self._progress,
                    report=lambda text: self._log(f"bucket {self.bucket.name}: {self.bucket.notifications} {text}"),
                )
                await self._receiver.run()
        finally:
            # A task may have been cancelled between the commit of its events and the call that announces them.
            self._on_events({notification.function for notification in self.bucket.notify})

    def pause(self) -> None:
        """Receive no more; what comes meanwhile stays in the queue, as long as the queue keeps it."""
        self._going.clear()
        if self._receiver is not None:
            self._receiver.stop()

    def resume(self) -> None:
        """Go on."""
        self._going.set()

    def status(self) -> dict[str, Any]:
        """What it is doing, for people and ``thawd source``."""
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

    async def _handle(self, letters: Sequence[Letter]) -> set[str]:
        if self._books.is_full():
            raise Throttled("as many events as server.max_queued allows wait already")
        failed: set[str] = set()
        found: list[Happening] = []
        for letter in letters:
            try:
                found += happenings(letter.content, letter=letter.id)
            except _FOREIGN as error:
                failed.add(letter.id)
                self._tell_of_foreign(error)
        ours = [one for one in found if self._is_ours(one)]
        try:
            async with self._recording:
                for batch in _one_of_each_key(ours):
                    failed |= await self._record(batch)
        except StoreError as error:
            raise Throttled(error.message) from error
        self._progress.last_result = "PROBLEM: messages that are no notifications" if failed else "OK"
        return failed

    def _is_ours(self, happening: Happening) -> bool:
        return happening.bucket == self.bucket.bucket and happening.key.startswith(self.bucket.prefix.encode())

    async def _record(self, batch: Mapping[bytes, Happening]) -> set[str]:
        """Record what is news and queue its events; the messages that are to come again."""
        known = await self._books.objects.lookup(self._catalog, list(batch))
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
        applied = await self._books.objects.apply(
            self._catalog, changes, events_for=lambda change, _: self._events_of(batch[change.key])
        )
        self.events += applied.events
        if applied.functions:
            self._on_events(applied.functions)
        return {batch[key].letter for key in applied.conflicts}

    def _events_of(self, happening: Happening) -> list[NewEvent]:
        functions = s3_event.functions_for(self.bucket.notify, key=happening.key, event_name=happening.name)
        payload = msgspec.json.encode({"Records": [happening.record]})
        return [
            NewEvent(
                function=function,
                payload=payload,
                request_id=new_request_id(),
                source=f"bucket:{self.bucket.name}",
                row_key=s3_event.row_key(happening.key),
            )
            for function in functions
        ]

    def _tell_of_foreign(self, error: Exception) -> None:
        if not self._said_foreign:
            self._said_foreign = True
            self._log(
                f"bucket {self.bucket.name}: {self.bucket.notifications} holds messages that are no notifications of "
                f"S3 ({error!r}); they stay there, for the queue's redrive policy to deal with"
            )


def happenings(body: bytes, *, letter: str) -> list[Happening]:
    """What a notification tells of: objects that were created or removed; also when it came by way of SNS.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError: it is no notification.
    """
    document = msgspec.json.decode(body)
    if document.get("Type") == "Notification":
        document = msgspec.json.decode(document["Message"])
    if document.get("Event") == "s3:TestEvent":
        return []
    return [
        _taken_apart(record, letter)
        for record in document["Records"]
        if record["eventName"].partition(":")[0] in ("ObjectCreated", "ObjectRemoved")
    ]


def _taken_apart(record: Mapping[str, Any], letter: str) -> Happening:
    described = record["s3"]["object"]
    sequencer = str(described.get("sequencer", "")).upper().ljust(_SEQUENCER_DIGITS, "0")
    size = int(described.get("size", 0))
    at_ns = int(datetime.fromisoformat(record["eventTime"]).timestamp() * 1_000_000) * 1000
    if not (0 <= size <= _MOST and 0 <= at_ns <= _MOST):
        raise ValueError("its size or its time cannot be")
    return Happening(
        letter=letter,
        bucket=record["s3"]["bucket"]["name"],
        name=record["eventName"],
        key=unquote_to_bytes(described["key"].replace("+", " ")),
        size=size,
        at_ns=at_ns,
        mark=f"{sequencer} {described.get('eTag', '')}",
        record=record,
    )


def _record_of(happening: Happening) -> ObjectRecord:
    return ObjectRecord(
        key=happening.key, inode=0, size=happening.size, mtime_ns=happening.at_ns, ctime_ns=0, etag=happening.mark
    )


def _is_news(happening: Happening, known: ObjectRecord) -> bool:
    """Whether it is later than what was recorded, and not the same once more."""
    then, now = known.etag[:_SEQUENCER_DIGITS], happening.mark[:_SEQUENCER_DIGITS]
    return now > then or (now == then and (happening.mark, happening.at_ns) != (known.etag, known.mtime_ns))


def _one_of_each_key(found: Iterable[Happening]) -> list[dict[bytes, Happening]]:
    """The happenings in batches, in each at most one of a key, and those of a key in their order."""
    batches: list[dict[bytes, Happening]] = []
    for one in sorted(found, key=lambda one: one.mark[:_SEQUENCER_DIGITS]):
        batch = next((batch for batch in batches if one.key not in batch), None)
        if batch is None:
            batch = {}
            batches.append(batch)
        batch[one.key] = one
    return batches


def _open(message: RawMessage) -> bytes:
    return str(message["Body"]).encode()
