"""A bucket over HTTP that can only be read: it serves a folder, and counts the bytes of its answers.

Run as a program (``python -m benchmarks.bucket READY FOLDER``), it writes its URL and its process id to the file READY,
like ``thawd up --ready-file``. ``GET /-/bytes`` returns the number of bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_NO_SUCH_KEY = b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code><Message>none</Message></Error>"
_COUNT = "/-/bytes"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    sent_bytes = 0

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == _COUNT:
            self._answer(200, str(_Handler.sent_bytes).encode())
            return
        try:
            content = (self.folder / path.removeprefix("/chunks/")).read_bytes()
        except OSError:
            self._answer(404, _NO_SUCH_KEY)
            return
        _Handler.sent_bytes += len(content)
        self._answer(200, content)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._answer(403, b"")

    def _answer(self, status: int, body: bytes) -> None:
        with contextlib.suppress(OSError):  # the server that has asked may have ended
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.send_header("etag", '"1"')
            self.send_header("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT")
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def main(ready: str, folder: str) -> None:
    """Serve until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    _Handler.folder = Path(folder)
    with _Server(("127.0.0.1", 0), _Handler) as server:
        announced = {"url": f"http://127.0.0.1:{server.server_port}", "pid": os.getpid()}
        Path(ready).write_text(json.dumps(announced))
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
