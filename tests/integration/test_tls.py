"""Claims about TLS on thawd's own port."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import make_server_certificate

from .conftest import Project, Running, eventually

APP = """
import hashlib
def handler(event, context):
    http = event["requestContext"]["http"]
    headers = event["headers"]
    return {
        "scheme": headers["x-forwarded-proto"],
        "ip": http["sourceIp"],
        "sha256": hashlib.sha256((event.get("body") or "").encode()).hexdigest(),
        "out": "x" * int(event.get("queryStringParameters", {}).get("size", 0)),
    }
"""
CONFIG = """
    key = "a-long-secret"
    tls = { certificate = "tls.pem", key = "tls.key" }
    [functions.app]
    handler = "app.handler"
    [routes]
    "POST /app" = "app"
    """


def address(running: Running) -> tuple[str, int]:
    scheme, _, rest = running.url.partition("://")
    assert scheme == "https"
    host, _, port = rest.partition(":")
    return host, int(port)


def trusting(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificate)
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    return context


def install(project: Project, made: tuple[Path, Path]) -> None:
    """Put a certificate and its key where the server looks for them, one after the other, as an ACME client does."""
    for path, name in zip(made, ("tls.pem", "tls.key"), strict=True):
        staged = project.root / f"{name}.new"
        staged.touch(mode=0o600)
        staged.write_bytes(path.read_bytes())
        staged.replace(project.root / name)


@contextlib.contextmanager
def connected(running: Running, certificate: Path) -> Iterator[http.client.HTTPSConnection]:
    connection = http.client.HTTPSConnection(*address(running), timeout=60, context=trusting(certificate))
    with contextlib.closing(connection):
        yield connection


def post(connection: http.client.HTTPSConnection, path: str = "/app", body: bytes = b"", **headers: str) -> Any:
    connection.request("POST", path, body, {"x-api-key": "a-long-secret", "content-type": "text/plain", **headers})
    answer = connection.getresponse()
    contents = answer.read()
    assert answer.status == 200, contents
    return json.loads(contents)


def shown(running: Running) -> bytes:
    """The certificate that a connection gets now, DER."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(address(running), 60) as plain, context.wrap_socket(plain) as connection:
        found = connection.getpeercert(binary_form=True)
    assert found is not None
    return found


def der(certificate: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.read_text())


def test_the_port_serves_https_and_replaces_its_certificate(project: Project, tmp_path: Path) -> None:
    project.code(APP)
    project.config(CONFIG)
    first = make_server_certificate(tmp_path, "first")
    second = make_server_certificate(tmp_path, "second", with_rsa=True)
    third = make_server_certificate(tmp_path, "third", days=3)
    install(project, first)
    with project.up() as running, connected(running, first[0]) as kept:
        running.until_said("certificate  localhost, 127.0.0.1, until ")
        answer = post(kept, "/app?size=3000000", body := b"b" * 3_000_000)
        assert answer["scheme"] == "https"
        assert answer["ip"] == "127.0.0.1"
        assert answer["sha256"] == hashlib.sha256(body).hexdigest()
        assert len(answer["out"]) == 3_000_000

        # A client that sends too much can read why it was refused, although the rest of its body is on the way.
        with connected(running, first[0]) as other:
            other.request("POST", "/app", b"b" * 20_000_000, {"x-api-key": "a-long-secret"})
            assert other.getresponse().status == 413

        # A client without TLS learns what to do, and one that never says anything holds up nobody.
        with (
            socket.create_connection(address(running), 60) as silent,
            socket.create_connection(address(running)) as wrong,
        ):
            wrong.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            said = b"".join(iter(lambda: wrong.recv(4096), b""))
            assert said.startswith(b"HTTP/1.1 400 ") and b"use a URL that begins with https://" in said
            assert post(kept)["scheme"] == "https"
            silent.close()

        # thawd's own commands need no certificate.
        done = project.command(
            "invoke",
            "app",
            "-p",
            '{"requestContext": {"http": {"sourceIp": "?"}}, "headers": {"x-forwarded-proto": "?"}}',
        )
        assert json.loads(done.stdout)["ip"] == "?", done.stderr

        # A key that does not belong to the certificate replaces nothing. A pair does, of whatever kind of key.
        (project.root / "tls.key").write_bytes(second[1].read_bytes())
        running.process.send_signal(signal.SIGHUP)
        running.until_said("belongs to another certificate")
        assert shown(running) == der(first[0])
        install(project, second)
        eventually(lambda: shown(running) == der(second[0]), what="the second certificate")
        assert post(kept)["scheme"] == "https"  # this connection goes on
        with connected(running, second[0]) as renewed:
            assert post(renewed)["scheme"] == "https"

        install(project, third)
        running.process.send_signal(signal.SIGHUP)
        running.until_said("ends soon")
        running.until_said("configuration reloaded")
        assert shown(running) == der(third[0])
        assert running.stop() == 0


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("readable", "other users can read the private key"),
        ("other", "belongs to another certificate"),
        ("encrypted", "is encrypted; write it without a password"),
        ("empty", "in PEM format"),
        ("client", "clients would fail, too"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_refused_at_the_start(
    project: Project, tmp_path: Path, fault: str, message: str
) -> None:
    project.config('tls = { certificate = "tls.pem", key = "tls.key" }\n')
    install(project, make_server_certificate(tmp_path, "own", password=b"secret" if fault == "encrypted" else b""))
    if fault == "readable":
        (project.root / "tls.key").chmod(0o644)
    elif fault == "other":
        (project.root / "tls.key").write_bytes(make_server_certificate(tmp_path, "other")[1].read_bytes())
    elif fault == "empty":
        (project.root / "tls.pem").write_text("no certificate")
    elif fault == "client":
        install(project, make_server_certificate(tmp_path, "own", purpose="client"))
    done = project.command("up")
    assert done.returncode == 1
    assert message in done.stderr
