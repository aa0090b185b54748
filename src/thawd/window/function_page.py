"""The page of one function: latencies over time, starts, snapshot, versions, cost, configuration."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from thawd.recording.minute_counts import MinuteCounts
from thawd.recording.records import Records
from thawd.resources import Function
from thawd.scheduling.function_entries import FunctionEntry
from thawd.stores.invocations.record_queries import Filter
from thawd.window import cost_section, heat_map
from thawd.window.failures import rows_of
from thawd.window.layout import counted, facts, link, milliseconds, size, table
from thawd.window.markup import Content, Html, el
from thawd.window.sources import Sources

_SPANS = {"1": "hour", "6": "6 hours", "24": "day", "168": "week"}


async def content(sources: Sources, name: str, query: Mapping[str, str]) -> list[Content]:
    """Return the content of the page.

    Args:
        sources: what the page is made from.
        name: the function's name.
        query: ``hours``: the time that the heat maps show; 1, 6, 24 or 168.

    Raises:
        ResourceNotFoundException: there is no such function (404).
    """
    family = sources.dispatcher.family(name)
    entry = sources.dispatcher.status_of([name])[name]
    hours = query.get("hours", "1")
    hours = hours if hours in _SPANS else "1"
    parts: list[Content] = [_state(entry), _why_cold(entry)]
    sources.flush_logs()  # durations come from the log
    if sources.records is not None:
        spans = [
            el("b", text) if value == hours else link(text, f"functions/{name}", {"hours": value})
            for value, text in _SPANS.items()
        ]
        parts += [
            el("h2", "Latency"),
            el("p", "The last ", *([span, " "] for span in spans)),
            await _latencies(sources.records, name, int(hours)),
            el("h2", "Latest failures"),
            rows_of((await sources.records.page(Filter(function=name, failed=True), limit=5)).rows),
            el("p", link("All failures", "failures", {"function": name}), " · ",
               link("all invocations", "invocations", {"function": name}), " · ",
               link("try it", "try", {"function": name})),
        ]  # fmt: skip
    return [
        *parts,
        el("h2", "Starts", id="starts"),
        _starts(entry),
        el("h2", "Snapshot"),
        _snapshot(entry),
        el("h2", "Versions and aliases"),
        _versions(family, entry),
        el("h2", "Cost on AWS Lambda"),
        cost_section.content(
            await sources.cost(family.latest.function), name, is_in_cluster=sources.cluster is not None
        ),
        el("h2", "Configuration"),
        _configuration(family.latest.function),
    ]


def _state(entry: Mapping[str, Any]) -> Html:
    text = f"{entry['state']}. {entry['reason']}" if entry["reason"] else str(entry["state"])
    return el("p", text, class_="good" if entry["state"] == "Active" and not entry["reason"] else "bad")


def _why_cold(entry: Mapping[str, Any]) -> Content:
    """Return a line about a function whose environments start cold; None: they do not, or it is not known why."""
    if entry["start"] != "cold" or not entry["start_reasons"]:
        return None
    return el("p", f"Starts cold: {entry['start_reasons'][0]['reason']}. ", el("a", "Details", href="#starts"))


async def _latencies(records: Records, name: str, hours: int) -> Content:
    until = int(time.time() // 60) + 1
    column_minutes = max(1, hours * 60 // heat_map.COLUMNS)
    since = until - heat_map.COLUMNS * column_minutes
    documents = await records.minutes(name, since=since, until=until)
    return await asyncio.to_thread(_drawn, documents, since, column_minutes)


def _drawn(documents: Iterable[tuple[str, int, bytes]], since: int, column_minutes: int) -> Content:
    cells: dict[str, Counter[tuple[int, int]]] = defaultdict(Counter)
    errors = throttles = 0
    for _, minute, document in documents:
        counts = msgspec.json.decode(document, type=MinuteCounts)
        errors, throttles = errors + counts.errors, throttles + counts.throttles
        for kind, buckets in counts.latencies.items():
            for bucket, count in buckets.items():
                cells[kind][(minute - since) // column_minutes, bucket] += count
    rows = []
    for kind in heat_map.KINDS:
        if kind in cells:
            buckets = Counter[int]()
            for (_, bucket), count in cells[kind].items():
                buckets[bucket] += count
            quantiles = [milliseconds(heat_map.quantile_ms(buckets, share)) for share in (0.5, 0.9, 0.99)]
            rows.append([kind, f"{sum(buckets.values()):,}", *quantiles])
    return [
        heat_map.draw(cells, since_ms=since * 60_000, column_ms=column_minutes * 60_000),
        table("Latencies by start kind, upper bounds", ["start", "#number", "#p50", "#p90", "#p99"], rows, empty="")
        if rows
        else None,
        el(
            "p",
            f"{counted(errors, 'function error')} and {counted(throttles, 'throttled request')} in this time.",
            class_="note",
        ),
    ]


def _starts(entry: Mapping[str, Any]) -> list[Content]:
    rows = [
        [kind, each["count"], milliseconds(each["p50_ms"]), milliseconds(each["p99_ms"]), milliseconds(each["max_ms"])]
        for kind, each in entry["starts"].items()
    ]
    return [
        facts([("Next start", entry["start"] or "not known yet"), ("Why not faster", entry["start_reason"])]),
        table("Starts since the server runs", ["start", "#number", "#p50", "#p99", "#longest"], rows,
              empty="No environment has been started yet."),
    ]  # fmt: skip


def _snapshot(entry: Mapping[str, Any]) -> Html:
    snapshot = entry["snapshot"] or {}
    if "id" not in snapshot:
        return el("p", "None", f": {snapshot['refused']}" if snapshot.get("refused") else ".", class_="note")
    return facts(
        [
            ("Id", el("code", snapshot["id"])),
            ("Stored", size(snapshot["stored_bytes"])),
            ("Init took", milliseconds(snapshot["init_ms"])),
            ("Restore, median", milliseconds(snapshot["restore_p50_ms"])),
            ("Base", el("code", snapshot["base"]) if snapshot["base"] else None),
            ("Why no base", snapshot["base_refused"]),
            ("Connections that init left open", ", ".join(snapshot["dropped"])),
        ]
    )


def _versions(family: FunctionEntry, entry: Mapping[str, Any]) -> list[Content]:
    listed = {"$LATEST": entry, **entry.get("versions", {})}
    rows = [
        [number, each["state"], each["start"] or "-", each["environments"]["busy"], each["environments"]["idle"],
         each["reason"] or ""]
        for number, each in listed.items()
    ]  # fmt: skip
    aliases = [
        [alias, ", ".join(f"{number} ({share:.0%})" for number, share in shares.items())]
        for alias, shares in family.aliases.items()
    ]
    return [
        table("Versions", ["version", "state", "start", "#runs", "#idle", "note"], rows, empty=""),
        table("Aliases", ["alias", "goes to"], aliases, empty="No aliases."),
    ]


def _configuration(function: Function) -> Html:
    return facts(
        [
            ("Handler", el("code", function.image or function.handler)),
            ("Code", el("code", str(function.code))),
            ("Runtime", function.runtime or function.python or "thawd's Python runtime"),
            ("Memory", f"{function.memory_mb:,} MiB"),
            ("Time limit", f"{function.timeout_s} s"),
            ("Reserved concurrency", function.reserved_concurrency),
            ("Provisioned concurrency", function.provisioned_concurrency or None),
            ("In one environment", f"{function.most_in_environment} invocations" if function.concurrency > 1 else None),
            ("Retries", function.maximum_retry_attempts),
            ("Environment variables (values are not shown)", ", ".join(sorted(function.environment))),
            ("Log group", el("code", function.log_group_name)),
        ]
    )
