"""Runs as one HTML page that needs nothing else: styles and drawings are in it, no script, light and dark.

It is for people who have not read the documentation: each plot says what it shows and how to read it.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from thawd.bench.comparison import Ratio
from thawd.bench.plots import Plot, bars, linear, logarithmic, number, of_percentiles
from thawd.bench.runs import Run
from thawd.bench.samples import STARTS
from thawd.bench.style import STYLE
from thawd.bench.summary import StartFigures, Summary, in_flight
from thawd.bench.text import COLUMNS, shown

_KINDS = {
    "cold": "cold: a new process that ran the function's init",
    "fork": "fork: a copy of a process that had run it",
    "thaw": "thaw: mapped back from the snapshot",
    "warm": "warm: an environment that had served before, or was provisioned",
    "other": "not told by the server",
}
_PARTS = (
    ("spawn", "spawn: until the process is there"),
    ("prepare", "prepare: init, fork or restore inside it"),
    ("handler", "handler: the run of the function"),
    ("rest", "rest: waiting for an environment, and the way there and back"),
)
_PALETTE = ("run1", "run2", "run3", "run4", "run5", "run6")


class Against(msgspec.Struct, frozen=True):
    """Two of the runs of a page, side by side.

    Attributes:
        before: label of the first.
        after: label of the second.
        ratios: of the second to the first.
        differences: what else differs, in words.
    """

    before: str
    after: str
    ratios: Sequence[Ratio]
    differences: Sequence[str]


def page(runs: Sequence[Run], summaries: Sequence[Summary], against: Sequence[Against] = ()) -> str:
    """The page for `runs`, which were measured together or are to be compared."""
    return document(f"{runs[0].target}: {runs[0].load.in_words()}", content(runs, summaries, against))


def content(runs: Sequence[Run], summaries: Sequence[Summary], against: Sequence[Against] = ()) -> str:
    """What is on the page of `runs`; reports of several workloads have one after the other."""
    pairs = list(zip(runs, summaries, strict=True))
    sections = [
        _head(runs),
        _section("In short", "".join(f"<p>{_in_words(run, told)}</p>" for run, told in pairs)),
        _comparison(against),
        _latency_table(pairs),
        _distribution(pairs),
        _over_time(pairs),
        _starts(pairs),
        _concurrency(pairs),
        _trouble(pairs),
        _particulars(runs),
    ]
    return "".join(sections)


def document(title: str, content: str) -> str:
    """An HTML page that needs nothing else; `content` is HTML, `title` text."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><main>{content}</main></body></html>\n"
    )


def _section(title: str, content: str, told: str = "") -> str:
    if not content:
        return ""
    explained = f'<p class="told">{told}</p>' if told else ""
    return f"<section><h2>{title}</h2>{explained}{content}</section>"


def _head(runs: Sequence[Run]) -> str:
    first = runs[0]
    loads = dict.fromkeys(_conditions(run) for run in runs)
    machine = first.machine
    return (
        f"<header><h1>{html.escape(first.target)} under load</h1>"
        f'<p class="load">{html.escape("; ".join(loads))}</p>'
        f'<p class="told">{html.escape(first.begun.replace("T", " ").replace("+00:00", " UTC"))}, '
        f"thawd {html.escape(machine.thawd)} on {machine.cores} cores of {html.escape(machine.processor)}, "
        f"{number(machine.memory_mib / 1024)} GiB, {html.escape(machine.kernel)}</p></header>"
    )


def _conditions(run: Run) -> str:
    """How requests came, and to what."""
    alive = {"zero": ", no environment alive at the beginning", "one": ", one environment alive", "warm": ", warm"}
    ready = ", environments ready before" if run.engine == "provisioned" and run.begun_from is None else ""
    return run.load.in_words() + alive.get(run.begun_from or "", ready)


def _in_words(run: Run, told: Summary) -> str:
    name = f"<b>{html.escape(run.label)}</b>: "
    if not told.percentiles_ms:
        return f"{name}none of {told.requests:,} requests was answered as expected."
    at = told.percentiles_ms
    text = (
        f"{name}half of the answers were there within <b>{_time(at['p50'])}</b>, 99 of 100 within "
        f"<b>{_time(at['p99'])}</b>; the slowest took <b>{_time(at['max'])}</b>, "
        f"{number(at['max'] / at['p50'])} times the median. {number(told.rate_per_s)} answers a second. "
    )
    if told.errors:
        return text + f'<span class="bad">{told.errors:,} of {told.requests:,} requests went wrong.</span>'
    if told.requests == 1:
        return text + "The one request was answered as expected."
    return text + f"All {told.requests:,} requests were answered as expected."


def _comparison(against: Sequence[Against]) -> str:
    tables = []
    for pair in against:
        rows = [
            [line.name, number(line.before), number(line.after), f"{line.ratio:.3f}", line.bounds()]
            for line in pair.ratios
        ]
        heads = ["ms", pair.before, pair.after, "ratio", "by chance alone"]
        tables.append(_table(heads, rows) if rows else "<p>There is nothing to compare: one has no right answer.</p>")
        tables += [f'<p class="bad">{html.escape(note)}</p>' for note in pair.differences]
    return _section(
        "One against the other",
        "".join(tables),
        "A ratio above 1 means that the second is slower (for requests a second: faster). By chance alone, 95 of 100 "
        "such ratios lie between the bounds: where 1 is between them, the difference may be chance.",
    )


def _time(ms: float) -> str:
    return f"{number(ms / 1000)}&nbsp;s" if ms >= 10_000 else f"{number(ms)}&nbsp;ms"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are text."""
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _latency_table(pairs: Sequence[tuple[Run, Summary]]) -> str:
    heads = ["run", *COLUMNS, "answers a second", "wrong", "took", "environments", "their memory", "server"]
    rows = []
    for run, told in pairs:
        percentiles = [shown(told.percentiles_ms.get(column)) for column in COLUMNS]
        environments = "-" if told.most_environments is None else f"{told.most_environments:,}"
        rows.append(
            [run.label, *percentiles, number(told.rate_per_s), f"{told.errors:,}", f"{number(run.took_s)} s",
             environments, _mib(told.memory_mib), _mib(told.server_mib)]
        )  # fmt: skip
    return _section(
        "Latency in milliseconds",
        _table(heads, rows),
        f"{_example(pairs)}Environments and memory are the most there were at "
        "once; memory is PSS, in which what processes share is counted once.",
    )


def _example(pairs: Sequence[tuple[Run, Summary]]) -> str:
    """How to read the table, by the first figure in it."""
    p90_ms = next((told.percentiles_ms["p90"] for _, told in pairs if told.percentiles_ms), None)
    if p90_ms is None:
        return ""
    return f"p90 = {number(p90_ms)} means: 90 of 100 answers took at most {number(p90_ms)} ms. "


def _mib(value: float | None) -> str:
    return "-" if value is None else f"{number(value)} MiB"


def _colour(run: Run, index: int, runs: Sequence[Run]) -> str:
    """By engine where that tells runs apart, else by place."""
    engines = [other.engine for other in runs]
    if len(set(engines)) == len(runs) and run.engine in ("cold", "fork", "thaw", "provisioned"):
        return run.engine
    return _PALETTE[index % len(_PALETTE)]


def _legend(entries: Iterable[tuple[str, str]]) -> str:
    keys = "".join(f'<span><i class="k-{kind}"></i>{html.escape(text)}</span>' for kind, text in entries)
    return f'<p class="legend">{keys}</p>'


def _distribution(pairs: Sequence[tuple[Run, Summary]]) -> str:
    with_curves = [(run, told) for run, told in pairs if told.curve_ms]
    if not with_curves:
        return ""
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
    return _section(
        "How latency is distributed",
        _legend(legend) + plot.svg(),
        "From the fastest answer on the left to the slowest on the right; the right part is stretched, as that is "
        "where slow answers are. A line that stays flat is a service on which one can rely; a step up is a group of "
        "requests that had to wait for something, such as a start.",
    )


def _over_time(pairs: Sequence[tuple[Run, Summary]]) -> str:
    latencies = [value for run, _ in pairs for value in run.columns.latency_ms]
    if not latencies:
        return ""
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
        drawn.append(_named(run, pairs) + plot.svg())
    legend = [(kind, text) for kind, text in _KINDS.items() if kind in kinds]
    if any(told.errors for _, told in pairs):
        legend.append(("wrong", "went wrong"))
    meant = "was meant to be sent" if pairs[0][0].load.loop == "open" else "was sent"
    return _section(
        "Latency over time",
        _legend(legend) + "".join(drawn),
        f"A dot is a request: when it {meant}, and how long it took until its answer was complete. Its colour is how "
        "the environment came to be that answered it.",
    )


def _named(run: Run, pairs: Sequence[object]) -> str:
    return f"<h3>{html.escape(run.label)}</h3>" if len(pairs) > 1 else ""


def _starts(pairs: Sequence[tuple[Run, Summary]]) -> str:
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
        return ""
    heads = ["environment", "answers", "ready", "of it spawn", "of it prepare", "handler", "answer"]
    legend = [(f"part-{kind}", text) for kind, text in _PARTS]
    return _section(
        "What a start is made of",
        _legend(legend)
        + bars(rows, title="Phases of a start, and of a warm answer; medians", unit="ms, median of each phase")
        + "<details><summary>The same in figures (medians, ms)</summary>"
        + _table(heads, figures)
        + "</details>",
        "An environment that is started is spawned, prepared, and then runs the function for the first time; a warm "
        "one only runs it. A request waits less than a whole start where an environment becomes free, or was being "
        "started before it came.",
    )


def _parts(start: StartFigures) -> Iterator[tuple[float, str]]:
    for kind, value in (("spawn", start.spawn_ms), ("prepare", start.prepare_ms), ("handler", start.handler_ms)):
        if value is not None:
            yield value, f"part-{kind}"
    if start.kind == "warm":
        yield max(0.0, (start.latency_ms or 0.0) - (start.handler_ms or 0.0)), "part-rest"


def _concurrency(pairs: Sequence[tuple[Run, Summary]]) -> str:
    drawn = []
    seen = False
    most = max(max(told.most_in_flight, told.most_environments or 0) for _, told in pairs)
    y = linear(most * 1.08, whole=True)
    for run, _ in pairs:
        steps = [(at_ms / 1000, float(count)) for at_ms, count in in_flight(run.columns)]
        moments = [(max(0.0, m.at_s), float(m.idle + m.busy + m.starting)) for m in run.moments]
        ends = [at for at, _ in (*steps[-1:], *moments[-1:])]
        plot = Plot(
            linear(max(ends, default=0.0)), y, f"Requests and environments at once, {run.label}",
            "seconds since the first request", "at once", height=220,
        )  # fmt: skip
        plot.steps([(0.0, 0.0), *steps], "requests", filled=True)
        plot.steps(moments, "environments")
        seen = seen or bool(moments)
        drawn.append(_named(run, pairs) + plot.svg())
    legend = [("requests", "requests under way")]
    if seen:
        legend.append(("environments", "environments alive or being started"))
    return _section(
        "How much at once",
        _legend(legend) + "".join(drawn),
        "How many requests were under way, and how many execution environments there were to serve them: each serves "
        "one request at a time." if seen else "How many requests were under way.",
    )  # fmt: skip


def _trouble(pairs: Sequence[tuple[Run, Summary]]) -> str:
    rows = [
        [run.label, kind, f"{count:,}", " ".join(run.examples.get(kind, "").split())[:240]]
        for run, told in pairs
        for kind, count in told.errors_by_kind.items()
    ]
    return _section(
        "What went wrong", _table(["run", "kind", "times", "what the first one said"], rows) if rows else ""
    )


def _particulars(runs: Sequence[Run]) -> str:
    rows = []
    for run in runs:
        facts = [run.load.in_words(), run.url, f"began with {run.state}" if run.moments else ""]
        if run.begun_from is not None:
            facts.append(f"from {run.begun_from}")
        if run.late_ms:
            late = ", ".join(f"{name} {number(value)}" for name, value in run.late_ms.items())
            facts.append(f"the client itself sent late by (ms): {late}")
        if run.interrupted:
            facts.append("ended before all was sent")
        rows.append([run.label, "; ".join(filter(None, [*facts, *run.notes]))])
    loops = {run.load.loop for run in runs}
    told = []
    if "closed" in loops:
        told.append(
            "Closed loop: the next request is sent when an answer has come. While the server stalls, less is asked of "
            "it."
        )
    if "open" in loops:
        told.append(
            "Open loop: requests are sent at their times whatever comes back, and latency counts from the time at "
            "which one was meant to be sent, so a stall is felt by all who would have come meanwhile."
        )
    told.append("Latencies are those of answers that were as expected. Percentiles: HDR histogram, three digits.")
    return _section("Particulars", _table(["run", "conditions"], rows), " ".join(told))
