"""Claims about the configurations of proxies that ``thawd service`` writes: a real nginx in front of a real thawd."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import make_server_certificate
from tests.ports import quiet_port
from thawd.cli.service import FILES

from .conftest import Project, Running, eventually

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin")
CADDY = shutil.which("caddy")
# A client with another address than nginx's, so that the two cannot be confused.
CLIENT = "127.0.0.2"

APP = """
import os, time
def handler(event, context):
    http, headers = event["requestContext"]["http"], event["headers"]
    return {
        "ip": http["sourceIp"],
        "scheme": headers["x-forwarded-proto"],
        "host": headers["host"],
        "path": event["rawPath"],
        "size": len(event.get("body") or ""),
    }
def stream(event, context):
    yield "first\\n"
    while not os.path.exists(event["queryStringParameters"]["gate"]):
        time.sleep(0.005)
    yield "last\\n"
"""
CONFIG = """
    names = ["functions.example"]
    [functions.app]
    handler = "app.handler"
    [functions.stream]
    handler = "app.stream"
    [buckets.uploads]
    [routes]
    "ANY /app/{path+}" = "app"
    "GET /stream" = "stream"
    """
MAIN = """
daemon off;
master_process off;
pid nginx.pid;
error_log stderr notice;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include thawd.conf;
}
"""


@contextlib.contextmanager
def nginx(folder: Path, running: Running) -> Iterator[tuple[int, ssl.SSLContext]]:
    """nginx, configured by ``thawd service``, in front of a server: its port, and a context that trusts it."""
    assert NGINX is not None
    folder.mkdir()
    certificate, key = make_server_certificate(folder, "own", name="functions.example")
    port = quiet_port()
    text = (FILES / "nginx" / "thawd.conf").read_text()
    for given, here in (
        ("127.0.0.1:8350", running.url.removeprefix("http://")),
        ("listen 443 ", f"listen 127.0.0.1:{port} "),
        ("/etc/ssl/certs/functions.example.pem", str(certificate)),
        ("/etc/ssl/private/functions.example.key", str(key)),
    ):
        assert given in text
        text = text.replace(given, here)
    (folder / "thawd.conf").write_text(text)
    (folder / "nginx.conf").write_text(MAIN)
    command = [NGINX, "-p", str(folder), "-c", "nginx.conf", "-e", "stderr"]
    log = folder / "log"
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            eventually(lambda: process.poll() is not None or _answers(port), what="nginx")
            assert process.poll() is None, log.read_text()
            yield port, ssl.create_default_context(cafile=certificate)
        finally:
            process.terminate()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 10).close()
        return True
    return False


class _Connection(http.client.HTTPSConnection):
    """A connection to 127.0.0.1 that asks for another name."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        super().__init__("functions.example", port, timeout=120, context=context)
        self._tls = context

    def connect(self) -> None:
        plain = socket.create_connection(("127.0.0.1", self.port), 120, source_address=(CLIENT, 0))
        self.sock = self._tls.wrap_socket(plain, server_hostname="functions.example")


def _connections_to(port: int) -> set[str]:
    """The local ports of connections to a port of this machine, in whatever state."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {fields[1] for fields in lines if fields[2] == f"0100007F:{port:04X}"}


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_nginx_passes_on_tls_streams_uploads_and_the_clients_address(project: Project, tmp_path: Path) -> None:
    project.code(APP)
    project.config(CONFIG)
    gate = tmp_path / "gate"
    with project.up() as running, nginx(tmp_path / "nginx", running) as (port, context):
        connection = _Connection(port, context)

        def ask(method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
            connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
            return connection.getresponse()

        with contextlib.closing(connection):
            before = _connections_to(int(running.url.rpartition(":")[2]))
            for _ in range(3):  # the client cannot choose its address, and the path arrives as it was sent
                answer = json.loads(ask("GET", "/app/a%2Fb//c", x_forwarded_for="192.0.2.1").read())
                assert answer == {
                    "ip": CLIENT,
                    "scheme": "https",
                    "host": f"functions.example:{port}",
                    "path": "/app/a/b//c",  # as API Gateway decodes it
                    "size": 0,
                }
            used = _connections_to(int(running.url.rpartition(":")[2])) - before
            assert len(used) == 1, "nginx opens another connection for each request"

            # The first part of a stream arrives before the last one is made.
            answer_to = ask("GET", f"/stream?gate={gate}")
            assert answer_to.readline() == b"first\n"
            gate.touch()
            assert answer_to.read() == b"last\n"

            assert (
                json.loads(ask("POST", "/app/large", b"x" * 4_000_000, content_type="text/plain").read())["size"]
                == 4_000_000
            )
            # An upload whose size is not announced becomes an object.
            parts = (b"y" * 1_000_000 for _ in range(20))
            assert ask("PUT", "/uploads/large", parts).read() == b""
            assert (project.root / "uploads" / "large").stat().st_size == 20_000_000

            refused = ask("GET", "/app/x", connection="Upgrade", upgrade="websocket")
            assert (refused.status, refused.read()) == (501, b"WebSockets are not supported\n")

        with contextlib.closing(_Connection(port, context)) as other:
            other.putrequest("POST", "/")
            other.putheader("content-length", str(71 << 20))
            other.endheaders()
            assert other.getresponse().status == 413


@pytest.mark.skipif(CADDY is None, reason="caddy is not installed")
def test_caddy_accepts_its_configuration() -> None:
    assert CADDY is not None
    command = [CADDY, "adapt", "--validate", "--adapter", "caddyfile", "--config", str(FILES / "caddy" / "Caddyfile")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "127.0.0.1:8350" in done.stdout
