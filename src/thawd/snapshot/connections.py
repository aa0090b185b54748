"""Describes the sockets of an initialised process: their addresses, the code that opened them, their state in a copy.

A copy is a process that is thawed from the image of the frozen one. During init, `Openings` wraps
``socket.socket.bind``, ``listen`` and ``connect`` and records each call. Nothing else shows whether the program or the
kernel chose a port, and which line of code opened a connection. Sockets that native code opens (libpq, gRPC, uvloop)
are not recorded; they are described by their addresses alone.

Standard library only, Python 3.9 and later. ``socket`` is imported only when `Openings.watch` is called or the process
has a socket. This module is used during init and right after it.
"""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

# Kinds of sockets. native/freeze_sockets.c decides what a copy gets for each kind; this module predicts that decision.
CONNECTED, LISTENING, NEW, PAIR = "connected", "listening", "new", "pair"

_MAX_FRAMES = 60


class Opening(NamedTuple):
    """The code that opened a socket.

    Attributes:
        inode: the socket's inode; its descriptor number may belong to another socket by now.
        any_port: whether the socket was bound to port 0.
        package: top-level name of the package that made the call, for example ``urllib3``; empty when the function's
            own code made it.
        place: the function's own line that led to the call, for example ``app.py:12``; empty when there is none.
    """

    inode: int
    any_port: bool
    package: str
    place: str


class Socket(NamedTuple):
    """A socket of this process.

    Attributes:
        number: the socket's descriptor.
        kind: `CONNECTED` (in a copy the connection has ended), `LISTENING`, `NEW` (a copy gets a new socket) or `PAIR`
            (both ends are in this process).
        address: the address that the socket is connected to, or else bound to, for example ``10.0.0.5:5432``; empty if
            it is neither.
        package, place: see `Opening`; empty if unknown.
    """

    number: int
    kind: str
    address: str
    package: str
    place: str

    def state(self) -> str:
        """State, address and opening in words: "connected to 10.0.0.5:5432 (redis, opened at app.py:12)"."""
        state = {CONNECTED: "connected to ", LISTENING: "listening at "}.get(self.kind, "")
        opened = ", ".join(filter(None, (self.package, self.place and f"opened at {self.place}")))
        return f"{state}{self.address or 'not connected'}" + (opened and f" ({opened})")

    def describe(self) -> str:
        """The state with the descriptor's number: "descriptor 7, connected to …"."""
        return f"descriptor {self.number}, {self.state()}"


class Openings:
    """Records which code opens sockets, from the call of `watch` to the call of `stop`."""

    def __init__(self, folder: str = "") -> None:
        """`folder` holds the function's own code. `Opening.place` is always a line in that code, not in a library."""
        self._folder = os.path.join(os.path.realpath(folder), "") if folder else ""
        self._noted: dict[int, Opening] = {}
        self._replaced: dict[str, Any] = {}

    def watch(self) -> None:
        """Start recording."""
        import socket

        for name in ("bind", "listen", "connect", "connect_ex"):
            self._replaced[name] = self._noting(name, getattr(socket.socket, name))
            setattr(socket.socket, name, self._replaced[name])

    def stop(self) -> None:
        """Stop recording. References to the wrapped methods stay valid, but each call through one takes 1 us longer."""
        import socket

        for name, noting in self._replaced.items():
            # `socket.socket` inherits these methods from `_socket.socket`, so deleting the wrappers restores them.
            if vars(socket.socket).get(name) is noting:
                delattr(socket.socket, name)
        self._replaced.clear()

    def any_port(self) -> list[int]:
        """Descriptors of sockets bound to a port that the kernel chose."""
        return [number for number, opening in self._noted.items() if opening.any_port and self._is_open(number)]

    def sockets(self, own: Iterable[int] = ()) -> list[Socket]:
        """The sockets of this process except the descriptors in `own`, by number; [] if /proc cannot be read."""
        return [self.socket(number) for number in _sockets() if number not in set(own)]

    def socket(self, number: int) -> Socket:
        """Describe the socket with this descriptor."""
        kind, address = _state(number)
        known = number in self._noted and self._is_open(number)
        opening = self._noted[number] if known else Opening(0, False, "", "")
        return Socket(number, kind, address, opening.package, opening.place)

    def _noting(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def noting(sock: Any, *arguments: Any) -> Any:
            asked = _asked_for_any_port(sock, name, arguments)
            try:
                return real(sock, *arguments)
            finally:
                self._note(sock, any_port=asked)

        noting.__name__ = noting.__qualname__ = name
        noting.__doc__ = real.__doc__
        return noting

    def _note(self, sock: Any, *, any_port: bool | None) -> None:
        try:
            number = int(sock.fileno())
            inode = os.fstat(number).st_ino
        except OSError:
            return  # the socket is closed
        known = self._noted.get(number)
        if any_port is None:
            any_port = known is not None and known.inode == inode and known.any_port
        library, place = _caller(self._folder)
        self._noted[number] = Opening(inode, any_port, library, place)

    def _is_open(self, number: int) -> bool:
        try:
            return os.fstat(number).st_ino == self._noted[number].inode
        except OSError:
            return False


def _asked_for_any_port(sock: Any, name: str, arguments: tuple[Any, ...]) -> bool | None:
    """Whether this call leaves the choice of a port to the kernel; None if the call does not decide that."""
    if name == "bind":
        address = arguments[0] if arguments else None
        return isinstance(address, tuple) and len(address) > 1 and address[1] == 0
    if name == "listen":
        try:
            local = sock.getsockname()
        except OSError:
            return None
        return True if isinstance(local, tuple) and local[1] == 0 else None
    return None


def _caller(folder: str) -> tuple[str, str]:
    """The library that opened a socket, and the function's own line that led to the call; see `Opening`."""
    standard = {os.path.join(path, "") for path in (sysconfig.get_path("stdlib"), os.path.dirname(os.__file__))}
    library = place = ""
    frame: Any = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None or place:
            break
        file = os.path.realpath(frame.f_code.co_filename)
        package = _package(file)
        if package:
            library = library or package
        elif file != _OWN_FILE and (file.startswith(folder) if folder else not file.startswith(tuple(standard))):
            place = f"{os.path.relpath(file, folder) if folder else os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return library, place


_OWN_FILE = os.path.realpath(__file__)


def _package(file: str) -> str:
    """The top-level package that an installed file belongs to; empty for any other file."""
    for folder in ("site-packages", "dist-packages"):
        _, there, rest = file.rpartition(f"{os.sep}{folder}{os.sep}")
        if there:
            return os.path.splitext(rest.split(os.sep)[0])[0]
    return ""


def _sockets() -> list[int]:
    numbers = []
    try:
        listed = os.listdir("/proc/self/fd")
    except OSError:
        return []
    for name in listed:
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                numbers.append(int(name))
        except OSError:
            continue  # the descriptor through which the folder was listed is closed by now
    return sorted(numbers)


def _state(number: int) -> tuple[str, str]:
    import socket

    try:
        end = socket.socket(fileno=os.dup(number))
    except OSError:
        return NEW, ""
    with end:
        local, peer = _address(end.getsockname), _address(end.getpeername)
        if end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return LISTENING, local
        if end.family == socket.AF_UNIX and end.type != socket.SOCK_DGRAM:
            # SO_PEERCRED names the process that made the socket pair, or the one that listened. Source: unix(7).
            pid = int.from_bytes(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
            if pid == os.getpid():
                return PAIR, "a pair within this process"
            return (CONNECTED, peer or "another process") if pid else (NEW, "")
        if end.type == socket.SOCK_STREAM and (peer or _has_ended(number)):
            return CONNECTED, peer or "a peer that has disconnected"
        return NEW, peer or local


def _has_ended(number: int) -> bool:
    """Whether an unconnected socket was connected earlier.

    poll(2) reports POLLHUP for a socket that was never connected, and for one whose connection has ended. It reports
    POLLIN only for the latter.
    """
    import select

    poll = select.poll()
    poll.register(number, select.POLLIN)
    return any(events & select.POLLIN for _, events in poll.poll(0))


def _address(ask: Callable[[], Any]) -> str:
    try:
        address = ask()
    except OSError:
        return ""
    if isinstance(address, tuple):
        host, port = address[:2]
        return (f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}") if port else ""
    return os.fsdecode(address)
