"""Finds the process that listens at a port of this machine, for messages about ports that are taken."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TABLES = ("tcp", "tcp6")
_LISTENS = "0A"


@dataclass(frozen=True, slots=True)
class Listener:
    """A process that listens at a port.

    Attributes:
        pid: its id.
        name: name of its program, at most 15 bytes, without control characters.
        command: its command line, the arguments separated by spaces. It may contain secrets: print it nowhere.
    """

    pid: int
    name: str
    command: str


def listener_at(host: str, port: int) -> Listener | None:
    """Return a process that listens at a port, on an IPv4 address or on all; None: none does, or it cannot be seen.

    Only root sees the sockets of processes of other users. Blocks while it reads the system's list of processes.

    Source: proc_pid_net(5), "tcp"; proc_pid_fd(5).
    """
    inodes = set(_listening_sockets(host, port))
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            if any(str(each.readlink()) in wanted for each in (folder / "fd").iterdir()):
                command = (folder / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
                name = "".join(each for each in (folder / "comm").read_text(errors="replace") if each.isprintable())
                return Listener(int(folder.name), name, command.decode(errors="replace"))
        except OSError:
            continue  # the process has ended, or belongs to another user
    return None


def _listening_sockets(host: str, port: int) -> Iterator[str]:
    """The inodes of sockets that listen at a port of `host` or of all addresses."""
    address = socket.inet_aton(host)[::-1].hex().upper()  # the kernel prints words in the machine's byte order
    for name in _TABLES:
        try:
            rows = [line.split() for line in Path("/proc/net", name).read_text().splitlines()[1:]]
        except OSError:
            continue
        for row in rows:
            local, _, at = row[1].partition(":")
            if at == f"{port:04X}" and row[3] == _LISTENS and (local == address or not local.strip("0")):
                yield row[9]
