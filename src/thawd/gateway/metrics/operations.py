"""The operations of the CloudWatch metrics API: GetMetricData, GetMetricStatistics, ListMetrics, PutMetricData.

Source: CloudWatch API reference.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from thawd.cloudwatch.metrics import statistics
from thawd.cloudwatch.metrics.history import Metric, MetricHistory, Periods
from thawd.cloudwatch.metrics.recorder import MetricRecorder, sorted_dimensions
from thawd.gateway.metrics.cbor import Timestamp
from thawd.gateway.metrics.errors import (
    InvalidParameterCombinationException,
    InvalidParameterValueException,
    MissingParameterException,
)
from thawd.gateway.metrics.queries import LAST_TIME_S, MetricQueries
from thawd.telemetry.samples import MOST_VALUE, Samples

_MOST_DATAPOINTS = 1440
_MOST_METRICS = 1000
_MOST_VALUES = 150
_LISTED = 500
_OLDEST_S = 14 * 24 * 60 * 60
_NEWEST_S = 2 * 60 * 60

Request = Mapping[str, Any]


class MetricOperations:
    """The operations. Each takes the checked input, and returns the answer or None.

    Args:
        history: reads the history.
        recorder: writes the history.
    """

    def __init__(self, history: MetricHistory, recorder: MetricRecorder) -> None:
        self._history = history
        self._recorder = recorder
        self._queries = MetricQueries(history)

    async def get_metric_data(self, request: Request) -> dict[str, Any]:
        await self._recorder.write()
        return await self._queries.answer(request)

    async def get_metric_statistics(self, request: Request) -> dict[str, Any]:
        names, extended = request.get("Statistics", []), request.get("ExtendedStatistics", [])
        if not names and not extended:
            raise MissingParameterException("The parameter Statistics or ExtendedStatistics is required.")
        computed = {name: statistics.parse(name) for name in extended}
        for name, statistic in computed.items():
            if statistic is None:
                raise InvalidParameterValueException(f"The value {name} for parameter ExtendedStatistics is not valid.")
        length_s = period_of(request["Period"])
        if not 0 <= request["StartTime"] < request["EndTime"] <= LAST_TIME_S:
            raise InvalidParameterValueException("The parameter StartTime must be less than the parameter EndTime.")
        periods = Periods(int(request["StartTime"] // 60) * 60, request["EndTime"], length_s)
        if periods.count > _MOST_DATAPOINTS:
            raise InvalidParameterCombinationException(
                f"You have requested up to {periods.count:,} datapoints, which exceeds the limit of "
                f"{_MOST_DATAPOINTS:,}. You may reduce the datapoints requested by increasing Period, or decreasing "
                "the time range."
            )
        await self._recorder.write()
        found = await self._history.read(metric_of(request), periods, unit=request.get("Unit"))
        datapoints: list[dict[str, Any]] = []
        for at, (samples, unit) in found.items():
            point: dict[str, Any] = {"Timestamp": Timestamp(at)}
            point |= {name: statistics.SIMPLE[name](samples) for name in names}
            if extended:
                values = {name: statistic(samples) for name, statistic in computed.items() if statistic is not None}
                point["ExtendedStatistics"] = {name: value for name, value in values.items() if value is not None}
            datapoints.append({**point, "Unit": unit})
        return {"Label": request["MetricName"], "Datapoints": datapoints}

    async def list_metrics(self, request: Request) -> dict[str, Any]:
        await self._recorder.write()
        wanted = [(each["Name"], each.get("Value")) for each in request.get("Dimensions", [])]
        found = [
            metric
            for metric in await self._history.metrics(request.get("Namespace"))
            if request.get("MetricName") in (None, metric.name) and _has(metric, wanted)
        ]
        begin = _place(request.get("NextToken"))
        answer: dict[str, Any] = {"Metrics": [_described(metric) for metric in found[begin : begin + _LISTED]]}
        if begin + _LISTED < len(found):
            answer["NextToken"] = str(begin + _LISTED)
        return answer

    async def put_metric_data(self, request: Request) -> None:
        namespace = request["Namespace"]
        if namespace.startswith("AWS/"):
            raise InvalidParameterValueException("The value AWS/ for parameter Namespace is invalid.")
        data = [
            *request.get("MetricData", []),
            *(datum for entity in request.get("EntityMetricData", []) for datum in entity.get("MetricData", [])),
        ]
        if not data:
            raise MissingParameterException("The parameter MetricData is required.")
        if len(data) > _MOST_METRICS:
            raise InvalidParameterValueException(
                f"The collection MetricData must not have a size greater than {_MOST_METRICS}."
            )
        now = time.time()
        checked = [_samples(datum, f"MetricData.member.{index}", now) for index, datum in enumerate(data, 1)]
        for datum, samples in zip(data, checked, strict=True):
            if not samples.count:  # values with a count of 0 are no values
                continue
            dimensions = sorted_dimensions([(each["Name"], each["Value"]) for each in datum.get("Dimensions", [])])
            metric = (datum["MetricName"], datum.get("Unit", "None"))
            self._recorder.put(namespace, dimensions, metric, samples, datum.get("Timestamp", now))
        await self._recorder.write()


def period_of(period_s: int) -> int:
    """A period in whole minutes, the resolution of the history, seconds.

    Raises:
        InvalidParameterValueException: the period is neither 1, 5, 10, 20, 30 nor a multiple of 60 (400).
    """
    if period_s in (1, 5, 10, 20, 30):
        return 60
    if period_s % 60:
        raise InvalidParameterValueException(
            f"The parameter Period must be a value in the set [ 1, 5, 10, 20, 30 ] or a multiple of 60, not {period_s}"
        )
    return period_s


def metric_of(described: Request) -> Metric:
    """The metric that a request names."""
    dimensions = [(each["Name"], each["Value"]) for each in described.get("Dimensions", [])]
    return Metric(described["Namespace"], described["MetricName"], sorted_dimensions(dimensions))


def _has(metric: Metric, wanted: Sequence[tuple[str, str | None]]) -> bool:
    known = dict(metric.dimensions)
    return all(name in known and value in (None, known[name]) for name, value in wanted)


def _described(metric: Metric) -> dict[str, Any]:
    return {
        "Namespace": metric.namespace,
        "MetricName": metric.name,
        "Dimensions": [{"Name": name, "Value": value} for name, value in metric.dimensions],
    }


def _place(token: str | None) -> int:
    if token is None:
        return 0
    if not token.isdecimal() or len(token) > 9:
        raise InvalidParameterValueException("The value for parameter NextToken is not valid.")
    return int(token)


def _samples(datum: Request, path: str, now: float) -> Samples:
    """The values of one metric of a request.

    Raises:
        ThawdError: a value is missing or not allowed (400).
    """
    given = [name for name in ("Value", "Values", "StatisticValues") if name in datum]
    if not given:
        raise MissingParameterException(f"The parameter {path}.Value is required.")
    if len(given) > 1:
        raise InvalidParameterCombinationException(
            f"The parameters {path}.{given[0]} and {path}.{given[1]} are mutually exclusive and you have specified "
            "both."
        )
    at_s = datum.get("Timestamp", now)
    if not now - _OLDEST_S <= at_s <= now + _NEWEST_S:
        raise InvalidParameterValueException(
            f"The parameter {path}.Timestamp must specify a time within the past two weeks and the next two hours."
        )
    samples = Samples()
    if "StatisticValues" in datum:
        known = datum["StatisticValues"]
        numbers = [known[name] for name in ("SampleCount", "Sum", "Minimum", "Maximum")]
        for number in numbers:
            _require_in_range(number, f"{path}.StatisticValues")
        samples = Samples(*numbers)
        if samples.count < 0:
            raise InvalidParameterValueException(
                f"The value {samples.count} for parameter {path}.StatisticValues.SampleCount is invalid."
            )
        if samples.minimum == samples.maximum and samples.count > 0:
            samples = Samples()
            samples.add(numbers[2], numbers[0])
        return samples
    values = [datum["Value"]] if "Value" in datum else datum["Values"]
    counts = datum.get("Counts", [1.0] * len(values))
    if len(counts) != len(values):
        raise InvalidParameterValueException(
            f"The parameters {path}.Values and {path}.Counts must be of the same size."
        )
    if not 0 < len(values) <= _MOST_VALUES:
        raise InvalidParameterValueException(
            f"The collection {path}.Values must have from 1 to {_MOST_VALUES} members."
        )
    for value, count in zip(values, counts, strict=True):
        _require_in_range(value, f"{path}.Value")
        _require_in_range(count, f"{path}.Counts")
        if count > 0:
            samples.add(float(value), count)
    return samples


def _require_in_range(value: float, path: str) -> None:
    if not abs(value) <= MOST_VALUE:
        raise InvalidParameterValueException(f"The value {value} for parameter {path} is invalid.")
