"""The images of frozen functions on the platform's side: kept by content, trusted by owner and mode, evicted by use.

Each image is a file named by its SHA-256, never changed once it is there, with a sidecar that says what it is of. An
image is used again where the key of its version is the same, also by a later run of the server. Knows nothing of how
an image is made or thawed: the spawner asks for one by key and holds a lease on it as long as a version may be thawed
from it. Serves `thawd snapshot`, too.

Several threads and processes may use one folder at once. Who changes it, or takes an image into use, holds the lock of
the folder meanwhile; a lease is a shared lock on the image itself, so that it also holds against other processes and
ends with its holder. All methods block, some for as long as reading an image takes: call them in a thread.
"""

from __future__ import annotations

import contextlib
import os
import time
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
from thawd.snapshot.store.files import Hold, hold, open_as_is, shared_holders, stored_bytes, using
from thawd.snapshot.store.folder import Draft, ImageFolder, boot_id, digest_of, seal
from thawd.snapshot.store.records import SIDECAR, ImageOrigin, Sidecar, Snapshot

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
    """The use of a snapshot: while it is held, nobody removes the image. A context manager.

    Attributes:
        snapshot: what is used.
    """

    def __init__(self, snapshot: Snapshot, held: Hold, *, touch: Callable[[Snapshot], None]) -> None:
        self.snapshot = snapshot
        self._held = held
        self._touch = touch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def fd(self) -> int:
        """Descriptor of the image, open for reading and closed on exec; -1 after the release."""
        return self._held.fd

    def release(self) -> None:
        """End the use, which counts as the last one from now on; again is nothing."""
        if self._held.fd >= 0:
            self._touch(self.snapshot)
            self._held.release()


class SnapshotStore:
    """Images under one folder.

    Args:
        folder: folder of the images; made when missing, at the first draft, with access for its owner alone.
        max_bytes: disk space for images, bytes, 0 or more; those in use stay even beyond it.
        max_age_s: how long an image is kept after its last use, seconds, 0 or more.
        now: the clock, Unix seconds.
        report: told once of everything that is there and must not be used.
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
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._now = now
        self._report = report
        self._reported: set[str] = set()

    @property
    def folder(self) -> Path:
        """Where the images lie, absolute."""
        return self._folder.path

    def begin(self, *, room_bytes: int = 0) -> Draft:
        """A place for a new image.

        Args:
            room_bytes: what the image may need; a disk with less free space is refused before anything is written.

        Raises:
            StoreError: the folder cannot be made or written, or is somebody else's (HTTP 500).
            StoreFullError: the disk has no room for it (HTTP 503).
        """
        with self._folder.locked(make=True):
            if (distrusted := self._folder.distrusted()) is not None:
                raise StoreError(distrusted)
            with using(self.folder):
                disk = os.statvfs(self.folder)
            free_bytes = disk.f_bavail * disk.f_frsize
            if free_bytes < room_bytes:
                raise StoreFullError(
                    f"a snapshot may need {room_bytes >> 20:,} MiB, and the disk of {self.folder} has "
                    f"{free_bytes >> 20:,} MiB left; free some, for example by `thawd snapshot rm --unused`."
                )
            return self._folder.new_draft()

    def adopt(self, draft: Draft, origin: ImageOrigin) -> Snapshot:
        """Make a finished image part of the store, with what else is in its draft. Take it into use before `evict`.

        An image whose content is there already is not stored a second time; the draft's other parts go with it.

        Raises:
            StoreError: there is no image in the draft, it is not this user's, or cannot be stored (HTTP 500).
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
            raise StoreError(f"an image did not stay as it was stored; find out what else writes to {self.folder}.")
        self.touch(snapshot)
        return snapshot

    def find(self, key: str) -> Snapshot | None:
        """The newest snapshot that was made of what `key` stands for and that may be used; None when there is none.

        Raises:
            StoreError: the folder cannot be read (HTTP 500).
        """
        with self._folder.locked() as is_there:
            if not is_there:
                return None
            distrusted = self._folder.distrusted()
            found = self._folder.snapshots() if distrusted is None else []
        for problem in (distrusted, *(snapshot.problem for snapshot in found)):
            if problem is not None and problem not in self._reported:
                self._reported.add(problem)
                self._report(problem)
        fitting = [
            (snapshot.sidecar.created_unix_s, snapshot.sha256, snapshot)
            for snapshot in found
            if snapshot.sidecar is not None
            and snapshot.sidecar.origin.key == key
            and snapshot.problem is None
            and not snapshot.stale
        ]
        return max(fitting)[2] if fitting else None

    def use(self, snapshot: Snapshot) -> SnapshotLease:
        """Take a snapshot into use, which keeps its image in the store until the lease is released.

        Raises:
            ResourceNotFoundException: it was removed since it was found (HTTP 404).
            StoreError: it must not be used, or cannot be opened (HTTP 500).
        """
        with self._folder.locked() as is_there:
            now = self._present(snapshot, is_there=is_there)
            if (problem := self._folder.distrusted() or now.problem) is not None:
                raise StoreError(problem)
            with using(now.path):
                held = hold(now.path, shared=True)
        if held is None:
            raise StoreError(f"{now.path} is locked by a process that is not thawd; end that one and try again.")
        self.touch(now)
        return SnapshotLease(now, held, touch=self.touch)

    def touch(self, snapshot: Snapshot) -> None:
        """Note that a snapshot is used now; where that cannot be written, in a read-only folder, it goes unnoted."""
        with contextlib.suppress(OSError):
            os.utime(snapshot.path.with_suffix(SIDECAR), (self._now(), self._now()), follow_symlinks=False)

    def snapshots(self) -> list[Snapshot]:
        """All there are, those that must not be used included, last used first.

        Raises:
            StoreError: the folder cannot be read (HTTP 500).
        """
        with self._folder.locked() as is_there:
            found = self._folder.snapshots() if is_there else []
        return sorted(found, key=lambda snapshot: snapshot.last_used_unix_s, reverse=True)

    def resolve(self, text: str) -> Snapshot:
        """The snapshot meant by an id, by its first digits, by a function's name or by ``name:version``.

        Raises:
            InvalidParameterValueException: several fit, or the digits are too few (HTTP 400).
            ResourceNotFoundException: none fits (HTTP 404).
            StoreError: the folder cannot be read (HTTP 500).
        """
        digits = text.lower() if text and _DIGITS.issuperset(text.lower()) else None
        found = [s for s in self.snapshots() if _is_named(s, text) or (digits and s.sha256.startswith(digits))]
        if not found:
            raise ResourceNotFoundException(
                f"there is no snapshot {text!r} in {self.folder}; `thawd snapshot list` shows what there is."
            )
        if len(found) > 1:
            those = ", ".join(f"{snapshot.id} ({snapshot.name})" for snapshot in found)
            raise InvalidParameterValueException(f"{text!r} may be any of {those}; name one of them by its id.")
        if len(text) < _MIN_DIGITS and not _is_named(found[0], text):
            raise InvalidParameterValueException(
                f"{text!r} is too short for an id; give at least {_MIN_DIGITS} digits, for example {found[0].id}."
            )
        return found[0]

    def verify(
        self, snapshot: Snapshot, *, progress: Callable[[int], object] = lambda done_bytes: None
    ) -> tuple[str, ...]:
        """Read an image whole, compare its SHA-256 with its name, and decode its tables.

        Args:
            snapshot: which one; one that must not be used can be verified, too.
            progress: told now and then how many bytes have been read.

        Returns:
            What is wrong with it; nothing when it is sound.

        Raises:
            ResourceNotFoundException: it was removed since it was found (HTTP 404).
            StoreError: it cannot be read (HTTP 500).
        """
        from thawd.snapshot.inspect import reader

        with self._folder.locked() as is_there:
            now = self._present(snapshot, is_there=is_there)
            problems = [now.problem] if now.problem is not None else []
            if not now.path.is_file() or now.path.is_symlink():
                return tuple(problems)
            with using(now.path):
                # Held, so that it is not removed meanwhile; one that is locked otherwise can be read all the same.
                held = hold(now.path, shared=True)
        try:
            with using(now.path), open_as_is(now.path) as fd:
                sha256 = digest_of(fd, progress=progress)
            if sha256 != now.sha256:
                problems.append(f"{now.path} is damaged: its SHA-256 is {sha256}, its name says {now.sha256}")
            reader.read(now.path)
        except reader.ImageError as error:
            problems.append(str(error))
        finally:
            if held is not None:
                held.release()
        return tuple(problems)

    def remove(self, snapshot: Snapshot) -> None:
        """Remove a snapshot that nobody uses.

        Raises:
            ResourceConflictException: it is in use (HTTP 409).
            ResourceNotFoundException: it is not there any more (HTTP 404).
            StoreError: it cannot be removed (HTTP 500).
        """
        with self._folder.locked() as is_there:
            now = self._present(snapshot, is_there=is_there)
            if now.in_use:
                pids = ", ".join(map(str, shared_holders(now.path)))
                raise ResourceConflictException(
                    f"the snapshot {now.id} ({now.name}) is in use{f' by process {pids}' if pids else ''}; stop that "
                    "thawd, or have it publish another version of the function, then try again."
                )
            self._folder.remove(now)
        self._folder.sweep()

    def evict(self) -> list[Snapshot]:
        """Remove what is stale or was not used for too long, then what was used longest ago until the rest has room.

        Never removes what is in use. Call it after the versions of a configuration have taken theirs into use.

        Returns:
            What was removed.

        Raises:
            StoreError: the folder cannot be read, or something cannot be removed (HTTP 500).
        """
        removed: list[Snapshot] = []
        with self._folder.locked() as is_there:
            left = self._folder.snapshots() if is_there else []
            total_bytes = sum(snapshot.stored_bytes for snapshot in left)
            oldest_use_unix_s = self._now() - self._max_age_s
            for snapshot in sorted(left, key=lambda s: (not s.stale, s.last_used_unix_s)):
                is_out = snapshot.stale or snapshot.last_used_unix_s < oldest_use_unix_s
                if (is_out or total_bytes > self._max_bytes) and not snapshot.in_use:
                    self._folder.remove(snapshot)
                    total_bytes -= snapshot.stored_bytes
                    removed.append(snapshot)
        self._folder.sweep()
        return removed

    def tidy(self) -> int:
        """Remove what publishers that died have left behind; files of other programs stay. Call it at the start.

        Returns:
            How many things that were.

        Raises:
            StoreError: the folder cannot be read, or something cannot be removed (HTTP 500).
        """
        with self._folder.locked() as is_there:
            count = self._folder.remove_leftovers() if is_there else 0
        self._folder.sweep()
        return count

    def _present(self, snapshot: Snapshot, *, is_there: bool) -> Snapshot:
        """The snapshot as it is now."""
        now = self._folder.snapshot(snapshot.sha256) if is_there else None
        if now is None:
            raise ResourceNotFoundException(f"the snapshot {snapshot.id} ({snapshot.name}) has been removed meanwhile.")
        return now


def _is_named(snapshot: Snapshot, text: str) -> bool:
    return snapshot.sidecar is not None and text in (snapshot.sidecar.origin.function, snapshot.name)


def _is_whole(snapshot: Snapshot) -> bool:
    """Whether an image holds what its name says, and may be used."""
    if snapshot.problem is not None:
        return False
    with using(snapshot.path), open_as_is(snapshot.path) as fd:
        return digest_of(fd) == snapshot.sha256
