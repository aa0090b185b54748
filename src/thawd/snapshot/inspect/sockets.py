"""Describes the sockets in an image in words: the addresses of each, and what a copy gets for it.

An image is the file that contains a frozen process.

Standard library only, Python 3.9 and later.
"""

from __future__ import annotations

import ipaddress

from thawd.snapshot.inspect.records import Socket

# Source: <bits/socket.h> of Linux on x86-64, the image's architecture.
_UNIX, _INET, _INET6 = 1, 2, 10
_STREAM, _DATAGRAM = 1, 2
_ADDRESS_AT = {_INET: slice(4, 8), _INET6: slice(8, 24)}


def describe(socket: Socket) -> str:
    """Describe a socket, for example "TCP, was connected to 10.0.0.5:5432: in a copy the connection has ended"."""
    kind = _kind(socket)
    local, peer = address(socket.local), address(socket.peer)
    if socket.revival == "ended":
        return f"{kind}, was connected{' to ' * bool(peer)}{peer}: in a copy the connection has ended"
    if socket.revival == "listening":
        return f"{kind}, listened at {local}; in a copy the kernel chooses the port"
    if socket.revival == "mute":
        return f"{kind}, listened at {local}; in a copy it is unreachable"
    at = f", bound to {local}" if local and not socket.any_port else ""
    return f"{kind}, new in a copy{at}{', connected to ' * bool(peer)}{peer}"


def _kind(socket: Socket) -> str:
    if socket.family == _UNIX:
        return "Unix"
    return {_STREAM: "TCP", _DATAGRAM: "UDP"}.get(socket.type, f"type {socket.type}")


def address(raw: bytes) -> str:
    """A sockaddr as text: "127.0.0.1:80", "[::1]:80", a path or "@name"; empty for an empty sockaddr."""
    family = int.from_bytes(raw[:2], "little")
    if family in _ADDRESS_AT and len(raw) >= _ADDRESS_AT[family].stop:
        host = str(ipaddress.ip_address(raw[_ADDRESS_AT[family]]))
        return f"{f'[{host}]' if family == _INET6 else host}:{int.from_bytes(raw[2:4], 'big')}"
    if family == _UNIX and len(raw) > 2:
        name = raw[2:]
        text = b"@" + name[1:] if name.startswith(b"\0") else name.rstrip(b"\0")
        return text.decode("utf-8", "backslashreplace")
    return ""
