"""What only one server may have: a port, and a data folder. Told at once, before anything runs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from thawd.errors import ThawdError
from thawd.server.data_folder import make_private
from thawd.system import folders

_ADDRESS = "address.json"


class StartError(ThawdError):
    """The server could not start; the message says why and the way out."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        StartError: the port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        way_out = (
            "stop what uses it, perhaps another `thawd up`, or choose a port with --port or server.port"
            if port
            else "choose another host with server.host"
        )
        raise StartError(f"cannot listen on {host}:{port} ({error.strerror}): {way_out}") from error
    listener.set_inheritable(False)
    return listener


def raise_descriptor_limit() -> None:
    """As many open files as this process may have: an environment takes four, a connection one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Lock:
    """The hold on a data folder.

    Attributes:
        notes: what the operator should know of the folder.
    """

    def __init__(self, path: Path, fd: int, notes: Sequence[str]) -> None:
        self.notes = notes
        self._path = path
        self._fd = fd

    def is_held(self) -> bool:
        """Whether the folder is still the one that was locked, and not removed or replaced meanwhile."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._fd))
        except OSError:
            return False


@contextlib.contextmanager
def lock(data: Path) -> Iterator[Lock]:
    """Hold the data folder: two servers on one would run every event twice.

    Raises:
        StartError: it cannot be made or written, or another server has it.
        NotOursError: it belongs to another user.
    """
    try:
        folders.make(data, mode=0o700)
        file = os.fdopen(_private(str(data / "lock"), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC), "a+")
    except OSError as error:
        raise StartError(
            f"the data folder {data} cannot be written ({error.strerror}): mend its permissions, or choose another "
            "with server.data or THAWD_DATA"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise StartError(
                f"another thawd (process {holder}) uses the data folder {data}: stop it, or choose another folder with "
                "server.data or THAWD_DATA"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield Lock(data / "lock", file.fileno(), make_private(data))


def _private(path: str, flags: int) -> int:
    """A file that only its owner can read, for `open`."""
    return os.open(path, flags, 0o600)


@contextlib.contextmanager
def announced(data: Path, address: tuple[str, int]) -> Iterator[None]:
    """While it lasts, the data folder says where its server listens."""
    file = data / _ADDRESS
    with open(file, "w", opener=_private) as written:
        written.write(json.dumps(address))
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def address_in(data: Path) -> tuple[str, int] | None:
    """Host and port of the server that uses a data folder; None: it does not say."""
    try:
        host, port = json.loads((data / _ADDRESS).read_text())
        return str(host), int(port)
    except (OSError, ValueError, TypeError):
        return None
