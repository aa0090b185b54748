"""A store of chunks over HTTP, for tests: it serves a folder as a bucket, and holds back chunks that a test names."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_NO_SUCH_KEY = b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code><Message>gone</Message></Error>"


class GatedStore:
    """A bucket that can only be read.

    Attributes:
        held: keys of objects for which a request waits until `gate` is set.
        gate: cleared at first.
        asked: keys of all requests so far, of held objects only.
        is_dead: whether held objects do not exist any more once the gate is set.
        served_bytes: contents of chunks that were served.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.held: frozenset[str] = frozenset()
        self.gate = threading.Event()
        self.asked: list[str] = []
        self.is_dead = False
        self.served_bytes = 0
        self.port = 0

    @property
    def url(self) -> str:
        """The value of the option `snapshot_store`."""
        return f"s3://chunks/?endpoint=http://127.0.0.1:{self.port}&anonymous=true"

    def read(self, key: str) -> bytes | None:
        """Return an object's content, perhaps after waiting; None: there is none."""
        if key in self.held:
            self.asked.append(key)
            self.gate.wait()
            if self.is_dead:
                return None
        with contextlib.suppress(OSError):
            content = (self.folder / key).read_bytes()
            if key.startswith("chunks/"):
                self.served_bytes += len(content)
            return content
        return None


@contextlib.contextmanager
def gated(folder: Path) -> Iterator[GatedStore]:
    """Serve a folder with a store of chunks."""
    store = GatedStore(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            content = store.read(self.path.partition("?")[0].removeprefix("/chunks/"))
            with contextlib.suppress(OSError):  # the server that has asked may have been killed
                self.send_response(404 if content is None else 200)
                body = _NO_SUCH_KEY if content is None else content
                self.send_header("content-length", str(len(body)))
                self.send_header("etag", '"1"')
                self.send_header("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT")
                self.end_headers()
                self.wfile.write(body)

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(403)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: object) -> None:
            """Ignore errors: a client that disconnects is not an error."""

    with Server(("127.0.0.1", 0), Handler) as server:
        store.port = server.server_port
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        try:
            yield store
        finally:
            store.gate.set()
            server.shutdown()
            serving.join()
