"""The first page: what runs now, what waits for what, what failed lately."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from thawd.cluster.overview import SeenMachine
from thawd.recording.minute_counts import MinuteCounts
from thawd.window import machines_table
from thawd.window.failures import groups
from thawd.window.heat_map import quantile_ms
from thawd.window.layout import counted, facts, function_link, link, milliseconds, table
from thawd.window.markup import Content, Html, el
from thawd.window.sources import Sources

_MINUTES = 15
_MOST_FUNCTIONS = 200
_HOUR_S = "3600"


async def content(
    sources: Sources, query: Mapping[str, str], machines: Sequence[SeenMachine] | None = None
) -> list[Content]:
    """Return the content of the page.

    Args:
        sources: what the page is made from.
        query: ``find``: part of the names of the functions to list; empty: all.
        machines: the machines of the cluster; None: this machine runs alone.
    """
    status = await sources.status()
    functions: Mapping[str, Mapping[str, Any]] = status["functions"]
    wanted = query.get("find", "")
    named = [name for name in functions if wanted.lower() in name.lower()]
    lately = await _lately(sources)
    # Those that do something come first.
    named.sort(key=lambda name: (-_activity(functions[name], lately.get(name)), name))
    heads = [
        "function", "state", "start", "#runs", "#idle", "#starting", "#waits", "#queued", "#dead",
        f"#in {_MINUTES} min", "#errors", "#refused", "#p50", "#p99",
    ]  # fmt: skip
    rows = [_row(name, functions[name], lately.get(name)) for name in named[:_MOST_FUNCTIONS]]
    more = len(named) - len(rows)
    return [
        None if machines is None else machines_table.section(machines),
        await _failures(sources),
        el("h2", "Functions" if machines is None else "Functions on this machine"),
        _search(wanted) if len(functions) > 10 or wanted else None,
        table("Functions, the busiest first", heads, rows, empty="There is no such function."),
        el("p", f"{counted(more, 'more function')}: search for a part of the name.") if more > 0 else None,
        el("h2", "The machine" if machines is None else "This machine"),
        _machine(status, functions),
    ]


class _Lately(NamedTuple):
    """What a function did in the last minutes.

    Attributes:
        latencies: number of invocations by latency bucket.
        errors: invocations that ended in a function error.
        refused: requests refused because of a limit.
    """

    latencies: Counter[int]
    errors: int
    refused: int


async def _lately(sources: Sources) -> dict[str, _Lately]:
    """Return what each function did in the last minutes."""
    if sources.records is None:
        return {}
    minute = int(time.time() // 60)
    rows = await sources.records.minutes(None, since=minute - _MINUTES + 1, until=minute + 1)
    return await asyncio.to_thread(_sums, rows)


def _sums(rows: Iterable[tuple[str, int, bytes]]) -> dict[str, _Lately]:
    latencies: dict[str, Counter[int]] = defaultdict(Counter)
    errors: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for function, _, document in rows:
        counts = msgspec.json.decode(document, type=MinuteCounts)
        for buckets in counts.latencies.values():
            latencies[function].update(buckets)
        errors[function] += counts.errors
        refused[function] += counts.throttles
    return {name: _Lately(latencies[name], errors[name], refused[name]) for name in {*latencies, *errors, *refused}}


def _activity(entry: Mapping[str, Any], lately: _Lately | None) -> float:
    environments = entry["environments"]
    count = 0 if lately is None else sum(lately.latencies.values()) + lately.refused
    return float(environments["busy"] * 1000 + entry["waiting"] * 1000 + entry["queued"] + count)


def _row(name: str, entry: Mapping[str, Any], lately: _Lately | None) -> list[Content]:
    environments = entry["environments"]
    buckets, errors, refused = lately or _Lately(Counter(), 0, 0)
    state: Content = entry["state"]
    if entry["state"] != "Active":
        state = el("span", entry["state"], class_="bad" if entry["state"] == "Failed" else None)
    return [
        function_link(name),
        state,
        entry["start"] or "-",
        environments["busy"],
        environments["idle"],
        environments["starting"],
        entry["waiting"],
        entry["queued"],
        link(entry["dead"], "queue", {"function": name}) if entry["dead"] else 0,
        sum(buckets.values()),
        link(errors, "failures", {"function": name, "span": _HOUR_S}) if errors else 0,
        link(refused, "failures", {"function": name, "span": _HOUR_S, "error": "TooManyRequestsException"})
        if refused
        else 0,
        _at_most(quantile_ms(buckets, 0.5)),
        _at_most(quantile_ms(buckets, 0.99)),
    ]


def _at_most(bound_ms: float | None) -> str:
    return "-" if bound_ms is None else f"≤ {milliseconds(bound_ms)}"


def _search(wanted: str) -> Html:
    return el(
        "form",
        el("label", "Part of a name ", el("input", name="find", value=wanted, type="search")),
        el("button", "Search"),
        method="get", action="/_thawd/", role="search", class_="filters",
    )  # fmt: skip


async def _failures(sources: Sources) -> Html:
    if sources.records is None:
        return el("p", f"Invocations are not recorded: {sources.why_none}", class_="note")
    where = "" if sources.cluster is None else " on this machine"
    found = await sources.records.errors(None, since_ms=int((time.time() - int(_HOUR_S)) * 1000))
    if not found:
        return el("p", f"No invocation has failed{where} in the last hour.", class_="good")
    return el(
        "section",
        el("h2", f"Failed{where} in the last hour"),
        groups(found[:8], span=_HOUR_S),
        el("p", link("All failures", "failures")),
    )


def _machine(status: Mapping[str, Any], functions: Mapping[str, Mapping[str, Any]]) -> Html:
    environments: Counter[str] = Counter()
    for entry in functions.values():
        environments.update(entry["environments"])
    admission = status.get("admission") or {}
    waits = sum(entry["waiting"] for entry in functions.values())
    return facts(
        [
            ("Environments", f"{sum(environments.values())} of at most {status['max_environments']}: "
             f"{environments['busy']} run, {environments['idle']} idle, {environments['starting']} start"),
            ("Memory for environments", f"at most {status['memory_mb']:,} MiB"),
            ("Requests that wait",
             f"{waits} for an environment, {admission.get('waiting', 0)} of them for a processor core"),
            ("Processor cores", f"{admission.get('load', 0):.2f} of {admission.get('cores', 0):g} in use by functions"
             if admission.get("cores") else None),
            ("Memory limits", status.get("memory_limit")),
            ("Process", status.get("pid")),
        ]
    )  # fmt: skip
