"""Reads measured invocations from a file that ``thawd bench --json`` wrote."""

from __future__ import annotations

from pathlib import Path

import msgspec

from thawd.bench.runs import FORMAT
from thawd.cost.prices import CostError
from thawd.cost.records import Record

_STARTS = ("", "cold", "fork", "thaw", "warm")


class _Columns(msgspec.Struct):
    """The columns from which billed durations are computed; `thawd.bench.runs.Columns` describes all columns."""

    outcome: list[int]
    start: list[int]
    ready_ms: list[float | None]
    prepare_ms: list[float | None]
    handler_ms: list[float | None]


class _Run(msgspec.Struct):
    label: str
    columns: _Columns


class _Document(msgspec.Struct):
    format: str
    runs: list[_Run]


def read_bench(path: Path, *, memory_mb: int) -> list[Record]:
    """Read the right answers of all runs in a file, and return them as invocations. Wrong answers are left out.

    Lambda has no forks, so the first invocation in a forked environment counts as a warm one.

    Args:
        path: the file.
        memory_mb: memory size of the function, MB; the file does not contain it.

    Raises:
        CostError: the file cannot be read, or contains no handler times.
    """
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_Document)
    except OSError as error:
        raise CostError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CostError(f"{path} was not written by `thawd bench --json`: {error}") from error
    if document.format != FORMAT:
        raise CostError(
            f"{path} has the format {document.format!r}, but this version of thawd reads only {FORMAT!r}; measure again"
        )
    records = [
        record
        for run in document.runs
        for index in range(len(run.columns.outcome))
        if (record := _record(run.columns, index, memory_mb)) is not None
    ]
    if not records:
        raise CostError(f"{path} contains no handler times; measure a function of thawd, not another server")
    return records


def _record(columns: _Columns, index: int, memory_mb: int) -> Record | None:
    duration_ms = columns.handler_ms[index]
    if columns.outcome[index] != 0 or duration_ms is None:
        return None
    start = _STARTS[columns.start[index]]
    prepare_ms = columns.prepare_ms[index] or columns.ready_ms[index]
    return Record(
        memory_mb=memory_mb,
        duration_ms=duration_ms,
        init_ms=prepare_ms if start == "cold" else None,
        restore_ms=prepare_ms if start == "thaw" else None,
        billed_restore_ms=(prepare_ms or 0.0) if start == "thaw" else 0.0,
    )
