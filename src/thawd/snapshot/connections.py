"""The sockets of an initialised process: what each is connected to, who opened it, and what a copy finds in its place.

Owns the notes taken of ``socket.socket.bind``, ``listen`` and ``connect`` while init runs: only they tell whether a
program asked for a port or had one chosen, and which line of code opened a connection. What native code opens (libpq,
gRPC, uvloop) goes unseen and is described by its addresses alone. Standard library only, Python 3.9 and later; loads
``socket`` when it is asked to take notes, or where the process holds a socket. Its place is init and right after it.
"""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

# The last ones are what a copy does without; native/sockets.c decides, this module foretells.
CONNECTED, LISTENING, NEW, PAIR = "connected", "listening", "new", "pair"

_MAX_FRAMES = 60


class Opening(NamedTuple):
    """Who opened a socket.

    Attributes:
        inode: of the socket; its number may have been given to another since.
        any_port: whether it was bound to port 0.
        library: top-level name of the package next to the call, for example ``urllib3``; empty: the function itself.
        place: the function's own line that led there, for example ``app.py:12``; empty when there is none.
    """

    inode: int
    any_port: bool
    library: str
    place: str


class Socket(NamedTuple):
    """A socket of this process.

    Attributes:
        number: its descriptor.
        kind: `CONNECTED`: a copy finds it ended; `LISTENING`; `NEW`: a copy has a new one; `PAIR`: within the process.
        address: what it is connected to, or else bound to, as people write it; empty where it is neither.
        library, place: see `Opening`; empty where they are not known.
    """

    number: int
    kind: str
    address: str
    library: str
    place: str

    def state(self) -> str:
        """For example "connected to 10.0.0.5:5432 (redis, opened at app.py:12)"."""
        state = {CONNECTED: "connected to ", LISTENING: "listening at "}.get(self.kind, "")
        opened = ", ".join(filter(None, (self.library, self.place and f"opened at {self.place}")))
        return f"{state}{self.address or 'not connected'}" + (opened and f" ({opened})")

    def describe(self) -> str:
        """The same with the number: "descriptor 7, connected to …"."""
        return f"descriptor {self.number}, {self.state()}"


class Openings:
    """Notes of who opens sockets, taken from `watch` to `stop`."""

    def __init__(self, folder: str = "") -> None:
        """`folder` is the function's own code: lines in it are named rather than a library's."""
        self._folder = os.path.join(os.path.realpath(folder), "") if folder else ""
        self._noted: dict[int, Opening] = {}
        self._replaced: dict[str, Any] = {}

    def watch(self) -> None:
        """Take notes from now on."""
        import socket

        for name in ("bind", "listen", "connect", "connect_ex"):
            self._replaced[name] = self._noting(name, getattr(socket.socket, name))
            setattr(socket.socket, name, self._replaced[name])

    def stop(self) -> None:
        """Take no more notes. Who took one of the methods for himself meanwhile keeps one that is 1 us slower."""
        import socket

        for name, noting in self._replaced.items():
            # They are inherited from `_socket.socket`: what was put in front of them goes away.
            if vars(socket.socket).get(name) is noting:
                delattr(socket.socket, name)
        self._replaced.clear()

    def any_port(self) -> list[int]:
        """Descriptors of sockets that are bound to a port which the kernel chose."""
        return [number for number, opening in self._noted.items() if opening.any_port and self._is_open(number)]

    def sockets(self, own: Iterable[int] = ()) -> list[Socket]:
        """The sockets of this process but those in `own`, by number; [] where /proc does not tell."""
        return [self.socket(number) for number in _sockets() if number not in set(own)]

    def socket(self, number: int) -> Socket:
        """What the descriptor, a socket, is."""
        kind, address = _state(number)
        known = number in self._noted and self._is_open(number)
        opening = self._noted[number] if known else Opening(0, False, "", "")
        return Socket(number, kind, address, opening.library, opening.place)

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
            return  # the call has closed it, or it was closed before
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
    """Whether this call leaves the choice of a port to the kernel; None when it says nothing about it."""
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
    """The library that opened a socket, and the function's own line that had it do so; see `Opening`."""
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
            continue  # the descriptor of the listing itself
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
            # Source: unix(7), SO_PEERCRED: who made the pair, or who listened.
            pid = int.from_bytes(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
            if pid == os.getpid():
                return PAIR, "a pair within this process"
            return (CONNECTED, peer or "another process") if pid else (NEW, "")
        if end.type == socket.SOCK_STREAM and (peer or _has_ended(number)):
            return CONNECTED, peer or "a peer that has gone"
        return NEW, peer or local


def _has_ended(number: int) -> bool:
    """Whether a socket that is not connected was: a fresh one hangs up too, with nothing to read."""
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
