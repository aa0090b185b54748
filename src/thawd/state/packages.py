"""Deployment packages: immutable copies of code folders, each under the digest of its content.

A version runs from such a copy, so that it never sees half of an edit, and a folder that has not changed is not copied
again. Knows nothing of functions, and never writes into the folder it copies.

What goes in: regular files and folders with their permissions, and links that point within the folder (they are kept
as links, relative ones). What stays out: folders whose name begins with a dot, ``__pycache__``, ``*.pyc``, virtual
environments, sockets, pipes and devices, and what the caller excludes. A link that leads nowhere, out of the folder or
to something left out is an error: a copy with a hole in it would fail later, and elsewhere.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from thawd.errors import StoreError, StoreFullError

# Source: <linux/fs.h>, FICLONE = _IOW(0x94, 9, int): the new file shares the blocks of the old until one is written.
_FICLONE = 0x40049409
_CHUNK_BYTES = 1 << 20
# Setuid, setgid and sticky bits mean nothing in a copy owned by the user of thawd.
_PERMISSIONS = 0o777
_COPY_ATTEMPTS = 3
_UNFINISHED = ".new-"
_DISCARDED = ".old-"


@dataclass(frozen=True, slots=True)
class Package:
    """A code folder as it was when published.

    Attributes:
        sha256: digest of paths, permissions and contents, 64 hexadecimal digits.
        path: the copy, absolute; not to be written to.
        size_bytes: sum of the sizes of its files.
    """

    sha256: str
    path: Path
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Entry:
    """One file, folder or link of a tree.

    Attributes:
        mode: file type and permissions, as in ``st_mode``.
        content: SHA-256 of a file's bytes, target of a link, empty for a folder.
        size_bytes: size of a file, else 0.
    """

    mode: int
    content: bytes
    size_bytes: int


_Manifest = dict[str, _Entry]
"""Entries by path relative to the root of the tree."""


class PackageStore:
    """Packages under one folder; may be used by several threads and processes at once.

    Args:
        root: folder of the packages; made when missing, at the first publishing.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._trusted: set[str] = set()

    def publish(self, code: Path, *, exclude: Collection[Path] = ()) -> Package:
        """Copy `code`, unless a package of the same content is there already. Blocking; meant for a thread.

        Args:
            code: the folder; links in the path to it are followed.
            exclude: files and folders within `code` that stay out, for example the data folder and buckets.

        Raises:
            StoreError: something cannot be read, copied or written, or changes all the time (HTTP 500).
            StoreFullError: the disk is full; nothing was kept (HTTP 503).
        """
        tree = _Tree(code, exclude=exclude)
        changed = ""
        for _ in range(_COPY_ATTEMPTS):
            manifest = tree.scan()
            package = self._package(manifest)
            if self._has(package):
                return package
            copy = self._copy(tree, manifest)
            if copy == manifest:
                return package
            changed = min(path for path in copy.keys() | manifest.keys() if copy.get(path) != manifest.get(path))
        raise StoreError(
            f"{tree.root / changed} was written to during each of {_COPY_ATTEMPTS} attempts to copy {tree.root}; "
            "publish when nothing writes there, and keep what a function writes in another folder "
            "(or one whose name begins with a dot)."
        )

    def remove_except(self, keep: set[str]) -> None:
        """Remove the packages whose digests are not in `keep`, and what publishers left behind that died.

        No version may run from a package that is not kept: the caller knows, this store does not.

        Raises:
            StoreError: the folder of the packages cannot be read or written (HTTP 500).
        """
        with _storing(self._root):
            names = os.listdir(self._root) if self._root.exists() else []
            for name in names:
                path = self._root / name
                if name.startswith((_UNFINISHED, _DISCARDED)):
                    if not _in_use(path):
                        _remove_tree(path)
                elif name not in keep:
                    self._trusted.discard(name)
                    self._discard(path)

    def _package(self, manifest: _Manifest) -> Package:
        digest = _digest(manifest)
        return Package(digest, self._root / digest, sum(entry.size_bytes for entry in manifest.values()))

    def _has(self, package: Package) -> bool:
        """Whether the package is there and whole.

        A power cut can leave a folder whose files were never written out, and people edit what they find: the first
        time in its life a store does not take a package's name for its content.
        """
        if not package.path.is_dir():
            return False
        if package.sha256 not in self._trusted:
            if _digest(_Tree(package.path).scan()) != package.sha256:
                with _storing(self._root):
                    self._discard(package.path)
                return False
            self._trusted.add(package.sha256)
        return True

    def _copy(self, tree: _Tree, manifest: _Manifest) -> _Manifest:
        """Copy what `manifest` lists; the copy becomes a package if it is the same, and its manifest is returned."""
        with _storing(self._root):
            self._root.mkdir(parents=True, exist_ok=True)
            unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self._root))
            lock = os.open(unfinished, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Held until the folder has its final name: it tells remove_except that somebody is at work here.
            fcntl.flock(lock, fcntl.LOCK_EX)
            target = unfinished / "package"
            tree.copy(manifest, target=target)
            copied = _Tree(target).scan()
            if copied == manifest:
                with _storing(target):
                    self._install(target, _digest(copied))
            return copied
        finally:
            os.close(lock)
            _remove_tree(unfinished)

    def _install(self, copy: Path, digest: str) -> None:
        mode = copy.stat().st_mode
        # To move a folder is to write its "..", which a folder that may not be written to does not allow.
        copy.chmod(mode | stat.S_IRWXU)
        try:
            copy.rename(self._root / digest)
        except OSError as error:
            # Somebody else published the same content in the meantime; theirs is as good.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        (self._root / digest).chmod(mode)
        self._trusted.add(digest)

    def _discard(self, path: Path) -> None:
        """Remove a package; it is moved aside first, so that nobody ever meets half of one."""
        aside = Path(tempfile.mkdtemp(prefix=_DISCARDED, dir=self._root))
        if path.is_dir() and not path.is_symlink():
            path.chmod(stat.S_IRWXU)
        path.rename(aside / "package")
        _remove_tree(aside)


class _Tree:
    """A folder as a source of packages, without what stays out.

    Args:
        root: the folder.
        exclude: files and folders that stay out.
    """

    def __init__(self, root: Path, *, exclude: Collection[Path] = ()) -> None:
        with _reading(root):
            self.root = root.resolve(strict=True)
            self._excluded = {path.resolve() for path in exclude}

    def scan(self) -> _Manifest:
        """All entries with their contents' digests."""
        manifest: _Manifest = {}
        for path in self._walk(self.root):
            relative = str(path.relative_to(self.root))
            with _reading(path):
                entry = self._entry(path)
            if entry is not None:
                manifest[relative] = entry
        for relative, entry in manifest.items():
            if stat.S_ISLNK(entry.mode):
                self._check_link(relative, manifest)
        return manifest

    def copy(self, manifest: _Manifest, *, target: Path) -> None:
        """Make `target`, a folder that is not there yet, with the entries of `manifest`, as they are now."""
        folders: list[tuple[Path, int]] = []
        for relative, entry in manifest.items():
            copy = target / relative
            if stat.S_ISDIR(entry.mode):
                with _storing(copy):
                    copy.mkdir(stat.S_IRWXU)
                folders.append((copy, entry.mode & _PERMISSIONS))
            elif stat.S_ISLNK(entry.mode):
                with _storing(copy):
                    copy.symlink_to(os.fsdecode(entry.content))
            else:
                _copy_file(self.root / relative, copy)
        # Last, as nothing can be made in a folder that may not be written to.
        for folder, permissions in reversed(folders):
            with _storing(folder):
                folder.chmod(permissions)

    def _walk(self, folder: Path) -> Iterator[Path]:
        yield folder
        with _reading(folder):
            children = sorted(os.scandir(folder), key=lambda child: os.fsencode(child.name))
        for child in children:
            path = Path(child.path)
            if self._stays_out(path):
                continue
            with _reading(path):
                is_folder = child.is_dir(follow_symlinks=False)
            if is_folder:
                yield from self._walk(path)
            else:
                yield path

    def _stays_out(self, path: Path) -> bool:
        if path.name.endswith(".pyc") or path in self._excluded:
            return True
        if not path.is_dir():
            return False
        # A link to a folder stays out on the same terms, so that a linked virtual environment is no error.
        is_named_so = path.name.startswith(".") or path.name == "__pycache__"
        return is_named_so or (path / "pyvenv.cfg").exists() or path.resolve() in self._excluded

    def _entry(self, path: Path) -> _Entry | None:
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            return _Entry(stat.S_IFDIR | mode & _PERMISSIONS, b"", 0)
        if stat.S_ISLNK(mode):
            return _Entry(stat.S_IFLNK, os.fsencode(self._link_target(path)), 0)
        if not stat.S_ISREG(mode):
            return None
        digest = hashlib.sha256()
        size_bytes = 0
        with _open_regular(path) as file:
            # Not the mode seen above: the file may have been replaced since.
            mode = os.fstat(file.fileno()).st_mode
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size_bytes += len(chunk)
        return _Entry(stat.S_IFREG | mode & _PERMISSIONS, digest.digest(), size_bytes)

    def _link_target(self, link: Path) -> str:
        """Where a link points, relative to the link's own folder, so that the copy's link points into the copy."""
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
            raise self._bad_link(link, f"outside of {self.root}")
        return os.path.relpath(target, link.parent)

    def _check_link(self, relative: str, manifest: _Manifest) -> None:
        link = self.root / relative
        target = os.path.normpath(os.path.join(os.path.dirname(relative), os.fsdecode(manifest[relative].content)))
        if target not in manifest:
            raise self._bad_link(link, "which is not part of the package")

    def _bad_link(self, link: Path, why: str) -> StoreError:
        return StoreError(
            f"{link} is a link to {os.readlink(link)}, {why}; put the file itself there, "
            "remove the link, or give the file's own path in the function's environment variables."
        )


def _digest(manifest: _Manifest) -> str:
    digest = hashlib.sha256(b"thawd package 1\n")
    for path, entry in sorted((os.fsencode(path), entry) for path, entry in manifest.items()):
        for part in (path, b"%o" % entry.mode, entry.content):
            # The length keeps two parts from being read as one.
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
