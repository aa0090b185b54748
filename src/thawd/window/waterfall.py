"""Draws where an invocation spent its time, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from thawd.stores.invocations.record_rows import InvocationRow
from thawd.window.handler_calls import Nested
from thawd.window.layout import milliseconds, table
from thawd.window.markup import Html, el, render

_WIDTH = 700
_LEFT = 150
_ROW = 26
_CALL_ROW = 20
_INDENT = 8
_DIGIT = 6.6
MOST_DRAWN = 60
"""Most calls that are drawn, the first ones. The table below the drawing has all."""


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


def handler_began_ms(row: InvocationRow) -> float:
    """Return when the handler began, milliseconds since the arrival of the request."""
    return row.gateway_ms + row.wait_ms + row.start_ms


def draw(row: InvocationRow, calls: Sequence[Nested] = ()) -> Html:
    """Return the drawing of an invocation, and its stages as a table for those who cannot see it.

    Args:
        row: its record.
        calls: what its handler called; drawn below the handler's bar.
    """
    found = stages(row)
    whole_ms = max(sum(stage.took_ms for stage in found), 0.001)
    scale = (_WIDTH - _LEFT - 90) / whole_ms
    lines, y = [], 4
    for stage in found:
        x = _LEFT + stage.begin_ms * scale
        width = max(1.5, stage.took_ms * scale)
        lines.append(el("text", stage.name, x=_LEFT - 10, y=y + 14, text_anchor="end"))
        lines.append(el("rect", x=f"{x:.1f}", y=y, width=f"{width:.1f}", height=_ROW - 8, class_=f"stage {stage.kind}"))
        lines.append(el("text", milliseconds(stage.took_ms), x=f"{x + width + 6:.1f}", y=y + 14))
        y += _ROW
        if stage.kind == "handler":
            for each in calls[:MOST_DRAWN]:
                lines += _call(each, y, scale, whole_ms)
                y += _CALL_ROW
    height = y
    drawing = el(
        "svg", *lines, viewBox=f"0 0 {_WIDTH} {height}", role="img", class_="waterfall",
        aria_label=f"Stages of the invocation, {milliseconds(whole_ms)} together",
    )  # fmt: skip
    rows = [[stage.name, milliseconds(stage.begin_ms), milliseconds(stage.took_ms)] for stage in found]
    as_table = table("Stages", ["stage", "#begins after", "#takes"], rows, empty="No stage was measured.")
    frame = el("div", drawing, class_="scroll", tabindex="0", role="region", aria_label="Drawing of the stages")
    return render([frame, el("details", el("summary", "The stages as a table"), as_table)])


def _call(each: Nested, y: int, scale: float, whole_ms: float) -> list[Html]:
    """Return the bar of a call, with its name and duration. The bar stays in the drawing, whatever a handler claims."""
    begin_ms = min(max(0.0, each.begin_ms), whole_ms)
    x, width = _LEFT + begin_ms * scale, max(1.5, min(each.took_ms, whole_ms - begin_ms) * scale)
    indent = _INDENT * (each.depth + 1)
    most = int((_LEFT - 10 - indent) / _DIGIT)
    name = each.call.name if len(each.call.name) <= most else f"{each.call.name[: most - 1]}…"
    kind = "failed" if each.call.failed else "request" if each.call.is_request else "part"
    took = f"{milliseconds(each.took_ms)}{', failed' if each.call.failed else ''}"
    return [
        el("text", name, x=indent, y=y + 11, class_="call"),
        el("rect", x=f"{x:.1f}", y=y, width=f"{width:.1f}", height=_CALL_ROW - 6, class_=f"stage {kind}"),
        el("text", took, x=f"{x + width + 6:.1f}", y=y + 11, class_="call"),
    ]
