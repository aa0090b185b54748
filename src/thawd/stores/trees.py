"""Code folders as trees of files, folders and links: lists a folder in a manifest, and copies what a manifest lists.

`thawd.stores.code_copies` uses this module. The docstring of that module says what belongs to a tree and what is left
out. Every error of the operating system is turned into an error that names the path and says what to do.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from thawd.errors import StoreError, StoreFullError
from thawd.stores.ignored_files import NAME, IgnoredFiles

# Source: <linux/fs.h>, FICLONE = _IOW(0x94, 9, int): the new file shares the old file's blocks until either is written.
_FICLONE = 0x40049409
_CHUNK_BYTES = 1 << 20
# The permissions that a copy may have: no setuid, setgid or sticky bit.
_PERMISSIONS = 0o777
_ROOT_PERMISSIONS = 0o755
# Errors that mean: since the file was listed, it was removed, or replaced with a folder or a link.
_REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


class VanishedError(Exception):
    """A file, folder or link was removed or replaced during a scan or copy, so somebody is changing the tree.

    Attributes:
        path: path of the file, folder or link.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One file, folder or link of a tree.

    Attributes:
        mode: type and permissions, as in ``st_mode``.
        content: SHA-256 of a file's bytes, target of a link, empty for a folder.
        size_bytes: size of a file; 0 for a folder or link.
    """

    mode: int
    content: bytes = b""
    size_bytes: int = 0


Manifest = dict[str, Entry]
"""Entries by path relative to the root. The root has no entry; a folder comes before its contents."""


class Tree:
    """A code folder, without the files and folders that are left out of packages.

    Args:
        root: the folder; links in its path are followed.
        exclude: further files and folders to leave out.
        is_whole: whether nothing is left out but sockets, pipes and devices.

    Raises:
        StoreError: `root` is not a folder (HTTP 500).
    """

    def __init__(self, root: Path, *, exclude: Collection[Path] = (), is_whole: bool = False) -> None:
        with _reading(root):
            is_folder = root.is_dir()
        if not is_folder:
            raise StoreError(f"{_shown(root)} is not a folder; the code of a function must be a folder.")
        self.root = root.resolve()
        self._excluded = {path.resolve() for path in exclude}
        self._is_whole = is_whole
        self._ignored = None if is_whole else IgnoredFiles.of(self.root)

    def scan(self) -> Manifest:
        """All entries, with digests of their contents.

        Raises:
            StoreError: a file cannot be read, or a link cannot be copied (HTTP 500).
            VanishedError: a file was removed or replaced during the scan.
        """
        manifest: Manifest = {}
        folders = [self.root]
        while folders:
            for path in self._children(folders.pop()):
                with _reading(path):
                    entry = self._entry(path)
                if entry is None:
                    continue
                manifest[str(path.relative_to(self.root))] = entry
                if stat.S_ISDIR(entry.mode):
                    folders.append(path)
        for relative, entry in manifest.items():
            if stat.S_ISLNK(entry.mode):
                self._check_link(relative, entry, manifest)
        return manifest

    def contains(self, path: Path) -> bool:
        """Whether a file or folder within the code folder is in copies of it.

        Raises:
            StoreError: a folder cannot be read (HTTP 500).
        """
        folder = self.root
        for part in path.relative_to(folder).parts:
            if folder / part not in self._children(folder):
                return False
            folder /= part
        return True

    def copy(self, manifest: Manifest, *, target: Path) -> None:
        """Create the new folder `target`, and copy everything in `manifest` into it, with the current contents.

        Raises:
            StoreError: a file cannot be read or written (HTTP 500).
            StoreFullError: the disk is full (HTTP 503).
            VanishedError: a file was removed or replaced during the copy.
        """
        folders = [(target, _ROOT_PERMISSIONS)]
        with storing(target):
            target.mkdir(stat.S_IRWXU)
        for relative, entry in manifest.items():
            copy = target / relative
            if stat.S_ISREG(entry.mode):
                with _reading(self.root / relative), _open_regular(self.root / relative) as file:
                    _copy_file(file, copy)
                continue
            with storing(copy):
                if stat.S_ISDIR(entry.mode):
                    copy.mkdir(stat.S_IRWXU)
                    folders.append((copy, entry.mode & _PERMISSIONS))
                else:
                    copy.symlink_to(os.fsdecode(entry.content))
        # Set permissions last, innermost folders first: nothing can be created in a folder without write permission.
        for folder, permissions in reversed(folders):
            with storing(folder):
                folder.chmod(permissions)

    def _children(self, folder: Path) -> list[Path]:
        with _reading(folder), os.scandir(folder) as children:
            return sorted(folder / child.name for child in children if not self._stays_out(child))

    def _stays_out(self, child: os.DirEntry[str]) -> bool:
        path = Path(child.path)
        if self._is_whole:
            return False
        if child.name.endswith(".pyc") or child.name == NAME or path in self._excluded or self._is_ignored(child):
            return True
        # Links that begin with a dot are left out, too: some editors mark an open file with a link to nothing.
        if child.name.startswith(".") and not child.is_file(follow_symlinks=False):
            return True
        # A link to a folder is left out if the folder itself would be, so that a linked virtual environment causes no
        # error. `Path.is_dir` is used, because `DirEntry.is_dir` raises an error for a circle of links.
        if not path.is_dir():
            return False
        if child.name == "__pycache__" or (path / "pyvenv.cfg").exists():
            return True
        return child.is_symlink() and path.resolve() in self._excluded

    def _is_ignored(self, child: os.DirEntry[str]) -> bool:
        if self._ignored is None:
            return False
        relative = Path(child.path).relative_to(self.root).as_posix()
        return self._ignored.leave_out(relative, is_folder=child.is_dir(follow_symlinks=False))

    def _entry(self, path: Path) -> Entry | None:
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            return Entry(stat.S_IFDIR | mode & _PERMISSIONS)
        if stat.S_ISLNK(mode):
            return Entry(stat.S_IFLNK, os.fsencode(self._link_target(path)))
        if not stat.S_ISREG(mode):
            return None
        digest = hashlib.sha256()
        size_bytes = 0
        with _open_regular(path) as file:
            # Read the mode again, because the file may have been replaced since the mode above was read.
            mode = os.fstat(file.fileno()).st_mode
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size_bytes += len(chunk)
        return Entry(stat.S_IFREG | mode & _PERMISSIONS, digest.digest(), size_bytes)

    def _link_target(self, link: Path) -> str:
        """The target of a link, relative to the link's folder, so that the copied link points into the copy."""
        # For a circle of links, Python 3.13 raises OSError, and older versions raise RuntimeError.
        try:
            target = link.resolve(strict=True)
        except FileNotFoundError:
            raise self._bad_link(link, "which does not exist") from None
        except RuntimeError:
            raise self._bad_link(link, "which leads round in a circle") from None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise self._bad_link(link, "which leads round in a circle") from None
        if not target.is_relative_to(self.root):
            raise self._bad_link(link, f"which is outside {_shown(self.root)}")
        return os.path.relpath(target, link.parent)

    def _check_link(self, relative: str, entry: Entry, manifest: Manifest) -> None:
        target = os.path.normpath(Path(relative).parent / os.fsdecode(entry.content))
        if target != "." and target not in manifest:
            raise self._bad_link(self.root / relative, "which is not part of a package")

    def _bad_link(self, link: Path, why: str) -> StoreError:
        return StoreError(
            f"{_shown(link)} is a link to {_shown(link.readlink())}, {why}; put the file itself there or remove the "
            "link (a large file can stay where it is: pass its path to the function in an environment variable)."
        )


@contextmanager
def _open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading. If it has been replaced with a pipe or a link, this raises an error at once."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)

    with open(path, "rb", opener=opener) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise VanishedError(path)
        yield file


def _copy_file(source: BinaryIO, copy: Path) -> None:
    permissions = os.fstat(source.fileno()).st_mode & _PERMISSIONS
    with storing(copy), open(copy, "xb") as target:
        try:
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
        except OSError:
            # The file system cannot share blocks, or the two files are on different file systems.
            while chunk := _read(source, copy):
                target.write(chunk)
        os.fchmod(target.fileno(), permissions)


def _read(source: BinaryIO, copy: Path) -> bytes:
    try:
        return source.read(_CHUNK_BYTES)
    except OSError as error:
        raise _unreadable(Path(source.name), error) from error


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn operating system errors of reading `path` into thawd's errors."""
    try:
        yield
    except OSError as error:
        if error.errno in _REPLACED:
            raise VanishedError(path) from None
        raise _unreadable(path, error) from error


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn operating system errors of writing `path` into thawd's errors.

    Raises:
        StoreError: `path` cannot be written (HTTP 500).
        StoreFullError: the disk is full, or the user's disk quota is used up (HTTP 503).
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = (
                f"{_shown(path)} cannot be written: {error.strerror}; free some space on that disk, then try again."
            )
            raise StoreFullError(message) from error
        raise StoreError(
            f"{_shown(path)} cannot be written: {error.strerror}; thawd must be allowed to write to its data folder: "
            "change that folder's permissions, or set another data folder (`data` in thawd.toml, or THAWD_DATA)."
        ) from error


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{_shown(path)} cannot be read: {error.strerror}; every file in a code folder must be readable by the user "
        "that runs thawd: change its permissions, or move it out of the folder."
    )


def _shown(path: Path) -> str:
    """A path as text for messages. Bytes that are not UTF-8 are replaced, because they could not be printed."""
    return os.fsencode(path).decode("utf-8", errors="replace")
