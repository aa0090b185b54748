"""Compares measured values with their bounds, prints them, and writes them to a file."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

AT_MOST = "at most"
AT_LEAST = "at least"
EXACTLY = "exactly"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value.

    Attributes:
        name: a short name of what was measured.
        value: the measured number.
        unit: unit of the value, the bound and the target; ``x`` for a ratio.
        relation: `AT_MOST`, `AT_LEAST` or `EXACTLY`; empty if the value is only shown and has no bound.
        bound: the number with which the value is compared; None if there is no bound.
        note: the raw numbers from which the value is computed.
        target: the number that a later version shall reach; None if there is no target. The report shows whether the
            value reaches it. A value that does not reach it is no failure.
    """

    name: str
    value: float
    unit: str
    relation: str = ""
    bound: float | None = None
    note: str = ""
    target: float | None = None

    @property
    def holds(self) -> bool:
        """Return whether the value is within its bound."""
        return self._within(self.bound)

    @property
    def reached(self) -> bool:
        """Return whether the value is within its target."""
        return self._within(self.target)

    def _within(self, limit: float | None) -> bool:
        if limit is None:
            return True
        if self.relation == AT_MOST:
            return self.value <= limit
        if self.relation == AT_LEAST:
            return self.value >= limit
        if self.relation == EXACTLY:
            return self.value == limit
        return True


class BenchmarkError(Exception):
    """A measurement was not possible, or the measured program did not do its work."""


class Skipped(Exception):
    """Something that a measurement needs is not installed. The message says what it is and how to get it."""


def show(title: str, figures: Sequence[Figure]) -> str:
    """Return the figures of one benchmark as aligned lines."""
    lines = [title]
    for figure in figures:
        judged = verdict = aim = ""
        if figure.bound is not None:
            judged = f"{figure.relation} {_number(figure.bound)} {figure.unit}"
            verdict = "holds" if figure.holds else "FAILS"
        if figure.target is not None:
            state = "reached" if figure.reached else "not yet"
            aim = f"target {figure.relation} {_number(figure.target)} {figure.unit}: {state}. "
        value = f"{_number(figure.value)} {figure.unit}"
        lines.append(f"  {figure.name:<46} {value:>12}  {judged:<18} {verdict:<6} {aim}{figure.note}".rstrip())
    return "\n".join(lines)


def _number(value: float) -> str:
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def write(path: Path, results: dict[str, Sequence[Figure]]) -> None:
    """Write all figures as JSON, with facts that identify the machine."""
    document = {
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "arch": platform.machine()},
        "python": platform.python_version(),
        "benchmarks": {
            name: [{**asdict(figure), "holds": figure.holds, "reached": figure.reached} for figure in figures]
            for name, figures in results.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
