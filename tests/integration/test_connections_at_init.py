"""Functions that connect during init: every caller gets their own answer, however environments start.

The test uses real PostgreSQL, Redis and a slow HTTP server, and 16 callers. A connection shared by two processes would
give one caller another caller's answer, as a success.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.integration.postgresql import Postgresql
from tests.libraries.servers import Redis
from tests.ports import quiet_port
from thawd.snapshot.engine import unavailable

from .conftest import Project, Running

CALLERS = 16
# Total number of answers, from THAWD_CONNECTION_ANSWERS. It was run once by hand with 10,000; usually there are fewer.
ANSWERS = int(os.environ.get("THAWD_CONNECTION_ANSWERS", "300"))

CODE = {
    "requests": """
        import os, requests
        SESSION = requests.Session()
        assert SESSION.get(os.environ["ECHO"] + "/init").text == "/init"

        def handler(event, context):
            return SESSION.get(os.environ["ECHO"] + "/%s" % event["n"]).text[1:]
    """,
    "psycopg": """
        import os, psycopg
        CONNECTION = psycopg.connect(os.environ["DATABASE"], autocommit=True)
        CONNECTION.execute("SELECT 1")

        def handler(event, context):
            global CONNECTION
            try:
                return CONNECTION.execute("SELECT %s::text, pg_sleep(0.002)", [event["n"]]).fetchone()[0]
            except psycopg.OperationalError:
                CONNECTION = psycopg.connect(os.environ["DATABASE"], autocommit=True)
                return CONNECTION.execute("SELECT %s::text", [event["n"]]).fetchone()[0]
    """,
    "redis": """
        import os, redis
        CLIENT = redis.Redis.from_url(os.environ["REDIS"], decode_responses=True)
        CLIENT.ping()

        def handler(event, context):
            return CLIENT.echo(str(event["n"]))
    """,
}


class Echo(BaseHTTPRequestHandler):
    """Answers with the requested path after 10 ms, which is long enough for another caller's request in between."""

    protocol_version = "HTTP/1.1"
    timeout = 300

    def do_GET(self) -> None:
        self.server.pause.wait(0.01)  # type: ignore[attr-defined]
        body = self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    from threading import Event

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128
        pause = Event()

    server = Server(("127.0.0.1", 0), Echo)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def variables(echo: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of the three servers, as environment variables of the functions."""
    with Postgresql(quiet_port()) as database, Redis(tmp_path_factory.mktemp("redis")) as redis:
        yield {"ECHO": echo, "DATABASE": database.url(host="127.0.0.1"), "REDIS": redis.address}


def serve(project: Project, variables: dict[str, str], *, snapshots: str = "auto", options: str = "") -> None:
    text = f'snapshots = "{snapshots}"\nmax_environments = {CALLERS}\n'
    for name, code in CODE.items():
        project.code(code, f"{name}/app_{name}.py")
        environment = ", ".join(f"{key} = {json.dumps(value)}" for key, value in variables.items())
        text += (
            f'[functions.{name}]\nhandler = "app_{name}.handler"\ncode = "{name}"\nidle_timeout_s = 0.05\n'
            f"environment = {{ {environment} }}\n{options}"
        )
    project.config(text)


def wrong_answers(running: Running, function: str, count: int) -> list[tuple[int, object]]:
    """Make `count` invocations from 16 concurrent callers and return those with a wrong answer."""
    clients = [running.client() for _ in range(CALLERS)]

    def ask(caller: int) -> list[tuple[int, object]]:
        wrong: list[tuple[int, object]] = []
        for number in range(caller, count, CALLERS):
            answer = clients[caller].invoke(FunctionName=function, Payload=json.dumps({"n": number}))
            value = json.loads(answer["Payload"].read())
            if value != str(number):
                wrong.append((number, value))
        return wrong

    with ThreadPoolExecutor(CALLERS) as threads:
        return [one for found in threads.map(ask, range(CALLERS)) for one in found]


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_thawed_environments_connect_anew_and_nobody_gets_anothers_answer(
    project: Project, variables: dict[str, str]
) -> None:
    serve(project, variables)
    with project.up() as running:
        for name in CODE:
            assert wrong_answers(running, name, ANSWERS // len(CODE)) == []
        for name in CODE:
            function = running.function(name)
            assert function["start"] == "thaw", function["start_reason"]
            [dropped] = function["snapshot"]["dropped"]
            assert "connected to 127.0.0.1:" in dropped
            # libpq is native code, so no Python line opened it
            library = {"requests": "urllib3", "redis": "redis", "psycopg": None}[name]
            assert (f"({library}, opened at app_{name}.py:" in dropped) == (library is not None)
            assert f"ended in each thawed environment: {dropped}" in project.command("status").stdout


@pytest.mark.parametrize("snapshots", ["auto", "off"])
def test_a_connection_is_never_carried_into_forks(project: Project, variables: dict[str, str], snapshots: str) -> None:
    serve(project, variables, snapshots=snapshots, options='snapshot_connections = "refuse"\n')
    with project.up() as running:
        for name in CODE:
            assert wrong_answers(running, name, 4) == []  # each in an environment of its own that starts cold
            function = running.function(name)
            assert function["start"] == "cold"
            assert "get each other's data" in function["start_reason"]
            assert "connected to 127.0.0.1:" in function["start_reason"]
            if snapshots == "auto":
                assert "snapshot_connections" in function["snapshot"]["refused"]


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_loop_in_a_thread_with_a_connection_goes_on_in_every_environment(
    project: Project, echo: str, tmp_path: Path, loop: str
) -> None:
    project.code(
        f"""
        import asyncio, os, threading, time, urllib.parse
        import {loop}
        LOOP = {loop}.new_event_loop()
        threading.Thread(target=LOOP.run_forever, daemon=True).start()
        HOST, PORT = urllib.parse.urlsplit({echo!r}).netloc.split(":")

        async def connect():
            return await asyncio.open_connection(HOST, int(PORT))

        READER, WRITER = asyncio.run_coroutine_threadsafe(connect(), LOOP).result()

        async def ask(path):
            assert await READER.read() == b""  # the connection that init opened has ended
            reader, writer = await connect()
            writer.write(b"GET /%d HTTP/1.1\\r\\nConnection: close\\r\\n\\r\\n" % path)
            assert asyncio.get_running_loop() is LOOP
            return (await reader.read()).rpartition(b"\\r\\n")[2].decode()

        def handler(event, context):
            while not os.path.exists(event["gate"]):
                time.sleep(0.005)
            return asyncio.run_coroutine_threadsafe(ask(os.getpid()), LOOP).result(60) == "/%d" % os.getpid()
        """
    )
    project.config('[functions.app]\nhandler = "app.handler"\n')
    with project.up() as running:
        assert running.invoke_at_once("app", 6, {}, gate=tmp_path / "gate") == [(True, None)] * 6
        assert running.function("app")["start"] == "thaw", running.function("app")["start_reason"]


SHARED = {
    "an event loop that is open": "import asyncio\nHELD = asyncio.new_event_loop()",
    "a uvloop that is open": "import uvloop\nHELD = uvloop.new_event_loop()",
    "an SQLite database with a write-ahead log": (
        "import sqlite3, tempfile\nHELD = sqlite3.connect(tempfile.mkdtemp() + '/d')\n"
        "HELD.execute('PRAGMA journal_mode = WAL')\nHELD.execute('CREATE TABLE t (a)')"
    ),
    "a lock of multiprocessing": "import multiprocessing\nHELD = multiprocessing.Value('i', 0)",
    "a pipe": "import os\nHELD = os.pipe()",
    "a datagram socket": "import socket\nHELD = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "a lock on a file": (
        "import fcntl, tempfile\nHELD = open(tempfile.mkdtemp() + '/d', 'w')\nfcntl.flock(HELD, fcntl.LOCK_EX)"
    ),
    "a child process": ("import subprocess\nHELD = subprocess.Popen(['sleep', '1000'], stdin=subprocess.DEVNULL)"),
    "a scratch file": "import tempfile\nHELD = tempfile.TemporaryFile()",
}


def test_what_forks_would_share_is_not_forked(project: Project) -> None:
    config = 'snapshots = "off"\n'
    for number, code in enumerate(SHARED.values()):
        project.code(code + "\n\ndef handler(event, context):\n    return 1\n", f"f{number}/app.py")
        config += f'[functions.f{number}]\nhandler = "app.handler"\ncode = "f{number}"\n'
    project.config(config)
    with project.up() as running:
        for number, what in enumerate(SHARED):
            assert running.invoke(f"f{number}") == (1, None), what
            function = running.function(f"f{number}")
            assert function["start"] == "cold", what
            assert "get each other's data" in function["start_reason"], what


def test_forks_read_an_open_file_each_from_where_it_was(project: Project, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"line {number}\n" for number in range(1000)))
    project.code(
        f"""
        import time, os
        HELD = open({str(lines)!r})
        FIRST = HELD.readline()

        def handler(event, context):
            while not os.path.exists(event["gate"]):
                time.sleep(0.005)
            HELD.seek(HELD.tell())
            return [HELD.readline() for _ in range(20)]
        """
    )
    project.config('snapshots = "off"\n[functions.app]\nhandler = "app.handler"\n')
    with project.up() as running:
        answers = running.invoke_at_once("app", 6, {}, gate=tmp_path / "gate")
        assert running.function("app")["start"] == "fork", running.function("app")["start_reason"]
        assert answers == [([f"line {number}\n" for number in range(1, 21)], None)] * 6


def test_forks_read_the_file_that_init_opened_though_another_has_its_name(project: Project, tmp_path: Path) -> None:
    named, other = tmp_path / "named", tmp_path / "other"
    named.write_text("first\nsecond\n")
    project.code(
        f"""
        HELD = open({str(named)!r})
        HELD.readline()
        HELD.seek(6)

        def handler(event, context):
            return HELD.read()
        """
    )
    project.config('snapshots = "off"\n[functions.app]\nhandler = "app.handler"\n')
    with project.up() as running:
        other.write_text("of another\n")
        other.rename(named)
        assert running.invoke("app") == ("second\n", None)
        assert running.function("app")["start"] == "fork", running.function("app")["start_reason"]
