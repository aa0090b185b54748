"""Runs and comparisons for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thawd.bench.comparison import Ratio
from thawd.bench.plots import number
from thawd.bench.runs import Run
from thawd.bench.summary import StartFigures, Summary

COLUMNS = ("p50", "p90", "p95", "p99", "max")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines with the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    for row in (heads, *rows):
        first, *others = (
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(["", first, *others]).rstrip()


def shown(value: float | None) -> str:
    """A figure, or a dash."""
    return "-" if value is None else number(value)


def lines_of(runs: Sequence[Run], summaries: Sequence[Summary]) -> Iterator[str]:
    """What is printed of runs made in one command."""
    first = runs[0]
    begun = "" if first.begun_from is None else f", from {first.begun_from}"
    yield f"{first.target}: {first.load.in_words()}{begun}"
    yield ""
    heads = ["latency, ms", *COLUMNS, "answers/s", "wrong", "took, s"]
    yield from table(heads, [_latencies(run, told) for run, told in zip(runs, summaries, strict=True)])
    starts = [(run, start) for run, told in zip(runs, summaries, strict=True) for start in told.starts]
    if starts:
        yield ""
        heads = ["medians, ms", "answers", "ready", "= spawn", "+ prepare", "handler", "answer"]
        yield from table(heads, [_start(run, start, len(runs) > 1) for run, start in starts])
        yield "  ready: from spawning an environment to its being ready; prepare: init, fork or restore; answer: as the"
        yield "  caller sees it, less than ready where another environment became free or this one was on its way"
    if any(run.moments for run in runs):
        yield ""
        heads = ["at most", "requests", "environments", "their PSS, MiB", "server, MiB"]
        yield from table(heads, [_most(run, told) for run, told in zip(runs, summaries, strict=True)])
    yield ""
    for run, told in zip(runs, summaries, strict=True):
        yield from _remarks(run, told, prefix=f"{run.label}: " if len(runs) > 1 else "")


def _latencies(run: Run, told: Summary) -> list[str]:
    percentiles = [shown(told.percentiles_ms.get(column)) for column in COLUMNS]
    return [run.label, *percentiles, number(told.rate_per_s), f"{told.errors:,}", number(run.took_s)]


def _start(run: Run, start: StartFigures, several: bool) -> list[str]:
    name = f"{run.label}: {start.kind}" if several else start.kind
    figures = (start.ready_ms, start.spawn_ms, start.prepare_ms, start.handler_ms, start.latency_ms)
    return [name, f"{start.count:,}", *map(shown, figures)]


def _most(run: Run, told: Summary) -> list[str]:
    environments = None if told.most_environments is None else float(told.most_environments)
    figures = (float(told.most_in_flight), environments, told.memory_mib, told.server_mib)
    return [run.label, *map(shown, figures)]


def _remarks(run: Run, told: Summary, *, prefix: str) -> Iterator[str]:
    yield f"  {prefix}began with {run.state}" if run.moments else f"  {prefix}{run.url}"
    for kind, count in told.errors_by_kind.items():
        said = " ".join(run.examples.get(kind, "").split())[:160]
        yield f"  {prefix}wrong: {count:,} times {kind}" + (f", first: {said}" if said else "")
    if run.late_ms:
        late = ", ".join(f"{name} {number(value)}" for name, value in run.late_ms.items())
        yield f"  {prefix}this client itself was late by, ms: {late}"
    if run.interrupted:
        yield f"  {prefix}ended by Ctrl-C before all was sent"
    for note in run.notes:
        yield f"  {prefix}note: {note}"


def lines_of_comparison(before: Run, after: Run, lines: Sequence[Ratio], errors: tuple[int, int]) -> Iterator[str]:
    """What is printed of two runs side by side."""
    for name, run, wrong in (("before", before, errors[0]), ("after", after, errors[1])):
        begun = run.begun.replace("T", " ").replace("+00:00", " UTC")
        label = "" if run.label in run.target else f", {run.label}"
        yield f"{name.ljust(6)}  {run.target}{label}: {len(run.columns):,} requests, {wrong:,} wrong; {begun}"
    yield ""
    if not lines:
        yield "  nothing to compare: one of them has no right answer"
        return
    heads = ["latency, ms", "before", "after", "ratio", "95 of 100 by chance"]
    rows = []
    for line in lines:
        rows.append([line.name, number(line.before), number(line.after), f"{line.ratio:.3f}", line.bounds()])
    yield from table(heads, rows)
