"""A run as it is kept: what was asked for, under which conditions, every request. Written as JSON and CSV."""

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
    """Where it was measured.

    Attributes:
        processor: the model's name.
        cores: that this process may use.
        memory_mib: in all.
        kernel: name and release.
        python: version of the client's interpreter.
        thawd: version.
    """

    processor: str
    cores: int
    memory_mib: int
    kernel: str
    python: str
    thawd: str


class LoadShape(msgspec.Struct, frozen=True, omit_defaults=True):
    """How requests came.

    Attributes:
        loop: ``closed`` or ``open``.
        concurrency: of a closed loop, requests at a time.
        requests: how many were wanted; None: no number.
        duration_s: how long was wanted; None: no time.
        pattern: of an open loop, one of `arrivals.PATTERNS` or ``recorded``.
        rate_per_s: of an open loop by a pattern.
        burst: requests of a burst.
        seed: of the random distances.
        file: of recorded arrivals.
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
        """For people."""
        many = "" if self.requests is None else f"{self.requests:,} request{'' if self.requests == 1 else 's'}"
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
    """Requests, one at each place of the lists, in the order in which they came to their end; times in milliseconds.

    Attributes:
        intended_ms: when each was meant to be sent, since the run's beginning.
        waited_ms: how much later it was sent.
        latency_ms: from when it was meant to be sent to the end of the answer.
        outcome: ``ok``, or the kind of trouble, as an index into `outcomes`.
        outcomes: their names.
        start: how its environment came to be, as an index into `samples.STARTS`.
        ready_ms: of those whose environment was started for them: from spawning it to its being ready.
        prepare_ms: of that, init, fork or restore.
        handler_ms: time in the handler; None: not known.
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
        """Places of the requests that were answered rightly."""
        return (index for index, outcome in enumerate(self.outcome) if outcome == 0)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        label: name of the run in tables and plots.
        target: what was asked: a function, a route or an address.
        url: where the requests went.
        engine: how environments were to start; None: it was not ours to choose.
        begun_from: ``zero``, ``one``, ``warm``, or None.
        state: what there was when the load began, in words.
        load: how requests came.
        begun: date and time, ISO 8601.
        took_s: from the first request to the last answer.
        interrupted: whether it was ended before all was sent.
        columns: the requests.
        examples: what was said of the first of each kind of trouble.
        moments: environments over time; empty: they cannot be seen.
        memory: over time; empty: it cannot be seen.
        late_ms: of an open loop: how late this client itself was, by percentile (``p50``, ``p99``, ``max``).
        notes: what a reader should know.
        machine: where it was measured.
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
    """From what was recorded."""
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
    """Write runs with their summaries beside them.

    Raises:
        OSError: it cannot be written.
    """
    entries = [{**msgspec.to_builtins(run), "summary": told} for run, told in zip(runs, summaries, strict=True)]
    path.write_bytes(msgspec.json.encode({"format": FORMAT, "runs": entries}))


class _Document(msgspec.Struct):
    format: str
    runs: list[Run]


def read_json(path: Path) -> list[Run]:
    """The runs of a file that `write_json` wrote.

    Raises:
        StoreError: it cannot be read, or is something else.
    """
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_Document)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} was not written by `thawd bench --json`: {error}") from error
    if document.format != FORMAT:
        raise StoreError(f"{path} has the format {document.format!r}, and this thawd reads {FORMAT!r}")
    return document.runs


def write_csv(path: Path, runs: Sequence[Run]) -> None:
    """A line for each request.

    Raises:
        OSError: it cannot be written.
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
