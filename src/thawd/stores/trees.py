"""Code folders as trees of files, folders and links: reads one into a manifest, copies what a manifest lists.

Serves `thawd.stores.packages`, whose module documentation says what belongs to a tree and what is left out. Every error
of the operating system becomes one that names the path and what to do.
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

# Source: <linux/fs.h>, FICLONE = _IOW(0x94, 9, int): the new file shares the blocks of the old until one is written.
_FICLONE = 0x40049409
_CHUNK_BYTES = 1 << 20
# Setuid, setgid and sticky bits have no business in a copy.
_PERMISSIONS = 0o777
_ROOT_PERMISSIONS = 0o755
# Errors of a file that was removed, or replaced by a folder or a link, since it was listed.
_REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


class VanishedError(Exception):
    """A file, folder or link was removed or replaced during a scan or copy: the tree is being changed.

    Attributes:
        path: its path.
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
        size_bytes: size of a file, else 0.
    """

    mode: int
    content: bytes = b""
    size_bytes: int = 0


Manifest = dict[str, Entry]
"""Entries by path relative to the root, which has no entry; a folder comes before its contents."""


class Tree:
    """A folder without what is left out of packages.

    Args:
        root: the folder; links in its path are followed.
        exclude: further files and folders to leave out.

    Raises:
        StoreError: `root` is no folder (HTTP 500).
    """

    def __init__(self, root: Path, *, exclude: Collection[Path] = ()) -> None:
        with _reading(root):
            is_folder = root.is_dir()
        if not is_folder:
            raise StoreError(f"{_shown(root)} is not a folder; the code of a function must be one.")
        self.root = root.resolve()
        self._excluded = {path.resolve() for path in exclude}

    def scan(self) -> Manifest:
        """All entries, with digests of their contents.

        Raises:
            StoreError: a file cannot be read, or a link cannot be copied (HTTP 500).
            VanishedError: a file was removed or replaced meanwhile.
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

    def copy(self, manifest: Manifest, *, target: Path) -> None:
        """Make `target`, a folder that is not there yet, from what `manifest` lists, with contents as they are now.

        Raises:
            StoreError: a file cannot be read or written (HTTP 500).
            StoreFullError: the disk is full (HTTP 503).
            VanishedError: a file was removed or replaced meanwhile.
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
        # Last, and the innermost first: in a folder that may not be written to or entered, nothing can be made.
        for folder, permissions in reversed(folders):
            with storing(folder):
                folder.chmod(permissions)

    def _children(self, folder: Path) -> list[Path]:
        with _reading(folder), os.scandir(folder) as children:
            return sorted(folder / child.name for child in children if not self._stays_out(child))

    def _stays_out(self, child: os.DirEntry[str]) -> bool:
        path = Path(child.path)
        if child.name.endswith(".pyc") or path in self._excluded:
            return True
        # Links that begin with a dot, too: some editors mark an open file by a link that leads nowhere.
        if child.name.startswith(".") and not child.is_file(follow_symlinks=False):
            return True
        # A link is left out where its folder would be, so that a linked virtual environment is no error.
        # Path's is_dir, because an entry's is_dir raises an error for a circle of links.
        if not path.is_dir():
            return False
        if child.name == "__pycache__" or (path / "pyvenv.cfg").exists():
            return True
        return child.is_symlink() and path.resolve() in self._excluded

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
            # Not the mode read above: the file may have been replaced since.
            mode = os.fstat(file.fileno()).st_mode
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size_bytes += len(chunk)
        return Entry(stat.S_IFREG | mode & _PERMISSIONS, digest.digest(), size_bytes)

    def _link_target(self, link: Path) -> str:
        """The target of a link, relative to the link's folder, so that the copied link points into the copy."""
        # Python 3.13 raises OSError for a circle of links, older ones RuntimeError.
        try:
            target = link.resolve(strict=True)
        except FileNotFoundError:
            raise self._bad_link(link, "which does not exist") from None
        except RuntimeError:
            raise self._bad_link(link, "and so round in a circle") from None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise self._bad_link(link, "and so round in a circle") from None
        if not target.is_relative_to(self.root):
            raise self._bad_link(link, f"out of {_shown(self.root)}")
        return os.path.relpath(target, link.parent)

    def _check_link(self, relative: str, entry: Entry, manifest: Manifest) -> None:
        target = os.path.normpath(Path(relative).parent / os.fsdecode(entry.content))
        if target != "." and target not in manifest:
            raise self._bad_link(self.root / relative, "which is not part of a package")

    def _bad_link(self, link: Path, why: str) -> StoreError:
        return StoreError(
            f"{_shown(link)} is a link to {_shown(link.readlink())}, {why}; put the file itself there or remove the "
            "link (a large file may stay where it is: tell the function its path by an environment variable)."
        )


@contextmanager
def _open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading without blocking: it may have been replaced by a pipe or a link."""

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
            # The filesystem cannot share blocks, or these are two filesystems.
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
    """Turn errors of reading `path` into thawd's."""
    try:
        yield
    except OSError as error:
        if error.errno in _REPLACED:
            raise VanishedError(path) from None
        raise _unreadable(path, error) from error


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn errors of writing `path` into thawd's.

    Raises:
        StoreError: it cannot be written (HTTP 500).
        StoreFullError: the disk is full, or the user's share of it (HTTP 503).
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
            "change that folder's permissions, or name another one (`data` in thawd.toml, or THAWD_DATA)."
        ) from error


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{_shown(path)} cannot be read: {error.strerror}; every file in a code folder must be readable by the user "
        "that runs thawd: change its permissions, or move it out of the folder."
    )


def _shown(path: Path) -> str:
    """A path for messages: a name that is not UTF-8 would otherwise make the message unprintable."""
    return os.fsencode(path).decode("utf-8", errors="replace")
