"""The platform's images of frozen functions: stored by content, trusted by owner and mode, evicted by last use.

Each image is a file that never changes, named by the SHA-256 of its content. A sidecar, a JSON file beside it, contains
a key: a digest of everything that the frozen process was made from. An image is used again for versions with the same
key, also after a restart of the server. This module neither makes nor thaws images. The platform asks it for an image
by key, and holds a lease on the image as long as copies of a version can be thawed from it. The commands `thawd
snapshot` use this module, too.

Several threads and processes can use one folder concurrently. Changing the folder, or taking an image into use,
requires the folder's lock. A lease is a shared lock on the image file: thawd removes no image with such a lock, and the
lock ends when its process ends. All methods block, some for as long as reading an image takes: call them in a thread.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from thawd import __version__
from thawd.errors import (
    InvalidParameterValueException,
    ResourceConflictException,
    ResourceNotFoundException,
    StoreError,
    StoreFullError,
)
from thawd.snapshot.store.folder import Draft, ImageFolder, digest_of, seal
from thawd.snapshot.store.image_facts import SIDECAR, ImageOrigin, Sidecar, Snapshot
from thawd.snapshot.store.index import KeyIndex
from thawd.snapshot.store.trust_and_locks import LockedFile, open_as_is, shared_holders, stored_bytes, try_lock, using
from thawd.system.boot import boot_id
from thawd.system.retry import SayOnce

__all__ = [
    "DEFAULT_MAX_AGE_S",
    "DEFAULT_MAX_BYTES",
    "Draft",
    "ImageOrigin",
    "Snapshot",
    "SnapshotLease",
    "SnapshotStore",
]

DEFAULT_MAX_BYTES = 20 << 30
DEFAULT_MAX_AGE_S = 14 * 86400.0

_MIN_DIGITS = 4
_DIGITS = frozenset("0123456789abcdef")


class SnapshotLease:
    """A lease on a snapshot: as long as it is held, the image is not removed. A context manager.

    Attributes:
        snapshot: the snapshot in use.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        held: LockedFile,
        *,
        touch: Callable[[Snapshot], None],
        base: SnapshotLease | None = None,
    ) -> None:
        self.snapshot = snapshot
        self._held = held
        self._touch = touch
        self._base = base  # a lease on the image that this image refers to

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def fd(self) -> int:
        """Descriptor of the image, open for reading and closed on exec; -1 after the release."""
        return self._held.fd

    def release(self) -> None:
        """End the lease and record the time as the snapshot's last use. A second call does nothing."""
        if self._held.fd >= 0:
            self._touch(self.snapshot)
            self._held.release()
            if self._base is not None:
                self._base.release()


class SnapshotStore:
    """The images in one folder.

    Args:
        folder: folder of the images; if missing, it is made with the first draft, with access for its owner alone.
        max_bytes: disk space for images, bytes, 0 or more. Images in use stay even if they take more.
        max_age_s: how long an image is kept after its last use, seconds, 0 or more.
        now: the clock, Unix seconds.
        report: called once with the reason for each image that must not be used.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_age_s: float = DEFAULT_MAX_AGE_S,
        now: Callable[[], float] = time.time,
        report: Callable[[str], object] = lambda message: None,
    ) -> None:
        self._folder = ImageFolder(folder.absolute())
        self._index = KeyIndex(folder.absolute())
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._now = now
        self._reports = SayOnce(report)

    @property
    def folder(self) -> Path:
        """The folder of the images, absolute."""
        return self._folder.path

    def begin(self, *, room_bytes: int = 0) -> Draft:
        """Make a draft for a new image.

        Args:
            room_bytes: disk space that the image may need; if less is free, this fails before anything is written.

        Raises:
            StoreError: the folder cannot be made or written, or belongs to another user (HTTP 500).
            StoreFullError: the disk has less than `room_bytes` of free space (HTTP 503).
        """
        with self._folder.locked(make=True):
            if (distrusted := self._folder.distrusted()) is not None:
                raise StoreError(distrusted)
            self.require_room(room_bytes)
            return self._folder.new_draft()

    def require_room(self, room_bytes: int) -> None:
        """Check that the store's disk has this much free space.

        Raises:
            StoreError: the folder cannot be read (HTTP 500).
            StoreFullError: the disk has less (HTTP 503).
        """
        with using(self.folder):
            disk = os.statvfs(self.folder)
        free_bytes = disk.f_bavail * disk.f_frsize
        if free_bytes < room_bytes:
            raise StoreFullError(
                f"a snapshot may need {room_bytes >> 20:,} MiB, but the disk of {self.folder} has only "
                f"{free_bytes >> 20:,} MiB free; free some space, for example by `thawd snapshot rm --unused`."
            )

    def adopt(self, draft: Draft, origin: ImageOrigin, *, sent_as: str = "") -> Snapshot:
        """Move a finished image and its disk snapshot from a draft into the store, and write the sidecar.

        Call `use` before the next `evict`, which could otherwise remove the image. If the store has an image with the
        same content already, the draft is discarded and that image's sidecar is replaced.

        Args:
            draft: the finished draft.
            origin: what the sidecar says about the image's origin.
            sent_as: SHA-256 of the image where it was made, if that was another machine.

        Raises:
            StoreError: the draft has no image, or the image cannot be stored or belongs to another user of the system
                (HTTP 500).
            StoreFullError: the disk is full (HTTP 503).
        """
        with using(draft.image):
            sha256, image_bytes = seal(draft.image)
            parts_bytes = stored_bytes(draft.disk)
        sidecar = Sidecar(
            sha256=sha256,
            image_bytes=image_bytes,
            parts_bytes=parts_bytes,
            created_unix_s=self._now(),
            boot_id=boot_id(),
            kernel=os.uname().release,
            thawd=__version__,
            origin=origin,
            sent_as=sent_as,
        )
        with self._folder.locked():
            there = self._folder.snapshot(sha256)
            if there is None or there.sidecar is None or not _is_whole(there):
                self._folder.install(draft, sidecar)
            else:
                sidecar = msgspec.structs.replace(sidecar, parts_bytes=there.sidecar.parts_bytes)
                self._folder.install_sidecar(draft, sidecar)
            snapshot = self._folder.snapshot(sha256)
        draft.discard()
        self._folder.sweep()
        if snapshot is None or snapshot.problem is not None:
            raise StoreError(
                f"an image has changed right after it was stored; find out what else writes to {self.folder}."
            )
        self.touch(snapshot)
        return snapshot

    def find(self, key: str) -> Snapshot | None:
        """The newest usable snapshot whose `ImageOrigin.key` is `key`; None when there is none.

        Raises:
            StoreError: the folder cannot be read (HTTP 500).
        """
        with self._folder.locked() as is_there:
            if not is_there:
                return None
            distrusted = self._folder.distrusted()
            digests, unusable = self._index.find(key) if distrusted is None else ([], [])
            found = [snapshot for digest in digests if (snapshot := self._folder.snapshot(digest)) is not None]
        for problem in (distrusted, *(snapshot.problem for snapshot in (*unusable, *found))):
            if problem is not None:
                self._reports.say(problem, topic=problem)
        fitting = [
            (snapshot.sidecar.created_unix_s, snapshot.sha256, snapshot)
            for snapshot in found
            if snapshot.sidecar is not None and snapshot.sidecar.origin.key == key and snapshot.problem is None
        ]
        return max(fitting)[2] if fitting else None

    def use(self, snapshot: Snapshot) -> SnapshotLease:
        """Take a snapshot into use: its image, and the bases that it refers to, stay until the lease is released.

        Raises:
            ResourceNotFoundException: the snapshot was removed since it was found (HTTP 404).
            StoreError: the snapshot must not be used, or cannot be opened (HTTP 500).
        """
        with self._folder.locked() as is_there:
            return self._lease_with_bases(self._present(snapshot, is_there=is_there))

    def _lease_with_bases(self, snapshot: Snapshot) -> SnapshotLease:
        if snapshot.base is None:
            return self._lease(snapshot)
        base = self._lease_with_bases(self._present_base(snapshot.base, snapshot=snapshot))
        try:
            return self._lease(snapshot, base=base)
        except BaseException:
            base.release()
            raise

    def _lease(self, snapshot: Snapshot, *, base: SnapshotLease | None = None) -> SnapshotLease:
        if (problem := self._folder.distrusted() or snapshot.problem) is not None:
            raise StoreError(problem)
        with using(snapshot.path):
            held = try_lock(snapshot.path, shared=True)
        if held is None:
            raise StoreError(
                f"{snapshot.path} cannot be used: a process that is not thawd has locked it; end that process and try "
                "again."
            )
        self.touch(snapshot)
        return SnapshotLease(snapshot, held, touch=self.touch, base=base)

    def _present_base(self, sha256: str, *, snapshot: Snapshot) -> Snapshot:
        base = self._folder.snapshot(sha256)
        if base is None:
            raise StoreError(
                f"{snapshot.path} refers to the base {sha256[:12]}, which has been removed. Remove the snapshot: thawd "
                f"snapshot rm {snapshot.id}"
            )
        return base

    def touch(self, snapshot: Snapshot) -> None:
        """Record the current time as a snapshot's last use; has no effect in a read-only folder."""
        with contextlib.suppress(OSError):
            os.utime(snapshot.path.with_suffix(SIDECAR), (self._now(), self._now()), follow_symlinks=False)

    def snapshots(self) -> list[Snapshot]:
        """All snapshots, including those that must not be used; the last used comes first.

        Raises:
            StoreError: the folder cannot be read (HTTP 500).
        """
        with self._folder.locked() as is_there:
            found = self._folder.snapshots() if is_there else []
        return sorted(found, key=lambda snapshot: snapshot.last_used_unix_s, reverse=True)

    def resolve(self, text: str) -> Snapshot:
        """Find a snapshot by its id, the first digits of its id, its function's name, or ``name:version``.

        Raises:
            InvalidParameterValueException: several snapshots match, or the digits are too few (HTTP 400).
            ResourceNotFoundException: no snapshot matches (HTTP 404).
            StoreError: the folder cannot be read (HTTP 500).
        """
        digits = text.lower() if text and _DIGITS.issuperset(text.lower()) else None
        found = [s for s in self.snapshots() if _is_named(s, text) or (digits and s.sha256.startswith(digits))]
        if not found:
            raise ResourceNotFoundException(
                f"there is no snapshot {text!r} in {self.folder}; `thawd snapshot list` shows all snapshots."
            )
        if len(found) > 1:
            those = ", ".join(f"{snapshot.id} ({snapshot.name})" for snapshot in found)
            raise InvalidParameterValueException(f"{text!r} matches several snapshots: {those}; give the id of one.")
        if len(text) < _MIN_DIGITS and not _is_named(found[0], text):
            raise InvalidParameterValueException(
                f"{text!r} is too short for an id; give at least {_MIN_DIGITS} digits, for example {found[0].id}."
            )
        return found[0]

    def verify(
        self, snapshot: Snapshot, *, progress: Callable[[int], object] = lambda done_bytes: None
    ) -> tuple[str, ...]:
        """Read a whole image, compare its SHA-256 with its name, and decode its tables.

        Args:
            snapshot: the snapshot to verify. It may be one that must not be used.
            progress: called with the number of bytes read so far, after each 4 MiB.

        Returns:
            The problems found; empty when there are none.

        Raises:
            ResourceNotFoundException: the snapshot was removed since it was found (HTTP 404).
            StoreError: the image cannot be read (HTTP 500).
        """
        from thawd.snapshot.inspect import reader

        with self._folder.locked() as is_there:
            now = self._present(snapshot, is_there=is_there)
            problems = [now.problem] if now.problem is not None else []
            if not now.path.is_file() or now.path.is_symlink():
                return tuple(problems)
            with using(now.path):
                # The lock keeps the image from being removed. If another process holds an exclusive lock, `held` is
                # None, and the image is read without a lock.
                held = try_lock(now.path, shared=True)
        try:
            with using(now.path), open_as_is(now.path) as fd:
                sha256 = digest_of(fd, progress=progress)
            if sha256 != now.sha256:
                problems.append(f"{now.path} is damaged: its SHA-256 is {sha256}, but its name says {now.sha256}")
            reader.read(now.path)
        except reader.ImageError as error:
            problems.append(str(error))
        finally:
            if held is not None:
                held.release()
        return tuple(problems)

    def remove(self, snapshot: Snapshot) -> None:
        """Remove a snapshot that is not in use.

        Raises:
            ResourceConflictException: the snapshot is in use, or others refer to it (HTTP 409).
            ResourceNotFoundException: the snapshot does not exist any more (HTTP 404).
            StoreError: the snapshot cannot be removed (HTTP 500).
        """
        with self._folder.locked() as is_there:
            now = self._present(snapshot, is_there=is_there)
            if now.in_use:
                pids = ", ".join(map(str, shared_holders(now.path)))
                raise ResourceConflictException(
                    f"the snapshot {now.id} ({now.name}) is in use{f' by process {pids}' if pids else ''}; stop the "
                    "thawd that uses it, or publish another version of the function, then try again."
                )
            dependents = [other.id for other in self._folder.snapshots() if other.base == now.sha256]
            if dependents:
                others = "1 other" if len(dependents) == 1 else f"{len(dependents)} others"
                raise ResourceConflictException(
                    f"the snapshot {now.id} is the base of {others}: first remove every snapshot that refers to it, "
                    f"for example {dependents[0]}."
                )
            self._folder.remove(now)
        self._folder.sweep()

    def evict(self) -> list[Snapshot]:
        """Remove snapshots that are unused for `max_age_s`, then others until the rest fits `max_bytes`.

        The least recently used are removed first. A snapshot in use is never removed, and neither is a base while other
        snapshots refer to it. Call this after all versions of a configuration have taken their snapshots into use;
        otherwise their snapshots could be removed.

        Returns:
            The snapshots that were removed.

        Raises:
            StoreError: the folder cannot be read, or a snapshot cannot be removed (HTTP 500).
        """
        removed: list[Snapshot] = []
        with self._folder.locked() as is_there:
            left = self._folder.snapshots() if is_there else []
            total_bytes = sum(snapshot.stored_bytes for snapshot in left)
            oldest_use_unix_s = self._now() - self._max_age_s
            dependents = Counter(snapshot.base for snapshot in left)  # SHA-256 -> number of images that refer to it
            # Bases come last: then a base can be removed, too, if all images that refer to it have just been removed.
            for snapshot in sorted(left, key=lambda s: (s.sha256 in dependents, s.last_used_unix_s)):
                is_expired = snapshot.last_used_unix_s < oldest_use_unix_s
                is_needed = snapshot.in_use or dependents[snapshot.sha256] > 0
                if (is_expired or total_bytes > self._max_bytes) and not is_needed:
                    self._folder.remove(snapshot)
                    total_bytes -= snapshot.stored_bytes
                    dependents[snapshot.base] -= 1
                    removed.append(snapshot)
        self._folder.sweep()
        return removed

    def tidy(self) -> int:
        """Remove what processes left when they died: drafts, and sidecars and disk snapshots without an image.

        Files of other programs stay. Call this when the server starts.

        Returns:
            How many drafts, sidecars and disk snapshots were removed.

        Raises:
            StoreError: the folder cannot be read, or an entry cannot be removed (HTTP 500).
        """
        with self._folder.locked() as is_there:
            count = self._folder.remove_leftovers() if is_there else 0
        self._folder.sweep()
        return count

    def _present(self, snapshot: Snapshot, *, is_there: bool) -> Snapshot:
        """Examine the snapshot again, as it is now."""
        now = self._folder.snapshot(snapshot.sha256) if is_there else None
        if now is None:
            raise ResourceNotFoundException(f"the snapshot {snapshot.id} ({snapshot.name}) has been removed.")
        return now


def _is_named(snapshot: Snapshot, text: str) -> bool:
    return snapshot.sidecar is not None and text in (snapshot.sidecar.origin.function, snapshot.name)


def _is_whole(snapshot: Snapshot) -> bool:
    """Whether an image can be used and its SHA-256 matches its name."""
    if snapshot.problem is not None:
        return False
    with using(snapshot.path), open_as_is(snapshot.path) as fd:
        return digest_of(fd) == snapshot.sha256
