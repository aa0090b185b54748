"""How fast the durable queue is: thawd stores asynchronous events before it acknowledges them.

What: the rate at which 16 clients get events accepted, compared with plain SQLite that commits the same rows, 16 at a
time, with `executemany` and the same fsync policy; the same rate over HTTP; the rate at which events are accepted and
run to their end, compared with synchronous invocations of the same no-op function; how long an event takes with 1,000
and with 1,000,000 events waiting before it; how long a server takes to start with 1,000,000 events waiting, and how
much memory it has then.

How: all files are in ``build/``, so all measurements use the same disk. Plain SQLite stores what thawd's queue stores
for an event: its row and its payload, with the index. Rounds of both alternate, and medians are used. The backlogs are
made through thawd's store. Their events are for a function that is not declared, so nothing runs them.

Why: if a durable queue is slow, people switch durability off. If a queue becomes slower as it fills, a burst takes even
longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from benchmarks import load, machine, progress, serving
from benchmarks.report import AT_LEAST, AT_MOST, BenchmarkError, Figure
from thawd.invocation import new_request_id
from thawd.stores import schema
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import NewEvent
from thawd.stores.schema import open_state

TITLE = "durable: asynchronous events, stored before they are acknowledged"

LEAST_OF_BARE = 0.3
TARGET_OF_BARE = 0.7
LEAST_OF_SYNCHRONOUS = 0.4
TARGET_OF_SYNCHRONOUS = 0.8
MOST_COST_RATIO = 1.5
MOST_START_S = 2.0
MOST_GROWTH_MIB = 16.0
CLIENTS = 16
ROUNDS = 5
EVENTS = 4_000
HTTP_EVENTS = 20_000  # so many that the last wait for the status, up to 20 ms, is a small part of the time
SMALL, LARGE = 1_000, 1_000_000
CYCLE = 2_000
BODY = b'{"n": 1}'
CONFIGURATION = """
[server]
max_queued = 10000000

[functions.noop]
handler = "noop.handler"
code = "function"
"""
_INVOKE = "/2015-03-31/functions/noop/invocations"
_ASYNCHRONOUS = {"X-Amz-Invocation-Type": "Event"}


def measure() -> Sequence[Figure]:
    """Measure the ratios and the rates they are computed from.

    Raises:
        BenchmarkError: events were lost, or a server did not start.
    """
    bare, accepted = _acceptance()
    ratio = statistics.median(ours / theirs for theirs, ours in zip(bare, accepted, strict=True))
    rates = f"{statistics.median(accepted):,.0f}/s against {statistics.median(bare):,.0f}/s"
    return [
        Figure(
            f"accepted from {CLIENTS} clients, relative to bare SQLite",
            ratio,
            "x",
            AT_LEAST,
            LEAST_OF_BARE,
            rates,
            TARGET_OF_BARE,
        ),
        *_over_http(),
        *_with_a_backlog(),
    ]


def _acceptance() -> tuple[list[float], list[float]]:
    bare, accepted = [], []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=serving.BUILD) as name:
        for number in progress.rounds(ROUNDS, "accept, round"):
            bare.append(_bare(Path(name) / f"bare-{number}.db"))
            accepted.append(_accept(Path(name) / f"thawd-{number}.db"))
    return bare, accepted


def _bare(path: Path) -> float:
    """Return how many rows SQLite commits per second when each commit holds one row per client."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    for statement in schema.MIGRATIONS[0].split(";")[:3]:  # creates the queue's two tables and its index
        connection.execute(statement)
    begun = time.perf_counter()
    for first in range(1, EVENTS, CLIENTS):
        ids = range(first, first + CLIENTS)
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO events (id, function, accepted_at, request_id, source) VALUES (?, ?, ?, ?, ?)",
            [(number, "noop", time.time(), new_request_id(), "invoke") for number in ids],
        )
        connection.executemany("INSERT INTO payloads VALUES (?, ?)", [(number, BODY) for number in ids])
        connection.execute("COMMIT")
    taken_s = time.perf_counter() - begun
    connection.close()
    return EVENTS / taken_s


def _accept(path: Path) -> float:
    """Return how many events per second the queue accepts from `CLIENTS` concurrent clients.

    Each client sends its next event when its previous one is accepted.
    """
    with contextlib.closing(open_state(path)) as state:
        queue = EventQueue(state)

        async def client() -> None:
            for _ in range(EVENTS // CLIENTS):
                await queue.put([NewEvent(function="noop", payload=BODY, request_id=new_request_id())])

        async def all_clients() -> float:
            begun = time.perf_counter()
            await asyncio.gather(*(client() for _ in range(CLIENTS)))
            return EVENTS / (time.perf_counter() - begun)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # the server's event loop
            return runner.run(all_clients())


def _over_http() -> Sequence[Figure]:
    with serving.thawd(CONFIGURATION, {"function/noop.py": serving.NOOP}) as served:
        serving.invoke(served, "noop", {})
        url = served.url + _INVOKE
        rounds = []
        for _ in progress.rounds(ROUNDS, "over HTTP, round"):
            rounds.append((_synchronous(url), *_end_to_end(served, url)))
    synchronous, accepted, ended = (statistics.median(each) for each in zip(*rounds, strict=True))
    ratio = statistics.median(whole / plain for plain, _, whole in rounds)
    return [
        Figure(
            "rate accepted over HTTP, relative to synchronous invocations",
            statistics.median(stored / plain for plain, stored, _ in rounds),
            "x",
            note=f"{accepted:,.0f}/s against {synchronous:,.0f}/s",
        ),
        Figure(
            "rate accepted and run, relative to synchronous invocations",
            ratio,
            "x",
            AT_LEAST,
            LEAST_OF_SYNCHRONOUS,
            f"{ended:,.0f}/s against {synchronous:,.0f}/s",
            TARGET_OF_SYNCHRONOUS,
        ),
    ]


def _synchronous(url: str) -> float:
    return load.send(url, body=BODY, headers={}, connections=CLIENTS, requests=HTTP_EVENTS).rate_per_s


def _end_to_end(served: serving.Served, url: str) -> tuple[float, float]:
    """Return events accepted per second, and events per second from the first acceptance to the last end."""
    begun = time.perf_counter()
    accepted = load.send(url, body=BODY, headers=_ASYNCHRONOUS, connections=CLIENTS, requests=HTTP_EVENTS).rate_per_s

    def ended() -> bool | None:
        function = served.function("noop")
        if function["errors"] or function["dead"]:
            raise BenchmarkError(f"events failed: {function}")
        return None if function["queued"] or function["leased"] else True

    serving.wait_for(ended, "the events to end", within_s=120.0)
    return accepted, HTTP_EVENTS / (time.perf_counter() - begun)


def _with_a_backlog() -> Sequence[Figure]:
    most_start_s = machine.bound(MOST_START_S)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=serving.BUILD) as name:
        costs, starts, memory = {}, {}, {}
        for count in (SMALL, LARGE):
            progress.step(f"{count:,} waiting events")
            data = Path(name) / str(count)
            data.mkdir()
            _fill(data / "thawd.db", count)
            costs[count] = _cost_ms(data / "thawd.db")
            starts[count], memory[count] = _start(data)
    return [
        Figure(
            f"cost of an event behind {LARGE:,}, relative to one behind {SMALL:,}",
            costs[LARGE] / costs[SMALL],
            "x",
            AT_MOST,
            MOST_COST_RATIO,
            f"{costs[LARGE]:.3f} ms against {costs[SMALL]:.3f} ms",
        ),
        Figure(f"start with {LARGE:,} queued", starts[LARGE], "s", AT_MOST, most_start_s, f"{starts[SMALL]:.2f} s"),
        Figure(
            f"extra memory with {LARGE:,} queued instead of {SMALL:,}",
            memory[LARGE] - memory[SMALL],
            "MiB",
            AT_MOST,
            MOST_GROWTH_MIB,
            f"{memory[LARGE]:.0f} MiB",
        ),
    ]


def _fill(path: Path, count: int) -> None:
    """Create a state file with `count` events in the queue."""
    with contextlib.closing(open_state(path)) as state:
        queue = EventQueue(state)

        async def put_all() -> None:
            for _ in range(0, count, 1_000):
                await queue.put(
                    [NewEvent(function="waiting", payload=BODY, request_id=new_request_id()) for _ in range(1_000)]
                )

        asyncio.run(put_all())


def _cost_ms(path: Path) -> float:
    """Return the time to accept, lease and end an event, milliseconds: the median of `ROUNDS` rounds of `CYCLE`
    events."""
    with contextlib.closing(open_state(path)) as state:
        queue = EventQueue(state)

        async def cycle() -> float:
            begun = time.perf_counter()
            for _ in range(0, CYCLE, 50):
                events = [NewEvent(function="waiting", payload=BODY, request_id=new_request_id()) for _ in range(50)]
                await queue.put(events)
                leased = await queue.lease("waiting", limit=50)
                await queue.done([event.id for event in leased])
            return (time.perf_counter() - begun) / CYCLE * 1000

        async def rounds() -> float:
            await queue.recover()
            return statistics.median([await cycle() for _ in range(ROUNDS)])

        return asyncio.run(rounds())


def _start(data: Path) -> tuple[float, float]:
    """Return how long a server on this data folder takes until it serves, seconds, and its memory then, MiB."""
    configuration = f"{CONFIGURATION}".replace("[server]\n", f"[server]\ndata = {str(data)!r}\n")
    begun = time.perf_counter()
    with serving.thawd(configuration, {"function/noop.py": serving.NOOP}) as served:
        taken_s = time.perf_counter() - begun
        serving.invoke(served, "noop", {})
        served.status()
        return taken_s, serving.resident_mib(served.pid)
