"""Shares snapshots with other machines while a server runs: receives one before a function would be initialised.

`thawd.environments.starts.image_making` asks for the snapshot with a version's key, and passes on each new snapshot.
Threads of this module receive, and a start does not wait for them if the store is slow. A large image arrives while
copies of it run (`arriving_snapshots`), where FUSE can be used. One thread sends, by a process with a low priority
(`sender_process`). When the server ends, what it was sending stays unsent; the store of chunks is
whole all the same. Whatever fails is reported once for each reason, and the function is initialised, or its snapshot
stays on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from thawd.errors import ResourceNotFoundException, StoreError, ThawdError, unexpected
from thawd.snapshot.store.images import Snapshot, SnapshotStore
from thawd.stores.chunk_places import ChunkPlace
from thawd.stores.threads import StoreThreads
from thawd.system.retry import SayOnce
from thawd.transfer import arriving_snapshots, receiving, store_keys
from thawd.transfer.arriving_snapshots import ArrivingSnapshot
from thawd.transfer.chunk_cache import ChunkCache
from thawd.transfer.chunk_downloads import ChunkSource, Patience
from thawd.transfer.chunk_format import ChunkError
from thawd.transfer.fuse_files import why_not_detached
from thawd.transfer.store_keys import FunctionKey, StoreKey
from thawd.transfer.store_layout import RECORDS, find_by_key

_WAITING = 1000
_REST_S = 60.0
_RECEIVERS = 4
_LOOK_S = 0.25


class SnapshotExchange:
    """A store of chunks that a server uses.

    Args:
        store: this machine's snapshots.
        place: the store of chunks.
        key: file with its key.
        program: thawd-thaw; see `receiving.receive`.
        send: sends a snapshot with the main key, and blocks until that is done; raises ThawdError if it fails.
        report: called with a line for the operator.

    Attributes:
        cache: this machine's chunks, for all functions; None: all chunks are fetched.
        lazy: whether the copies of a large image start before it has arrived.
        patience: makes the object that says how long a start waits for the store.
    """

    def __init__(
        self,
        store: SnapshotStore,
        place: ChunkPlace,
        *,
        key: Path,
        program: Path | None,
        send: Callable[[Snapshot], object],
        report: Callable[[str], object],
    ) -> None:
        self._store = store
        self._place = place
        self._key_path = key
        self._program = program
        self._send = send
        self._report_line = report
        self._rests_until_s = 0.0
        self._asked: set[tuple[str, str]] = set()  # functions and keys
        self.cache: ChunkCache | None = None
        self.lazy = False
        self.patience: Callable[[], Patience] = Patience.of_a_start
        self._receivers = StoreThreads(_RECEIVERS, store=f"the store of chunks {place.name}")
        self._reports = SayOnce(report)
        self._waiting: queue.Queue[Snapshot] = queue.Queue(_WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    async def receive(self, function: str, key: str) -> bool | ArrivingSnapshot:
        """Receive the snapshot with this key (`ImageOrigin.key`), if the store of chunks has one.

        The store is asked once for each key, so that a snapshot that cannot be used does not come again. If the store
        failed, it is asked again. If it is slow, this method returns before it has answered, and it then rests.

        Returns:
            Whether the machine's store has the snapshot now; or the snapshot, if its image still arrives.
        """
        patience = self.patience()
        work = partial(self._receive_in_thread, function, key, patience)
        receiving = asyncio.ensure_future(self._receivers.run(work))
        while not receiving.done():
            try:
                await asyncio.wait({receiving}, timeout=_LOOK_S)
            except asyncio.CancelledError:
                receiving.add_done_callback(_abandon)
                raise
            if not receiving.done() and patience.is_over:
                self._rests_until_s = time.monotonic() + _REST_S
                self._reports.say(
                    f"thawd: {function}: {self._place.name} is too slow; the function is initialised here",
                    topic=f"{function} slow",
                )
                receiving.add_done_callback(_abandon)
                return False
        try:
            return False if receiving.cancelled() else receiving.result()
        except StoreError:
            return False  # the server ends

    def close(self) -> None:
        """Receive nothing more. What a store keeps waiting is abandoned (`thawd.stores.threads`). Does not block."""
        self._receivers.close(until=time.monotonic())

    def _receive_in_thread(self, function: str, key: str, patience: Patience) -> bool | ArrivingSnapshot:
        if (function, key) in self._asked or time.monotonic() < self._rests_until_s:
            return False
        self._asked.add((function, key))
        try:
            record = self._record(function, key)
        except ResourceNotFoundException:
            return False
        except Exception as error:
            self._report(f"{function}: its snapshot cannot be received from {self._place.name}", error)
            if not isinstance(error, ChunkError):
                self._asked.discard((function, key))
            return False
        return False if record is None else self._take(function, record, patience)

    def _take(self, function: str, record: receiving.Record, patience: Patience) -> bool | ArrivingSnapshot:
        """Receive the snapshot of a record; see `receive`."""
        source = ChunkSource(self._place, self.cache)
        try:
            if self._is_to_arrive(record):
                wanted = receiving.Receiving(self._store, source, record, self._program, patience)
                return ArrivingSnapshot(wanted, self._key(), report=self._report_line)
            receiving.receive(self._store, source, record, program=self._program, patience=patience)
        except Exception as error:
            self._report(f"{function}: its snapshot cannot be received from {self._place.name}", error)
            return False
        return True

    def _is_to_arrive(self, record: receiving.Record) -> bool:
        """Whether copies of a snapshot start before its image has arrived."""
        if not self.lazy or not arriving_snapshots.is_worthwhile(record):
            return False
        if (why := why_not_detached()) is not None:
            self._reports.say(f"thawd: images are received whole before functions start: {why}", topic="no FUSE")
            return False
        return receiving.already_there(self._store, record) is None

    def _record(self, function: str, key: str) -> receiving.Record | None:
        """Read the record of the snapshot with this key; None: there is none that this machine may read."""
        found = self._key()
        if isinstance(found, FunctionKey) and found.function != function:
            return None
        sha256 = self._find(found.function_key(function), function, key)
        if sha256 is None:
            if isinstance(found, FunctionKey) and next(iter(self._place.listed(f"{RECORDS}/{function}")), None):
                # A machine that never sends was given the store for this function, and now cannot use it.
                self._reports.say(
                    f"thawd: {function}: {self._place.name} has snapshots of it, but none of this code, these settings "
                    "and this version of thawd; it is initialised here",
                    topic=f"no snapshot of {function}",
                )
            return None
        record = receiving.read_record(self._place, found, function, sha256)
        return record if record.body.snapshots[-1].sidecar.origin.key == key else None

    def _find(self, function_key: bytes, function: str, key: str) -> str | None:
        """Look for a snapshot. After a failure the store is left alone for a while: each try may take half a minute."""
        try:
            return find_by_key(self._place, function_key, function, key)
        except StoreError:
            self._rests_until_s = time.monotonic() + _REST_S
            raise

    def send(self, snapshot: Snapshot) -> None:
        """Send a new snapshot later. Does not block; if very many wait, this one stays on the machine."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._send_all, name="send-snapshots", daemon=True)
                self._thread.start()
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(snapshot)

    def wait(self) -> None:
        """Wait until no snapshot waits to be sent. For tests."""
        self._waiting.join()

    def _send_all(self) -> None:
        while True:
            snapshot = self._waiting.get()
            try:
                key = self._key()
                if isinstance(key, StoreKey):
                    self._send(snapshot)
            except ResourceNotFoundException:
                pass  # it was removed, because the function has changed
            except Exception as error:
                self._report(f"{snapshot.name}: its snapshot cannot be sent to {self._place.name}", error)
            finally:
                self._waiting.task_done()

    def _key(self) -> StoreKey | FunctionKey:
        return store_keys.read_key(self._key_path)

    def _report(self, what: str, error: Exception) -> None:
        why = error.message if isinstance(error, ThawdError) else unexpected(error)
        self._reports.say(f"thawd: {what}: {why}", topic=f"{what}: {why}")


def _abandon(receiving: asyncio.Future[bool | ArrivingSnapshot]) -> None:
    """Release what was received although nobody waits for it any more."""
    if not receiving.cancelled() and receiving.exception() is None:
        received = receiving.result()
        if isinstance(received, ArrivingSnapshot):
            received.release()
