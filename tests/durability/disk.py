"""A disk that a test can break: the switches of `faulty_disk.h`, and what remains of unsynced data after a power cut.

The model is a disk with 512-byte sectors under a journaling file system. What fsync or fdatasync has confirmed stays.
Each other sector holds any of the versions written since then, and a file's size is any that it had since then. Of the
changes to a folder (names created, renamed, removed) the first few remain; only a sync of the folder makes them
permanent. After a failed sync, its pages count as clean (as on Linux): no later sync writes them to the disk, unless
they are written again.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import shutil
import struct
import subprocess
import sysconfig
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests import prestarted

SECTOR_BYTES = 512
PAGE_BYTES = 4096
UNLIMITED = -1
MILLION = 1_000_000
FIELDS = (
    "sequence",
    "fail_sync",
    "sync_failures",
    "short_writes",
    "refuse_writes",
    "free_bytes",
    "clock_offset_ns",
    "die_before_sync",
    "die_after_sync",
    "random",
    "syncs",
    "failed_syncs",
    "refused",
    "shortened",
)
_RECORD = struct.Struct("<IIqQqqqIIq")
_MAGIC = 0x4B534944
_WRITE, _TRUNCATE, _SYNC, _SYNC_FAILED, _SYNC_FOLDER, _CREATE, _RENAME, _UNLINK, _MAKE_FOLDER, _REMOVE_FOLDER = range(
    1, 11
)


@cache
def library() -> Path:
    """Compile `faulty_disk.c` and `faulty_disk_calls.c`."""
    sources = [Path(__file__).with_name(name) for name in ("faulty_disk.c", "faulty_disk_calls.c")]
    target = Path(tempfile.mkdtemp(prefix="faulty-disk-")) / "faulty_disk.so"
    own = (sysconfig.get_config_var("CC") or "cc").split()[0]
    compiler = own if shutil.which(own) else "cc"
    options = ["-std=c11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden"]
    subprocess.run([compiler, *options, "-o", target, *sources, "-ldl", "-lpthread"], check=True)
    return target


class FaultyDisk:
    """The disk with the folder `folder`, for a process that is started with `environ`.

    Its switches are attributes, named as in `faulty_disk.h`. Reading or setting an attribute reads or sets the switch
    of the running process.

    Args:
        folder: all files in it are on the disk.
        aside: a folder on the same file system for the disk's own files; created if missing.
        seed: seed of the random faults.
    """

    fail_sync: int
    sync_failures: int
    short_writes: int
    refuse_writes: int
    free_bytes: int
    clock_offset_ns: int
    die_before_sync: int
    die_after_sync: int
    syncs: int
    failed_syncs: int
    refused: int
    shortened: int

    def __init__(self, folder: Path, aside: Path, *, seed: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        undo = aside / "undo"
        undo.mkdir(parents=True, exist_ok=True)
        path = aside / "control"
        path.write_bytes(bytes(8 * len(FIELDS)))
        with path.open("r+b") as file:
            self.__dict__["_map"] = mmap.mmap(file.fileno(), 8 * len(FIELDS))
        self.__dict__["_folder"] = folder.resolve()
        self.__dict__["_undo"] = undo
        self.__dict__["environ"] = {
            "LD_PRELOAD": str(library()),
            "FAULTY_DISK_FOLDER": str(folder.resolve()),
            "FAULTY_DISK_CONTROL": str(path),
            "FAULTY_DISK_UNDO": str(undo),
        }
        self.free_bytes = UNLIMITED
        self.random = seed

    def __getattr__(self, name: str) -> int:
        if name not in FIELDS:
            raise AttributeError(name)
        value: int = struct.unpack_from("<q", self._map, 8 * FIELDS.index(name))[0]
        return value

    def __setattr__(self, name: str, value: int) -> None:
        struct.pack_into("<q", self._map, 8 * FIELDS.index(name), value)
        if name == "clock_offset_ns" and value:
            # thawd reads the clock when it is imported, so that a fork would have the clock of the original.
            self.environ[prestarted.EXECUTE] = "1"

    def heal(self) -> None:
        """Make the disk work without faults."""
        for name in (
            "fail_sync",
            "sync_failures",
            "short_writes",
            "refuse_writes",
            "die_before_sync",
            "die_after_sync",
        ):
            setattr(self, name, 0)
        self.free_bytes = UNLIMITED

    def cut(self, chance: random.Random) -> Counter[str]:
        """Simulate a power cut. Call this when every process that used the disk is dead.

        Returns:
            Numbers of lost sectors, sizes and names.
        """
        lost = PowerCut(self._folder, self._undo).apply(chance)
        self.forget()
        return lost

    def forget(self) -> None:
        """Count everything on the disk as synced from now on."""
        for path in self._undo.iterdir():
            path.unlink()


@dataclass
class _Change:
    """A write or a truncation that no sync has confirmed. `pages` are those that a failed sync did not write."""

    kind: int
    sequence: int
    offset: int
    length: int
    old_size: int
    old: bytes
    pages: set[int] | None = None

    def touched(self) -> set[int]:
        return set(range(self.offset // PAGE_BYTES, (self.offset + max(self.length, 1) - 1) // PAGE_BYTES + 1))


@dataclass
class _Entry:
    """A change to a folder that no sync of the folder has confirmed."""

    kind: int
    sequence: int
    inode: int
    path: Path
    other: Path | None

    @property
    def folder(self) -> Path:
        return (self.other or self.path).parent


@dataclass
class PowerCut:
    """Undoes changes that were not synced.

    Args:
        folder: the folder on the disk.
        undo: folder with the log of changes and the data needed to undo them.
    """

    folder: Path
    undo: Path
    _changes: dict[int, list[_Change]] = field(default_factory=lambda: defaultdict(list))
    _entries: list[_Entry] = field(default_factory=list)
    _lost: Counter[str] = field(default_factory=Counter)

    def apply(self, chance: random.Random) -> Counter[str]:
        """Choose what is lost, and undo it."""
        self._read()
        paths = self._paths()
        for inode, changes in self._changes.items():
            if changes and inode in paths:
                self._damage(paths[inode], changes, chance)
        self._rename_back(chance)
        # The index of SQLite's log is shared memory, which is not meant to outlive its processes.
        for path in self.folder.rglob("*-shm"):
            path.unlink()
        return self._lost

    def _read(self) -> None:
        log = self.undo / "log"
        content = log.read_bytes() if log.exists() else b""
        for kind, fields, paths, data in _records(content):
            sequence, inode, offset, length, old_size = fields
            changes = self._changes[inode]
            if kind in (_WRITE, _TRUNCATE):
                changes.append(_Change(kind, sequence, offset, length, old_size, data))
            elif kind == _SYNC:
                self._changes[inode] = _after_sync(changes, sequence)
            elif kind == _SYNC_FAILED:
                for change in changes:
                    if change.sequence <= sequence and change.pages is None:
                        change.pages = change.touched()
            elif kind == _SYNC_FOLDER:
                self._entries = [
                    entry for entry in self._entries if entry.sequence > sequence or entry.folder != paths[0]
                ]
            else:
                self._entries.append(_Entry(kind, sequence, inode, paths[0], paths[1]))

    def _paths(self) -> dict[int, Path]:
        return {
            path.lstat().st_ino: path
            for top in (self.folder, self.undo)
            for path in top.rglob("*")
            if path.is_file() and not path.is_symlink()
        }

    def _damage(self, path: Path, changes: list[_Change], chance: random.Random) -> None:
        """Set each sector, and the size, back to one of its versions."""
        kept_sizes = _how_many_stay(len(changes), chance)
        share = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        left: dict[int, int] = {}  # versions of a sector that are still to be undone
        with path.open("r+b") as file:
            for index in reversed(range(len(changes))):
                change = changes[index]
                is_size_lost = index >= kept_sizes and change.pages is None
                size = os.fstat(file.fileno()).st_size
                if change.kind == _TRUNCATE:
                    if is_size_lost:
                        file.truncate(change.old_size)
                        _put(file.fileno(), change.offset, change.old)
                        self._lost["sizes"] += 1
                    continue
                for sector in _sectors(change):
                    if change.pages is not None and sector * SECTOR_BYTES // PAGE_BYTES not in change.pages:
                        continue
                    if sector not in left:
                        left[sector] = chance.randint(1, len(changes)) if chance.random() < share else 0
                    if left[sector] > 0:
                        left[sector] -= 1
                        self._lose(file.fileno(), change, sector)
                if is_size_lost and change.offset + change.length > change.old_size < size:
                    file.truncate(change.old_size)
                    self._lost["sizes"] += 1

    def _lose(self, descriptor: int, change: _Change, sector: int) -> None:
        size = os.fstat(descriptor).st_size
        start = max(change.offset, sector * SECTOR_BYTES)
        end = min(change.offset + change.length, (sector + 1) * SECTOR_BYTES, size)
        if start < end:
            old = change.old[start - change.offset : end - change.offset]
            _put(descriptor, start, old.ljust(end - start, b"\0"))
            self._lost["sectors"] += 1

    def _rename_back(self, chance: random.Random) -> None:
        by_folder: dict[Path, list[_Entry]] = defaultdict(list)
        for entry in self._entries:
            by_folder[entry.folder].append(entry)
        lost = [entry for own in by_folder.values() for entry in own[_how_many_stay(len(own), chance) :]]
        for entry in sorted(lost, key=lambda entry: entry.sequence, reverse=True):
            # A lost folder stays if something was put into it: file systems sync a folder together with its name.
            with contextlib.suppress(OSError):
                self._take_back(entry)
                self._lost["names"] += 1

    def _take_back(self, entry: _Entry) -> None:
        kept = self.undo / str(entry.sequence)
        if entry.kind == _CREATE and _inode(entry.path) == entry.inode:
            entry.path.unlink()
        elif entry.kind == _MAKE_FOLDER:
            entry.path.rmdir()
        elif entry.kind == _REMOVE_FOLDER:
            entry.path.mkdir()
        elif entry.kind == _RENAME and entry.other is not None and _inode(entry.other) == entry.inode:
            if _inode(entry.path) is None:
                entry.other.rename(entry.path)
                if kept.exists():
                    kept.rename(entry.other)
        elif entry.kind == _UNLINK and kept.exists() and _inode(entry.path) is None:
            kept.rename(entry.path)


def _records(content: bytes) -> Iterator[tuple[int, tuple[int, ...], tuple[Path, Path | None], bytes]]:
    """Yield the log's records. The last may be incomplete; then the change it describes was not made."""
    at = 0
    while at + _RECORD.size <= len(content):
        magic, kind, *fields, path_bytes, other_bytes, data_bytes = _RECORD.unpack_from(content, at)
        assert magic == _MAGIC, f"the undo log is damaged at {at}"
        at += _RECORD.size
        path, other, data = (
            content[at : at + path_bytes],
            content[at + path_bytes : at + path_bytes + other_bytes],
            content[at + path_bytes + other_bytes : at + path_bytes + other_bytes + data_bytes],
        )
        at += path_bytes + other_bytes + data_bytes
        if at > len(content):
            return
        yield kind, tuple(fields), (Path(os.fsdecode(path)), Path(os.fsdecode(other)) if other else None), data


def _after_sync(changes: list[_Change], sequence: int) -> list[_Change]:
    """Return the changes that are still not on the disk after a sync that covers changes up to `sequence`."""
    synced: set[int] = set()
    left = []
    for change in reversed(changes):
        if change.sequence > sequence:
            left.append(change)
        elif change.pages is None:
            synced |= change.touched()
        else:
            change.pages -= synced
            if change.pages:
                left.append(change)
    return left[::-1]


def _sectors(change: _Change) -> range:
    return range(change.offset // SECTOR_BYTES, (change.offset + change.length - 1) // SECTOR_BYTES + 1)


def _how_many_stay(count: int, chance: random.Random) -> int:
    """Choose all, none, or any number of them."""
    return chance.choice((0, count, chance.randint(0, count)))


def _put(descriptor: int, offset: int, data: bytes) -> None:
    while data:
        done = os.pwrite(descriptor, data, offset)
        data, offset = data[done:], offset + done


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None
