"""Requests to the CloudWatch metrics API that ask for much, say nothing, or are written in unusual ways."""

from __future__ import annotations

import contextlib
import json
import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.loops import run
from thawd.cloudwatch.metrics.embedded import embedded
from thawd.cloudwatch.metrics.history import MetricHistory
from thawd.cloudwatch.metrics.recorder import MetricRecorder
from thawd.errors import SerializationException
from thawd.gateway.metrics.errors import InvalidParameterValueException, MetricsValidationError
from thawd.gateway.metrics.operations import MetricOperations
from thawd.gateway.metrics.protocols import QueryProtocol
from thawd.stores.metric_history import MetricStore
from thawd.stores.schema import open_state
from thawd.telemetry.metrics import Metrics

TIMES = {"StartTime": {"type": "timestamp"}, "Period": {"type": "integer"}}
METRIC = {"Namespace": "shop", "MetricName": "orders"}


@contextlib.asynccontextmanager
async def operations(folder: Path) -> AsyncIterator[MetricOperations]:
    """The operations on an empty history."""

    async def nothing() -> dict[str, Any]:
        return {}

    with contextlib.closing(open_state(folder / "thawd.db")) as database:
        store = MetricStore(database)
        yield MetricOperations(MetricHistory(store), MetricRecorder(store, Metrics(), nothing))


async def average(api: MetricOperations, now_s: float) -> list[float]:
    period = {"StartTime": now_s - 600, "EndTime": now_s + 600, "Period": 3600}
    found = await api.get_metric_statistics({**METRIC, **period, "Statistics": ["Average", "Minimum"]})
    return [point["Average"] for point in found["Datapoints"]]


@pytest.mark.parametrize(
    "values",
    [
        {"Values": [5.0], "Counts": [0.0]},
        {"StatisticValues": {"SampleCount": 0.0, "Sum": 0.0, "Minimum": 0.0, "Maximum": 0.0}},
    ],
)
def test_values_that_were_measured_no_time_are_no_values(tmp_path: Path, values: dict[str, Any]) -> None:
    async def claim() -> None:
        async with operations(tmp_path) as api:
            now_s = time.time()
            datum = {"MetricName": "orders", **values}
            await api.put_metric_data({"Namespace": "shop", "MetricData": [datum]})
            assert await average(api, now_s) == []
            await api.put_metric_data(
                {"Namespace": "shop", "MetricData": [{"MetricName": "orders", "Value": 3.0}, datum]}
            )
            assert await average(api, now_s) == [3.0]

    run(claim())


@pytest.mark.parametrize("value", [1e308, -1e109, float("inf"), float("nan")])
def test_values_whose_sum_could_be_infinite_are_refused(tmp_path: Path, value: float) -> None:
    async def claim() -> None:
        async with operations(tmp_path) as api:
            for name in ("Value", "Values"):
                datum = {"MetricName": "orders", name: value if name == "Value" else [1.0, value]}
                with pytest.raises(InvalidParameterValueException, match="Value is invalid"):
                    await api.put_metric_data({"Namespace": "shop", "MetricData": [datum]})
            line = {"_aws": {"CloudWatchMetrics": [{"Namespace": "n", "Metrics": [{"Name": "m"}]}]}, "m": value}
            assert list(embedded(json.dumps(line).encode())) == []
            await api.put_metric_data(
                {"Namespace": "shop", "MetricData": [{"MetricName": "orders", "Values": [2.0**360] * 150}]}
            )
            assert await average(api, time.time()) == [2.0**360]

    run(claim())


def test_a_negative_number_of_values_is_refused(tmp_path: Path) -> None:
    async def claim() -> None:
        known = {"SampleCount": -1.0, "Sum": 0.0, "Minimum": 0.0, "Maximum": 1.0}
        async with operations(tmp_path) as api:
            with pytest.raises(InvalidParameterValueException, match="SampleCount"):
                await api.put_metric_data(
                    {"Namespace": "shop", "MetricData": [{"MetricName": "m", "StatisticValues": known}]}
                )

    run(claim())


def test_expressions_that_would_take_much_memory_are_refused(tmp_path: Path) -> None:
    async def claim() -> None:
        async with operations(tmp_path) as api:
            queries = [{"Id": "e", "Expression": "SUM([" + "1," * 1000 + "1])", "Period": 60}]
            with pytest.raises(MetricsValidationError, match="too many for 100800 data points"):
                await api.get_metric_data({"MetricDataQueries": queries, "StartTime": 0.0, "EndTime": 100_800 * 60.0})
            small = await api.get_metric_data({"MetricDataQueries": queries, "StartTime": 0.0, "EndTime": 3600.0})
            assert small["MetricDataResults"][0]["Values"] == [1001.0] * 60

    run(claim())


def test_the_names_of_fields_take_no_more_memory_than_the_body() -> None:
    body = b"a" + b".a" * 1_000_000 + b"=1&Period=5"
    tracemalloc.start()
    assert QueryProtocol().document(body, TIMES) == {"Period": 5}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * len(body)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00-23:59", "9999-12-31T23:59:59-23:59", "soon"])
def test_times_out_of_range_are_refused_or_computed_and_no_failure(text: str) -> None:
    with contextlib.suppress(SerializationException):
        assert isinstance(QueryProtocol().document(f"StartTime={text}".encode(), TIMES)["StartTime"], float)


def test_a_time_without_a_zone_is_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        found = QueryProtocol().document(b"StartTime=1970-01-01T00:01:00", TIMES)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found == {"StartTime": 60.0}
