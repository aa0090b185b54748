"""How fast thawd sends an answer while the handler is still producing it, and how much memory slow clients take.

What: the time from when a handler writes a part until a client has it, through a function URL; how many bytes per
second pass through; how much memory the server uses for clients that ask for 64 MiB each and do not read.

How: each part contains the time at which it was written, by the clock that all processes of a machine share. The client
is a plain socket. Each client that does not read stops after the head of its answer. Then another stream of 64 MiB runs
to its end. During this time, a server that buffers too much would take in the streams of all these clients. Then the
server's resident memory is compared with its memory before.

Why: each part passes from the handler through a frame, the platform's event loop and an HTTP chunk to the client. A
platform that buffers everything that clients do not read is fast at first, but runs out of memory.
"""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import time
from collections.abc import Sequence

from benchmarks import machine, progress, serving
from benchmarks.report import AT_LEAST, AT_MOST, BenchmarkError, Figure
from thawd.gateway.function_urls.table import url_id

TITLE = "streaming: answers that are sent while they are being produced"

MOST_DELAY_MS = 2.0
LEAST_MIB_S = 50.0
MOST_HELD_MIB = 2.0
"""Most memory that the server may use for each client that does not read, MiB."""
PARTS = 500
PAUSE_S = 0.002
LARGE_MIB = 64
UNREAD = 8

CONFIGURATION = """
[functions.stream]
handler = "stream.handler"
url = { auth_type = "NONE", invoke_mode = "RESPONSE_STREAM" }
"""
CODE = """
import json, time
from thawd import streaming

@streaming.handler
def handler(event, context):
    event = json.loads(event["body"])
    for _ in range(event.get("times", 0)):
        time.sleep(event["pause_s"])
        yield "%20d" % time.monotonic_ns()
    block = bytes(1 << 20)
    for _ in range(event.get("mib", 0)):
        yield block
"""


def measure() -> Sequence[Figure]:
    """Measure delay, rate, and memory for clients that do not read."""
    with serving.thawd(CONFIGURATION, {"stream.py": CODE}) as served:
        _read_all(served, {"mib": LARGE_MIB})
        progress.step("measure the delay of parts, the rate of one stream, the memory for clients that do not read")
        delays_ms = _delays_ms(served)
        begun_s = time.perf_counter()
        _read_all(served, {"mib": LARGE_MIB})
        rate_mib_s = LARGE_MIB / (time.perf_counter() - begun_s)
        held_mib = _held_mib(served)
    return [
        Figure(
            "time of a part from handler to client, median",
            statistics.median(delays_ms),
            "ms",
            AT_MOST,
            machine.bound(MOST_DELAY_MS),
            f"99 %: {statistics.quantiles(delays_ms, n=100)[98]:.2f} ms",
        ),
        Figure(
            "rate of one stream", rate_mib_s, "MiB/s", AT_LEAST, LEAST_MIB_S / machine.slowness(), f"{LARGE_MIB} MiB"
        ),
        Figure(
            "server's memory for a client that does not read",
            held_mib / UNREAD,
            "MiB",
            AT_MOST,
            MOST_HELD_MIB,
            f"{UNREAD} clients with {LARGE_MIB} MiB unread each",
        ),
    ]


def _ask(served: serving.Served, event: object) -> socket.socket:
    """Open a connection, request the answer to `event` on it, and read nothing yet."""
    host, port = served.url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)), timeout=60)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    body = json.dumps(event).encode()
    head = f"POST /_urls/{url_id('stream')}/ HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return client


def _delays_ms(served: serving.Served) -> list[float]:
    """Return how long each part took from handler to client, milliseconds."""
    delays_ms: list[float] = []
    with _ask(served, {"times": PARTS, "pause_s": PAUSE_S}) as client:
        waiting = _after_head(client)
        while len(delays_ms) < PARTS:
            now_ns = time.monotonic_ns()
            chunks = waiting.split(b"\r\n")
            # A chunk is a line with its size and a line with its content: one or more times of 20 digits each. Data
            # after the last complete chunk stays in `waiting` until more arrives.
            while len(chunks) > 2:
                size, digits, chunks = chunks[0], chunks[1], chunks[2:]
                for at in range(0, int(size, 16), 20):
                    delays_ms.append((now_ns - int(digits[at : at + 20])) / 1e6)
            waiting = b"\r\n".join(chunks)
            if len(delays_ms) < PARTS:
                data = client.recv(1 << 16)
                if not data:
                    raise BenchmarkError(f"the stream ended after {len(delays_ms)} of {PARTS} parts")
                waiting += data
    return delays_ms


def _after_head(client: socket.socket) -> bytes:
    """Read past the head and return the part of the body that has arrived."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = client.recv(1 << 16)
        if not more:
            raise BenchmarkError(f"the server answered {data[:200]!r}")
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise BenchmarkError(f"the server answered {head[:200]!r}")
    return body


def _read_all(served: serving.Served, event: object) -> None:
    """Read an answer to its end."""
    with _ask(served, event) as client:
        size, last = 0, _after_head(client)[-5:]
        while last != b"0\r\n\r\n":
            data = client.recv(1 << 18)
            if not data:
                raise BenchmarkError(f"the stream ended before its last chunk, after {size} bytes")
            size += len(data)
            last = (last + data)[-5:]


def _held_mib(served: serving.Served) -> float:
    """Return by how much the server grows for clients that do not read, MiB."""
    before_mib = serving.resident_mib(served.pid)
    with contextlib.ExitStack() as clients:
        for _ in range(UNREAD):
            client = clients.enter_context(_ask(served, {"mib": LARGE_MIB}))
            _after_head(client)
        _read_all(served, {"mib": LARGE_MIB})
        return max(0.0, serving.resident_mib(served.pid) - before_mib)
