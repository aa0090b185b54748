"""The temporary folders of execution environments: makes them, stores them with snapshots, mounts and removes them.

The path of a process's temporary folder is in its frozen memory, so each copy must find its own files at the path of
the frozen process's folder. thawd-thaw, the program that becomes the copy, therefore begins by entering a mount
namespace. In that namespace the path is an overlay over the files that init left. Without overlays, the path is a
folder to which these files were copied before, with shared blocks if the file system supports them. If neither works,
this module raises an error with the reason; environments of the function are then forked or started cold.

`Disks` manages one folder that holds all temporary folders; only one server uses it at a time. All methods block; those
that may take long say so. Several threads may call them concurrently.
"""

from __future__ import annotations

import enum
import json
import os
import secrets
import stat
import subprocess
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from thawd.errors import StoreError
from thawd.snapshot.disk import file_trees
from thawd.snapshot.disk.file_trees import DiskRefusedError, Survey
from thawd.snapshot.disk.places import TMP, Places, in_tmp, make_mount_points
from thawd.snapshot.store.trust_and_locks import stored_bytes, using

__all__ = ["MAX_BYTES", "DiskRefusedError", "DiskSnapshot", "Disks", "MountKind", "PreparedFolder"]

MAX_BYTES = 10 << 30
"""Largest disk snapshot, bytes on the disk: Lambda's limit for ``/tmp``, 10,240 MB."""

_RECORD = "disk.json"
_FILES = "files"
_LAYOUT = 1
# With these prefixes begin the names of folders that are being removed, and of folders made to test a kind of mount.
_DISCARDED = ".old-"
_TRIED = ".try-"
# Names are short, because processes listen on Unix sockets in their temporary folder and the path of a Unix socket has
# at most 107 bytes.
_NAME_LENGTH = 12
# The mtime of a folder that was never used. Python's `tempfile` changes it when it looks for the default folder.
_UNTOUCHED_NS = 1_000_000_000
_TRY_S = 10.0


class MountKind(enum.Enum):
    """How a copy's own folder is mounted at the path of the frozen process's folder."""

    OVERLAY = "overlay"
    """An overlay over the stored files: a copy's folder holds only what the copy changes."""
    BIND = "bind"
    """A bind mount of a folder into which the stored files were copied."""
    NONE = "none"
    """This machine can do neither."""


@dataclass(frozen=True, slots=True)
class DiskSnapshot:
    """The contents of a process's temporary folder. Every copy of the process begins with these contents.

    Attributes:
        at: path of the folder in the process.
        files: folder with the contents, to which nothing is written any more; None when there are no contents.
        found: survey of the contents.
    """

    at: Path
    files: Path | None
    found: Survey


@dataclass(frozen=True, slots=True)
class PreparedFolder:
    """A temporary folder prepared for one process, and the mounts that the process needs.

    Attributes:
        path: the folder's path in the process, the value of its ``TMPDIR``.
        at: where the folder must be mounted before the process uses it; None when no mount is needed.
        own: folder that only this process uses; None when no mount is needed.
        lower: folder with the initial contents, for an overlay; None when there is no overlay.
        tmp: a second path at which the folder is mounted, ``/tmp``; None when there is no second path.
        code: folder that is mounted read-only for the process; None when there is no such folder.
        places: what is mounted at Lambda's paths; None: nothing.
    """

    path: Path
    at: Path | None = None
    own: Path | None = None
    lower: Path | None = None
    tmp: Path | None = None
    code: Path | None = None
    places: Places | None = None

    @property
    def options(self) -> list[str]:
        """Options for thawd-thaw's command line, before the image; empty when nothing must be mounted."""
        named = {
            "--disk-at": self.at,
            "--disk-own": self.own,
            "--disk-lower": self.lower,
            "--disk-tmp": self.tmp,
            "--disk-code": self.code,
        }
        options = [text for option, path in named.items() if path is not None for text in (option, str(path))]
        return options if self.places is None else [*options, *self.places.options]


class Disks:
    """The temporary folders of one server.

    Args:
        folder: the folder that holds them; made when missing, with access for its owner alone.
        program: path of thawd-thaw; None when it is missing, so that nothing is frozen.
        needed: files that processes need besides their code and interpreter. If one of them is in ``/tmp``, or if this
            is None, processes see the machine's ``/tmp``.
        as_on_lambda: whether processes see code, runtime and layers at Lambda's paths if that is possible.

    Attributes:
        program: path of thawd-thaw, or None; see the argument.
        shared_tmp: why processes see the machine's ``/tmp``, empty if `needed` is None. If this is None, each process
            sees its own folder at ``/tmp``.
        real_paths: why processes see code, runtime and layers at their real paths. If this is None, they can see them
            at Lambda's paths.

    Raises:
        StoreError: the folder cannot be made (HTTP 500).
    """

    def __init__(
        self, folder: Path, *, program: Path | None, needed: Sequence[Path] | None = None, as_on_lambda: bool = False
    ) -> None:
        with using(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Resolved, because the folder is compared with the kernel's paths of mapped files, which contain no links.
            self._folder = folder.resolve()
        self.program = program
        self.shared_tmp: str | None = "" if needed is None else in_tmp([self._folder, *needed])
        self.real_paths: str | None = None if as_on_lambda else 'server.paths is "real"'
        self._needed = needed or ()
        self._lock = threading.Lock()
        self._mount_kind: tuple[MountKind, str] | None = None
        self._mount_points: dict[
            Path, Path
        ] = {}  # folder of a running process -> its mount point, the frozen process's folder
        self._condemned: set[Path] = set()  # folders of ended processes, removed when no copy uses them as mount points

    def make(self, name: str) -> Path:
        """Make an empty folder for one process, the value of its ``TMPDIR``, and return its path.

        Args:
            name: name of the process; its first 12 characters name the folder.

        Raises:
            StoreError: the folder cannot be made (HTTP 500).
            StoreFullError: the disk is full (HTTP 503).
        """
        folder = self._folder_of(name)
        with using(folder):
            folder.mkdir(mode=0o700)
            os.utime(folder, ns=(_UNTOUCHED_NS, _UNTOUCHED_NS))
        return folder

    def look(self, name: str, *, frozen_unix_ns: int | None = None) -> DiskSnapshot | None:
        """Survey the folder of a process that was frozen, or of a template.

        Copies can use the result directly as long as the process itself does not write to the folder. Takes long with
        many files.

        Args:
            name: name of the process.
            frozen_unix_ns: when the process was frozen, as its image says; None if it was not frozen.

        Returns:
            None when the process never used its folder: copies then only need another ``TMPDIR``.

        Raises:
            DiskRefusedError: copies cannot have these contents, at least not on this machine (HTTP 500).
            StoreError: the folder cannot be read (HTTP 500).
        """
        at = self._folder_of(name)
        with using(at):
            found = file_trees.survey(at)
            untouched = not found.entries and at.stat().st_mtime_ns == _UNTOUCHED_NS
        if untouched:
            return None
        if frozen_unix_ns is not None and found.changed_unix_ns > frozen_unix_ns:
            raise _changed(at)
        if found.stored_bytes > MAX_BYTES:
            raise DiskRefusedError(
                f"init left {found.stored_bytes >> 20:,} MiB in its temporary folder {at}, and a snapshot holds "
                f"{MAX_BYTES >> 20:,} MiB at most; have init remove files that are not needed, keep large files "
                "outside of the temporary folder, or set snapshot = false."
            )
        files = at if found.entries else None
        snapshot = DiskSnapshot(at, files, found)
        self._mount_kind_for(snapshot)
        return snapshot

    def take(self, snapshot: DiskSnapshot, to: Path, *, keep: bool = False) -> DiskSnapshot:
        """Move the contents into a new folder that is kept as long as the image.

        The new folder is durable on the disk when this returns. Takes long when the contents must be copied: with
        `keep`, and when `to` is on another file system.

        Args:
            snapshot: the result of `look`.
            to: a folder that does not exist yet.
            keep: whether the process keeps using its folder; otherwise that folder is empty afterwards.

        Raises:
            DiskRefusedError: the contents have changed since `look` (HTTP 500).
            StoreError: the contents cannot be stored (HTTP 500).
            StoreFullError: the disk is full (HTTP 503).
        """
        files = None
        with using(to):
            to.mkdir(mode=0o700)
            if snapshot.files is not None:
                if file_trees.survey(snapshot.at) != snapshot.found:
                    raise _changed(snapshot.at)
                files = to / _FILES
                if keep:
                    file_trees.copy(snapshot.at, files)
                else:
                    _move(snapshot.at, files)
            record = {
                "layout": _LAYOUT,
                "at": str(snapshot.at),
                "empty": files is None,
                "entries": snapshot.found.entries,
                "stored_bytes": snapshot.found.stored_bytes,
                "changed_unix_ns": snapshot.found.changed_unix_ns,
            }
            (to / _RECORD).write_text(json.dumps(record) + "\n", encoding="ascii")
            file_trees.sync(to)
        return replace(snapshot, files=files)

    def load(self, taken: Path | None) -> DiskSnapshot | None:
        """Load the disk snapshot that `take` put into the folder `taken`, which may have been renamed since.

        Returns:
            The disk snapshot; None when `taken` is None.

        Raises:
            DiskRefusedError: the disk snapshot is incomplete, or belongs to another data folder (HTTP 500).
        """
        if taken is None:
            return None
        try:
            snapshot = _read(taken)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DiskRefusedError(
                f"the disk snapshot {taken} is incomplete ({error}); remove the snapshot (`thawd snapshot rm`), then "
                "thawd freezes the function again."
            ) from error
        if snapshot.at.parent != self._folder:
            raise DiskRefusedError(
                f"the disk snapshot {taken} was made for {snapshot.at}, but temporary folders are in {self._folder} "
                "now; remove the snapshot (`thawd snapshot rm`), then thawd freezes the function again."
            )
        return snapshot

    def confine(self) -> None:
        """Test whether processes can have their own ``/tmp`` and see Lambda's paths. Blocks.

        Sets `shared_tmp` and `real_paths` accordingly.
        """
        self._confine()
        if self.real_paths is None:
            self.real_paths = self.shared_tmp or self._why_real_paths()

    def _why_real_paths(self) -> str | None:
        trial = self._folder / f"{_TRIED}{secrets.token_hex(8)}"
        if self.shared_tmp is not None:
            return "private_tmp is false"
        if (why := make_mount_points()) is not None:
            return why
        try:
            with using(trial):
                trial.mkdir(mode=0o700)
            places = Places(str(trial), trial, trial)
            return self._try(PreparedFolder(trial, trial, trial, tmp=TMP, code=trial, places=places))
        except StoreError as error:
            return error.message
        finally:
            file_trees.remove(trial)

    def hides(self, places: Places, needed: Iterable[Path]) -> str | None:
        """Say what processes need that mounts at Lambda's paths would hide; None: nothing."""
        return places.hides([*needed, self._folder, *self._needed, *([self.program] if self.program else [])])

    def _confine(self) -> None:
        if self.shared_tmp is not None:
            return
        if self.program is None:
            self.shared_tmp = "the program thawd-thaw is missing"
            return
        trial = self._folder / f"{_TRIED}{secrets.token_hex(8)}"
        try:
            with using(trial):
                trial.mkdir(mode=0o700)
            self.shared_tmp = self._try(PreparedFolder(trial, trial, trial, tmp=TMP, code=trial))
        except StoreError as error:
            self.shared_tmp = error.message
        finally:
            file_trees.remove(trial)

    def prepare(
        self,
        snapshot: DiskSnapshot | None,
        name: str,
        *,
        confined: Path | None = None,
        places: Places | None = None,
    ) -> PreparedFolder:
        """Prepare a folder for one process, with the contents of `snapshot` or, for None, empty.

        Takes long only when overlays do not work and `snapshot` is large.

        Args:
            snapshot: disk snapshot of the process that the new process is a copy of.
            name: name of the new process; its first 12 characters name the folder.
            confined: folder with the process's code. It is mounted read-only for the process, and the process's own
                folder is mounted at ``/tmp``. None: neither is mounted.
            places: what is mounted at Lambda's paths, for a confined process; None: nothing.

        Raises:
            DiskRefusedError: this machine cannot mount the folder for the copy (HTTP 500).
            StoreError: the folder cannot be made (HTTP 500).
            StoreFullError: the disk is full (HTTP 503).
        """
        if confined is not None:
            prepared = self.prepare(snapshot, name)
            at, own = (prepared.at or prepared.path), (prepared.own or prepared.path)
            return replace(prepared, at=at, own=own, tmp=TMP, code=confined, places=places)
        if snapshot is None:
            return PreparedFolder(self.make(name))
        kind = self._mount_kind_for(snapshot)
        own = self._folder_of(name)
        with self._lock, using(own):
            snapshot.at.mkdir(mode=0o700, exist_ok=True)  # if the server was restarted, `clean` has removed the folder
            own.mkdir(mode=0o700)
            self._mount_points[own] = snapshot.at
        with using(own):
            if snapshot.files is None:
                return PreparedFolder(snapshot.at, snapshot.at, own)
            if kind is MountKind.BIND:
                file_trees.copy(snapshot.files, own)
                return PreparedFolder(snapshot.at, snapshot.at, own)
            _make_layers(snapshot.files, own)
        return PreparedFolder(snapshot.at, snapshot.at, own, snapshot.files)

    def remove(self, name: str) -> None:
        """Remove the folder of a process that has ended; does nothing when there is none. May take long.

        If running copies use the folder as a mount point, it is removed after the last of them has ended.
        """
        own = self._folder_of(name)
        discarded = []
        with self._lock:
            self._mount_points.pop(own, None)
            self._condemned.add(own)
            used = set(self._mount_points.values())
            for folder in self._condemned - used:
                aside = self._folder / f"{_DISCARDED}{secrets.token_hex(8)}"
                try:
                    folder.rename(aside)
                except OSError:
                    continue  # the folder does not exist any more, or `clean` removes it at the next start
                discarded.append(aside)
            self._condemned &= used
        for folder in discarded:
            file_trees.remove(folder)

    def used_bytes(self, name: str) -> int:
        """Disk space of a process's own folder, bytes, without the files that it shares with other processes."""
        return stored_bytes(self._folder_of(name))

    def clean(self) -> int:
        """Remove all folders that an earlier server has left. Call it before any process is started.

        Returns:
            How many folders there were.

        Raises:
            StoreError: the folder cannot be read (HTTP 500).
        """
        with using(self._folder):
            left = list(self._folder.iterdir())
        for folder in left:
            file_trees.remove(folder)
        return len(left)

    def mount_kind(self) -> tuple[MountKind, str]:
        """The best kind of mount that works on this machine, found by trying, and why no better kind works."""
        if self._mount_kind is None:
            self._mount_kind = self._find_mount_kind()
        return self._mount_kind

    def _mount_kind_for(self, snapshot: DiskSnapshot) -> MountKind:
        kind, why = self.mount_kind()
        if kind is not MountKind.NONE:
            return kind
        left = "files in its temporary folder" if snapshot.files is not None else "its temporary folder in use"
        raise DiskRefusedError(
            f"init left {left} {snapshot.at}, and this machine cannot mount a folder of its own for each copy: {why}. "
            "If you cannot change that, have init remove the files and use the temporary folder only from the first "
            "invocation on."
        )

    def _find_mount_kind(self) -> tuple[MountKind, str]:
        if self.program is None:
            return MountKind.NONE, "the program thawd-thaw is missing"
        trial = self._folder / f"{_TRIED}{secrets.token_hex(8)}"
        overlay = PreparedFolder(trial / "at", trial / "at", trial / "own", trial / "files")
        try:
            with using(trial):
                for folder in (trial, trial / "at", trial / "files", trial / "own"):
                    folder.mkdir(mode=0o700)
                _make_layers(trial / "files", trial / "own")
            no_overlay = self._try(overlay)
            if no_overlay is None:
                return MountKind.OVERLAY, ""
            no_bind = self._try(replace(overlay, lower=None))
        except StoreError as error:
            return MountKind.NONE, error.message
        finally:
            file_trees.remove(trial)
        return (MountKind.BIND, no_overlay) if no_bind is None else (MountKind.NONE, no_bind)

    def _try(self, prepared: PreparedFolder) -> str | None:
        """Try the mounts of a prepared folder; returns the reason when they fail, None when they work."""
        command = [str(self.program), *prepared.options, "--try", "disk", os.devnull]
        try:
            tried = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TRY_S, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        if tried.returncode == 0:
            return None
        lines = tried.stderr.strip().splitlines()
        why = lines[0] if lines else f"{self.program} ended with status {tried.returncode}"
        return why.removeprefix("thawd: ").removeprefix("cannot thaw here: ")

    def _folder_of(self, name: str) -> Path:
        return self._folder / name[:_NAME_LENGTH]


def _read(taken: Path) -> DiskSnapshot:
    record = json.loads((taken / _RECORD).read_text(encoding="ascii"))
    if record["layout"] != _LAYOUT:
        raise ValueError(f"layout {record['layout']}")
    files = None if record["empty"] else taken / _FILES
    if files is not None and not files.is_dir():
        raise ValueError(f"{_FILES} is missing")
    found = Survey(record["entries"], record["stored_bytes"], record["changed_unix_ns"])
    return DiskSnapshot(Path(record["at"]), files, found)


def _make_layers(files: Path, own: Path) -> None:
    """Make an overlay's folders ``upper`` and ``work``.

    A process sees the permissions and times of ``upper`` on the merged folder, so ``upper`` gets those of `files`.
    """
    status = files.stat()
    upper = own / "upper"
    upper.mkdir()
    upper.chmod(stat.S_IMODE(status.st_mode))
    os.utime(upper, ns=(status.st_atime_ns, status.st_mtime_ns))
    (own / "work").mkdir()


def _move(at: Path, files: Path) -> None:
    """Move the contents of `at` to `files`. `at` stays as an empty folder, on which copies mount their folders."""
    if at.stat().st_dev == files.parent.stat().st_dev:
        at.rename(files)
    else:
        file_trees.copy(at, files)
        file_trees.remove(at)
    at.mkdir(mode=0o700)


def _changed(at: Path) -> DiskRefusedError:
    return DiskRefusedError(
        f"something was written to the temporary folder {at} during or after the freeze of the process; stop whatever "
        "writes there, perhaps a thread, before the freeze (in a before-snapshot hook), or set snapshot = false."
    )
