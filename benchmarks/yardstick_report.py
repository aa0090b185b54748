"""Makes the report of `make yardstick`, as Markdown and as one HTML page: tables with reference values, promises with
results, and plots."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from thawd.bench import report
from thawd.bench.pages import document
from thawd.bench.plots import number
from thawd.bench.runs import Run
from thawd.bench.samples import STARTS
from thawd.bench.summary import Summary, summarise
from thawd.bench.text import COLUMNS, shown

_BUSY = 0.5
_TEMPLATES = Path(__file__).parent / "templates"
_READING = (
    "p90: 90 of 100 answers took at most this many milliseconds. Starts are medians: the time until an environment is "
    "ready, its parts (spawning the process, then init or restore), and the time of its first run. PSS: memory "
    "of all environments; memory that processes share is counted once. Compare the rows of a table with each other; "
    "reference rows were measured on other machines. Plots of each workload follow below."
)
Table = list[list[str]]


@dataclass(frozen=True, slots=True)
class Judgement:
    """A promise about a workload, and whether the measurements keep it.

    Attributes:
        text: the measured value and its bound.
        holds: whether the value is within its bound.
    """

    text: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Told:
    """A workload that measured itself.

    Attributes:
        title: title of the workload.
        text: the workload's output.
        holds: whether the workload succeeded.
    """

    title: str
    text: str
    holds: bool


@dataclass(frozen=True)
class Workload:
    """One workload and its measurements.

    Attributes:
        name: name of its example.
        asked: the contents of its `yardstick.toml`.
        runs: one run for each kind of start (cold, fork, thaw); a run's label is that kind.
    """

    name: str
    asked: Mapping[str, Any]
    runs: tuple[Run, ...]

    @cached_property
    def summaries(self) -> list[Summary]:
        """Return the figures of each run."""
        return [summarise(run) for run in self.runs]

    @cached_property
    def judgements(self) -> list[Judgement]:
        """Compare the measurements with the promises in the workload's `yardstick.toml`."""
        return [*self._wrong(), *self._slowest(), *self._first()]

    def _wrong(self) -> Iterator[Judgement]:
        for run, told in zip(self.runs, self.summaries, strict=True):
            if told.errors:
                yield Judgement(f"{run.label}: {told.errors:,} of {told.requests:,} answers were wrong", False)

    def _slowest(self) -> Iterator[Judgement]:
        if (bound := self.asked.get("slowest_over_median")) is None:
            return
        for run, told in zip(self.runs, self.summaries, strict=True):
            if run.engine == "thaw" and told.percentiles_ms:
                ratio = told.percentiles_ms["max"] / told.percentiles_ms["p50"]
                yield Judgement(
                    f"thaw: the slowest took {ratio:.2f} times the median; at most {bound:g}", ratio <= bound
                )

    def _first(self) -> Iterator[Judgement]:
        """Compare the first answer of a thaw with warm answers, and a cold start's overhead with the thaw's."""
        firsts = {run.engine: first_and_warm_ms(run) for run in self.runs}
        thaw, cold = firsts.get("thaw"), firsts.get("cold")
        if thaw is not None and (bound := self.asked.get("first_over_warm")) is not None:
            ratio = thaw[0] / thaw[1]
            words = f"thaw: the first answer took {ratio:.2f} times a warm one ({thaw[0]:,.0f} ms, {thaw[1]:,.0f} ms)"
            yield Judgement(f"{words}; at most {bound:g}", ratio <= bound)
        if thaw is not None and cold is not None and (bound := self.asked.get("overhead_of_cold")) is not None:
            over = [max(0.1, first - warm) for first, warm in (cold, thaw)]
            words = f"a cold start's overhead is {over[0] / over[1]:.1f} times a thaw's"
            ends = f"({over[0]:,.0f} ms, {over[1]:,.0f} ms); at least {bound:g}"
            yield Judgement(f"{words} {ends}", over[0] >= bound * over[1])


def first_and_warm_ms(run: Run) -> tuple[float, float] | None:
    """Return the slowest answer of a newly started environment and the fastest warm answer; None if either is missing.

    Other load on the machine changes the time of a slow answer, such as an image caption, by more than a thaw adds. So
    the fastest answer represents the warm ones.
    """
    held = run.columns
    started = [held.latency_ms[i] for i in held.right() if STARTS[held.start[i]] in ("cold", "fork", "thaw")]
    warm = [held.latency_ms[i] for i in held.right() if STARTS[held.start[i]] == "warm"]
    return (max(started), min(warm)) if started and warm else None


def latency(one: Workload) -> Table:
    """Return a table of latencies: a row for each kind of start, then the reference rows of `yardstick.toml`."""
    rows = [["ms", *COLUMNS, "wrong", "in all"]]
    for run, told in zip(one.runs, one.summaries, strict=True):
        percentiles = [shown(told.percentiles_ms.get(column)) for column in COLUMNS]
        rows.append([run.label, *percentiles, f"{told.errors:,}", f"{run.took_s:.1f} s"])
    for name, values in one.asked.get("reference", {}).get("rows", {}).items():
        rows.append([name, *map(number, values), "", ""])
    return rows


def starts(one: Workload) -> Table:
    """Return a table of the starts: how many there were, the times of their phases, the environments' memory."""
    rows = [["started", "environments", "ready, p50", "of that spawn", "init or restore", "first run", "PSS at most"]]
    for run, told in zip(one.runs, one.summaries, strict=True):
        for start in told.starts:
            if start.kind != "warm":
                times = (start.ready_ms, start.spawn_ms, start.prepare_ms, start.handler_ms)
                cells = ["-" if value is None else f"{number(value)} ms" for value in times]
                memory = "-" if told.memory_mib is None else f"{told.memory_mib:,.0f} MiB"
                rows.append([f"{run.label}: {start.kind}", f"{start.count:,}", *cells, memory])
    return rows


def notes(one: Workload) -> list[str]:
    """Return what a reader must know about the runs, for example that environments were started in another way than
    the run intended."""
    told = [f"{run.label}: {note}" for run in one.runs for note in run.notes]
    for run, summary in zip(one.runs, one.summaries, strict=True):
        for start in summary.starts:
            if start.kind not in {"warm", run.engine} and not run.notes:
                told.append(f"{run.label}: {start.count} answers came from environments that were started {start.kind}")
    return told


def _circumstances(measured: Sequence[Workload], took_s: float, load_before: float) -> str:
    machine, begun = measured[0].runs[0].machine, measured[0].runs[0].begun
    words = (
        f"Measured {begun[:10]} by `make yardstick` in {took_s / 60:.1f} minutes on {machine.cores} cores of "
        f"{machine.processor}, {machine.memory_mib / 1024:.0f} GiB, {machine.kernel}. Cold: each environment runs init "
        "itself; forked: from a process that has run init; thawed: from the snapshot. Each run begins with no "
        "environment alive."
    )
    if load_before > _BUSY * (os.cpu_count() or 1):
        words += f" The machine was busy with other work: its load was {load_before:.1f} before the first request."
    return words


def markdown(
    measured: Sequence[Workload],
    left_out: Mapping[str, str],
    *,
    took_s: float,
    load_before: float,
    told: Sequence[Told] = (),
) -> str:
    """Return the report for a README."""
    lines = [_circumstances(measured, took_s, load_before), ""]
    for one in measured:
        load = one.runs[0].load.in_words()
        lines += [f"### {one.asked['title']}", "", f"{load[0].upper()}{load[1:]}.", ""]
        for rows in (latency(one), starts(one)):
            lines += [*_markdown_table(rows), ""]
        lines += [f"- {'holds' if judged.holds else '**does not hold**'}: {judged.text}" for judged in one.judgements]
        lines += [f"- {note}" for note in notes(one)]
        if source := one.asked.get("reference", {}).get("source"):
            lines.append(f"- reference: {source}")
        lines.append("")
    for other in told:
        failed = "" if other.holds else "**failed**\n\n"
        lines += [f"### {other.title}", "", f"{failed}```\n{other.text.strip()}\n```", ""]
    lines += [f"Left out: {name}: {reason}" for name, reason in left_out.items()]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_table(rows: Table) -> Iterator[str]:
    for index, row in enumerate(rows):
        yield f"| {' | '.join(row)} |"
        if not index:
            yield f"|---{'|---:' * (len(row) - 1)}|"


def page(
    measured: Sequence[Workload],
    left_out: Mapping[str, str],
    *,
    took_s: float,
    load_before: float,
    told: Sequence[Told] = (),
) -> str:
    """Return the report as one HTML file: an overview, then the plots of each workload."""
    return document(
        "yardstick.html",
        _TEMPLATES,
        circumstances=_plain(_circumstances(measured, took_s, load_before)),
        reading=_plain(_READING),
        workloads=[_shown(one) for one in measured],
        told=told,
        left_out=left_out,
    )


def _shown(one: Workload) -> dict[str, object]:
    return {
        "name": one.name,
        "title": _plain(one.asked["title"]),
        "tables": [[[_plain(cell) for cell in row] for row in rows] for rows in (latency(one), starts(one))],
        "judgements": one.judgements,
        "notes": notes(one),
        "source": one.asked.get("reference", {}).get("source", ""),
        "plots": report.content(one.runs, one.summaries),
    }


def _plain(text: str) -> str:
    """Remove Markdown's code marks, which have no meaning on an HTML page."""
    return text.replace("`", "")
