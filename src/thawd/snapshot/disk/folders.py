"""The temporary folders of execution environments: made, kept with a snapshot, given to copies, removed.

Owns the folder that holds them all. A process knows its temporary folder by its path, and the path is in the frozen
memory; so each copy finds files of its own under the path of the process that was frozen, in a mount namespace that
thawd-thaw enters first of all: an overlay over what init left or, where there are no overlays, a folder filled for it
beforehand, its blocks shared where the file system can. May not decide what happens where neither is to be had: it
raises the reason, and the spawner forks or starts cold. One server uses a folder at a time.

All methods block; those that may take long say so. Threads may call them at once.
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
from thawd.snapshot.disk import tree
from thawd.snapshot.disk.tree import DiskRefusedError, Survey
from thawd.snapshot.store.files import stored_bytes, using

__all__ = ["MAX_BYTES", "DiskRefusedError", "DiskSnapshot", "Disks", "Prepared", "Way"]

MAX_BYTES = 10 << 30
"""Disk space of a disk snapshot, as Lambda allows for ``/tmp``: 10,240 MB at most."""

TMP = Path("/tmp")
_RECORD = "disk.json"
_FILES = "files"
_LAYOUT = 1
_DISCARDED = ".old-"
_TRIED = ".try-"
# Processes listen on sockets in their temporary folder, whose paths may have 107 bytes: a short name leaves room.
_NAME_LENGTH = 12
# The time of a folder that nobody has put anything into yet. Asking Python's `tempfile` for the folder changes it.
_UNTOUCHED_NS = 1_000_000_000
_TRY_S = 10.0


class Way(enum.Enum):
    """How a copy comes to a folder of its own under the path of another's."""

    OVERLAY = "overlay"
    BIND = "bind"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class DiskSnapshot:
    """What a process left in its temporary folder, as every copy of it begins.

    Attributes:
        at: the path under which the process knows it.
        files: folder with what was in it, not written to any more; None when there was nothing.
        found: what that is.
    """

    at: Path
    files: Path | None
    found: Survey


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a process needs in order to have a temporary folder of its own.

    Attributes:
        path: where it finds it, the value of its ``TMPDIR``.
        at: where it must be mounted before the process looks; None when it lies there by itself.
        own: folder of this process alone.
        lower: what it begins with, for an overlay.
        tmp: where the folder is to be seen as well, ``/tmp``; None: nowhere else.
        code: folder that the process finds read-only; None: none.
    """

    path: Path
    at: Path | None = None
    own: Path | None = None
    lower: Path | None = None
    tmp: Path | None = None
    code: Path | None = None

    @property
    def options(self) -> list[str]:
        """For thawd-thaw, before the image; none where nothing must be mounted."""
        named = {
            "--disk-at": self.at,
            "--disk-own": self.own,
            "--disk-lower": self.lower,
            "--disk-tmp": self.tmp,
            "--disk-code": self.code,
        }
        return [text for option, path in named.items() if path is not None for text in (option, str(path))]


class Disks:
    """The temporary folders of one server.

    Args:
        folder: holds them; made when missing, with access for its owner alone.
        program: thawd-thaw; None where there is none, and nothing is frozen.
        needed: what processes need besides their code and interpreter; where some of it lies in ``/tmp``, they see the
            machine's.

    Attributes:
        program: see there.
        shared_tmp: why processes see the machine's ``/tmp``; None: each finds its own folder there.

    Raises:
        StoreError: the folder cannot be made (HTTP 500).
    """

    def __init__(self, folder: Path, *, program: Path | None, needed: Sequence[Path] | None = None) -> None:
        with using(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Mapped files show their paths without links, and are compared with these.
            self._folder = folder.resolve()
        self.program = program
        self.shared_tmp: str | None = "" if needed is None else in_tmp([self._folder, *needed])
        self._lock = threading.Lock()
        self._way: tuple[Way, str] | None = None
        self._at: dict[Path, Path] = {}  # by folder of a living process: whose path it is mounted on
        self._condemned: set[Path] = set()  # folders of dead processes that living ones are mounted on

    def make(self, name: str) -> Path:
        """An empty folder for one process, the value of its ``TMPDIR``.

        Args:
            name: of the process; its first 12 characters name the folder.

        Raises:
            StoreError: it cannot be made (HTTP 500).
            StoreFullError: the disk is full (HTTP 503).
        """
        folder = self._own(name)
        with using(folder):
            folder.mkdir(mode=0o700)
            os.utime(folder, ns=(_UNTOUCHED_NS, _UNTOUCHED_NS))
        return folder

    def look(self, name: str, *, frozen_unix_ns: int | None = None) -> DiskSnapshot | None:
        """What a process left in its folder: one that was frozen, or that stands still to be forked.

        What is returned can be given to copies at once, as long as the process itself does not write there. Takes long
        where there are many files.

        Args:
            name: of the process.
            frozen_unix_ns: when it was frozen, as the image says; None where it was not.

        Returns:
            None when it never used its folder: copies then need nothing but another ``TMPDIR``.

        Raises:
            DiskRefusedError: copies cannot be given it, as it is or on this machine (HTTP 500).
            StoreError: it cannot be read (HTTP 500).
        """
        at = self._own(name)
        with using(at):
            found = tree.survey(at)
            untouched = not found.entries and at.stat().st_mtime_ns == _UNTOUCHED_NS
        if untouched:
            return None
        if frozen_unix_ns is not None and found.changed_unix_ns > frozen_unix_ns:
            raise _changed(at)
        if found.stored_bytes > MAX_BYTES:
            raise DiskRefusedError(
                f"init left {found.stored_bytes >> 20:,} MiB in its temporary folder {at}, and a snapshot holds "
                f"{MAX_BYTES >> 20:,} MiB at most; have it remove what is not needed, keep large files outside of the "
                "temporary folder, or set snapshot = false."
            )
        files = at if found.entries else None
        snapshot = DiskSnapshot(at, files, found)
        self._way_for(snapshot)
        return snapshot

    def take(self, snapshot: DiskSnapshot, to: Path, *, keep: bool = False) -> DiskSnapshot:
        """Move what was found into a new folder, for as long as the image lives; durable when it returns.

        Takes long where it must be copied: with `keep`, and where `to` is on another file system.

        Args:
            snapshot: as `look` returned it.
            to: a folder that is not there yet.
            keep: the process goes on with its folder; else it finds an empty one from now on.

        Raises:
            DiskRefusedError: it has changed meanwhile (HTTP 500).
            StoreError: it cannot be stored (HTTP 500).
            StoreFullError: the disk is full (HTTP 503).
        """
        files = None
        with using(to):
            to.mkdir(mode=0o700)
            if snapshot.files is not None:
                if tree.survey(snapshot.at) != snapshot.found:
                    raise _changed(snapshot.at)
                files = to / _FILES
                if keep:
                    tree.copy(snapshot.at, files)
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
            tree.sync(to)
        return replace(snapshot, files=files)

    def load(self, taken: Path | None) -> DiskSnapshot | None:
        """What `take` has put into a folder, which may have been renamed since; None for none.

        Raises:
            DiskRefusedError: it is not whole, or belongs to another data folder (HTTP 500).
        """
        if taken is None:
            return None
        try:
            snapshot = _read(taken)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DiskRefusedError(
                f"the disk snapshot {taken} is not whole ({error}); remove the snapshot (`thawd snapshot rm`), and the "
                "function is frozen anew."
            ) from error
        if snapshot.at.parent != self._folder:
            raise DiskRefusedError(
                f"the disk snapshot {taken} belongs at {snapshot.at}, and temporary folders are in {self._folder} now; "
                "remove the snapshot (`thawd snapshot rm`), and the function is frozen anew."
            )
        return snapshot

    def confine(self) -> None:
        """Find out whether processes can have a ``/tmp`` of their own, by trying; see `shared_tmp`. Blocks."""
        if self.shared_tmp is not None:
            return
        if self.program is None:
            self.shared_tmp = "there is no thawd-thaw"
            return
        trial = self._folder / f"{_TRIED}{secrets.token_hex(8)}"
        try:
            with using(trial):
                trial.mkdir(mode=0o700)
            self.shared_tmp = self._try(Prepared(trial, trial, trial, tmp=TMP, code=trial))
        except StoreError as error:
            self.shared_tmp = error.message
        finally:
            tree.remove(trial)

    def prepare(self, snapshot: DiskSnapshot | None, name: str, *, confined: Path | None = None) -> Prepared:
        """A folder for one process, which begins as `snapshot` says; None: empty.

        Takes long only where there are no overlays and `snapshot` holds much.

        Args:
            snapshot: of the process that the new one is a copy of.
            name: of the new process; its first 12 characters name the folder.
            confined: the process's code, which it finds read-only, and its own folder at ``/tmp``; None: neither.

        Raises:
            DiskRefusedError: this machine cannot give it to the copy (HTTP 500).
            StoreError: it cannot be made (HTTP 500).
            StoreFullError: the disk is full (HTTP 503).
        """
        if confined is not None:
            prepared = self.prepare(snapshot, name)
            at, own = (prepared.at or prepared.path), (prepared.own or prepared.path)
            return replace(prepared, at=at, own=own, tmp=TMP, code=confined)
        if snapshot is None:
            return Prepared(self.make(name))
        way = self._way_for(snapshot)
        own = self._own(name)
        with self._lock, using(own):
            snapshot.at.mkdir(mode=0o700, exist_ok=True)  # an earlier server's is gone
            own.mkdir(mode=0o700)
            self._at[own] = snapshot.at
        with using(own):
            if snapshot.files is None:
                return Prepared(snapshot.at, snapshot.at, own)
            if way is Way.BIND:
                tree.copy(snapshot.files, own)
                return Prepared(snapshot.at, snapshot.at, own)
            _make_layers(snapshot.files, own)
        return Prepared(snapshot.at, snapshot.at, own, snapshot.files)

    def remove(self, name: str) -> None:
        """Remove the folder of a process that has ended; nothing when there is none. May take long.

        One that living copies begin with, or have theirs mounted on, goes with the last of them.
        """
        own = self._own(name)
        discarded = []
        with self._lock:
            self._at.pop(own, None)
            self._condemned.add(own)
            used = set(self._at.values())
            for folder in self._condemned - used:
                aside = self._folder / f"{_DISCARDED}{secrets.token_hex(8)}"
                try:
                    folder.rename(aside)
                except OSError:
                    continue  # it is gone; or `clean` gets it
                discarded.append(aside)
            self._condemned &= used
        for folder in discarded:
            tree.remove(folder)

    def used_bytes(self, name: str) -> int:
        """Disk space that a process's own folder takes, bytes; what it shares with others does not count."""
        return stored_bytes(self._own(name))

    def clean(self) -> int:
        """Remove the folders of all processes: those that a server that died left. Call it before any is started.

        Returns:
            How many there were.

        Raises:
            StoreError: the folder cannot be read (HTTP 500).
        """
        with using(self._folder):
            left = list(self._folder.iterdir())
        for folder in left:
            tree.remove(folder)
        return len(left)

    def way(self) -> tuple[Way, str]:
        """How copies come to folders of their own on this machine; and why not in a better way, found out by trying."""
        if self._way is None:
            self._way = self._find_way()
        return self._way

    def _way_for(self, snapshot: DiskSnapshot) -> Way:
        way, why = self.way()
        if way is not Way.NONE:
            return way
        left = "files in its temporary folder" if snapshot.files is not None else "its temporary folder in use"
        raise DiskRefusedError(
            f"init left {left} {snapshot.at}, and this machine cannot give copies one of their own: {why}. "
            "Where that cannot be changed, have init remove the files, and ask for the folder on the first invocation."
        )

    def _find_way(self) -> tuple[Way, str]:
        if self.program is None:
            return Way.NONE, "there is no thawd-thaw"
        trial = self._folder / f"{_TRIED}{secrets.token_hex(8)}"
        overlay = Prepared(trial / "at", trial / "at", trial / "own", trial / "files")
        try:
            with using(trial):
                for folder in (trial, trial / "at", trial / "files", trial / "own"):
                    folder.mkdir(mode=0o700)
                _make_layers(trial / "files", trial / "own")
            no_overlay = self._try(overlay)
            if no_overlay is None:
                return Way.OVERLAY, ""
            no_bind = self._try(replace(overlay, lower=None))
        except StoreError as error:
            return Way.NONE, error.message
        finally:
            tree.remove(trial)
        return (Way.BIND, no_overlay) if no_bind is None else (Way.NONE, no_bind)

    def _try(self, prepared: Prepared) -> str | None:
        """Why a copy could not have this folder; None when it could."""
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

    def _own(self, name: str) -> Path:
        return self._folder / name[:_NAME_LENGTH]


def in_tmp(paths: Iterable[Path]) -> str | None:
    """Which of `paths` would be hidden by another ``/tmp``, in words; None when none would."""
    for path in paths:
        for place in (path, path.resolve()):
            if TMP in (place, *place.parents):
                return f"{path} lies in {TMP}"
    return None


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
    """The folders of an overlay; the upper one shows its permissions and time as the merged folder's."""
    status = files.stat()
    upper = own / "upper"
    upper.mkdir()
    upper.chmod(stat.S_IMODE(status.st_mode))
    os.utime(upper, ns=(status.st_atime_ns, status.st_mtime_ns))
    (own / "work").mkdir()


def _move(at: Path, files: Path) -> None:
    """Leaves an empty folder behind, on which copies mount theirs."""
    if at.stat().st_dev == files.parent.stat().st_dev:
        at.rename(files)
    else:
        tree.copy(at, files)
        tree.remove(at)
    at.mkdir(mode=0o700)


def _changed(at: Path) -> DiskRefusedError:
    return DiskRefusedError(
        f"something was written to the temporary folder {at} while the process was being frozen, or since; stop what "
        "writes there, perhaps a thread, before the freeze (in a before-snapshot hook), or set snapshot = false."
    )
