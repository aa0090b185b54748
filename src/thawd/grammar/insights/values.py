"""Values in Logs Insights queries: numbers, texts and times, how they compare, and how results show them.

Fields have no types: a text that looks like a number is one where a number is needed. A missing value is None.
"""

from __future__ import annotations

import math
import re
import time
from typing import Any

Value = Any
"""None, a text, a number (bool, int, float), or a `Time`."""

# A text of any other length is no number, so a long text is not searched.
_LONGEST_NUMBER = 40
_NUMBER = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*")
# Whole numbers of at least this size are computed as floats.
_LARGEST_WHOLE = 1 << 63


class Time(int):
    """A point in time, milliseconds since 1970, which results show as a date."""


def number(value: Value) -> float | int | None:
    """The number that a value is or looks like; None: it is none."""
    if isinstance(value, int):
        return value if -_LARGEST_WHOLE < value < _LARGEST_WHOLE else _as_float(value)
    if isinstance(value, float):
        return value
    if isinstance(value, str) and len(value) <= _LONGEST_NUMBER and _NUMBER.fullmatch(value):
        found = float(value)
        return int(found) if found.is_integer() and abs(found) < 1e15 else found
    return None


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def whole(value: Value) -> int | None:
    """The whole number that a value is or looks like, without its decimal places; None: it is none, or not finite."""
    found = number(value)
    return None if found is None or not math.isfinite(found) else int(found)


def text(value: Value) -> str:
    """A value as results show it; a missing value is empty."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, Time):
        return _time_text(value)
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int):
        return str(value)
    return _float_text(value)


def _time_text(value: Time) -> str:
    seconds, milliseconds = divmod(int(value), 1000)
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds)) + f".{milliseconds:03d}"
    except (ValueError, OverflowError, OSError):  # no date is that far away
        return str(int(value))


def _float_text(value: float) -> str:
    """At most four decimal places, as in AWS's results."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    rounded = round(value, 4)
    if rounded.is_integer() and abs(rounded) < 1e15:
        return str(int(rounded))
    return f"{rounded:.4f}".rstrip("0").rstrip(".") if abs(rounded) < 1e15 else scientific(value)


def scientific(value: float) -> str:
    """A number as Java writes it: ``1.28E8`` from ten million on, ``512.0`` below."""
    if abs(value) < 1e7:
        return repr(float(value))
    digits, exponent = f"{value:.15e}".split("e")
    digits = digits.rstrip("0")
    return f"{digits}0E{int(exponent)}" if digits.endswith(".") else f"{digits}E{int(exponent)}"


def is_true(value: Value) -> bool:
    """Whether a filter keeps an event for which its condition has this value."""
    if isinstance(value, str):
        return value not in ("", "0", "false")
    return bool(value)


def compare(left: Value, right: Value) -> int | None:
    """-1, 0 or 1 for less, equal or greater; None: one of the values is missing. Numbers compare as numbers."""
    if left is None or right is None:
        return None
    of_left, of_right = number(left), number(right)
    if of_left is not None and of_right is not None:
        return (of_left > of_right) - (of_left < of_right)
    this, that = text(left), text(right)
    return (this > that) - (this < that)


def order(value: Value) -> tuple[int, float, str]:
    """A key for sorting: numbers first, then texts, then missing values."""
    if value is None:
        return (2, 0.0, "")
    found = number(value)
    return (1, 0.0, text(value)) if found is None else (0, float(found), "")
