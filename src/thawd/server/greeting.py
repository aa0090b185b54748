"""Lines that `thawd up` prints when it is ready: one for each function, bucket, route, queue, schedule, URL, table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from thawd.config import Settings
from thawd.gateway.function_urls.table import PATH_PREFIX
from thawd.resources import Notification

if TYPE_CHECKING:
    from thawd.server.assembly.platform import Platform

_MOST_LINES = 50


class Announcements:
    """What was printed of what a server serves.

    Args:
        platform: the subsystems of the server.
    """

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._lines: list[str] = []

    def new(self) -> list[str]:
        """Return a line for everything that the server serves now, without the lines of the call before."""
        before, self._lines = self._lines, list(_served(self._platform))
        return [line for line in self._lines if line not in before]


def _served(platform: Platform) -> Iterator[str]:
    dispatcher = platform.execution.dispatcher
    served = {name: dispatcher.entry(name).function for name in dispatcher.names()}
    codes = {name: function.image or function.handler for name, function in served.items()}
    urls = [(url.function, f"{platform.url}{PATH_PREFIX}{url.identifier}/") for url in platform.urls]
    yield from functions(dispatcher.status(), codes, declared=platform.settings.functions)
    yield from resources(platform.settings, urls)


def functions(
    statuses: Mapping[str, Mapping[str, Any]], codes: Mapping[str, str], *, declared: Collection[str]
) -> Iterator[str]:
    """A line for each function. If there are more than 50, one line counts all those that have no failure to report.

    Args:
        statuses: the dispatcher's status of each function.
        codes: handler or container image of each function.
        declared: functions of the configuration. If one of them is not active, its line says so. A function that was
            created through the API may become active later, so its line says nothing.
    """
    unnamed = 0
    for name, entry in statuses.items():
        is_expected = entry["state"] == "Active" or name not in declared
        if is_expected and len(statuses) > _MOST_LINES:
            unnamed += 1
            continue
        note = "" if is_expected else f"   {entry['state']}: see above"
        yield f"function  {name:<20} {entry['start'] or '-':<5} {codes[name]}{note}"
    if unnamed:
        yield f"function  {unnamed:,}{' others' if unnamed < len(statuses) else ''}; `thawd status` lists them"
    if not statuses:
        yield "no functions yet: create them with the Lambda API, or declare them in thawd.toml"


def resources(settings: Settings, urls: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A line for each bucket, route, queue, schedule, function URL and table.

    Args:
        settings: the configuration.
        urls: function URLs, by name of the function.
    """
    for bucket in settings.buckets.values():
        yield f"bucket    {bucket.name:<20} {bucket.path} -> {_targets(bucket.notify)}"
    for remote in settings.remote_buckets.values():
        yield f"bucket    {remote.name:<20} {remote.url} -> {_targets(remote.notify)}"
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


def _targets(notify: Iterable[Notification]) -> str:
    return ", ".join(notification.function for notification in notify) or "no function"
