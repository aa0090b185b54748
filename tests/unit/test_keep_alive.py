"""`thawd.scheduling.keep_alive` and its simulation: windows, and request traces calculated by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thawd.cost.keep_warm import Arrival, SimulationResult, simulate
from thawd.scheduling.keep_alive import (
    FixedPolicy,
    HistogramParameters,
    HistogramPolicy,
    Keeper,
    Policy,
    Windows,
    policy_of,
)

FALLBACK_S = 300.0


def learnt(idle_times_s: list[float], parameters: HistogramParameters | None = None) -> HistogramPolicy:
    policy = HistogramPolicy(FALLBACK_S, parameters)
    for idle_s in idle_times_s:
        policy.observe(idle_s)
    return policy


def run(arrivals: list[tuple[float, float]], policy: Policy, **more: object) -> SimulationResult:
    asked = {"surplus_s": FALLBACK_S, "start_s": 1.0, **more}
    return simulate([Arrival(at_s, duration_s) for at_s, duration_s in arrivals], policy, **asked)  # type: ignore[arg-type]


# The windows


def test_a_clear_peak_gives_the_windows_around_it() -> None:
    # The function is always idle for 20.5 minutes, so head and tail are in bin 20. The head is rounded down to 20 min,
    # minus 10 %; the tail up to 21 min, plus 10 %.
    windows = learnt([20.5 * 60] * 10).windows()
    assert windows.prewarm_s == pytest.approx(20 * 60 * 0.9)
    assert windows.prewarm_s + windows.keep_alive_s == pytest.approx(21 * 60 * 1.1)


def test_head_and_tail_are_the_5th_and_the_99th_percentile() -> None:
    # 100 idle times: 4 of 10.5 min, 90 of 20.5, 5 of 30.5, 1 of 100.5. The 5th percentile is 20.5, the 99th is 30.5.
    times = [10.5 * 60] * 4 + [20.5 * 60] * 90 + [30.5 * 60] * 5 + [100.5 * 60]
    windows = learnt(times).windows()
    assert windows.prewarm_s == pytest.approx(20 * 60 * 0.9)
    assert windows.prewarm_s + windows.keep_alive_s == pytest.approx(31 * 60 * 1.1)


def test_an_environment_is_not_unloaded_where_some_come_within_the_first_bin() -> None:
    windows = learnt([30.0] * 10).windows()
    assert windows == Windows(0.0, pytest.approx(66.0))


def test_too_few_idle_times_fall_back_on_the_fixed_time() -> None:
    assert learnt([1230.0] * 9).windows() == Windows(0.0, FALLBACK_S)


def test_idle_times_out_of_bounds_fall_back_on_the_fixed_time_when_they_are_most() -> None:
    four_hours_s = 240 * 60.0
    assert learnt([1230.0] * 10 + [four_hours_s] * 11).windows() == Windows(0.0, FALLBACK_S)
    assert learnt([1230.0] * 10 + [four_hours_s] * 10).windows().prewarm_s == pytest.approx(1080)


def test_idle_times_of_all_lengths_fall_back_on_the_fixed_time() -> None:
    evenly = learnt([60.0 * minutes + 30 for minutes in range(240)])
    assert evenly.variation() == pytest.approx(0.0)
    assert evenly.windows() == Windows(0.0, FALLBACK_S)


def test_variation_is_that_of_the_bins_counts() -> None:
    # The bins count 3, 1, 0, 0: mean 1, variance (4 + 0 + 1 + 1) / 4 = 1.5.
    policy = learnt([30.0, 30.0, 30.0, 90.0], HistogramParameters(bins=4))
    assert policy.variation() == pytest.approx(1.5**0.5)


@given(st.lists(st.floats(0, 20_000), max_size=60))
def test_windows_are_never_negative_and_hold_what_is_within_the_quantiles(times: list[float]) -> None:
    policy = learnt(times)
    windows = policy.windows()
    assert windows.prewarm_s >= 0
    assert windows.keep_alive_s > 0
    if policy.is_representative():
        within = [t for t in times if t < 240 * 60]
        served = sum(windows.prewarm_s <= t <= windows.prewarm_s + windows.keep_alive_s for t in within)
        assert served >= 0.94 * len(within) - 1


# The keeper


def test_the_idle_time_that_is_learnt_is_from_the_last_end_to_the_next_request() -> None:
    observed: list[float] = []

    class Noting(FixedPolicy):
        def observe(self, idle_s: float) -> None:
            observed.append(idle_s)

    policy = Noting(10.0)
    keeper = Keeper(policy, surplus_s=10.0)
    keeper.asked(0.0)
    keeper.asked(1.0)  # while the first invocation runs
    keeper.at_rest(5.0)
    keeper.at_rest(6.0)
    keeper.asked(25.0)
    assert observed == [20.0]


# Traces calculated by hand. A start takes 1 s


def test_a_timer_slower_than_the_fixed_time_starts_an_environment_each_time() -> None:
    # Requests of 2 s at 0, 400 and 800 s; environments are kept for 300 s. Each request starts one, which is free 3 s
    # later and idle for 300 s. The last one's idle time is after the end of the trace.
    found = run([(0, 2), (400, 2), (800, 2)], FixedPolicy(300))
    assert (found.starts, found.started_ahead, found.most) == (3, 0, 1)
    assert found.idle_s == pytest.approx(600)
    assert found.busy_s == pytest.approx(9)
    assert found.spent_s == pytest.approx(803)


def test_a_timer_faster_than_the_fixed_time_starts_one() -> None:
    # Free at 3, 202 and 402 s: idle for 197 s and 198 s.
    found = run([(0, 2), (200, 2), (400, 2)], FixedPolicy(300))
    assert found.starts == 1
    assert found.idle_s == pytest.approx(197 + 198)


def test_a_request_just_before_and_just_after_the_end_of_the_fixed_time() -> None:
    # The first environment is free at 3 s, so it is kept until 303 s.
    assert run([(0, 2), (302.9, 2)], FixedPolicy(300)).starts == 1
    assert run([(0, 2), (303.1, 2)], FixedPolicy(300)).starts == 2


def test_requests_at_once_have_an_environment_each_and_the_last_used_is_used_first() -> None:
    # Three requests at 0 s; their environments are free at 3, 4 and 5 s. The requests at 100, 250 and 310 s use the one
    # that was free last. The others end at 303 and 304 s.
    found = run([(0, 2), (0, 3), (0, 4), (100, 1), (250, 1), (310, 1)], FixedPolicy(300))
    assert (found.starts, found.most) == (3, 3)
    # Idle: 300 + 300 for the two that end; 95 (5 to 100), 149 (101 to 250) and 59 (251 to 310) for the third.
    assert found.idle_s == pytest.approx(300 + 300 + 95 + 149 + 59)


def test_a_request_that_comes_while_the_only_environment_runs_starts_another() -> None:
    assert run([(0, 50), (10, 1)], FixedPolicy(300)).starts == 2


def test_the_histogram_unloads_and_is_back_before_the_timer() -> None:
    # A request of 1 s comes every 1,232 s. The first ten wait for a start each: their environment is free after 2 s and
    # kept for 300 s, while the function is idle for 1,230 s. The tenth idle time is known from the 11th request on.
    # After that request's end the windows are 1,080 s and 306 s: an environment is started 1,080 s later, and is idle
    # until the next request.
    arrivals = [(1232.0 * number, 1.0) for number in range(14)]
    found = run(arrivals, HistogramPolicy(FALLBACK_S))
    # The 11th request still waits, because it ended the tenth idle time. The 12th, 13th and 14th do not wait.
    assert (found.starts, found.started_ahead) == (11, 3)
    # Idle: 10 times 300 s. After the 11th request the environment is free at +2 s; the next one is started at +1,082,
    # ready at +1,083 and waits 149 s. After the 12th and 13th it is free at +1 s; the next is ready at +1,082 and waits
    # 150 s.
    assert found.idle_s == pytest.approx(10 * 300 + 149 + 150 + 150)


def test_what_was_started_ahead_in_vain_ends_with_its_window() -> None:
    arrivals = [(1232.0 * number, 1.0) for number in range(11)]
    last_s = arrivals[-1][0]
    found = run([*arrivals, (last_s + 5000, 1.0)], HistogramPolicy(FALLBACK_S))
    assert found.starts == 12
    assert found.started_ahead == 1
    # Ready at +1,083 and kept until 2 + 1,080 + 306, which is 305 s.
    assert found.idle_s == pytest.approx(10 * 300 + 305)


def test_a_request_while_an_environment_is_started_ahead_takes_that_start() -> None:
    arrivals = [(1232.0 * number, 1.0) for number in range(11)]
    found = run([*arrivals, (arrivals[-1][0] + 2 + 1080.4, 1.0)], HistogramPolicy(FALLBACK_S))
    assert (found.starts, found.started_ahead) == (12, 1)
    # the request used the start in progress instead of another one
    assert found.busy_s == pytest.approx(11 * 2 + 1 + 1)


def test_provisioned_environments_serve_first_and_never_wait() -> None:
    found = run([(0, 10), (0, 10), (0, 10)], FixedPolicy(300), provisioned=lambda _now: 2)
    assert (found.in_provisioned, found.starts) == (2, 1)


def test_a_span_is_looked_at_to_its_end() -> None:
    # Free at 3 s and kept until 303 s. The span reaches beyond that.
    found = run([(0, 2)], FixedPolicy(300), span=(-100.0, 1000.0))
    assert found.spent_s == pytest.approx(1100)
    assert found.idle_s == pytest.approx(300)
    assert run([(0, 2)], FixedPolicy(300), span=(0.0, 103.0)).idle_s == pytest.approx(100)


TRACES = st.lists(st.tuples(st.floats(0, 50_000), st.floats(0, 500)), max_size=60).map(sorted)


@given(TRACES, st.floats(0, 5000), st.floats(0, 5000))
def test_keeping_longer_never_starts_more_nor_idles_less(
    trace: list[tuple[float, float]], kept_s: float, more_s: float
) -> None:
    less = run(trace, FixedPolicy(kept_s), surplus_s=kept_s, start_s=0.0)
    more = run(trace, FixedPolicy(kept_s + more_s), surplus_s=kept_s + more_s, start_s=0.0)
    assert more.starts <= less.starts
    assert more.idle_s >= less.idle_s - 1e-6


@given(TRACES, st.sampled_from(["fixed", "histogram"]))
def test_every_request_is_counted_and_time_adds_up(trace: list[tuple[float, float]], kind: str) -> None:
    parameters = HistogramParameters(bin_s=10, bins=50, least_observations=2, least_variation=0.5)
    policy: Policy = FixedPolicy(60) if kind == "fixed" else HistogramPolicy(60, parameters)
    found = run(trace, policy)
    assert found.invocations == len(trace)
    assert 0 <= found.starts <= len(trace)
    assert found.most <= len(trace)
    expected = sum(duration_s for _, duration_s in trace) + found.starts + found.started_ahead
    assert expected - found.started_ahead - 1e-6 <= found.busy_s <= expected + 1e-6
    assert found.idle_s >= 0


@pytest.mark.parametrize(("bins", "variation"), [(2, 1.0), (5, 2.0), (17, 4.0)])
def test_the_variation_of_one_full_bin_among_n_is_the_root_of_n_minus_1(bins: int, variation: float) -> None:
    policy = HistogramPolicy(300.0, HistogramParameters(bins=bins))
    for _ in range(20):
        policy.observe(60.0)
    assert policy.variation() == pytest.approx(variation)
    assert policy.is_representative() is (variation >= 2.0)  # a variation of exactly 2.0 is enough


def test_without_any_observation_there_is_no_variation() -> None:
    assert HistogramPolicy(300.0).variation() == 0.0


def test_each_policy_is_made_by_its_name_with_the_fixed_time() -> None:
    fixed, histogram = policy_of("fixed", 120.0), policy_of("histogram", 120.0)
    assert isinstance(fixed, FixedPolicy)
    assert isinstance(histogram, HistogramPolicy)
    assert fixed.windows() == histogram.windows() == Windows(0.0, 120.0)


# What the simulation counts


class Says(FixedPolicy):
    """Always gives the same windows: an environment is prewarmed after ``prewarm_s`` and kept for ``keep_alive_s``."""

    def __init__(self, prewarm_s: float, keep_alive_s: float) -> None:
        super().__init__(keep_alive_s)
        self.said = Windows(prewarm_s, keep_alive_s)

    def windows(self) -> Windows:
        return self.said


def test_shares_are_of_all_invocations_and_nothing_where_there_are_none() -> None:
    found = run([(0, 1), (10, 1), (20, 1), (30, 1)], FixedPolicy(FALLBACK_S))
    assert (found.start_share, found.provisioned_share) == (0.25, 0.0)
    found = run([(0, 1), (10, 1)], FixedPolicy(FALLBACK_S), provisioned=lambda now: int(now > 5))
    assert (found.start_share, found.provisioned_share) == (0.5, 0.5)
    found = run([], FixedPolicy(FALLBACK_S))
    assert (found.start_share, found.provisioned_share, found.spent_s) == (0.0, 0.0, 0.0)


def test_a_provisioned_environment_serves_one_at_a_time_and_again_once_it_is_free() -> None:
    arrivals = [(0.0, 10.0), (5.0, 10.0), (12.0, 1.0), (20.0, 5.0), (21.0, 5.0)]
    found = run(arrivals, FixedPolicy(FALLBACK_S), provisioned=lambda now: 1)
    assert (found.in_provisioned, found.starts) == (3, 1)


def test_the_most_environments_at_once_are_those_that_run_and_those_that_idle() -> None:
    found = run([(0, 1), (10, 1)], FixedPolicy(FALLBACK_S), provisioned=lambda now: int(now > 5))
    assert found.most == 2


def test_nothing_is_started_ahead_where_a_provisioned_environment_is() -> None:
    alone = run([(0, 1)], Says(600, 60), span=(0, 2000))
    assert (alone.started_ahead, alone.most) == (1, 1)
    beside = run([(0, 1)], Says(600, 60), span=(0, 2000), provisioned=lambda now: int(now > 100))
    assert beside.started_ahead == 0


def test_time_is_counted_from_the_first_arrival_to_the_last_end_with_what_was_waited_for() -> None:
    assert run([(100, 1)], FixedPolicy(FALLBACK_S)).spent_s == 2  # one second for the start, and one for the invocation
    assert run([(100, 0.25)], FixedPolicy(FALLBACK_S), start_s=0.25).spent_s == 0.5
    # Idle from 11 s on, prewarming begins at 611, the request comes at 614, the environment is ready at 621, the end is
    # at 622.
    assert run([(0, 1), (614, 1)], Says(600, 60), start_s=10.0).spent_s == 622
