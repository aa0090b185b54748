"""The cache of models on this machine: files by the SHA-256 of their content, bounded in size, none in use removed.

    blobs/SHA256         a file, read-only, written once, there whole or not at all
    blobs/SHA256.seen    its size, time and inode when its hash was last found right: while they are the same, so is it
    derived/KEY/         what was made of a model, such as an optimised copy; made anew when it is gone
    trees/ID/            a folder of models: hard links to blobs
    index/KEY.json       which blob an address, with its ETag or version, stands for
    partial/KEY          a download under way, or broken off; locked by who downloads
    use/NAME             locked shared by who uses a blob or what was derived; its time is the last use

Any number of processes work on it at once, also of several users' functions, and may be killed at any moment.
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

from thawd.models import snapshots
from thawd.models.faults import ModelError

_DEFAULT_MOST_BYTES = 20 << 30
_PARTIAL_KEPT_S = 86_400.0
_CHUNK_BYTES = 1 << 20


RECORDED = ("text", "etag", "version", "size", "sha256")
"""What the index tells of an object."""


class Seen(NamedTuple):
    """What tells a file that was not touched."""

    size: int
    mtime_ns: int
    inode: int


class Use:
    """A blob or something derived that must stay while this process, or one forked from it, lives or until `end`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd: Optional[int] = None
        self.take()
        _uses.add(self)
        snapshots.before(_let_go)
        snapshots.after(_take_again)

    def take(self) -> None:
        """Hold it; now is its last use."""
        if self._fd is None:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._fd, fcntl.LOCK_SH)
        os.utime(self._fd)

    def let_go(self) -> None:
        """Hold it no more, for the time being."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def end(self) -> None:
        """Hold it no more."""
        self.let_go()
        _uses.discard(self)


_uses: "weakref.WeakSet[Use]" = weakref.WeakSet()


def _let_go() -> None:
    for use in list(_uses):
        use.let_go()


def _take_again() -> None:
    for use in list(_uses):
        try:
            use.take()
        except OSError:  # what is mapped by now stays, whatever happens to the cache
            pass


class Cache:
    """A folder that keeps models.

    Args:
        folder: it; else the variable ``MODEL_CACHE``, ``$XDG_CACHE_HOME/thawd/models`` or ``~/.cache/thawd/models``,
            and where none of these can be written, a folder among the temporary files.
        most_bytes: how much it may hold, but for what is in use; else the variable ``MODEL_CACHE_MB``, in MiB, or
            20 GiB.
    """

    def __init__(self, folder: Optional[str] = None, *, most_bytes: Optional[int] = None) -> None:
        self.folder = os.path.abspath(folder or os.environ.get("MODEL_CACHE") or _default_folder())
        self.most_bytes = most_bytes or _given_bytes() or _DEFAULT_MOST_BYTES

    def place(self, kind: str, name: str) -> str:
        """Path of `name` in the folder `kind`, which is made when it is missing."""
        folder = os.path.join(self.folder, kind)
        os.makedirs(folder, exist_ok=True)
        return os.path.join(folder, name)

    def recorded(self, key: str) -> Optional[Dict[str, Any]]:
        """What is recorded under a key of the index; None where there is nothing that can be read."""
        record = _read(self.place("index", key + ".json"))
        return record if isinstance(record, dict) and set(RECORDED) <= set(record) else None

    def use(self, kind: str, name: str) -> Optional[Use]:
        """Hold on to a blob or something derived; None where it is not there (any more)."""
        if not os.path.exists(self.place(kind, name)):
            return None
        use = Use(self.place("use", name))
        if os.path.exists(self.place(kind, name)):
            return use
        use.end()
        return None

    def is_sound(self, sha256: str) -> bool:
        """Whether a blob is what its name says. Read only where it was touched; removed where it is not."""
        path = self.place("blobs", sha256)
        if has_sha256(path, sha256, seen=path + ".seen"):
            return True
        with self.locked():
            if has_sha256(path, sha256, seen=path + ".seen"):  # another process has put a sound one there
                return True
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        return False

    @property
    def lock(self) -> str:
        """The file to lock while blobs are removed or replaced."""
        os.makedirs(self.folder, exist_ok=True)
        return os.path.join(self.folder, "lock")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other process remove or replace blobs meanwhile."""
        with open(self.lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def make_room(self, needed_bytes: int = 0) -> None:
        """Remove what was used longest ago, and is in use by nobody, until `needed_bytes` more fit."""
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
        """Last use, kind, name and size of all that may be removed."""
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
        """Remove the folders that have a link to a blob."""
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
        """A folder in which each relative path of `files` is the blob of that SHA-256.

        The caller holds the blobs, so they stay; who removes one of them later removes the folder.
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
            except OSError:  # another process has put the same one there
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
    """A name for what `parts` say together."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def has_sha256(path: str, sha256: str, *, seen: str) -> bool:
    """Whether a file has that hash. It is read unless it was not touched since the file `seen` was written.

    A file that is there but cannot be read raises OSError; one that is not there has no hash.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    now = Seen(status.st_size, status.st_mtime_ns, status.st_ino)
    recorded = _read(seen)
    if recorded == {**now._asdict(), "sha256": sha256}:
        return True
    if sha256_of(path) != sha256:
        return False
    write_record(seen, {**now._asdict(), "sha256": sha256})
    return True


def sha256_of(path: str) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def write_record(path: str, record: Dict[str, Any]) -> None:
    """Write a record of the cache so that it appears at once and whole; a crash of the machine may undo it."""
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


def _given_bytes() -> int:
    """The variable ``MODEL_CACHE_MB``, in bytes; 0: it says nothing.

    Raises:
        ModelError: it is no number.
    """
    given = os.environ.get("MODEL_CACHE_MB") or "0"
    if not given.isdecimal():
        raise ModelError(f"the variable MODEL_CACHE_MB is {given!r}; it takes a whole number of MiB, such as 20480")
    return int(given) << 20


def _default_folder() -> str:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    for folder in (os.path.join(home, "thawd", "models"), os.path.join(tempfile.gettempdir(), "thawd-models")):
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise ModelError("there is no folder to keep models in; name one by the variable MODEL_CACHE")
