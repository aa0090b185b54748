"""Ports that the kernel does not choose for other sockets."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST = 10_000


def quiet_port() -> int:
    """Return a port on loopback that is unused now and that the kernel never picks as a free port.

    It is for tests that name a port before a server listens on it, or that reuse it later. Meanwhile a port that the
    kernel chose could be taken, even as the local end of a connection. Source: ip(7), "ip_local_port_range".
    """
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if first_given <= _LOWEST:
        first_given = 1 << 16
    while True:
        port = random.randrange(_LOWEST, first_given)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
