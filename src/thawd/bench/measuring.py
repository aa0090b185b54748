"""Carries out one measurement: prepares the server's environments, sends the load, and watches the server."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import platform
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thawd import __version__
from thawd.bench.load import ClosedLoop, Limits, Load, OpenLoop
from thawd.bench.requests import Requests, Target, shown
from thawd.bench.runs import LoadShape, Machine, Run, columns_of, counted
from thawd.bench.watching import MemorySample, MemoryWatch, StatusClient, Watch
from thawd.errors import StoreError
from thawd.system.suggestions import did_you_mean

_LOOK_S = 0.05
_PROGRESS_S = 0.5
_WARM_ROUNDS = 3

Progress = Callable[[Load, float], None]
"""A function that is called every half second with the load and the number of seconds since the load began."""


@dataclass(frozen=True, slots=True)
class Served:
    """The thawd server that is measured.

    Attributes:
        url: URL of the server.
        headers: headers that each request needs: one with the server's key if the server has a key, else none.
        function: name of the function whose environments are watched.
        is_private: whether the server runs only for this measurement.
    """

    url: str
    headers: Mapping[str, str]
    function: str
    is_private: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of one measurement.

    Attributes:
        label: name of the run.
        target_name: name of the target in reports.
        target: address of the requests.
        payloads: bodies, used in rotation.
        limits: limits of the load.
        shape: whether the loop is closed or open, and its parameters.
        offsets: returns the send times of an open loop; None: the loop is closed.
        connections: number of connections opened before the load begins.
        served: the thawd server that answers; None: the target is any URL.
        engine: how environments start, one of `conditions.ENGINES`; None: the option --engine is not used.
        begun_from: environments to have when the load begins: ``zero``, ``one``, or ``warm``: those that uncounted
            requests have started; None: those that exist anyway.
        provisioned: number of environments that must be ready before the load begins.
        warm_up: number of requests to send before the load begins; they are not counted.
        notes: remarks for readers of the results, which reports print.
    """

    label: str
    target_name: str
    target: Target
    payloads: Sequence[bytes]
    limits: Limits
    shape: LoadShape
    connections: int
    offsets: Callable[[], Iterator[float]] | None = None
    served: Served | None = None
    engine: str | None = None
    begun_from: str | None = None
    provisioned: int = 0
    warm_up: int = 0
    notes: list[str] = field(default_factory=list)


def measure(plan: Plan, *, progress: Progress) -> Run:
    """Carry out a plan and return the run, which contains all requests that have ended.

    After Ctrl-C, no more requests are sent. After a second Ctrl-C, the measurement ends without the last answers.

    Raises:
        StoreError: the target cannot be reached, or the function cannot be run.
    """
    import uvloop

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_measure(plan, progress))
    except OSError as error:
        raise StoreError(f"{shown(plan.target.url)} cannot be reached: {error}") from error


async def _measure(plan: Plan, progress: Progress) -> Run:
    requests = Requests(plan.target, plan.payloads)
    load = _load(plan, requests)
    client = StatusClient(plan.served.url, plan.served.headers) if plan.served is not None else None
    notes = list(plan.notes)
    watch: Watch | None = None
    memory: MemoryWatch | None = None
    seen: list[MemorySample] = []
    state = "unknown, because the target is not a thawd server"
    try:
        if plan.served is not None and client is not None:
            await _function_ready(client, plan.served.function)
            await _prepare_environments(plan, client, requests)
        if plan.warm_up:
            await _send_uncounted(plan, requests, plan.warm_up)
        if plan.served is not None and client is not None:
            status = await client.read()
            entry = status["functions"][plan.served.function]
            state = _in_words(entry)
            notes += _notes(plan, entry, status)
            watch = Watch(client, plan.served.function)
            watch.note(entry, at_s=0.0)
            memory = await MemoryWatch.start(status["pid"])
        begun = datetime.datetime.now(datetime.UTC)
        interrupted = await _watched(load, plan.connections, watch, progress)
    finally:
        if memory is not None:
            seen = await memory.stop(load.begun_ns)
        if client is not None:
            client.close()
    samples = load.samples
    notes += _notes_on_load(load, interrupted=interrupted)
    return Run(
        label=plan.label,
        target=plan.target_name,
        url=shown(plan.target.url),
        engine=plan.engine,
        begun_from=plan.begun_from,
        state=state,
        load=plan.shape,
        begun=begun.isoformat(timespec="seconds"),
        took_s=max(samples.done_ns, default=0) / 1e9,
        interrupted=interrupted,
        columns=columns_of(samples),
        examples=samples.examples,
        moments=watch.moments if watch is not None else [],
        memory=seen,
        late_ms=_lateness(load),
        notes=notes,
        machine=this_machine(),
    )


async def _watched(load: Load, connections: int, watch: Watch | None, progress: Progress) -> bool:
    """Send the load, and meanwhile watch the server and report progress. Returns whether Ctrl-C ended the load."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if interrupted:
            loop.remove_signal_handler(signal.SIGINT)  # so that a third Ctrl-C raises KeyboardInterrupt
            load.abandon()
            return
        interrupted = True
        load.stop()
        progress(load, loop.time() - begun_s)

    async def report() -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            progress(load, loop.time() - begun_s)

    with contextlib.suppress(ValueError, RuntimeError):  # signals can be handled only in the main thread
        loop.add_signal_handler(signal.SIGINT, interrupt)
    others = [loop.create_task(report())]
    running = loop.create_task(load.run(connections))
    try:
        if watch is not None:
            await asyncio.sleep(0)
            others.append(loop.create_task(_watch_load(load, watch, running)))
        await running
        if watch is not None:
            await watch.look(load.begun_ns)
    finally:
        for task in (running, *others):
            task.cancel()
        await asyncio.gather(*others, running, return_exceptions=True)
        loop.remove_signal_handler(signal.SIGINT)
    return interrupted


async def _watch_load(load: Load, watch: Watch, running: asyncio.Task[Any]) -> None:
    while not load.begun_ns and not running.done():  # noqa: ASYNC110 - opening the first connections is short
        await asyncio.sleep(0.001)
    await watch.run(load.begun_ns)


def _load(plan: Plan, requests: Requests) -> Load:
    if plan.offsets is not None:
        return OpenLoop(plan.target, requests, plan.limits, offsets=plan.offsets())
    return ClosedLoop(plan.target, requests, plan.limits, count=plan.shape.requests, duration_s=plan.shape.duration_s)


async def _send_uncounted(plan: Plan, requests: Requests, count: int, *, at_once: int = 1) -> None:
    """Send `count` requests that are not part of the measurement, `at_once` of them at the same time.

    Raises:
        StoreError: a request got a wrong answer.
    """
    load = ClosedLoop(plan.target, requests, plan.limits, count=count, duration_s=None)
    samples = await load.run(min(count, at_once))
    if samples.examples:
        kind, said = next(iter(samples.examples.items()))
        raise StoreError(f"a warm-up request failed: {kind}: {said}")


async def _function_ready(client: StatusClient, name: str) -> None:
    """Wait until the function can be invoked.

    Raises:
        StoreError: there is no function of this name, or it could not be published.
    """
    while True:
        status = await client.read()
        entry = status["functions"].get(name)
        if entry is None:
            raise StoreError(f"there is no function {name!r}; {did_you_mean(name, status['functions'])}")
        if entry["state"] == "Failed":
            raise StoreError(f"{name} cannot be run: {entry['reason']}")
        if entry["state"] == "Active":
            return
        await asyncio.sleep(_LOOK_S)


async def _prepare_environments(plan: Plan, client: StatusClient, requests: Requests) -> None:
    """Wait, or send requests that are not counted, until the environments exist with which the load is to begin."""
    assert plan.served is not None
    name = plan.served.function

    async def until(holds: Callable[[dict[str, int]], bool]) -> None:
        while not holds((await client.read())["functions"][name]["environments"]):  # noqa: ASYNC110 - in the server
            await asyncio.sleep(_LOOK_S)

    if plan.provisioned:
        await until(lambda counts: counts["idle"] >= plan.provisioned)
    elif plan.begun_from == "zero":
        await until(lambda counts: not any(counts.values()))
    elif plan.begun_from == "one":
        await _send_uncounted(plan, requests, 2)
    elif plan.begun_from == "warm":
        await _send_uncounted(plan, requests, plan.connections * _WARM_ROUNDS, at_once=plan.connections)
    if plan.begun_from in ("one", "warm"):
        await until(lambda counts: not counts["busy"] and not counts["starting"])


def _in_words(entry: Mapping[str, Any]) -> str:
    alive = {state: count for state, count in entry["environments"].items() if count}
    environments = ", ".join(f"{count} {state}" for state, count in alive.items()) or "none alive"
    return f"environments: {environments}; new ones start by {entry['start'] or 'a way that is not known yet'}"


def _notes(plan: Plan, entry: Mapping[str, Any], status: Mapping[str, Any]) -> list[str]:
    notes = []
    wanted = {"cold": "cold", "fork": "fork", "thaw": "thaw"}.get(plan.engine or "")
    if wanted is not None and entry["start"] != wanted:
        notes.append(f"environments start by {entry['start']}, not by {wanted}: {entry['start_reason']}")
    if plan.served is not None and not plan.served.is_private:
        notes.append("measured on the running server, which others may use at the same time")
    at_once = plan.shape.concurrency
    if at_once is not None and status["max_environments"] < at_once:
        most = counted(status["max_environments"], "environment")
        notes.append(f"at most {most} for {at_once} requests in flight: some requests wait")
    return notes


def _notes_on_load(load: Load, *, interrupted: bool) -> list[str]:
    notes = []
    if isinstance(load, OpenLoop) and load.without_connection:
        notes.append(f"{counted(load.without_connection, 'request')} had to wait for a connection; see --connections")
    if interrupted and load.in_flight:
        were, they_are = ("was", "it is") if load.in_flight == 1 else ("were", "they are")
        requests = counted(load.in_flight, "request")
        notes.append(f"{requests} {were} in flight when the run was ended; {they_are} not counted")
    return notes


def _lateness(load: Load) -> dict[str, float]:
    if not isinstance(load, OpenLoop) or not load.late_ns:
        return {}
    late = sorted(load.late_ns)
    places = {"p50": len(late) // 2, "p99": len(late) * 99 // 100, "max": len(late) - 1}
    return {name: round(late[place] / 1e6, 4) for name, place in places.items()}


def this_machine() -> Machine:
    """Describe the machine on which this process runs."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    return Machine(
        processor=processor,
        cores=len(os.sched_getaffinity(0)),
        memory_mib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        thawd=__version__,
    )
