"""The peak memory of a process, read from outside it."""

from __future__ import annotations

import time
from pathlib import Path

_READ_EVERY_S = 0.1


class PeakMemory:
    """Peak resident memory of a process. It is read at most every 100 ms, because a read takes the kernel 15 us."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._kib = 0
        self._read_at_s = 0.0

    def kib(self) -> int:
        """Peak resident memory in KiB. After the process has ended: the last value read; 0 if none could be read."""
        now_s = time.monotonic()
        if self._kib and now_s - self._read_at_s < _READ_EVERY_S:
            return self._kib
        self._read_at_s = now_s
        try:
            text = self._status.read_bytes()
        except OSError:
            return self._kib
        at = text.find(b"VmHWM:")
        if at >= 0:
            self._kib = int(text[at + 6 : at + 40].split()[0])
        return self._kib
