"""Requests to web applications that a server of the tests serves."""

from __future__ import annotations

import http.client

from .conftest import Running


def request(
    running: Running, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Send a request, and return the answer's status, headers and body; ``_`` in a header's name stands for ``-``."""
    connection = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=60)
    try:
        connection.request(method, path, body=body, headers={n.replace("_", "-"): v for n, v in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()
