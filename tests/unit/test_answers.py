"""`thawd.gateway.http_server.answers`: what an answer's writes contain, and that both ways to answer mean the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.test_connections import HEAD, Transport, connect
from thawd.gateway.http import Receive, Scope, Send, respond, respond_now

LARGE = b"x" * 200_000


class Wire(Transport):
    """Records each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        super().write(data)
        self.writes.append(bytes(data))


async def answered(application: Any, request: bytes = HEAD + b"\r\n", *, turns: int = 10) -> Wire:
    """Send a request to the application; return what has been written after some turns of the event loop."""
    connection, _ = connect(application)
    wire = Wire()
    connection.connection_made(wire)  # type: ignore[arg-type]
    connection.data_received(request)
    for _ in range(turns):
        await asyncio.sleep(0)
    connection.server_connections.leave(connection)
    return wire


def whole(status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = (), body: bytes = b"") -> Any:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, status, headers, body)

    return application


def in_two(status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = (), body: bytes = b"") -> Any:
    """The same answer as `whole`, in the two messages of ASGI."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        announced = [] if status == 204 else [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": [*headers, *announced]})
        await send({"type": "http.response.body", "body": body})

    return application


ANSWERS: list[dict[str, Any]] = [
    {},
    {"body": b"short"},
    {"body": LARGE},
    {"status": 404, "headers": ((b"X-Mixed-Case", b"a, b"), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"))},
    {"status": 204},
    {"headers": ((b"connection", b"close"),), "body": b"last"},
]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("head", [HEAD, HEAD.replace(b"GET", b"HEAD"), HEAD + b"Connection: close\r\n"])
def test_a_whole_answer_is_the_same_as_one_in_two_messages(answer: dict[str, Any], head: bytes) -> None:
    async def scenario() -> None:
        one, two = [await answered(kind(**answer), head + b"\r\n") for kind in (whole, in_two)]
        assert one.written == two.written
        assert one.written
        assert one.is_closed == two.is_closed

    asyncio.run(scenario())


@pytest.mark.parametrize("headers", [(), ((b"x-name", b"a"),)])
def test_an_answer_without_content_announces_no_length(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    async def scenario() -> None:
        wire = await answered(whole(204, headers))
        assert wire.written.startswith(b"HTTP/1.1 204")
        assert b"content-length" not in wire.written
        assert b"transfer-encoding" not in wire.written
        assert wire.written.endswith(b"\r\n\r\n")
        assert not wire.is_closed

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", [whole, in_two])
def test_a_short_answer_is_one_write_and_a_large_body_is_not_copied(kind: Any) -> None:
    async def scenario() -> None:
        short = await answered(kind(body=b"short"))
        assert len(short.writes) == 1
        large = await answered(kind(body=LARGE))
        assert large.writes[1:] == [LARGE]

    asyncio.run(scenario())


def test_a_head_does_not_wait_for_a_body_that_comes_later() -> None:
    async def scenario() -> None:
        may_go_on = asyncio.Event()

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
            await may_go_on.wait()
            await send({"type": "http.response.body", "body": b"late"})

        wire = await answered(application)
        assert wire.written.startswith(b"HTTP/1.1 200")
        assert wire.written.endswith(b"\r\n\r\n")
        may_go_on.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert wire.written.endswith(b"\r\n\r\nlate")
        assert len(wire.writes) == 2

    asyncio.run(scenario())


def test_an_interim_answer_is_written_at_once_and_not_taken_for_the_head() -> None:
    async def scenario() -> None:
        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            await respond(send, 200, [], b"ok")

        request = HEAD.replace(b"GET", b"POST") + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        wire = await answered(application, request)
        assert wire.writes == [b"HTTP/1.1 100 Continue\r\n\r\n"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "header",
    [(b"x-name", b"a\r\nx-more: b"), (b"x-name", b"a\nb"), (b"x\r\nname", b"a"), (b"x name", b"a"), (b"x:", b"a")],
)
def test_a_header_that_would_end_its_line_is_not_sent(header: tuple[bytes, bytes]) -> None:
    async def scenario() -> None:
        assert (await answered(whole(headers=(header,), body=b"x"))).written.startswith(b"HTTP/1.1 500")
        in_parts = await answered(in_two(headers=(header,), body=b"x"))
        assert in_parts.written == b""
        assert in_parts.is_closed

    asyncio.run(scenario())


def test_nothing_is_written_after_the_connection_was_closed_in_between() -> None:
    async def scenario() -> None:
        connection, _ = connect(whole())
        wire = Wire()

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
            wire.abort()
            connection.connection_lost(None)
            await send({"type": "http.response.body", "body": b"late"})

        connection.app = application
        connection.connection_made(wire)  # type: ignore[arg-type]
        connection.data_received(HEAD + b"\r\n")
        for _ in range(10):
            await asyncio.sleep(0)
        assert wire.writes == []

    asyncio.run(scenario())


def now(found: list[bool], *bodies: bytes) -> Any:
    """Answers with each body within a call, and notes whether that was possible; else with the last one afterwards."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        found.extend(respond_now(send, 200, [(b"X-Mixed-Case", b"1")], body) for body in bodies)
        if not any(found):
            await respond(send, 200, [(b"X-Mixed-Case", b"1")], bodies[-1])

    return application


def test_an_answer_that_is_sent_within_a_call_is_the_same_and_is_sent_once() -> None:
    async def scenario() -> None:
        found: list[bool] = []
        wire = await answered(now(found, b"one", b"two"), turns=0)
        assert found == [True, False]
        assert wire.written == (await answered(whole(headers=((b"X-Mixed-Case", b"1"),), body=b"one"))).written

    asyncio.run(scenario())


def test_an_answer_is_not_sent_within_a_call_while_the_client_does_not_read() -> None:
    async def scenario() -> None:
        found: list[bool] = []
        connection, _ = connect(now(found, b"late"))
        wire = Wire()
        connection.connection_made(wire)  # type: ignore[arg-type]
        connection.pause_writing()
        connection.data_received(HEAD + b"\r\n")
        await asyncio.sleep(0)
        assert (found, wire.written) == ([False], b"")
        connection.resume_writing()
        for _ in range(10):
            await asyncio.sleep(0)
        assert wire.written.endswith(b"late")
        connection.server_connections.leave(connection)

    asyncio.run(scenario())


def test_a_head_is_written_before_the_end_of_the_stream() -> None:
    """The rest of the request turns out to be invalid between the head of its answer and the loop's next turn."""

    async def scenario() -> None:
        connection, _ = connect(whole())
        wire = Wire()

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
            connection.data_received(b"this is no size of a chunk\r\n")
            assert wire.is_at_eof
            await send({"type": "http.response.body", "body": b"late"})

        connection.app = application
        connection.connection_made(wire)  # type: ignore[arg-type]
        connection.data_received(HEAD.replace(b"GET", b"POST") + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(10):
            await asyncio.sleep(0)
        assert wire.written.startswith(b"HTTP/1.1 200")
        assert wire.written.count(b"HTTP/1.1") == 1
        connection.server_connections.leave(connection)

    asyncio.run(scenario())


def test_names_that_were_found_valid_do_not_make_others_valid() -> None:
    async def scenario() -> None:
        sent: list[bool] = []

        def application(*headers: tuple[bytes, bytes]) -> Any:
            async def answers(scope: Scope, receive: Receive, send: Send) -> None:
                sent.append(respond_now(send, 200, headers, b""))

            return answers

        for _ in range(2):
            await answered(application((b"x-a", b"1"), (b"x-b", b"2")))
        await answered(application((b"x-ax-b", b"1")))
        await answered(application((b"x-a,x-b", b"1")))
        await answered(application((b"x-a", b"1\r\nx-c: 3"), (b"x-b", b"2")))
        await answered(application((b"x-a", b"1"), (b"connection", b"close")))
        assert sent == [True, True, True, False, False, False]

    asyncio.run(scenario())


def test_a_new_date_is_in_the_next_answer() -> None:
    async def scenario() -> None:
        connection, _ = connect(whole(body=b"x"))
        wire = Wire()
        connection.connection_made(wire)  # type: ignore[arg-type]
        for date in (b"Mon", b"Tue"):
            connection.server_state.default_headers = [(b"date", date)]
            connection.data_received(HEAD + b"\r\n")
            for _ in range(5):
                await asyncio.sleep(0)
        connection.server_connections.leave(connection)
        assert [b"date: Mon" in wire.writes[0], b"date: Tue" in wire.writes[1]] == [True, True]

    asyncio.run(scenario())
