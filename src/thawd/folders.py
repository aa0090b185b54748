"""Files and folders that are on the disk with their names: syncing a file keeps neither its own nor its folder's."""

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


def sync_all(path: Path) -> None:
    """Have a file on the disk, or a folder with all files and names in it.

    Raises:
        OSError: something cannot be read, or the disk failed.
    """
    if path.is_dir():
        for place, _, names in os.walk(path):
            for name in names:
                sync(Path(place) / name)
            sync(Path(place))
    else:
        sync(path)


def sync(path: Path) -> None:
    """Have what a file holds, or the names in a folder, on the disk.

    Raises:
        OSError: it cannot be read, or the disk failed.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
