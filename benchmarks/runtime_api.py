"""How long an invocation takes in a program that uses the Runtime API over HTTP.

What: the median time of one round trip, ``GET next`` and ``POST response``. The client uses one plain socket, and
connects to the endpoint that thawd gives each environment (`benchmarks.runtime_endpoint`). For comparison, without a
bound, the median latency of a no-op function over the Invoke API with one client. This function runs once in thawd's
own Python runtime, which exchanges frames over a socketpair, and once as a program with the same plain-socket client.

How: endpoint and client are two processes, and the next invocation is always ready when the client asks for it. The
figure is the median of all round trips after a warm-up. The functions are compared in rounds: each round puts load on
one function, then on the other.

Why: the two functions differ only in the protocol. The comparison shows how much time HTTP takes, with two exchanges
over TCP for each invocation.
"""

from __future__ import annotations

import socket
import statistics
import sys
import time
from collections.abc import Sequence

from benchmarks import load, machine, progress, serving
from benchmarks.report import AT_MOST, BenchmarkError, Figure

TITLE = "runtime-api: a program that uses the Runtime API"

MOST_ROUND_TRIP_MS = 0.5
ROUND_TRIPS = 5000
WARM_UP = 500
ROUNDS = 3
ROUND_S = 2.0
BODY = b'{"key": "value"}'

CONFIGURATION = """
[functions.own]
handler = "noop.handler"
code = "own"

[functions.program]
handler = "none"
runtime = "provided.al2023"
code = "program"
"""

CLIENT = """
import os, socket
host, port = os.environ["AWS_LAMBDA_RUNTIME_API"].split(":")
connection = socket.create_connection((host, int(port)))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
ask = b"GET /2018-06-01/runtime/invocation/next HTTP/1.1\\r\\n\\r\\n"
answer = b"POST /2018-06-01/runtime/invocation/%b/response HTTP/1.1\\r\\nContent-Length: %d\\r\\n\\r\\n%b"


def exchange(request):
    connection.sendall(request)
    head, _, body = connection.recv(1 << 20).partition(b"\\r\\n\\r\\n")
    return head, body


while True:
    head, event = exchange(ask)
    identifier = head.partition(b"Request-Id: ")[2].partition(b"\\r")[0]
    exchange(answer % (identifier, len(event), event))
"""


def measure() -> Sequence[Figure]:
    """Measure the round trip and both functions' medians."""
    with serving.runtime_endpoint() as endpoint:
        times_ms = _round_trips(endpoint.url)
    own_us, program_us = _functions()
    return [
        Figure(
            "next and response, round trip, median",
            statistics.median(times_ms),
            "ms",
            AT_MOST,
            machine.bound(MOST_ROUND_TRIP_MS),
            f"99 %: {statistics.quantiles(times_ms, n=100)[98]:.2f} ms",
        ),
        Figure(
            "no-op as a program, p50, relative to thawd's own runtime",
            program_us / own_us,
            "x",
            note=f"{program_us:.0f} us against {own_us:.0f} us",
        ),
    ]


def _round_trips(url: str) -> list[float]:
    """Return the times of the round trips, milliseconds."""
    host, port = url.removeprefix("http://").split(":")
    times_ms = []
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(WARM_UP + ROUND_TRIPS):
            begun_s = time.perf_counter()
            head, event = _exchange(connection, b"GET /2018-06-01/runtime/invocation/next HTTP/1.1\r\n\r\n", 200)
            identifier = head.partition(b"Request-Id: ")[2].partition(b"\r")[0]
            response = b"POST /2018-06-01/runtime/invocation/%b/response HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b"
            _exchange(connection, response % (identifier, len(event), event), 202)
            if number >= WARM_UP:
                times_ms.append((time.perf_counter() - begun_s) * 1000)
    return times_ms


def _exchange(connection: socket.socket, request: bytes, status: int) -> tuple[bytes, bytes]:
    """Send a request and return the head and body of the answer. The answer is small and arrives in one write."""
    connection.sendall(request)
    data = connection.recv(1 << 16)
    if not data.startswith(b"HTTP/1.1 %d " % status):
        raise BenchmarkError(f"the endpoint answered {data[:200]!r}")
    head, _, body = data.partition(b"\r\n\r\n")
    return head, body


def _functions() -> tuple[float, float]:
    """Return the median latency of the function in thawd's own runtime, and of the program, microseconds."""
    files = {"own/noop.py": serving.NOOP, "program/bootstrap": f"#!{sys.executable}\n{CLIENT}"}
    with serving.thawd(CONFIGURATION, files) as served:
        urls = [f"{served.url}/2015-03-31/functions/{name}/invocations" for name in ("own", "program")]
        for url in urls:
            load.drive(url, body=BODY, connections=1, duration_s=1.0)
        rounds = [
            [load.drive(url, body=BODY, connections=1, duration_s=ROUND_S).p50_us for url in urls]
            for _ in progress.rounds(ROUNDS)
        ]
    own_us, program_us = (statistics.median(times) for times in zip(*rounds, strict=True))
    return own_us, program_us
