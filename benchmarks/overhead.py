"""What thawd adds to an HTTP request: a function that does nothing, compared with a plain Starlette echo.

What: the median latency with one client, and answers per second with 16 clients, of ``POST
/2015-03-31/functions/noop/invocations`` over keep-alive connections, divided by the same figures of an echo on the same
uvicorn settings (`benchmarks.echo`).

How: both servers run all the time, each in its own process. The same client loads them in turn (A B A B ...) with the
same body. Each round gives one ratio of two figures that were measured one right after the other, and the median of the
rounds is used. Both servers are warmed up before the first round.

Why: the difference is everything the platform does for a request: routing, dispatch, the lease of an execution
environment, two frames over a socketpair, a second process, the log lines and the metrics.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks import echo, load, progress, serving
from benchmarks.report import AT_LEAST, AT_MOST, Figure

TITLE = "overhead: a no-op function compared with a plain Starlette echo"

MOST_P50 = 5.0
TARGET_P50 = 2.2
LEAST_RATE = 0.3
TARGET_RATE = 0.4
CLIENTS = 16
ROUNDS = 5
ROUND_S = 2.0
BODY = b'{"key": "value"}'

CONFIGURATION = """
[functions.noop]
handler = "noop.handler"
code = "function"
"""


def measure() -> Sequence[Figure]:
    """Measure both ratios and the medians they are computed from."""
    with (
        serving.bare_echo() as bare,
        serving.thawd(CONFIGURATION, {"function/noop.py": serving.NOOP}) as served,
    ):
        urls = (f"{bare.url}{echo.PATH}", f"{served.url}/2015-03-31/functions/noop/invocations")
        single, many = [], []
        for url in urls:
            load.drive(url, body=BODY, connections=CLIENTS, duration_s=1.0)
        for _ in progress.rounds(ROUNDS):
            single.append([_run(url, 1) for url in urls])
            many.append([_run(url, CLIENTS) for url in urls])
    return [
        Figure(
            "p50 with 1 client, relative to the echo",
            statistics.median(ours.p50_us / theirs.p50_us for theirs, ours in single),
            "x",
            AT_MOST,
            MOST_P50,
            f"{_median_p50(single, 1):.0f} us against {_median_p50(single, 0):.0f} us",
            TARGET_P50,
        ),
        Figure(
            f"rate with {CLIENTS} clients, relative to the echo",
            statistics.median(ours.rate_per_s / theirs.rate_per_s for theirs, ours in many),
            "x",
            AT_LEAST,
            LEAST_RATE,
            f"{_median_rate(many, 1):,.0f}/s against {_median_rate(many, 0):,.0f}/s",
            TARGET_RATE,
        ),
    ]


def _run(url: str, connections: int) -> load.Measured:
    return load.drive(url, body=BODY, connections=connections, duration_s=ROUND_S)


def _median_p50(rounds: list[list[load.Measured]], server: int) -> float:
    return statistics.median(pair[server].p50_us for pair in rounds)


def _median_rate(rounds: list[list[load.Measured]], server: int) -> float:
    return statistics.median(pair[server].rate_per_s for pair in rounds)
