"""The page of snapshots: which functions have one, which share a base, why the others have none."""

from __future__ import annotations

from collections import defaultdict

from thawd.window.layout import function_link, milliseconds, size, table
from thawd.window.markup import Content, el
from thawd.window.sources import Sources

_MOST = 500


async def content(sources: Sources) -> list[Content]:
    """Return the content of the page."""
    functions = (await sources.status())["functions"]
    with_one: list[list[Content]] = []
    without: list[list[Content]] = []
    bases: dict[str, list[str]] = defaultdict(list)
    total = 0
    for name, entry in functions.items():
        snapshot = entry["snapshot"] or {}
        if "id" not in snapshot:
            without.append(
                [
                    function_link(name),
                    entry["start"] or "-",
                    snapshot.get("refused") or entry["start_reason"] or "not made yet",
                ]
            )
            continue
        total += snapshot["stored_bytes"]
        if snapshot["base"]:
            bases[str(snapshot["base"])].append(name)
        with_one.append(
            [
                function_link(name), el("code", snapshot["id"]), size(snapshot["stored_bytes"]),
                milliseconds(snapshot["init_ms"]), milliseconds(snapshot["restore_p50_ms"]),
                el("code", str(snapshot["base"])) if snapshot["base"] else snapshot["base_refused"] or "none",
            ]
        )  # fmt: skip
    shared: list[list[Content]] = [
        [el("code", base), len(names), [[function_link(name), " "] for name in names[:20]]]
        for base, names in bases.items()
    ]
    return [
        el("p", f"{len(with_one):,} snapshots, {size(total)} on the disk without their bases."),
        table("Snapshots", ["function", "snapshot", "#stored", "#init took", "#restore, median", "base"],
              with_one[:_MOST], empty="No function has a snapshot."),
        el("h2", "Shared bases"),
        table("Bases and the functions that share them", ["base", "#functions", "which"], shared,
              empty="No snapshots share a base (server.bases)."),
        el("h2", "Functions without a snapshot"),
        table("Functions without a snapshot", ["function", "start", "why"], without[:_MOST],
              empty="Every function has one."),
    ]  # fmt: skip
