"""Claims about ``server.drain_s``: a server that is to stop serves on, while clients and load balancers turn away."""

from __future__ import annotations

import http.client
import json
import signal
from pathlib import Path

import pytest

from .conftest import DEADLINE_S, Project, Running, eventually

APP = """
import os, time
def handler(event, context):
    gate = event.get("queryStringParameters", {}).get("gate")
    while gate and not os.path.exists(gate):
        time.sleep(0.005)
    return "answer"
def stream(event, context):
    yield "first"
    yield "last"
"""
CONFIG = """
drain_s = 3600
[functions.app]
handler = "app.handler"
[functions.stream]
handler = "app.stream"
[routes]
"GET /app" = "app"
"GET /stream" = "stream"
"""


@pytest.fixture
def draining(project: Project) -> Project:
    project.code(APP)
    project.config(CONFIG)
    return project


def connected(running: Running) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(running.url.rpartition("/")[2], timeout=DEADLINE_S)
    connection.connect()
    return connection


def ask(connection: http.client.HTTPConnection, path: str) -> tuple[int, str | None, bytes]:
    """The status, the header Connection and the body of the answer to GET."""
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.getheader("Connection"), answer.read()


def test_a_server_that_drains_serves_on_is_not_ready_and_closes_each_connection_after_an_answer(
    draining: Project, tmp_path: Path
) -> None:
    with draining.up() as running:
        kept, streaming, busy = (connected(running) for _ in range(3))
        busy.request("GET", f"/app?gate={tmp_path / 'gate'}")
        eventually(lambda: running.function("app")["environments"]["busy"] == 1, what="the invocation")
        assert ask(kept, "/app") == ask(streaming, "/app") == (200, None, b"answer")
        running.process.send_signal(signal.SIGTERM)
        running.until_said("stopping in 3600 s: requests are served until then")
        assert ask(kept, "/app") == (200, "close", b"answer")
        assert ask(streaming, "/stream") == (200, "close", b"firstlast")
        status, header, body = ask(connected(running), "/_thawd/ready")
        assert (status, header, json.loads(body)) == (503, "close", {"status": "stopping"})
        assert ask(connected(running), "/app") == (200, "close", b"answer")
        (tmp_path / "gate").touch()
        answer = busy.getresponse()
        assert (answer.status, answer.getheader("Connection"), answer.read()) == (200, "close", b"answer")
        assert running.stop() == 0, "a second signal ends the time"


def test_a_server_whose_data_folder_is_lost_does_not_drain(draining: Project) -> None:
    with draining.up() as running:
        draining.data.rename(draining.root / "elsewhere")
        assert running.process.wait(DEADLINE_S) == 1
        assert "stopping in" not in "\n".join(running.output)
