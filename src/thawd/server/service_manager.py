"""Talks with the service manager that started the server (systemd): takes over its socket, tells it the server's state.

Source: sd_listen_fds(3), sd_notify(3).
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

from thawd.config import ServerSettings
from thawd.server.port_and_folder_locks import StartError, bind

_FIRST_DESCRIPTOR = 3
_VARIABLES = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


def listener(server: ServerSettings) -> socket.socket:
    """Return the listening socket: the service manager's, if it passes one, else one for the configured address.

    Raises:
        StartError: the port cannot be opened, or the service manager's socket cannot be used.
    """
    passed = _passed_sockets()
    if not passed:
        return bind(server.host, server.port)
    if len(passed) > 1:
        raise StartError(
            f"the service manager passes {len(passed)} sockets, and thawd serves one: write one ListenStream= into the "
            "socket unit"
        )
    found = passed[0]
    if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
        raise StartError(
            "the socket of the service manager is not a TCP socket: write an address and a port, such as "
            "ListenStream=127.0.0.1:8350, into the socket unit"
        )
    if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise StartError("the socket of the service manager does not listen: write Accept=no into the socket unit")
    return found


def passed_address() -> tuple[str, int] | None:
    """Return the address of the service manager's socket; None: it passes none, or none that `listener` accepts.

    The configuration is checked with this address in place of the configured one, because it decides whether other
    machines can reach the server. The socket is not taken over.
    """
    for descriptor in _passed_descriptors():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as passed:
            if passed.family in (socket.AF_INET, socket.AF_INET6):
                host, port = passed.getsockname()[:2]
                return host, port
    return None


def _passed_descriptors() -> range:
    count, pid = (os.environ.get(name, "") for name in ("LISTEN_FDS", "LISTEN_PID"))
    is_ours = count.isdigit() and pid == str(os.getpid())
    return range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(count)) if is_ours else range(0)


def _passed_sockets() -> list[socket.socket]:
    """The sockets that the service manager has passed to this process. Processes that it starts do not get them."""
    descriptors = _passed_descriptors()
    for name in _VARIABLES:
        os.environ.pop(name, None)
    passed = []
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
        try:
            passed.append(socket.socket(fileno=descriptor))
        except OSError as error:
            raise StartError(
                f"descriptor {descriptor}, which the service manager passes, is not a socket ({error.strerror}): write "
                "ListenStream= into the socket unit"
            ) from error
    return passed


class ServiceManager:
    """The service manager's socket for notices; without a service manager, nothing is sent."""

    def __init__(self) -> None:
        self._address = os.environ.pop("NOTIFY_SOCKET", "")

    def ready(self, url: str) -> None:
        """The server answers requests."""
        self._send(f"READY=1\nSTATUS=serves {url}")

    def reloading(self) -> None:
        """The server reads its configuration again; call `ready` when that has ended."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The server stops."""
        self._send("STOPPING=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.setblocking(False)
            sending.sendto(state.encode(), address)
