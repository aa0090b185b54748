"""`thawd.gateway.http_server.connections`, where the timing of received data matters. The test plays the transport."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from thawd.gateway.http import Receive, Scope, Send, respond
from thawd.gateway.http_server.connections import Connection
from thawd.gateway.http_server.limits import ConnectionLimits, Connections

HEAD = b"GET /x HTTP/1.1\r\nHost: localhost\r\n"


class Transport:
    """Records what is done with it."""

    def __init__(self) -> None:
        self.written = b""
        self.is_reading = True
        self.unsent_bytes = 0
        self.is_closed = False
        self.is_at_eof = False

    def write(self, data: bytes) -> None:
        assert not self.is_at_eof, "Cannot call write() after write_eof()"
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_at_eof = True

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes


def all_of_a_server(**limits: Any) -> Connections:
    return Connections(ConnectionLimits(**limits), complain=lambda _: None)


def connect(application: Any, connections: Connections | None = None) -> tuple[Connection, Transport]:
    application.begins_inline = True
    config = uvicorn.Config(application, loop="none", lifespan="off", log_config=None, ws="none", access_log=False)
    config.load()
    connections = all_of_a_server() if connections is None else connections
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
            await asyncio.sleep(0)  # from here on, a task runs the application
            await respond(send, 200, [], b"")
            if late:  # right after the answer, before any other task has run
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
        connection.server_connections.leave(connection)

    asyncio.run(scenario())


def test_what_comes_after_requests_that_were_answered_at_once_is_read_on() -> None:
    async def scenario() -> None:
        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await respond(send, 200, [], b"")

        connection, transport = connect(application)
        connection.data_received((HEAD + b"\r\n") * 3 + HEAD[:10])
        assert transport.written.count(b"HTTP/1.1 200") == 1, "other connections are served between two requests"
        connection.data_received(HEAD[10:])
        await until_answered(transport, 3)
        connection.data_received(b"\r\n")
        await until_answered(transport, 4)
        assert transport.is_reading
        connection.server_connections.leave(connection)

    asyncio.run(scenario())


def test_a_head_that_was_sent_before_means_the_same_again() -> None:
    posts = [b"POST /%b HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n" % path for path in (b"x", b"y")]

    async def scenario() -> None:
        seen: list[Any] = []

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            message = await receive()
            seen.append((scope["method"], scope["path"], dict(scope["headers"]), message["body"], "mark" in scope))
            scope["mark"] = True
            await respond(send, 200, [], b"")

        connection, transport = connect(application)
        asked = [posts[0] + b"11", posts[0] + b"22", HEAD + b"\r\n", HEAD + b"\r\n", posts[0] + b"33", posts[1] + b"44"]
        for number, request in enumerate(asked):
            connection.data_received(request)
            await until_answered(transport, number + 1)
        # Blank lines before a head are no head, whatever was sent before them.
        for data in (b"\r\n\r\n", b"\r\n\r\n", posts[1], b"5", b"5" + posts[1] + b"66"):
            connection.data_received(data)
        await until_answered(transport, 8)
        connection.server_connections.leave(connection)
        bodies = [(entry[0], entry[1], entry[3]) for entry in seen]
        assert bodies == [
            ("POST", "/x", b"11"),
            ("POST", "/x", b"22"),
            ("GET", "/x", b""),
            ("GET", "/x", b""),
            ("POST", "/x", b"33"),
            ("POST", "/y", b"44"),
            ("POST", "/y", b"55"),
            ("POST", "/y", b"66"),
        ]
        assert not any(entry[4] for entry in seen), "what one request stores in its scope is not seen by the next"

    asyncio.run(scenario())


def test_the_end_of_a_head_is_not_taken_from_the_request_before_it() -> None:
    async def scenario() -> None:
        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await respond(send, 200, [], b"")

        connection, transport = connect(application)
        connection.data_received(HEAD + b"\r\n")
        await until_answered(transport, 1)
        # The body's last bytes look like the end of a head. The next head arrives byte by byte.
        connection.data_received(b"POST /x HTTP/1.1\r\nContent-Length: 3\r\n\r\n")
        connection.data_received(b"\r\n\r")
        await until_answered(transport, 2)
        for number in HEAD + b"\r\n":
            connection.data_received(bytes([number]))
        await until_answered(transport, 3)
        connection.server_connections.leave(connection)

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
                connection.server_connections.leave(connection)

    asyncio.run(scenario())


async def empty(scope: Scope, receive: Receive, send: Send) -> None:
    await respond(send, 200, [], b"")


def test_an_answer_is_not_measured_by_what_was_unread_of_the_one_before_it() -> None:
    async def scenario() -> None:
        connection, transport = connect(empty)
        connection.data_received(HEAD + b"\r\n")
        await until_answered(transport, 1)
        transport.unsent_bytes = 1_000_000
        connection.expire(0.0)
        transport.unsent_bytes = 0  # the client has read it, and sends another request
        connection.data_received(HEAD + b"\r\n")
        await until_answered(transport, 2)
        transport.unsent_bytes = 2_000_000
        connection.expire(10 * connection.limits.unread_s)
        assert not transport.is_closed
        connection.server_connections.leave(connection)

    asyncio.run(scenario())


def test_a_client_may_pause_while_it_reads_an_answer_but_not_in_the_middle_of_its_next_request() -> None:
    async def scenario() -> None:
        for after, longest_s in ((b"", 600.0), (HEAD, 30.0), (b"POST /x HTTP/1.1\r\nContent-Length: 9\r\n\r\n", 30.0)):

            async def application(scope: Scope, receive: Receive, send: Send) -> None:
                if scope["method"] == "POST":
                    await receive()
                await respond(send, 200, [], b"")

            connection, transport = connect(application)
            connection.data_received(HEAD + b"\r\n")
            await until_answered(transport, 1)
            transport.unsent_bytes = 1_000_000
            connection.data_received(after)
            connection.expire(100.0)
            connection.expire(100.0 + longest_s - 1)
            assert not transport.is_closed
            transport.unsent_bytes -= 1
            connection.expire(1000.0)
            connection.expire(1000.0 + longest_s - 1)
            assert not transport.is_closed
            connection.expire(1000.0 + longest_s)
            assert transport.is_closed
            connection.server_connections.leave(connection)

    asyncio.run(scenario())


def test_room_is_made_by_who_has_read_all_and_not_by_who_has_just_come() -> None:
    async def scenario(unread: set[int]) -> list[int]:
        connections = all_of_a_server(connections=4)
        opened = [connect(empty, connections) for _ in range(4)]
        for number in unread:
            opened[number][1].unsent_bytes = 1
        opened.append(connect(empty, connections))
        closed = [number for number, (_, transport) in enumerate(opened) if transport.is_closed]
        for connection, _ in opened:
            connections.leave(connection)
        return closed

    assert asyncio.run(scenario(set())) == [0]
    assert asyncio.run(scenario({0})) == [1]
    assert asyncio.run(scenario({0, 1})) == [0]
    assert asyncio.run(scenario({0, 1, 2, 3})) == [0]


def test_a_request_behind_which_more_was_sent_than_is_read_may_take_its_time() -> None:
    async def scenario() -> None:
        may_answer = asyncio.Event()

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await may_answer.wait()
            await respond(send, 200, [], b"")

        connection, transport = connect(application)
        request = b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        connection.data_received(request + HEAD)
        connection.data_received(b"X")
        assert connection.deadline_s == math.inf
        connection.expire(connection.loop.time() + 1000)
        assert not transport.is_closed
        may_answer.set()
        await until_answered(transport, 1)
        assert connection.deadline_s < math.inf
        connection.server_connections.leave(connection)

    asyncio.run(scenario())


def test_a_request_that_fails_halfway_through_its_answer_is_not_waited_for() -> None:
    async def scenario() -> None:
        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise RuntimeError

        for behind in (b"", HEAD):
            connection, transport = connect(application)
            connection.data_received(HEAD + b"\r\n" + behind)
            while connection.tasks:  # noqa: ASYNC110 - a turn of the loop is what it waits for
                await asyncio.sleep(0)
            transport.is_closed = False  # the client leaves part of the answer unread
            transport.unsent_bytes = 1
            connection.expire(0.0)
            assert connection.deadline_s < math.inf
            connection.expire(1000.0)
            assert transport.is_closed
            connection.server_connections.leave(connection)

    asyncio.run(scenario())


CHUNKED = b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("body", [b"zz\r\n", b"1;" + b"a" * 100_000, b"0\r\n" + b"X: a\r\n" * 600])
def test_a_request_that_was_answered_early_is_not_answered_again_for_its_body(body: bytes) -> None:
    async def scenario() -> None:
        connection, transport = connect(empty)
        connection.data_received(CHUNKED)
        await until_answered(transport, 1)
        connection.data_received(body)
        assert transport.written.count(b"HTTP/1.1") == 1
        assert transport.is_at_eof
        connection.server_connections.leave(connection)

    asyncio.run(scenario())


def test_a_body_that_breaks_two_limits_at_once_is_refused_once() -> None:
    async def scenario() -> None:
        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()

        connection, transport = connect(application)
        limit = connection.limits.head_bytes
        # The same 4 KiB contain one header too many and one byte too many.
        extension = b"0;" + b"a" * (limit - 100) + b"\r\n"
        connection.data_received(CHUNKED)
        connection.data_received(extension + b"X: a\r\n" * 1000)
        assert transport.written.count(b"HTTP/1.1") == 1
        connection.server_connections.leave(connection)

    asyncio.run(scenario())


@pytest.mark.parametrize("before", [0, 1])
def test_a_url_that_cannot_be_read_is_answered_400(before: int) -> None:
    async def scenario() -> None:
        connection, transport = connect(empty)
        connection.data_received((HEAD + b"\r\n") * before)
        await until_answered(transport, before)
        connection.data_received(b"GET http://localhost:99999/ HTTP/1.1\r\n\r\n")
        assert transport.written.count(b"HTTP/1.1 400") == 1
        connection.server_connections.leave(connection)

    asyncio.run(scenario())


def test_what_was_held_is_not_begun_on_a_connection_that_was_closed_meanwhile() -> None:
    async def scenario(*, is_lost: bool) -> None:
        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await respond(send, 200, [], b"")
            transport.is_closed = True  # before the held request is started
            if is_lost:
                connection.connection_lost(None)

        wrong: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
        connection, transport = connect(application)
        connection.data_received((HEAD + b"\r\n") * 2)
        await until_answered(transport, 1)
        for _ in range(3):
            await asyncio.sleep(0)
        assert wrong == []
        assert transport.written.count(b"HTTP/1.1") == 1
        assert connection.server_state.total_requests == 1
        assert connection.held_bytes == 0
        assert not connection.tasks
        connection.server_connections.leave(connection)

    asyncio.run(scenario(is_lost=False))
    asyncio.run(scenario(is_lost=True))


def test_a_mistake_with_one_connection_does_not_keep_the_others_from_being_closed() -> None:
    async def scenario() -> None:
        connections = all_of_a_server(head_s=0.01)
        wrong: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
        broken, _ = connect(empty, connections)

        def fail(now_s: float) -> None:
            raise RuntimeError

        broken.expire = fail  # type: ignore[method-assign]
        while not wrong:  # noqa: ASYNC110 - a turn of the loop is what it waits for
            await asyncio.sleep(0)
        _, transport = connect(empty, connections)
        async with asyncio.timeout(30):
            while not transport.is_closed:  # noqa: ASYNC110
                await asyncio.sleep(0)

    asyncio.run(scenario())


@pytest.mark.parametrize("pieces", [1, 2])
def test_trailers_of_a_chunked_body_never_become_headers(pieces: int) -> None:
    async def scenario() -> list[tuple[bytes, bytes]]:
        seen: list[tuple[bytes, bytes]] = []

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            while (await receive()).get("more_body"):
                pass
            seen.extend(scope["headers"])
            await respond(send, 200, [], b"")

        connection, transport = connect(application)
        head = b"POST /x HTTP/1.1\r\nHost: a\r\nX-User: alice\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n"
        trailers = b"X-User: admin\r\nAuthorization: Bearer key\r\n\r\n"
        for piece in [head + trailers] if pieces == 1 else [head, trailers]:
            connection.data_received(piece)
            await asyncio.sleep(0)
        await until_answered(transport, 1)
        connection.server_connections.leave(connection)
        return seen

    assert asyncio.run(scenario()) == [(b"host", b"a"), (b"x-user", b"alice"), (b"transfer-encoding", b"chunked")]


@pytest.mark.parametrize(
    ("lines", "status", "words"),
    [
        (b"Host: a\r\nHost: b\r\n", 400, b"several Host headers"),
        (b"Host: a\r\nTransfer-Encoding: gzip, chunked\r\n", 501, b"'gzip, chunked' is not supported"),
        (b"Host: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", 501, b"'gzip,chunked' is not"),
    ],
)
def test_a_head_that_a_proxy_may_understand_differently_is_refused(lines: bytes, status: int, words: bytes) -> None:
    async def scenario() -> bytes:
        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            raise AssertionError("the application must not get the request")

        connection, transport = connect(application)
        connection.data_received(b"POST /x HTTP/1.1\r\n" + lines + b"\r\n0\r\n\r\n")
        await asyncio.sleep(0)
        connection.server_connections.leave(connection)
        return transport.written

    written = asyncio.run(scenario())
    assert written.startswith(b"HTTP/1.1 %d " % status)
    assert words in written
