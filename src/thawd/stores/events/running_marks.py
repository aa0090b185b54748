"""Marks the events that are running, in a way that survives a crash of the server but not a reboot.

An event that crashes the server each time would run again after every start, for ever. So each running event is marked
in a memory-mapped file. Setting a mark is one write to memory, and the kernel keeps the mark when the process dies. The
file also contains the id of the boot in which it was written. Marks of another boot are ignored, because no event
causes a power failure.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from thawd.errors import StoreError
from thawd.system.boot import boot_id

SLOTS = 1024
"""Most events marked at the same time; further running events are not marked."""
_SLOT = struct.Struct("<q")
_SIZE = SLOTS * _SLOT.size
_BOOT_BYTES = 64
"""Size of the boot id, which follows the slots and is padded with zeros. Early versions of thawd wrote only zeros."""


class Marks:
    """The marks in a file, which is created if it is missing. Only one process may use the file.

    Attributes:
        left_over: ids of the events that the previous process had marked, if it ran in the current boot.
    """

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            StoreError: the file cannot be used.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # Allocate the file's blocks now. If the disk were full when a mark is set, and the block of that mark
                # were missing, the write to the mapped memory would kill the process (SIGBUS).
                os.posix_fallocate(fd, 0, _SIZE + _BOOT_BYTES)
                os.ftruncate(fd, _SIZE + _BOOT_BYTES)
                self._map = mmap.mmap(fd, _SIZE + _BOOT_BYTES)
            finally:
                os.close(fd)
        except OSError as error:
            raise StoreError(
                f"{path} cannot be used ({error}); check that the disk has free space and that thawd may write to the "
                "file and its folder"
            ) from error
        written_in = self._map[_SIZE:].rstrip(b"\0")
        self.left_over: list[int] = []
        if written_in in (b"", boot_id().encode()):
            self.left_over = [event_id for (event_id,) in _SLOT.iter_unpack(self._map[:_SIZE]) if event_id > 0]
        self._slots: dict[int, int] = {}
        self._free = list(range(SLOTS))

    def clear(self) -> None:
        """Delete the marks of the previous process, which the queue has counted by now; store the current boot id."""
        self._map[:_SIZE] = bytes(_SIZE)
        self._map[_SIZE:] = boot_id().encode().ljust(_BOOT_BYTES, b"\0")
        self.left_over = []

    def set(self, event_id: int) -> None:
        """Mark an event that begins to run."""
        if self._free and event_id not in self._slots:
            self._slots[event_id] = slot = self._free.pop()
            _SLOT.pack_into(self._map, slot * _SLOT.size, event_id)

    def unset(self, event_id: int) -> None:
        """Remove the mark of an event that has stopped running."""
        slot = self._slots.pop(event_id, None)
        if slot is not None:
            _SLOT.pack_into(self._map, slot * _SLOT.size, 0)
            self._free.append(slot)

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()
