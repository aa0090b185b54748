"""The services that ``import thawd`` offers a handler: tables and buckets.

A table is reached by calls to the platform. A bucket is a folder that the handler accesses itself, or a remote bucket,
which is reached by calls to the platform.
"""

import contextlib
import fcntl
import json
import os
import threading
from typing import Any, ContextManager, Dict, Iterator, Optional, Tuple, Union

from thawd.runtime.channel import Channel
from thawd.wire import frames

# The kernel takes a frame of this size whole, or nothing of it, because earlier frames have been read.
_WHOLE_BYTES = 32 << 10


class ServiceError(Exception):
    """A call to a table or bucket was refused or failed; the message says why."""


class _Connection:
    """The channel for calls to the platform: one call at a time, each followed by its reply. Carries no invocations."""

    def __init__(self) -> None:
        self._channel: Optional[Channel] = None
        self._lock = threading.Lock()
        self._owner = 0
        self._number = 0
        self._is_cut = False  # whether a part of a frame may be lost

    def open(self, fd: int) -> None:
        self._lock = threading.Lock()
        self.go_on(fd)

    def go_on(self, fd: int) -> None:
        """In a thawed copy, use the descriptor `fd` from now on; threads that wait for `quiet` to end keep waiting."""
        self._channel = Channel(fd)
        self._owner = os.getpid()
        self._is_cut = False

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Prevent calls within this context.

        If the process were frozen between a call and its reply, the call would wait in each copy for a reply that does
        not come.
        """
        lock = self._lock
        with lock:
            yield

    def call(self, head: Dict[str, Any], body: bytes = b"") -> Tuple[Any, bytes]:
        if self._channel is None:
            raise ServiceError(
                "thawd.table and remote buckets of thawd.bucket work only inside a function that thawd runs"
            )
        if os.getpid() != self._owner:
            raise ServiceError(
                "thawd.table or thawd.bucket was called in a child process of the handler; return the data to the "
                "handler's own process and make the call there"
            )
        with self._lock:
            frame = self._reply_to(self._channel, head, body)
        if frame is None:
            raise ServiceError("the connection to thawd is closed, because thawd is stopping")
        if frame.head.get("error"):
            raise ServiceError(frame.head["error"])
        return frame.head, frame.body

    def _reply_to(self, channel: Channel, head: Dict[str, Any], body: bytes) -> Optional[frames.Frame]:
        """Make a call and wait for its reply; None: the platform has closed the channel.

        An exception that user code raises in a signal's handler can interrupt a call anywhere. Its reply then arrives
        during a later call, which passes over it. If a frame may be incomplete, no further call is made.
        """
        if self._is_cut:
            raise ServiceError(
                "an earlier call was interrupted by an exception in the middle of its data, so this environment can "
                "make no further calls; do not interrupt thawd.table and thawd.bucket by signals"
            )
        channel.wait_by_poll()
        self._number += 1
        number = self._number
        text = json.dumps({**head, "n": number}).encode()
        self._is_cut = len(text) + len(body) > _WHOLE_BYTES
        channel.send(frames.CALL, text, body)
        while True:
            self._is_cut = False
            channel.wait()
            self._is_cut = True
            if not channel.read():
                self._is_cut = False  # no frame follows: the reason is another one
                return None
            for frame in channel.received():
                if frame.head.get("n") == number:
                    self._is_cut = False
                    return frame


_connection = _Connection()


def quiet() -> ContextManager[None]:
    """A context in which no thread can make a call to the platform."""
    return _connection.quiet()


def go_on(fd: int) -> None:
    """In a thawed copy, make calls to the platform through the descriptor `fd`. Call this within `quiet`."""
    _connection.go_on(fd)


def connect(fd: int) -> None:
    """Make calls to the platform through the descriptor `fd`."""
    _connection.open(fd)


def _text(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError("a key must be a str, not a %s" % type(key).__name__)
    return key


class Table:
    """A table of the platform: JSON objects by key."""

    def __init__(self, name: str) -> None:
        self.name = name

    def put(self, key: str, item: Dict[str, Any]) -> None:
        """Store `item`, a dict that JSON can represent, under `key`; replaces an existing item. Durable on return.

        Raises:
            ServiceError: there is no such table, or the item or key cannot be stored.
        """
        if not isinstance(item, dict):
            raise TypeError("an item must be a dict, not a %s" % type(item).__name__)
        _connection.call({"op": "table.put", "table": self.name, "key": _text(key)}, json.dumps(item).encode())

    def get(self, key: str) -> Optional[Dict[str, Any]]:
        """The item under `key`, or None."""
        head, body = _connection.call({"op": "table.get", "table": self.name, "key": _text(key)})
        item: Optional[Dict[str, Any]] = json.loads(body) if head["found"] else None
        return item

    def delete(self, key: str) -> None:
        """Remove the item under `key`, if there is one."""
        _connection.call({"op": "table.delete", "table": self.name, "key": _text(key)})

    def scan(self) -> Iterator[Tuple[str, Dict[str, Any]]]:
        """Iterate over all items as (key, item), fetched a page at a time.

        The order is that of the keys' bytes; a table in DynamoDB has an order of its own.
        """
        after: Optional[str] = None
        while True:
            head, body = _connection.call({"op": "table.scan", "table": self.name, "after": after})
            page = json.loads(body)
            for key, item in page:
                yield key, item
            if not head["more"]:
                return
            after = page[-1][0]


class Bucket:
    """A local bucket of the platform: a folder, in which the files are the objects."""

    def __init__(self, name: str, folder: str) -> None:
        self.name = name
        self.folder = folder

    def path(self, key: str) -> str:
        """Path of the object `key`'s file. Decode a key from an event first, with ``urllib.parse.unquote_plus``."""
        path = os.path.normpath(os.path.join(self.folder, key))
        if not path.startswith(self.folder + os.sep):
            raise ServiceError("the key %r leads outside the bucket %s" % (key, self.name))
        return path

    def read(self, key: str) -> bytes:
        """The object's bytes.

        Raises:
            FileNotFoundError: there is no such object.
        """
        with open(self.path(key), "rb") as file:
            return file.read()

    def write(self, key: str, data: bytes) -> None:
        """Store the object in one step, so that nobody sees it half-written. An existing object is replaced."""
        path = self.path(key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        staged, fd, lock = _stage(os.path.dirname(path))
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
            os.replace(staged, path)
        except BaseException:
            os.unlink(staged)
            raise
        finally:
            os.close(lock)


def _stage(folder: str) -> Tuple[str, int, int]:
    """Create a file for an object that is being written.

    Dot files are not objects, so the bucket's notifications never see the half-written file. The platform removes a
    file with such a name if no process has locked it. The lock lasts until the rename. By then the file must not be
    open for writing, because the platform would take it for an incomplete object; so the lock has its own descriptor.

    Returns:
        The file's path, a descriptor to write it, and a descriptor that holds the lock.
    """
    while True:
        # Not `tempfile`, which would make a file that only its owner can read.
        staged = os.path.join(folder, ".thawd-" + os.urandom(16).hex())
        fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        lock = -1
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(staged, os.O_RDONLY | os.O_CLOEXEC)
            # On a file system without locks this fails, and the platform, which locks a file before it removes it, does
            # not remove this one.
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink:
                return staged, fd, lock
        # The platform removed the file before it was locked: make another file.
        for opened in (fd, lock):
            if opened >= 0:
                os.close(opened)


class RemoteBucket:
    """A bucket in a remote object store. Access goes through the platform, which has the credentials.

    Keys are the store's full keys, as in events. They begin with the prefix in the bucket's URL.
    """

    def __init__(self, name: str) -> None:
        head, _ = _connection.call({"op": "bucket.find", "bucket": name})
        self.name = name
        self.url: str = head["url"]

    def path(self, key: str) -> str:
        """Raise an error: a remote object has no path.

        Raises:
            ServiceError: always.
        """
        raise ServiceError("the bucket %s is %s, so %r has no path; use read and write" % (self.name, self.url, key))

    def read(self, key: str) -> bytes:
        """The object's bytes, at most 64 MiB.

        Raises:
            FileNotFoundError: there is no such object.
            ServiceError: the store failed, the key is outside the bucket, or the object is too large.
        """
        head, body = _connection.call({"op": "bucket.read", "bucket": self.name, "key": _text(key)})
        if head.get("missing"):
            raise FileNotFoundError(head["missing"])
        return body

    def write(self, key: str, data: bytes) -> None:
        """Store the object, at most 64 MiB; replaces an existing object. Durable on return.

        Raises:
            ServiceError: the store failed, the key is outside the bucket, or the object is too large.
        """
        data = bytes(data)
        if len(data) > frames.MAX_BODY_BYTES:
            raise ServiceError(
                "the object %r has %d bytes, but thawd.bucket writes at most %d. Write it with the store's own client"
                % (key, len(data), frames.MAX_BODY_BYTES)
            )
        _connection.call({"op": "bucket.write", "bucket": self.name, "key": _text(key)}, data)


def table(name: str) -> Table:
    """The table that thawd.toml declares under `name`."""
    return Table(name)


def bucket(name: str) -> Union[Bucket, RemoteBucket]:
    """The bucket that thawd.toml declares under `name`.

    Raises:
        ServiceError: there is no such bucket.
    """
    folders = json.loads(os.environ.get("THAWD_BUCKETS", "{}"))
    if name in folders:
        return Bucket(name, folders[name])
    try:
        return RemoteBucket(name)
    except ServiceError as error:
        known = ", ".join(sorted(folders)) or "none"
        raise ServiceError("%s; the local buckets in thawd.toml are: %s" % (error, known)) from None
