"""Remote buckets, watched by listing: each listing is compared with the catalog.

If an object is new, changed or removed, it is recorded and its events are queued in one transaction, as with folders,
so that a crash neither loses nor repeats an event. A failed listing is repeated. The objects that it had recorded stay
recorded, and no object is taken as removed until a listing is complete. To find removed objects, a listing keeps a
digest of each key in memory, eight bytes for each object. So the store may list the objects in any order.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from thawd.errors import ThawdError
from thawd.resources import RemoteBucket
from thawd.sources.buckets.object_events import BucketSource, events_of
from thawd.sources.buckets.remote_stores import WatcherStores
from thawd.stores.objects.catalog import ObjectChange, ObjectRecord
from thawd.stores.objects.listings import ListingProgress
from thawd.stores.objects.remote import BucketStore, OddKeysError, RemoteObject
from thawd.system.retry import SayOnce

_BATCH_KEYS = 250
_PAGE_KEYS = 1000
_FULL = "too many events wait (the limit is server.max_queued)"
_FULL_RECHECK_S = 1.0


class RemoteBucketWatcher:
    """Watches one remote bucket.

    Attributes:
        first_listing_done: set once a listing is complete.
    """

    def __init__(
        self,
        bucket: RemoteBucket,
        store: BucketStore,
        *,
        watcher_stores: WatcherStores,
        log: Callable[[str], None],
        on_events: Callable[[set[str]], None],
    ) -> None:
        """Prepare the watcher. The store is not called before `run`.

        Args:
            bucket: the bucket.
            store: reads the bucket.
            watcher_stores: the stores that the watcher records into.
            log: takes lines for the operator.
            on_events: called with the names of functions that have new events in the asynchronous queue.
        """
        self.first_listing_done = asyncio.Event()
        self._bucket = bucket
        self._store = store
        self._objects = watcher_stores.objects
        self._listings = watcher_stores.listings
        self._log = log
        self._on_events = on_events
        self._is_full = watcher_stores.is_full
        self._source = BucketSource(bucket.name, bucket.bucket, bucket.notify, bucket.region)
        self._catalog = bucket.identity
        self._going = asyncio.Event()
        self._going.set()
        self._reports = SayOnce(log)
        self._complaint = ""  # why the bucket cannot be listed, for `status`
        self._completed_at: float | None = None
        self._took_s: float | None = None
        self._objects_seen: int | None = None
        self._events = 0

    async def run(self) -> None:
        """List the bucket repeatedly until cancelled."""
        try:
            while True:
                await self._going.wait()
                again_now = False
                try:
                    await self.look()
                except OddKeysError as error:
                    self._log(f"{error.message}")
                    again_now = True  # the next listing is made with another library, so do not wait before it
                except ThawdError as error:
                    self._complain(error.message)
                else:
                    self._end_complaint()
                if not again_now:
                    await asyncio.sleep(self._bucket.poll_s)
        finally:
            # A task may have been cancelled after the commit of its events and before the call that announces them. So
            # announce all functions of the bucket.
            self._on_events({notification.function for notification in self._bucket.notify})

    def pause(self) -> None:
        """Start no more listings. A running listing is completed."""
        self._going.clear()

    def resume(self) -> None:
        """Start listings again. The next listing finds the changes made in the meantime."""
        self._going.set()

    def status(self) -> dict[str, Any]:
        """Return the watcher's state and figures, as ``thawd source`` shows them.

        ``oldest_s`` is how long ago the last complete listing began, seconds. It has found all earlier changes.
        """
        result = "No listing yet" if self._completed_at is None else "OK"
        return {
            "name": f"bucket:{self._bucket.name}",
            "kind": "bucket",
            "function": ", ".join(sorted({notification.function for notification in self._bucket.notify})),
            "state": "Enabled" if self._going.is_set() else "Disabled",
            "last_result": f"PROBLEM: {self._complaint}" if self._complaint else result,
            "url": str(self._bucket.url),
            "queue": None,
            "waiting": None,
            "oldest_s": None if self._completed_at is None else round(time.time() - self._completed_at, 3),
            "objects": self._objects_seen,
            "listing_s": self._took_s,
            "events": self._events,
        }

    async def look(self) -> None:
        """List the bucket once. When this returns, all changes are recorded and their events queued.

        Raises:
            StoreError: the bucket cannot be listed, or the state file cannot be written.
        """
        begun_at = time.time()
        progress = await self._listings.begin(self._catalog, now=begun_at)
        recorded = await self._objects.count(self._catalog)
        seen = array("Q")  # a digest of each key: eight bytes
        salt = os.urandom(16)
        already_recorded = 0
        pages = self._store.listing()
        while page := await self._store.next_page(pages):
            seen.extend(_digest(found.key.encode(), salt) for found in page)
            for at in range(0, len(page), _BATCH_KEYS):
                already_recorded += await self._record(page[at : at + _BATCH_KEYS], progress)
        if already_recorded != recorded:
            await self._sweep(seen, salt)
        await self._listings.complete(self._catalog, now=time.time())
        self._completed_at = begun_at
        self._took_s = time.time() - begun_at
        self._objects_seen = len(seen)
        self.first_listing_done.set()

    async def _record(self, found: Sequence[RemoteObject], progress: ListingProgress) -> int:
        """Record the objects that differ from their records. Return how many of `found` already had a record."""
        await self._wait_for_room()
        keys = [entry.key.encode() for entry in found]
        known = await self._objects.lookup(self._catalog, keys)
        changes = []
        for key, entry in zip(keys, found, strict=True):
            record = known.get(key)
            if record is not None and (record.size, record.etag, record.mtime_ns) == entry[1:]:
                continue
            changes.append(
                ObjectChange(
                    key=key,
                    expected=record.sequencer if record else 0,
                    now=ObjectRecord(
                        key=key, inode=0, size=entry.size, mtime_ns=entry.mtime_ns, ctime_ns=0, etag=entry.etag
                    ),
                    announce=not self._predates_first_listing(entry, progress) and await self._is_object(entry),
                )
            )
        await self._apply(changes)
        return len(known)

    async def _wait_for_room(self) -> None:
        """Wait while the queue is full, because recording an object may queue events."""
        while self._is_full():
            self._complaint = _FULL
            self._reports.say(f"bucket {self._bucket.name}: objects cannot be recorded yet: {_FULL}")
            await asyncio.sleep(_FULL_RECHECK_S)

    def _predates_first_listing(self, entry: RemoteObject, progress: ListingProgress) -> bool:
        """Return whether the bucket is configured to ignore this object because it is older than the first listing."""
        if self._bucket.existing == "notify" or progress.completed_at is not None:
            return False
        return entry.mtime_ns < progress.begun_at * 1e9

    async def _is_object(self, entry: RemoteObject) -> bool:
        """Return whether this is an object and not a folder marker.

        A folder marker is an empty object whose key ends with a slash. A listing shows the key without the slash, and
        there is no object with that shorter key.
        """
        return entry.size > 0 or await self._store.exists(entry.key)

    async def _sweep(self, seen: array[int], salt: bytes) -> None:
        """Record as removed all recorded objects that the listing did not contain."""
        ordered = array("Q", sorted(seen))
        start = b""
        while page := await self._objects.page(self._catalog, start=start, limit=_PAGE_KEYS):
            gone = [record for record in page if not _contains(ordered, _digest(record.key, salt))]
            for at in range(0, len(gone), _BATCH_KEYS):
                await self._wait_for_room()
                await self._apply(
                    [
                        ObjectChange(key=record.key, expected=record.sequencer, now=None, announce=True)
                        for record in gone[at : at + _BATCH_KEYS]
                    ]
                )
            start = page[-1].key + b"\0"

    async def _apply(self, changes: Sequence[ObjectChange]) -> None:
        if not changes:
            return
        at_s = time.time()
        applied = await self._objects.apply(
            self._catalog, changes, events_for=partial(events_of, self._source, at_s=at_s)
        )
        self._events += applied.events
        if applied.functions:
            self._on_events(applied.functions)

    def _complain(self, error: str) -> None:
        """Log an error. The same error is logged only once until it has ended."""
        self._complaint = error
        self._reports.say(f"{error}. The listing is tried again every {self._bucket.poll_s:g} s")

    def _end_complaint(self) -> None:
        self._complaint = ""
        self._reports.resolved(f"bucket {self._bucket.name}: {self._bucket.url} is listed again")


def _digest(key: bytes, salt: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8, key=salt).digest(), "little")


def _contains(ordered: array[int], value: int) -> bool:
    at = bisect_left(ordered, value)
    return at < len(ordered) and ordered[at] == value
