"""Measured invocations, from a file of ``thawd bench --json``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from thawd.bench.runs import FORMAT
from thawd.cost.prices import CostError
from thawd.cost.records import Record

_STARTS = ("", "cold", "fork", "thaw", "warm")


class _Columns(msgspec.Struct):
    """Those of the file's columns that tell what would be billed; see `thawd bench` for the others."""

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
    """The right answers of all runs of a file, as invocations.

    An environment that was forked waited for neither init nor restore as Lambda knows them, and its first invocation
    counts as warm.

    Args:
        path: the file.
        memory_mb: of the function; the file does not tell.

    Raises:
        CostError: it cannot be read, or the times in the handler are not in it.
    """
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_Document)
    except OSError as error:
        raise CostError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CostError(f"{path} was not written by `thawd bench --json`: {error}") from error
    if document.format != FORMAT:
        raise CostError(f"{path} has the format {document.format!r}; this thawd reads {FORMAT}")
    records = [
        record
        for run in document.runs
        for index in range(len(run.columns.outcome))
        if (record := _record(run.columns, index, memory_mb)) is not None
    ]
    if not records:
        raise CostError(f"{path} does not tell the time in the handler; bench a function of thawd, not another address")
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
