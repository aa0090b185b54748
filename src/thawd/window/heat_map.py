"""Draws latencies over time as heat maps in SVG, one for each start kind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from thawd.recording.minute_counts import bucket_ms
from thawd.window.layout import counted, milliseconds, when
from thawd.window.markup import Html, el, render

KINDS = ("warm", "thaw", "fork", "cold")
COLUMNS = 60
_CELL_WIDTH, _CELL_HEIGHT = 11, 9
_LEFT = 70
_SHADES = 5

Cells = Mapping[str, Counter[tuple[int, int]]]
"""By start kind, the number of invocations by column (time) and latency bucket."""


def draw(cells: Cells, *, since_ms: int, column_ms: int) -> Html:
    """Return the heat maps. Those of start kinds without invocations are left out.

    Args:
        cells: the numbers.
        since_ms: begin of the first column, milliseconds since 1970.
        column_ms: how long a column lasts, milliseconds.
    """
    filled = {kind: cells[kind] for kind in KINDS if cells.get(kind)}
    if not filled:
        return el("p", "No invocations in this time.", class_="empty")
    buckets = [bucket for each in filled.values() for _, bucket in each]
    low, high = min(buckets), max(buckets)
    most = max(max(each.values()) for each in filled.values())
    drawings = [
        el(
            "figure",
            el("figcaption", f"{kind}: {counted(sum(each.values()), 'invocation')}"),
            _one(kind, each, (low, high), most),
        )
        for kind, each in filled.items()
    ]
    end_ms = since_ms + COLUMNS * column_ms
    span = el(
        "p",
        "From ",
        when(since_ms),
        " to ",
        when(end_ms),
        " UTC; the stronger the colour, the more invocations.",
        class_="note",
    )
    return render([span, *drawings])


def _one(kind: str, cells: Counter[tuple[int, int]], span: tuple[int, int], most: int) -> Html:
    low, high = span
    height = (high - low + 1) * _CELL_HEIGHT
    width = _LEFT + COLUMNS * _CELL_WIDTH
    parts = [el("rect", x=_LEFT, y=0, width=COLUMNS * _CELL_WIDTH, height=height, class_="ground")]
    for bucket in range(low, high + 1):
        if bucket % 4 == 0 or bucket in span:
            y = (high - bucket + 1) * _CELL_HEIGHT - 1
            if bucket % 4 and any(
                abs(bucket - other) < 2 for other in range(low - low % 4, high + 1, 4) if low <= other <= high
            ):
                continue
            parts.append(el("text", f"≤ {milliseconds(bucket_ms(bucket))}", x=_LEFT - 6, y=y, text_anchor="end"))
    for (column, bucket), count in sorted(cells.items()):
        shade = 1 + round((_SHADES - 1) * math.log1p(count) / math.log1p(most)) if most > 1 else _SHADES
        title = f"{count:,} {kind}, at most {milliseconds(bucket_ms(bucket))}"
        parts.append(
            el(
                "rect", el("title", title), x=_LEFT + column * _CELL_WIDTH, y=(high - bucket) * _CELL_HEIGHT,
                width=_CELL_WIDTH - 1, height=_CELL_HEIGHT - 1, class_=f"heat {kind} shade{shade}",
            )
        )  # fmt: skip
    label = f"Latencies of {kind} invocations over time"
    return el("svg", *parts, viewBox=f"0 0 {width} {height}", role="img", aria_label=label, class_="heatmap")


def quantile_ms(buckets: Counter[int], fraction: float) -> float | None:
    """Return the upper bound of the bucket below which `fraction` of all latencies lie; None: there are none."""
    total, seen = sum(buckets.values()), 0
    for bucket, count in sorted(buckets.items()):
        seen += count
        if seen >= fraction * total:
            return bucket_ms(bucket)
    return None
