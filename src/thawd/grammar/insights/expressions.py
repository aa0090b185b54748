"""Parses the expressions of Logs Insights queries into functions of a row.

From the weakest to the strongest, the operators are ``or``, ``and``, ``not``, comparisons (with ``like``, ``=~`` and
``in``), ``+ -``, ``* / %``, ``^``.

Source: CloudWatch Logs user guide, "Supported operations and functions".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from thawd.grammar.insights.aggregates import AGGREGATES, Aggregate, percentile
from thawd.grammar.insights.functions import FUNCTIONS
from thawd.grammar.insights.rows import Row
from thawd.grammar.insights.tokens import QueryError, Token, cut, unexpected, wrong
from thawd.grammar.insights.values import Time, Value, compare, is_true, number, text, whole

Expression = Callable[[Row], Value]
_MAX_DEPTH = 40
_PERIOD = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_PERIODS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_LONGEST_POWER = 1000


@dataclass(frozen=True, slots=True)
class Aggregation:
    """An aggregate in a ``stats`` command.

    Attributes:
        make: makes what collects the values.
        argument: the value of one row; None for ``count(*)``.
    """

    make: Callable[[], Aggregate]
    argument: Expression | None


class ExpressionParser:
    """A recursive-descent parser over the tokens of a query.

    Attributes:
        query: the query.
        aggregations: the aggregates of the present ``stats`` command; None: aggregates are not allowed here.

    Raises:
        QueryError: a character of the query belongs to no token.
    """

    def __init__(self, query: str) -> None:
        self.query = query
        self.aggregations: list[Aggregation] | None = None
        self._tokens = cut(query)
        self._at = 0
        self._depth = 0

    @property
    def next(self) -> Token:
        """The next token, which is not consumed."""
        return self._tokens[self._at]

    def take(self) -> Token:
        """Consume the next token."""
        token = self._tokens[self._at]
        if token.kind != "end":
            self._at += 1
        return token

    def take_sign(self, *signs: str) -> bool:
        """Consume the next token if it is one of `signs`; returns whether it was."""
        return self.next.is_sign(*signs) and bool(self.take())

    def take_word(self, *words: str) -> bool:
        """Consume the next token if it is one of these keywords; returns whether it was."""
        return self.next.is_word(*words) and bool(self.take())

    def require_sign(self, sign: str) -> None:
        """Consume `sign`.

        Raises:
            QueryError: the next token is another one.
        """
        if not self.take_sign(sign):
            raise unexpected(self.query, self.next)

    def field_name(self) -> str:
        """Consume the name of a field.

        Raises:
            QueryError: the next token is no name.
        """
        if self.next.kind not in ("name", "quoted"):
            raise unexpected(self.query, self.next)
        return self.take().text

    def named(self) -> tuple[str, Expression]:
        """Consume an expression, and the name that ``as`` gives it. Without ``as`` its own text is its name."""
        start = self.next.start
        is_field = self.next.kind in ("name", "quoted")
        only = self.next.text
        expression = self.expression()
        end = self._tokens[self._at - 1].end
        if self.take_word("as"):
            return self.field_name(), expression
        one_token = self._tokens[self._at - 1].start == start
        return (only if is_field and one_token else self.query[start:end].strip()), expression

    def expression(self) -> Expression:
        """Consume an expression.

        Raises:
            QueryError: there is none.
        """
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise wrong(self.query, "parentheses are nested too deep", self.next.start, self.next.end)
        found = self._either()
        self._depth -= 1
        return found

    def _either(self) -> Expression:
        parts = [self._both()]
        while self.take_word("or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else lambda row: any(is_true(part(row)) for part in parts)

    def _both(self) -> Expression:
        parts = [self._negated()]
        while self.take_word("and"):
            parts.append(self._negated())
        return parts[0] if len(parts) == 1 else lambda row: all(is_true(part(row)) for part in parts)

    def _negated(self) -> Expression:
        negations = 0
        while self.take_word("not"):
            negations += 1
        inner = self._comparison()
        return inner if negations % 2 == 0 else lambda row: not is_true(inner(row))

    def _comparison(self) -> Expression:
        left = self._sum()
        token = self.next
        if token.is_word("not") and self._tokens[self._at + 1].is_word("like", "in"):
            self.take()
            inner = self._like(left) if self.take_word("like") else self._member(left)
            return lambda row: not inner(row)
        if self.take_word("like") or self.take_sign("=~"):
            return self._like(left)
        if token.is_word("in"):
            return self._member(left)
        if self.take_sign("=", "==", "!=", "<", "<=", ">", ">="):
            return _compared(token.text, left, self._sum())
        return left

    def _like(self, left: Expression) -> Expression:
        token = self.take()
        if token.kind == "regex":
            pattern = self.regex(token)
            return lambda row: (value := left(row)) is not None and pattern.search(text(value)) is not None
        if token.kind == "text":
            # Percent signs at the ends are wildcards of SQL, which many people write.
            wanted = token.text
            return lambda row: (value := left(row)) is not None and wanted in text(value)
        raise unexpected(self.query, token)

    def regex(self, token: Token) -> re.Pattern[str]:
        """Compile the regular expression in a token.

        Raises:
            QueryError: it cannot be compiled.
        """
        try:
            return re.compile(re.sub(r"\(\?<(?=[A-Za-z_@])", "(?P<", token.text.replace(r"\/", "/")))
        except (re.error, RecursionError, OverflowError) as error:
            raise wrong(self.query, f"invalid regular expression: {error}", token.start, token.end) from None

    def _member(self, left: Expression) -> Expression:
        self.take_word("in")
        self.require_sign("[")
        members = [self.expression()]
        while self.take_sign(","):
            members.append(self.expression())
        self.require_sign("]")
        return lambda row: any(compare(left(row), member(row)) == 0 for member in members)

    def _sum(self) -> Expression:
        return self._chain(self._product, "+", "-")

    def _product(self) -> Expression:
        return self._chain(self._power, "*", "/", "%")

    def _chain(self, operand: Callable[[], Expression], *signs: str) -> Expression:
        """Operands that are joined by operators of the same strength, computed from the left to the right."""
        first, others = operand(), []
        while self.next.is_sign(*signs):
            others.append((self.take().text, operand()))

        def computed(row: Row) -> Value:
            found = first(row)
            for sign, other in others:
                found = _calculated(sign, found, other(row))
            return found

        return computed if others else first

    def _power(self) -> Expression:
        parts = [self._single()]
        while self.take_sign("^"):
            parts.append(self._single())
        *bases, last = parts

        def computed(row: Row) -> Value:
            found = last(row)
            for base in reversed(bases):
                found = _calculated("^", base(row), found)
            return found

        return computed if bases else last

    def _single(self) -> Expression:
        if self.next.is_sign("-"):
            return self._negative()
        token = self.take()
        if token.is_sign("("):
            inner = self.expression()
            self.require_sign(")")
            return inner
        if token.kind == "name" and self.next.is_sign("("):
            return self._call(token)
        if token.kind in ("number", "text") or token.is_word("true", "false"):
            constant = _constant(token)
            return lambda row: constant
        if token.kind in ("name", "quoted"):
            return lambda row: row.get(token.text)
        raise unexpected(self.query, token)

    def _negative(self) -> Expression:
        signs = 0
        while self.take_sign("-"):
            signs += 1
        of, factor = self._single(), -1 if signs % 2 else 1
        return lambda row: None if (value := number(of(row))) is None else factor * value

    def _call(self, token: Token) -> Expression:
        name = token.text.lower()
        self.require_sign("(")
        if name in AGGREGATES or name == "pct":
            return self._aggregate(token)
        if name in ("bin", "datefloor", "dateceil"):
            return self._rounded_time(token)
        if name not in FUNCTIONS:
            raise wrong(self.query, f"unknown function {token.text}", token.start, token.end)
        least, most, function = FUNCTIONS[name]
        arguments: list[Expression] = []
        if not self.next.is_sign(")"):
            arguments.append(self.expression())
            while self.take_sign(","):
                arguments.append(self.expression())
        if not least <= len(arguments) <= most:
            raise wrong(self.query, f"invalid number of arguments for {token.text}", token.start, self.next.end)
        self.require_sign(")")
        return lambda row: function([argument(row) for argument in arguments])

    def _aggregate(self, token: Token) -> Expression:
        name, aggregations = token.text.lower(), self.aggregations
        if aggregations is None:
            raise wrong(self.query, f"aggregation function {token.text} is not allowed", token.start, token.end)
        argument: Expression | None = None
        if not (self.take_sign("*") or self.next.is_sign(")")) or name != "count":
            self.aggregations = None  # an aggregate cannot contain another one
            argument = self.expression()
            self.aggregations = aggregations
        make = AGGREGATES.get(name)
        if make is None:
            self.require_sign(",")
            percent = number(self.next.text) if self.next.kind == "number" else None
            if percent is None or not 0 <= percent <= 100:
                raise unexpected(self.query, self.next)
            self.take()
            make = percentile(percent)
        self.require_sign(")")
        key = f"\0{len(aggregations)}"
        aggregations.append(Aggregation(make, argument))
        return lambda row: row.made[key]

    def _rounded_time(self, token: Token) -> Expression:
        of: Expression = lambda row: row.get("@timestamp")  # noqa: E731 - a default for the first argument
        name = token.text.lower()
        if name != "bin":
            of = self.expression()
            self.require_sign(",")
        period = self.take()
        match = _PERIOD.fullmatch(period.text) if period.kind == "period" else None
        if match is None:
            raise unexpected(self.query, period)
        self.require_sign(")")
        length_ms = int(float(match[1]) * _PERIODS_MS[match[2]])
        if length_ms < 1:
            raise unexpected(self.query, period)
        shift_ms = length_ms - 1 if name == "dateceil" else 0

        def rounded(row: Row) -> Value:
            value = whole(of(row))
            return None if value is None else Time((value + shift_ms) // length_ms * length_ms)

        return rounded


def _constant(token: Token) -> Value:
    if token.kind == "number":
        return number(token.text)
    return token.text if token.kind == "text" else token.text.lower() == "true"


def _compared(sign: str, left: Expression, right: Expression) -> Expression:
    holds: Callable[[int], bool] = {
        "=": lambda found: found == 0,
        "==": lambda found: found == 0,
        "!=": lambda found: found != 0,
        "<": lambda found: found < 0,
        "<=": lambda found: found <= 0,
        ">": lambda found: found > 0,
        ">=": lambda found: found >= 0,
    }[sign]

    def compared(row: Row) -> bool:
        found = compare(left(row), right(row))
        # A field that is missing is different from every value.
        return sign == "!=" if found is None else holds(found)

    return compared


def _calculated(sign: str, left: Value, right: Value) -> Value:
    this, that = number(left), number(right)
    if this is None or that is None:
        return None
    try:
        return _calculate(sign, this, that)
    except (ZeroDivisionError, OverflowError, ValueError):
        return None


def _calculate(sign: str, left: float, right: float) -> Value:
    match sign:
        case "+":
            found = left + right
        case "-":
            found = left - right
        case "*":
            found = left * right
        case "/":
            found = left / right
        case "%":
            found = math.fmod(left, right)
        case _:
            found = float(left) ** max(-_LONGEST_POWER, min(_LONGEST_POWER, right))
    if isinstance(found, complex):
        return None
    return int(found) if isinstance(found, float) and found.is_integer() and abs(found) < 1e15 else found


__all__ = ["Aggregation", "Expression", "ExpressionParser", "QueryError"]
