"""`thawd.cost.bills`: bills as calculated on AWS's page, break-evens as published, and the order of results."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thawd.cost.bills import (
    MONTH_S,
    MonthlyLoad,
    Shape,
    Times,
    against_provisioned,
    against_server,
    bill,
    billed_ms,
    billed_restored_ms,
    break_even,
    per_million,
)
from thawd.cost.prices import PRICES_FILE, CostError, load_prices

PRICES = load_prices()


def times(warm_ms: float, first_ms: float | None = None) -> Times:
    return Times(warm_ms=warm_ms, first_ms=warm_ms if first_ms is None else first_ms)


# Up to "By hand", the tests use calculations from pages of AWS or others, with the numbers published there


def test_the_mobile_backend_of_the_pricing_page_costs_2_73_a_month() -> None:
    # 3 million requests, 120 ms, 1,536 MB, x86, with the free tier: $2.33 + $0.40.
    found = bill(PRICES, Shape(memory_mb=1536), times(120), MonthlyLoad(invocations=3e6), free_tier=True)
    assert found.duration == pytest.approx(2.33, abs=0.005)
    assert found.requests == pytest.approx(0.40)
    assert found.total == pytest.approx(2.73, abs=0.005)


def test_the_support_model_of_the_pricing_page_costs_106_41_with_2_048_mb_of_storage() -> None:
    # 6 million requests, 280 ms, 4,096 MB, with the free tier: $105.33 + $1 + $0.08.
    found = bill(
        PRICES, Shape(memory_mb=4096, storage_mb=2048), times(280), MonthlyLoad(invocations=6e6), free_tier=True
    )
    assert found.duration == pytest.approx(105.33, abs=0.005)
    assert found.storage == pytest.approx(0.08, abs=0.005)
    assert found.total == pytest.approx(106.41, abs=0.005)


def test_the_application_launch_of_the_pricing_page_costs_19_96() -> None:
    # 100 environments of 1,536 MB for 8 hours. In these hours 500,000 of the 3 million invocations come, of 100 ms; the
    # others take 120 ms. The free tier applies only to invocations on demand: $18 + $0.40 + $0.73 + $0.83.
    shape = Shape(memory_mb=1536, provisioned=100, provisioned_s=8 * 3600)
    during = bill(PRICES, shape, times(100), MonthlyLoad(invocations=5e5, provisioned_share=1), free_tier=True)
    assert during.provisioned == pytest.approx(18, abs=0.005)
    assert during.provisioned_duration == pytest.approx(0.73, abs=0.005)
    rest = bill(PRICES, Shape(memory_mb=1536), times(120), MonthlyLoad(invocations=2.5e6), free_tier=True)
    assert rest.duration == pytest.approx(0.83, abs=0.005)
    together = bill(PRICES, shape, times(120), MonthlyLoad(invocations=3e6, provisioned_share=1 / 6), free_tier=True)
    assert together.requests == pytest.approx(0.40)
    assert during.provisioned + during.provisioned_duration + rest.duration + together.requests == pytest.approx(
        19.96, abs=0.01
    )


def test_the_sale_of_the_pricing_page_costs_32_26() -> None:
    # 7 environments of 4,096 MB for 24 hours serve all 2 million invocations of 280 ms: $10.08 + $21.78 + $0.40.
    shape = Shape(memory_mb=4096, provisioned=7, provisioned_s=24 * 3600)
    found = bill(PRICES, shape, times(280), MonthlyLoad(invocations=2e6, provisioned_share=1), free_tier=True)
    assert found.provisioned == pytest.approx(10.08, abs=0.005)
    assert found.provisioned_duration == pytest.approx(21.78, abs=0.005)
    assert found.total == pytest.approx(32.26, abs=0.01)


def test_the_telemetry_of_the_pricing_page_costs_263_92_with_snapstart() -> None:
    # 7.44 million invocations of 2 s at 1,024 MB, 1 % with a restore, in a month of 31 days: $1.49 + $248.00 + $14.43.
    shape = Shape(memory_mb=1024, snapstart=True, kept_s=31 * 86_400)
    found = bill(PRICES, shape, times(2000), MonthlyLoad(invocations=7.44e6, start_share=0.01))
    assert found.snapstart_cache == pytest.approx(4.03, abs=0.005)
    assert found.snapstart_restore == pytest.approx(10.4, abs=0.005)
    assert found.duration == pytest.approx(248.00, abs=0.005)
    assert found.total == pytest.approx(263.92, abs=0.01)


def test_the_free_tier_is_not_for_functions_with_provisioned_concurrency_all_the_month() -> None:
    shape = Shape(memory_mb=1024, provisioned=1)
    load = MonthlyLoad(invocations=1e6, provisioned_share=0.5)
    assert bill(PRICES, shape, times(100), load, free_tier=True) == bill(PRICES, shape, times(100), load)


def test_a_snapshot_is_paid_for_three_hours_at_least() -> None:
    shape = Shape(memory_mb=1024, snapstart=True, kept_s=60)
    assert bill(PRICES, shape, times(1), MonthlyLoad(invocations=0)).snapstart_cache == pytest.approx(
        10_800 * 0.0000015046
    )


@pytest.mark.parametrize(("memory_mb", "duration_ms", "published"), [(1024, 557, 22e6), (2048, 412, 15e6)])
def test_a_server_of_208_80_crosses_where_it_was_published(memory_mb: int, duration_ms: int, published: float) -> None:
    found = against_server(PRICES, Shape(memory_mb=memory_mb), times(duration_ms), 208.80)
    assert found == pytest.approx(published, rel=0.03)


@pytest.mark.parametrize(("memory_mb", "duration_ms", "published"), [(1024, 557, 22e6), (2048, 412, 15e6)])
def test_the_published_crossings_are_of_milliseconds_without_free_tier(
    memory_mb: int, duration_ms: int, published: float
) -> None:
    # With billing in steps of 100 ms, as until 2020-12, or with the free tier, the results would differ by more than 3
    # %.
    shape = Shape(memory_mb=memory_mb)
    in_steps = against_server(PRICES, shape, times(-(-duration_ms // 100) * 100), 208.80)
    with_free_tier = against_server(PRICES, shape, times(duration_ms), 208.80, free_tier=True)
    assert in_steps != pytest.approx(published, rel=0.03)
    assert with_free_tier != pytest.approx(published, rel=0.03)


def test_a_provisioned_environment_pays_once_it_is_busy_for_60_percent() -> None:
    # 0.0000041667 / (0.0000166667 - 0.0000097222) = 0.6
    found = against_provisioned(PRICES, Shape(memory_mb=1024), times(200))
    assert found.busy_share == pytest.approx(0.6, abs=0.001)
    assert found.invocations == pytest.approx(0.6 * MONTH_S / 0.2, rel=0.001)


# By hand


def test_a_snapshot_costs_its_keeping_and_each_restore() -> None:
    shape = Shape(memory_mb=2048, snapstart=True)
    found = bill(PRICES, shape, times(100, 300), MonthlyLoad(invocations=1e6, start_share=0.1))
    assert found.snapstart_cache == pytest.approx(2 * 730 * 3600 * 0.0000015046)  # 7.91
    assert found.snapstart_restore == pytest.approx(1e5 * 2 * 0.0001397998)  # 27.96
    assert found.duration == pytest.approx(1e6 * 2 * (0.9 * 0.1 + 0.1 * 0.3) * 0.0000166667)  # 4.00


def test_init_is_billed_with_the_invocations_that_wait_for_it() -> None:
    load = MonthlyLoad(invocations=1e6, start_share=0.01)
    found = bill(PRICES, Shape(memory_mb=1024), times(100, 8716), load)
    assert found.duration == pytest.approx(1e6 * (0.99 * 0.1 + 0.01 * 8.716) * 0.0000166667)


def test_what_provisioned_environments_cannot_serve_is_billed_on_demand() -> None:
    shape = Shape(memory_mb=1024, provisioned=1)
    load = MonthlyLoad(invocations=1000, start_share=0.1, provisioned_share=0.5)
    found = bill(PRICES, shape, times(1000, 3000), load)
    assert found.provisioned_duration == pytest.approx(500 * 0.0000097222)
    assert found.duration == pytest.approx((400 * 1 + 100 * 3) * 0.0000166667)


def test_provisioned_concurrency_is_billed_in_steps_of_five_minutes() -> None:
    shape = Shape(memory_mb=1024, provisioned=2, provisioned_s=301)
    assert bill(PRICES, shape, times(1), MonthlyLoad(invocations=0)).provisioned == pytest.approx(
        2 * 600 * 0.0000041667
    )


def test_arm_has_prices_of_its_own() -> None:
    found = per_million(PRICES, Shape(memory_mb=1024, architecture="arm64"), times(1000))
    assert found == pytest.approx(0.20 + 13.3334)


def test_what_is_above_a_step_of_prices_costs_less_and_nothing_else_does() -> None:
    assert PRICES.x86_64.duration(7e9) == pytest.approx(6e9 * 0.0000166667 + 1e9 * 0.0000150000)
    assert PRICES.x86_64.duration(16e9) == pytest.approx(6e9 * 0.0000166667 + 9e9 * 0.000015 + 1e9 * 0.0000133334)


def test_durations_are_rounded_up_to_the_millisecond_with_init_and_apart_from_a_restore() -> None:
    assert billed_ms(10.01) == 11
    assert billed_ms(10.4, 100.5) == 111
    assert billed_restored_ms(10.4, 0.2) == 12


def test_what_lambda_does_not_have_is_refused() -> None:
    with pytest.raises(CostError, match="does not allow SnapStart together with"):
        Shape(memory_mb=1024, snapstart=True, provisioned=1)
    with pytest.raises(CostError, match="512 MB"):
        Shape(memory_mb=1024, snapstart=True, storage_mb=513)


def test_break_even_is_none_where_there_is_none() -> None:
    assert break_even(lambda n: 5 + n, lambda _n: 4.0) is None  # more expensive from the start
    assert break_even(lambda n: n, lambda n: n + 1) is None  # never
    assert break_even(lambda n: n / 4, lambda _n: 10.0) == pytest.approx(40)


def test_a_provisioned_environment_that_would_have_to_be_busy_all_the_time_never_pays() -> None:
    dear = msgspec.structs.replace(PRICES.x86_64, provisioned_gb_s=0.00001)
    assert (
        against_provisioned(msgspec.structs.replace(PRICES, x86_64=dear), Shape(memory_mb=1024), times(100)).invocations
        is None
    )


# Order of results

LOADS = st.builds(
    MonthlyLoad,
    invocations=st.floats(0, 1e12),
    start_share=st.floats(0, 1),
)
SHAPES = st.one_of(
    st.builds(
        Shape,
        memory_mb=st.integers(128, 10_240),
        architecture=st.sampled_from(["x86_64", "arm64"]),
        storage_mb=st.integers(512, 10_240),
        provisioned=st.integers(0, 100),
    ),
    st.builds(Shape, memory_mb=st.integers(128, 10_240), snapstart=st.just(True)),
)
TIMES = st.builds(
    lambda warm, more: Times(warm_ms=warm, first_ms=warm + more), st.floats(1, 900_000), st.floats(0, 100_000)
)


@given(SHAPES, TIMES, LOADS, st.booleans(), st.floats(0, 1e9))
def test_more_invocations_never_cost_less(
    shape: Shape, times: Times, load: MonthlyLoad, free_tier: bool, more: float
) -> None:
    grown = msgspec.structs.replace(load, invocations=load.invocations + more)
    less = bill(PRICES, shape, times, load, free_tier=free_tier).total
    assert bill(PRICES, shape, times, grown, free_tier=free_tier).total >= less * (1 - 1e-9)


@given(SHAPES, TIMES, LOADS, st.floats(0, 1))
def test_more_starts_never_cost_less(shape: Shape, times: Times, load: MonthlyLoad, share: float) -> None:
    grown = msgspec.structs.replace(load, start_share=max(load.start_share, share))
    less = bill(PRICES, shape, times, load).total
    assert bill(PRICES, shape, times, grown).total >= less * (1 - 1e-9)


@given(SHAPES, TIMES, LOADS)
def test_more_memory_at_the_same_speed_never_costs_less(shape: Shape, times: Times, load: MonthlyLoad) -> None:
    grown = msgspec.structs.replace(shape, memory_mb=10_240)
    assert bill(PRICES, grown, times, load).total >= bill(PRICES, shape, times, load).total * (1 - 1e-9)


@given(SHAPES, TIMES, LOADS)
def test_the_free_tier_never_costs_more(shape: Shape, times: Times, load: MonthlyLoad) -> None:
    free = bill(PRICES, shape, times, load, free_tier=True)
    assert free.total <= bill(PRICES, shape, times, load).total * (1 + 1e-9)


@given(st.integers(128, 10_240), TIMES, st.floats(0, 1), st.floats(1, 1e5), st.booleans())
def test_at_the_break_even_both_cost_the_same(
    memory_mb: int, times: Times, share: float, monthly: float, free_tier: bool
) -> None:
    shape = Shape(memory_mb=memory_mb)
    found = against_server(PRICES, shape, times, monthly, start_share=share, free_tier=free_tier)
    assert found is not None
    load = MonthlyLoad(invocations=found, start_share=share)
    assert bill(PRICES, shape, times, load, free_tier=free_tier).total == pytest.approx(monthly, rel=1e-6, abs=1e-6)


# The price file


def test_the_file_of_prices_says_of_when_and_whence_it_is() -> None:
    assert PRICES.date == "2026-09"
    assert PRICES.source.startswith("https://aws.amazon.com/lambda/pricing/")
    assert PRICES.region == "us-east-1"


def test_prices_of_another_file_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(PRICES_FILE.read_text().replace("million_requests = 0.20", "million_requests = 0.50"))
    assert per_million(load_prices(file), Shape(memory_mb=1024), times(0)) == pytest.approx(0.50)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("million_requests = 0.20", "million_requests = -1"),
        ("million_requests = 0.20", ""),
        ("million_requests = 0.20", "million_requests = 0.20\nextra = 1"),
        ("[[0, 0.0000166667]", "[[1, 0.0000166667]"),
        ("[x86_64]", "[x86_64"),
    ],
)
def test_a_file_that_holds_no_prices_is_refused_by_name(tmp_path: Path, before: str, after: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(PRICES_FILE.read_text().replace(before, after))
    with pytest.raises(CostError, match=r"mine\.toml is not a price file"):
        load_prices(file)


# Which costs belong to which sum


def test_without_provisioned_environments_nothing_is_billed_as_served_by_them() -> None:
    load = MonthlyLoad(invocations=1000)
    found = bill(PRICES, Shape(memory_mb=1024), times(100), msgspec.structs.replace(load, provisioned_share=0.5))
    assert found == bill(PRICES, Shape(memory_mb=1024), times(100), load)
    assert found.provisioned_duration == 0.0


def test_no_more_starts_are_billed_than_there_are_invocations_on_demand() -> None:
    shape = Shape(memory_mb=1024, provisioned=1)
    load = MonthlyLoad(invocations=100, provisioned_share=0.9, start_share=0.5)
    ten = bill(PRICES, Shape(memory_mb=1024), times(100, 5000), MonthlyLoad(invocations=10, start_share=1.0))
    assert bill(PRICES, shape, times(100, 5000), load).duration == pytest.approx(ten.duration)


def test_a_million_invocations_add_what_depends_on_them_and_nothing_that_is_fixed() -> None:
    shape = Shape(memory_mb=1024, snapstart=True)
    found = bill(PRICES, shape, times(100, 500), MonthlyLoad(invocations=1e6, start_share=0.1))
    assert found.snapstart_cache > 0
    expected = found.requests + found.duration + found.snapstart_restore
    assert per_million(PRICES, shape, times(100, 500), start_share=0.1) == pytest.approx(expected)
    plain, kept = Shape(memory_mb=1024), Shape(memory_mb=1024, provisioned=3)
    assert per_million(PRICES, kept, times(100)) == per_million(PRICES, plain, times(100))


def test_a_break_even_below_one_invocation_is_found_too() -> None:
    assert break_even(lambda count: 10 * count, lambda _count: 5) == pytest.approx(0.5, abs=1e-5)


def test_comparisons_are_without_starts_unless_they_are_given() -> None:
    shape, slow = Shape(memory_mb=1024), times(100, 3000)
    server = against_server(PRICES, shape, slow, 50.0)
    assert server == against_server(PRICES, shape, slow, 50.0, start_share=0.0)
    assert server is not None
    with_starts = against_server(PRICES, shape, slow, 50.0, start_share=0.5)
    assert with_starts is not None
    assert with_starts < server
    provisioned = against_provisioned(PRICES, shape, slow)
    assert provisioned == against_provisioned(PRICES, shape, slow, start_share=0.0)
    assert provisioned.invocations is not None
    sooner = against_provisioned(PRICES, shape, slow, start_share=0.2)
    assert sooner.invocations is not None
    assert sooner.invocations < provisioned.invocations
    later = against_provisioned(PRICES, shape, slow, start_share=0.2, free_tier=True)
    assert later.invocations is not None
    assert later.invocations > sooner.invocations


def test_a_provisioned_environment_is_compared_for_the_whole_month_whatever_the_function_has_now() -> None:
    plain = against_provisioned(PRICES, Shape(memory_mb=1024), times(100))
    for shape in (
        Shape(memory_mb=1024, snapstart=True),
        Shape(memory_mb=1024, provisioned=4),
        Shape(memory_mb=1024, provisioned_s=3600.0),
    ):
        found = against_provisioned(PRICES, shape, times(100))
        if not shape.snapstart:  # SnapStart has additional costs
            assert found == plain
        assert found.invocations is not None
        assert found.busy_share == pytest.approx(found.invocations * 0.1 / MONTH_S, rel=1e-9)


def test_restores_are_billed_with_snapstart_alone_and_storage_for_all_that_runs() -> None:
    load = MonthlyLoad(invocations=1000, start_share=0.5)
    assert bill(PRICES, Shape(memory_mb=1024), times(100), load).snapstart_restore == 0.0
    on_demand = bill(PRICES, Shape(memory_mb=1024, storage_mb=1024), times(100), MonthlyLoad(invocations=1000))
    shape = Shape(memory_mb=1024, storage_mb=1024, provisioned=1)
    shared = bill(PRICES, shape, times(100), MonthlyLoad(invocations=1000, provisioned_share=0.6))
    assert shared.storage == pytest.approx(on_demand.storage)
    assert bill(PRICES, shape, times(100), MonthlyLoad(invocations=0)).requests == 0.0
