"""Who opened which socket, and what a copy finds in its place, as init's notes tell it."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from thawd.snapshot.connections import CONNECTED, LISTENING, NEW, PAIR, Openings


@pytest.fixture
def openings() -> Iterator[Openings]:
    noted = Openings(str(Path(__file__).parent))
    noted.watch()
    yield noted
    noted.stop()


def kind_and_address(openings: Openings, sock: socket.socket) -> tuple[str, str]:
    held = next(one for one in openings.sockets() if one.number == sock.fileno())
    return held.kind, held.address


def test_a_connection_is_told_with_its_peer_and_the_line_that_opened_it(openings: Openings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        held = openings.socket(client.fileno())
        port = server.getsockname()[1]
        assert (held.kind, held.address, held.library) == (CONNECTED, f"127.0.0.1:{port}", "")
        assert held.place.startswith("test_connections.py:")
        assert held.describe() == (
            f"descriptor {client.fileno()}, connected to 127.0.0.1:{port} (opened at {held.place})"
        )
        assert kind_and_address(openings, server) == (LISTENING, f"127.0.0.1:{port}")


def test_the_library_next_to_the_call_is_named(openings: Openings) -> None:
    import urllib3

    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = urllib3.connection.HTTPConnection("127.0.0.1", server.getsockname()[1])
        connection.connect()
        held = openings.socket(connection.sock.fileno())
        assert (held.library, held.place.split(":")[0]) == ("urllib3", "test_connections.py")
        connection.close()


def test_only_ports_that_the_kernel_chose_are_any_port(openings: Openings) -> None:
    chosen = socket.create_server(("127.0.0.1", 0))
    implicit = socket.socket()
    implicit.listen()
    low = socket.socket()
    port = next(port for port in range(20000, 30000) if low.connect_ex(("127.0.0.1", port)))
    asked = socket.create_server(("127.0.0.1", port))
    assert set(openings.any_port()) == {chosen.fileno(), implicit.fileno()}
    numbers = chosen.fileno()
    chosen.close()
    with socket.socket() as reused:
        assert reused.fileno() == numbers
        assert numbers not in openings.any_port()  # another socket has the number now
    for one in (implicit, low, asked):
        one.close()


def test_a_server_of_asyncio_is_noted(openings: Openings) -> None:
    async def serve() -> list[int]:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        async with server:
            assert openings.any_port() == [server.sockets[0].fileno()]
        return openings.any_port()

    assert asyncio.run(serve()) == []


def test_kinds_of_sockets_are_told_apart(openings: Openings, tmp_path: Path) -> None:
    plain, datagram = socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagram.connect(("127.0.0.1", 9))
    one, other = socket.socketpair()
    assert kind_and_address(openings, plain) == (NEW, "")
    assert kind_and_address(openings, datagram) == (NEW, "127.0.0.1:9")
    assert kind_and_address(openings, one)[0] == PAIR
    with tempfile.TemporaryDirectory() as folder:
        named = socket.socket(socket.AF_UNIX)
        named.bind(f"{folder}/s")
        named.listen()
        assert kind_and_address(openings, named) == (LISTENING, f"{folder}/s")
        named.close()
    for end in (plain, datagram, one, other):
        end.close()


def test_nothing_is_left_of_the_notes_once_they_end(openings: Openings) -> None:
    assert "connect" in vars(socket.socket)
    openings.stop()
    assert not {"bind", "listen", "connect", "connect_ex"} & vars(socket.socket).keys()


def test_a_call_that_fails_says_what_it_did(openings: Openings) -> None:
    closed = socket.socket()
    closed.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        closed.bind(("127.0.0.1", 0))
    with socket.socket() as refused, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            refused.connect(free.getsockname())
        assert refused.connect_ex(free.getsockname()) != 0
        assert os.fstat(refused.fileno())
