"""Parses the expressions of CloudWatch metric math, and computes them over time series. No side effects.

A value is a number, a time series (numbers by time), or a list of time series. Operators and functions work time by
time; where one of two series has no number, the result has none.

Source: CloudWatch user guide, "Using math expressions with CloudWatch metrics".
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Series = dict[float, float]
Value = float | Series | list[Series]
"""Times are in seconds since 1970."""

MAX_CHARACTERS = 2048
_MAX_DEPTH = 20
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<text>\"[^\"]*\"|'[^']*')|(?P<name>[A-Za-z]\w*)"
    r"|(?P<sign>&&|\|\||[=!<>]=|[-+*/^()\[\],<>]))"
)


class MetricMathError(ValueError):
    """A text is not an expression, or its values do not fit; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What an expression is computed from.

    Attributes:
        values: the value of each query, by its id.
        metrics: the ids of the queries that are metrics, in order.
        periods_s: the period of each query, by its id, seconds.
        times: all times of the result, ascending.
    """

    values: Mapping[str, Value]
    metrics: tuple[str, ...]
    periods_s: Mapping[str, float]
    times: tuple[float, ...]


Expression = Callable[[Inputs], Value]


def parse(text: str) -> tuple[Expression, frozenset[str]]:
    """Parse an expression; returns what computes it, and the ids that it uses.

    Raises:
        MetricMathError: the text is not an expression that is supported.
    """
    if len(text) > MAX_CHARACTERS:
        raise MetricMathError(f"an expression has at most {MAX_CHARACTERS} characters")
    parser = _Parser(text)
    return parser.parse(), frozenset(parser.ids)


class _Parser:
    def __init__(self, text: str) -> None:
        self.ids: set[str] = set()
        self._tokens: list[tuple[str, str]] = []
        self._at = 0
        self._depth = 0
        position, text = 0, text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise MetricMathError(f"unexpected characters at {text[position : position + 20]!r}")
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            position = match.end()

    def parse(self) -> Expression:
        expression = self._either()
        if self._at < len(self._tokens):
            raise MetricMathError(f"unexpected {self._tokens[self._at][1]!r}")
        return expression

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "the end")

    def _take(self, *signs: str) -> str | None:
        kind, text = self._peek()
        if kind in ("sign", "name") and text in signs:
            self._at += 1
            return text
        return None

    def _require(self, sign: str) -> None:
        if not self._take(sign):
            raise MetricMathError(f"{sign} is missing before {self._peek()[1]!r}")

    def _either(self) -> Expression:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise MetricMathError("parentheses are nested too deep")
        found = self._chain(self._both, "||", "OR")
        self._depth -= 1
        return found

    def _both(self) -> Expression:
        return self._chain(self._compared, "&&", "AND")

    def _compared(self) -> Expression:
        return self._chain(self._sum, "==", "!=", "<=", ">=", "<", ">")

    def _sum(self) -> Expression:
        return self._chain(self._product, "+", "-")

    def _product(self) -> Expression:
        return self._chain(self._power, "*", "/")

    def _chain(self, operand: Callable[[], Expression], *signs: str) -> Expression:
        """Operands that are joined by operators of the same strength, computed from the left to the right."""
        first, others = operand(), []
        while sign := self._take(*signs):
            others.append((_OPERATORS[_SAME.get(sign, sign)], operand()))

        def computed(inputs: Inputs) -> Value:
            found = first(inputs)
            for operator, other in others:
                found = _combined(operator, found, other(inputs))
            return found

        return computed if others else first

    def _power(self) -> Expression:
        parts = [self._single()]
        while self._take("^"):
            parts.append(self._single())
        *bases, last = parts

        def computed(inputs: Inputs) -> Value:
            found = last(inputs)
            for base in reversed(bases):
                found = _combined(_OPERATORS["^"], base(inputs), found)
            return found

        return computed if bases else last

    def _negative(self) -> Expression:
        signs = 0
        while self._take("-"):
            signs += 1
        of, factor = self._single(), -1.0 if signs % 2 else 1.0
        return lambda inputs: _combined(_OPERATORS["*"], factor, of(inputs))

    def _single(self) -> Expression:
        kind, text = self._peek()
        if (kind, text) == ("sign", "-"):
            return self._negative()
        self._at += 1
        if (kind, text) == ("sign", "("):
            inner = self._either()
            self._require(")")
            return inner
        if (kind, text) == ("sign", "["):
            return self._list()
        if kind == "number":
            number = float(text)
            return lambda inputs: number
        if kind == "name" and self._peek() == ("sign", "("):
            return self._call(text)
        if kind == "name":
            self.ids.add(text)
            return lambda inputs: inputs.values[text]
        raise MetricMathError(f"unexpected {text!r}")

    def _list(self) -> Expression:
        items = [self._either()]
        while self._take(","):
            items.append(self._either())
        self._require("]")

        def listed(inputs: Inputs) -> Value:
            found: list[Series] = []
            for item in items:
                found += _series(item(inputs), inputs)
            return found

        return listed

    def _call(self, name: str) -> Expression:
        self._require("(")
        if name == "METRICS":
            return self._metrics()
        arguments: list[Expression] = []
        words: list[str] = []
        while not self._take(")"):
            if arguments:
                self._require(",")
            kind, text = self._peek()
            words.append(text)
            if name == "FILL" and arguments and kind == "name" and text in ("REPEAT", "LINEAR"):
                self._at += 1
                arguments.append(lambda inputs: math.nan)
            else:
                arguments.append(self._either())
        found: Expression | None = None
        if len(arguments) == 1:
            found = _of_one(name, arguments[0], words[0])
        elif name == "FILL" and len(arguments) == 2:
            found = _filled(arguments[0], arguments[1], words[1])
        if name == "IF" and len(arguments) in (2, 3):
            found = _chosen(arguments)
        if found is None:
            raise MetricMathError(f"the function {name} with {len(arguments)} arguments is not supported")
        return found

    def _metrics(self) -> Expression:
        kind, text = self._peek()
        wanted = ""
        if kind == "text":
            self._at += 1
            wanted = text[1:-1]
        self._require(")")
        return lambda inputs: [_series(inputs.values[name], inputs)[0] for name in inputs.metrics if wanted in name]


def _of_one(name: str, argument: Expression, word: str) -> Expression | None:
    """A function of one argument, whose first token is `word`; None: there is no such function."""
    if name == "PERIOD":
        return lambda inputs: inputs.periods_s.get(word, math.nan)
    if name in ("RATE", "DIFF"):
        return _each(argument, lambda series: _differences(series, per_second=name == "RATE"))
    if name in _OF_ONE:
        function = _OF_ONE[name]
        return _each(argument, lambda series: {at: function(value) for at, value in series.items()})
    return _together(argument, _OF_MANY[name]) if name in _OF_MANY else None


_OF_ONE: Mapping[str, Callable[[float], float]] = {
    "ABS": abs,
    "CEIL": lambda value: float(math.ceil(value)) if math.isfinite(value) else value,
    "FLOOR": lambda value: float(math.floor(value)) if math.isfinite(value) else value,
}
_OF_MANY: Mapping[str, Callable[[list[float]], float]] = {
    "SUM": sum,
    "AVG": lambda values: sum(values) / len(values),
    "MIN": min,
    "MAX": max,
}
_OPERATORS: Mapping[str, Callable[[float, float], float]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
    "^": lambda left, right: float(left**right),
    "==": lambda left, right: float(left == right),
    "!=": lambda left, right: float(left != right),
    "<": lambda left, right: float(left < right),
    "<=": lambda left, right: float(left <= right),
    ">": lambda left, right: float(left > right),
    ">=": lambda left, right: float(left >= right),
    "&&": lambda left, right: float(bool(left) and bool(right)),
    "||": lambda left, right: float(bool(left) or bool(right)),
}
_SAME: Mapping[str, str] = {"AND": "&&", "OR": "||"}


def _combined(operator: Callable[[float, float], float], left: Value, right: Value) -> Value:
    if isinstance(left, list) and isinstance(right, list):
        raise MetricMathError("an operator takes at most one list of time series")
    if isinstance(left, list):
        return [_as_series(_combined(operator, each, right)) for each in left]
    if isinstance(right, list):
        return [_as_series(_combined(operator, left, each)) for each in right]
    if isinstance(left, dict):
        pairs = {at: (value, _at(right, at)) for at, value in left.items()}
    elif isinstance(right, dict):
        pairs = {at: (left, value) for at, value in right.items()}
    else:
        found = _applied(operator, left, right)
        return math.nan if found is None else found
    results = ((at, _applied(operator, a, b)) for at, (a, b) in pairs.items() if b is not None)
    return {at: value for at, value in results if value is not None}


def _as_series(value: Value) -> Series:
    assert isinstance(value, dict)
    return value


def _at(value: Value, at: float) -> float | None:
    if isinstance(value, dict):
        return value.get(at)
    assert not isinstance(value, list)
    return value


def _applied(operator: Callable[[float, float], float], left: float, right: float) -> float | None:
    try:
        return float(operator(left, right))
    except (ZeroDivisionError, OverflowError, TypeError, ValueError):
        return None  # as on AWS, there is no data point


def _series(value: Value, inputs: Inputs) -> list[Series]:
    if isinstance(value, list):
        return value
    return [value] if isinstance(value, dict) else [dict.fromkeys(inputs.times, value)]


def _each(argument: Expression, function: Callable[[Series], Series]) -> Expression:
    def computed(inputs: Inputs) -> Value:
        value = argument(inputs)
        found = [function(each) for each in _series(value, inputs)]
        return found if isinstance(value, list) else found[0]

    return computed


def _together(argument: Expression, function: Callable[[list[float]], float]) -> Expression:
    """A list of series becomes a series, time by time; a single series becomes a number."""

    def computed(inputs: Inputs) -> Value:
        value = argument(inputs)
        if isinstance(value, list):
            times = sorted({at for series in value for at in series})
            return {at: function([series[at] for series in value if at in series]) for at in times}
        if isinstance(value, dict):
            return function(list(value.values())) if value else math.nan
        return value

    return computed


def _differences(series: Series, *, per_second: bool) -> Series:
    times = sorted(series)
    return {
        at: (series[at] - series[before]) / (at - before if per_second else 1)
        for before, at in itertools.pairwise(times)
    }


def _filled(argument: Expression, filler: Expression, word: str) -> Expression:
    def fill(series: Series, inputs: Inputs) -> Series:
        value = filler(inputs)
        known = sorted(series)
        found = dict(series)
        for at in inputs.times:
            if at in series:
                continue
            place = bisect.bisect(known, at)
            before = known[place - 1] if place else None
            after = known[place] if place < len(known) else None
            if word == "REPEAT":
                if before is not None:
                    found[at] = series[before]
            elif word == "LINEAR":
                if before is not None and after is not None:
                    share = (at - before) / (after - before)
                    found[at] = series[before] + share * (series[after] - series[before])
            else:
                filled = _at(value, at)
                if filled is not None:
                    found[at] = filled
        return dict(sorted(found.items()))

    def computed(inputs: Inputs) -> Value:
        value = argument(inputs)
        found = [fill(each, inputs) for each in _series(value, inputs)]
        return found if isinstance(value, list) else found[0]

    return computed


def _chosen(arguments: list[Expression]) -> Expression:
    """``IF(condition, then, otherwise)``; without `otherwise` there is no data point where the condition is false."""

    def computed(inputs: Inputs) -> Value:
        condition, *branches = (argument(inputs) for argument in arguments)
        if isinstance(condition, list) or any(isinstance(branch, list) for branch in branches):
            raise MetricMathError("IF takes no lists of time series")
        times = condition if isinstance(condition, dict) else inputs.times
        found: Series = {}
        for at in times:
            index = 0 if _at(condition, at) else 1
            if index < len(branches):
                value = _at(branches[index], at)
                if value is not None:
                    found[at] = value
        return found

    return computed
