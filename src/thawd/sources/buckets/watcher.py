"""Watches a bucket's folder, and queues events when an object appears, is overwritten or is removed.

Each change that is found causes exactly one event for each function that is notified of it.

Changes are found by comparing files with the catalog; the kernel's notices only say which files to compare. The whole
folder is compared at the start and from time to time, in case notices were lost. Events are queued here and run by
`thawd.queue.invoker`; `files` decides whether a file is complete.

What happens to a file: a notice or a scan names its key -> the file is checked (25 ms later, and again while a process
writes to it) -> its record and its events are stored in one transaction (`recorder`) -> the invoker is woken.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from thawd.errors import StoreError
from thawd.resources import Bucket
from thawd.sources.buckets import scan
from thawd.sources.buckets.files import REST_S, WrittenFile, install_lease_signal_handler, leases_work
from thawd.sources.buckets.inotify import NoticeKind, TreeWatch
from thawd.sources.buckets.pending import DueKey, PendingKeys
from thawd.sources.buckets.recorder import BATCH_KEYS, LARGE_BYTES, FolderLost, LookAgain, Recorder
from thawd.sources.buckets.watch_session import WatchSession, WatchSettings
from thawd.stores.objects.catalog import ObjectCatalog, ObjectRecord
from thawd.stores.objects.folder import is_hidden
from thawd.system import threads
from thawd.system.retry import SayOnce, is_set_within

__all__ = ["BucketWatcher", "WatchSettings", "install_lease_signal_handler"]

T = TypeVar("T")

_WORKERS = 2
_PAGE_KEYS = 1000
_STORE_RETRY_S = 2.0
_RETURN_POLL_S = 1.0
# Most checks of a file that the platform itself wrote. A check is repeated if another one recorded the file meanwhile.
_INGEST_LOOKS = 5
# The wait after a batch, so that files that arrive in quick succession share transactions. A single file does not wait.
_GATHER_S = 0.01
# The event loop's timers count whole milliseconds. With a shorter wait, the loop would run without sleeping.
_TICK_S = 0.001


class BucketWatcher:
    """Watches one bucket.

    Attributes:
        initial_scan_done: set once all objects that were complete at the start are recorded and their events queued.
    """

    def __init__(
        self,
        bucket: Bucket,
        *,
        objects: ObjectCatalog,
        log: Callable[[str], None],
        on_events: Callable[[set[str]], None],
        settings: WatchSettings | None = None,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare the watcher. No file is opened before `run`.

        Args:
            bucket: the bucket.
            objects: the catalog of objects.
            log: takes lines for the operator; may be called from other threads.
            on_events: called in the event loop with the names of functions that have new events in the asynchronous
                queue.
            settings: how the bucket is watched; None: the defaults.
            is_full: returns whether the asynchronous queue is full now. While it is, no objects are recorded.
        """
        self.initial_scan_done = asyncio.Event()
        self._bucket = bucket
        self._objects = objects
        self._log = log
        self._on_events = on_events
        self._settings = settings or WatchSettings()
        self._recorder = Recorder(
            bucket,
            objects=objects,
            log=log,
            on_events=on_events,
            settle_s=self._settings.settle_s,
            is_full=is_full,
        )
        self._scan_thread = threads.pool(1, name=f"bucket {bucket.name} scan")
        self._session: WatchSession | None = None
        self._ended = False

    async def run(self) -> None:
        """Watch until cancelled. If the folder is missing at the start, make it. If it is lost later, wait for it."""
        reports = SayOnce(self._log)
        try:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(partial(self._bucket.path.mkdir, parents=True, exist_ok=True))
            while True:
                try:
                    await asyncio.to_thread(self._recorder.bind)
                except OSError as error:
                    reason = f"cannot be used ({error.strerror or error})"
                else:
                    reports.resolved(
                        f"bucket {self._bucket.name}: its folder is available again; looking for new objects"
                    )
                    reason = await self._watch()
                reports.say(
                    f"bucket {self._bucket.name}: its folder {self._bucket.path} {reason}; put it back and make it "
                    "readable. thawd then finds all changes; until then, no object counts as removed",
                    cause="lost",
                )
                await asyncio.sleep(_RETURN_POLL_S)
        finally:
            self._ended = True
            self._recorder.close()
            self._scan_thread.shutdown(wait=False, cancel_futures=True)

    async def ingest(
        self, key: bytes, *, stat: os.stat_result | None = None, etag: str | None = None, trace_id: str | None = None
    ) -> None:
        """Check one key now, because the platform wrote or removed its object. Returns when the change is recorded.

        An error of the store is not raised: the file is complete, and is recorded when the store works again.

        Args:
            key: the key.
            stat: stat of the complete file before it was renamed to its final name. If `etag` is given, too, the file
                is not read.
            etag: MD5 of the content, hexadecimal digits.
            trace_id: X-Ray trace header for the events; None: each begins a trace of its own.
        """
        if self._ended or is_hidden(key):
            return
        written = {key: WrittenFile(stat, etag, trace_id)} if stat is not None and etag is not None else None
        again: list[LookAgain] = []
        try:
            for _ in range(_INGEST_LOOKS):
                again = await self._recorder.look([DueKey(key, None)], written=written)
                if not again or again[0].wait_s > 0:
                    break
        except FolderLost:
            return
        except RuntimeError:
            # The watcher's threads have ended in the meantime. The scan at the next start finds the object.
            if not self._ended:
                raise
        if again and self._session is not None:
            self._session.look_again(again)

    async def lookup(self, key: bytes) -> ObjectRecord | None:
        """Return the object's record; None: there is none.

        Raises:
            StoreError: the catalog cannot be read.
        """
        return (await self._objects.lookup(self._bucket.name, [key])).get(key)

    async def listing(self, *, prefix: bytes = b"", start: bytes = b"", limit: int = 1000) -> list[ObjectRecord]:
        """Return recorded objects in the byte order of their keys: keys that begin with `prefix`, from `start` on.

        Raises:
            StoreError: the catalog cannot be read.
        """
        return await self._objects.page(self._bucket.name, prefix=prefix, start=start, limit=limit)

    async def _watch(self) -> str:
        """Watch until the folder is lost, and return the reason."""
        self._recorder.leases = await asyncio.to_thread(leases_work, self._recorder.root)
        if not self._recorder.leases:
            self._log(
                f"bucket {self._bucket.name}: file leases do not work in its file system, so thawd cannot tell which "
                f"files are being written; a file counts as complete after {self._settings.settle_s:g} s without a "
                "change"
            )
        session = self._session = WatchSession(
            self._open_tree(), PendingKeys(self._settings.held_keys), PendingKeys(self._settings.held_keys)
        )
        loop = asyncio.get_running_loop()
        if session.tree is None:
            session.unwatched = True
        else:
            loop.add_reader(session.tree.fileno(), self._take_notices, session, session.tree)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._scan_when_due(session))]
                tasks += [group.create_task(self._look_when_due(session, session.pending)) for _ in range(_WORKERS)]
                tasks += [group.create_task(self._look_when_due(session, session.large))]
                await session.lost.wait()
                for task in tasks:
                    task.cancel()
        finally:
            self._session = None
            if session.tree is not None:
                loop.remove_reader(session.tree.fileno())
                session.tree.close()
            # A task may have been cancelled after the commit of its events and before the call that announces them. So
            # announce all functions of the bucket.
            self._on_events({notification.function for notification in self._bucket.notify})
        return session.reason

    def _open_tree(self) -> TreeWatch | None:
        try:
            return TreeWatch(self._recorder.root)
        except OSError as error:
            self._log(
                f"bucket {self._bucket.name}: inotify cannot be used ({error.strerror}); the bucket is scanned every "
                f"{self._settings.unwatched_interval_s:g} s or less often instead. Raise fs.inotify.max_user_instances"
            )
            return None

    def _take_notices(self, session: WatchSession, tree: TreeWatch) -> None:
        due = time.monotonic() + REST_S
        try:
            notices = tree.read()
        except OSError as error:
            session.lose(f"can no longer be watched ({error.strerror})")
            return
        for notice in notices:
            if notice.kind is NoticeKind.FILE:
                session.look_at(notice.path, due)
            elif notice.kind is NoticeKind.ROOT_GONE:
                session.lose("was moved or removed")
            else:
                session.scan_folder(notice.path, due)

    async def _look_when_due(self, session: WatchSession, pending: PendingKeys) -> None:
        alone = pending is session.large
        while True:
            now = time.monotonic()
            dues = pending.take(now, 1 if alone else BATCH_KEYS)
            if dues:
                try:
                    again = await self._recorder.look(dues, limit_bytes=None if alone else LARGE_BYTES)
                    session.look_again(again)
                except FolderLost as lost:
                    session.lose(str(lost))
                await asyncio.sleep(0 if len(dues) == BATCH_KEYS else _GATHER_S)
                continue
            due = pending.next_due()
            await pending.wait(None if due is None else max(_TICK_S, due - now))

    async def _scan_when_due(self, session: WatchSession) -> None:
        next_full = 0.0
        while True:
            session.dirtied.clear()
            now = time.monotonic()
            folder = next((folder for folder, due in session.dirty.items() if due <= now), None)
            if now < next_full and folder is None:
                until = min([next_full, *session.dirty.values()])
                await is_set_within(session.dirtied, until - now)
                continue
            if folder is None or now >= next_full:
                folder = b""
            if folder:
                del session.dirty[folder]
            else:
                session.dirty.clear()
            try:
                took_s = await self._reconcile(session, folder)
            except StoreError as error:
                self._recorder.complain_of_store(error)
                session.scan_folder(folder, now + _STORE_RETRY_S)
                continue
            except FolderLost as lost:
                session.lose(str(lost))
                return
            if not folder:
                least_s = self._settings.unwatched_interval_s if session.unwatched else self._settings.scan_interval_s
                next_full = time.monotonic() + max(least_s, self._settings.scan_share * took_s)
                self.initial_scan_done.set()

    async def _reconcile(self, session: WatchSession, folder: bytes) -> float:
        """Compare a folder and everything below it with the catalog, and record the differences.

        Returns:
            How long the comparison took, without the time spent on objects that differ, seconds.
        """
        begun = time.monotonic()
        recorded = await self._objects.count(self._bucket.name) if not folder else -1
        await self._in_scan_thread(self._recorder.require_folder)
        already_recorded = 0
        spent_s = 0.0
        keys = scan.walk(
            self._recorder.root, folder, enter=partial(self._enter, session), report=self._recorder.complain
        )
        try:
            while chunk := await self._next_chunk(keys):
                known = await self._objects.lookup(self._bucket.name, chunk)
                already_recorded += len(known)
                spent_s += await self._record_differing(session, chunk, known)
        finally:
            self._scan_thread.submit(_close, keys)
        if already_recorded != recorded:  # some records may be of objects that were removed
            spent_s += await self._sweep(session, folder)
        return time.monotonic() - begun - spent_s

    async def _sweep(self, session: WatchSession, folder: bytes) -> float:
        """Find and record removed objects: those in and below a folder that are in the catalog but have no file."""
        spent_s = 0.0
        start = b""
        prefix = folder + b"/" if folder else b""
        while page := await self._objects.page(self._bucket.name, prefix=prefix, start=start, limit=_PAGE_KEYS):
            known = {record.key: record for record in page}
            spent_s += await self._record_differing(session, list(known), known)
            start = page[-1].key + b"\0"
        return spent_s

    async def _record_differing(
        self, session: WatchSession, keys: list[bytes], known: dict[bytes, ObjectRecord]
    ) -> float:
        """Check those of `keys` that differ from their records. Return how long that took, seconds."""
        found = await self._in_scan_thread(
            partial(scan.differing, self._recorder.root, keys, known, report=self._recorder.complain)
        )
        begun = time.monotonic()
        for at in range(0, len(found), BATCH_KEYS):
            dues = [DueKey(key, None) for key in found[at : at + BATCH_KEYS] if key not in session.pending]
            session.look_again(await self._recorder.look(dues))
        return time.monotonic() - begun

    def _enter(self, session: WatchSession, folder: bytes) -> None:
        """Watch a folder that is about to be scanned. Runs on the scan thread."""
        if session.tree is None or session.unwatched:
            return
        try:
            session.tree.watch(folder)
        except OSError as error:
            session.unwatched = True
            self._log(
                f"bucket {self._bucket.name}: inotify cannot watch more folders ({error.strerror}); the bucket is "
                f"scanned every {self._settings.unwatched_interval_s:g} s or less often instead. Raise "
                "fs.inotify.max_user_watches"
            )

    async def _next_chunk(self, keys: Iterator[list[bytes]]) -> list[bytes]:
        try:
            return await self._in_scan_thread(partial(next, keys, []))
        except OSError as error:
            raise FolderLost(f"cannot be read ({error.strerror})") from error

    async def _in_scan_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._scan_thread, work)


def _close(keys: Iterator[list[bytes]]) -> None:
    if hasattr(keys, "close"):
        keys.close()
