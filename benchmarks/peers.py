"""Compares thawd with two other model servers, its peers LitServe and BentoML, on the same work.

What: answers per second, and median and 99th percentile of the latency, with 1, 16 and 64 clients: thawd's figure
divided by the peer's. There are three kinds of work: a small ONNX classifier (64 numbers in, a label out), ResNet-50
v2, which computes for tens of milliseconds, and a handler that sleeps 20 ms.

How: all servers for one kind of work run all the time. The same client loads one after another, while the others are
idle. Each round gives a ratio, and the median of the rounds counts. Each server runs with several settings. A figure is
the ratio of thawd's best setting to the peer and setting that do best at this figure. thawd runs with ``admission =
"cores"``. In the same rounds it is also compared with ``admission = "all"``, where no request waits for a free core.

Why: fast starts are of no use if the requests after them are slow.

The peers are installed into ``.venv-peers`` (the extra `bench-peers`), by this benchmark alone.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from benchmarks import engine_models, load, needs, peer_servers, progress
from benchmarks.load import Measured
from benchmarks.peer_servers import Setting
from benchmarks.report import AT_LEAST, AT_MOST, BenchmarkError, Figure

TITLE = "peers: thawd's route against LitServe and BentoML at their best settings"

CLIENTS = (1, 16, 64)
ROUNDS = 5
SLOW_ROUNDS = 3
ROUND_S = 2.0
WARM_UP_S = 1.0
REQUESTS_PER_CLIENT = 3
LEAST_REQUESTS = 100
OURS = "thawd"
ALL = 'admission = "all"'
_CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class Work:
    """A kind of work, and the settings with which it is served.

    Attributes:
        kind: kind of work, as `programs/peer_work.py` names it.
        settings: settings of the peers.
        memory_mb: memory limit of thawd's function.
        threads: threads of one inference in thawd's function; one server runs for each number.
        is_slow: whether a request takes so long that each load has a fixed number of requests and not a fixed time.
        targets: goals for thawd's figures, by key. `rate`, `p50` and `p99` are divided by the best peer's figure,
            `rate_of_all` is the rate divided by that with ``admission = "all"``.
        held: the targets that are bounds already. Each is a pair: the number of clients, the key of the target.
    """

    kind: str
    settings: Sequence[Setting]
    memory_mb: int
    threads: Sequence[int]
    is_slow: bool
    targets: Mapping[str, float]
    held: frozenset[tuple[int, str]]

    @property
    def own(self) -> dict[str, tuple[str, int]]:
        """Name, kind of admission and number of threads of each server of thawd's that is compared with the peers."""
        return {OURS if number == 1 else f"{OURS}, {number} threads": ("cores", number) for number in self.threads}

    def served(self, admission: str, threads: int, models: str) -> AbstractContextManager[str]:
        """Serve this work with thawd for a ``with`` block, which gets the URL."""
        return peer_servers.thawd(admission, self.kind, models, threads=threads, memory_mb=self.memory_mb)


WORKS = (
    Work(
        "classifier",
        (
            Setting("LitServe", "classifier"),
            Setting("LitServe, fast queue", "classifier", fast_queue=True),
            Setting("LitServe, batches", "classifier", batch=16, window_s=0.002),
            Setting("BentoML", "classifier", is_async=True),
        ),
        memory_mb=256,
        threads=(1,),
        is_slow=False,
        targets={"rate": 1.5, "p50": 0.8, "p99": 0.8},
        held=frozenset((clients, key) for clients in CLIENTS for key in ("rate", "p50", "p99")),
    ),
    Work(
        "resnet50",
        (
            Setting("LitServe", "resnet50", threads=_CORES),
            Setting("LitServe, a worker for each core", "resnet50", workers=_CORES),
            Setting("BentoML", "resnet50", threads=_CORES),
        ),
        memory_mb=1024,
        threads=tuple({1, _CORES}),
        is_slow=True,
        targets={"rate": 1.0, "p99": 1.0},
        held=frozenset(),
    ),
    Work(
        "sleep",
        (Setting("LitServe", "sleep"), Setting("BentoML", "sleep")),
        memory_mb=128,
        threads=(1,),
        is_slow=False,
        targets={"rate_of_all": 0.95},
        held=frozenset({(64, "rate_of_all")}),
    ),
)


def measure() -> Sequence[Figure]:
    """Measure the ratios of all kinds of work.

    Raises:
        Skipped: the peers cannot be installed.
        BenchmarkError: a server did not start, or two servers answered the same request differently.
    """
    python = needs.peers()
    progress.step("make the models, unless they are there")
    models = engine_models.with_model("peer_models", sys.executable).argument
    return [figure for work in WORKS for figure in _figures(work, _measure(work, python, models))]


def _measure(work: Work, python: str, models: str) -> dict[int, list[dict[str, Measured]]]:
    """Load all servers in rounds. Return the rounds by the number of clients."""
    rounds: dict[int, list[dict[str, Measured]]] = {clients: [] for clients in CLIENTS}
    with ExitStack() as stack:
        urls = {}
        for name, (admission, threads) in {**work.own, ALL: ("all", 1)}.items():
            progress.step(f"{work.kind}: start {name}")
            urls[name] = stack.enter_context(work.served(admission, threads, models))
        for setting in work.settings:
            progress.step(f"{work.kind}: start {setting.name}")
            urls[setting.name] = stack.enter_context(setting.serving(python, models))
        labels = {name: peer_servers.label(url) for name, url in urls.items()}
        if len(set(labels.values())) > 1:
            raise BenchmarkError(f"the servers answer the same request differently: {labels}")
        progress.step(f"{work.kind}: warm up")
        for url in urls.values():
            load.drive(url, body=peer_servers.BODY, connections=CLIENTS[-1], duration_s=WARM_UP_S)
        for _ in progress.rounds(SLOW_ROUNDS if work.is_slow else ROUNDS, f"{work.kind}: round"):
            for clients, measured in rounds.items():
                measured.append({name: _load(url, clients, is_slow=work.is_slow) for name, url in urls.items()})
    return rounds


def _load(url: str, clients: int, *, is_slow: bool) -> Measured:
    if not is_slow:
        return load.drive(url, body=peer_servers.BODY, connections=clients, duration_s=ROUND_S)
    requests = max(LEAST_REQUESTS, REQUESTS_PER_CLIENT * clients)
    return load.send(url, body=peer_servers.BODY, headers={}, connections=clients, requests=requests)


def _figures(work: Work, rounds: Mapping[int, Sequence[Mapping[str, Measured]]]) -> list[Figure]:
    figures = []
    for clients, measured in rounds.items():
        for key, attribute, relation in (
            ("rate", "rate_per_s", AT_LEAST),
            ("p50", "p50_us", AT_MOST),
            ("p99", "p99_us", AT_MOST),
        ):
            hardest, best = (min, max) if relation == AT_LEAST else (max, min)
            ratios = {
                own: hardest((_ratio(measured, attribute, own, one.name), one.name) for one in work.settings)
                for own in work.own
            }
            own = best(ratios, key=lambda name: ratios[name][0])
            value, peer = ratios[own]
            figures.append(_figure(work, clients, key, relation, value, _note(measured, attribute, own, peer)))
        value, note = _ratio(measured, "rate_per_s", OURS, ALL), _note(measured, "rate_per_s", OURS, ALL)
        figures.append(_figure(work, clients, "rate_of_all", AT_LEAST, value, note))
    return figures


def _figure(work: Work, clients: int, key: str, relation: str, value: float, note: str) -> Figure:
    what = {"rate": "rate, relative to the best peer", "rate_of_all": f"rate, relative to {ALL}"}.get(
        key, f"{key}, relative to the best peer"
    )
    name = f"{work.kind}, {clients} at a time: {what}"
    target = work.targets.get(key)
    bound, target = (target, None) if (clients, key) in work.held else (None, target)
    return Figure(name, value, "x", relation, bound, note, target)


def _ratio(measured: Sequence[Mapping[str, Measured]], attribute: str, own: str, other: str) -> float:
    """Return the median over the rounds of the value of `own`, divided by that of `other`."""
    return statistics.median(
        float(getattr(each[own], attribute)) / float(getattr(each[other], attribute)) for each in measured
    )


def _note(measured: Sequence[Mapping[str, Measured]], attribute: str, own: str, other: str) -> str:
    """Return the medians of `own` and of `other` as text."""
    ours, theirs = (statistics.median(getattr(each[name], attribute) for each in measured) for name in (own, other))
    setting = "" if own == OURS else f" with {own.removeprefix(OURS + ', ')}"
    if attribute == "rate_per_s":
        return f"{ours:,.0f}/s{setting} against {theirs:,.0f}/s of {other}"
    return f"{ours / 1000:,.1f} ms{setting} against {theirs / 1000:,.1f} ms of {other}"
