"""Shows runs on one HTML page that includes its styles and drawings. The page has no scripts.

The page is for people who have not read the documentation: a text beside each plot explains how to read the plot. The
texts and the markup are in the template `templates/content.html`, for which this module computes the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from thawd.bench.comparison import Ratio
from thawd.bench.pages import document, fragment
from thawd.bench.plots import Plot, bars, linear, logarithmic, number, of_percentiles
from thawd.bench.runs import Run
from thawd.bench.samples import STARTS
from thawd.bench.summary import StartFigures, Summary, in_flight
from thawd.bench.text import COLUMNS, shown

if TYPE_CHECKING:
    from markupsafe import Markup

_KINDS = {
    "cold": "cold: a new process that ran the function's init",
    "fork": "fork: a copy of a process that had run init",
    "thaw": "thaw: restored from the snapshot",
    "warm": "warm: an environment that had served a request before, or was provisioned",
    "other": "not reported by the server",
}
_PARTS = (
    ("spawn", "spawn: until the process runs"),
    ("prepare", "prepare: init, fork or restore inside the process"),
    ("handler", "handler: the run of the function"),
    ("rest", "rest: waiting for an environment, and transmission"),
)
_PALETTE = ("run1", "run2", "run3", "run4", "run5", "run6")
_SAID_CHARACTERS = 240
Pairs = Sequence[tuple[Run, Summary]]
Table = tuple[Sequence[str], Sequence[Sequence[str]]]


class Against(msgspec.Struct, frozen=True):
    """Comparison of two of the runs on a page.

    Attributes:
        before: label of the first run.
        after: label of the second run.
        ratios: ratios of the second run's figures to the first run's.
        differences: descriptions of the differences between the conditions of the two runs.
    """

    before: str
    after: str
    ratios: Sequence[Ratio]
    differences: Sequence[str]


class _Drawn(msgspec.Struct, frozen=True):
    """Plots of a section, one for each run.

    Attributes:
        legend: for each colour its CSS class and its meaning.
        drawings: for each plot the label of its run and the plot.
        watched: whether the plots show environments as well as requests.
    """

    legend: Sequence[tuple[str, str]]
    drawings: Sequence[tuple[str, object]]
    watched: bool = False


class _Starts(msgspec.Struct, frozen=True):
    legend: Sequence[tuple[str, str]]
    drawing: object
    figures: Table


class _Distribution(msgspec.Struct, frozen=True):
    legend: Sequence[tuple[str, str]]
    drawing: object


class _Particulars(msgspec.Struct, frozen=True):
    told: str
    rows: Sequence[Sequence[str]]


def page(runs: Sequence[Run], summaries: Sequence[Summary], against: Sequence[Against] = ()) -> str:
    """Return an HTML page about `runs`, which were measured by one command or are compared."""
    title = f"{runs[0].target}: {runs[0].load.in_words()}"
    return document("report.html", title=title, content=content(runs, summaries, against))


def content(runs: Sequence[Run], summaries: Sequence[Summary], against: Sequence[Against] = ()) -> Markup:
    """Return the sections of a page about `runs`. A report about several workloads has these sections for each."""
    pairs = list(zip(runs, summaries, strict=True))
    return fragment(
        "content.html",
        first=runs[0],
        pairs=pairs,
        conditions=list(dict.fromkeys(_conditions(run) for run in runs)),
        against=against,
        comparisons=[_comparison(pair) for pair in against],
        # The page explains the table of latencies with one figure, the first run's 90th percentile, as an example.
        p90_ms=next((told.percentiles_ms["p90"] for told in summaries if told.percentiles_ms), None),
        latency=_latency_table(pairs),
        distribution=_distribution(pairs),
        over_time=_over_time(pairs),
        starts=_starts(pairs),
        concurrency=_concurrency(pairs),
        trouble=_trouble(pairs),
        particulars=_particulars(runs),
    )


def _conditions(run: Run) -> str:
    """Describe in words the load, and the environments that existed when it began."""
    alive = {"zero": ", no environment alive at the beginning", "one": ", one environment alive", "warm": ", warm"}
    ready = ", environments ready before" if run.engine == "provisioned" and run.begun_from is None else ""
    return run.load.in_words() + alive.get(run.begun_from or "", ready)


def _comparison(pair: Against) -> list[list[str]]:
    return [
        [line.name, number(line.before), number(line.after), f"{line.ratio:.3f}", line.bounds()] for line in pair.ratios
    ]


def _latency_table(pairs: Pairs) -> Table:
    heads = ["run", *COLUMNS, "answers a second", "wrong", "took", "environments", "their memory", "server"]
    rows = []
    for run, told in pairs:
        percentiles = [shown(told.percentiles_ms.get(column)) for column in COLUMNS]
        environments = "-" if told.most_environments is None else f"{told.most_environments:,}"
        rows.append(
            [run.label, *percentiles, number(told.rate_per_s), f"{told.errors:,}", f"{number(run.took_s)} s",
             environments, _mib(told.memory_mib), _mib(told.server_mib)]
        )  # fmt: skip
    return heads, rows


def _mib(value: float | None) -> str:
    return "-" if value is None else f"{number(value)} MiB"


def _colour(run: Run, index: int, runs: Sequence[Run]) -> str:
    """Return the CSS class of a run's colour: the engine if all runs have different engines, else one by position."""
    engines = [other.engine for other in runs]
    if len(set(engines)) == len(runs) and run.engine in ("cold", "fork", "thaw", "provisioned"):
        return run.engine
    return _PALETTE[index % len(_PALETTE)]


def _distribution(pairs: Pairs) -> _Distribution | None:
    with_curves = [(run, told) for run, told in pairs if told.curve_ms]
    if not with_curves:
        return None
    runs = [run for run, _ in pairs]
    most = max(100 * (1 - 1 / max(2, told.requests - told.errors)) for _, told in with_curves)
    values = [value for _, told in with_curves for _, value in told.curve_ms]
    plot = Plot(
        of_percentiles(most),
        logarithmic(min(values), max(values)),
        "Latency by percentile",
        "share of answers that were at least as fast",
        "ms",
        height=330,
    )
    legend = []
    for run, told in with_curves:
        colour = _colour(run, runs.index(run), runs)
        plot.line(told.curve_ms, colour)
        legend.append((colour, run.label))
    return _Distribution(legend, plot.svg())


def _over_time(pairs: Pairs) -> _Drawn | None:
    latencies = [value for run, _ in pairs for value in run.columns.latency_ms]
    if not latencies:
        return None
    y = logarithmic(min(latencies), max(latencies))
    kinds: dict[str, None] = {}
    drawn = []
    for run, told in pairs:
        held = run.columns
        ends = (begin + took for begin, took in zip(held.intended_ms, held.latency_ms, strict=True))
        x = linear(max(ends, default=0.0) / 1000)
        plot = Plot(x, y, f"Latency over time, {run.label}", "seconds since the first request", "ms", height=240)
        points: dict[str, list[tuple[float, float]]] = {}
        for i in held.right():
            kind = STARTS[held.start[i]] or "other"
            points.setdefault(kind, []).append((held.intended_ms[i] / 1000, held.latency_ms[i]))
        for kind in (*reversed(STARTS[1:]), "other"):
            if kind in points:
                plot.dots(points[kind], kind)
                kinds[kind] = None
        if told.errors:
            wrong = (i for i, outcome in enumerate(held.outcome) if outcome)
            plot.crosses(((held.intended_ms[i] / 1000, held.latency_ms[i]) for i in wrong), "wrong")
        if "p50" in told.percentiles_ms:
            plot.level(told.percentiles_ms["p50"], f"median {number(told.percentiles_ms['p50'])} ms")
        drawn.append((run.label, plot.svg()))
    legend = [(kind, text) for kind, text in _KINDS.items() if kind in kinds]
    if any(told.errors for _, told in pairs):
        legend.append(("wrong", "went wrong"))
    return _Drawn(legend, drawn)


def _starts(pairs: Pairs) -> _Starts | None:
    rows = []
    figures = []
    for run, told in pairs:
        prefix = f"{run.label}: " if len(pairs) > 1 else ""
        for start in told.starts:
            parts = list(_parts(start))
            total = sum(length for length, _ in parts)
            rows.append((f"{prefix}{start.kind}, {start.count:,} times", parts, f"{number(total)} ms"))
            medians = (start.ready_ms, start.spawn_ms, start.prepare_ms, start.handler_ms, start.latency_ms)
            figures.append([f"{prefix}{start.kind}", f"{start.count:,}", *map(shown, medians)])
    if not rows:
        return None
    heads = ["environment", "answers", "ready", "ready: spawn", "ready: prepare", "handler", "answer"]
    legend = [(f"part-{kind}", text) for kind, text in _PARTS]
    drawing = bars(rows, title="Phases of a start, and of a warm answer; medians", unit="ms, median of each phase")
    return _Starts(legend, drawing, (heads, figures))


def _parts(start: StartFigures) -> Iterator[tuple[float, str]]:
    for kind, value in (("spawn", start.spawn_ms), ("prepare", start.prepare_ms), ("handler", start.handler_ms)):
        if value is not None:
            yield value, f"part-{kind}"
    if start.kind == "warm":
        yield max(0.0, (start.latency_ms or 0.0) - (start.handler_ms or 0.0)), "part-rest"


def _concurrency(pairs: Pairs) -> _Drawn:
    drawn = []
    seen = False
    most = max(max(told.most_in_flight, told.most_environments or 0) for _, told in pairs)
    y = linear(most * 1.08, whole=True)
    for run, _ in pairs:
        steps = [(at_ms / 1000, float(count)) for at_ms, count in in_flight(run.columns)]
        moments = [(max(0.0, m.at_s), float(m.idle + m.busy + m.starting)) for m in run.moments]
        ends = [at for at, _ in (*steps[-1:], *moments[-1:])]
        plot = Plot(
            linear(max(ends, default=0.0)), y, f"Requests and environments over time, {run.label}",
            "seconds since the first request", "number", height=220,
        )  # fmt: skip
        plot.steps([(0.0, 0.0), *steps], "requests", filled=True)
        plot.steps(moments, "environments")
        seen = seen or bool(moments)
        drawn.append((run.label, plot.svg()))
    legend = [("requests", "requests in flight")]
    if seen:
        legend.append(("environments", "environments alive or being started"))
    return _Drawn(legend, drawn, seen)


def _trouble(pairs: Pairs) -> list[list[str]]:
    return [
        [run.label, kind, f"{count:,}", " ".join(run.examples.get(kind, "").split())[:_SAID_CHARACTERS]]
        for run, told in pairs
        for kind, count in told.errors_by_kind.items()
    ]


def _particulars(runs: Sequence[Run]) -> _Particulars:
    rows = []
    for run in runs:
        facts = [run.load.in_words(), run.url, f"began with {run.state}" if run.moments else ""]
        if run.begun_from is not None:
            facts.append(f"from {run.begun_from}")
        if run.late_ms:
            late = ", ".join(f"{name} {number(value)}" for name, value in run.late_ms.items())
            facts.append(f"delay of the client itself when sending (ms): {late}")
        if run.interrupted:
            facts.append("ended before all requests were sent")
        rows.append([run.label, "; ".join(filter(None, [*facts, *run.notes]))])
    loops = {run.load.loop for run in runs}
    told = []
    if "closed" in loops:
        told.append(
            "Closed loop: the next request is sent when an answer has arrived. While the server stalls, fewer requests "
            "are sent."
        )
    if "open" in loops:
        told.append(
            "Open loop: requests are sent at given times, however slow the answers are. Latency is measured from the "
            "time at which a request should have been sent. So if the server stalls, all requests that are due "
            "meanwhile have a long latency."
        )
    told.append(
        "Only right answers count for latencies. Percentiles come from an HDR histogram, which keeps three significant "
        "digits of each latency."
    )
    return _Particulars(" ".join(told), rows)
