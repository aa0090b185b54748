"""Limits on connections whose TLS handshake is not complete."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path
from typing import cast

import uvloop

from tests.certificates import make_server_certificate
from thawd.server.tls.listening import TlsListener


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


def test_connections_without_a_handshake_are_closed_oldest_first_and_hold_up_nobody(tmp_path: Path) -> None:
    certificate, key = make_server_certificate(tmp_path, "own")
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificate, key)
    client_context = ssl.create_default_context(cafile=certificate)

    async def main() -> None:
        with socket.socket() as listening, contextlib.ExitStack() as stack:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            address = listening.getsockname()
            listener = TlsListener(listening, context=lambda: server_context, new_protocol=_Echo, most=2)
            streams = []
            for begun in (b"", b"\x16\x03\x01", b""):  # silent, in the middle of its first message, silent
                reader, writer = await asyncio.open_connection(*address)
                stack.callback(writer.close)
                writer.write(begun)
                streams.append(reader)
            assert await asyncio.wait_for(_end(streams[0]), 60)

            reader, writer = await asyncio.open_connection(*address, ssl=client_context, server_hostname="localhost")
            stack.callback(writer.close)
            writer.write(b"echo")
            assert await reader.readexactly(4) == b"echo"
            assert await asyncio.wait_for(_end(streams[1]), 60)  # the oldest when this one came

            listener.close()
            assert await asyncio.wait_for(_end(streams[2]), 60)
            writer.write(b"more")
            assert await reader.readexactly(4) == b"more"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def _end(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    return True
