"""The server's port: who may send requests, the effects of invalid input, and the metrics."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import urllib.error
import urllib.request
from typing import Any

import pytest

from .conftest import Project, eventually


def test_listening_beyond_loopback_needs_a_key_and_then_every_request_does(echo: Project) -> None:
    assert "key" in echo.command("up", "--host", "0.0.0.0").stderr
    with echo.up("--host", "0.0.0.0", environ={"THAWD_KEY": "open-sesame"}) as running:
        url = running.url.replace("0.0.0.0", "127.0.0.1") + "/_thawd/status"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url)
        with refused.value:
            assert refused.value.code == 403
        for header in ({"X-Api-Key": "open-sesame"}, {"Authorization": "Bearer open-sesame"}):
            with urllib.request.urlopen(urllib.request.Request(url, headers=header)) as answer:
                assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(url, headers={"X-Api-Key": "x"}))
        refused.value.close()
        assert "open-sesame" not in "\n".join(running.output)
        refused_command = echo.command("status")
        assert "HTTP 403: the server has a key; set the environment variable THAWD_KEY to it" in refused_command.stderr
        for arguments in (("queue",), ("dead", "list"), ("invoke", "app")):
            refused_command = echo.command(*arguments)
            assert "the server has a key; set the environment variable THAWD_KEY to it" in refused_command.stderr
            assert "X-Api-Key" not in refused_command.stderr
        wrong = echo.command("status", env={**os.environ, "THAWD_KEY": "another-key"})
        assert "HTTP 403: the server refuses the key of this command; compare THAWD_KEY" in wrong.stderr


def test_pages_of_other_origins_cannot_run_functions(echo: Project) -> None:
    with echo.up() as running:
        url = f"{running.url}/2015-03-31/functions/app/invocations"
        request = urllib.request.Request(url, data=b"{}", headers={"Origin": "https://evil.example"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        with refused.value:
            assert refused.value.code == 403
        request = urllib.request.Request(url, data=b"{}", headers={"Origin": running.url})
        with urllib.request.urlopen(request) as answer:
            assert answer.read() == b"1"


def test_a_published_server_is_ready_and_its_metrics_are_in_prometheus_format(echo: Project) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    with echo.up() as running:
        running.invoke("app", {})
        with urllib.request.urlopen(f"{running.url}/_thawd/ready") as answer:
            assert (answer.status, answer.read()) == (200, b'{"status":"ready"}')
        with urllib.request.urlopen(f"{running.url}/metrics") as answer:
            families = {family.name for family in text_string_to_metric_families(answer.read().decode())}
    assert {"thawd_invocations_seconds", "thawd_starts_seconds", "thawd_errors", "thawd_environments"} <= families


def test_a_half_sent_request_and_rubbish_on_the_port_harm_nobody(echo: Project) -> None:
    with echo.up() as running:
        port = int(running.url.rpartition(":")[2])
        for data in (
            b"\x16\x03\x01\x00rubbish\r\n\r\n",
            b"POST /2015-03-31/functions/app/invocations HTTP/1.1\r\nHost",
        ):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(data)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(
                b"POST /2015-03-31/functions/app/invocations HTTP/1.1\r\n"
                b"Host: localhost\r\nContent-Length: 100\r\n\r\n{"
            )
        assert running.invoke("app", {}) == (1, None)


def test_bodies_under_way_are_bounded_together(echo: Project) -> None:
    """Given clients that announce large bodies and do not send them, other large requests get 429 and small ones are
    served."""
    echo.config('grace_s = 0.1\n[functions.app]\nhandler = "app.handler"\n')
    with echo.up() as running, contextlib.ExitStack() as open_connections:
        port = int(running.url.rpartition(":")[2])
        head = b"POST /2015-03-31/functions/app/invocations HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Length: 6000000\r\n\r\n{"
        for _ in range(60):
            connection = open_connections.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(head)
        large = json.dumps({"s": 0, "x": "x" * 5_000_000})
        client = running.client()
        eventually(lambda: status_of(client, large) == 429, what="a refusal")
        assert running.invoke("app", {}) == (1, None)


def status_of(client: Any, payload: str) -> int:
    try:
        answer = client.invoke(FunctionName="app", Payload=payload)
    except client.exceptions.TooManyRequestsException as error:
        return int(error.response["ResponseMetadata"]["HTTPStatusCode"])
    return int(answer["StatusCode"])
