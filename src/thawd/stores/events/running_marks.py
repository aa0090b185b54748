"""Which events run at this moment, noted where it outlives the process but not the machine.

An event that takes the whole server down with it would come back at each start, for ever. So events that run are marked
in a memory-mapped file: to mark one is a store to memory, and after a crash of the process the kernel still has the
mark. A power failure loses the marks, and should: no event caused it.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from thawd.errors import StoreError

SLOTS = 1024
"""Most events marked at the same time; further ones go unmarked."""
_SLOT = struct.Struct("<q")
_SIZE = SLOTS * _SLOT.size


class Marks:
    """The marks in a file, which is made when missing. Only one process may use the file.

    Attributes:
        left_over: ids of the events that the process before this one had marked.
    """

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            StoreError: it cannot be used.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # Allocated, not only sized: a store to a hole on a full disk would end the process.
                os.posix_fallocate(fd, 0, _SIZE)
                os.ftruncate(fd, _SIZE)
                self._map = mmap.mmap(fd, _SIZE)
            finally:
                os.close(fd)
        except OSError as error:
            raise StoreError(f"{path}: cannot be used ({error}); free some space or mend its folder") from error
        self.left_over = [event_id for (event_id,) in _SLOT.iter_unpack(self._map[:]) if event_id > 0]
        self._slots: dict[int, int] = {}
        self._free = list(range(SLOTS))

    def clear(self) -> None:
        """Delete the marks left over from the process before: they have been counted."""
        self._map[:] = bytes(_SIZE)
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
