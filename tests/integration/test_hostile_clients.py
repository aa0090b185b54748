"""Clients that send slowly, too much or incompletely: real sockets at the HTTP port, with short limits.

No test sleeps: the server closes what exceeds its limit, and the tests wait for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.integration.conftest import DEADLINE_S, Project, Running
from thawd.gateway.http import Receive, Scope, Send, respond
from thawd.gateway.http_server.limits import ConnectionLimits
from thawd.server.web import configured

LIMITS = ConnectionLimits(connections=200, head_s=DEADLINE_S, idle_s=DEADLINE_S, stall_s=DEADLINE_S)
SHORT_S = 0.1
# More than the kernel buffers for a client that does not read (tcp_wmem, 4 MiB, and the client's own buffer).
LARGE = b"a" * 8_000_000


class Application:
    """Answers with the length of the body; ``/slow`` when allowed, ``/unread`` without reading, ``/large`` with a large
    body."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.is_slow = threading.Event()
        self.gone = threading.Event()
        self.calls = 0
        self.half_written = threading.Semaphore(0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls += 1
        path = scope["path"]
        if path.startswith("/unread"):
            await respond(send, 429, [(b"connection", b"close")] if path == "/unread/close" else [], b"enough")
            return
        if path == "/large":
            await _answer_in_two_parts(send, self.half_written.release)
            return
        if path == "/slow":
            self.is_slow.set()
            await self.may_answer.wait()
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone.set()
                return
            size += len(message.get("body", b""))
            if not message.get("more_body"):
                break
        await respond(send, 200, [], f"{path} {size}".encode())


async def _answer_in_two_parts(send: Send, half_written: Callable[[], object]) -> None:
    length = str(len(LARGE)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": LARGE[:-1], "more_body": True})
    half_written()
    await send({"type": "http.response.body", "body": LARGE[-1:]})  # waits until the client has read most of it


class Port:
    """An HTTP port with limits, in a thread of this process."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.words: list[str] = []
        self.application: Application
        self._limits = limits
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main)
        self._number = 0
        self._clients: list[Client] = []

    def __enter__(self) -> Port:
        self._thread.start()
        assert self._ready.wait(DEADLINE_S)
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.application = Application()
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen(1024)
            self._number = listening.getsockname()[1]
            server = configured(self.application, self._limits, complain=self.words.append)
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            self._ready.set()
            await self._stop.wait()
            server.stop()
            server.stop_waiting()
            await serving

    def let_answer(self) -> None:
        self.loop.call_soon_threadsafe(self.application.may_answer.set)

    def connect(self, data: bytes = b"", *, receive_bytes: int | None = None) -> Client:
        connection = socket.socket()
        connection.settimeout(DEADLINE_S)
        if receive_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.connect(("127.0.0.1", self._number))
        client = Client(connection)
        self._clients.append(client)
        return client.send(data)

    def get(self, path: str = "/x") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._number, timeout=DEADLINE_S)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()


class Client:
    """One connection, used in ways that no proper client would."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.file = connection.makefile("rb")

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    def send(self, data: bytes) -> Client:
        self.socket.sendall(data)
        return self

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        line = self.file.readline()
        assert line, "the connection was closed without an answer"
        status = int(line.split()[1])
        headers = {k.lower(): v for k, v in http.client.parse_headers(self.file).items()}
        return status, headers, self.file.read(int(headers.get("content-length", 0)))

    def status(self) -> int:
        return self.answer()[0]

    def rest(self) -> bytes:
        """Read until the server closes the connection, and return what arrived."""
        try:
            return self.file.read()
        except ConnectionResetError:
            return b""


@contextlib.contextmanager
def port(**changes: Any) -> Iterator[Port]:
    with Port(replace(LIMITS, **changes)) as opened:
        yield opened


@pytest.fixture(scope="module")
def usual() -> Iterator[Port]:
    with port() as opened:
        yield opened


HEAD = b"GET /x HTTP/1.1\r\nHost: localhost\r\n"


def post(path: str, body: bytes, *headers: bytes) -> bytes:
    lines = [b"POST %b HTTP/1.1" % path.encode(), b"Host: localhost", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(*parts: bytes) -> bytes:
    return b"POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(parts)


# Heads


@pytest.mark.parametrize("line", [b"X: " + b"a" * 8_000_000, b"X: a\r\n" * 500_000, b"a" * 8_000_000])
def test_a_head_that_is_too_large_is_answered_431_though_its_client_goes_on_sending(usual: Port, line: bytes) -> None:
    calls = usual.application.calls
    client = usual.connect(HEAD + line + b"\r\n\r\n")
    status, headers, body = client.answer()
    assert (status, headers["connection"]) == (431, "close")
    assert "65536 bytes" in json.loads(body)["message"] or "at most 512 are" in json.loads(body)["message"]
    client.socket.shutdown(socket.SHUT_WR)
    assert client.rest() == b""
    assert usual.application.calls == calls


def test_a_head_of_64_kib_and_of_512_headers_passes(usual: Port) -> None:
    large = HEAD + b"X: " + b"a" * (64 * 1024 - len(HEAD) - 7) + b"\r\n\r\n"
    assert len(large) == 64 * 1024
    assert usual.connect(large).status() == 200
    assert usual.connect(HEAD + b"X: a\r\n" * 511 + b"\r\n").status() == 200
    assert usual.connect(HEAD + b"X: a\r\n" * 512 + b"\r\n").status() == 431


def test_a_head_may_come_in_any_pieces(usual: Port) -> None:
    request = b"\r\n" + post("/x", b"body") + HEAD + b"\r\n"
    for at in range(len(request)):
        client = usual.connect(request[:at])
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.send(request[at:])
        assert [client.answer()[2], client.answer()[2]] == [b"/x 4", b"/x 0"]
    client = usual.connect()
    client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for number in request:
        client.send(bytes([number]))
    assert [client.answer()[2], client.answer()[2]] == [b"/x 4", b"/x 0"]


def test_what_is_no_http_is_answered_400_at_once(usual: Port) -> None:
    assert usual.connect(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").status() == 400
    assert usual.connect(b"GET / HTTP/1.1\nHost: x\n\n").status() == 400
    assert usual.connect(b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n").status() == 400


def test_a_head_that_is_never_complete_and_a_silent_connection_are_closed() -> None:
    with port(head_s=SHORT_S) as opened:
        half = [opened.connect(HEAD + b"X-A: b") for _ in range(50)]
        silent = opened.connect()
        assert {client.status() for client in half} == {408}
        assert {client.rest() for client in (*half, silent)} == {b""}
        assert opened.application.calls == 0


def test_a_head_that_comes_byte_by_byte_for_ever_is_closed() -> None:
    # On a busy machine more bytes than a head may have come before the time is over; that would be answered 431.
    with port(head_s=SHORT_S, head_bytes=1 << 30, unfinished_bytes=1 << 30) as opened:
        client = opened.connect(HEAD + b"X: ")
        with contextlib.suppress(OSError):
            while True:
                client.send(b"a")
        assert opened.application.calls == 0


def test_a_connection_that_rests_after_a_request_is_closed_and_one_at_work_is_not() -> None:
    with port(idle_s=SHORT_S, head_s=SHORT_S, stall_s=SHORT_S) as opened:
        busy = opened.connect(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert opened.application.is_slow.wait(DEADLINE_S)
        resting = opened.connect(HEAD + b"\r\n")
        assert resting.status() == 200
        assert resting.rest() == b""
        opened.let_answer()
        assert busy.status() == 200


def test_heads_that_are_not_complete_are_bounded_together_and_the_oldest_is_closed() -> None:
    with port(unfinished_bytes=1_000_000) as opened:
        clients = [opened.connect(HEAD + b"X: " + b"a" * 50_000) for _ in range(40)]
        assert clients[0].rest() == b""
        last = clients[-1].send(b"\r\n\r\n")
        assert last.status() == 200
        assert opened.get()[0] == 200


# Pipelining


def test_pipelined_requests_are_answered_in_order(usual: Port) -> None:
    count = 2000
    requests = b"".join(post(f"/{i}", b"b" * (i % 7)) for i in range(count))
    client = usual.connect()
    sending = threading.Thread(target=client.send, args=(requests,))
    sending.start()
    for i in range(count):
        assert client.answer()[2] == b"/%d %d" % (i, i % 7)
    sending.join()


def test_pipelined_requests_that_wait_are_bounded_together() -> None:
    with port(held_bytes=300_000) as opened:
        client = opened.connect(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert opened.application.is_slow.wait(DEADLINE_S)
        others = [opened.connect(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(20)]
        for other in others:
            with contextlib.suppress(OSError):
                other.send((HEAD + b"\r\n") * 2000)
        with contextlib.suppress(OSError):
            assert b"" in [other.socket.recv(1) for other in others[-1:]]
        opened.let_answer()
        assert client.status() == 200
        assert opened.get()[0] == 200


# Number of connections


def test_idle_connections_shut_nobody_out_and_that_is_told_once() -> None:
    with port(connections=20) as opened:
        idle = [opened.connect(HEAD if i % 2 else b"") for i in range(60)]
        assert [opened.get()[0] for _ in range(30)] == [200] * 30
        assert idle[0].rest() == b""
        assert len(opened.words) == 1
        assert "20 connections are open" in opened.words[0]
        assert "ulimit -n" in opened.words[0]


def test_when_all_connections_are_at_work_another_is_answered_503() -> None:
    with port(connections=5) as opened:
        busy = [opened.connect(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(5)]
        _all_at_work(opened, 5)
        status, headers, _ = opened.connect().answer()
        assert (status, headers["retry-after"]) == (503, "1")
        opened.let_answer()
        assert {client.status() for client in busy} == {200}
        assert opened.get()[0] == 200


def _all_at_work(opened: Port, count: int) -> None:
    while opened.application.calls < count:
        assert opened.application.is_slow.wait(DEADLINE_S)


def _that_do_not_read(opened: Port, count: int) -> list[Client]:
    """Open clients that request a large body and do not read it, until the server waits for each of them."""
    clients = []
    for _ in range(count):
        clients.append(opened.connect(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n", receive_bytes=4096))
        assert opened.application.half_written.acquire(timeout=DEADLINE_S)
    return clients


def test_clients_that_do_not_read_shut_nobody_out() -> None:
    with port(connections=5) as opened:
        clients = _that_do_not_read(opened, 5)
        others = [opened.connect(HEAD + b"\r\n") for _ in range(2)]
        assert [other.status() for other in others] == [200, 200]
        assert len(clients[0].rest()) < len(LARGE)
        assert clients[4].answer()[2] == LARGE


def test_clients_that_read_late_get_all_while_there_is_room() -> None:
    with port(connections=5) as opened:
        clients = _that_do_not_read(opened, 4)
        assert [opened.get()[0] for _ in range(10)] == [200] * 10
        assert [client.answer()[2] == LARGE for client in clients] == [True] * 4


# Bodies


def test_a_body_that_stops_coming_is_answered_408_and_its_reader_is_told() -> None:
    with port(stall_s=SHORT_S) as opened:
        for request in (post("/x", b"12345")[:-1], chunked(b"5\r\n1234")):
            opened.application.gone.clear()
            client = opened.connect(request)
            assert client.status() == 408
            assert client.rest() == b""
            assert opened.application.gone.wait(DEADLINE_S)


def test_a_body_in_chunks_of_one_byte_is_whole(usual: Port) -> None:
    count = 200_000
    client = usual.connect(chunked(b"1\r\nx\r\n" * count, b"0\r\n\r\n"))
    assert client.answer()[2] == b"/x %d" % count
    assert client.send(HEAD + b"\r\n").status() == 200


@pytest.mark.parametrize(
    "parts", [b"1;" + b"a" * 300_000, b"1\r\nx\r\n0\r\nX: " + b"a" * 300_000, b"0\r\n" + b"X: a\r\n" * 100_000]
)
def test_what_is_no_content_in_a_chunked_body_is_bounded(usual: Port, parts: bytes) -> None:
    client = usual.connect(chunked(parts))
    assert client.status() in (400, 431)
    client.socket.shutdown(socket.SHUT_WR)
    assert client.rest() == b""


def test_trailers_of_a_chunked_body_pass(usual: Port) -> None:
    client = usual.connect(chunked(b"3\r\nabc\r\n0\r\nX-Checksum: 1\r\n\r\n"))
    assert client.answer()[2] == b"/x 3"
    assert client.send(HEAD + b"\r\n").status() == 200


def test_a_request_that_is_pipelined_behind_a_chunked_one_has_to_be_sent_again(usual: Port) -> None:
    client = usual.connect(chunked(b"3\r\nabc\r\n0\r\n\r\n") + HEAD + b"\r\n")
    status, headers, body = client.answer()
    assert (status, headers["connection"], body) == (200, "close", b"/x 3")
    assert client.rest() == b""


@pytest.mark.parametrize("path", ["/unread", "/unread/close"])
def test_an_answer_that_comes_before_the_body_was_sent_is_read_by_who_sends_it(usual: Port, path: str) -> None:
    client = usual.connect(post(path, b"b" * 80_000_000))
    status, headers, body = client.answer()
    assert (status, body) == (429, b"enough")
    if "connection" not in headers:
        assert client.send(HEAD + b"\r\n").status() == 200


def test_a_body_that_nobody_reads_is_not_read_for_ever() -> None:
    with port(discard_bytes=1_000_000) as opened:
        client = opened.connect()
        with contextlib.suppress(OSError):
            client.send(post("/unread", b"b" * 64_000_000))
        assert len(client.rest()) < 1000
    with port(discard_s=SHORT_S) as opened:
        client = opened.connect(post("/unread", b"12345")[:-1])
        assert client.status() == 429
        assert client.rest() == b""


def test_who_waits_for_leave_to_send_gets_it_or_the_answer_and_no_more(usual: Port) -> None:
    expecting = b"Expect: 100-continue"
    client = usual.connect(post("/x", b"body", expecting)[:-4])
    assert client.file.readline() == b"HTTP/1.1 100 Continue\r\n"
    assert client.file.readline() == b"\r\n"
    status, headers, body = client.send(b"body").answer()
    assert (status, body, "connection" in headers) == (200, b"/x 4", False)
    client = usual.connect(post("/unread", b"body", expecting)[:-4])
    status, headers, _ = client.answer()
    assert (status, headers["connection"]) == (429, "close")


def test_an_upgrade_that_is_not_offered_leaves_the_request_as_it_is(usual: Port) -> None:
    upgrade = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__")
    client = usual.connect(post("/x", b"body", *upgrade) + HEAD + b"\r\n")
    assert [client.answer()[2], client.answer()[2]] == [b"/x 4", b"/x 0"]


# The whole server


def test_400_idle_connections_shut_nobody_out_of_a_server_with_256_descriptors(project: Project) -> None:
    project.code("def handler(event, context):\n    return event\n")
    project.config('[functions.echo]\nhandler = "app.handler"\n')
    with project.up(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))) as running:
        clients = [socket.create_connection(_place(running), timeout=DEADLINE_S) for _ in range(400)]
        assert running.invoke("echo", {"a": 1}) == ({"a": 1}, None)
        running.until_said("connections are open")
        for client in clients:
            client.close()
    assert sum("connections are open" in line for line in running.output) == 1


def test_the_memory_of_a_server_stays_within_64_mib_under_slow_and_large_heads_and_pipelining(project: Project) -> None:
    project.code("def handler(event, context):\n    return event\n")
    project.config('[functions.echo]\nhandler = "app.handler"\n')
    with project.up() as running, contextlib.ExitStack() as closing:
        running.invoke("echo", {})
        idle_mib = _resident_mib(running)
        for data in (HEAD + b"X: " + b"a" * 60_000, (HEAD + b"\r\n") * 5000, HEAD + b"X: a\r\n" * 500):
            for _ in range(150):
                client = closing.enter_context(socket.create_connection(_place(running), timeout=DEADLINE_S))
                client.setblocking(False)
                with contextlib.suppress(OSError):
                    client.send(data)
            assert running.invoke("echo", {"a": 1}) == ({"a": 1}, None)
            assert _resident_mib(running) < idle_mib + 64


def _place(running: Running) -> tuple[str, int]:
    host, _, number = running.url.removeprefix("http://").partition(":")
    return host, int(number)


def _resident_mib(running: Running) -> float:
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024
