"""Ports that nobody is given by chance."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST = 10_000


def quiet_port() -> int:
    """A port on loopback that nobody uses now, and that the kernel gives to nobody who asks for any free one.

    For a port that is named before somebody listens on it, or again after that: one that the kernel chose could be
    another's in between, as the near end of any connection. Source: ip(7), "ip_local_port_range".
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
