"""Deployment packages: immutable copies of code folders, each named by the digest of its content.

A version runs from such a copy, so that it never sees a half-finished edit. A folder that has not changed is not copied
again. This module does not know about functions, and never writes into the folder that it copies.

A package contains regular files and folders with their permissions, and links that point within the folder (as relative
links). The following is left out: folders and links with a name that begins with a dot, ``__pycache__``, ``*.pyc``,
virtual environments, sockets, pipes, devices, and what the caller excludes. A link to nothing, to something outside the
folder or to something left out is an error, because a copy without the link's target would fail later. A package that
`PackageStore.publish_made` has made contains everything.
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
# How the names of folders begin while they are being filled, and while they are being removed.
_UNFINISHED = ".new-"
_DISCARDED = ".old-"
# An unfinished folder older than this belongs to a process that has died.
_ABANDONED_AFTER_S = 3600.0


@dataclass(frozen=True, slots=True)
class Package:
    """A copy of a code folder, as the folder was when it was published.

    Attributes:
        sha256: digest of paths, permissions and contents, 64 hexadecimal digits.
        path: absolute path of the copy, which must not be written to.
        size_bytes: sum of the sizes of its files.
    """

    sha256: str
    path: Path
    size_bytes: int


class PackageStore:
    """Packages in one folder. Several threads and processes may use it at the same time.

    Args:
        root: folder of the packages; if it is missing, the first `publish` creates it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        # Digests of packages that this object has made or checked itself.
        self._trusted: set[str] = set()

    def publish(self, code: Path, *, exclude: Collection[Path] = ()) -> Package:
        """Copy `code`, unless a package with the same content exists already. Blocks: call it in a thread.

        The copy is read back. If it differs from the content that the folder had before, somebody wrote to the folder
        in the meantime, and the copy may mix old and new files. It is then deleted and made again.

        Args:
            code: the folder.
            exclude: files and folders within `code` to leave out, for example the data folder and buckets.

        Raises:
            StoreError: a file cannot be read, copied or written, or the folder keeps changing (HTTP 500).
            StoreFullError: the disk is full; nothing was stored (HTTP 503).
        """
        tree = Tree(code, exclude=[*exclude, self._root])
        changed = tree.root
        for attempt in range(_ATTEMPTS):
            # Editors save a file with a few quick renames, so after a pause the folder is likely to be unchanged.
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
            "writes there, and let functions write outside their code folder, or to a subfolder with a name that "
            "begins with a dot."
        )

    def publish_made(self, make: Callable[[Path], None]) -> Package:
        """Have `make` fill a new folder, and store everything in it as a package. Blocks: call it in a thread.

        Args:
            make: called with an empty folder; it raises OSError if it fails.

        Raises:
            StoreError: a file cannot be read or written, or a link points to nothing or out of the folder (HTTP 500).
            StoreFullError: the disk is full (HTTP 503).
        """
        unfinished = self._begin()
        try:
            made = unfinished / "package"
            with storing(made):
                made.mkdir(mode=0o755)
                make(made)
            try:
                package = self._package(Tree(made, is_whole=True).scan())
            except VanishedError as error:
                raise StoreError(f"{error.path} was removed while it was stored") from error
            if not self._has(package, is_whole=True):
                with storing(self._root):
                    self._install(made, digest=package.sha256)
            return package
        finally:
            _remove(unfinished)

    def forget_checks(self) -> None:
        """Check each package again when it is next published, and replace it if it is damaged."""
        self._trusted.clear()

    def remove_except(self, keep: Callable[[str], bool]) -> None:
        """Remove each package with a name for which `keep` returns False, and unfinished copies of dead processes.

        The caller must ensure that nothing runs from a package that is removed, and that no package is being published.

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

    def _has(self, package: Package, *, is_whole: bool = False) -> bool:
        """Whether the package exists and is complete.

        A power failure can leave a folder with files that were never written, and functions may write into a package.
        So each `PackageStore` checks once that a package's content matches its name.
        """
        if not package.path.is_dir():
            return False
        if package.sha256 in self._trusted:
            return True
        try:
            content = _digest(Tree(package.path, is_whole=is_whole).scan())
        except (StoreError, VanishedError):
            content = ""
        if content == package.sha256:
            self._trusted.add(package.sha256)
            return True
        with storing(self._root):
            self._discard(package.path)
        return False

    def _copy(self, tree: Tree, manifest: Manifest) -> Manifest:
        """Copy what `manifest` lists, and return the copy's manifest.

        If both manifests are equal, this method also makes the copy a package; otherwise it removes the copy.
        """
        unfinished = self._begin()
        try:
            tree.copy(manifest, target=unfinished / "package")
            copied = Tree(unfinished / "package").scan()
            if copied == manifest:
                with storing(self._root):
                    self._install(unfinished / "package", digest=_digest(copied))
            return copied
        finally:
            _remove(unfinished)

    def _begin(self) -> Path:
        """Make a folder for a package that is not finished."""
        with storing(self._root):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self._root))

    def _install(self, copy: Path, *, digest: str) -> None:
        try:
            copy.rename(self._root / digest)
        except OSError as error:
            # If the folder exists, another process has published the same content in the meantime; its package is used.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        self._trusted.add(digest)

    def _discard(self, package: Path) -> None:
        """Remove a package. It is renamed first, so that no process finds a half-removed package."""
        self._trusted.discard(package.name)
        aside = Path(tempfile.mkdtemp(prefix=_DISCARDED, dir=self._root))
        try:
            package.rename(aside / "package")
        except FileNotFoundError:
            pass  # another process has removed it
        _remove(aside)


def is_package(folder: Path, name: str) -> bool:
    """Whether a folder contains the package with this name, and nothing else. Reads all files.

    Raises:
        StoreError: a file cannot be read (HTTP 500).
    """
    try:
        everything = Tree(folder, is_whole=True).scan()
        if _digest(everything) == name:
            return True
        manifest = Tree(folder).scan()
    except VanishedError:
        return False
    return manifest.keys() == everything.keys() and _digest(manifest) == name


def _digest(manifest: Manifest) -> str:
    digest = hashlib.sha256(b"thawd package 1\n")
    for path, entry in sorted((os.fsencode(path), entry) for path, entry in manifest.items()):
        for part in (path, b"%o" % entry.mode, entry.content):
            # Each part has its length in front, so that different parts never result in the same bytes.
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _is_abandoned(unfinished: Path) -> bool:
    try:
        return time.time() - unfinished.stat().st_mtime > _ABANDONED_AFTER_S
    except FileNotFoundError:
        return False


def _remove(tree: Path) -> None:
    """Remove a folder, as far as possible; the next `PackageStore.remove_except` removes the rest."""
    for folder, _, _ in os.walk(tree):
        try:
            # A folder has the permissions of the original, which perhaps do not allow removing its files.
            Path(folder).chmod(stat.S_IRWXU)
        except OSError:
            continue
    shutil.rmtree(tree, ignore_errors=True)
