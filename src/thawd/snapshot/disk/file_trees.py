"""Surveys, copies and syncs folder trees with all properties of their files.

Used by `thawd.snapshot.disk.temporary_folders`. A function's folder may contain anything: symbolic links, hard links,
holes, permissions, times, extended attributes, pipes. Files that cannot be copied exactly are refused with the reason.
Symbolic links are never followed. All functions block. Linux only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from thawd.errors import StoreError

# Source: <linux/fs.h>, FICLONE = _IOW(0x94, 9, int): both files share their blocks until one of them is written.
_FICLONE = 0x40049409
_PIECE_BYTES = 64 << 20
# Extended attributes with which overlayfs marks files that hide other files in a mount. Source: overlayfs.rst.
_MARKS = ("trusted.overlay.", "user.overlay.")
# The kernel's security modules set these attributes themselves. Only a program file's capabilities are copied.
_LABELS = "security."
_CAPABILITY = "security.capability"
_NO_ATTRIBUTES = (errno.EOPNOTSUPP, errno.ENOSYS)
_OPEN_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class DiskRefusedError(StoreError):
    """Copies cannot have the contents of a temporary folder; the message says why and what to do (HTTP 500)."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The contents of a folder, without the folder itself.

    Attributes:
        entries: number of files, folders and other entries.
        stored_bytes: disk space that they take. Hard links to one file count once; holes do not count.
        changed_unix_ns: latest change of any entry or of the folder (``st_ctime_ns``).
    """

    entries: int
    stored_bytes: int
    changed_unix_ns: int


def survey(folder: Path) -> Survey:
    """Survey all entries of a folder.

    Raises:
        DiskRefusedError: an entry cannot be copied exactly.
        OSError: an entry cannot be examined.
    """
    changed_unix_ns = folder.lstat().st_ctime_ns
    entries = stored_bytes = 0
    linked: set[tuple[int, int]] = set()
    for path, status in walk(folder):
        _check(path, status)
        entries += 1
        changed_unix_ns = max(changed_unix_ns, status.st_ctime_ns)
        inode = (status.st_dev, status.st_ino)
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            if inode in linked:
                continue
            linked.add(inode)
        stored_bytes += status.st_blocks * 512
    return Survey(entries, stored_bytes, changed_unix_ns)


def walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Paths and statuses of all entries below a folder; each folder comes before its own entries.

    Raises:
        OSError: a folder cannot be listed.
    """
    folders = [folder]
    while folders:
        with os.scandir(folders.pop()) as children:
            for child in children:
                status = child.stat(follow_symlinks=False)
                yield Path(child.path), status
                if stat.S_ISDIR(status.st_mode):
                    folders.append(Path(child.path))


def _check(path: Path, status: os.stat_result) -> None:
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        raise DiskRefusedError(
            f"{_shown(path)} is a device, which cannot be copied; remove it before the freeze (in a "
            "before-snapshot hook), or set snapshot = false."
        )
    marks = [name for name in _attributes(path) if name.startswith(_MARKS)]
    if marks:
        raise DiskRefusedError(
            f"{_shown(path)} has the extended attribute {marks[0]}, which would hide other files in the copies' "
            "overlay mounts; remove the file before the freeze (in a before-snapshot hook), or set snapshot = false."
        )


def copy(source: Path, target: Path, *, link: bool = False) -> None:
    """Copy a folder's contents into a new or empty folder; the copy shares blocks if the file system can do that.

    Args:
        source: the folder.
        target: the new or empty folder.
        link: whether files and links get second names, with the same inodes, instead of copies.

    Raises:
        DiskRefusedError: an entry cannot be copied exactly.
        OSError: an entry cannot be read or written.
    """
    target.mkdir(stat.S_IRWXU, exist_ok=True)
    folders = [(source, target, source.lstat())]
    linked: dict[tuple[int, int], Path] = {}
    for path, status in walk(source):
        to = target / path.relative_to(source)
        if stat.S_ISDIR(status.st_mode):
            to.mkdir(stat.S_IRWXU)
            folders.append((path, to, status))
            continue
        if link:
            os.link(path, to, follow_symlinks=False)
            continue
        first = linked.setdefault((status.st_dev, status.st_ino), to) if status.st_nlink > 1 else to
        if first != to:
            os.link(first, to, follow_symlinks=False)
            continue
        _copy_one(path, to, status)
        _copy_properties(path, to, status)
    # Folders get their properties last, the innermost first: each new entry changes the time of its folder, and entries
    # could not be added to a folder that is read-only already.
    for path, to, status in reversed(folders):
        _copy_properties(path, to, status)


def _copy_one(path: Path, to: Path, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        to.symlink_to(path.readlink())
    elif stat.S_ISREG(status.st_mode):
        _copy_file(path, to, status)
    elif stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
        os.mknod(to, stat.S_IFMT(status.st_mode) | stat.S_IRWXU)
    else:
        _check(path, status)  # the entry is a device, so this raises


def _copy_file(path: Path, to: Path, status: os.stat_result) -> None:
    source = os.open(path, os.O_RDONLY | _OPEN_FLAGS)
    try:
        target = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN_FLAGS, stat.S_IRUSR | stat.S_IWUSR)
        try:
            try:
                fcntl.ioctl(target, _FICLONE, source)
            except OSError:  # the file system cannot share blocks, or the files are on different file systems
                _copy_data(source, target, status.st_size)
        finally:
            os.close(target)
    finally:
        os.close(source)


def _copy_data(source: int, target: int, size_bytes: int) -> None:
    """Copy a file's data without its holes."""
    os.truncate(target, size_bytes)
    for begin, end in data_ranges(source, size_bytes):
        at = begin
        while at < end:
            copied = _copy_piece(source, target, min(end - at, _PIECE_BYTES), at)
            if not copied:
                return  # the file has become shorter
            at += copied


def data_ranges(fd: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the begin and the end of each range in the file's first `size_bytes` bytes that is no hole."""
    at = 0
    while at < size_bytes:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: a hole reaches up to the file's end
                raise
            return
        end = os.lseek(fd, at, os.SEEK_HOLE)
        yield at, min(end, size_bytes)
        at = end


def _copy_piece(source: int, target: int, piece_bytes: int, at: int) -> int:
    try:
        return os.copy_file_range(source, target, piece_bytes, at, at)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    return os.pwrite(target, os.pread(source, min(piece_bytes, 1 << 20), at), at)


def _copy_properties(path: Path, to: Path, status: os.stat_result) -> None:
    made = to.lstat()
    if (made.st_uid, made.st_gid) != (status.st_uid, status.st_gid):
        try:
            os.chown(to, status.st_uid, status.st_gid, follow_symlinks=False)
        except PermissionError:
            raise DiskRefusedError(
                f"{_shown(path)} belongs to user {status.st_uid}, group {status.st_gid}, and only root could give a "
                "copy that owner; have init leave files with the function's own user and group, or set snapshot = "
                "false."
            ) from None
    for name in _attributes(path):
        if not name.startswith(_LABELS) or name == _CAPABILITY:
            os.setxattr(to, name, os.getxattr(path, name, follow_symlinks=False), follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        to.chmod(stat.S_IMODE(status.st_mode))
    os.utime(to, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)


def _attributes(path: Path) -> list[str]:
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_ATTRIBUTES:
            return []
        raise


def sync(folder: Path) -> None:
    """Sync a folder and all its entries to the disk.

    Raises:
        OSError: an entry cannot be written.
    """
    for path, status in walk(folder):
        if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
            _sync_one(path)
    _sync_one(folder)


def _sync_one(path: Path) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | _OPEN_FLAGS)
    except PermissionError:
        return  # this user cannot read the file, and copies run as the same user
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _shown(path: Path) -> str:
    """A path for messages, in which bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", errors="replace")
