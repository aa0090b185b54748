"""From a look at files to recorded objects and queued events, for one bucket; one transaction for each batch.

A file's record is looked up before the file is looked at, and the change is stored only if that record is still the
one in the catalog. So two looks at the same change, for example after a PUT and after the kernel's notice of it, give
one event, and a look that was overtaken is repeated.
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
from thawd.sources.buckets.files import FileState, Looker, LookResult, Patience, Trusted
from thawd.sources.buckets.object_events import BucketSource, events_of
from thawd.sources.buckets.pending import Due
from thawd.stores.objects.catalog import ObjectCatalog, ObjectChange, ObjectRecord
from thawd.system import threads

BATCH_KEYS = 100
"""Keys looked at, and recorded, together."""
LARGE_BYTES = 16 * 1024 * 1024
"""Files larger than this are read apart from the others, and a batch of small ones ends once this much was read."""
_THREADS = 4
_STORE_RETRY_S = 2.0
_FULL = "as many events as server.max_queued allows wait already"
_REMEMBERED_COMPLAINTS = 1000


class Again(NamedTuple):
    """A key that is to be looked at again in `wait_s` seconds; `alone` if its file is too large to be among others."""

    key: bytes
    wait_s: float
    patience: Patience | None
    alone: bool = False


class FolderLost(Exception):
    """The bucket's folder is not there, or another one than before: nothing may be concluded from what is missing."""


class Recorder:
    """Looks at keys, records what changed, queues the events.

    Args:
        bucket: the bucket.
        objects: the catalog.
        log: takes lines for the operator.
        on_events: told the functions that have new events in the queue.
        settle_s: see `Looker`.
        is_full: whether the queue takes no events at the moment.
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
        self._log = log
        self._on_events = on_events
        self._settle_s = settle_s
        self._threads = threads.pool(_THREADS, name=f"bucket {bucket.name}")
        self._stop = threading.Event()
        self._complaints: set[bytes] = set()
        self._store_complaint = ""
        self._identity: tuple[int, int] | None = None

    def bind(self) -> None:
        """From now on the folder counts as lost when it is not the one that is there at this moment. Blocks.

        Raises:
            OSError: there is no folder, or it cannot be told.
        """
        now = os.stat(self.root)
        if not stat.S_ISDIR(now.st_mode):
            raise NotADirectoryError(20, "is not a folder", os.fsdecode(self.root))
        self._identity = (now.st_dev, now.st_ino)

    def require_folder(self) -> None:
        """Check that the folder is there and the same as when `bind` was called. Blocks.

        Raises:
            FolderLost: it is not.
        """
        try:
            now = os.stat(self.root)
        except OSError as error:
            raise FolderLost(f"cannot be reached ({error.strerror})") from error
        if self._identity not in (None, (now.st_dev, now.st_ino)):
            raise FolderLost("was replaced by another folder")

    async def look(
        self,
        dues: Sequence[Due],
        *,
        trusted: Mapping[bytes, Trusted] | None = None,
        limit_bytes: int | None = None,
    ) -> list[Again]:
        """Look at up to `BATCH_KEYS` keys and record what changed; when it returns, that is durable.

        Args:
            dues: the keys, and what is remembered of their last look.
            trusted: what the platform itself has just written, by key.
            limit_bytes: read no file larger than this, and not much more in all; None: no limit.

        Returns:
            The keys that are to be looked at again. Trouble with the store is logged and makes that all of them.

        Raises:
            FolderLost: keys are missing because the folder is.
        """
        if self._bucket.notify and self._is_full():
            self._complain_of_full()
            return [Again(due.key, _STORE_RETRY_S, due.patience) for due in dues]
        try:
            known = await self._objects.lookup(self._bucket.name, [due.key for due in dues])
            findings = await asyncio.get_running_loop().run_in_executor(
                self._threads, partial(self._look_at_all, dues, known, trusted or {}, limit_bytes)
            )
            conflicts = await self._record(findings, known)
        except StoreError as error:
            self.complain_of_store(error)
            return [Again(due.key, _STORE_RETRY_S, due.patience) for due in dues]
        if self._store_complaint:
            self._store_complaint = ""
            self._log(f"bucket {self._bucket.name}: objects are recorded again")
        again = [Again(due.key, 0.0, due.patience) for due in dues[len(findings) :]]
        again += [Again(key, 0.0, None) for key in conflicts]
        again += [Again(f.key, f.wait_s, f.patience) for f in findings if f.state is FileState.UNFINISHED]
        again += [Again(f.key, 0.0, f.patience, alone=True) for f in findings if f.state is FileState.LARGE]
        return again

    def complain(self, key: bytes, error: OSError) -> None:
        """Log once that a file or folder cannot be read. From any thread."""
        if key not in self._complaints and len(self._complaints) < _REMEMBERED_COMPLAINTS:
            self._complaints.add(key)
            self._log(
                f"bucket {self._bucket.name}: {os.fsdecode(key)!r} cannot be read ({error.strerror or error}); "
                "make it readable for the user thawd runs as. It is tried again with every scan"
            )

    def complain_of_store(self, error: StoreError) -> None:
        """Log trouble with the state file, once for each different one."""
        if error.message != self._store_complaint:
            self._store_complaint = error.message
            self._log(f"bucket {self._bucket.name}: objects wait to be recorded: {error.message}")

    def _complain_of_full(self) -> None:
        if self._store_complaint != _FULL:
            self._store_complaint = _FULL
            self._log(f"bucket {self._bucket.name}: objects wait to be recorded: {_FULL}")

    def close(self) -> None:
        """Let the threads end; what they are reading is given up."""
        self._stop.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _look_at_all(
        self,
        dues: Sequence[Due],
        known: Mapping[bytes, ObjectRecord],
        trusted: Mapping[bytes, Trusted],
        limit_bytes: int | None,
    ) -> list[LookResult]:
        """Findings for the first of `dues`, as far as the bytes to be read allow. Runs on a thread."""
        looker = Looker(self.root, leases=self.leases, settle_s=self._settle_s, stop=self._stop)
        findings: list[LookResult] = []
        read_bytes = 0
        for due in dues:
            finding = looker.look(
                due.key,
                known=known.get(due.key),
                patience=due.patience,
                trusted=trusted.get(due.key),
                largest_bytes=limit_bytes,
            )
            findings.append(finding)
            if finding.record is not None and due.key not in trusted:
                read_bytes += finding.record.size
                if limit_bytes is not None and read_bytes > limit_bytes:
                    break
        if any(finding.state is FileState.GONE and finding.key in known for finding in findings):
            self.require_folder()
        return findings

    async def _record(self, findings: Sequence[LookResult], known: Mapping[bytes, ObjectRecord]) -> list[bytes]:
        changes = []
        for finding in findings:
            record = known.get(finding.key)
            if finding.state is FileState.UNREADABLE and finding.error is not None:
                self.complain(finding.key, finding.error)
            elif finding.state is FileState.CHANGED or (finding.state is FileState.GONE and record is not None):
                self._complaints.discard(finding.key)
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
            self._bucket.name, changes, events_for=partial(events_of, source, at_s=at_s)
        )
        if applied.functions:
            self._on_events(applied.functions)
        return applied.conflicts
