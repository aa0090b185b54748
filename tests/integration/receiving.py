"""Receivers of records for tests: an HTTP server that answers as the test sets it, and the emulated AWS."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ACCOUNT = "000000000000"


@dataclass
class Received:
    """One received request."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """An HTTP server on loopback.

    Attributes:
        statuses: status codes of the next answers; the last one is repeated.
        headers: headers of the answers.
        answer: body of the answers.
        answers: bodies of the answers for single paths, without query.
        got: requests received so far.
        gate: while it is cleared, requests are accepted but not answered.
    """

    port: int = 0
    statuses: list[int] = field(default_factory=lambda: [200])
    headers: dict[str, str] = field(default_factory=dict)
    answer: bytes = b"{}"
    answers: dict[str, bytes] = field(default_factory=dict)
    got: list[Received] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    """Run a receiver. Port 0 means any free port."""
    receiver = Receiver()
    receiver.gate.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.got.append(Received(self.path, headers, body))
            receiver.gate.wait()
            status = receiver.statuses.pop(0) if len(receiver.statuses) > 1 else receiver.statuses[0]
            with contextlib.suppress(OSError):  # the client may have disconnected
                self.send_response(status)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                answer = receiver.answers.get(self.path.partition("?")[0], receiver.answer)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def do_GET(self) -> None:
            self.do_POST()  # for clients that follow a redirect

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: object) -> None:
            """Ignore errors: a client that disconnects is not an error."""

    with Server(("127.0.0.1", port), Handler) as server:
        receiver.port = server.server_port
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        try:
            yield receiver
        finally:
            receiver.gate.set()
            server.shutdown()
            serving.join()
