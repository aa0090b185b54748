"""Claims about `thawd.gateway.connections` that depend on when what arrives: a transport by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from thawd.gateway.connection_limits import ConnectionLimits, Connections
from thawd.gateway.connections import Connection
from thawd.gateway.http import Receive, Scope, Send, respond

HEAD = b"GET /x HTTP/1.1\r\nHost: localhost\r\n"


class Transport:
    """Remembers what is done with it."""

    def __init__(self) -> None:
        self.written = b""
        self.is_reading = True

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return 0


def connect(application: Any) -> tuple[Connection, Transport]:
    config = uvicorn.Config(application, loop="none", lifespan="off", log_config=None, ws="none")
    config.load()
    connections = Connections(ConnectionLimits(), complain=lambda _: None)
    loop = asyncio.get_running_loop()
    connection = Connection(connections, config=config, server_state=ServerState(), app_state={}, _loop=loop)
    transport = Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport


async def until_answered(transport: Transport, count: int) -> None:
    while transport.written.count(b"HTTP/1.1 200") < count:  # noqa: ASYNC110 - a turn of the loop is what it waits for
        await asyncio.sleep(0)


def test_what_comes_between_an_answer_and_the_request_that_waited_for_it_is_read_on() -> None:
    async def scenario() -> None:
        late: list[bytes] = [HEAD[10:]]

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await respond(send, 200, [], b"")
            if late:  # right after the answer, before anybody else has had a turn
                connection.data_received(late.pop())

        connection, transport = connect(application)
        connection.data_received(HEAD + b"\r\n" + HEAD[:10])
        assert not transport.is_reading
        await until_answered(transport, 1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert transport.is_reading
        connection.data_received(b"\r\n")
        await until_answered(transport, 2)
        connection.all.leave(connection)

    asyncio.run(scenario())


def test_the_end_of_a_head_is_not_taken_from_the_request_before_it() -> None:
    async def scenario() -> None:
        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await respond(send, 200, [], b"")

        connection, transport = connect(application)
        connection.data_received(HEAD + b"\r\n")
        await until_answered(transport, 1)
        # A body whose last bytes look like the beginning of a head's end, then a head byte by byte.
        connection.data_received(b"POST /x HTTP/1.1\r\nContent-Length: 3\r\n\r\n")
        connection.data_received(b"\r\n\r")
        await until_answered(transport, 2)
        for number in HEAD + b"\r\n":
            connection.data_received(bytes([number]))
        await until_answered(transport, 3)
        connection.all.leave(connection)

    asyncio.run(scenario())


def test_a_head_that_is_cut_anywhere_is_found_to_be_complete() -> None:
    request = b"\r\nPOST /x HTTP/1.1\r\nContent-Length: 3\r\n\r\n\r\n\r" + HEAD + b"\r\n"

    async def scenario() -> None:
        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            await respond(send, 200, [], b"")

        for first in range(len(request)):
            for second in range(first, len(request), 7):
                connection, transport = connect(application)
                for part in (request[:first], request[first:second], request[second:]):
                    connection.data_received(part)
                await until_answered(transport, 2)
                connection.all.leave(connection)

    asyncio.run(scenario())
