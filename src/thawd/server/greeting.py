"""What `thawd up` says it serves, once it does: a line for each thing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from thawd.config import Settings


def functions(
    statuses: Mapping[str, Mapping[str, Any]], handlers: Mapping[str, str], *, declared: Collection[str]
) -> Iterator[str]:
    """The functions.

    Args:
        statuses: of each, as the dispatcher has it.
        handlers: of each.
        declared: those of the configuration; another may be inactive without being worth a word.
    """
    for name, entry in statuses.items():
        is_well = entry["state"] == "Active" or name not in declared
        note = "" if is_well else f"   {entry['state']}: see above"
        yield f"function  {name:<20} {entry['start'] or '-':<5} {handlers[name]}{note}"
    if not statuses:
        yield "no functions yet: make them through the Lambda API, or declare them in thawd.toml"


def surroundings(settings: Settings, urls: Iterable[tuple[str, str]]) -> Iterator[str]:
    """What invokes functions, and where results go.

    Args:
        settings: the configuration.
        urls: function URLs, by name of the function.
    """
    for bucket in settings.buckets.values():
        targets = ", ".join(notification.function for notification in bucket.notify) or "nobody"
        yield f"bucket    {bucket.name:<20} {bucket.path} -> {targets}"
    for there in settings.remote_buckets.values():
        targets = ", ".join(notification.function for notification in there.notify) or "nobody"
        yield f"bucket    {there.name:<20} {there.url} -> {targets}"
    for route in settings.routes:
        yield f"route     {route.key:<20} -> {route.function}"
    for function, sources in settings.sources.items():
        for source in sources:
            yield f"queue     {source.sqs.rpartition('/')[2].rpartition(':')[2]:<20} -> {function}"
    for schedule in settings.schedules.values():
        yield f"schedule  {schedule.name:<20} {schedule.schedule} -> {schedule.function}"
    for function, url in urls:
        yield f"url       {function:<20} {url}"
    for table in settings.tables.values():
        yield f"table     {table.name:<20} {table.place}"
