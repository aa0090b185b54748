"""Writes files and folders durably, including their names: syncing a file does not sync its name in its folder."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def make(folder: Path, *, mode: int = 0o777) -> None:
    """Create a folder and its missing parents, durably.

    Args:
        folder: the folder; an existing one is not changed.
        mode: mode of the folder itself, before the umask.

    Raises:
        OSError: the folder cannot be created.
    """
    if folder.is_dir():
        return
    make(folder.parent)
    folder.mkdir(mode=mode, exist_ok=True)
    with contextlib.suppress(PermissionError):  # the parent may be writable but not readable
        sync(folder.parent)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file that atomically replaces `path` at the end of the ``with`` block.

    After the block, the file and its name are on the disk. Until then its name is ``.thawd-…``, which bucket objects
    cannot have. If the block raises an exception, the file is removed.

    Raises:
        OSError: the file cannot be written.
    """
    staged = path.with_name(f".thawd-{secrets.token_hex(16)}")
    # `tempfile` is not used, because only the owner can read its files. This file gets the usual permissions.
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
    """Sync a file, or a folder with all files and names in it. Links are not followed: only their names are synced.

    Raises:
        OSError: a file cannot be read, or the disk failed.
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
    """Sync the contents of a file, or the names in a folder.

    Raises:
        OSError: the file or folder cannot be read, or the disk failed.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
