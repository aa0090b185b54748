"""The files of the native engine, and fingerprints of files.

An image's key contains the digests of the engine's files, and the fingerprints of the files that the function's
variables name. If one of these files changes, the image is not used again. An engine with the same content at the same
path is the same engine, also on another machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thawd.errors import StoreError
from thawd.snapshot.engine import LIBRARY_NAME, PROGRAM_NAME, native_folder, unavailable
from thawd.snapshot.store.file_digests import FileDigests

_DIGESTS = FileDigests()


class NoEngineError(Exception):
    """This machine cannot freeze and thaw; the message says why."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The two files of the native engine.

    Attributes:
        freezer: shared object that freezes the process which loads it.
        program: thawd-thaw, which becomes the process that was frozen.
    """

    freezer: Path
    program: Path

    @classmethod
    def find(cls) -> Engine:
        """Return the engine's files, which are in the folder of thawd's native module.

        Raises:
            NoEngineError: the engine does not support this machine, or was not built.
        """
        folder = native_folder()
        if (reason := unavailable(folder)) is not None:
            raise NoEngineError(reason)
        assert folder is not None
        return cls(Path(folder) / LIBRARY_NAME, Path(folder) / PROGRAM_NAME)

    def digests(self) -> list[tuple[str, str] | None]:
        """Return path and SHA-256 of both files; None for one that cannot be read. Blocks."""
        return [_digest(self.freezer), _digest(self.program)]


def _digest(path: Path) -> tuple[str, str] | None:
    try:
        return str(path), _DIGESTS.of(path)[1]
    except StoreError:
        return None


def fingerprint(path: Path) -> tuple[str, int, int, int] | None:
    """Return the path, size, modification time in nanoseconds and inode of a file; None if it cannot be examined."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return str(path), status.st_size, status.st_mtime_ns, status.st_ino
