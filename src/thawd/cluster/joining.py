"""Joins a cluster: gets this machine's credentials from one of its machines. Blocking; for the command line.

The new machine first asks for the authority's certificate, over a connection that proves nothing, and compares it with
the token. Only then it opens a connection whose other side must have a certificate of that authority, and sends the
token and its request for a certificate there. Its private key is sent nowhere.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from thawd.cluster import channel, credentials
from thawd.cluster.credentials import CredentialsError, Granted
from thawd.wire import frames

_PATIENCE_S = 10.0


def join(address: tuple[str, int], token: str, *, name: str, data: Path) -> None:
    """Get credentials, and store them in the data folder.

    Args:
        address: host and port for the cluster of one of its machines.
        token: a token of the cluster.
        name: name of this machine.
        data: its data folder.

    Raises:
        CredentialsError: the machine cannot be reached, is of another cluster, or refuses.
        OSError: the credentials cannot be stored.
    """
    wanted = credentials.parts_of(token)[-1]
    unproved = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unproved.check_hostname, unproved.verify_mode = False, ssl.CERT_NONE
    with _connected(address, unproved) as connection:
        authority = str(_next(connection, channel.CHALLENGE).get("authority", ""))
    with contextlib.suppress(ValueError):
        if credentials.fingerprint_of(authority) == wanted:
            _join_proved(address, authority, token, name=name, data=data)
            return
    raise CredentialsError(f"the machine at {_shown(address)} does not belong to the cluster of this token")


def _join_proved(address: tuple[str, int], authority: str, token: str, *, name: str, data: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=authority)
    request = credentials.Request(name)
    with _connected(address, context) as connection:
        _next(connection, channel.CHALLENGE)
        head = {"token": token, "request": request.text, "name": name}
        connection.sendall(frames.encode(channel.JOIN, head))
        granted = msgspec.convert(_next(connection, channel.JOINED), Granted)
    request.store(granted, data)


@contextlib.contextmanager
def _connected(address: tuple[str, int], context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    try:
        with (
            socket.create_connection(address, timeout=_PATIENCE_S) as plain,
            context.wrap_socket(plain) as connection,
        ):
            yield connection
    except OSError as error:
        raise CredentialsError(
            f"the machine at {_shown(address)} cannot be asked ({error.strerror or error}); the address is that of "
            "`thawd cluster status` on that machine"
        ) from None
    except (frames.WireError, msgspec.ValidationError, AttributeError):
        raise CredentialsError(f"{_shown(address)} does not answer as a machine of a cluster does") from None


def _next(connection: ssl.SSLSocket, kind: int) -> dict[str, Any]:
    """The head of the next frame, which must be of this kind.

    Raises:
        CredentialsError: the machine refuses.
    """
    decoder = frames.Decoder()
    while (frame := decoder.take()) is None:
        data = connection.recv(65536)
        if not data:
            raise OSError("it ended the connection")
        decoder.feed(data)
    if frame.kind == channel.REFUSED:
        raise CredentialsError(f"the cluster refuses this machine: {frame.head['why']}")
    if frame.kind != kind:
        raise frames.WireError("another frame")
    head: dict[str, Any] = frame.head
    return head


def _shown(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
