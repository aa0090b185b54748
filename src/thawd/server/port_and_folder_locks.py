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
def lock(data: Path) -> Iterator[Lock]:
    """Lock the data folder inside the ``with`` block. Two servers that used one folder could both run the same event.

    Raises:
        StartError: the folder cannot be created or written, or another process of thawd has locked it.
        NotOursError: the folder belongs to another user.
    """
    try:
        folders.make(data, mode=0o700)
        file = os.fdopen(_private(str(data / "lock"), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC), "a+")
    except OSError as error:
        raise StartError(
            f"the data folder {data} cannot be written ({error.strerror}): change its permissions, or choose another "
            "folder with server.data or THAWD_DATA"
        ) from error
    with file:
        _lock(file, data)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield Lock(data / "lock", file.fileno(), make_private(data))


def _lock(file: IO[str], data: Path) -> None:
    """Lock the file `lock` of the data folder `data`.

    If the process that has the lock is killed while it starts a child, the child keeps the lock for a moment, until it
    executes its program. So if the process with the lock does not run any more, this function tries again for
    `_LEFT_OVER_S` seconds to take the lock.

    Raises:
        StartError: another process of thawd has locked the folder.
    """
    last_s = time.monotonic() + _LEFT_OVER_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip()
            if time.monotonic() > last_s or (holder.isdecimal() and _runs(int(holder))):
                raise StartError(
                    f"another thawd (process {holder or 'unknown'}) uses the data folder {data}: stop it, or choose "
                    "another folder with server.data or THAWD_DATA"
                ) from None
            time.sleep(_LOCK_RETRY_S)
        else:
            return


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


def address_in(data: Path) -> tuple[str, int] | None:
    """Host and port of the server that uses a data folder; None if no file contains its address."""
    try:
        host, port = json.loads((data / _ADDRESS).read_text())
        return str(host), int(port)
    except (OSError, ValueError, TypeError):
        return None
