"""Makes the content of a write-ahead log durable when a file is opened that the last process did not close.

If a sync of the log fails, Linux keeps the written pages in memory, but counts them as clean: no later sync writes them
to the disk. As long as the process runs, this does no harm, because SQLite writes its next transaction over the one
that failed. But if the process ends, the next process finds the failed transaction in the log, takes it for a committed
one and appends to it. The syncs of the next process succeed, and yet after a power cut the log ends where the failed
transaction began, and everything that was written after that is lost. So this module writes the whole log again before
anything is appended.

Source: sqlite.org/walformat.html; "Can Applications Recover from fsync Failures?" (USENIX ATC 2020).
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

# Source: sqlite.org/walformat.html, "The WAL File": all numbers are big-endian.
_HEADER = struct.Struct(">4s4sI4s8s8s")  # magic, format, page size, checkpoint number, salts, checksum
_FRAME_HEADER = struct.Struct(">II8s8s")  # page number, pages in the file, salts, checksum
_PORTION_BYTES = 1024 * 1024


def write_again(path: Path) -> None:
    """Write the frames in the log of the SQLite file `path` again, unchanged, and sync the log.

    Nobody else may write to the log meanwhile: call this inside a write transaction that has not written anything.
    The time that this takes grows with the log. After a proper close there is no log.

    Raises:
        OSError: the log cannot be read, written or synced.
    """
    try:
        fd = os.open(f"{path}-wal", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        end = _end_of_frames(fd, os.fstat(fd).st_size)
        offset = 0
        while offset < end and (portion := os.pread(fd, min(_PORTION_BYTES, end - offset), offset)):
            offset += os.pwrite(fd, portion, offset)
        if end:
            os.fsync(fd)
    finally:
        os.close(fd)


def _end_of_frames(fd: int, size: int) -> int:
    """Return the offset behind the last complete frame.

    When SQLite has copied the log's content into the database file, it writes the log again from its beginning, with
    new salts (random numbers). Frames with other salts than the log's header are left over from before.
    """
    head = os.pread(fd, _HEADER.size, 0)
    if len(head) < _HEADER.size:
        return 0
    _, _, page_bytes, _, salts, _ = _HEADER.unpack(head)
    frame_bytes = _FRAME_HEADER.size + page_bytes
    end = _HEADER.size
    while end + frame_bytes <= size and _FRAME_HEADER.unpack(os.pread(fd, _FRAME_HEADER.size, end))[2] == salts:
        end += frame_bytes
    return end
