"""Servers on loopback that programs connect to before they are frozen. Each records which client sent what."""

from __future__ import annotations

import datetime
import ipaddress
import itertools
import json
import shutil
import socket
import ssl
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.ports import quiet_port

START_DEADLINE_S = 60
DATAGRAMS_BYTES = 8 << 20
LARGEST_DATAGRAM_BYTES = 65536
END = b"end"
DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Request:
    """A request that was answered.

    Attributes:
        connection: number of the connection that the request used.
        path: path with its query.
        headers: headers, with names in lower case.
        body: body as received.
    """

    connection: int
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Certificate:
    """A self-signed certificate for 127.0.0.1."""

    path: Path
    key_path: Path


def made_certificate(folder: Path) -> Certificate:
    """Make a certificate in `folder`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - DAY).not_valid_after(now + DAY).add_extension(host, critical=False)
    certificate = Certificate(folder / "certificate.pem", folder / "key.pem")
    certificate.path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    certificate.key_path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate


class HttpServer(ThreadingHTTPServer):
    """An HTTP server that keeps connections alive and answers every request.

    ``/square/7?name=X`` gives the square, the name, and the number of the connection; every other GET gives the path
    itself. The server keeps the bodies of POST requests.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, certificate: Certificate | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self._scheme = "http" if certificate is None else "https"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.path, certificate.key_path)
            # The connection's own thread does the handshake, because the client may never do its part.
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.numbers = itertools.count(1)
        self.requests: list[Request] = []
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    def __enter__(self) -> HttpServer:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    @property
    def address(self) -> str:
        """Return the server's URL."""
        return f"{self._scheme}://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: killed clients reset their connections."""


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HttpServer

    def setup(self) -> None:
        super().setup()
        self._number = next(self.server.numbers)

    def do_GET(self) -> None:
        self._remember(b"")
        parts = urlsplit(self.path)
        if parts.path.startswith("/square/"):
            number = int(parts.path.rsplit("/", 1)[1])
            name = parse_qs(parts.query)["name"][0]
            self._answer(json.dumps({"square": number * number, "name": name, "connection": self._number}).encode())
        else:
            self._answer(parts.path.encode())

    def do_POST(self) -> None:
        self._remember(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(b"{}")

    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""

    def _remember(self, body: bytes) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append(Request(self._number, self.path, headers, body))

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Connection", str(self._number))
        self.end_headers()
        self.wfile.write(body)


class Datagrams:
    """Receives datagrams."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, DATAGRAMS_BYTES)
        self._socket.bind(("127.0.0.1", 0))
        self._received: list[bytes] = []
        self._thread = threading.Thread(target=self._receive, daemon=True)

    def __enter__(self) -> Datagrams:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.all()
        self._socket.close()

    @property
    def address(self) -> str:
        """Return host and port."""
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    def all(self) -> list[bytes]:
        """Return everything received so far, and stop receiving."""
        if self._thread.is_alive():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.sendto(END, self._socket.getsockname())  # arrives last, because loopback keeps the order
            self._thread.join()
        return self._received

    def _receive(self) -> None:
        while (datagram := self._socket.recv(LARGEST_DATAGRAM_BYTES)) != END:
            self._received.append(datagram)


class Redis:
    """A private Redis server that keeps its data in memory."""

    def __init__(self, folder: Path) -> None:
        self._program = shutil.which("redis-server")
        if self._program is None:
            pytest.skip("there is no Redis server here (Debian: apt install redis-server)")
        self._folder = folder
        self._port = quiet_port()

    def __enter__(self) -> Redis:
        settings = ["--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)]
        self._process = subprocess.Popen(
            [str(self._program), *settings], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout is not None
        said = ""
        for line in self._process.stdout:
            said += line
            if "Ready to accept connections" in line:
                return self
        raise AssertionError(f"redis-server ended with {self._process.wait(START_DEADLINE_S)}: {said}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def address(self) -> str:
        """Return the server's URL."""
        return f"redis://127.0.0.1:{self._port}/0"


class GrpcServer:
    """A gRPC server: ``/thawd.Numbers/Square`` gives the square of a number, and the name of the client."""

    def __init__(self) -> None:
        import grpc

        handler = grpc.unary_unary_rpc_method_handler(self._square)
        self._server = grpc.server(ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("thawd.Numbers", {"Square": handler})]
        )
        self.address = "127.0.0.1:{}".format(self._server.add_insecure_port("127.0.0.1:0"))

    def __enter__(self) -> GrpcServer:
        self._server.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.stop(None).wait()

    @staticmethod
    def _square(request: bytes, _context: Any) -> bytes:
        said = json.loads(request)
        return json.dumps({"square": said["number"] ** 2, "name": said["name"]}).encode()
