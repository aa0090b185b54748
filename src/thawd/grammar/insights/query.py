"""Parses Logs Insights queries: commands that are joined by ``|``.

Supported are ``fields``, ``display``, ``filter``, ``parse``, ``stats``, ``sort``, ``limit`` and ``dedup``. Others, such
as ``pattern``, ``diff`` and ``unnest``, are refused.

Source: CloudWatch Logs user guide, "CloudWatch Logs Insights query syntax".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from thawd.grammar.insights.expressions import Aggregation, Expression, ExpressionParser
from thawd.grammar.insights.rows import Row
from thawd.grammar.insights.stages import (
    MAX_RESULTS,
    Dedup,
    Fields,
    Filter,
    Limit,
    Parse,
    Sort,
    Stage,
    Stats,
)
from thawd.grammar.insights.tokens import QueryError, unexpected, wrong
from thawd.grammar.insights.values import number, text

MAX_QUERY_CHARACTERS = 10_000
_DEFAULT_FIELDS = ("@timestamp", "@message")
_POINTER = "@ptr"
_MOST_STATS = 2


@dataclass(slots=True)
class Query:
    """A query that can be run.

    Attributes:
        stages: its commands.
        fields: the fields of each result, in order.
        is_of_events: whether each result is an event, and not the result of ``stats``.
        limit: most results.
    """

    stages: list[Stage] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)
    is_of_events: bool = True
    limit: int = MAX_RESULTS

    def run(self, rows: Iterator[Row], *, matched: Callable[[], None]) -> Iterator[list[tuple[str, str]]]:
        """Yield the results, each as pairs of field and value. Fields that a row does not have are left out.

        Args:
            rows: the events, the latest first.
            matched: called for each event that the filters let through.
        """
        is_counted = False
        for stage in self.stages:
            if not is_counted and not isinstance(stage, (Fields, Filter, Parse)):
                rows, is_counted = _counted(rows, matched), True
            rows = stage.run(rows)
        if not is_counted:
            rows = _counted(rows, matched)
        for index, row in enumerate(rows):
            if index >= self.limit:
                continue  # the other rows are counted
            found = [(name, value) for name in self.fields if (value := row.get(name)) is not None]
            if self.is_of_events:
                found.append((_POINTER, row.get(_POINTER)))
            yield [(name, text(value)) for name, value in found]


def _counted(rows: Iterator[Row], matched: Callable[[], None]) -> Iterator[Row]:
    for row in rows:
        matched()
        yield row


def parse(query: str, *, limit: int | None = None) -> Query:
    """Parse a query.

    Args:
        query: its text.
        limit: most results if the query has no ``limit``; None: 10,000.

    Raises:
        QueryError: the text is not a query that is supported.
    """
    if len(query) > MAX_QUERY_CHARACTERS:
        raise QueryError(f"a query has at most {MAX_QUERY_CHARACTERS} characters", start=0, end=len(query))
    return _Parser(query).parse(limit)


class _Parser(ExpressionParser):
    def __init__(self, query: str) -> None:
        super().__init__(query)
        self._query = Query()
        self._shown: list[str] = []
        self._displayed: list[str] | None = None
        self._stats = 0
        self._has_limit = False
        self._sort: Sort | None = None

    def parse(self, limit: int | None) -> Query:
        commands: dict[str, Callable[[], None]] = {
            "fields": self._fields,
            "display": self._display,
            "filter": self._filter,
            "parse": self._parse,
            "stats": self._stats_by,
            "sort": self._sort_by,
            "limit": self._limit,
            "dedup": self._dedup,
        }
        while True:
            token = self.next
            command = commands.get(token.text.lower()) if token.kind == "name" else None
            if command is None:
                raise unexpected(self.query, token)
            self.take()
            command()
            if self.next.kind == "end":
                break
            self.require_sign("|")
        query = self._query
        if self._displayed is not None:
            query.fields = self._displayed
        elif not query.fields:
            query.fields = self._shown or list(_DEFAULT_FIELDS)
        if not self._has_limit:
            query.limit = min(limit or MAX_RESULTS, MAX_RESULTS)
        return query

    def _names(self, expressions: Sequence[tuple[str, Expression]]) -> list[str]:
        return list(dict.fromkeys(name for name, _ in expressions))

    def _list(self) -> list[tuple[str, Expression]]:
        found = [self.named()]
        while self.take_sign(","):
            found.append(self.named())
        return found

    def _fields(self) -> None:
        expressions = self._list()
        self._query.stages.append(Fields(expressions))
        self._shown += [name for name in self._names(expressions) if name not in self._shown]

    def _display(self) -> None:
        expressions = self._list()
        self._query.stages.append(Fields(expressions))
        self._displayed = self._names(expressions)

    def _filter(self) -> None:
        self._query.stages.append(Filter(self.expression()))

    def _limit(self) -> None:
        token = self.take()
        most = number(token.text) if token.kind == "number" else None
        if not isinstance(most, int) or not 1 <= most <= MAX_RESULTS:
            raise unexpected(self.query, token)
        self._has_limit = True
        self._query.limit = most
        if self._sort is not None and self._query.stages[-1] is self._sort:
            self._sort.most = most
        self._query.stages.append(Limit(most))

    def _sort_by(self) -> None:
        keys: list[tuple[Expression, bool]] = []
        while True:
            expression = self.expression()
            descending = self.take_word("desc")
            if not descending:
                self.take_word("asc")
            keys.append((expression, descending))
            if not self.take_sign(","):
                break
        self._sort = Sort(keys)
        self._query.stages.append(self._sort)

    def _dedup(self) -> None:
        fields = [self.field_name()]
        while self.take_sign(","):
            fields.append(self.field_name())
        self._query.stages.append(Dedup(fields))

    def _stats_by(self) -> None:
        start = self.next
        self._stats += 1
        if self._stats > _MOST_STATS:
            raise wrong(self.query, f"a query can have at most {_MOST_STATS} stats commands", start.start, start.end)
        aggregations: list[Aggregation] = []
        self.aggregations = aggregations
        results = self._list()
        self.aggregations = None
        if not aggregations:
            raise wrong(self.query, "stats needs an aggregation function", start.start, start.end)
        by = self._list() if self.take_word("by") else []
        self._query.stages.append(Stats(results, aggregations, by))
        self._query.fields = self._names([*by, *results])
        self._query.is_of_events = False

    def _parse(self) -> None:
        of: Expression = lambda row: row.get("@message")  # noqa: E731 - the default
        if self.next.kind in ("name", "quoted"):
            name = self.take().text
            of = lambda row: row.get(name)  # noqa: E731
        token = self.take()
        if token.kind == "regex":
            pattern = self.regex(token)
            names = sorted(pattern.groupindex.items(), key=lambda pair: pair[1])
            if not names:
                raise wrong(self.query, "parse needs named groups, (?<name>...)", token.start, token.end)
            if self.take_word("as"):
                given = self._given_names()
                names = [(new, group) for new, (_, group) in zip(given, names, strict=False)]
        elif token.kind == "text":
            pattern = _glob(token.text)
            if not self.take_word("as"):
                raise unexpected(self.query, self.next)
            given = self._given_names()
            if len(given) != token.text.count("*") or not given:
                raise wrong(self.query, "parse needs as many fields as wildcards", token.start, token.end)
            names = [(name, index) for index, name in enumerate(given, 1)]
        else:
            raise unexpected(self.query, token)
        self._query.stages.append(Parse(of, pattern, names))

    def _given_names(self) -> list[str]:
        names = [self.field_name()]
        while self.take_sign(","):
            names.append(self.field_name())
        return names


def _glob(pattern: str) -> re.Pattern[str]:
    """A regular expression for a pattern with ``*``. Only an asterisk at the end takes as much as it can."""
    pieces = [re.escape(piece) for piece in pattern.split("*")]
    if not pieces[-1] and len(pieces) > 1:
        return re.compile("(.*?)".join(pieces[:-1]) + "(.*)", re.DOTALL)
    return re.compile("(.*?)".join(pieces), re.DOTALL)
