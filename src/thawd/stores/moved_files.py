"""Checks that the files of an open SQLite database are still where they were opened.

SQLite goes on writing to files that were removed, moved or replaced, and reports success. So the database checks them
before it reports that something is stored. A check is a stat of each file, some 13 µs in all.

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
"""Stands between a log's name and the time at which its database was moved away, in the name of a log set aside."""


class Whereabouts:
    """The files of one database: the file itself, its write-ahead log and the log's index.

    Args:
        path: the database file, which is open already and in WAL mode.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = [Path(f"{path.absolute()}{suffix}") for suffix in _SUFFIXES]
        self._opened: dict[Path, tuple[int, int]] = {}
        for file in self._files:
            now = _identity(file)
            if now is not None:
                self._opened[file] = now
        # By O_PATH: closing any other descriptor would release SQLite's locks on the file (fcntl(2), "Record locks").
        flags = os.O_PATH | os.O_CLOEXEC if hasattr(os, "O_PATH") else None
        self._fd = -1 if flags is None else os.open(self._files[0], flags)

    def require(self) -> None:
        """Check that the files are where they were opened.

        Raises:
            StoreError: a file is not.
        """
        for file in self._files:
            try:
                now = _identity(file)
            except OSError:  # it cannot be checked, as in a folder that may not be searched any more
                continue
            known = self._opened.get(file)
            if known is None and now is not None:
                self._opened[file] = now  # SQLite makes the log and its index at their first use
            elif known != now:
                raise StoreError(
                    f"{file} was removed, moved or replaced while thawd has it open: nothing is stored in it any more; "
                    "put back the file that was there, or restart thawd to go on without it"
                )

    @property
    def is_elsewhere(self) -> bool:
        """Whether the database file was removed, moved or replaced, so that its name is another file's or none's."""
        try:
            return _identity(self._files[0]) != self._opened.get(self._files[0])
        except OSError:  # it cannot be checked
            return False

    def take_log_away(self, *, folded: bool) -> None:
        """Remove the log and its index from beside another database, to which SQLite would apply them.

        Args:
            folded: whether the database file has all that is in the log; else the log is renamed instead.
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
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _identity(file: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None: no file has this name."""
    try:
        status = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino
