"""Runs the image of a program from a store of chunks, while its contents arrive.

The program starts when the image's tables are there. What an earlier run needed first is fetched at once
(`first_use`). An access to memory that has not arrived waits for it
(`arriving_files`, `fuse_files`). If the store fails, or the whole image turns out to be damaged, the program is killed:
it never continues with wrong memory. Without FUSE, everything is fetched before the program starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from thawd.errors import StoreError
from thawd.transfer import first_use
from thawd.transfer.arriving_files import ArrivingFile
from thawd.transfer.arriving_images import ArrivingImage
from thawd.transfer.chunk_downloads import ChunkSource
from thawd.transfer.fuse_files import FuseFile, enter_mount_namespace
from thawd.transfer.programs import locate_files, receive_program
from thawd.transfer.receiving import Record
from thawd.transfer.store_keys import FunctionKey, StoreKey

_PR_SET_PDEATHSIG = 1
_LONGEST_WAIT_S = 0.5
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run_program(
    source: ChunkSource,
    record: Record,
    arguments: Sequence[str],
    *,
    program: Path,
    key: StoreKey | FunctionKey | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> int:
    """Run a program. Call it from the main thread of a process that does nothing else.

    Args:
        source: the chunks.
        record: the record of a program.
        arguments: the program's arguments.
        program: thawd-thaw.
        key: the key of the record, for the list of what is needed first; None: it is neither read nor written.
        progress: called with lines for the operator.

    Returns:
        The program's exit status; 128 and the signal's number if a signal ended it.

    Raises:
        ChunkError: a chunk is missing, damaged or another one; the program was killed (HTTP 500).
        StoreError: the image does not fit this machine, or the store failed; the program was killed (HTTP 500).
    """
    with tempfile.TemporaryDirectory(prefix="thawd-run-") as text:
        folder = Path(text)
        _leave_nothing(folder)
        try:
            enter_mount_namespace()
            run = _LazyRun(source, record, folder, key)
        except StoreError as error:
            if not _is_about_fuse(error):
                raise
            progress(f"the whole image is fetched first: {error.message}")
            receive_program(source, record, folder / "image", program=program, progress=progress)
            return _status(_started(program, folder / "image", arguments))
        try:
            return run.run(program, arguments)
        finally:
            run.close()


def _leave_nothing(folder: Path) -> None:
    """Remove the folder if a signal ends this process before the program runs; then signals are the program's."""

    def leave(number: int, frame: object) -> None:
        ctypes.CDLL(None).umount2(os.fsencode(folder / "image"), 2)  # MNT_DETACH
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(128 + number)  # without waiting for the store

    if threading.current_thread() is threading.main_thread():
        for one in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(one, leave)


def _is_about_fuse(error: StoreError) -> bool:
    return "mount" in error.message or "/dev/fuse" in error.message


class _LazyRun:
    """A program that starts while its image arrives."""

    def __init__(self, source: ChunkSource, record: Record, folder: Path, key: StoreKey | FunctionKey | None) -> None:
        if record.body.kind != "program":
            raise StoreError(f"{record.body.function} is a function: receive its snapshot with `thawd snapshot pull`")
        self._sent = record.body.snapshots[-1]
        self._path = folder / "image"
        self._path.touch(0o600)
        size = self._sent.sidecar.image_bytes
        self._place, self._key = source.place, key
        self._expected = [] if key is None else first_use.recall(self._place, len(record.chunks), **self._named(key))
        self._file = ArrivingFile(source, record.chunks, self._sent.extents, size, folder, expected=self._expected)
        try:
            assert self._sent.files is not None
            records = locate_files(record.body.function, self._sent.files)
            FuseFile(self._path, size=size, read=ArrivingImage(self._file, records, folder=folder).read)
        except OSError as error:
            self._file.close()
            raise StoreError(f"{self._file.failure or error}") from None
        except BaseException:
            self._file.close()
            raise

    def _named(self, key: StoreKey | FunctionKey) -> first_use.Named:
        function = self._sent.sidecar.origin.function
        return {"function": function, "sha256": self._sent.sidecar.sha256, "key": key.function_key(function)}

    def run(self, program: Path, arguments: Sequence[str]) -> int:
        """Run the program to its end, or kill it if its image cannot be had."""
        process = _started(program, self._path, arguments)
        self._file.on_failure = lambda why: process.kill()
        if self._file.failure:  # since before the line above
            process.kill()
        threading.Thread(target=self._verify, name="verify", daemon=True).start()
        status = _status(process)
        self._remember()
        if self._file.failure and process.returncode == -signal.SIGKILL:
            raise StoreError(f"the program was killed, because its image could not be received: {self._file.failure}")
        return status

    def _verify(self) -> None:
        with contextlib.suppress(StoreError, OSError):  # then the program has been killed, or has ended
            self._file.require_whole(self._sent.sidecar.sha256)

    def _remember(self) -> None:
        """Leave the list of what was needed first in the store, unless the store's list is good."""
        if self._key is None or self._file.failure:
            return
        order = first_use.merged(self._expected, self._file.first_used)
        if order is not None:
            self._expected = order
            first_use.remember(self._place, order, **self._named(self._key))

    def close(self) -> None:
        """Stop receiving."""
        ctypes.CDLL(None).umount2(os.fsencode(self._path), 2)  # MNT_DETACH
        self._file.close()


def _started(program: Path, image: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None)
    # The function only makes a system call, of a library that is loaded already. The program must not outlive this
    # process, which has what it reads.
    process = subprocess.Popen(
        [program, image, *arguments],
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509
    )
    if threading.current_thread() is threading.main_thread():
        for one in _FORWARDED:
            signal.signal(one, lambda number, frame: process.send_signal(number))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the program, too
    return process


def _status(process: subprocess.Popen[bytes]) -> int:
    ended = os.pidfd_open(process.pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    while not poll.poll(1000 * _LONGEST_WAIT_S):
        pass  # a signal that arrived just before the wait is passed on now
    os.close(ended)
    status = process.wait()
    return 128 - status if status < 0 else status
