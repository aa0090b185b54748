"""Formats runs and comparisons for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thawd.bench.comparison import Ratio
from thawd.bench.plots import number
from thawd.bench.runs import Run, counted
from thawd.bench.summary import StartFigures, Summary

COLUMNS = ("p50", "p90", "p95", "p99", "max")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table with the first column aligned to the left and the others to the right."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    for row in (heads, *rows):
        first, *others = (
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(["", first, *others]).rstrip()


def shown(value: float | None) -> str:
    """Format a figure; None becomes a dash."""
    return "-" if value is None else number(value)


def lines_of(runs: Sequence[Run], summaries: Sequence[Summary]) -> Iterator[str]:
    """Yield the lines that `thawd bench` prints about its runs. With --engine, there is a run for each engine."""
    first = runs[0]
    begun = "" if first.begun_from is None else f", from {first.begun_from}"
    yield f"{first.target}: {first.load.in_words()}{begun}"
    yield ""
    heads = ["latency, ms", *COLUMNS, "answers/s", "wrong", "took, s"]
    yield from table(heads, [_latencies(run, summary) for run, summary in zip(runs, summaries, strict=True)])
    starts = [(run, start) for run, summary in zip(runs, summaries, strict=True) for start in summary.starts]
    if starts:
        yield ""
        heads = ["medians, ms", "answers", "ready", "= spawn", "+ prepare", "handler", "answer"]
        yield from table(heads, [_start(run, start, len(runs) > 1) for run, start in starts])
        yield "  ready: from spawning an environment until it is ready; prepare: init, fork or restore; answer: latency"
        yield "  of the caller, less than ready if another environment became free or this one was already starting"
    if any(run.moments for run in runs):
        yield ""
        heads = ["at most", "requests", "environments", "their PSS, MiB", "server, MiB"]
        yield from table(heads, [_most(run, summary) for run, summary in zip(runs, summaries, strict=True)])
    yield ""
    for run, summary in zip(runs, summaries, strict=True):
        yield from _remarks(run, summary, prefix=f"{run.label}: " if len(runs) > 1 else "")


def _latencies(run: Run, summary: Summary) -> list[str]:
    percentiles = [shown(summary.percentiles_ms.get(column)) for column in COLUMNS]
    return [run.label, *percentiles, number(summary.rate_per_s), f"{summary.errors:,}", number(run.took_s)]


def _start(run: Run, start: StartFigures, several: bool) -> list[str]:
    name = f"{run.label}: {start.kind}" if several else start.kind
    figures = (start.ready_ms, start.spawn_ms, start.prepare_ms, start.handler_ms, start.latency_ms)
    return [name, f"{start.count:,}", *map(shown, figures)]


def _most(run: Run, summary: Summary) -> list[str]:
    environments = None if summary.most_environments is None else float(summary.most_environments)
    figures = (float(summary.most_in_flight), environments, summary.memory_mib, summary.server_mib)
    return [run.label, *map(shown, figures)]


def _remarks(run: Run, summary: Summary, *, prefix: str) -> Iterator[str]:
    yield f"  {prefix}began with {run.state}" if run.moments else f"  {prefix}{run.url}"
    for kind, count in summary.errors_by_kind.items():
        said = " ".join(run.examples.get(kind, "").split())[:160]
        yield f"  {prefix}wrong: {counted(count, 'time')} {kind}" + (f", first: {said}" if said else "")
    if run.late_ms:
        late = ", ".join(f"{name} {number(value)}" for name, value in run.late_ms.items())
        yield f"  {prefix}delay of the client itself when sending, ms: {late}"
    if run.interrupted:
        yield f"  {prefix}ended by Ctrl-C before all requests were sent"
    for note in run.notes:
        yield f"  {prefix}note: {note}"


def lines_of_comparison(before: Run, after: Run, lines: Sequence[Ratio], errors: tuple[int, int]) -> Iterator[str]:
    """Yield the lines that `thawd bench --compare` prints about a pair of runs.

    Args:
        before: the run of the first file.
        after: the run of the second file.
        lines: ratios of the figures of the two runs.
        errors: number of wrong answers in each run.
    """
    for name, run, wrong in (("before", before, errors[0]), ("after", after, errors[1])):
        begun = run.begun.replace("T", " ").replace("+00:00", " UTC")
        label = "" if run.label in run.target else f", {run.label}"
        requests = counted(len(run.columns), "request")
        yield f"{name.ljust(6)}  {run.target}{label}: {requests}, {wrong:,} wrong; {begun}"
    yield ""
    if not lines:
        yield "  nothing to compare: one of the runs has no right answer"
        return
    heads = ["latency, ms", "before", "after", "ratio", "95 % interval"]
    rows = []
    for line in lines:
        rows.append([line.name, number(line.before), number(line.after), f"{line.ratio:.3f}", line.bounds()])
    yield from table(heads, rows)
