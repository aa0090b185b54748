"""How many machines thawd asks Ray's autoscaler for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from thawd.ray_nodes.demand import COMING_S, PRESSED_S, Scaler, Seen, seen_machines


def full(name: str, waiting: int = 0) -> Seen:
    return Seen(name, used=4, waiting=waiting, memory_mb=4096, most=32)


def idle(name: str, used: int = 0) -> Seen:
    return Seen(name, used=used, free=4 - used, memory_mb=4096, most=32)


def scaler(wanted: int = 1, *, least: int = 1, most: int = 10) -> Scaler:
    return Scaler(least=least, most=most, idle_s=60, wanted=wanted)


def test_work_that_waits_without_room_adds_the_machines_that_it_keeps_busy() -> None:
    made = scaler(2)
    machines = [full("a", 5), full("b")]
    assert made.observe(machines, [], 0.0) == 2
    assert made.observe(machines, [], PRESSED_S - 0.1) == 2
    assert made.observe(machines, [], PRESSED_S) == 4  # 5 wait, 4 run on each


def test_a_moment_of_pressure_adds_nothing() -> None:
    made = scaler()
    for second in range(10):
        assert made.observe([full("a", 1)], [], 3.0 * second) == 1
        assert made.observe([idle("a")], [], 3.0 * second + 1) == 1


def test_the_number_is_doubled_at_most_and_no_more_is_asked_for_until_machines_have_come() -> None:
    made = scaler()
    made.observe([full("a", 1000)], [], 0.0)
    assert made.observe([full("a", 1000)], [], 2.0) == 2
    assert made.observe([full("a", 1000)], [], 100.0) == 2
    machines = [full("a", 500), full("b", 500)]
    assert made.observe(machines, [], 101.0) == 4
    # Machines that never come are not waited for without end.
    assert made.observe(machines, [], 101.0 + COMING_S) == 4
    assert made.observe([*machines, full("c"), full("d")], [], 104.0 + COMING_S) == 8


def test_what_waits_although_there_is_room_adds_nothing() -> None:
    made = scaler()
    machines = [Seen("a", used=2, waiting=50, free=1)]
    assert [made.observe(machines, [], float(second)) for second in range(20)] == [1] * 20


def test_machines_that_are_too_many_for_long_go_down_to_the_busiest_moment() -> None:
    made = scaler(6)
    machines = [idle(name) for name in "abcdef"]
    assert made.observe(machines, [], 0.0) == 6
    # 8 used environments need 12 places, so three machines with 4 each.
    assert made.observe([*machines[:4], idle("e", 4), idle("f", 4)], [], 30.0) == 6
    assert made.observe(machines, [], 59.0) == 6
    assert made.observe(machines, [], 60.0) == 3
    assert made.observe(machines[:3], [], 61.0) == 3
    assert made.observe(machines[:3], [], 121.0) == 1


def test_load_between_the_two_thresholds_changes_nothing() -> None:
    made = scaler(2)
    machines = [idle("a", 2), idle("b", 1)]  # one machine alone would be 75 % full
    assert {made.observe(machines, [], float(second)) for second in range(0, 1000, 7)} == {2}


def test_a_machine_that_still_comes_is_not_given_up_while_the_present_ones_are_full() -> None:
    made = scaler(2)
    assert {made.observe([full("a")], [], float(second)) for second in range(0, 1000, 10)} == {2}


def test_slack_that_ends_begins_anew() -> None:
    made = scaler(2)
    quiet, busy = [idle("a"), idle("b")], [idle("a", 3), idle("b", 3)]
    assert made.observe(quiet, [], 0.0) == made.observe(busy, [], 50.0) == made.observe(quiet, [], 60.0) == 2
    assert made.observe(quiet, [], 110.0) == 2
    assert made.observe(quiet, [], 120.0) == 1


def test_never_fewer_than_reserved_and_provisioned_concurrency_needs() -> None:
    made = scaler(1)
    machine = Seen("a", free=32, memory_mb=4096, most=32, pledged=20, pledged_mb=10_000)
    assert made.observe([machine], [], 0.0) == 3
    other = scaler(1)
    assert other.observe([Seen("a", free=32, memory_mb=4096, most=8, pledged=20, pledged_mb=100)], [], 0.0) == 3
    # Machines outside of Ray carry a part of it.
    assert scaler(1).observe([machine], [idle("x"), idle("y")], 0.0) == 1


def test_machines_outside_of_ray_are_room_too() -> None:
    made = scaler(2)
    machines, outside = [full("a", 9), full("b")], [idle("x")]
    assert {made.observe(machines, outside, float(second)) for second in range(10)} == {2}


def test_nothing_is_decided_without_a_machine() -> None:
    made = scaler(3)
    assert {made.observe([], [], float(second)) for second in range(0, 1000, 10)} == {3}


machines = st.lists(
    st.builds(Seen, st.just("m"), st.integers(0, 50), st.integers(0, 500), st.integers(0, 50)), max_size=8
)


@given(st.lists(st.tuples(machines, st.floats(0, 100)), max_size=30), st.integers(1, 3), st.integers(3, 12))
def test_the_number_stays_within_its_limits(steps: list[tuple[list[Seen], float]], least: int, most: int) -> None:
    made, now_s = Scaler(least=least, most=most, idle_s=60, wanted=1), 0.0
    for seen, passed_s in steps:
        now_s += passed_s
        before, after = made.wanted, made.observe(seen, [], now_s)
        assert least <= after <= most
        assert after <= max(before, 2 * len(seen), least)


def test_the_document_of_the_machines_is_read_and_unknown_fields_are_left_out() -> None:
    reports = [
        {"state": "serving", "leads": True, "busy": 2, "starting": 1, "waiting": 3, "queued": 4, "other": 1},
        {"state": "draining", "busy": 9},
        None,
    ]
    listed = [{"name": name, "report": report} for name, report in zip("abc", reports, strict=True)]
    assert seen_machines({"machine": "a", "machines": listed}) == ("a", [Seen("a", used=3, waiting=7)])
    assert seen_machines({"machine": "b", "machines": listed[1:]}) == ("", [])
