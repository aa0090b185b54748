"""Plots as SVG text: scales, axes, dots, lines, steps, bars. No library; looks come from the page's style sheet.

A plot is drawn in a box of `WIDTH` units and grows with the page. Classes: ``k-NAME`` colours what is drawn, ``axis``,
``grid`` and ``label`` are the rest.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

WIDTH = 860.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 16.0, 14.0, 40.0
_MOST_STEPS = 2000
# So many dots are drawn larger.
_FEW = 20

Point = tuple[float, float]


def number(value: float) -> str:
    """A figure for people: three digits, with separators."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(digits, 4)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True, slots=True)
class Scale:
    """Values to places on an axis.

    Attributes:
        place: from a value to 0-1.
        ticks: values with their labels.
    """

    place: Callable[[float], float]
    ticks: Sequence[tuple[float, str]]


def linear(largest: float, *, whole: bool = False, unit: str = "") -> Scale:
    """From 0 to a little more than `largest`, by round steps; `whole`: only whole ones."""
    largest = largest if largest > 0 else 1.0
    step = 10 ** math.floor(math.log10(largest / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if largest / (step * factor) <= 5.5)
    if whole:
        step = max(1, step)
    end = math.ceil(largest / step - 1e-9) * step
    count = round(end / step)
    return Scale(
        lambda value: value / end, [(index * step, f"{number(index * step)}{unit}") for index in range(count + 1)]
    )


def logarithmic(smallest: float, largest: float, *, unit: str = "") -> Scale:
    """From a power of ten to another, or to 2 or 5 times one where that is closer."""
    smallest = max(smallest, 1e-3)
    largest = max(largest, smallest * 1.01)
    rounds = [m * 10**e for e in range(-4, 9) for m in (1, 2, 5)]
    low = max(value for value in rounds if value <= smallest * 1.0001)
    high = min(value for value in rounds if value >= largest * 0.9999)
    if high <= low:
        high = low * 10
    span = math.log(high / low)
    shown = [value for value in rounds if low <= value <= high]
    if len(shown) > 9:
        shown = [value for value in shown if math.log10(value) % 1 < 1e-9]
    return Scale(
        lambda value: math.log(max(value, low) / low) / span, [(value, f"{number(value)}{unit}") for value in shown]
    )


def of_percentiles(most: float) -> Scale:
    """Percentiles so that each further nine takes as much room; `most`: the largest below 100."""
    end = math.log10(100 / (100 - min(most, 99.9999))) * 1.04
    ticks = [(0.0, "fastest"), (50.0, "50 %"), (90.0, "90 %"), (99.0, "99 %"), (99.9, "99.9 %"), (99.99, "99.99 %")]

    def place(value: float) -> float:
        return 1.0 if value >= 100 else min(1.0, math.log10(100 / (100 - value)) / end)

    return Scale(place, [(value, text) for value, text in ticks if value <= most])


@dataclass(slots=True)
class Plot:
    """A plot that is being drawn.

    Args:
        x: the horizontal scale.
        y: the vertical one.
        title: what it shows, for who cannot see it.
        x_label: what is along the horizontal axis.
        y_label: what is along the vertical one.
        height: of the box.
    """

    x: Scale
    y: Scale
    title: str
    x_label: str = ""
    y_label: str = ""
    height: float = 280.0
    _parts: list[str] = field(default_factory=list)

    def dots(self, points: Iterable[Point], kind: str) -> None:
        """A dot for each point; those that would cover each other are drawn once."""
        places = dict.fromkeys((round(self._x(x), 1), round(self._y(y) * 2) / 2) for x, y in points)
        path = "".join(f"M{x:g} {y:g}h0" for x, y in places)
        if path:
            few = " few" if len(places) < _FEW else ""
            self._parts.append(f'<path class="dots{few} k-{kind}" d="{path}"/>')

    def crosses(self, points: Iterable[Point], kind: str) -> None:
        """A cross for each point."""
        places = dict.fromkeys((round(self._x(x), 1), round(self._y(y))) for x, y in points)
        path = "".join(f"M{x - 3:g} {y - 3:g}l6 6m-6 0l6 -6" for x, y in places)
        if path:
            self._parts.append(f'<path class="crosses k-{kind}" d="{path}"/>')

    def line(self, points: Sequence[Point], kind: str) -> None:
        """A line through the points."""
        if points:
            path = "L".join(f"{self._x(x):.1f} {self._y(y):.1f}" for x, y in points)
            self._parts.append(f'<path class="line k-{kind}" d="M{path}"/>')

    def steps(self, points: Sequence[Point], kind: str, *, filled: bool = False) -> None:
        """A line that stays where it is until the next point."""
        points = _highest(points, _MOST_STEPS)
        if not points:
            return
        path = [f"M{self._x(points[0][0]):.1f} {self._y(points[0][1]):.1f}"]
        for x, y in points[1:]:
            path.append(f"H{self._x(x):.1f}V{self._y(y):.1f}")
        if filled:
            path.append(f"V{self._y(0):.1f}H{self._x(points[0][0]):.1f}Z")
        self._parts.append(f'<path class="{"area" if filled else "line"} k-{kind}" d="{"".join(path)}"/>')

    def level(self, y: float, text: str) -> None:
        """A dashed horizontal line with a word on it."""
        at, right = self._y(y), WIDTH - _RIGHT
        self._parts.append(
            f'<path class="level" d="M{_LEFT} {at:.1f}H{right}"/>'
            f'<text class="label" x="{right - 4}" y="{at - 4:.1f}" text-anchor="end">{html.escape(text)}</text>'
        )

    def svg(self) -> str:
        """The drawing."""
        return (
            f'<svg viewBox="0 0 {WIDTH:g} {self.height:g}" role="img" aria-label="{html.escape(self.title)}">'
            f"<title>{html.escape(self.title)}</title>{self._axes()}{''.join(self._parts)}</svg>"
        )

    def _axes(self) -> str:
        parts = []
        right, bottom = WIDTH - _RIGHT, self.height - _BOTTOM
        for value, text in self.y.ticks:
            y = self._y(value)
            parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{right}"/>')
            parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
        for value, text in self.x.ticks:
            x = self._x(value)
            anchor = "start" if x < _LEFT + 12 else "end" if x > right - 12 else "middle"
            parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{bottom}"/>')
            parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 15}" text-anchor="{anchor}">{text}</text>')
        parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>')
        middle = (_LEFT + right) / 2
        parts.append(
            f'<text class="label" x="{middle}" y="{self.height - 6}" text-anchor="middle">{self.x_label}</text>'
        )
        if self.y_label:
            across = (_TOP + bottom) / 2
            parts.append(
                f'<text class="label" transform="rotate(-90 13 {across:g})" x="13" y="{across:g}" '
                f'text-anchor="middle">{self.y_label}</text>'
            )
        return "".join(parts)

    def _x(self, value: float) -> float:
        return _LEFT + min(1.0, max(0.0, self.x.place(value))) * (WIDTH - _RIGHT - _LEFT)

    def _y(self, value: float) -> float:
        bottom = self.height - _BOTTOM
        return bottom - min(1.0, max(0.0, self.y.place(value))) * (bottom - _TOP)


def bars(rows: Sequence[tuple[str, Sequence[tuple[float, str]], str]], *, title: str, unit: str) -> str:
    """Horizontal bars of several parts each: (name, parts as (length, kind), what stands behind it)."""
    left, tail, line = 210.0, 90.0, 30.0
    largest = max((sum(length for length, _ in parts) for _, parts, _ in rows), default=1.0) or 1.0
    scale = linear(largest)
    room = WIDTH - left - tail
    height = line * len(rows) + 34
    drawn = []
    for value, text in scale.ticks:
        x = left + scale.place(value) * room
        drawn.append(f'<path class="grid" d="M{x:.1f} 4V{height - 30:g}"/>')
        drawn.append(f'<text class="tick" x="{x:.1f}" y="{height - 16:g}" text-anchor="middle">{text}</text>')
    for index, (name, parts, told) in enumerate(rows):
        y = index * line + 8
        drawn.append(f'<text class="name" x="{left - 8}" y="{y + 14:g}" text-anchor="end">{html.escape(name)}</text>')
        x = left
        for length, kind in parts:
            width = scale.place(length) * room
            if width > 0:
                drawn.append(f'<rect class="k-{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="18"/>')
            x += width
        drawn.append(f'<text class="tick" x="{x + 6:.1f}" y="{y + 13:g}">{html.escape(told)}</text>')
    drawn.append(
        f'<text class="label" x="{left + room / 2:g}" y="{height - 2:g}" text-anchor="middle">'
        f"{html.escape(unit)}</text>"
    )
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{html.escape(title)}">'
        f"<title>{html.escape(title)}</title>{''.join(drawn)}</svg>"
    )


def _highest(points: Sequence[Point], most: int) -> Sequence[Point]:
    """At most so many points: of each stretch the highest."""
    if len(points) <= most:
        return points
    size = math.ceil(len(points) / most)
    return [
        *(max(points[i : i + size], key=lambda point: point[1]) for i in range(0, len(points) - 1, size)),
        points[-1],
    ]
