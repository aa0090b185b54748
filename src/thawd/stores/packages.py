"""Deployment packages: immutable copies of code folders, each named by the digest of its content.

A version runs from such a copy, so that it never sees half of an edit, and a folder that has not changed is not copied
again. Knows nothing of functions, and never writes into the folder it copies.

A package contains regular files and folders with their permissions, and links that point within the folder (as relative
links). Left out are folders and links whose name begins with a dot, ``__pycache__``, ``*.pyc``, virtual environments,
sockets, pipes and devices, and what the caller excludes. A link that leads nowhere, out of the folder or to something
left out is an error: a copy without its target would fail later, and elsewhere.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from thawd.errors import StoreError
from thawd.stores.trees import Manifest, Tree, VanishedError, storing

_ATTEMPTS = 3
_PAUSE_S = 0.2
_UNFINISHED = ".new-"
_DISCARDED = ".old-"
_ABANDONED_AFTER_S = 3600.0


@dataclass(frozen=True, slots=True)
class Package:
    """A code folder as it was when published.

    Attributes:
        sha256: digest of paths, permissions and contents, 64 hexadecimal digits.
        path: the copy, absolute; it must not be written to.
        size_bytes: sum of the sizes of its files.
    """

    sha256: str
    path: Path
    size_bytes: int


class PackageStore:
    """Packages in one folder. Several threads and processes may use it at the same time.

    Args:
        root: folder of the packages; made at the first publishing when it is missing.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        # Digests of packages that this store has made or checked itself.
        self._trusted: set[str] = set()

    def publish(self, code: Path, *, exclude: Collection[Path] = ()) -> Package:
        """Copy `code`, unless a package of the same content is there already. Blocking: call it in a thread.

        The copy is read back. Where it differs from what the folder held before, the folder was written to meanwhile
        and the copy may mix old and new files: it is deleted and made again.

        Args:
            code: the folder.
            exclude: files and folders within `code` that stay out, for example the data folder and buckets.

        Raises:
            StoreError: a file cannot be read, copied or written, or the folder changes all the time (HTTP 500).
            StoreFullError: the disk is full; nothing was stored (HTTP 503).
        """
        tree = Tree(code, exclude=[*exclude, self._root])
        changed = tree.root
        for attempt in range(_ATTEMPTS):
            # Editors save by a few quick renames: the next look is likely to find the folder at rest.
            time.sleep(_PAUSE_S * attempt)
            try:
                manifest = tree.scan()
                package = self._package(manifest)
                if self._has(package):
                    return package
                copied = self._copy(tree, manifest)
            except VanishedError as error:
                changed = error.path
                continue
            if copied == manifest:
                return package
            differing = {path for path, _ in copied.items() ^ manifest.items()}
            changed = tree.root / min(differing)
        raise StoreError(
            f"{changed} was written to during each of {_ATTEMPTS} attempts to copy {tree.root}; publish when nothing "
            "writes there, and keep what a function writes out of its code folder, "
            "or in a folder there whose name begins with a dot."
        )

    def distrust(self) -> None:
        """Check the contents of packages again when they are next published; a damaged one is replaced."""
        self._trusted.clear()

    def remove_except(self, keep: Callable[[str], bool]) -> None:
        """Remove the packages for whose names `keep` is false, and what publishers that died left behind.

        The caller makes sure that nothing runs from a package that is removed, and that none is just being published.

        Raises:
            StoreError: the folder of the packages cannot be read or written (HTTP 500).
        """
        with storing(self._root):
            for path in list(self._root.iterdir()) if self._root.exists() else []:
                if path.name.startswith(_DISCARDED) or (path.name.startswith(_UNFINISHED) and _is_abandoned(path)):
                    _remove(path)
                elif not path.name.startswith(_UNFINISHED) and not keep(path.name):
                    self._discard(path)

    def _package(self, manifest: Manifest) -> Package:
        digest = _digest(manifest)
        return Package(digest, self._root / digest, sum(entry.size_bytes for entry in manifest.values()))

    def _has(self, package: Package) -> bool:
        """Whether the package exists and is complete.

        A power failure can leave a folder whose files were never written, and functions may write into it: the first
        time, a store checks that a package's content matches its name.
        """
        if not package.path.is_dir():
            return False
        if package.sha256 in self._trusted:
            return True
        try:
            content = _digest(Tree(package.path).scan())
        except (StoreError, VanishedError):
            content = ""
        if content == package.sha256:
            self._trusted.add(package.sha256)
            return True
        with storing(self._root):
            self._discard(package.path)
        return False

    def _copy(self, tree: Tree, manifest: Manifest) -> Manifest:
        """Copy what `manifest` lists; returns the copy's manifest. Where both are equal, the copy becomes a package."""
        with storing(self._root):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self._root))
        try:
            tree.copy(manifest, target=unfinished / "package")
            copied = Tree(unfinished / "package").scan()
            if copied == manifest:
                with storing(self._root):
                    self._install(unfinished / "package", digest=_digest(copied))
            return copied
        finally:
            _remove(unfinished)

    def _install(self, copy: Path, *, digest: str) -> None:
        try:
            copy.rename(self._root / digest)
        except OSError as error:
            # Another process published the same content meanwhile: its package is used.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        self._trusted.add(digest)

    def _discard(self, package: Path) -> None:
        """Remove a package. It is renamed first, so that no process finds half of one."""
        self._trusted.discard(package.name)
        aside = Path(tempfile.mkdtemp(prefix=_DISCARDED, dir=self._root))
        try:
            package.rename(aside / "package")
        except FileNotFoundError:
            pass  # another process was faster
        _remove(aside)


def _digest(manifest: Manifest) -> str:
    digest = hashlib.sha256(b"thawd package 1\n")
    for path, entry in sorted((os.fsencode(path), entry) for path, entry in manifest.items()):
        for part in (path, b"%o" % entry.mode, entry.content):
            # With its length before it, no part can be taken for two.
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _is_abandoned(unfinished: Path) -> bool:
    try:
        return time.time() - unfinished.stat().st_mtime > _ABANDONED_AFTER_S
    except FileNotFoundError:
        return False


def _remove(tree: Path) -> None:
    """Remove a folder, as far as that is possible; the next `PackageStore.remove_except` removes the rest."""
    for folder, _, _ in os.walk(tree):
        try:
            # Copied permissions may forbid removing the files in a folder.
            Path(folder).chmod(stat.S_IRWXU)
        except OSError:
            continue
    shutil.rmtree(tree, ignore_errors=True)
