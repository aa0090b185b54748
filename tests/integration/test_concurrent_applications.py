"""ASGI applications with the option `concurrency`: one process answers several requests at a time, streams too."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import DEADLINE_S, Project, Running, eventually

CODE = """
import asyncio, json, os, pathlib

told = {"ahead": 0, "gone": [], "open": 0, "stopped": False}
bell = None

async def app(scope, receive, send):
    global bell
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            if kind.endswith("shutdown"):
                pathlib.Path(os.environ["STOPPED"]).touch()
            await send({"type": kind + ".complete"})
            if kind.endswith("shutdown"):
                return
    bell = bell or asyncio.Event()
    kind, _, name = scope["path"].strip("/").removeprefix("short/").partition("/")
    body = (await receive())["body"]

    async def begin(status=200, **headers):
        listed = [(key.replace("_", "-").encode(), value.encode()) for key, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": listed})

    async def part(data, more=True):
        await send({"type": "http.response.body", "body": data, "more_body": more})

    if kind == "wait":  # streams a word, then waits for the bell that another request rings
        await begin(content_type="text/plain")
        await part(b"waits ")
        await bell.wait()
        await part(b"rung " + name.encode(), more=False)
    elif kind == "ring":
        bell.set()
        bell = None
        await begin()
        await part(b"ok", more=False)
    elif kind == "flood":
        told["ahead"] = 0
        await begin()
        for _ in range(200):
            await part(b"x" * 100_000)
            told["ahead"] += 100_000
        await part(b"", more=False)
    elif kind == "large":
        await begin()
        await part(bytes(range(256)) * 80_000, more=name == "more")
        if name == "more":
            await part(b"", more=False)
    elif kind == "stays":
        told["open"] += 1
        await begin()
        await part(b"here")
        message = await receive()
        if name == "fails":
            told["open"] -= 1
            raise RuntimeError("no such client")
        told["gone"].append((name, message["type"]))
        await part(b"nobody reads this", more=False)
        told["open"] -= 1
    elif kind == "fails":
        if name == "late":
            await begin()
            await part(b"half")
        raise RuntimeError("no such pixel")
    elif kind == "ignores":
        await begin()
        await part(b"here")
        await asyncio.sleep(60)
    else:
        await begin(content_type="application/json")
        await part(json.dumps({**told, "pid": os.getpid(), "body": body.decode()}).encode(), more=False)
"""


class Served:
    """The server, and a connection of its own for each request."""

    def __init__(self, running: Running, stopped: Path) -> None:
        self.running = running
        self.stopped = stopped

    def ask(self, path: str, body: bytes = b"") -> http.client.HTTPResponse:
        """Send a request and return the answer as soon as its head is there."""
        connection = http.client.HTTPConnection(self.running.url.removeprefix("http://"), timeout=DEADLINE_S)
        connection.request("POST" if body else "GET", path, body, {"Connection": "close"})
        return connection.getresponse()  # it closes the connection at its end

    def told(self) -> Any:
        return json.loads(self.ask("/told").read())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    project = Project(tmp_path_factory.mktemp("applications"))
    stopped = project.root / "stopped"
    project.code(CODE)
    project.config(f"""
        [functions.app]
        handler = "app.app"
        concurrency = 16
        reserved_concurrency = 1
        environment = {{ STOPPED = "{stopped}" }}

        [functions.short]
        handler = "app.app"
        concurrency = 16
        reserved_concurrency = 1
        timeout_s = 1
        environment = {{ STOPPED = "{stopped}2" }}

        [routes]
        "ANY /short/{{rest+}}" = "short"
        "$default" = "app"
    """)
    with project.up() as running:
        yield Served(running, stopped)
    assert stopped.exists(), "the application's shutdown did not run"


def read_incomplete(answer: http.client.HTTPResponse) -> None:
    with answer, pytest.raises(http.client.IncompleteRead):
        answer.read()


def test_a_stream_waits_while_other_requests_run_in_the_same_process(served: Served) -> None:
    waiting = [served.ask(f"/wait/{number}") for number in range(8)]
    assert [answer.read(6) for answer in waiting] == [b"waits "] * 8
    pids = {served.told()["pid"] for _ in range(5)}
    assert served.ask("/ring").read() == b"ok"
    assert [answer.read() for answer in waiting] == [b"rung %d" % number for number in range(8)]
    assert pids == {served.told()["pid"]}
    function = served.running.function("app")
    assert function["invocations"]["thaw"]["count"] == 1


def test_a_client_that_does_not_read_holds_up_its_own_answer_only(served: Served) -> None:
    host, port = served.running.url.removeprefix("http://").split(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.connect((host, int(port)))
        client.sendall(b"GET /flood/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        assert len(served.ask("/large/more").read()) == 20_480_000
        ahead = served.told()["ahead"]
        assert ahead < 15_000_000, "the application was not held up"
        assert served.told()["ahead"] == ahead
        client.settimeout(DEADLINE_S)
        read = b""
        while not read.endswith(b"0\r\n\r\n"):
            data = client.recv(1 << 20)
            assert data
            read = read[-10:] + data
    assert served.told()["ahead"] == 20_000_000


@pytest.mark.parametrize("kind", ["whole", "more"])
def test_a_large_answer_is_whole(served: Served, kind: str) -> None:
    assert served.ask(f"/large/{kind}").read() == bytes(range(256)) * 80_000


def test_the_application_is_told_that_its_client_has_gone(served: Served) -> None:
    answer = served.ask("/stays/one")
    assert answer.read(4) == b"here"
    assert served.told()["open"] == 1
    answer.close()
    eventually(lambda: served.told()["open"] == 0, what="the end of the stream")
    assert served.told()["gone"] == [["one", "http.disconnect"]]


def test_an_exception_after_the_client_has_gone_is_in_the_log(served: Served) -> None:
    answer = served.ask("/stays/fails")
    assert answer.read(4) == b"here"
    answer.close()

    def is_logged() -> bool:
        return "RuntimeError: no such client" in served.running.project.command("logs", "app").stdout

    eventually(is_logged, what="the traceback in the log")


def test_a_request_that_fails_fails_alone(served: Served) -> None:
    pid = served.told()["pid"]
    answer = served.ask("/fails/early")
    assert (answer.status, answer.read()) == (500, b"Internal Server Error")
    read_incomplete(served.ask("/fails/late"))
    assert served.told()["pid"] == pid

    def is_logged() -> bool:
        return "RuntimeError: no such pixel" in served.running.project.command("logs", "app").stdout

    eventually(is_logged, what="the traceback in the log")  # the log is written a moment later
    with urllib.request.urlopen(f"{served.running.url}/_thawd/invocations?function=app&text=GET+/fails/early") as found:
        records = json.load(found)["invocations"]
    assert [(each["error_type"], each["error"]) for each in records] == [("RuntimeError", "no such pixel")]


def test_an_invocation_without_a_stream_gets_a_document(served: Served) -> None:
    event = {"version": "2.0", "rawPath": "/told", "requestContext": {"http": {"method": "GET", "path": "/told"}}}
    answer, error = served.running.invoke("app", event)
    assert (answer["statusCode"], error) == (200, None)
    assert json.loads(answer["body"])["body"] == ""


def test_a_stream_that_exceeds_the_time_limit_ends_and_its_process_lives_on_if_the_application_lets_go(
    served: Served,
) -> None:
    def pid() -> int:
        return int(json.loads(served.ask("/short/told").read())["pid"])

    first = pid()
    read_incomplete(served.ask("/short/stays"))
    assert pid() == first
    read_incomplete(served.ask("/short/ignores"))
    assert pid() != first
