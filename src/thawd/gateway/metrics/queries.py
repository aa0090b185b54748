"""Answers GetMetricData: reads metrics from the history, and computes metric math expressions over them.

Source: CloudWatch API reference, "GetMetricData".
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thawd.cloudwatch.metrics import statistics
from thawd.cloudwatch.metrics.history import Metric, MetricHistory, Periods
from thawd.cloudwatch.metrics.recorder import sorted_dimensions
from thawd.gateway.metrics.cbor import Timestamp
from thawd.gateway.metrics.errors import MetricsValidationError
from thawd.grammar import metric_math

_MOST_QUERIES = 500
_MOST_DATAPOINTS = 100_800
# The work on all expressions of a request is limited: their characters, for each time of the result.
_MOST_WORK = 10_000_000
LAST_TIME_S = 253_402_300_799  # the end of the year 9999
_ID = re.compile(r"[a-z][a-zA-Z0-9_]*")
Query = Mapping[str, Any]


@dataclass(slots=True)
class _Result:
    id: str
    label: str
    points: list[tuple[float, float]]


class MetricQueries:
    """Answers GetMetricData.

    Args:
        history: reads the history.
    """

    def __init__(self, history: MetricHistory) -> None:
        self._history = history

    async def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request whose input has been checked.

        Raises:
            MetricsValidationError: a query is not valid (400).
            StoreError: the history cannot be read.
        """
        queries: Sequence[Query] = request["MetricDataQueries"]
        begin_s, end_s = request["StartTime"], request["EndTime"]
        _check(queries)
        if not 0 <= begin_s < end_s <= LAST_TIME_S:
            raise MetricsValidationError("The parameter StartTime must be less than the parameter EndTime.")
        values: dict[str, metric_math.Value] = {}
        periods_s: dict[str, float] = {}
        for query in queries:
            if "MetricStat" in query:
                periods_s[query["Id"]] = _period(query["MetricStat"]["Period"])
                values[query["Id"]] = await self._series(query["MetricStat"], begin_s, end_s)
        # Expressions have the period of the metrics; the least one, if these have several.
        least_s = int(min(periods_s.values(), default=_period(_first_period(queries))))
        times = Periods(int(begin_s // least_s) * least_s, end_s, least_s).times(_MOST_DATAPOINTS)
        characters = sum(len(query.get("Expression", "")) for query in queries)
        if characters * len(times) > _MOST_WORK:
            raise MetricsValidationError(
                f"The expressions have {characters} characters together, which is too many for {len(times)} data "
                "points. Shorten the time range, or increase Period."
            )
        inputs = metric_math.Inputs(values, tuple(periods_s), periods_s, times)
        await asyncio.to_thread(_compute, queries, values, inputs)
        results: list[_Result] = []
        for query in queries:
            if query.get("ReturnData", True):
                results += _results(query, values[query["Id"]], inputs)
        if request.get("ScanBy", "TimestampDescending") == "TimestampDescending":
            for result in results:
                result.points.reverse()
        return _page(results, request)

    async def _series(self, stat: Query, begin_s: float, end_s: float) -> metric_math.Series:
        length_s = _period(stat["Period"])
        statistic = statistics.parse(stat["Stat"])
        if statistic is None:
            raise MetricsValidationError(f"The value {stat['Stat']} for parameter Stat is not supported.")
        described = stat["Metric"]
        dimensions = [(each["Name"], each["Value"]) for each in described.get("Dimensions", [])]
        if "Namespace" not in described or "MetricName" not in described:
            raise MetricsValidationError("The parameters Metric.Namespace and Metric.MetricName are required.")
        metric = Metric(described["Namespace"], described["MetricName"], sorted_dimensions(dimensions))
        periods = Periods(int(begin_s // length_s) * length_s, end_s, length_s)
        found = await self._history.read(metric, periods, unit=stat.get("Unit"))
        computed = ((at, statistic(samples)) for at, (samples, _) in found.items())
        return {at: value for at, value in computed if value is not None}


def _check(queries: Sequence[Query]) -> None:
    if not 1 <= len(queries) <= _MOST_QUERIES:
        raise MetricsValidationError(f"The collection MetricDataQueries must have from 1 to {_MOST_QUERIES} members.")
    seen: set[str] = set()
    for index, query in enumerate(queries, 1):
        if not _ID.fullmatch(query["Id"]):
            raise MetricsValidationError(
                f"The value {query['Id']} for parameter MetricDataQueries.member.{index}.Id is not matching the "
                "expected pattern [a-z][a-zA-Z0-9_]*"
            )
        if query["Id"] in seen:
            raise MetricsValidationError(f"The ids of queries must be unique; {query['Id']} is used twice.")
        seen.add(query["Id"])
        if ("MetricStat" in query) == ("Expression" in query):
            raise MetricsValidationError(
                f"The parameters MetricDataQueries.member.{index}.Expression and MetricDataQueries.member.{index}"
                ".MetricStat are mutually exclusive; specify one of them."
            )


def _period(period_s: int) -> int:
    if period_s in (1, 5, 10, 20, 30):
        return 60
    if period_s % 60:
        raise MetricsValidationError("Period must be 1, 5, 10, 20, 30 or a multiple of 60")
    return period_s


def _first_period(queries: Sequence[Query]) -> int:
    return int(next((query["Period"] for query in queries if "Period" in query), 60))


def _compute(queries: Sequence[Query], values: dict[str, metric_math.Value], inputs: metric_math.Inputs) -> None:
    """Compute the expressions, each after those that it uses.

    Raises:
        MetricsValidationError: an expression cannot be computed (400).
    """
    waiting: dict[str, tuple[metric_math.Expression, frozenset[str]]] = {}
    for query in queries:
        if "Expression" in query:
            try:
                waiting[query["Id"]] = metric_math.parse(query["Expression"])
            except metric_math.MetricMathError as error:
                raise MetricsValidationError(f"Error in expression '{query['Id']}': {error}") from None
    while waiting:
        ready = [each for each, (_, used) in waiting.items() if used <= values.keys()]
        if not ready:
            name, (_, used) = next(iter(waiting.items()))
            missing = ", ".join(sorted(used - values.keys()))
            raise MetricsValidationError(f"Error in expression '{name}': unknown or circular ids: {missing}")
        for name in ready:
            expression, _ = waiting.pop(name)
            try:
                values[name] = expression(inputs)
            except metric_math.MetricMathError as error:
                raise MetricsValidationError(f"Error in expression '{name}': {error}") from None


def _results(query: Query, value: metric_math.Value, inputs: metric_math.Inputs) -> list[_Result]:
    label = query.get("Label") or (
        query["MetricStat"]["Metric"]["MetricName"] if "MetricStat" in query else query["Id"]
    )
    if isinstance(value, list):
        return [_Result(query["Id"], label, sorted(series.items())) for series in value]
    if not isinstance(value, dict):
        value = {} if value != value else dict.fromkeys(inputs.times, value)  # noqa: PLR0124 - not a number
    return [_Result(query["Id"], label, sorted(value.items()))]


def _page(results: Sequence[_Result], request: Mapping[str, Any]) -> dict[str, Any]:
    """As many data points as the request allows, and a token for the others."""
    most = min(request.get("MaxDatapoints", _MOST_DATAPOINTS), _MOST_DATAPOINTS)
    match = re.fullmatch(r"(\d{1,6})/(\d{1,9})", request.get("NextToken", "0/0"))
    if match is None or most < 1:
        raise MetricsValidationError("The value for parameter NextToken or MaxDatapoints is not valid.")
    first, offset = int(match[1]), int(match[2])
    shown: list[dict[str, Any]] = []
    answer: dict[str, Any] = {"MetricDataResults": shown, "Messages": []}
    for index, result in enumerate(results[first:], first):
        begin = offset if index == first else 0
        points = result.points[begin : begin + most]
        most -= len(points)
        is_whole = begin + len(points) == len(result.points)
        shown.append(
            {
                "Id": result.id,
                "Label": result.label,
                "Timestamps": [Timestamp(at) for at, _ in points],
                "Values": [value for _, value in points],
                "StatusCode": "Complete" if is_whole else "PartialData",
            }
        )
        if not is_whole or (most == 0 and index + 1 < len(results)):
            place = (index, begin + len(points)) if not is_whole else (index + 1, 0)
            answer["NextToken"] = f"{place[0]}/{place[1]}"
            break
    return answer
