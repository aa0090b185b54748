"""Reads event sources and schedules: queues, ``[schedules.NAME]``, and schedules of provisioned concurrency."""

from __future__ import annotations

import json
import zoneinfo
from collections.abc import Iterator, Mapping
from typing import Any

from thawd.config.findings import Findings, KeyPath, one_of
from thawd.config.kinds import spell
from thawd.config.options import sources as options
from thawd.config.sections.functions import read_event
from thawd.config.sections.reader import Reader
from thawd.config.settings import Settings
from thawd.grammar import event_patterns, queue_names, schedule_expressions
from thawd.invocation import MAX_ASYNC_PAYLOAD_BYTES
from thawd.resources import ProvisionedSchedule, Schedule, SqsSource

MAX_FILTERS = 5
_FIFO_BATCH = 10


def read_sources(document: Mapping[str, object], reader: Reader) -> dict[str, tuple[SqsSource, ...]]:
    """Read the ``[[functions.NAME.sources]]`` tables, by function name."""
    functions = document.get("functions", {})
    sources = {}
    for name, function in functions.items() if isinstance(functions, dict) else ():
        listed = function.get("sources") if isinstance(function, dict) else None
        if isinstance(listed, list):
            path = ("functions", name, "sources")
            read = [_source(table, reader, path=(*path, index)) for index, table in enumerate(listed)]
            sources[name] = tuple(read)
            arns = [queue.arn for source in read if (queue := queue_names.parse(source.sqs)) is not None]
            for index, arn in enumerate(arns):
                if arn in arns[:index]:
                    reader.findings.add((*path, index, "sqs"), found="the same queue again", allowed="each queue once")
    return sources


def _source(table: object, reader: Reader, *, path: KeyPath) -> SqsSource:
    values: dict[str, Any] = reader.table(table, path=path, known=options.SOURCE)
    if "filters" in values:
        values["filters"] = tuple(_patterns(values["filters"], reader, path=(*path, "filters")))
    source = SqsSource(**values)
    queue = queue_names.parse(source.sqs)
    if source.batch_size > _FIFO_BATCH and queue is not None and queue.is_fifo:
        allowed = f"at most {_FIFO_BATCH} for a FIFO queue"
        reader.findings.add((*path, "batch_size"), found=str(source.batch_size), allowed=allowed)
    elif source.batch_size > _FIFO_BATCH and not source.window_s:
        allowed = f"at most {_FIFO_BATCH}, or a window_s of at least 1"
        reader.findings.add((*path, "batch_size"), found=str(source.batch_size), allowed=allowed)
    if source.window_s and queue is not None and queue.is_fifo:
        reader.findings.add((*path, "window_s"), found=str(source.window_s), allowed="0 for a FIFO queue")
    return source


def _patterns(listed: list[object], reader: Reader, *, path: KeyPath) -> Iterator[str]:
    if len(listed) > MAX_FILTERS:
        reader.findings.add(path, found=f"{len(listed)} patterns", allowed=f"at most {MAX_FILTERS}")
    for index, pattern in enumerate(listed):
        try:
            text = pattern if isinstance(pattern, str) else json.dumps(pattern, allow_nan=False)
            event_patterns.Pattern(text)
        except (TypeError, ValueError) as error:
            allowed = 'an event pattern such as { body = { kind = ["order"] } }'
            reader.findings.add((*path, index), found=f"a text that is not an event pattern: {error}", allowed=allowed)
        else:
            yield text


def read_schedules(document: Mapping[str, object], reader: Reader) -> dict[str, Schedule]:
    """Read the ``[schedules.*]`` tables."""
    schedules = {}
    for name, table in reader.named(document, "schedules", names=options.SCHEDULE_NAME):
        path = ("schedules", name)
        values = reader.table(table, path=path, known=options.SCHEDULE)
        if "input" in values:
            values["input"] = read_event(values["input"], reader, path=(*path, "input"))
            size = len(values["input"] or b"")
            if size > MAX_ASYNC_PAYLOAD_BYTES:
                allowed = f"JSON of at most {MAX_ASYNC_PAYLOAD_BYTES} bytes"
                reader.findings.add((*path, "input"), found=f"{size} bytes", allowed=allowed)
        schedules[name] = Schedule(name=name, **values)
    return schedules


def check_schedules(settings: Settings, findings: Findings, *, document: Mapping[str, object]) -> None:
    """Report schedules that name a function which is not in the file, or whose times are not a schedule expression."""
    functions = document.get("functions")
    names = list(functions) if isinstance(functions, dict) else []
    for name, schedule in settings.schedules.items():
        path = ("schedules", name)
        if schedule.function and schedule.function not in names:
            allowed = one_of(schedule.function, names, what="functions of this file")
            findings.add((*path, "function"), found=f'"{schedule.function}"', allowed=allowed)
        if schedule.schedule:
            try:
                schedule_expressions.parse(schedule.schedule, zone=zoneinfo.ZoneInfo(schedule.timezone))
            except schedule_expressions.ScheduleError as error:
                found, allowed = spell(schedule.schedule), f"a schedule expression: {error}"
                findings.add((*path, "schedule"), found=found, allowed=allowed)


def read_provisioned_schedules(
    document: Mapping[str, object], reader: Reader
) -> dict[str, tuple[ProvisionedSchedule, ...]]:
    """Read the ``[[functions.NAME.provisioned_schedule]]`` tables, by function name."""
    functions = document.get("functions", {})
    read = {}
    for name, function in functions.items() if isinstance(functions, dict) else ():
        listed = function.get("provisioned_schedule") if isinstance(function, dict) else None
        if isinstance(listed, list):
            path = ("functions", name, "provisioned_schedule")
            entries = [_provisioned(table, reader, path=(*path, index)) for index, table in enumerate(listed)]
            read[name] = tuple(entry for entry in entries if entry is not None)
    return read


def _provisioned(table: object, reader: Reader, *, path: KeyPath) -> ProvisionedSchedule | None:
    values: dict[str, Any] = reader.table(table, path=path, known=options.PROVISIONED_SCHEDULE)
    if not (values["schedule"] and isinstance(values["count"], int)):
        return None  # the mistake has been reported
    entry = ProvisionedSchedule(**values)
    if entry.schedule.startswith("rate("):
        reader.findings.add((*path, "schedule"), found=spell(entry.schedule), allowed="cron(…) or at(…), not a rate")
        return None
    try:
        schedule_expressions.parse(entry.schedule, zone=zoneinfo.ZoneInfo(entry.timezone))
    except schedule_expressions.ScheduleError as error:
        allowed = f"a schedule expression: {error}"
        reader.findings.add((*path, "schedule"), found=spell(entry.schedule), allowed=allowed)
        return None
    return entry
