"""Puts load on the measured servers with the load generator of ``thawd bench``, in this process.

The load is a closed loop: each connection sends its next request when its previous one is answered. The same client
loads both servers of a comparison, so both figures include the client's own time (`docs/how-to/bench.md`, "The
client").
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import uvloop

from benchmarks.report import BenchmarkError
from thawd.bench.load import ClosedLoop, Limits
from thawd.bench.requests import Requests, Target
from thawd.bench.samples import Samples

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What the client measured in one run.

    Attributes:
        p50_us: median latency, microseconds.
        p99_us: latency that 99 % of the requests do not exceed, microseconds.
        rate_per_s: answers per second on all connections together.
        requests: how many requests were answered.
    """

    p50_us: float
    p99_us: float
    rate_per_s: float
    requests: int


def drive(url: str, *, body: bytes, connections: int, duration_s: float) -> Measured:
    """POST `body` (JSON) to `url` for `duration_s` seconds over `connections` keep-alive connections.

    Raises:
        BenchmarkError: an answer was not 2xx, or a connection broke.
    """
    return _run(url, body, {}, connections, count=None, duration_s=duration_s)


def send(url: str, *, body: bytes, headers: Mapping[str, str], connections: int, requests: int) -> Measured:
    """POST `body` (JSON) to `url` `requests` times, with `headers`, over `connections` keep-alive connections.

    Raises:
        BenchmarkError: an answer was not 2xx, or a connection broke.
    """
    return _run(url, body, headers, connections, count=requests, duration_s=None)


def _run(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    connections: int,
    *,
    count: int | None,
    duration_s: float | None,
) -> Measured:
    target = Target(url, "POST", headers)

    async def run() -> Samples:
        limits = Limits(timeout_s=_TIMEOUT_S)
        loop = ClosedLoop(target, Requests(target, [body]), limits, count=count, duration_s=duration_s)
        return await loop.run(connections)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            samples = runner.run(run())
    except OSError as error:
        raise BenchmarkError(f"{url} takes no connections: {error}") from error
    if samples.errors():
        raise BenchmarkError(f"{samples.errors()} of {len(samples)} requests to {url} failed: {samples.examples}")
    latencies_ns = sorted(done - sent for sent, done in zip(samples.sent_ns, samples.done_ns, strict=True))
    p99_ns = latencies_ns[math.ceil(0.99 * len(latencies_ns)) - 1]
    rate_per_s = len(samples) / (max(samples.done_ns) / 1e9)
    return Measured(statistics.median(latencies_ns) / 1e3, p99_ns / 1e3, rate_per_s, len(samples))
