"""The folder of images: its contents, and the order in which files are added and removed.

`thawd.snapshot.store.images` uses this module and decides which images to use and to remove. An image's parts (sidecar
and disk snapshot) are added before the image and removed after it, so that an image in the folder always has all its
parts. A draft is a folder in which a process makes a new image; the process keeps it locked. Processes that died may
leave parts without an image, and unlocked drafts. The caller must hold the lock of the folder of images for every
method except `locked` and `sweep`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self

from thawd.errors import StoreError
from thawd.snapshot.store.image_facts import (
    DISK,
    FILES,
    IMAGE,
    PARTS,
    SIDECAR,
    Sidecar,
    Snapshot,
    digest_in,
    look,
    write_sidecar,
)
from thawd.snapshot.store.trust_and_locks import (
    LockedFile,
    distrust,
    distrust_folder,
    folder_lock,
    open_as_is,
    remove_tree,
    try_lock,
    using,
)
from thawd.system import folders

# Beginnings of the names of drafts, and of what `sweep` deletes.
_DRAFT = ".new-"
_DISCARDED = ".old-"
_LOCK_WAIT_S = 10.0
_CHUNK_BYTES = 4 << 20


class Draft:
    """A folder in the store for an image that is being made.

    A draft is a context manager: at the end of the ``with`` block it is discarded, unless the store has adopted it.

    Attributes:
        folder: private folder of the draft, on the file system of the store.
        image: path at which to write the image.
        disk: path at which to create the folder with the image's disk snapshot.
        files: path at which to write the list of the files that the image depends on.
    """

    def __init__(self, folder: Path, held: LockedFile) -> None:
        self.folder = folder
        self.image = folder / "image"
        self.disk = folder / "disk"
        self.files = folder / "files"
        self._held = held

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def discard(self) -> None:
        """Remove the draft and its contents. A second call does nothing."""
        if self._held.fd >= 0:
            remove_tree(self.folder)
            self._held.release()


class ImageFolder:
    """One folder of images.

    Args:
        path: absolute path; the folder need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def locked(self, *, make: bool = False) -> Iterator[bool]:
        """Hold the lock of the folder. Yields whether the folder exists.

        Args:
            make: make the folder when missing, with access for its owner alone.

        Raises:
            StoreError: the folder cannot be made, opened or locked (HTTP 500).
        """
        with using(self.path):
            if make:
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                self.path.lstat()
            except FileNotFoundError:
                is_there = False
            else:
                is_there = True
        if not is_there:
            yield False
            return
        with folder_lock(self.path, wait_s=_LOCK_WAIT_S):
            yield True

    def distrusted(self) -> str | None:
        """Why the folder's contents must not be used, and what to do; None when they can be used."""
        with using(self.path):
            reason = distrust_folder(self.path, self.path.stat())
        return reason and (
            f"{reason}. Snapshots hold secrets and are run as code, so thawd uses none from this folder. If you know "
            "what is in it, give it to thawd's user alone (chown, chmod 700); otherwise remove it."
        )

    def new_draft(self) -> Draft:
        """Make a draft.

        Raises:
            StoreError: the draft cannot be made (HTTP 500).
        """
        with using(self.path):
            folder = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=self.path))
            held = try_lock(folder, shared=False)
        if held is None:
            raise StoreError(f"{folder} cannot be used: another process has locked the new folder; try again.")
        return Draft(folder, held)

    def snapshots(self) -> list[Snapshot]:
        """All images of the folder, in no particular order."""
        digests = (digest_in(path.name, suffixes=(IMAGE,)) for path in self._children())
        found = (self.snapshot(digest) for digest in digests if digest is not None)
        return [snapshot for snapshot in found if snapshot is not None]

    def snapshot(self, sha256: str) -> Snapshot | None:
        """One image by its digest; None when it does not exist."""
        image = self.path / f"{sha256}{IMAGE}"
        with using(image):
            found = look(image, in_use=_is_held(image))
        if found is None or found.problem is not None or found.base is None:
            return found
        if not os.path.lexists(self.path / f"{found.base}{IMAGE}"):
            missing = f"{image} refers to the base {found.base[:12]}, which has been removed"
            found = replace(found, problem=f"{missing}. Remove the snapshot: thawd snapshot rm {found.id}")
        return found

    def install(self, draft: Draft, sidecar: Sidecar) -> None:
        """Move a draft's image and its parts into the folder, replacing files of the same names.

        Raises:
            StoreError: the image or a part cannot be stored (HTTP 500).
            StoreFullError: the disk is full (HTTP 503).
        """
        to = functools.partial("{}/{}{}".format, self.path, sidecar.sha256)
        with using(self.path):
            if os.path.lexists(to(DISK)):
                self._discard(Path(to(DISK)))
            self.install_sidecar(draft, sidecar)
            for source, target in (
                (draft.disk, to(DISK)),
                (draft.files, to(FILES)),
                (draft.image, to(IMAGE)),
            ):
                with contextlib.suppress(FileNotFoundError):
                    source.rename(target)
            folders.sync(self.path)

    def install_sidecar(self, draft: Draft, sidecar: Sidecar) -> None:
        """Replace a sidecar atomically.

        Raises:
            StoreError: the sidecar cannot be stored (HTTP 500).
            StoreFullError: the disk is full (HTTP 503).
        """
        with using(self.path):
            written = draft.folder / "sidecar"
            write_sidecar(written, sidecar)
            written.rename(self.path / f"{sidecar.sha256}{SIDECAR}")

    def remove(self, snapshot: Snapshot) -> None:
        """Remove an image and its parts. Its disk snapshot is only renamed; `sweep` deletes that, which may take long.

        Raises:
            StoreError: the image or a part cannot be removed (HTTP 500).
        """
        with using(snapshot.path):
            for suffix in PARTS:  # the image first, so that no image is ever without its parts
                part = snapshot.path.with_suffix(suffix)
                if part.is_dir() and not part.is_symlink():
                    self._discard(part)
                else:
                    part.unlink(missing_ok=True)

    def remove_leftovers(self) -> int:
        """Rename unlocked drafts, and parts without an image, so that `sweep` deletes them, which may take long.

        Returns:
            How many drafts and parts were renamed.

        Raises:
            StoreError: one of them cannot be renamed (HTTP 500).
        """
        left = [path for path in self._children() if self._is_leftover(path)]
        with using(self.path):
            return sum(self._discard(path) for path in left)

    def sweep(self) -> None:
        """Delete the files and folders that were renamed for this. Needs no lock, since nothing else uses them."""
        with contextlib.suppress(OSError):
            for path in self.path.iterdir():
                if path.name.startswith(_DISCARDED):
                    remove_tree(path)

    def _children(self) -> list[Path]:
        with using(self.path):
            return sorted(self.path.iterdir())

    def _is_leftover(self, path: Path) -> bool:
        if path.name.startswith(_DRAFT):
            return not _is_held(path)
        return digest_in(path.name) is not None and not os.path.lexists(path.with_suffix(IMAGE))

    def _discard(self, path: Path) -> bool:
        """Rename a path so that `sweep` deletes it.

        Returns:
            Whether the path existed; the process that made a draft may just have removed it.
        """
        with contextlib.suppress(FileNotFoundError):
            path.rename(self.path / f"{_DISCARDED}{secrets.token_hex(8)}")
            return True
        return False


def digest_of(fd: int, *, progress: Callable[[int], object] = lambda done_bytes: None) -> str:
    """SHA-256 of an open file from its start, 64 hexadecimal digits.

    Args:
        fd: the file's descriptor; its position is not used.
        progress: called with the number of bytes read so far, after each 4 MiB.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    chunk = memoryview(bytearray(_CHUNK_BYTES))
    done_bytes = 0
    while count := os.preadv(fd, [chunk], done_bytes):
        digest.update(chunk[:count])
        done_bytes += count
        progress(done_bytes)
    return digest.hexdigest()


def seal(image: Path) -> tuple[str, int]:
    """Restrict access to an image to its owner, and sync it to the disk.

    Returns:
        The image's SHA-256 and its size in bytes.

    Raises:
        OSError: the image cannot be read or changed.
        StoreError: the image is missing, or is not a file of this user (HTTP 500).
    """
    if not os.path.lexists(image):
        raise StoreError(
            f"the freeze left no image at {image}; see the error of the freeze, or find out what removed the image."
        )
    with open_as_is(image) as fd:
        if os.fstat(fd).st_uid == os.geteuid():
            os.fchmod(fd, 0o600)
        status = os.fstat(fd)
        if (reason := distrust(image, status)) is not None:
            raise StoreError(
                f"{reason}; the image was not stored. Freeze the process again, as the user who runs thawd."
            )
        os.fsync(fd)
        return digest_of(fd), status.st_size


def _is_held(path: Path) -> bool:
    """Whether a file or folder is locked; False for one that cannot be opened."""
    try:
        held = try_lock(path, shared=False)
    except OSError:
        return False
    if held is not None:
        held.release()
    return held is None
