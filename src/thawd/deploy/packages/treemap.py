"""Treemaps: rectangles whose areas are proportional to values, as near to squares as possible. No side effects.

Source: Bruls, Huizing, van Wijk, "Squarified Treemaps", 2000.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A rectangle. Its unit is that of the rectangle that was divided."""

    x: float
    y: float
    width: float
    height: float


def divide(values: Sequence[float], whole: Rectangle) -> list[Rectangle]:
    """Divide a rectangle, and return a part for each value, in the same order.

    Args:
        values: positive values, the largest first.
        whole: the rectangle to divide.
    """
    parts: list[Rectangle] = []
    total = sum(values)
    left, start = whole, 0
    while start < len(values) and total > 0:
        scale = left.width * left.height / total
        side = min(left.width, left.height)
        end = start + 1
        while end < len(values) and _worst(values[start : end + 1], side, scale) <= _worst(
            values[start:end], side, scale
        ):
            end += 1
        row, left = _row(values[start:end], left, scale)
        parts += row
        total -= sum(values[start:end])
        start = end
    return parts + [Rectangle(left.x, left.y, 0.0, 0.0)] * (len(values) - len(parts))


def _worst(row: Sequence[float], side: float, scale: float) -> float:
    """Return the largest ratio of the sides of a row's rectangles, if the row lies along a side of this length."""
    area = sum(row) * scale
    if area <= 0 or side <= 0:
        return float("inf")
    largest, smallest = max(row) * scale, min(row) * scale
    return max(side * side * largest / (area * area), area * area / (side * side * smallest))


def _row(row: Sequence[float], left: Rectangle, scale: float) -> tuple[list[Rectangle], Rectangle]:
    """Lay a row along the shorter side. Return its rectangles and the remaining area."""
    area = sum(row) * scale
    parts = []
    if left.width >= left.height:
        width = area / left.height if left.height else 0.0
        y = left.y
        for value in row:
            height = value * scale / width if width else 0.0
            parts.append(Rectangle(left.x, y, width, height))
            y += height
        return parts, Rectangle(left.x + width, left.y, max(0.0, left.width - width), left.height)
    height = area / left.width if left.width else 0.0
    x = left.x
    for value in row:
        width = value * scale / height if height else 0.0
        parts.append(Rectangle(x, left.y, width, height))
        x += width
    return parts, Rectangle(left.x, left.y + height, left.width, max(0.0, left.height - height))
