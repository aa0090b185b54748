"""A closed-loop HTTP client: every connection sends its next request when the last one is answered.

Uses ``wrk`` where it is installed, else a loop over epoll of our own: bytes made once, two system calls a
request and no HTTP library, so that the client is not what is measured. Either way the same client loads
both servers of a comparison.
"""

from __future__ import annotations

import math
import re
import select
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from benchmarks.report import BenchmarkError

_UNITS_US = {"us": 1.0, "ms": 1e3, "s": 1e6}
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run of the client saw.

    Attributes:
        p50_us: median latency, microseconds.
        rate_per_s: answers a second, all connections together.
    """

    p50_us: float
    rate_per_s: float


def client() -> str:
    """Name of the client that `drive` uses."""
    return "wrk" if shutil.which("wrk") else "epoll loop"


def drive(url: str, *, body: bytes, connections: int, duration_s: float) -> Measured:
    """POST `body` (JSON) to `url` for `duration_s` seconds over `connections` connections kept alive.

    Raises:
        BenchmarkError: an answer was not 200, or a connection broke.
    """
    if shutil.which("wrk"):
        return _drive_with_wrk(url, body, connections, duration_s)
    return _drive_with_epoll(url, body, connections, duration_s)


def _drive_with_wrk(url: str, body: bytes, connections: int, duration_s: float) -> Measured:
    script = f"""
        wrk.method = "POST"
        wrk.body = [[{body.decode()}]]
        wrk.headers["content-type"] = "application/json"
    """
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        # wrk takes whole seconds only.
        arguments = [
            "-t1",
            f"-c{connections}",
            f"-d{max(1, round(duration_s))}s",
            "--latency",
            "-s",
            file.name,
            url,
        ]
        done = subprocess.run(["wrk", *arguments], capture_output=True, text=True, check=False)
    p50 = re.search(r"^\s+50%\s+([\d.]+)(us|ms|s)$", done.stdout, re.MULTILINE)
    rate = re.search(r"^Requests/sec:\s+([\d.]+)$", done.stdout, re.MULTILINE)
    if p50 is None or rate is None or "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise BenchmarkError(f"wrk on {url} failed:\n{done.stdout}{done.stderr}")
    return Measured(float(p50[1]) * _UNITS_US[p50[2]], float(rate[1]))


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    sent_ns: int = 0
    received: bytes = b""
    latencies_ns: list[int] = field(default_factory=list)

    def complete(self) -> bool:
        """Whether an answer has arrived whole."""
        head, blank, body = self.received.partition(b"\r\n\r\n")
        if not blank:
            return False
        if not head.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 202 ")):
            raise BenchmarkError(f"an answer was neither 200 nor 202: {self.received[:500]!r}")
        length = _LENGTH.search(head)
        if length is None:
            raise BenchmarkError(f"an answer has no Content-Length: {head!r}")
        return len(body) >= int(length[1])


def send(url: str, *, body: bytes, headers: str, connections: int, requests: int) -> Measured:
    """Send so many requests over so many connections, by the loop over epoll; `headers` are lines that end in CRLF."""
    return _drive_with_epoll(url, body, connections, math.inf, headers=headers, requests=requests)


def _drive_with_epoll(
    url: str, body: bytes, connections: int, duration_s: float, *, headers: str = "", requests: float = math.inf
) -> Measured:
    address = urlsplit(url)
    assert address.hostname is not None
    head = (
        f"POST {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\n{headers}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    request = head.encode() + body
    poll = select.epoll()
    opened: dict[int, _Connection] = {}
    try:
        for _ in range(connections):
            connected = socket.create_connection((address.hostname, address.port))
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened[connected.fileno()] = _Connection(connected)
            poll.register(connected.fileno(), select.EPOLLIN)
        return _loop(poll, opened, request, duration_s, requests)
    finally:
        poll.close()
        for connection in opened.values():
            connection.socket.close()


def _loop(
    poll: select.epoll, opened: dict[int, _Connection], request: bytes, duration_s: float, requests: float
) -> Measured:
    clock = time.perf_counter_ns
    begun_ns = clock()
    end_ns = begun_ns + duration_s * 1e9
    left = requests - len(opened)
    for connection in opened.values():
        connection.sent_ns = clock()
        connection.socket.sendall(request)
    in_flight = len(opened)
    while in_flight:
        for fd, _ in poll.poll(10.0) or _silent():
            connection = opened[fd]
            data = connection.socket.recv(65536)
            if not data:
                raise BenchmarkError("the server closed a connection under load")
            connection.received += data
            if not connection.complete():
                continue
            now_ns = clock()
            connection.latencies_ns.append(now_ns - connection.sent_ns)
            connection.received = b""
            if now_ns >= end_ns or left <= 0:
                in_flight -= 1
                continue
            left -= 1
            connection.sent_ns = now_ns
            connection.socket.sendall(request)
    taken_s = (clock() - begun_ns) / 1e9
    latencies_ns = [ns for connection in opened.values() for ns in connection.latencies_ns]
    return Measured(statistics.median(latencies_ns) / 1e3, len(latencies_ns) / taken_s)


def _silent() -> list[tuple[int, int]]:
    raise BenchmarkError("no answer within 10 s under load")
