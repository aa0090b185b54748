"""Shows the result of `thawd tune` on one self-contained HTML page: a plot of time and cost by size, and a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from thawd.bench.pages import document
from thawd.bench.plots import Shape, drawing
from thawd.cost.tune import Size, Tuned

if TYPE_CHECKING:
    from markupsafe import Markup

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 74, 84, 58
_NAME_WIDTH = 44
_MARKS = ("cheapest", "fastest", "balanced")

_HEADS = ("memory", "CPU", "warm", "with init", "with restore", "used", "a million", "")
_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class _Row:
    """A memory size in the table.

    Attributes:
        cells: figures of the size, as text; only the first two if the function failed.
        marks: properties in which this size is the best, such as "cheapest".
        failure: why the measurement at this size failed; None: it did not.
    """

    cells: Sequence[str]
    marks: Sequence[str]
    failure: str | None = None


def page(tuned: Tuned, *, prices_said: str, runs: int) -> str:
    """Render the page.

    Args:
        tuned: the result to show.
        prices_said: text that says where the prices are from.
        runs: number of warm invocations at each size.
    """
    chosen = (
        "; ".join(f"{name}: {size:,} MB" for name in _MARKS if (size := getattr(tuned, name)) is not None)
        or "the function failed at every size"
    )
    return document(
        "tune.html",
        _TEMPLATES,
        tuned=tuned,
        chosen=chosen[0].upper() + chosen[1:],
        plot=_plot(tuned) if tuned.per_million else "",
        heads=_HEADS,
        rows=[_row(tuned, size) for size in tuned.sizes],
        runs=runs,
        prices_said=prices_said,
    )


def marks_of(tuned: Tuned, memory_mb: int) -> list[str]:
    """Return the properties in which a size is the best, of cheapest, fastest and balanced."""
    return [name for name in _MARKS if getattr(tuned, name) == memory_mb]


def _plot(tuned: Tuned) -> Markup:
    shown = [size for size in tuned.sizes if size.measured is not None]
    times = [size.measured.warm_ms for size in shown if size.measured is not None]
    costs = [tuned.per_million[size.memory_mb] for size in shown]
    x_of = _x_scale([size.memory_mb for size in shown])
    y_of_time, time_steps = _y_scale(max(times))
    y_of_cost, cost_steps = _y_scale(max(costs))
    base = _HEIGHT - _BOTTOM
    shapes = list(_columns(tuned, shown, x_of, base))
    for step, other in zip(time_steps, cost_steps, strict=True):
        y = y_of_time(step)
        shapes.append(_level("grid", f"{y:.1f}"))
        shapes.append(_text(f"{step:g}", x=_LEFT - 8, y=f"{y + 4:.1f}", kind="time", anchor="end"))
        shapes.append(_text(f"{other:g}", x=_WIDTH - _RIGHT + 8, y=f"{y + 4:.1f}", kind="cost"))
    shapes.append(_text("time, ms (line)", x=8, y=16, kind="time"))
    shapes.append(_text("cost of a million (dashes)", x=_WIDTH - 8, y=16, kind="cost", anchor="end"))
    shapes.append(_level("axis", base))
    shapes += _curve("time", [(x_of(s.memory_mb), y_of_time(value)) for s, value in zip(shown, times, strict=True)])
    shapes += _curve("cost", [(x_of(s.memory_mb), y_of_cost(value)) for s, value in zip(shown, costs, strict=True)])
    return drawing(shapes, width=_WIDTH, height=_HEIGHT, title="Time and cost by memory")


def _columns(tuned: Tuned, shown: Sequence[Size], x_of: Callable[[float], float], base: float) -> Iterator[Shape]:
    """Draw the labels of the sizes along the bottom, and a column behind each size with a mark such as "cheapest"."""
    last_x, below = -math.inf, 0
    for size in shown:
        x, marks = x_of(size.memory_mb), marks_of(tuned, size.memory_mb)
        if marks:
            where = {"x": f"{x - 22:.1f}", "y": _TOP, "width": 44, "height": base - _TOP}
            yield Shape("rect", {"class": "column", **where})
        # Labels of sizes that are close to each other alternate between two lines, so that they do not overlap.
        below = 0 if x - last_x > _NAME_WIDTH else 13 - below
        last_x = x
        yield _text(f"{size.memory_mb:,}", x=f"{x:.1f}", y=base + 16 + below, anchor="middle")
        for place, mark in enumerate(marks):
            y = _TOP - 8 - 15 * (len(marks) - 1 - place)  # above the plot, where no curve crosses the text
            yield _text(mark, x=f"{x:.1f}", y=y, kind="mark", anchor="middle")
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield _text("memory, MB (logarithmic)", x=f"{middle:.1f}", y=_HEIGHT - 8, anchor="middle")


def _curve(name: str, points: Sequence[tuple[float, float]]) -> Iterator[Shape]:
    yield Shape("polyline", {"class": name, "points": " ".join(f"{x:.1f},{y:.1f}" for x, y in points)})
    for x, y in points:
        yield Shape("circle", {"class": f"dot {name}", "cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": 4})


def _level(kind: str, y: object) -> Shape:
    return Shape("line", {"class": kind, "x1": _LEFT, "x2": _WIDTH - _RIGHT, "y1": y, "y2": y})


def _text(words: str, *, x: object, y: object, kind: str | None = None, anchor: str | None = None) -> Shape:
    return Shape("text", {"class": kind, "x": x, "y": y, "text-anchor": anchor}, words)


def _x_scale(sizes_mb: Sequence[int]) -> Callable[[float], float]:
    """Return a function that gives the horizontal position of a memory size, on a logarithmic scale."""
    low, high = math.log(min(sizes_mb)), math.log(max(sizes_mb))
    inner = _WIDTH - _LEFT - _RIGHT - 60
    return lambda size: _LEFT + 30 + (inner * (math.log(size) - low) / (high - low) if high > low else inner / 2)


def _y_scale(most: float) -> tuple[Callable[[float], float], list[float]]:
    """Return a function that gives the vertical position of a value, and the values of the grid lines.

    Above the line for 0 there are five more, at equal, round steps. The highest is at least `most`.
    """
    magnitude = 10 ** math.floor(math.log10(most / 5)) if most > 0 else 1.0
    step = next(factor * magnitude for factor in (1, 2, 2.5, 3, 4, 5, 6, 8, 10) if factor * magnitude * 5 >= most)
    inner = _HEIGHT - _TOP - _BOTTOM
    return (lambda value: _HEIGHT - _BOTTOM - inner * value / (5 * step)), [i * step for i in range(6)]


def _row(tuned: Tuned, size: Size) -> _Row:
    marks = marks_of(tuned, size.memory_mb)
    cells = [f"{size.memory_mb:,} MB", f"{size.cpus:.2f}"]
    if size.measured is None:
        return _Row(cells, marks, size.failure or "")
    cells += [
        _ms(size.measured.warm_ms),
        _ms(size.measured.cold_ms),
        _ms(size.measured.restored_ms),
        "-" if size.most_memory_mb is None else f"{size.most_memory_mb:,} MB",
        f"{tuned.per_million[size.memory_mb]:,.2f}",
    ]
    return _Row(cells, marks)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms"
