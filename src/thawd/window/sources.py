"""What the pages are made from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from thawd.cluster.overview import SeenMachine
from thawd.gateway.http import Budget
from thawd.gateway.thawd_api.queue import QueueOperations
from thawd.recording.records import Records
from thawd.recording.redaction import Redactor
from thawd.resources import Function
from thawd.scheduling.dispatcher import Dispatcher
from thawd.window.elsewhere import Elsewhere


class CountedPeriod(NamedTuple):
    """A time of which the page of a function says what it would have cost.

    Attributes:
        name: what the time is called, such as ``last 24 hours``.
        invocations: how many invocations of the function there were.
        since_ms: from when they are counted, milliseconds since 1970.
        is_whole: whether that is the beginning of the time; False: counts from before are no longer kept.
    """

    name: str
    invocations: int
    since_ms: float
    is_whole: bool


class CostRow(NamedTuple):
    """What invocations would cost if environments started in one way. An amount is a price and its error, or None.

    Attributes:
        starts: how environments start on Lambda.
        is_least: whether the amounts are lower bounds.
        million: price of a million invocations; None: it depends on their number.
        periods: price of each period.
    """

    starts: str
    is_least: bool
    million: tuple[float, float | None] | None
    periods: tuple[tuple[float, float | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """What a function's invocations would cost on AWS Lambda.

    Attributes:
        refusal: why no price is computed; empty: prices are computed.
        region: AWS region of the prices.
        date: date of the prices.
        currency: their currency.
        memory_mb: memory size of the function, MB.
        measured: number of measured invocations from which durations were averaged.
        warm_ms: average billed duration of an invocation that does not wait for a start, milliseconds.
        warm_error_ms: half of the width of its 95 % interval; None: unknown.
        start_share: share of the measured invocations that waited for a start, 0-1.
        periods: the times.
        rows: the prices, a row for each way to start environments.
    """

    refusal: str = ""
    region: str = ""
    date: str = ""
    currency: str = ""
    memory_mb: int = 0
    measured: int = 0
    warm_ms: float = 0.0
    warm_error_ms: float | None = None
    start_share: float = 0.0
    periods: tuple[CountedPeriod, ...] = ()
    rows: tuple[CostRow, ...] = ()


class ClusterPages(Protocol):
    """What pages show of a cluster.

    Attributes:
        own: name of this machine.
    """

    own: str

    async def machines(self) -> list[SeenMachine]:
        """Return the machines of the cluster."""

    async def find(self, prefix: str) -> Elsewhere:
        """Return what other machines have recorded about request ids that begin with `prefix`."""


@dataclass(slots=True)
class Sources:
    """What the pages are made from.

    Attributes:
        records: the recorded invocations; None: none are recorded.
        why_none: why none are recorded.
        redactor: replaces secret values in what is shown.
        status: makes the status document.
        queue: the operations on the queue and on dead letters.
        dispatcher: runs invocations from the page Try, and knows versions and aliases.
        logs: folder of the logs.
        flush_logs: writes the log lines that wait to be written.
        wait_s: how long an invocation from a page may wait for an environment, seconds.
        budget: limits the memory for the bodies of requests.
        cost: estimates what a function's invocations would cost on AWS Lambda.
        cluster: knows the machines of the cluster; None: this machine runs alone.
    """

    records: Records | None
    why_none: str
    redactor: Redactor
    status: Callable[[], Awaitable[Mapping[str, Any]]]
    queue: QueueOperations
    dispatcher: Dispatcher
    logs: Path
    flush_logs: Callable[[], None]
    wait_s: float
    budget: Budget
    cost: Callable[[Function], Awaitable[CostEstimate]]
    cluster: ClusterPages | None = None
