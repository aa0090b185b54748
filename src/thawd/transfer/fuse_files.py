"""Serves one read-only file to the kernel by FUSE, so that everything that reads it waits for what has not arrived.

A page fault, a system call that reads or writes such memory, a child process and a moved mapping: the kernel asks for
the page in all these cases, and waits for the answer. If this process dies, or cannot answer, the access fails
(SIGBUS, EFAULT, EIO); memory is never zero instead. Source: fuse(4), <linux/fuse.h>.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path

from thawd.errors import StoreError

_THREADS = 4
_DETACHED_THREADS = 16
READ_AHEAD_BYTES = 128 << 10
"""Most bytes that the kernel reads around a page that somebody waits for, half of them before it."""

_DEVICE = "/dev/fuse"
_BUFFER_BYTES = 64 << 10  # requests that only read are short
_IN = struct.Struct("<IIQQIIIHH")  # length, operation, unique, node, uid, gid, pid, extensions, padding
_OUT = struct.Struct("<IiQ")  # length, -errno, unique
_INIT_IN = struct.Struct("<IIII")  # major, minor, read-ahead, flags
# major, minor, read-ahead, flags, background, congestion, most written, time granularity, most pages, zeros
_STATFS_OUT = struct.Struct("<QQQQQIII28x")  # blocks, free, available, files, free files, block, name, fragment
_INIT_OUT = struct.Struct("<IIIIHHIIH34x")
_ATTRIBUTES = struct.Struct("<QIIQQQQQQIIIIIIIIII")
_OPEN_OUT = struct.Struct("<QIi")
_READ_IN = struct.Struct("<QQI")
_GETATTR, _OPEN, _READ, _STATFS, _RELEASE, _INIT, _DESTROY = 3, 14, 15, 17, 18, 26, 38
_NO_ANSWER = frozenset((2, 36, 42))  # FORGET, INTERRUPT, BATCH_FORGET
_ASYNC_READ, _MAX_PAGES = 1 << 0, 1 << 22
_KEEP_CACHE = 1 << 1
_MOST_PAGES = 256
_MINOR = 31
_VALID_S = 1 << 30
_CLONE_NEWNS, _MS_PRIVATE = 0x20000, 0x44000  # MS_PRIVATE | MS_REC
_MS_FLAGS = 0x1 | 0x2 | 0x4  # MS_RDONLY, MS_NOSUID, MS_NODEV; the attributes of mounts have the same values
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432  # the same numbers on all architectures
_CLOEXEC = 1  # FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC
_SET_STRING, _CREATE = 1, 6  # FSCONFIG_SET_STRING, FSCONFIG_CMD_CREATE
_TRIAL_S = 5.0
# Descriptors of processes that are started have lower numbers.
_LOWEST_FD = 64


def enter_mount_namespace() -> None:
    """Give this thread, and what it starts from now on, a mount namespace of its own.

    Raises:
        StoreError: this user may not (HTTP 500).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) or libc.mount(b"none", b"/", None, _MS_PRIVATE, None):
        raise StoreError(f"there can be no mount namespace: {os.strerror(ctypes.get_errno())}")


class _ServedFile:
    """Answers the kernel's requests about one file."""

    def __init__(self, *, size: int, read: Callable[[int, int], bytes]) -> None:
        self._size = size
        self._read = read
        try:
            self._fd = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"{_DEVICE} cannot be opened: {error.strerror}") from None

    def _start(self, threads: int) -> list[threading.Thread]:
        started = [threading.Thread(target=self._serve, name="fuse", daemon=True) for _ in range(threads)]
        for thread in started:
            thread.start()
        return started

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._fd, _BUFFER_BYTES)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):  # the request was interrupted
                    continue
                return  # unmounted
            operation, unique = _IN.unpack_from(request)[1:3]
            if operation in _NO_ANSWER:
                continue
            try:
                answer, error_number = self._answer(operation, request[_IN.size :]), 0
            except OSError as error:
                answer, error_number = b"", error.errno or errno.EIO
            except Exception:
                answer, error_number = b"", errno.EIO
            try:
                os.writev(self._fd, [_OUT.pack(_OUT.size + len(answer), -error_number, unique), answer])
            except OSError as error:
                if error.errno != errno.ENOENT:  # the request was interrupted
                    return

    def _answer(self, operation: int, body: bytes) -> bytes:
        if operation == _READ:
            _, offset, size = _READ_IN.unpack_from(body)
            return self._read(offset, size)
        if operation == _INIT:
            _, _, ahead, flags = _INIT_IN.unpack_from(body)
            wanted = flags & (_ASYNC_READ | _MAX_PAGES)
            return _INIT_OUT.pack(7, _MINOR, min(ahead, READ_AHEAD_BYTES), wanted, 16, 12, 4096, 1, _MOST_PAGES)
        if operation == _GETATTR:
            blocks = -(-self._size // 512)
            who = os.geteuid(), os.getegid()
            times = (0,) * 6  # the image's time is not compared
            node = (1, self._size, blocks, *times, 0o100600, 1, *who, 0, 4096, 0)
            return _ATTRIBUTES.pack(_VALID_S, 0, 0, *node)
        if operation == _OPEN:
            return _OPEN_OUT.pack(0, _KEEP_CACHE, 0)
        if operation == _STATFS:
            return _STATFS_OUT.pack(-(-self._size // 4096), 0, 0, 1, 0, 4096, 255, 4096)
        if operation in (_RELEASE, _DESTROY):
            return b""
        # A process that closes the file need not wait: after this answer to FLUSH, the kernel sends no other.
        raise OSError(errno.ENOSYS, "not offered")


class FuseFile(_ServedFile):
    """A mounted file. Its owner is this user, its mode 0600.

    Args:
        path: an existing file, which is hidden by the mount.
        size: size of the file, bytes.
        read: returns bytes, by offset and number; may block; raises OSError if they cannot be had.

    Raises:
        StoreError: FUSE cannot be used, with the reason (HTTP 500).
    """

    def __init__(self, path: Path, *, size: int, read: Callable[[int, int], bytes]) -> None:
        super().__init__(size=size, read=read)
        options = f"fd={self._fd},rootmode=100600,user_id={os.geteuid()},group_id={os.getegid()}"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"thawd", os.fsencode(path), b"fuse", _MS_FLAGS, options.encode()):
            os.close(self._fd)
            raise StoreError(f"a FUSE file cannot be mounted: {os.strerror(ctypes.get_errno())}")
        self._start(_THREADS)


class DetachedFile(_ServedFile):
    """A file that is in no folder. Processes that this process starts open it as ``/proc/self/fd/N``.

    Its mount is in no mount namespace, so nothing of it is left when its users have ended: it exists as long as this
    process holds `fd`, or a process has the file open or mapped. Its owner is this user, its mode 0600.

    This process must never open the file: if it were killed, the kernel would wait for an answer of this process while
    it closes the file. `fd` is only a name of the file (O_PATH).

    Args:
        size: size of the file, bytes.
        read: returns bytes, by offset and number; may block; raises OSError if they cannot be had.
        on_end: called in a thread after `close`, when no process uses the file any more.

    Attributes:
        fd: descriptor to pass to a process, under the same number; -1 after `close`.

    Raises:
        StoreError: FUSE cannot be used, with the reason (HTTP 500).

    Source: fsopen(2), fsmount(2).
    """

    def __init__(self, *, size: int, read: Callable[[int, int], bytes], on_end: Callable[[], object]) -> None:
        super().__init__(size=size, read=read)
        self._lock = threading.Lock()
        try:
            self.fd = self._mount()
        except OSError as error:
            os.close(self._fd)
            raise StoreError(f"a FUSE file cannot be mounted: {error.strerror}") from None
        threads = self._start(_DETACHED_THREADS)
        threading.Thread(target=self._end, args=(threads, on_end), name="fuse-end", daemon=True).start()

    def _mount(self) -> int:
        context = _call(_FSOPEN, b"fuse", _CLOEXEC)
        try:
            options = {
                "source": "thawd",
                "fd": self._fd,
                "rootmode": "100600",
                "user_id": os.geteuid(),
                "group_id": os.getegid(),
            }
            for name, value in options.items():
                _call(_FSCONFIG, context, _SET_STRING, name.encode(), str(value).encode(), 0)
            _call(_FSCONFIG, context, _CREATE, None, None, 0)
            mount = _call(_FSMOUNT, context, _CLOEXEC, _MS_FLAGS)
        finally:
            os.close(context)
        try:
            return fcntl.fcntl(mount, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
        finally:
            os.close(mount)

    def close(self) -> None:
        """Start no more users. Those that there are go on. A second call does nothing."""
        with self._lock:
            fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _end(self, threads: list[threading.Thread], on_end: Callable[[], object]) -> None:
        for thread in threads:
            thread.join()
        os.close(self._fd)
        on_end()


def why_not_detached() -> str | None:
    """Try a `DetachedFile`, and return why there can be none here; None: there can be."""
    ended = threading.Event()
    try:
        DetachedFile(size=0, read=lambda offset, size: b"", on_end=ended.set).close()
    except StoreError as error:
        return error.message
    ended.wait(_TRIAL_S)
    return None


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result: int = libc.syscall(ctypes.c_long(number), *given)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
