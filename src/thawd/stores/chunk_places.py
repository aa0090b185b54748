"""Where chunks and records of snapshots are stored: a folder, or a bucket of S3, Google Cloud Storage or Azure.

A place holds objects, bytes under a key, and knows nothing about what they mean; `thawd.transfer` does. A key is a path
of letters, digits, ``_``, ``-``, ``(``, ``)`` and ``/``. An object is written whole or not at all, and a second write
replaces it. All methods block, and several threads may call them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from thawd.errors import ResourceNotFoundException, StoreError, StoreFullError
from thawd.resources import RemoteBucket
from thawd.stores.objects.remote import PAGE_OBJECTS, BucketStore
from thawd.system import folders

_KEY = re.compile(r"[A-Za-z0-9_()-]+(/[A-Za-z0-9_()-]+)*\Z")
_FOLDER = re.compile(r"[A-Za-z0-9_()-]+\Z")
_UNFINISHED = ".new-"
_FULL = (28, 122)  # ENOSPC, EDQUOT


class PlacedObject(NamedTuple):
    """An object in a listing.

    Attributes:
        key: its key.
        size: its bytes.
        modified_unix_s: when it was written, by the clock of the store.
    """

    key: str
    size: int
    modified_unix_s: float


class ChunkPlace(Protocol):
    """A place for objects.

    Every method raises StoreError if the place failed, and the call may be repeated (HTTP 500).

    Attributes:
        name: names the place in messages.
        frees_chunks: whether the place itself removes chunks that no record needs. Then they are never removed here.
    """

    name: str
    frees_chunks: bool

    def put(self, key: str, data: bytes) -> None:
        """Store an object, durably."""

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        """Read an object.

        Raises:
            ResourceNotFoundException: there is no such object (HTTP 404).
            StoreError: it has more than `limit_bytes`, or the place failed (HTTP 500).
        """

    def find(self, key: str) -> PlacedObject | None:
        """One object's entry; None: there is no such object."""

    def listed(self, prefix: str) -> Iterator[PlacedObject]:
        """The objects in the folder `prefix`, at any depth, in no particular order."""

    def remove(self, key: str) -> None:
        """Remove an object; no error when there is none."""


class FolderPlace:
    """A folder, also one that several machines mount.

    Args:
        folder: the folder; made when missing, with access for its owner alone.
    """

    def __init__(self, folder: Path) -> None:
        self.frees_chunks = False
        self._folder = folder.absolute()
        self.name = str(self._folder)

    def put(self, key: str, data: bytes) -> None:
        """See `ChunkPlace.put`."""
        path = self._path(key)
        with _explained(path):
            _make(path.parent)
            written = path.with_name(f"{_UNFINISHED}{secrets.token_hex(8)}")
            try:
                with open(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                written.rename(path)
            except BaseException:
                written.unlink(missing_ok=True)
                raise
            _sync_names(path.parent)

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        """See `ChunkPlace.get`."""
        path = self._path(key)
        with _explained(path):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            except FileNotFoundError:
                raise ResourceNotFoundException(f"there is no {key} in {self.name}.") from None
            with open(fd, "rb") as file:
                data = file.read(limit_bytes + 1)
        return _limited(data, limit_bytes, f"{self.name}/{key}")

    def find(self, key: str) -> PlacedObject | None:
        """See `ChunkPlace.find`."""
        path = self._path(key)
        with _explained(path):
            try:
                status = path.lstat()
            except FileNotFoundError:
                return None
        return PlacedObject(key, status.st_size, status.st_mtime) if stat.S_ISREG(status.st_mode) else None

    def listed(self, prefix: str) -> Iterator[PlacedObject]:
        """See `ChunkPlace.listed`."""
        for path in _files_below(self._path(prefix)):
            key = str(path.relative_to(self._folder))
            if _KEY.match(key) and (found := self.find(key)) is not None:
                yield found

    def remove(self, key: str) -> None:
        """See `ChunkPlace.remove`."""
        path = self._path(key)
        with _explained(path):
            path.unlink(missing_ok=True)

    def remove_unfinished(self, *, before_unix_s: float) -> int:
        """Remove what processes left behind that died while they wrote, if it is older. Returns the number of files.

        Raises:
            StoreError: a folder cannot be listed, or a file cannot be removed (HTTP 500).
        """
        removed = 0
        for path in _files_below(self._folder):
            if path.name.startswith(_UNFINISHED):
                with _explained(path), contextlib.suppress(FileNotFoundError):
                    if path.lstat().st_mtime < before_unix_s:
                        path.unlink()
                        removed += 1
        return removed

    def _path(self, key: str) -> Path:
        return self._folder / _checked(key)


class BucketPlace:
    """A bucket, below the prefix of its URL.

    Args:
        bucket: the bucket.
    """

    def __init__(self, bucket: RemoteBucket) -> None:
        self.frees_chunks = False
        self._bucket = bucket
        self._store = BucketStore(bucket)
        self.name = str(bucket.url)

    def put(self, key: str, data: bytes) -> None:
        """See `ChunkPlace.put`."""
        import obstore

        self._store.explained(lambda: obstore.put(self._store.opened(), self._key(key), data))

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        """See `ChunkPlace.get`."""
        import obstore

        def read() -> bytes:
            answer = obstore.get(self._store.opened(), self._key(key))
            if answer.meta["size"] > limit_bytes:
                raise _too_large(f"{self.name}/{key}", limit_bytes)
            return bytes(answer.bytes())

        return _limited(self._store.explained(read), limit_bytes, f"{self.name}/{key}")

    def find(self, key: str) -> PlacedObject | None:
        """See `ChunkPlace.find`."""
        import obstore

        try:
            found = self._store.explained(lambda: obstore.head(self._store.opened(), self._key(key)))
        except ResourceNotFoundException:
            return None
        return PlacedObject(key, found["size"], found["last_modified"].timestamp())

    def listed(self, prefix: str) -> Iterator[PlacedObject]:
        """See `ChunkPlace.listed`."""
        import obstore

        pages = self._store.explained(
            lambda: iter(obstore.list(self._store.opened(), prefix=f"{self._key(prefix)}/", chunk_size=PAGE_OBJECTS))
        )
        while (page := self._store.explained(lambda: next(pages, None))) is not None:
            for entry in page:
                key = entry["path"].removeprefix(self._bucket.prefix)
                if _KEY.match(key):
                    yield PlacedObject(key, entry["size"], entry["last_modified"].timestamp())

    def remove(self, key: str) -> None:
        """See `ChunkPlace.remove`."""
        import obstore

        with contextlib.suppress(ResourceNotFoundException):
            self._store.explained(lambda: obstore.delete(self._store.opened(), self._key(key)))

    def _key(self, key: str) -> str:
        return self._bucket.prefix + _checked(key)


def _files_below(folder: Path) -> Iterator[Path]:
    """What lies in a folder at any depth and is no folder itself; nothing if there is no such folder.

    Folders whose names cannot be part of a key, such as ``lost+found``, are passed over. `os.walk` is not used: it
    passes over folders that cannot be listed, too, and a record that is not listed counts as one that was removed.

    Raises:
        StoreError: a folder cannot be listed (HTTP 500).
    """
    waiting = [folder]
    while waiting:
        one = waiting.pop()
        files: list[Path] = []
        with _explained(one), contextlib.suppress(FileNotFoundError), os.scandir(one) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    files.append(Path(entry.path))
                elif _FOLDER.match(entry.name):
                    waiting.append(Path(entry.path))
        yield from files


def _make(folder: Path) -> None:
    """Make a folder and its missing parents durably, each with access for its owner alone.

    Raises:
        OSError: one cannot be made.
    """
    if folder.is_dir():
        return
    _make(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    _sync_names(folder.parent)


def _sync_names(folder: Path) -> None:
    """Sync the names in a folder, if its file system can do that: SMB cannot (EINVAL).

    Raises:
        OSError: the disk failed.
    """
    try:
        folders.sync(folder)
    except PermissionError:
        pass  # a folder cannot be synced without the right to read it
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def _checked(key: str) -> str:
    if not _KEY.match(key):
        raise StoreError(f"{key!r} cannot be a key in a store of chunks")
    return key


def _limited(data: bytes, limit_bytes: int, what: str) -> bytes:
    if len(data) > limit_bytes:
        raise _too_large(what, limit_bytes)
    return data


def _too_large(what: str, limit_bytes: int) -> StoreError:
    return StoreError(f"{what} has more than {limit_bytes:,} bytes, so it is not what its name says")


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = StoreFullError if error.errno in _FULL else StoreError
        raise kind(f"{path} cannot be used: {error.strerror}") from error
