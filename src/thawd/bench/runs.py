"""Records runs of `thawd bench`. A run is one measurement; its record contains its conditions and every request.

Records are written as JSON and CSV files, and read from JSON files.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from thawd.bench.samples import STARTS, Samples, read_timing
from thawd.bench.watching import MemorySample, Moment
from thawd.errors import StoreError

FORMAT = "thawd-bench-1"


class Machine(msgspec.Struct, frozen=True):
    """The machine on which a measurement ran.

    Attributes:
        processor: name of the processor's model.
        cores: number of cores that the client may use.
        memory_mib: memory of the machine, MiB.
        kernel: name and release of the kernel.
        python: version of the client's interpreter.
        thawd: version of thawd.
    """

    processor: str
    cores: int
    memory_mib: int
    kernel: str
    python: str
    thawd: str


class LoadShape(msgspec.Struct, frozen=True, omit_defaults=True):
    """Shape of the load.

    Attributes:
        loop: ``closed`` or ``open``.
        concurrency: closed loop: number of requests in flight.
        requests: planned number of requests; None: no limit.
        duration_s: planned duration, seconds; None: no limit.
        pattern: open loop: one of `arrivals.PATTERNS` or ``recorded``.
        rate_per_s: open loop with a pattern: requests a second.
        burst: with the pattern ``bursts``: number of requests in a burst.
        seed: with the pattern ``poisson``: seed of the random intervals.
        file: with the pattern ``recorded``: file from which the times were read.
    """

    loop: str
    concurrency: int | None = None
    requests: int | None = None
    duration_s: float | None = None
    pattern: str | None = None
    rate_per_s: float | None = None
    burst: int | None = None
    seed: int | None = None
    file: str | None = None

    def in_words(self) -> str:
        """Describe the load in words."""
        many = "" if self.requests is None else counted(self.requests, "request")
        long = "" if self.duration_s is None else f"for {self.duration_s:g} s"
        amount = " ".join(filter(None, (many, long)))
        if self.loop == "closed":
            return f"{amount}, {self.concurrency} at a time"
        if self.pattern == "recorded":
            return f"{amount or 'requests'} at the times in {self.file}"
        shape = f", in bursts of {self.burst}" if self.pattern == "bursts" else ""
        distances = ", at random (Poisson)" if self.pattern == "poisson" else ""
        return f"{amount}, {self.rate_per_s:g} a second{distances}{shape}"


class Columns(msgspec.Struct, frozen=True):
    """The requests of a run in columns, in the order in which they ended. Times are in milliseconds.

    Attributes:
        intended_ms: intended time of sending, counted from the beginning of the run.
        waited_ms: delay between the intended and the actual time of sending.
        latency_ms: time from the intended sending to the end of the answer.
        outcome: how the request ended, as an index into `outcomes`.
        outcomes: ``ok`` and the kinds of error.
        start: how the environment was started for the request, or that it was warm, as an index into `samples.STARTS`.
        ready_ms: time from the spawn of the environment's process until the environment was ready; None: the
            environment was warm, or the time is unknown.
        prepare_ms: part of `ready_ms` that init, fork or restore took inside the process.
        handler_ms: time in the handler; None: unknown.
    """

    intended_ms: list[float]
    waited_ms: list[float]
    latency_ms: list[float]
    outcome: list[int]
    outcomes: list[str]
    start: list[int]
    ready_ms: list[float | None]
    prepare_ms: list[float | None]
    handler_ms: list[float | None]

    def __len__(self) -> int:
        return len(self.latency_ms)

    def right(self) -> Iterator[int]:
        """Yield the indices of the requests with a right answer."""
        return (index for index, outcome in enumerate(self.outcome) if outcome == 0)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a load, with its conditions and results.

    Attributes:
        label: name of the run in tables and plots.
        target: the target: a function, a route or a URL.
        url: URL of the requests.
        engine: how environments were to start, one of `conditions.ENGINES`; None: the option --engine was not used.
        begun_from: number of environments that existed when the load began: ``zero``, ``one``, or ``warm``: as many as
            some requests before the load had started; None: thawd bench did not change them.
        state: description of the environments when the load began.
        load: shape of the load.
        begun: date and time of the beginning, ISO 8601.
        took_s: time from the first request to the last answer, seconds.
        interrupted: whether Ctrl-C ended the run before all requests were sent.
        columns: the requests.
        examples: message of the first error of each kind, by kind.
        moments: environments over time; empty: unknown.
        memory: memory over time; empty: unknown.
        late_ms: open loop: how late this client sent requests for which a connection was free, by percentile (``p50``,
            ``p99``, ``max``).
        notes: remarks for readers of the results, which reports print.
        machine: the machine on which the measurement ran.
    """

    label: str
    target: str
    url: str
    engine: str | None
    begun_from: str | None
    state: str
    load: LoadShape
    begun: str
    took_s: float
    interrupted: bool
    columns: Columns
    examples: dict[str, str]
    moments: list[Moment]
    memory: list[MemorySample]
    late_ms: dict[str, float]
    notes: list[str]
    machine: Machine


def columns_of(samples: Samples) -> Columns:
    """Convert the recorded samples to columns."""
    starts, ready, prepare, handler = [], [], [], []
    for value in samples.timings:
        timing = read_timing(value)
        starts.append(_START_CODES[timing.start])
        ready.append(timing.ready_ms)
        prepare.append(timing.prepare_ms)
        handler.append(timing.handler_ms)
    places = range(len(samples))
    intended, sent, done = samples.intended_ns, samples.sent_ns, samples.done_ns
    return Columns(
        intended_ms=[round(intended[i] / 1e6, 4) for i in places],
        waited_ms=[round((sent[i] - intended[i]) / 1e6, 4) for i in places],
        latency_ms=[round((done[i] - intended[i]) / 1e6, 4) for i in places],
        outcome=samples.outcomes.tolist(),
        outcomes=list(samples.kinds),
        start=starts,
        ready_ms=ready,
        prepare_ms=prepare,
        handler_ms=handler,
    )


_START_CODES = {start: code for code, start in enumerate(STARTS)}


def write_json(path: Path, runs: Sequence[Run], summaries: Sequence[dict[str, Any]]) -> None:
    """Write runs with their summaries as JSON.

    Raises:
        OSError: the file cannot be written.
    """
    entries = [{**msgspec.to_builtins(run), "summary": figures} for run, figures in zip(runs, summaries, strict=True)]
    path.write_bytes(msgspec.json.encode({"format": FORMAT, "runs": entries}))


class _Document(msgspec.Struct):
    format: str
    runs: list[Run]


def read_json(path: Path) -> list[Run]:
    """Read the runs in a file that `write_json` wrote.

    Raises:
        StoreError: the file cannot be read, or `write_json` did not write it.
    """
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_Document)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} was not written by `thawd bench --json`: {error}") from error
    if document.format != FORMAT:
        raise StoreError(
            f"{path} has the format {document.format!r}, but this version of thawd reads only {FORMAT!r}; measure again"
        )
    return document.runs


def write_csv(path: Path, runs: Sequence[Run]) -> None:
    """Write runs as CSV, a line for each request.

    Raises:
        OSError: the file cannot be written.
    """
    names = (
        "run",
        "intended_ms",
        "waited_ms",
        "latency_ms",
        "outcome",
        "start",
        "ready_ms",
        "prepare_ms",
        "handler_ms",
    )
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for run in runs:
            held = run.columns
            for i in range(len(held)):
                outcome, start = held.outcomes[held.outcome[i]], STARTS[held.start[i]]
                times = (held.intended_ms[i], held.waited_ms[i], held.latency_ms[i])
                phases = (held.ready_ms[i], held.prepare_ms[i], held.handler_ms[i])
                writer.writerow((run.label, *times, outcome, start, *phases))


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as "1 request" or "2,000 requests"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
