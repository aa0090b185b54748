"""Draws where an invocation spent its time, as SVG."""

from __future__ import annotations

from typing import NamedTuple

from thawd.stores.invocations.record_rows import InvocationRow
from thawd.window.layout import milliseconds, table
from thawd.window.markup import Html, el, render

_WIDTH = 700
_LEFT = 150
_ROW = 26


class Stage(NamedTuple):
    """A stage of an invocation; times are in milliseconds since the arrival of the request."""

    name: str
    kind: str
    begin_ms: float
    took_ms: float


def stages(row: InvocationRow) -> list[Stage]:
    """Return the stages of an invocation, in order."""
    made = {"cold": "init", "fork": "fork", "thaw": "restore"}.get(row.start_kind, "start")
    spawn_ms = max(0.0, row.start_ms - row.prepare_ms)
    rest_ms = row.total_ms - row.wait_ms - row.start_ms - row.handler_ms
    listed = [
        ("gateway", "gateway", row.gateway_ms),
        ("wait", "wait", row.wait_ms),
        ("spawn", "start", spawn_ms),
        (made, "start", max(0.0, row.prepare_ms - row.hooks_ms)),
        ("hooks", "start", row.hooks_ms),
        ("handler", "handler", row.handler_ms),
        ("answer", "gateway", max(0.0, rest_ms)),
    ]
    found, at = [], 0.0
    for name, kind, took_ms in listed:
        if took_ms > 0:
            found.append(Stage(name, kind, at, took_ms))
        at += took_ms
    return found


def draw(row: InvocationRow) -> Html:
    """Return the drawing of an invocation, and the same as a table for those who cannot see it."""
    found = stages(row)
    whole_ms = max(sum(stage.took_ms for stage in found), 0.001)
    scale = (_WIDTH - _LEFT - 90) / whole_ms
    lines = []
    for number, stage in enumerate(found):
        y = number * _ROW + 4
        x = _LEFT + stage.begin_ms * scale
        width = max(1.5, stage.took_ms * scale)
        lines.append(el("text", stage.name, x=_LEFT - 10, y=y + 14, text_anchor="end"))
        lines.append(el("rect", x=f"{x:.1f}", y=y, width=f"{width:.1f}", height=_ROW - 8, class_=f"stage {stage.kind}"))
        lines.append(el("text", milliseconds(stage.took_ms), x=f"{x + width + 6:.1f}", y=y + 14))
    height = len(found) * _ROW + 4
    drawing = el(
        "svg", *lines, viewBox=f"0 0 {_WIDTH} {height}", role="img", class_="waterfall",
        aria_label=f"Stages of the invocation, {milliseconds(whole_ms)} together",
    )  # fmt: skip
    rows = [[stage.name, milliseconds(stage.begin_ms), milliseconds(stage.took_ms)] for stage in found]
    as_table = table("Stages", ["stage", "#begins after", "#takes"], rows, empty="No stage was measured.")
    return render([drawing, el("details", el("summary", "The stages as a table"), as_table)])
