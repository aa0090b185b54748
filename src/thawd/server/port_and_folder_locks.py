"""Takes the resources that only one server can use, a port and a data folder, and reports conflicts before a start."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from thawd.errors import ThawdError
from thawd.server.data_folder_permissions import make_private
from thawd.system import folders

_ADDRESS = "address.json"
_LEFT_OVER_S = 5.0
_LOCK_RETRY_S = 0.02
_BRIEFLY = "briefly"


class StartError(ThawdError):
    """The server could not start; the message says why, and what to do."""


def bind(host: str, port: int) -> socket.socket:
    """Open a listening socket.

    Raises:
        StartError: the port is in use or reserved for root, or the address does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(1024)
        except OSError as error:
            raise StartError(f"cannot listen on {host}:{port} ({error.strerror}): {_way_out(error)}") from error
        stack.pop_all()
    listener.set_inheritable(False)
    return listener


def _way_out(error: OSError) -> str:
    """What to do after `error`. Source: bind(2), ip(7)."""
    if error.errno == errno.EADDRINUSE:
        return (
            "stop the program that uses the port, perhaps another `thawd up`, or choose another port with --port or "
            "server.port"
        )
    if error.errno == errno.EACCES:
        return "only root may listen on ports below 1024; choose port 1024 or higher with --port or server.port"
    if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) or isinstance(error, socket.gaierror):
        return "choose an address of this machine with --host or server.host"
    return "choose another address with --host or server.host, or another port with --port or server.port"


def raise_descriptor_limit() -> None:
    """Raise this process's limit of open files to the highest allowed value.

    thawd needs four open files for each environment, and one for each connection.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Lock:
    """The lock on a data folder.

    Attributes:
        notes: lines about the folder's owner and mode, for the operator.
    """

    def __init__(self, path: Path, fd: int, notes: Sequence[str]) -> None:
        self.notes = notes
        self._path = path
        self._fd = fd

    def is_held(self) -> bool:
        """Whether the folder was neither removed nor replaced since it was locked."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._fd))
        except OSError:
            return False


@contextlib.contextmanager
def lock(data: Path, *, briefly: bool = False) -> Iterator[Lock]:
    """Lock the data folder inside the ``with`` block. Two servers that used one folder could both run the same event.

    Args:
        data: the folder.
        briefly: whether this is for a moment, as for a command that looks. A server that starts then waits for it.

    Raises:
        StartError: the folder cannot be created or written, or another process of thawd has locked it.
        NotOursError: the folder belongs to another user.
    """
    way_out = "choose another folder with server.data or THAWD_DATA"
    try:
        folders.make(data, mode=0o700)
        file = _lock_file(data)
    except OSError as error:
        raise StartError(
            f"the data folder {data} cannot be written ({error.strerror}): change its permissions, or {way_out}"
        ) from error
    with file:
        _lock(file, f"uses the data folder {data}: stop it, or {way_out}", briefly=briefly)
        (data / _ADDRESS).unlink(missing_ok=True)  # a server that was killed left it behind
        yield Lock(data / "lock", file.fileno(), make_private(data))


@contextlib.contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Lock the folder of the configuration of ``thawd run`` inside the ``with`` block.

    A server reads its configuration again when the file changes. So a second ``thawd run`` that wrote another one would
    change what the first serves.

    Args:
        folder: the folder, such as ``.thawd/run``; it is made, private to its owner.

    Raises:
        StartError: the folder cannot be created or written, or another ``thawd run`` has locked it.
    """
    code = folder.parent.parent
    try:
        folders.make(folder.parent, mode=0o700)
        folders.make(folder, mode=0o700)
        file = _lock_file(folder)
    except OSError as error:
        raise StartError(
            f"{folder} cannot be written ({error.strerror}): change its permissions, or copy the code to a folder of "
            "your own"
        ) from error
    with file:
        _lock(file, f"serves a file in {code} with `thawd run`: stop it, or move one of the files to another folder")
        yield


def _lock_file(folder: Path) -> IO[str]:
    return os.fdopen(_private(str(folder / "lock"), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC), "a+")


def _lock(file: IO[str], doing: str, *, briefly: bool = False) -> None:
    """Lock a file, and write this process's id into it.

    If the process that has the lock is killed while it starts a child, the child keeps the lock for a moment, until it
    executes its program. So if the process with the lock does not run any more, or has it briefly, this function tries
    again for `_LEFT_OVER_S` seconds to take the lock. In a container, the killed server often had the id that this
    process has now.

    Args:
        file: the file.
        doing: what a process that has the lock does, and what to do about it.
        briefly: whether this process has the lock briefly.

    Raises:
        StartError: another process of thawd has locked the file.
    """
    last_s = time.monotonic() + _LEFT_OVER_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder, _, how = file.read().strip().partition(" ")
            runs = holder.isdecimal() and int(holder) != os.getpid() and _runs(int(holder))
            if time.monotonic() > last_s or (how != _BRIEFLY and runs):
                raise StartError(f"another thawd (process {holder or 'unknown'}) {doing}") from None
            time.sleep(_LOCK_RETRY_S)
        else:
            break
    file.truncate(0)
    file.write(f"{os.getpid()} {_BRIEFLY}" if briefly else str(os.getpid()))
    file.flush()


def _runs(pid: int) -> bool:
    """Whether there is a process with this id that has not ended."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state not in ("Z", "X")


def _private(path: str, flags: int) -> int:
    """Open a file, as the argument `opener` of `open`. A new file is readable only by its owner."""
    return os.open(path, flags, 0o600)


@contextlib.contextmanager
def announced(data: Path, address: tuple[str, int]) -> Iterator[None]:
    """Inside the ``with`` block, a file in the data folder contains the server's address, for thawd's commands."""
    file = data / _ADDRESS
    with open(file, "w", opener=_private) as written:
        written.write(json.dumps(address))
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def is_locked(data: Path) -> bool:
    """Whether a process of thawd uses a data folder: a server, or a command that works without one.

    The check takes a shared lock for a moment. A process that tries to lock the folder at this moment tries again.

    Raises:
        OSError: the folder cannot be read, for example because it belongs to another user.
    """
    try:
        descriptor = os.open(data / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def address_in(data: Path) -> tuple[str, int] | None:
    """Host and port of the server that uses a data folder; None if no file contains its address.

    A server that was killed leaves its address behind, so the address is valid only while `is_locked`.
    """
    try:
        host, port = json.loads((data / _ADDRESS).read_text())
        return str(host), int(port)
    except (OSError, ValueError, TypeError):
        return None
