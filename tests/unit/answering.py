"""An HTTP server with answers and delays set by a test. It records when each request came and when it was answered."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BufferedReader

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@dataclass
class Request:
    """A received request.

    Attributes:
        index: number of the request, from 0.
        head: the part before the empty line.
        body: the part after the empty line.
    """

    index: int
    head: bytes
    body: bytes


Answer = Callable[[Request], bytes | None]
"""Makes the bytes to send.

None closes the connection without an answer. Bytes without a length end with the connection.
"""


@dataclass
class Answering:
    """The server.

    Attributes:
        url: its URL.
        requests: the requests received so far.
        spans: by request index, the `time.perf_counter_ns` of the request and of the sent answer.
    """

    answer: Answer
    url: str = ""
    requests: list[Request] = field(default_factory=list)
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    connections: int = 0
    listener: socket.socket | None = None
    tls: ssl.SSLContext | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, connection: socket.socket) -> None:
        """Answer the requests of one connection."""
        with (
            contextlib.suppress(OSError),
            self._secured(connection) as secured,
            secured.makefile("rb") as incoming,
        ):
            while head := _head(incoming):
                length = [line for line in head.lower().splitlines() if line.startswith(b"content-length:")]
                body = incoming.read(int(length[0].split(b":")[1])) if length else b""
                came_ns = time.perf_counter_ns()
                with self._lock:
                    request = Request(len(self.requests), head, body)
                    self.requests.append(request)
                answer = self.answer(request)
                self.spans[request.index] = (came_ns, time.perf_counter_ns())
                if answer is None:
                    return
                secured.sendall(answer)
                lower = answer.lower()
                if b"content-length" not in lower and b"chunked" not in lower:
                    return

    def _secured(self, connection: socket.socket) -> socket.socket:
        return connection if self.tls is None else self.tls.wrap_socket(connection, server_side=True)

    def stop(self) -> None:
        """Accept no further connections."""
        assert self.listener is not None
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def _head(incoming: BufferedReader) -> bytes:
    """Read the lines up to the empty one; nothing at the connection's end."""
    head = b""
    while (line := incoming.readline()) not in (b"\r\n", b""):
        head += line
    return head


@contextlib.contextmanager
def answering(answer: Answer, *, tls: ssl.SSLContext | None = None) -> Iterator[Answering]:
    """Run a server on a free port, with a thread for each connection, and stop it after the block."""
    server = Answering(answer, tls=tls)
    listener = server.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    server.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{listener.getsockname()[1]}/answer"
    threads: list[threading.Thread] = []
    opened: list[socket.socket] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                server.connections += 1
                opened.append(connection)
                threads.append(threading.Thread(target=server.serve, args=(connection,)))
                threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield server
    finally:
        server.stop()
        accepting.join()
        for connection in opened:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
