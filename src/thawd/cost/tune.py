"""Finds the best memory size for a function: measures it at several sizes, and computes the price of each size.

At each size, this module measures invocations in warm environments, in environments that start cold, and in
environments that are restored from a snapshot. Each size is measured on its own private server, a thawd server that
runs only for this measurement. A cgroup limits the server's environments to the CPU share that Lambda allots to the
memory (1,769 MB are one CPU). The limit holds from the beginning of a cold start, and from the end of a restore. If CPU
limits do not work on the machine, tuning is refused unless the user accepts measurements without them.

Source: AWS Lambda developer guide, "Configure Lambda function memory". The best sizes are chosen as in AWS Lambda Power
Tuning.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from thawd.bench.measurement_server import Place, private_server
from thawd.config import Settings
from thawd.cost.bills import Shape, per_million
from thawd.cost.prices import CostError, Prices
from thawd.cost.records import Measured, Record, measure, read_records
from thawd.resources import MEMORY_MB_PER_VCPU

SIZES_MB = (128, 256, 512, 1024, 1536, 1769, 3008)
"""Sizes to try by default, except those that need more CPUs than the machine has."""
COLD, RESTORED = "tune-cold", "tune-restored"
"""Names of two further functions on the private server, with the code of the measured one.

The environments of the first start cold, those of the second from a snapshot. They end after each invocation, so that
each invocation needs a start.
"""

_LOOK_S = 0.02
_SAID = 160
_WARM_UPS = 3
_ENTERING_S = 60.0
# The slowest and the fastest fifth of the warm invocations are left out. Source: AWS Lambda Power Tuning,
# "discardTopBottom".
_LEFT_OUT = 0.2
# With fewer warm invocations, an interval would say nothing.
_FEWEST = 5
_DRAWS = 1000


class TuneConditions(msgspec.Struct, frozen=True, kw_only=True):
    """What a private server serves; as JSON, the argument of the program `thawd.server.measurement.tune`.

    Attributes:
        place: files and folders of the private server.
        function: name of the function to serve.
        memory_mb: memory size of the function, MB.
    """

    place: Place
    function: str
    memory_mb: int


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Number and kind of the invocations at each size.

    Attributes:
        events: JSON texts of the events, used in rotation.
        runs: number of measured warm invocations.
        starts: number of cold starts, and of restores, to measure; 0: none are measured.
        unlimited: whether to measure even if CPU limits do not work.
        aws: ``none``, or URL of the server whose AWS services the function uses.
    """

    events: tuple[bytes, ...]
    runs: int = 20
    starts: int = 3
    unlimited: bool = False
    aws: str = "none"


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """Measurement at one memory size.

    Attributes:
        memory_mb: memory size, MB.
        cpus: CPU share of this size, in CPUs.
        measured: average billed durations; None: the measurement failed.
        warm_median_ms: median handler time of warm invocations, milliseconds.
        warm_interval_ms: between which times the average of warm invocations lies, with a confidence of 95 %; None:
            too few were measured.
        most_memory_mb: peak memory of an environment, MB; None: unknown.
        failure: why the measurement failed, for example the function's error; None: it did not fail.
    """

    memory_mb: int
    cpus: float
    measured: Measured | None = None
    warm_median_ms: float | None = None
    warm_interval_ms: tuple[float, float] | None = None
    most_memory_mb: int | None = None
    failure: str | None = None


class Trials(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements at all tried sizes.

    Attributes:
        sizes: the tried sizes.
        limited: whether environments had a CPU limit.
        interrupted: whether Ctrl-C ended the trials before all sizes were tried.
    """

    sizes: tuple[Size, ...]
    limited: bool
    interrupted: bool


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """All sizes with their prices, and the best ones.

    Attributes:
        function: name of the function.
        architecture: processor whose prices apply.
        limited: whether environments had a CPU limit.
        sizes: measurements in the order of their memory sizes.
        per_million: price of a million warm invocations, by memory size, without sizes whose measurement failed.
        cheapest: memory size with the lowest price; None: all measurements failed.
        fastest: memory size with the shortest warm invocations; None: all measurements failed.
        balanced: memory size with the best balance of price and time, as `priced` defines it; None: all measurements
            failed.
        as_fast: memory sizes that may be as fast as the fastest one: their intervals overlap with its interval.
    """

    function: str
    architecture: str
    limited: bool
    sizes: tuple[Size, ...]
    per_million: dict[int, float]
    cheapest: int | None
    fastest: int | None
    balanced: int | None
    as_fast: tuple[int, ...] = ()


def default_sizes() -> list[int]:
    """Return the sizes in `SIZES_MB` for which this machine has enough CPUs."""
    return [size for size in SIZES_MB if size <= (os.cpu_count() or 1) * MEMORY_MB_PER_VCPU]


def tune(
    settings: Settings, function: str, sizes_mb: Sequence[int], trial: Trial, *, progress: Callable[[str], None]
) -> Trials:
    """Measure the function at each size. After Ctrl-C, the sizes measured until then are returned.

    Raises:
        StoreError: a private server does not start.
        CostError: CPU limits do not work on this machine, and `Trial.unlimited` is false.
        KeyboardInterrupt: Ctrl-C was pressed before the first size was measured.
    """
    measured: list[Size] = []
    limited, interrupted = True, False
    for memory_mb in sizes_mb:
        try:
            size, limited = _at_size(settings, function, memory_mb, trial)
            measured.append(size)
            progress(_line_of(size))  # after `append`, so that this size counts if the user then presses Ctrl-C
        except KeyboardInterrupt:
            if not measured:
                raise
            interrupted = True
            break
    return Trials(sizes=tuple(measured), limited=limited, interrupted=interrupted)


def _at_size(settings: Settings, function: str, memory_mb: int, trial: Trial) -> tuple[Size, bool]:
    """Measure at one size. Returns the measurement, and whether environments had a CPU limit."""

    def conditions(place: Place) -> TuneConditions:
        return TuneConditions(place=place, function=function, memory_mb=memory_mb)

    with private_server(settings, purpose="tune", conditions=conditions, aws=trial.aws) as server:
        client = _Client(server.url)
        status = client.status()
        limited = "CPU shares" in status["memory_limit"]
        if not limited and not trial.unlimited:
            raise CostError(
                "environments cannot be limited to the CPU share of their memory, because there is no writable cgroup "
                "with the cpu controller; all sizes would be equally fast. Run thawd as root, or in a systemd service "
                "with Delegate=yes, or measure at full speed with --no-cpu-limits"
            )
        group = f"/thawd-{status['pid']}-" if limited else None
        return _measure(client, function, memory_mb, trial, group=group), limited


def priced(
    function: str, sizes: Sequence[Size], prices: Prices, *, architecture: str, limited: bool, weight: float = 0.5
) -> Tuned:
    """Compute the price of each size, and find the cheapest, the fastest and the balanced size.

    The balanced size has the lowest weighted sum of price and time, each divided by its highest value at any size.
    Source: AWS Lambda Power Tuning, "balancedWeight" and the strategies ``cost``, ``speed``, ``balanced``.

    Args:
        function: name of the function.
        sizes: the measurements.
        prices: prices of Lambda.
        architecture: ``x86_64`` or ``arm64``.
        limited: whether environments had a CPU limit.
        weight: weight of the price against the time, 0-1.
    """
    times = {one.memory_mb: one.measured.warm_ms for one in sizes if one.measured is not None}
    costs = {
        one.memory_mb: per_million(
            prices,
            Shape(memory_mb=one.memory_mb, architecture=architecture),
            one.measured.times(snapstart=False),
        )
        for one in sizes
        if one.measured is not None
    }

    def both(memory_mb: int) -> float:
        return weight * costs[memory_mb] / max(costs.values()) + (1 - weight) * times[memory_mb] / max(times.values())

    fastest = min(costs, key=lambda size: (times[size], costs[size]), default=None)
    return Tuned(
        function=function,
        architecture=architecture,
        limited=limited,
        sizes=tuple(sizes),
        per_million=costs,
        cheapest=min(costs, key=lambda size: (costs[size], times[size]), default=None),
        fastest=fastest,
        balanced=min(costs, key=both, default=None),
        as_fast=_as_fast(sizes, fastest),
    )


def _as_fast(sizes: Sequence[Size], fastest: int | None) -> tuple[int, ...]:
    """The sizes whose intervals overlap with that of the fastest size, which is among them; empty if it has none."""
    intervals = {size.memory_mb: size.warm_interval_ms for size in sizes if size.warm_interval_ms is not None}
    best = None if fastest is None else intervals.get(fastest)
    if best is None:
        return ()
    return tuple(memory_mb for memory_mb, (low, _) in intervals.items() if low <= best[1])


def interval_of(durations_ms: Sequence[float]) -> tuple[float, float] | None:
    """Return between which times the trimmed mean of such durations lies, with a confidence of 95 %, milliseconds.

    It is a bootstrap interval: the trimmed mean of samples drawn with replacement. None: too few durations.
    """
    if len(durations_ms) < _FEWEST:
        return None
    draw = random.Random(0)  # the same measurements give the same interval
    means = sorted(_trimmed_mean(draw.choices(durations_ms, k=len(durations_ms))) for _ in range(_DRAWS))
    return means[int(0.025 * _DRAWS)], means[int(0.975 * _DRAWS)]


def _trimmed_mean(durations_ms: Sequence[float]) -> float:
    out = int(_LEFT_OUT * len(durations_ms))
    return statistics.fmean(sorted(durations_ms)[out : len(durations_ms) - out])


class _Client:
    """Invokes functions of a private server, one invocation at a time."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port

    def status(self) -> dict[str, Any]:
        """Return the server's status document."""
        document: dict[str, Any] = json.loads(self._request("GET", "/_thawd/status", None, {})[1])
        return document

    def invoke(self, function: str, event: bytes) -> Record:
        """Invoke a function once and return the measurement.

        Raises:
            CostError: the function failed.
        """
        headers, body = self._request(
            "POST",
            f"/2015-03-31/functions/{quote(function)}/invocations",
            event,
            {"X-Amz-Log-Type": "Tail"},
        )
        if "x-amz-function-error" in headers:
            raise CostError(_message_of(body))
        tail = base64.b64decode(headers.get("x-amz-log-result", "")).decode(errors="replace")
        records = read_records(tail.splitlines())
        if not records:
            raise CostError(f"nothing was measured: the end of the function's log has no REPORT line: {tail[-200:]!r}")
        return records[-1]

    def _request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self._host, self._port or 0)
        try:
            with contextlib.closing(connection):
                connection.request(method, path, body=body, headers=headers)
                answer = connection.getresponse()
                content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise CostError(f"the private server does not answer: {error!r}") from error
        if answer.status >= 300:
            raise CostError(f"HTTP {answer.status}: {content[:200].decode(errors='replace')}")
        return {name.lower(): value for name, value in answer.getheaders()}, content


def _message_of(body: bytes) -> str:
    """Format a function's error as one line."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        error = json.loads(body)
        return f"the function failed: {error['errorType']}: {error['errorMessage']}"[:_SAID]
    return f"the function failed: {body.decode(errors='replace')}"[:_SAID]


def _measure(client: _Client, function: str, memory_mb: int, trial: Trial, *, group: str | None) -> Size:
    events = trial.events
    try:
        for index in range(_WARM_UPS):
            client.invoke(function, events[index % len(events)])
            if group is not None and index == 0:
                _await_group(group)
        warm = [client.invoke(function, events[index % len(events)]) for index in range(trial.runs)]
        first = [
            client.invoke(name, events[index % len(events)])
            for name in (COLD, RESTORED)
            for index in range(trial.starts)
        ]
        return _size(memory_mb, warm, first)
    except CostError as error:
        return Size(memory_mb=memory_mb, cpus=memory_mb / MEMORY_MB_PER_VCPU, failure=str(error))


def _size(memory_mb: int, warm: Sequence[Record], first: Sequence[Record]) -> Size:
    """Compute the averages of warm invocations, without the slowest and fastest fifths, and of starts.

    Raises:
        CostError: no invocation can be used.
    """
    # Lambda has no forks, so the first invocation in a forked environment counts as a warm one.
    by_duration = sorted((one for one in warm if not one.is_first), key=lambda record: record.duration_ms)
    out = int(_LEFT_OUT * len(by_duration))
    kept = [*by_duration[out : len(by_duration) - out], *(record for record in first if record.is_first)]
    measured = msgspec.structs.replace(measure(kept)[0], start_share=None)
    return Size(
        memory_mb=memory_mb,
        cpus=memory_mb / MEMORY_MB_PER_VCPU,
        measured=measured,
        warm_median_ms=statistics.median(record.duration_ms for record in warm),
        warm_interval_ms=interval_of([record.duration_ms for record in by_duration]),
        most_memory_mb=max((record.used_mb for record in kept if record.used_mb is not None), default=None),
    )


def _await_group(name: str) -> None:
    """Wait until a process of the function is in its cgroup, which has a CPU limit and has `name` in its path.

    A process gets into its cgroup shortly after its start, and is not limited before.

    Raises:
        CostError: no process entered such a cgroup in time.
    """
    end_s = time.monotonic() + _ENTERING_S
    while time.monotonic() < end_s:
        for file in Path("/proc").glob("[0-9]*/cgroup"):
            with contextlib.suppress(OSError):
                for line in file.read_text().splitlines():
                    _, controllers, path = line.split(":", 2)
                    if name in path and (not controllers or "cpu" in controllers.split(",")):
                        return
        time.sleep(_LOOK_S)
    raise CostError(
        f"after {_ENTERING_S:g} s, no process of the function was in the cgroup that limits its CPU share; try again, "
        "or measure at full speed with --no-cpu-limits"
    )


def _line_of(size: Size) -> str:
    if size.measured is None:
        return f"{size.memory_mb:,} MB: {size.failure}"
    return f"{size.memory_mb:,} MB: {size.measured.warm_ms:,.1f} ms warm"
