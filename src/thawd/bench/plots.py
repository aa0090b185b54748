"""Draws plots as SVG: scales, axes, dots, lines, steps, bars. The page's style sheet defines colours and line widths.

A plot is drawn in a box that is `WIDTH` units wide, and the browser scales it to the width of the page. Elements that
show data have a CSS class ``k-NAME``, which selects their colour; other elements have classes such as ``axis``,
``grid`` and ``label``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from thawd.bench.pages import fragment

if TYPE_CHECKING:
    from markupsafe import Markup

WIDTH = 860.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 16.0, 14.0, 40.0
_MOST_STEPS = 2000
# If a plot has fewer dots than this, they are drawn larger.
_FEW = 20

Point = tuple[float, float]


def number(value: float) -> str:
    """Format a number with three significant digits and thousands separators."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(digits, 4)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True, slots=True)
class Shape:
    """An element of a drawing.

    Attributes:
        tag: name of the SVG element.
        attributes: the element's attributes by name; those that are None are left out.
        text: text inside the element.
    """

    tag: str
    attributes: Mapping[str, object]
    text: str = ""


def drawing(shapes: Sequence[Shape], *, width: float, height: float, title: str) -> Markup:
    """Return `shapes` as one SVG drawing. `title` describes it for readers who cannot see it."""
    return fragment("drawing.svg", shapes=shapes, width=f"{width:g}", height=f"{height:g}", title=title)


def path(kind: str, d: str) -> Shape:
    """Return an SVG path with the CSS class `kind`; `d` is the path in SVG's notation."""
    return Shape("path", {"class": kind, "d": d})


def text(kind: str, words: str, *, x: object, y: object, anchor: str | None = None, **more: object) -> Shape:
    """Return a text with the CSS class `kind`.

    `anchor` says which point of the text is at `x`: ``start`` (the default), ``middle`` or ``end``.
    """
    return Shape("text", {"class": kind, **more, "x": x, "y": y, "text-anchor": anchor}, words)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to places on an axis.

    Attributes:
        place: converts a value to its place on the axis, 0-1.
        ticks: values that are marked on the axis, with their labels.
    """

    place: Callable[[float], float]
    ticks: Sequence[tuple[float, str]]


def linear(largest: float, *, whole: bool = False, unit: str = "") -> Scale:
    """Return a linear scale from 0 to `largest` or a little more, with round steps, in whole numbers if `whole`."""
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
    """Return a logarithmic scale whose ends are 1, 2 or 5 times a power of ten."""
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
    """Return a scale of percentiles, on which the distances from 90 to 99, from 99 to 99.9 and so on are equal.

    Args:
        most: largest percentile below 100 that is shown.
    """
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
        y: the vertical scale.
        title: description for readers who cannot see the plot.
        x_label: label of the horizontal axis.
        y_label: label of the vertical axis.
        height: height of the box.
    """

    x: Scale
    y: Scale
    title: str
    x_label: str = ""
    y_label: str = ""
    height: float = 280.0
    _parts: list[Shape] = field(default_factory=list)

    def dots(self, points: Iterable[Point], kind: str) -> None:
        """Draw a dot for each point. Points at nearly the same place get one dot."""
        places = dict.fromkeys((round(self._x(x), 1), round(self._y(y) * 2) / 2) for x, y in points)
        if places:
            few = " few" if len(places) < _FEW else ""
            self._parts.append(path(f"dots{few} k-{kind}", "".join(f"M{x:g} {y:g}h0" for x, y in places)))

    def crosses(self, points: Iterable[Point], kind: str) -> None:
        """Draw a cross for each point. Points at nearly the same place get one cross."""
        places = dict.fromkeys((round(self._x(x), 1), round(self._y(y))) for x, y in points)
        if places:
            way = "".join(f"M{x - 3:g} {y - 3:g}l6 6m-6 0l6 -6" for x, y in places)
            self._parts.append(path(f"crosses k-{kind}", way))

    def line(self, points: Sequence[Point], kind: str) -> None:
        """Draw a line through the points."""
        if points:
            way = "L".join(f"{self._x(x):.1f} {self._y(y):.1f}" for x, y in points)
            self._parts.append(path(f"line k-{kind}", f"M{way}"))

    def steps(self, points: Sequence[Point], kind: str, *, filled: bool = False) -> None:
        """Draw steps: from each point a horizontal line to the next one's x, then a vertical line to its y."""
        points = _highest(points, _MOST_STEPS)
        if not points:
            return
        way = [f"M{self._x(points[0][0]):.1f} {self._y(points[0][1]):.1f}"]
        for x, y in points[1:]:
            way.append(f"H{self._x(x):.1f}V{self._y(y):.1f}")
        if filled:
            way.append(f"V{self._y(0):.1f}H{self._x(points[0][0]):.1f}Z")
        self._parts.append(path(f"{'area' if filled else 'line'} k-{kind}", "".join(way)))

    def level(self, y: float, words: str) -> None:
        """Draw a dashed horizontal line with a label."""
        at, right = self._y(y), WIDTH - _RIGHT
        self._parts.append(path("level", f"M{_LEFT} {at:.1f}H{right}"))
        self._parts.append(text("label", words, x=right - 4, y=f"{at - 4:.1f}", anchor="end"))

    def svg(self) -> Markup:
        """Return the drawing."""
        return drawing([*self._axes(), *self._parts], width=WIDTH, height=self.height, title=self.title)

    def _axes(self) -> Iterator[Shape]:
        right, bottom = WIDTH - _RIGHT, self.height - _BOTTOM
        for value, words in self.y.ticks:
            y = self._y(value)
            yield path("grid", f"M{_LEFT} {y:.1f}H{right}")
            yield text("tick", words, x=_LEFT - 6, y=f"{y + 4:.1f}", anchor="end")
        for value, words in self.x.ticks:
            x = self._x(value)
            anchor = "start" if x < _LEFT + 12 else "end" if x > right - 12 else "middle"
            yield path("grid", f"M{x:.1f} {_TOP}V{bottom}")
            yield text("tick", words, x=f"{x:.1f}", y=bottom + 15, anchor=anchor)
        yield path("axis", f"M{_LEFT} {_TOP}V{bottom}H{right}")
        yield text("label", self.x_label, x=(_LEFT + right) / 2, y=self.height - 6, anchor="middle")
        if self.y_label:
            middle = f"{(_TOP + bottom) / 2:g}"
            rotation = f"rotate(-90 13 {middle})"
            yield text("label", self.y_label, x=13, y=middle, anchor="middle", transform=rotation)

    def _x(self, value: float) -> float:
        return _LEFT + min(1.0, max(0.0, self.x.place(value))) * (WIDTH - _RIGHT - _LEFT)

    def _y(self, value: float) -> float:
        bottom = self.height - _BOTTOM
        return bottom - min(1.0, max(0.0, self.y.place(value))) * (bottom - _TOP)


def bars(rows: Sequence[tuple[str, Sequence[tuple[float, str]], str]], *, title: str, unit: str) -> Markup:
    """Draw horizontal bars that consist of several parts.

    Args:
        rows: for each bar its name, its parts as (length, name of the colour), and the text to the right of the bar.
        title: description for readers who cannot see the drawing.
        unit: label of the horizontal axis.
    """
    left, tail, line = 210.0, 90.0, 30.0
    largest = max((sum(length for length, _ in parts) for _, parts, _ in rows), default=1.0) or 1.0
    scale = linear(largest)
    room = WIDTH - left - tail
    height = line * len(rows) + 34
    drawn = []
    for value, words in scale.ticks:
        x = left + scale.place(value) * room
        drawn.append(path("grid", f"M{x:.1f} 4V{height - 30:g}"))
        drawn.append(text("tick", words, x=f"{x:.1f}", y=f"{height - 16:g}", anchor="middle"))
    for index, (name, parts, told) in enumerate(rows):
        y = index * line + 8
        drawn.append(text("name", name, x=left - 8, y=f"{y + 14:g}", anchor="end"))
        x = left
        for length, kind in parts:
            width = scale.place(length) * room
            if width > 0:
                where = {"x": f"{x:.1f}", "y": y, "width": f"{width:.1f}", "height": 18}
                drawn.append(Shape("rect", {"class": f"k-{kind}", **where}))
            x += width
        drawn.append(text("tick", told, x=f"{x + 6:.1f}", y=f"{y + 13:g}"))
    drawn.append(text("label", unit, x=f"{left + room / 2:g}", y=f"{height - 2:g}", anchor="middle"))
    return drawing(drawn, width=WIDTH, height=height, title=title)


def _highest(points: Sequence[Point], most: int) -> Sequence[Point]:
    """Reduce `points` to about `most`: of each group of neighbouring points, only the highest is kept."""
    if len(points) <= most:
        return points
    size = math.ceil(len(points) / most)
    return [
        *(max(points[i : i + size], key=lambda point: point[1]) for i in range(0, len(points) - 1, size)),
        points[-1],
    ]
