"""Sends entries to the journal of systemd, by its native protocol.

An entry is a datagram of fields. One that is too large for a datagram is written to a sealed file in memory, whose
descriptor is sent instead.

Source: systemd.io/JOURNAL_NATIVE_PROTOCOL; systemd.journal-fields(7) for names of fields.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import sys
from collections.abc import Mapping

SOCKET = "/run/systemd/journal/socket"
"""Where the journal takes entries."""
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_ORDER = sys.byteorder
_TOO_LARGE = (errno.EMSGSIZE, errno.ENOBUFS)
_NAME = re.compile(r"[A-Z0-9][A-Z0-9_]{0,63}")


class Journal:
    """The journal of this machine. Never waits.

    Args:
        path: its socket.
    """

    def __init__(self, path: str = SOCKET) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def is_there(self) -> bool:
        """Whether a journal takes entries."""
        # A socket that is connected for that would be of no use after a restart of the journal.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as trying:
            try:
                trying.connect(self._path)
            except OSError:
                return False
        return True

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, fields: Mapping[str, str]) -> None:
        """Send an entry.

        Raises:
            BlockingIOError: the journal takes no entry now, because it is busy.
            OSError: there is no journal.
        """
        entry = encoded(fields)
        try:
            self._socket.sendto(entry, self._path)
        except OSError as error:
            if error.errno not in _TOO_LARGE:
                raise
            self._send_file(entry)

    def _send_file(self, entry: bytes) -> None:
        descriptor = os.memfd_create("thawd-journal-entry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with contextlib.ExitStack() as closing:
            closing.callback(os.close, descriptor)
            rest = memoryview(entry)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor.to_bytes(4, _ORDER))
            self._socket.sendmsg([], [rights], 0, self._path)


def encoded(fields: Mapping[str, str]) -> bytes:
    """Return the bytes of an entry: of each field ``NAME=value``, or of one with line breaks its name, length, value.

    Args:
        fields: values by name: capital letters, digits and underscores, at most 64, and no underscore first.
    """
    parts = []
    for name, value in fields.items():
        assert _NAME.fullmatch(name), name
        data = value.encode("utf-8", "replace")
        if b"\n" in data:
            parts.append(b"%s\n%s%s\n" % (name.encode(), len(data).to_bytes(8, "little"), data))
        else:
            parts.append(b"%s=%s\n" % (name.encode(), data))
    return b"".join(parts)
