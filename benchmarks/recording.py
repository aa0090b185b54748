"""What recording invocations costs, and how long pages take that list a million of them.

What: the processor time for each request and the rate with 16 clients, and the median latency with one client of a no-
op function, on a server that records and on one that does not; then the slowest of the lists, out of 1,000,000 records;
and the size of the file with records.

How: both servers run all the time, and the same client loads them in turn. Each round gives one ratio, and the median
of the rounds is used. The bound is on the server's processor time for each request, because that is what limits the
rate, and because other work on the machine hardly changes it. It is measured when a server has been busy for a while,
because after a pause twice as many invocations are recorded together. The records of the second part are made up by
SQLite before the server starts.

Why: recording is on for everybody, so it has to cost almost nothing; and a page is of no use if one waits for it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from benchmarks import load, machine, made_up_records, progress, serving
from benchmarks.report import AT_MOST, Figure

TITLE = "recording: the cost of records, and pages out of a million of them"

MOST_CPU = 1.03
MOST_ADDED_US = 50.0
MOST_PAGE_MS = 200.0
MOST_FILE_MIB = 1024 + 80
RECORDS = 1_000_000
PAGE_TRIES = 5
ROUNDS = 11
BUSY_S = 2.2
ROUND_S = 3.0
SINGLE_S = 0.7
CLIENTS = 16

CONFIGURATION = """
[functions.noop]
handler = "noop.handler"
code = "function"
[server]
"""
OFF = f"{CONFIGURATION}record_days = 0\n"
PAGES = (
    "/_thawd/",
    "/_thawd/window/failures",
    "/_thawd/window/failures?span=86400",
    "/_thawd/window/failures?function=fn7",
    "/_thawd/window/failures?function=fn7&error=Error3",
    "/_thawd/window/failures?text=nowhere",
    "/_thawd/window/invocations",
    "/_thawd/window/invocations?function=fn7&text=nowhere",
    "/_thawd/window/invocations?start=cold",
    "/_thawd/window/functions/noop",
    f"/_thawd/window/invocations/{77:08x}-0000-4000-8000-000000000000",
)


def measure() -> Sequence[Figure]:
    """Measure the cost of records, then the pages."""
    return [*_cost(), *_pages()]


def _cost() -> list[Figure]:
    files = {"function/noop.py": serving.NOOP}
    with serving.thawd(CONFIGURATION, files) as recording, serving.thawd(OFF, files) as other:
        urls = [f"{served.url}/2015-03-31/functions/noop/invocations" for served in (recording, other)]
        for url in urls:
            load.drive(url, body=b"{}", connections=CLIENTS, duration_s=1.0)
        rates, added, cpu = [], [], []
        servers = dict(zip(urls, (recording, other), strict=True))
        for number in progress.rounds(ROUNDS):
            order = urls if number % 2 else urls[::-1]
            many, used_s = dict[str, load.Measured](), dict[str, float]()
            for url in order:
                load.drive(url, body=b"{}", connections=CLIENTS, duration_s=BUSY_S)
                before_s = serving.cpu_s(servers[url].pid)
                many[url] = load.drive(url, body=b"{}", connections=CLIENTS, duration_s=ROUND_S)
                used_s[url] = (serving.cpu_s(servers[url].pid) - before_s) / many[url].requests
            cpu.append(used_s[urls[0]] / used_s[urls[1]])
            one = {url: load.drive(url, body=b"{}", connections=1, duration_s=SINGLE_S) for url in order}
            rates.append(many[urls[0]].rate_per_s / many[urls[1]].rate_per_s)
            added.append(one[urls[0]].p50_us - one[urls[1]].p50_us)
    low, _, high = statistics.quantiles(cpu, n=4)
    note = f"half of the rounds from {low:.3f} to {high:.3f}"
    shown = f"rounds from {min(rates):.2f} to {max(rates):.2f}"
    against = f"with {CLIENTS} clients, relative to no records"
    return [
        Figure(f"processor time for each request {against}", statistics.median(cpu), "x", AT_MOST, MOST_CPU, note),
        Figure(f"rate {against}", statistics.median(rates), "x", note=shown),
        Figure("p50 with 1 client, more than without records", statistics.median(added), "us", AT_MOST, MOST_ADDED_US),
    ]


def _pages() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=serving.BUILD) as name:
        data = Path(name)
        progress.step(f"write {RECORDS:,} records")
        made_up_records.fill(data / "records.db", RECORDS)
        configuration = f'{CONFIGURATION}record_days = 3650\nrecord_max_mb = 1024\ndata = "{data}"\n'
        with serving.thawd(configuration, {"function/noop.py": serving.NOOP}) as served:
            took = {page: _page_ms(served.url, page) for page in PAGES}
            file_mib = sum(each.stat().st_size for each in data.glob("records.db*")) / (1 << 20)
    slowest = max(took, key=lambda page: took[page])
    return [
        Figure("slowest page", took[slowest], "ms", AT_MOST, machine.bound(MOST_PAGE_MS), slowest),
        Figure(f"file with {RECORDS:,} records", file_mib, "MiB", AT_MOST, MOST_FILE_MIB),
    ]


def _page_ms(url: str, page: str) -> float:
    """Return the median of several requests for a page, milliseconds."""
    times_ms = []
    for _ in range(PAGE_TRIES):
        request = urllib.request.Request(f"{url}{page}", headers={"accept": "text/html"})
        begun_s = time.perf_counter()
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
        times_ms.append((time.perf_counter() - begun_s) * 1000)
    return statistics.median(times_ms)
