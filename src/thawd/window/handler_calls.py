"""Shows what a handler called: as bars below its own in the waterfall, and as a table."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from thawd.stores.invocations.handler_calls import Calls
from thawd.stores.invocations.record_rows import CallRow
from thawd.window.layout import milliseconds, table
from thawd.window.markup import Content, el

_DEEPEST = 8


class Nested(NamedTuple):
    """A call, and in how many other calls it is, at most 8; times are in milliseconds since the request's arrival."""

    call: CallRow
    depth: int
    begin_ms: float
    took_ms: float


def nested(calls: Calls, *, handler_ms: float) -> list[Nested]:
    """Return the calls of a handler: after each one those that are a part of it, in the order of their beginnings.

    Args:
        calls: what is recorded.
        handler_ms: when the handler began, milliseconds since the request's arrival.
    """
    known = {call.span for call in calls.rows}
    parts: dict[str, list[CallRow]] = defaultdict(list)
    for call in calls.rows:
        parts[call.parent if call.parent in known else ""].append(call)
    found: list[Nested] = []
    seen: set[str] = set()
    # What is in no other call comes first. If calls were parts of each other, none would be; these follow.
    for start in (*parts[""], *calls.rows):
        left = [(start, 0)]
        while left:
            call, depth = left.pop()
            if call.span in seen:
                continue
            seen.add(call.span)
            begin_ms = handler_ms + (call.began_us - calls.began_us) / 1000
            found.append(Nested(call, min(depth, _DEEPEST), begin_ms, call.took_us / 1000))
            left += [(part, depth + 1) for part in reversed(parts[call.span])]
    return found


def content(calls: Calls, found: list[Nested]) -> list[Content]:
    """Return the table of a handler's calls.

    Args:
        calls: what is recorded.
        found: the calls as `nested` returns them.
    """
    rows: list[list[Content]] = [
        [_named(each), milliseconds(max(0.0, each.begin_ms)), milliseconds(each.took_ms)] for each in found
    ]
    heads = ["call", "#begins after", "#takes"]
    left_out = el("p", f"{calls.left_out:,} further calls were not kept.", class_="note") if calls.left_out else None
    return [table("What the handler called", heads, rows, empty="No call of the handler is recorded."), left_out]


def _named(each: Nested) -> Content:
    """Return the name of a call, with what is known about it and its error. So the table fits on a phone."""
    call = each.call
    parts: list[Content] = ["↳ " if each.depth else "", call.name]
    if call.detail:
        parts.append(el("div", call.detail, class_="faint"))
    if call.failed:
        parts.append(el("div", f"failed: {call.error}" if call.error else "failed", class_="bad"))
    return el("div", *parts, class_=f"call in{each.depth}")
