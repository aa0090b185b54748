"""Files and folders that are on the disk with their names: syncing a file keeps neither its own nor its folder's."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO


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


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path`, at once and whole, when all went well; else nothing of it is left.

    After the block it and its name are on the disk. Until then its own name is ``.thawd-…``, which is no object's.

    Raises:
        OSError: it cannot be written.
    """
    staged = path.with_name(f".thawd-{secrets.token_hex(16)}")
    # Not by `tempfile`, whose files only their owner can read: this one gets the rights that any new file gets.
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync_all(path: Path) -> None:
    """Have a file on the disk, or a folder with all files and names in it; links are names only.

    Raises:
        OSError: something cannot be read, or the disk failed.
    """
    if path.is_dir():
        for place, _, names in os.walk(path):
            for inner in (Path(place) / name for name in names):
                if not inner.is_symlink():
                    sync(inner)
            sync(Path(place))
    else:
        sync(path)


def sync(path: Path | bytes) -> None:
    """Have what a file holds, or the names in a folder, on the disk.

    Raises:
        OSError: it cannot be read, or the disk failed.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
