"""Snapshots of functions that are thawed while their images arrive.

The packages, the bases, the image's tables and the contents that the function used first where it was made are there
before the first copy starts. Copies map a file of FUSE (`fuse_files`), in which an access waits for its contents
(`arriving_files`). When everything has arrived and the image's SHA-256 is right, the image is put into the store of
snapshots, and later copies map the file there. Earlier copies keep the file of FUSE until they end.

Until then, the image is in a draft of the store of snapshots. If this process is killed, the next server removes the
draft; the file of FUSE ends with its last user.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec

from thawd.errors import StoreError, ThawdError, unexpected
from thawd.snapshot.disk import file_trees
from thawd.snapshot.store.image_facts import DISK, FILES, IMAGE, Snapshot
from thawd.snapshot.store.images import Draft
from thawd.snapshot.store.trust_and_locks import using
from thawd.transfer import first_use
from thawd.transfer.arriving_files import ArrivingFile
from thawd.transfer.arriving_images import ArrivingImage
from thawd.transfer.fuse_files import READ_AHEAD_BYTES, DetachedFile
from thawd.transfer.receiving import (
    INITIALISE,
    ROOM_BYTES,
    Receiving,
    Record,
    bind_image,
    check_machine,
    write_list,
)
from thawd.transfer.store_keys import FunctionKey, StoreKey

LEAST_BYTES = 32 << 20
"""Images with less contents are received whole: that takes hardly longer than what must be there first."""


def is_worthwhile(record: Record) -> bool:
    """Whether the image of a record is so large that its function is to start before it has arrived."""
    return sum(extent.length for extent in record.body.snapshots[-1].extents) >= LEAST_BYTES


class ArrivingSnapshot:
    """A snapshot whose image arrives. Call `release` when no further copy is started from it.

    Args:
        receiving: what is to be received: a function's snapshot that is not in the store of snapshots. Its `patience`
            says how slow the store of chunks may be until copies can start.
        key: the key of the record, for the list of what is used first.
        report: called with a line for the operator if the whole image cannot be put into the store of snapshots.

    Attributes:
        snapshot: the snapshot; its image is not complete, and must not be read or mapped.
        image_fd: descriptor of the file to map, see `DetachedFile`.

    Raises:
        ChunkError: a chunk is missing, damaged or another one (HTTP 500).
        StoreError: the snapshot does not fit this machine, with the reason; FUSE cannot be used; or a disk or the store
            failed (HTTP 500).
        StoreFullError: the disk is full (HTTP 503).
    """

    def __init__(
        self,
        receiving: Receiving,
        key: StoreKey | FunctionKey,
        *,
        report: Callable[[str], object] = lambda line: None,
    ) -> None:
        record = receiving.record
        self._store = receiving.store
        self._source = receiving.source
        self._program = receiving.program
        self._chunks = record.chunks
        self._report = report
        self._sent = record.body.snapshots[-1]
        sidecar = self._sent.sidecar
        function = sidecar.origin.function
        self._named = first_use.Named(function=function, sha256=sidecar.sha256, key=key.function_key(function))
        self._lock = threading.Lock()
        self._on_failure: Callable[[str], object] = lambda why: None
        self._why_failed = ""
        self._is_released = False
        self._outcome: Snapshot | StoreError | None = None
        self._waiting: list[Callable[[], object]] = []
        with ExitStack() as held:
            self._prepare(held, receiving)
            self._held = held.pop_all()
        self.image_fd = self._served.fd
        threading.Thread(target=self._complete, name="arriving-whole", daemon=True).start()

    def _prepare(self, held: ExitStack, receiving: Receiving) -> None:
        """Receive what must be there before a copy starts. `held` gets what is released when the last copy ends."""
        sent, origin = self._sent, self._sent.sidecar.origin
        assert sent.files is not None
        receiving.take_surroundings(held, lambda line: None)
        room_bytes = ROOM_BYTES + sum(extent.length for extent in sent.extents)
        draft = held.enter_context(self._store.begin(room_bytes=room_bytes))
        at = draft.folder / f"{sent.sidecar.sha256}{IMAGE}"
        disk = None if sent.disk is None else at.with_suffix(DISK)
        with using(at):
            if sent.disk is not None and disk is not None:
                receiving.fill(sent.disk, disk)
            first = first_use.chunks_of(sent.extents, origin.first_use, around_bytes=READ_AHEAD_BYTES // 2)
            size = sent.sidecar.image_bytes
            self._file = ArrivingFile(self._source, self._chunks, sent.extents, size, at, expected=first)
            held.callback(self._file.close)
            self._file.on_failure = self._fail
            with ThreadPoolExecutor(1, thread_name_prefix="recall") as thread:
                recalled = thread.submit(first_use.recall, self._source.place, len(self._chunks), **self._named)
                # Reads files of this machine, while the first contents arrive.
                self._records = receiving.locate(sent.files, origin, disk=disk)
                self._known = recalled.result() or first
            self._file.expect(self._known)
            write_list(at.with_suffix(FILES), self._records)
            image = self._image(draft.folder)
        self._file.wait_for(first, receiving.patience)
        self.snapshot = Snapshot(
            sha256=sent.sidecar.sha256,
            path=at,
            sidecar=msgspec.structs.replace(sent.sidecar, sent_as=sent.sidecar.sha256),
            stored_bytes=origin.data_bytes,
            last_used_unix_s=sent.sidecar.created_unix_s,
            in_use=True,
            problem=None,
        )
        self._served = DetachedFile(size=self._file.size, read=image.read, on_end=self._end)

    def _image(self, folder: Path) -> ArrivingImage:
        origin = self._sent.sidecar.origin
        name = f"{origin.function}:{origin.version}"
        try:
            return ArrivingImage(
                self._file,
                self._records,
                folder=folder,
                check=lambda tables: check_machine(self._program, tables, name, otherwise=INITIALISE),
            )
        except OSError as error:
            raise StoreError(self._file.failure or str(error)) from None

    def listen(self, on_failure: Callable[[str], object]) -> str:
        """Set what is called with the reason, in any thread, before a copy learns that contents cannot be had.

        Returns:
            The reason, if that has happened already; then nothing is called. Else an empty text.
        """
        with self._lock:
            self._on_failure = on_failure
            return self._why_failed

    def _fail(self, why: str) -> None:
        with self._lock:
            self._why_failed = self._why_failed or why
            on_failure = self._on_failure
        on_failure(why)

    async def whole(self) -> Snapshot:
        """Wait until the image is in the store of snapshots, and return the snapshot there.

        Raises:
            StoreError: it cannot be put there, or was released (HTTP 500).
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not ended.done():
                ended.set_result(None)

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(end)

        with self._lock:
            is_over = self._outcome is not None
            if not is_over:
                self._waiting.append(wake)
        if not is_over:
            await ended
        if not isinstance(self._outcome, Snapshot):
            raise self._outcome or StoreError("the image was not received")
        return self._outcome

    def release(self) -> None:
        """Start no more copies. Running copies still get what they need; all ends with the last of them."""
        self._is_released = True
        self._served.close()

    def _complete(self) -> None:
        outcome: Snapshot | StoreError
        try:
            self._file.require_whole(self._sent.sidecar.sha256)
            outcome = self._install()
        except (ThawdError, OSError) as error:
            outcome = StoreError(error.message if isinstance(error, ThawdError) else str(error))
        except Exception as error:
            outcome = StoreError(unexpected(error))
        if isinstance(outcome, StoreError) and not self._file.failure and not self._is_released:
            # Copies have all that they need, but the next server must receive the image again.
            self._report(f"thawd: {self.snapshot.name}: its image cannot be stored: {outcome.message}")
        with self._lock:
            self._outcome, waiting = outcome, self._waiting
        for wake in waiting:
            wake()
        order = first_use.merged(self._known, self._file.first_used)
        if order is not None and isinstance(outcome, Snapshot):
            first_use.remember(self._source.place, order, **self._named)

    def _install(self) -> Snapshot:
        """Put the whole image into the store of snapshots. The draft's own files stay for the copies that use them.

        Raises:
            StoreError: no version uses the image any more, it is damaged, or it cannot be stored (HTTP 500).
            OSError: a file cannot be written.
        """
        if self._is_released:
            raise StoreError("no version uses the image any more")
        path = self.snapshot.path
        bind_image(path, self._records)  # copies read the tables from memory, and never from here
        with self._store.begin() as draft, using(draft.image):
            _link(path, draft)
            os.sync()  # a disk snapshot and the list of files must be as durable as the image, which the store syncs
            return self._store.adopt(draft, self._sent.sidecar.origin, sent_as=self._sent.sidecar.sha256)

    def _end(self) -> None:
        self._held.close()


def _link(path: Path, draft: Draft) -> None:
    """Give the files of an arrived snapshot second names in a draft. They keep their inodes, which the image names."""
    os.link(path, draft.image)
    os.link(path.with_suffix(FILES), draft.files)
    if path.with_suffix(DISK).exists():
        file_trees.copy(path.with_suffix(DISK), draft.disk, link=True)
