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

import json
import os
import secrets
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from thawd.snapshot.disk import file_trees
from thawd.snapshot.disk.file_trees import DiskRefusedError, Survey
from thawd.snapshot.disk.places import TMP, Places, in_tmp, make_mount_points
from thawd.snapshot.disk.prepared_folders import MountKind, MountTrials, PreparedFolder, make_layers
from thawd.snapshot.disk.root_mounts import RootMounts
from thawd.snapshot.store.trust_and_locks import remove_tree, stored_bytes, using

__all__ = ["MAX_BYTES", "DiskRefusedError", "DiskSnapshot", "Disks", "MountKind", "PreparedFolder"]

MAX_BYTES = 10 << 30
"""Largest disk snapshot, bytes on the disk: Lambda's limit for ``/tmp``, 10,240 MB."""

_RECORD = "disk.json"
_FILES = "files"
_LAYOUT = 1
# The names of folders that are being removed begin with this prefix.
_DISCARDED = ".old-"
# Names are short, because processes listen on Unix sockets in their temporary folder and the path of a Unix socket has
# at most 107 bytes.
_NAME_LENGTH = 12
# The mtime of a folder that was never used. Python's `tempfile` changes it when it looks for the default folder.
_UNTOUCHED_NS = 1_000_000_000


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
        self._trials = MountTrials(self._folder, program)
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
        if self.shared_tmp is not None:
            return "private_tmp is false"
        return make_mount_points() or self._trials.own_tmp(as_on_lambda=True)

    def make_places(self, root: RootMounts) -> str | None:
        """Make what is missing in a root for its mounts, and try the mounts. Blocks.

        Returns:
            Why a process cannot have this root; None if it can.
        """
        return self._trials.root(root)

    def hides(self, places: Places, needed: Iterable[Path]) -> str | None:
        """Say what processes need that mounts at Lambda's paths would hide; None: nothing."""
        return places.hides([*needed, self._folder, *self._needed, *([self.program] if self.program else [])])

    def _confine(self) -> None:
        if self.shared_tmp is None:
            self.shared_tmp = self._trials.own_tmp()

    def prepare(
        self,
        snapshot: DiskSnapshot | None,
        name: str,
        *,
        confined: Path | None = None,
        places: Places | None = None,
        root: RootMounts | None = None,
    ) -> PreparedFolder:
        """Prepare a folder for one process, with the contents of `snapshot` or, for None, empty.

        Takes long only when overlays do not work and `snapshot` is large.

        Args:
            snapshot: disk snapshot of the process that the new process is a copy of.
            name: name of the new process; its first 12 characters name the folder.
            confined: folder with the process's code. It is mounted read-only for the process, and the process's own
                folder is mounted at ``/tmp``. None: neither is mounted.
            places: what is mounted at Lambda's paths, for a confined process; None: nothing.
            root: the root of a container image's process, which sees its folder at ``/tmp``; None: the process sees
                the machine's files.

        Raises:
            DiskRefusedError: this machine cannot mount the folder for the copy (HTTP 500).
            StoreError: the folder cannot be made (HTTP 500).
            StoreFullError: the disk is full (HTTP 503).
        """
        if root is not None:
            prepared = self.prepare(snapshot, name)
            own = prepared.own or prepared.path
            return PreparedFolder(TMP, at=TMP, own=own, lower=prepared.lower, root=root)
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
            make_layers(snapshot.files, own)
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
            remove_tree(folder)

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
            remove_tree(folder)
        return len(left)

    def mount_kind(self) -> tuple[MountKind, str]:
        """The best kind of mount that works on this machine, found by trying, and why no better kind works."""
        if self._mount_kind is None:
            self._mount_kind = self._trials.mount_kind()
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


def _move(at: Path, files: Path) -> None:
    """Move the contents of `at` to `files`. `at` stays as an empty folder, on which copies mount their folders."""
    if at.stat().st_dev == files.parent.stat().st_dev:
        at.rename(files)
    else:
        file_trees.copy(at, files)
        remove_tree(at)
    at.mkdir(mode=0o700)


def _changed(at: Path) -> DiskRefusedError:
    return DiskRefusedError(
        f"something was written to the temporary folder {at} during or after the freeze of the process; stop whatever "
        "writes there, perhaps a thread, before the freeze (in a before-snapshot hook), or set snapshot = false."
    )
