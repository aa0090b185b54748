"""Checks files of one bucket, records the objects and queues their events, with one transaction for each batch.

A file's record is read before the file is checked, and a change is stored only if the catalog still contains that
record. So if the same change is checked twice, for example after a PUT and after the kernel's notice of it, it causes
only one event. A check is repeated if another check has updated the record in the meantime.
"""
# The root is bytes here, which pathlib does not take.
# ruff: noqa: PTH116

from __future__ import annotations

import asyncio
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from thawd.errors import StoreError
from thawd.resources import Bucket
from thawd.sources.buckets.files import FileState, Looker, LookResult, UnfinishedFile, WrittenFile
from thawd.sources.buckets.object_events import BucketSource, events_of
from thawd.sources.buckets.pending import DueKey
from thawd.stores.objects.catalog import ObjectCatalog, ObjectChange, ObjectRecord
from thawd.system import threads
from thawd.system.retry import SayOnce

BATCH_KEYS = 100
"""Most keys that are checked and recorded together."""
LARGE_BYTES = 16 * 1024 * 1024
"""Larger files are read separately. A batch of smaller ones ends once this many bytes were read."""
_THREADS = 4
_STORE_RETRY_S = 2.0
_FULL = "too many events wait (the limit is server.max_queued)"
# Most files and folders whose errors are remembered, so that they are not reported again.
_REMEMBERED_COMPLAINTS = 1000


class LookAgain(NamedTuple):
    """A key to check again.

    Attributes:
        key: the key.
        wait_s: when to check it, seconds from now.
        unfinished: the record of the last check; None: there is no record.
        alone: whether its file is too large for a batch with others.
    """

    key: bytes
    wait_s: float
    unfinished: UnfinishedFile | None
    alone: bool = False


class FolderLost(Exception):
    """The bucket's folder is missing or was replaced. So files that are missing do not count as removed objects.

    The message ends a sentence that begins with the folder's path.
    """


class Recorder:
    """Checks keys, records what changed, and queues the events.

    Args:
        bucket: the bucket.
        objects: the catalog of objects.
        log: takes lines for the operator.
        on_events: called with the names of functions that have new events in the asynchronous queue.
        settle_s: without file leases, a file counts as complete after it has not changed for this long, seconds.
        is_full: returns whether the asynchronous queue is full now.

    Attributes:
        root: the bucket's folder.
        leases: whether file leases work in the folder's file system, so that they show which files are being written.
    """

    def __init__(
        self,
        bucket: Bucket,
        *,
        objects: ObjectCatalog,
        log: Callable[[str], None],
        on_events: Callable[[set[str]], None],
        settle_s: float,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_full = is_full
        self.root = os.fsencode(bucket.path)
        self.leases = True
        self._bucket = bucket
        self._objects = objects
        self._on_events = on_events
        self._settle_s = settle_s
        self._threads = threads.pool(_THREADS, name=f"bucket {bucket.name}")
        self._stop = threading.Event()
        self._reports = SayOnce(log)
        self._unreadable = SayOnce(log, most_topics=_REMEMBERED_COMPLAINTS)
        self._identity: tuple[int, int] | None = None

    def bind(self) -> None:
        """Remember the folder's identity: from now on, a different folder at its path counts as lost. Blocks.

        Raises:
            OSError: there is no folder, or it cannot be accessed.
        """
        now = os.stat(self.root)
        if not stat.S_ISDIR(now.st_mode):
            raise NotADirectoryError(20, "is not a folder", os.fsdecode(self.root))
        self._identity = (now.st_dev, now.st_ino)

    def require_folder(self) -> None:
        """Check that the folder exists and is the same as when `bind` was called. Blocks.

        Raises:
            FolderLost: the folder is missing or was replaced.
        """
        try:
            now = os.stat(self.root)
        except OSError as error:
            raise FolderLost(f"cannot be accessed ({error.strerror})") from error
        if self._identity not in (None, (now.st_dev, now.st_ino)):
            raise FolderLost("was replaced by another folder")

    async def look(
        self,
        dues: Sequence[DueKey],
        *,
        written: Mapping[bytes, WrittenFile] | None = None,
        limit_bytes: int | None = None,
    ) -> list[LookAgain]:
        """Check up to `BATCH_KEYS` keys and record what changed. When it returns, the changes are on the disk.

        Args:
            dues: the keys, with the records of their last checks.
            written: files that the platform has just written, by key.
            limit_bytes: read no file larger than this, and stop the batch once more than this was read; None: no limit.

        Returns:
            The keys to check again. If the queue is full or the store fails, these are all of `dues`, and the reason is
            logged.

        Raises:
            FolderLost: keys are missing because the folder is missing or was replaced.
        """
        if self._bucket.notify and self._is_full():
            self._complain_of_waiting(_FULL)
            return [LookAgain(due.key, _STORE_RETRY_S, due.unfinished) for due in dues]
        try:
            known = await self._objects.lookup(self._bucket.name, [due.key for due in dues])
            findings = await asyncio.get_running_loop().run_in_executor(
                self._threads, partial(self._look_at_all, dues, known, written or {}, limit_bytes)
            )
            conflicts = await self._record(findings, known, written or {})
        except StoreError as error:
            self.complain_of_store(error)
            return [LookAgain(due.key, _STORE_RETRY_S, due.unfinished) for due in dues]
        self._reports.resolved(f"bucket {self._bucket.name}: objects can be recorded again")
        again = [LookAgain(due.key, 0.0, due.unfinished) for due in dues[len(findings) :]]
        again += [LookAgain(key, 0.0, None) for key in conflicts]
        again += [LookAgain(f.key, f.wait_s, f.unfinished) for f in findings if f.state is FileState.UNFINISHED]
        again += [LookAgain(f.key, 0.0, f.unfinished, alone=True) for f in findings if f.state is FileState.LARGE]
        return again

    def complain(self, key: bytes, error: OSError) -> None:
        """Log once that a file or folder cannot be read. May be called from any thread."""
        self._unreadable.say(
            f"bucket {self._bucket.name}: {os.fsdecode(key)!r} cannot be read ({error.strerror or error}); "
            "make it readable for the user that thawd runs as. thawd tries again at each scan",
            topic=key,
            cause="unreadable",
        )

    def complain_of_store(self, error: StoreError) -> None:
        """Log an error of the state file. The same error is logged only once until it has ended."""
        self._complain_of_waiting(error.message)

    def _complain_of_waiting(self, why: str) -> None:
        self._reports.say(f"bucket {self._bucket.name}: objects cannot be recorded yet: {why}")

    def close(self) -> None:
        """End the threads. Reading a file is aborted."""
        self._stop.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _look_at_all(
        self,
        dues: Sequence[DueKey],
        known: Mapping[bytes, ObjectRecord],
        written: Mapping[bytes, WrittenFile],
        limit_bytes: int | None,
    ) -> list[LookResult]:
        """Check as many of the first keys in `dues` as `limit_bytes` allows. Runs on a thread."""
        looker = Looker(self.root, leases=self.leases, settle_s=self._settle_s, stop=self._stop)
        findings: list[LookResult] = []
        read_bytes = 0
        for due in dues:
            finding = looker.look(
                due.key,
                known=known.get(due.key),
                unfinished=due.unfinished,
                written=written.get(due.key),
                largest_bytes=limit_bytes,
            )
            findings.append(finding)
            if finding.record is not None and due.key not in written:
                read_bytes += finding.record.size
                if limit_bytes is not None and read_bytes > limit_bytes:
                    break
        if any(finding.state is FileState.GONE and finding.key in known for finding in findings):
            self.require_folder()
        return findings

    async def _record(
        self,
        findings: Sequence[LookResult],
        known: Mapping[bytes, ObjectRecord],
        written: Mapping[bytes, WrittenFile],
    ) -> list[bytes]:
        changes = []
        for finding in findings:
            record = known.get(finding.key)
            if finding.state is FileState.UNREADABLE and finding.error is not None:
                self.complain(finding.key, finding.error)
            elif finding.state is FileState.CHANGED or (finding.state is FileState.GONE and record is not None):
                self._unreadable.resolved(topic=finding.key)
                changes.append(
                    ObjectChange(
                        key=finding.key,
                        expected=record.sequencer if record else 0,
                        now=finding.record,
                        announce=finding.announce or finding.record is None,
                    )
                )
        if not changes:
            return []
        at_s = time.time()
        source = BucketSource(self._bucket.name, self._bucket.name, self._bucket.notify)
        applied = await self._objects.apply(
            self._bucket.name, changes, events_for=partial(events_of, source, at_s=at_s, traces=written)
        )
        if applied.functions:
            self._on_events(applied.functions)
        return applied.conflicts
