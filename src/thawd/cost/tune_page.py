"""What `thawd tune` measured, as one HTML page that needs nothing else: a plot of time against cost, and a table."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence

from thawd.cost.tune import Size, Tuned

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 74, 84, 58
_NAME_WIDTH = 44
_MARKS = ("cheapest", "fastest", "balanced")

_STYLE = """
:root { --ink: #1b1f24; --faint: #5b6470; --line: #d5dae0; --paper: #fff; --time: #0b62c4; --cost: #b3541e;
  --mark: #eef2f7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ebef; --faint: #9aa4b0; --line: #3a424c; --paper: #14181d; --time: #6db1ff; --cost: #f0a070;
    --mark: #222932; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 50rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; }
p.note { color: var(--faint); }
svg { width: 100%; height: auto; }
svg text { font-size: 13px; fill: var(--faint); }
svg .axis, svg .grid { stroke: var(--line); }
svg .grid { stroke-dasharray: 2 4; }
svg polyline { fill: none; stroke-width: 2; }
svg polyline.time { stroke: var(--time); }
svg polyline.cost { stroke: var(--cost); stroke-dasharray: 6 4; }
svg text.time, svg .dot.time { fill: var(--time); }
svg text.cost, svg .dot.cost { fill: var(--cost); }
svg text.mark { fill: var(--ink); font-weight: 600; }
svg .column { fill: var(--mark); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td.failed, td:last-child { text-align: left; white-space: normal; }
tr.chosen td { background: var(--mark); font-weight: 600; }
"""


def page(tuned: Tuned, *, prices_said: str, runs: int) -> str:
    """The page.

    Args:
        tuned: what is shown.
        prices_said: where the prices are from, in words.
        runs: warm invocations of each size.
    """
    title = html.escape(f"Memory for {tuned.function}")
    held = (
        "Environments were held to the CPU share that Lambda gives with the memory (1,769 MB are one CPU)."
        if tuned.limited
        else "Environments were NOT held to a CPU share: times of small sizes are far shorter here than on Lambda."
    )
    chosen = (
        "; ".join(f"{name}: {size:,} MB" for name in _MARKS if (size := getattr(tuned, name)) is not None)
        or "no size worked"
    )
    body = [
        f"<h1>{title}</h1>",
        f"<p><strong>{html.escape(chosen[0].upper() + chosen[1:])}.</strong></p>",
        _plot(tuned) if tuned.per_million else "",
        _table(tuned),
        f'<p class="note">{runs} warm invocations of each size, measured on this machine; time is what Lambda would '
        f"bill, on average, without the slowest and the fastest fifth. {held} Costs are of a million warm invocations, "
        f"{tuned.architecture}, {html.escape(prices_said)}. Balanced is the least sum of cost and time, each by the "
        "highest of all sizes.</p>",
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" '
        f'content="light dark"><style>{_STYLE}</style></head>\n<body>\n' + "\n".join(body) + "\n</body></html>\n"
    )


def marks_of(tuned: Tuned, memory_mb: int) -> list[str]:
    """What a size is best in."""
    return [name for name in _MARKS if getattr(tuned, name) == memory_mb]


def _plot(tuned: Tuned) -> str:
    shown = [size for size in tuned.sizes if size.measured is not None]
    times = [size.measured.warm_ms for size in shown if size.measured is not None]
    costs = [tuned.per_million[size.memory_mb] for size in shown]
    across = _across([size.memory_mb for size in shown])
    up_time, time_steps = _upward(max(times))
    up_cost, cost_steps = _upward(max(costs))
    base = _HEIGHT - _BOTTOM
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Time and cost by memory">']
    parts += _columns(tuned, shown, across, base)
    for step, other in zip(time_steps, cost_steps, strict=True):
        y = up_time(step)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="time" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{step:g}</text>')
        parts.append(f'<text class="cost" x="{_WIDTH - _RIGHT + 8}" y="{y + 4:.1f}">{other:g}</text>')
    parts.append('<text class="time" x="8" y="16">time, ms (line)</text>')
    parts.append(f'<text class="cost" x="{_WIDTH - 8}" y="16" text-anchor="end">cost of a million (dashes)</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{base}" y2="{base}"/>')
    parts += _curve("time", [(across(s.memory_mb), up_time(value)) for s, value in zip(shown, times, strict=True)])
    parts += _curve("cost", [(across(s.memory_mb), up_cost(value)) for s, value in zip(shown, costs, strict=True)])
    return "".join([*parts, "</svg>"])


def _columns(tuned: Tuned, shown: Sequence[Size], across: Callable[[float], float], base: float) -> list[str]:
    """The sizes along the bottom, with what they are best in; chosen ones have a column behind them."""
    parts = []
    last_x, below = -math.inf, 0
    for size in shown:
        x, marks = across(size.memory_mb), marks_of(tuned, size.memory_mb)
        if marks:
            parts.append(f'<rect class="column" x="{x - 22:.1f}" y="{_TOP}" width="44" height="{base - _TOP}"/>')
        # Where sizes are near each other, their names take turns on two lines.
        below = 0 if x - last_x > _NAME_WIDTH else 13 - below
        last_x = x
        parts.append(f'<text x="{x:.1f}" y="{base + 16 + below}" text-anchor="middle">{size.memory_mb:,}</text>')
        for place, mark in enumerate(marks):
            y = _TOP - 8 - 15 * (len(marks) - 1 - place)  # above the lines, which may be anywhere below
            parts.append(f'<text class="mark" x="{x:.1f}" y="{y}" text-anchor="middle">{mark}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">memory, MB (logarithmic)</text>')
    return parts


def _curve(name: str, points: Sequence[tuple[float, float]]) -> list[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [f'<circle class="dot {name}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in points]
    return [f'<polyline class="{name}" points="{path}"/>', *dots]


def _across(sizes_mb: Sequence[int]) -> Callable[[float], float]:
    """Where a size is, from left to right, by its logarithm."""
    low, high = math.log(min(sizes_mb)), math.log(max(sizes_mb))
    inner = _WIDTH - _LEFT - _RIGHT - 60
    return lambda size: _LEFT + 30 + (inner * (math.log(size) - low) / (high - low) if high > low else inner / 2)


def _upward(most: float) -> tuple[Callable[[float], float], list[float]]:
    """Where a value is, and the values at which lines are drawn: five steps of a round number, from 0."""
    magnitude = 10 ** math.floor(math.log10(most / 5)) if most > 0 else 1.0
    step = next(factor * magnitude for factor in (1, 2, 2.5, 3, 4, 5, 6, 8, 10) if factor * magnitude * 5 >= most)
    inner = _HEIGHT - _TOP - _BOTTOM
    return (lambda value: _HEIGHT - _BOTTOM - inner * value / (5 * step)), [i * step for i in range(6)]


def _table(tuned: Tuned) -> str:
    heads = ("memory", "CPU", "warm", "with init", "with restore", "used", "a million", "")
    rows = [_row(tuned, size) for size in tuned.sizes]
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _row(tuned: Tuned, size: Size) -> str:
    first = f"<td>{size.memory_mb:,} MB</td><td>{size.cpus:.2f}</td>"
    if size.measured is None:
        return f'<tr>{first}<td class="failed" colspan="6">{html.escape(size.failure or "")}</td></tr>'
    marks = marks_of(tuned, size.memory_mb)
    cells = (
        _ms(size.measured.warm_ms),
        _ms(size.measured.cold_ms),
        _ms(size.measured.restored_ms),
        "-" if size.most_memory_mb is None else f"{size.most_memory_mb:,} MB",
        f"{tuned.per_million[size.memory_mb]:,.2f}",
        ", ".join(marks),
    )
    kind = ' class="chosen"' if marks else ""
    return f"<tr{kind}>{first}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms"
