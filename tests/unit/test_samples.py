"""Values of a metric: percentiles, merging, and the form in which they are stored."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thawd.cloudwatch.metrics import statistics
from thawd.cloudwatch.metrics.embedded import embedded
from thawd.telemetry.samples import Samples


def of(*values: float) -> Samples:
    samples = Samples()
    for value in values:
        samples.add(value)
    return samples


@given(st.lists(st.floats(-1e9, 1e9).filter(lambda value: value == 0 or abs(value) > 1e-9), min_size=1))
def test_percentiles_are_exact_to_one_percent(values: list[float]) -> None:
    samples, ordered = of(*values), sorted(values)
    for percent in (0, 25, 50, 90, 99, 100):
        exact = ordered[max(0, -(-len(values) * percent // 100) - 1)]
        found = samples.percentile(percent)
        assert found is not None
        assert abs(found - exact) <= 0.0105 * abs(exact)
    assert (samples.minimum, samples.maximum, samples.count) == (ordered[0], ordered[-1], len(values))


@given(st.lists(st.floats(-1e6, 1e6)), st.lists(st.floats(-1e6, 1e6)))
def test_merging_is_the_same_as_adding_all_values(left: list[float], right: list[float]) -> None:
    merged = of(*left)
    merged.merge(of(*right))
    together = of(*left, *right)
    assert (merged.count, merged.minimum, merged.maximum, merged.buckets) == (
        *(together.count, together.minimum, together.maximum, together.buckets),
    )
    assert merged.sum == pytest.approx(together.sum, abs=1e-6)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(merged), type=Samples) == merged


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SampleCount", 10.0),
        ("Sum", 55.0),
        ("Average", 5.5),
        ("Minimum", 1.0),
        ("Maximum", 10.0),
        ("p50", 5.0),
        ("p99.9", 10.0),
        ("p100", 10.0),
        ("tm80", 4.5),
        ("TM(20%:80%)", 5.5),
        ("IQM", 5.5),
    ],
)
def test_a_statistic_is_computed(name: str, value: float) -> None:
    statistic = statistics.parse(name)
    assert statistic is not None
    assert statistic(of(*range(1, 11))) == pytest.approx(value, rel=0.011)


@pytest.mark.parametrize("name", ["", "sum", "p101", "p", "tm", "TM(80%:20%)", "wm90", "PR(1:2)"])
def test_another_statistic_is_not_known(name: str) -> None:
    assert statistics.parse(name) is None


def test_without_a_histogram_there_is_no_percentile() -> None:
    assert Samples(10, 50.0, 1.0, 9.0).percentile(50) is None


def line(**changes: object) -> bytes:
    directive = {"Namespace": "shop", "Dimensions": [["service"], []], "Metrics": [{"Name": "took", "Unit": "Seconds"}]}
    document = {
        "_aws": {"Timestamp": 1500, "CloudWatchMetrics": [directive]},
        **{"service": "pay", "took": [1, 2.5]},
        **changes,
    }
    return msgspec.json.encode(document)


def test_metrics_in_a_log_line_are_found_for_each_set_of_dimensions() -> None:
    first, second = embedded(line())
    assert (first.namespace, first.dimensions, first.metric) == ("shop", (("service", "pay"),), ("took", "Seconds"))
    assert (first.samples.count, first.samples.sum, first.at_s) == (2, 3.5, 1.5)
    assert second.dimensions == ()


@pytest.mark.parametrize(
    "message",
    [
        b"{",
        b"[]",
        b"\xff",
        b'{"_aws": 1}',
        b'{"_aws": {"CloudWatchMetrics": [1, {"Namespace": 2}, {"Namespace": "x", "Metrics": [1, {"Name": 3}]}]}}',
        line(took="three"),
        line(took=True),
        line(
            _aws={"CloudWatchMetrics": [{"Namespace": "x", "Dimensions": [["absent"]], "Metrics": [{"Name": "took"}]}]}
        ),
    ],
)
def test_a_line_that_does_not_follow_the_format_has_no_metrics(message: bytes) -> None:
    assert list(embedded(message)) == []
