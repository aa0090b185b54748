"""The commands of a Logs Insights query as stages: each takes rows and yields rows."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from thawd.grammar.insights.expressions import Aggregation, Expression
from thawd.grammar.insights.rows import Row
from thawd.grammar.insights.values import Time, Value, is_true, order, text

MAX_RESULTS = 10_000
"""Most rows of a result. Source: CloudWatch Logs quotas."""


class Stage:
    """One command."""

    def run(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Yield what the command makes of `rows`."""
        raise NotImplementedError


@dataclass(slots=True)
class Fields(Stage):
    """``fields``: computes fields that later commands can use."""

    computed: Sequence[tuple[str, Expression]]

    def run(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            for name, expression in self.computed:
                row.made[name] = expression(row)
            yield row


@dataclass(slots=True)
class Filter(Stage):
    """``filter``: keeps the rows for which the condition is true."""

    condition: Expression

    def run(self, rows: Iterator[Row]) -> Iterator[Row]:
        return (row for row in rows if is_true(self.condition(row)))


@dataclass(slots=True)
class Parse(Stage):
    """``parse``: takes fields out of a text by a pattern; a row that does not match gets none of them."""

    of: Expression
    pattern: re.Pattern[str]
    names: Sequence[tuple[str, int]]

    def run(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            value = self.of(row)
            match = None if value is None else self.pattern.search(text(value))
            for name, group in self.names:
                row.made[name] = None if match is None else match[group]
            yield row


@dataclass(slots=True)
class Sort(Stage):
    """``sort``: orders the rows; only as many as can become results are kept.

    Attributes:
        keys: what to sort by, and whether the order is descending; the first key is the most important one.
        most: most rows to yield.
    """

    keys: Sequence[tuple[Expression, bool]]
    most: int = MAX_RESULTS

    def run(self, rows: Iterator[Row]) -> Iterator[Row]:
        return iter(heapq.nsmallest(self.most, rows, key=self._key))

    def _key(self, row: Row) -> list[_Reversed | tuple[int, float, str]]:
        found: list[_Reversed | tuple[int, float, str]] = []
        for expression, descending in self.keys:
            key = order(expression(row))
            # Missing values come last in both orders.
            found.append(_Reversed(key) if descending and key[0] < 2 else key)
        return found


@dataclass(slots=True)
class _Reversed:
    key: tuple[int, float, str]

    def __lt__(self, other: _Reversed | tuple[int, float, str]) -> bool:
        return other.key < self.key if isinstance(other, _Reversed) else self.key[0] < other[0]

    def __gt__(self, other: _Reversed | tuple[int, float, str]) -> bool:
        return other.key > self.key if isinstance(other, _Reversed) else self.key[0] > other[0]


@dataclass(slots=True)
class Limit(Stage):
    """``limit``: the first rows only. The other rows are read nevertheless, so that statistics are complete."""

    most: int

    def run(self, rows: Iterator[Row]) -> Iterator[Row]:
        for index, row in enumerate(rows):
            if index < self.most:
                yield row


@dataclass(slots=True)
class Dedup(Stage):
    """``dedup``: of the rows with the same values, the first. Rows in which a value is missing are all kept."""

    fields: Sequence[str]

    def run(self, rows: Iterator[Row]) -> Iterator[Row]:
        seen: set[tuple[str, ...]] = set()
        for row in rows:
            values = [row.get(field) for field in self.fields]
            key = tuple(map(text, values))
            if None in values or key not in seen:
                seen.add(key)
                yield row


@dataclass(slots=True)
class Stats(Stage):
    """``stats``: groups the rows, and computes a row of results for each group.

    Attributes:
        results: names and values of the results; a value is computed from the aggregates.
        aggregations: the aggregates.
        by: names and values of what to group by.
    """

    results: Sequence[tuple[str, Expression]]
    aggregations: Sequence[Aggregation]
    by: Sequence[tuple[str, Expression]]

    def run(self, rows: Iterator[Row]) -> Iterator[Row]:
        groups: dict[tuple[str, ...], tuple[list[Value], list[object]]] = {}
        makes = [aggregation.make for aggregation in self.aggregations]
        arguments = [aggregation.argument for aggregation in self.aggregations]
        for row in rows:
            values = [expression(row) for _, expression in self.by]
            key = tuple(map(text, values))
            group = groups.get(key)
            if group is None:
                group = groups[key] = (values, [make() for make in makes])
            time_ms = _time_of(row)
            for aggregate, argument in zip(group[1], arguments, strict=True):
                aggregate.add(1 if argument is None else argument(row), time_ms)  # type: ignore[attr-defined]
        if not groups and not self.by:
            groups[()] = ([], [make() for make in makes])
        for values, aggregates in self._ordered(groups.values()):
            made: dict[str, Value] = {name: value for (name, _), value in zip(self.by, values, strict=True)}
            row = Row(None, made)
            for index, aggregate in enumerate(aggregates):
                made[f"\0{index}"] = aggregate.result()  # type: ignore[attr-defined]
            found = {name: expression(row) for name, expression in self.results}
            yield Row(None, {**{name: made[name] for name, _ in self.by}, **found})

    def _ordered(
        self, groups: Iterable[tuple[list[Value], list[object]]]
    ) -> Iterable[tuple[list[Value], list[object]]]:
        """The groups by time, the latest first, if they are by time; otherwise in the order of their first rows."""
        found = list(groups)
        for index in range(len(self.by)):
            if found and all(isinstance(values[index], Time) for values, _ in found):
                return sorted(found, key=lambda group: -int(group[0][index]))
        return found


def _time_of(row: Row) -> float:
    value = row.get("@timestamp")
    return float(value) if isinstance(value, (int, float)) else 0.0


Make = Callable[[], Stage]
