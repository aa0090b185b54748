"""Whether the files of an open SQLite database are still where they were opened.

SQLite goes on writing to files that were removed, moved or replaced, and reports success. So the database looks here
before it tells anyone that something is stored. A look is a stat of each file, some 13 µs in all.

Source: sqlite.org/howtocorrupt.html, "Unlinking or renaming a database file while in use".
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from thawd.errors import StoreError

_SUFFIXES = ("", "-wal", "-shm")
LEFT = ".left-"
"""Between the name of a log and the time at which it was left without its database."""


class Whereabouts:
    """The files of one database: itself, its write-ahead log and the index of that.

    Args:
        path: the database, which is open already and in WAL mode.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = [Path(f"{path.absolute()}{suffix}") for suffix in _SUFFIXES]
        self._opened: dict[Path, tuple[int, int]] = {}
        for file in self._files:
            now = _identity(file)
            if now is not None:
                self._opened[file] = now
        # By O_PATH: to close any other descriptor would give up SQLite's locks on the file (fcntl(2), "Record locks").
        flags = os.O_PATH | os.O_CLOEXEC if hasattr(os, "O_PATH") else None
        self._fd = -1 if flags is None else os.open(self._files[0], flags)

    def require(self) -> None:
        """See that the files are where they were opened.

        Raises:
            StoreError: one is not.
        """
        for file in self._files:
            try:
                now = _identity(file)
            except OSError:  # it cannot be told, as in a folder that may not be searched any more
                continue
            known = self._opened.get(file)
            if known is None and now is not None:
                self._opened[file] = now  # SQLite makes the log and its index when they are first needed
            elif known != now:
                raise StoreError(
                    f"{file} was removed, moved or replaced while thawd has it open: nothing is stored in it any more; "
                    "put back the file that was there, or start thawd anew to go on without"
                )

    @property
    def is_elsewhere(self) -> bool:
        """Whether the database's name is not this file's any more: it was removed, moved or replaced."""
        try:
            return _identity(self._files[0]) != self._opened.get(self._files[0])
        except OSError:  # it cannot be told
            return False

    def take_log_away(self, *, folded: bool) -> None:
        """Take the log and its index from beside another database, which SQLite would give to that.

        Args:
            folded: whether the database itself has all that is in the log; else the log is kept by another name.
        """
        for file in self._files[1:]:
            with contextlib.suppress(OSError):
                if _identity(file) != self._opened.get(file, ()):
                    continue
                if folded or file == self._files[2]:
                    file.unlink(missing_ok=True)
                else:
                    file.rename(f"{file}{LEFT}{time.strftime('%Y%m%d-%H%M%S')}")

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _identity(file: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None: there is none of this name."""
    try:
        status = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino
