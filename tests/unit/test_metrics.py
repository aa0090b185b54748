"""`thawd.telemetry.metrics`: quantiles are accurate to 1 %, and every declared metric is exposed."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from thawd.invocation import StartKind
from thawd.telemetry.distribution import Distribution
from thawd.telemetry.exposition import exposition
from thawd.telemetry.metrics import (
    COUNTERS,
    DISTRIBUTIONS,
    EVENT_COUNTERS,
    EVENT_GAUGES,
    GAUGES,
    SOURCE_COUNTERS,
    SOURCE_GAUGES,
    DeliveryOutcome,
    Fallback,
    Metrics,
)


def rank_of(values: list[float], fraction: float) -> float:
    """Return the smallest value that at least the fraction `fraction` of all values does not exceed."""
    ordered = sorted(values)
    return next(value for i, value in enumerate(ordered, 1) if i >= fraction * len(ordered))


@given(
    st.lists(st.floats(0.001, 1e7), min_size=1, max_size=200),
    st.sampled_from([0.0, 0.01, 0.5, 0.9, 0.99, 1.0]),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_quantile_is_within_one_percent(values: list[float], fraction: float) -> None:
    distribution = Distribution()
    for value in values:
        distribution.record(value)
    exact = rank_of(values, fraction)
    assert distribution.quantile_ms(fraction) == pytest.approx(exact, rel=0.0101)


def test_quantiles_of_many_durations_are_within_one_percent_and_take_few_integers() -> None:
    source = random.Random(1)
    values = [source.lognormvariate(1, 2) for _ in range(20_000)]
    distribution = Distribution()
    for value in values:
        distribution.record(value)
    for fraction in (0.5, 0.9, 0.99, 0.999):
        assert distribution.quantile_ms(fraction) == pytest.approx(rank_of(values, fraction), rel=0.0101)
    assert len(distribution.buckets) < 1800
    assert distribution.count == 20_000
    assert distribution.sum_ms == pytest.approx(sum(values))
    assert distribution.max_ms == max(values)


def test_an_empty_distribution_is_all_zeros() -> None:
    assert Distribution().summary() == {"count": 0, "p50_ms": 0.0, "p99_ms": 0.0, "max_ms": 0.0}


@pytest.mark.parametrize("value_ms", [0.0, -1.0, 1e-9])
def test_a_duration_at_or_below_zero_is_counted_and_breaks_nothing(value_ms: float) -> None:
    distribution = Distribution()
    distribution.record(value_ms)
    assert distribution.count == 1
    assert distribution.quantile_ms(0.5) <= 0.0011


def test_every_metric_is_exposed_with_its_help_in_a_form_that_prometheus_reads() -> None:
    metrics = Metrics()
    function = metrics.function('odd"name\\')
    for name in COUNTERS:
        setattr(function, name, 3)
    function.count_fallback(Fallback.THAW_FAILED, 2)
    function.count_delivery("sqs", DeliveryOutcome.REFUSED, 5)
    function.record_start(StartKind.FORK, 12.0)
    function.record_invocation(StartKind.WARM, 2.0)
    for name in GAUGES:
        metrics.set_gauge(name, function="f", state="idle", value=4)
    metrics.events = {"f": dict.fromkeys([*EVENT_COUNTERS, *EVENT_GAUGES], 6)}
    metrics.sources["f/queue", "f"] = dict.fromkeys([*SOURCE_COUNTERS, *SOURCE_GAUGES], 5)
    families = {f.name: f for f in text_string_to_metric_families(asyncio.run(exposition(metrics)).decode())}
    for name, text in COUNTERS.items():
        (sample,) = families[f"thawd_{name}"].samples
        assert (sample.name, sample.value, sample.labels) == (f"thawd_{name}_total", 3, {"function": 'odd"name\\'})
        assert families[f"thawd_{name}"].documentation == text
    for name, text in DISTRIBUTIONS.items():
        family = families[f"thawd_{name}_seconds"]
        assert family.type == "histogram"
        assert family.documentation == text
    for name, text in GAUGES.items():
        (sample,) = families[f"thawd_{name}"].samples
        state = {"state": "idle"} if name == "environments" else {}
        assert (sample.value, sample.labels) == (4, {"function": "f", **state})
        assert families[f"thawd_{name}"].documentation == text
    fallbacks = {s.labels["reason"]: s.value for s in families["thawd_fallbacks"].samples}
    assert fallbacks == {**dict.fromkeys(Fallback, 0), "thaw_failed": 2}
    deliveries = [(s.labels["kind"], s.labels["outcome"], s.value) for s in families["thawd_deliveries"].samples]
    assert deliveries == [("sqs", "refused", 5)]
    for name, text in (SOURCE_COUNTERS | SOURCE_GAUGES).items():
        (sample,) = families[f"thawd_{name}"].samples
        assert (sample.value, sample.labels) == (5, {"function": "f", "source": "f/queue"})
        assert families[f"thawd_{name}"].documentation == text
    for name, text in (EVENT_COUNTERS | EVENT_GAUGES).items():
        (sample,) = families[f"thawd_{name}"].samples
        assert (sample.value, sample.labels) == (6, {"function": "f"})
        assert families[f"thawd_{name}"].documentation == text
    of_sources = len(EVENT_COUNTERS) + len(EVENT_GAUGES) + len(SOURCE_COUNTERS) + len(SOURCE_GAUGES)
    assert families["thawd_build_info"].samples[0].value == 1
    of_process = [name for name in families if name.startswith("process_") or name == "thawd_build_info"]
    assert len(families) == len(COUNTERS) + 2 + len(DISTRIBUTIONS) + len(GAUGES) + of_sources + len(of_process)
    starts = {(s.name, s.labels["kind"]): s.value for s in families["thawd_starts_seconds"].samples}
    assert starts["thawd_starts_seconds_count", "fork"] == 1
    assert starts["thawd_starts_seconds_sum", "fork"] == pytest.approx(0.012)


def test_every_counter_is_in_the_status_of_its_function() -> None:
    metrics = Metrics()
    summary = metrics.function("f").summary()
    assert set(COUNTERS) <= set(summary)
    assert summary["starts"] == {}
    assert (summary["fallbacks"], summary["fallbacks_by_reason"]) == (0, {})
    assert summary["deliveries"] == {}
    metrics.function("f").count_fallback(Fallback.FORK_REFUSED, 3)
    metrics.function("f").count_delivery("http", DeliveryOutcome.DELIVERED, 2)
    counted = metrics.function("f").summary()
    assert (counted["fallbacks"], counted["fallbacks_by_reason"]) == (3, {"fork_refused": 3})
    assert counted["deliveries"] == {"http": {"delivered": 2}}
    metrics.function("f").record_invocation(StartKind.COLD, 1.0)
    assert metrics.function("f").summary()["invocations"]["cold"]["count"] == 1


def test_the_counters_of_a_function_are_one_set_however_often_asked_for() -> None:
    metrics = Metrics()
    metrics.function("f").errors += 1
    assert metrics.function("f").errors == 1


def test_the_metrics_of_many_functions_are_made_piece_by_piece_and_each_family_once() -> None:
    metrics = Metrics()
    count = 60
    for i in range(count):
        metrics.function(f"f{i}").errors = i
        metrics.set_gauge("waiting", function=f"f{i}", value=i)
    metrics.sources["queue", "other"] = dict.fromkeys([*SOURCE_COUNTERS, *SOURCE_GAUGES], 5)

    async def turns() -> tuple[str, int]:
        making = asyncio.create_task(exposition(metrics))
        turns = 0
        while not making.done():
            metrics.function(f"new{turns}")  # changes during the iteration break nothing
            turns += 1
            await asyncio.sleep(0)
        return making.result().decode(), turns

    text, others = asyncio.run(turns())
    assert others >= count // 25
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    (errors,) = (family for family in families if family.name == "thawd_errors")
    assert [s.value for s in errors.samples if s.labels["function"].startswith("f")] == list(range(count))
    assert asyncio.run(exposition(Metrics())).count(b"# HELP ") == text.count("# HELP ")
