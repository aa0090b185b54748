"""Folders whose names are on the disk: syncing a file does not keep its name, nor that of the folder it is in."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def make(folder: Path, *, mode: int = 0o777) -> None:
    """Make a folder and those above it that are missing, durably.

    Args:
        folder: it; nothing happens when it is there.
        mode: of the folder itself, before the umask.

    Raises:
        OSError: it cannot be made.
    """
    if folder.is_dir():
        return
    make(folder.parent)
    folder.mkdir(mode=mode, exist_ok=True)
    with contextlib.suppress(PermissionError):  # of a folder above that may be written and not be read
        sync(folder.parent)


def sync(folder: Path) -> None:
    """Have the names in a folder on the disk.

    Raises:
        OSError: it cannot be read, or the disk failed.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
