"""A connection to a PostgreSQL server that a test can cut, as if the network were gone."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import threading
from pathlib import Path

_numbers = itertools.count()


class Cable:
    """A connection to the server that can be cut without being closed, as if the network were gone.

    Args:
        target: the server's Unix socket.
    """

    def __init__(self, target: Path) -> None:
        self.folder = target.parent / f"cable-{os.getpid()}-{next(_numbers)}"
        self._target = target
        self._cut_ways: frozenset[str] = frozenset()
        self._pairs: list[socket.socket] = []
        self._cut_off: list[socket.socket] = []

    def __enter__(self) -> Cable:
        self.folder.mkdir()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.folder / self._target.name))
        self._socket.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for each in self._pairs:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def cut(self, *ways: str) -> None:
        """Forward nothing more: not what was ``sent``, not what would be ``received``, or by default neither."""
        self._cut_ways = frozenset(ways or ("sent", "received"))

    def mend(self) -> None:
        """Forward again. The connections that were cut stay silent, and the server learns that they have ended."""
        self._cut_ways = frozenset()
        while self._cut_off:
            with contextlib.suppress(OSError):
                self._cut_off.pop().shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._socket.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(str(self._target))
            self._pairs += [near, far]
            threading.Thread(target=self._forward, args=(near, far), daemon=True).start()

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                for each in select.select([near, far], [], [])[0]:
                    data = each.recv(65536)
                    if ("sent" if each is near else "received") in self._cut_ways:
                        self._cut_off.append(far)
                        return
                    if not data:
                        near.shutdown(socket.SHUT_RDWR)
                        far.shutdown(socket.SHUT_RDWR)
                        return
                    (far if each is near else near).sendall(data)
