"""The cache of models on this machine: a folder of limited size, which any number of processes can use.

    blobs/SHA256         a read-only file, named by the SHA-256 of its content; written once and atomically
    blobs/SHA256.seen    the blob's size, time and inode when its hash was last verified; valid while they are unchanged
    derived/KEY/         files made from a model, such as an optimised copy; made again when missing
    trees/ID/            a folder of models: hard links to blobs
    index/KEY.json       names the blob of an address, with its ETag or version
    partial/KEY          a download in progress or interrupted; locked by the downloading process
    use/NAME             locked (shared) by the processes that use the blob or the derived files with this name; its
                         mtime is the time of the last use

A blob is the content of one file of a model. Files in use are never removed. The processes that use the cache at the
same time can belong to different functions. The cache stays consistent if one of them is killed at any moment.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
import weakref
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from thawd.models import snapshot_hooks
from thawd.models.faults import ModelError

_DEFAULT_MOST_BYTES = 20 << 30
_PARTIAL_KEPT_S = 86_400.0  # how long an interrupted download can be resumed
_CHUNK_BYTES = 1 << 20


RECORDED = ("text", "etag", "version", "size", "sha256")
"""The fields of a record in the index."""


class FileStamp(NamedTuple):
    """Size, time and inode of a file. While these are unchanged, the content counts as unchanged."""

    size: int
    mtime_ns: int
    inode: int


class CacheLease:
    """Keeps a blob or derived files in the cache until `end`, or until this process and its forks have ended.

    A lease is a lock on a file. A snapshot contains no locks, so the lock is released before the freeze and acquired
    again in each copy.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd: Optional[int] = None
        self.acquire()
        _uses.add(self)
        snapshot_hooks.before(_release_all)
        snapshot_hooks.after(_acquire_again)

    def acquire(self) -> None:
        """Acquire the lock and record the current time as the last use."""
        if self._fd is None:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._fd, fcntl.LOCK_SH)
        os.utime(self._fd)

    def release(self) -> None:
        """Release the lock. It can be acquired again later."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def end(self) -> None:
        """Release the lock for good."""
        self.release()
        _uses.discard(self)


_uses: "weakref.WeakSet[CacheLease]" = weakref.WeakSet()


def _release_all() -> None:
    for use in list(_uses):
        use.release()


def _acquire_again() -> None:
    for use in list(_uses):
        try:
            use.acquire()
        except OSError:  # files that are mapped remain usable, even if another process removes them
            pass


class Cache:
    """A folder with cached models.

    Args:
        folder: path of the folder. None: the environment variable ``MODEL_CACHE`` names it. Without this variable it is
            ``thawd/models`` in ``$XDG_CACHE_HOME`` (default ``~/.cache``), or, if that is not writable,
            ``thawd-models`` in the temporary folder.
        most_bytes: limit of the cache's size, which files in use can exceed. None: the environment variable
            ``MODEL_CACHE_MB`` (in MiB), or 20 GiB without it.
    """

    def __init__(self, folder: Optional[str] = None, *, most_bytes: Optional[int] = None) -> None:
        self.folder = os.path.abspath(folder or os.environ.get("MODEL_CACHE") or _default_folder())
        self.most_bytes = most_bytes or _configured_bytes() or _DEFAULT_MOST_BYTES

    def place(self, kind: str, name: str) -> str:
        """Path of `name` in the folder `kind`; creates the folder if it is missing."""
        folder = os.path.join(self.folder, kind)
        os.makedirs(folder, exist_ok=True)
        return os.path.join(folder, name)

    def recorded(self, key: str) -> Optional[Dict[str, Any]]:
        """The index's record under a key; None when there is none or it cannot be read."""
        record = _read(self.place("index", key + ".json"))
        return record if isinstance(record, dict) and set(RECORDED) <= set(record) else None

    def use(self, kind: str, name: str) -> Optional[CacheLease]:
        """Lease a blob or derived files; None when they do not exist."""
        if not os.path.exists(self.place(kind, name)):
            return None
        use = CacheLease(self.place("use", name))
        if os.path.exists(self.place(kind, name)):
            return use
        use.end()
        return None

    def is_sound(self, sha256: str) -> bool:
        """Whether a blob's hash matches its name; if not, the blob is removed.

        The blob is read only if its size, time or inode has changed since the hash was last verified.
        """
        path = self.place("blobs", sha256)
        if has_sha256(path, sha256, seen=path + ".seen"):
            return True
        with self.locked():
            if has_sha256(path, sha256, seen=path + ".seen"):  # another process has stored a sound blob meanwhile
                return True
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        return False

    @property
    def lock(self) -> str:
        """Path of the file to lock while blobs are removed or replaced."""
        os.makedirs(self.folder, exist_ok=True)
        return os.path.join(self.folder, "lock")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Prevent other processes from removing or replacing blobs during the ``with`` block."""
        with open(self.lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def make_room(self, needed_bytes: int = 0) -> None:
        """Remove unused blobs and derived files, least recently used first, until there is enough room.

        There is enough room if the cache can grow by `needed_bytes` without exceeding its limit. Files in use are kept,
        even if there is not enough room. Downloads that were interrupted more than one day ago are removed, too.
        """
        with self.locked():
            self._drop_old_partials()
            held = sorted(self._held())
            total = sum(size for _, _, _, size in held)
            for _, kind, name, size in held:
                if total + needed_bytes <= self.most_bytes:
                    return
                if self._remove(kind, name):
                    total -= size

    def _held(self) -> Iterator[Tuple[float, str, str, int]]:
        """Time of the last use, kind, name and size of each blob and of each folder with derived files."""
        for kind in ("blobs", "derived"):
            for entry in os.scandir(os.path.dirname(self.place(kind, "x"))):
                if "." not in entry.name:
                    yield self._last_use_s(entry), kind, entry.name, _size(entry.path)

    def _last_use_s(self, entry: "os.DirEntry[str]") -> float:
        try:
            return os.stat(self.place("use", entry.name)).st_mtime
        except FileNotFoundError:
            return entry.stat().st_mtime

    def _remove(self, kind: str, name: str) -> bool:
        fd = os.open(self.place("use", name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            path = self.place(kind, name)
            if kind == "derived":
                shutil.rmtree(path, ignore_errors=True)
            else:
                self._remove_trees_of(path)
                for gone in (path, path + ".seen"):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(gone)
            return True
        finally:
            os.close(fd)

    def _remove_trees_of(self, blob: str) -> None:
        """Remove the folders in ``trees`` that have a link to a blob."""
        status = os.stat(blob)
        if status.st_nlink == 1:
            return
        for tree in os.scandir(os.path.dirname(self.place("trees", "x"))):
            if any(os.stat(path).st_ino == status.st_ino for path in _files(tree.path)):
                shutil.rmtree(tree.path, ignore_errors=True)

    def _drop_old_partials(self) -> None:
        for entry in os.scandir(os.path.dirname(self.place("partial", "x"))):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - entry.stat().st_mtime > _PARTIAL_KEPT_S:
                    os.unlink(entry.path)

    def tree(self, files: Dict[str, str]) -> str:
        """Make a folder of hard links to blobs, unless it exists; returns its path.

        `files` maps each path in the folder to the SHA-256 of a blob.

        The caller must hold leases on the blobs. When one of the blobs is removed, the folder is removed, too.
        """
        name = key_of(*(f"{path} {sha256}" for path, sha256 in sorted(files.items())))
        made = self.place("trees", name)
        if not self._is_tree(made, files):
            staged = tempfile.mkdtemp(prefix=".new-", dir=os.path.dirname(made))
            os.chmod(staged, 0o755)
            for path, sha256 in files.items():
                target = os.path.join(staged, path)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.link(self.place("blobs", sha256), target)
            shutil.rmtree(made, ignore_errors=True)
            try:
                os.rename(staged, made)
            except OSError:  # another process has made the same folder
                shutil.rmtree(staged)
        return made

    def _is_tree(self, folder: str, files: Dict[str, str]) -> bool:
        try:
            return all(
                os.path.samefile(os.path.join(folder, path), self.place("blobs", sha256))
                for path, sha256 in files.items()
            )
        except FileNotFoundError:
            return False


def key_of(*parts: Optional[str]) -> str:
    """A file name computed from `parts`: equal parts result in equal names."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def has_sha256(path: str, sha256: str, *, seen: str) -> bool:
    """Whether a file has this hash; False for a file that does not exist.

    The file is read unless it has the size, time, inode and hash that the file `seen` records. `seen` is written when
    the hash has been verified.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    now = FileStamp(status.st_size, status.st_mtime_ns, status.st_ino)
    recorded = _read(seen)
    if recorded == {**now._asdict(), "sha256": sha256}:
        return True
    if sha256_of(path) != sha256:
        return False
    write_record(seen, {**now._asdict(), "sha256": sha256})
    return True


def sha256_of(path: str) -> str:
    """SHA-256 of a file in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def write_record(path: str, record: Dict[str, Any]) -> None:
    """Write a record of the cache atomically. It is not synced, so a crash of the machine can undo the write."""
    staged = f"{path}.{os.getpid()}"
    with open(staged, "w") as file:
        json.dump(record, file)
    os.replace(staged, path)


def _read(path: str) -> Optional[Dict[str, Any]]:
    try:
        with open(path) as file:
            record: Dict[str, Any] = json.load(file)
    except (OSError, ValueError):
        return None
    return record


def _files(folder: str) -> List[str]:
    return [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names]


def _size(path: str) -> int:
    try:
        if os.path.isdir(path):
            return sum(os.stat(inner).st_size for inner in _files(path))
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _configured_bytes() -> int:
    """The value of the environment variable ``MODEL_CACHE_MB``, in bytes; 0 when it is not set.

    Raises:
        ModelError: the value is not a number.
    """
    value = os.environ.get("MODEL_CACHE_MB") or "0"
    if not value.isdecimal():
        raise ModelError(
            f"the environment variable MODEL_CACHE_MB is {value!r}; set it to a whole number of MiB, such as 20480"
        )
    return int(value) << 20


def _default_folder() -> str:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    for folder in (os.path.join(home, "thawd", "models"), os.path.join(tempfile.gettempdir(), "thawd-models")):
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise ModelError("there is no writable folder for the cache of models; set the variable MODEL_CACHE to one")
