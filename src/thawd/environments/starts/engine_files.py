"""The files of the native engine, and fingerprints of files.

An image's key contains the fingerprints of the engine's files and of the files that the function's variables name. If
one of these files changes, the image is not used again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thawd.snapshot.engine import LIBRARY_NAME, PROGRAM_NAME, native_folder, unavailable


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

    def fingerprints(self) -> list[tuple[str, int, int, int] | None]:
        """Return the fingerprints of both files: they change when a file is replaced. Blocks."""
        return [fingerprint(self.freezer), fingerprint(self.program)]


def fingerprint(path: Path) -> tuple[str, int, int, int] | None:
    """Return the path, size, modification time in nanoseconds and inode of a file; None if it cannot be examined."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return str(path), status.st_size, status.st_mtime_ns, status.st_ino
