"""An HTTP server on loopback for the answers of custom resources' functions and the signals for wait conditions.

Each answer is expected at a URL of its own, which only the receiver of a request knows.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import queue
import secrets
import threading
from collections.abc import Iterator
from typing import Any

_MOST_BYTES = 1 << 20

Properties = dict[str, Any]


class Callbacks:
    """The server; it starts with the object, on a free port, and ends with the process."""

    def __init__(self) -> None:
        expected: dict[str, queue.Queue[Any]] = {}
        self._expected = expected

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 30

            def do_PUT(self) -> None:
                waiting = expected.get(self.path.partition("?")[0].removeprefix("/"))
                length = int(self.headers.get("Content-Length") or 0)
                if waiting is None or length > _MOST_BYTES:
                    self.send_error(403)
                    return
                try:
                    answer = json.loads(self.rfile.read(length))
                except ValueError as error:
                    answer = {"Reason": f"The answer is not JSON: {error}"}
                waiting.put(answer if isinstance(answer, dict) else {"Reason": "The answer is not a JSON object"})
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Print nothing on the console."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @contextlib.contextmanager
    def expect(self) -> Iterator[tuple[str, queue.Queue[Any]]]:
        """Accept answers at a new URL during the ``with`` block, and put them into the queue."""
        token = secrets.token_urlsafe(32)
        self._expected[token] = queue.Queue()
        try:
            yield f"http://127.0.0.1:{self._server.server_port}/{token}", self._expected[token]
        finally:
            del self._expected[token]
