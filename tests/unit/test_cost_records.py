"""Where `thawd cost` gets durations and arrivals from: logs, bench files, the command line, rules."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

from thawd.cost.arrivals import BEGIN_S, make_arrivals, read_arrivals
from thawd.cost.keep_warm import Arrival
from thawd.cost.measured import read_bench
from thawd.cost.prices import CostError
from thawd.cost.records import Measured, Record, arrivals_of, by_hand, measure, read_records

ID = "3f0c8a52-7a5e-4b3c-9a55-0f1f6a1f0d11"
# Lines in the formats of `thawd logs`, of CloudWatch exports, and of Lambda's console output.
LOG = f"""\
2026-11-20T10:00:00.000Z\tstream\tSTART RequestId: {ID} Version: $LATEST
2026-11-20T10:00:02.000Z\tstream\tREPORT RequestId: {ID}\tDuration: 100.20 ms\tBilled Duration: 1101 ms\tMemory Size: \
512 MB\tMax Memory Used: 88 MB\tInit Duration: 1000.30 ms\t
2026-11-20T10:00:03.000Z\tstream\tthe handler's REPORT RequestId: of itself
2026-11-20T10:01:00.000Z REPORT RequestId: {ID}\tDuration: 20.10 ms\tBilled Duration: 21 ms\tMemory Size: 512 MB\tMax \
Memory Used: 90 MB\t
REPORT RequestId: {ID}\tDuration: 30.00 ms\tBilled Duration: 30 ms\tMemory Size: 512 MB\tMax Memory Used: 90 MB\t
2026-11-20T11:00:00.000Z\tstream\tREPORT RequestId: {ID}\tDuration: 40.50 ms\tBilled Duration: 41 ms\tMemory Size: \
1024 MB\tMax Memory Used: 70 MB\tRestore Duration: 9.00 ms\tBilled Restore Duration: 3 ms\t
"""
JSON_LINE = json.dumps(
    {
        "time": "2026-11-20T10:00:00.000Z",
        "type": "platform.report",
        "record": {
            "requestId": ID,
            "metrics": {
                "durationMs": 5.25,
                "billedDurationMs": 106,
                "memorySizeMB": 128,
                "maxMemoryUsedMB": 40,
                "initDurationMs": 100.0,
            },
        },
    }
)


def test_report_lines_of_thawd_and_of_lambda_are_read_and_others_passed_over() -> None:
    records = read_records(LOG.splitlines())
    assert [record.duration_ms for record in records] == [100.2, 20.1, 30.0, 40.5]
    assert [record.billed_ms for record in records] == [1101, 21, 30, 44]
    assert [record.is_first for record in records] == [True, False, False, True]
    assert [record.used_mb for record in records] == [88, 90, 90, 70]


def test_json_lines_are_read_too() -> None:
    (record,) = read_records([f"2026-11-20T10:00:00.100Z\tstream\t{JSON_LINE}", JSON_LINE[:-5]])
    assert (record.memory_mb, record.billed_ms, record.init_ms) == (128, 106, 100.0)


@pytest.mark.parametrize(
    "line",
    [
        "REPORT RequestId: a\tDuration: . ms\tMemory Size: 128 MB",
        "REPORT RequestId: a\tDuration: 1.2.3 ms\tMemory Size: 128 MB",
        '{"type": "platform.report", "record": {"metrics": {"memorySizeMB": 128, "durationMs": "long"}}}',
        '{"type": "platform.report", "record": {"metrics": {"memorySizeMB": 128, "durationMs": 1',
        '{"type": "platform.report", "record": {"metrics": null}}',
        '"platform.report"',
    ],
)
def test_lines_that_only_look_like_reports_are_passed_over(line: str) -> None:
    assert read_records([line]) == []


def test_averages_are_by_size_and_by_kind_of_start() -> None:
    small, large = measure(read_records(LOG.splitlines()))
    assert small == Measured(
        memory_mb=512,
        warm_ms=25.5,
        cold_ms=1101,
        start_share=pytest.approx(1 / 3),
        count=3,
        warm_error_ms=pytest.approx(8.82),
    )
    # Without a warm invocation, the time in the handler is used instead.
    assert large == Measured(memory_mb=1024, warm_ms=41, restored_ms=44, start_share=1.0, count=1)


def test_arrivals_are_the_ends_less_durations_and_starts() -> None:
    found = arrivals_of(read_records(LOG.splitlines()))
    begin_s = 1795168800.0  # 10 o'clock
    assert [round(arrival.at_s - begin_s, 4) for arrival in found] == [0.8995, 59.9799, 3599.9505]
    assert found[0].duration_s == pytest.approx(0.1002)


def test_invocations_one_after_the_other_do_not_overlap_because_their_times_are_cut_off() -> None:
    now_s, records = 1795168800.0, []
    for gap_ms, duration_ms in ((0.1, 1.95), (0.02, 0.9), (0.01, 1.9), (0.5, 0.3), (0.3, 0.9)):
        now_s += (gap_ms + duration_ms) / 1000
        records.append(Record(memory_mb=128, duration_ms=duration_ms, ended_s=math.floor(now_s * 1000) / 1000))
    found = arrivals_of(records)
    assert all(one.at_s + one.duration_s <= other.at_s for one, other in itertools.pairwise(found))
    overlapping = arrivals_of([*records, Record(memory_mb=128, duration_ms=5.0, ended_s=records[-1].ended_s)])
    assert overlapping[1].at_s < overlapping[0].at_s + 0.005


def test_nothing_to_average_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(CostError, match="invoke the function first"):
        measure([])


def test_sizes_by_hand() -> None:
    assert by_hand("1024:557") == Measured(memory_mb=1024, warm_ms=557)
    assert by_hand("1769:365.2:8616:572") == Measured(memory_mb=1769, warm_ms=366, cold_ms=8982, restored_ms=938)
    assert by_hand("1024:10::5") == Measured(memory_mb=1024, warm_ms=10, restored_ms=15)


@pytest.mark.parametrize("text", ["1024", "a:1", "1024:", "100:5", "1024:5:6:7:8", "1024:-1", "1024:nan", "1024:inf"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(CostError, match="MEMORY:DURATION"):
        by_hand(text)


def bench_file(folder: Path, **changes: object) -> Path:
    columns = {
        "outcomes": ["ok", "timeout"],
        "outcome": [0, 0, 0, 0, 1],
        "start": [1, 3, 4, 2, 4],
        "ready_ms": [900.0, 12.0, None, 3.0, None],
        "prepare_ms": [800.0, 4.0, None, 1.0, None],
        "handler_ms": [10.5, 11.0, 12.0, 14.0, 1000.0],
    }
    document = {"format": "thawd-bench-1", "runs": [{"label": "one", "columns": {**columns, **changes}}]}
    file = folder / "bench.json"
    file.write_text(json.dumps(document))
    return file


def test_the_right_answers_of_a_bench_are_read_with_their_starts(tmp_path: Path) -> None:
    (size,) = measure(read_bench(bench_file(tmp_path), memory_mb=1024))
    assert size == Measured(
        memory_mb=1024,
        warm_ms=13.0,  # 12, and the forked environment's 14
        cold_ms=811,  # 10.5 + 800
        restored_ms=15,  # 11 + 4
        start_share=0.5,
        count=4,
        warm_error_ms=pytest.approx(1.96),
    )


def test_a_bench_that_does_not_know_the_time_in_the_handler_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CostError, match="handler times"):
        read_bench(bench_file(tmp_path, handler_ms=[None] * 5), memory_mb=1024)
    with pytest.raises(CostError, match="was not written by"):
        read_bench(Path(__file__), memory_mb=1024)


def test_arrivals_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "arrivals.csv"
    file.write_text("time,duration_ms\n# a comment\n2026-11-20T10:00:10Z,500\n\n2026-11-20T10:00:00\n")
    assert read_arrivals(file, duration_s=2.0) == [Arrival(1795168800.0, 2.0), Arrival(1795168810.0, 0.5)]
    file.write_text("3.5\n1.25\t100\n")
    assert read_arrivals(file, duration_s=2.0) == [Arrival(1.25, 0.1), Arrival(3.5, 2.0)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1\nsoon\n", "line 2"),
        ("# nothing\n", "no arrival times"),
        ("1\nnan\n3\n", "line 2"),
        ("1\n2\ninf\n", "line 3"),
        ("1,5\n2,-7\n", "line 2"),
        ("1\n2,nan\n", "line 2"),
    ],
)
def test_a_file_without_arrivals_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "arrivals.csv"
    file.write_text(text)
    with pytest.raises(CostError, match=said):
        read_arrivals(file, duration_s=1.0)


def test_made_arrivals_are_as_many_as_the_rule_says_and_the_same_again() -> None:
    assert [a.at_s - BEGIN_S for a in make_arrivals("every=1200", hours=1, duration_s=1)] == [0, 1200, 2400]
    poisson = make_arrivals("poisson=60", hours=100, duration_s=1)
    assert len(poisson) == pytest.approx(6000, rel=0.1)
    assert poisson == make_arrivals("poisson=60", hours=100, duration_s=1)
    bursts = make_arrivals("bursts=20x600", hours=1, duration_s=1)
    assert len(bursts) == 120
    assert all((a.at_s - BEGIN_S) % 600 < 1 for a in bursts)


def test_office_hours_are_from_9_to_17_on_workdays() -> None:
    made = make_arrivals("office=30", hours=3 * 168, duration_s=1)
    assert len(made) == pytest.approx(3 * 5 * 8 * 30, rel=0.1)
    for arrival in made:
        days, in_day_s = divmod(arrival.at_s - BEGIN_S, 86_400)
        assert days % 7 < 5
        assert 9 * 3600 <= in_day_s < 17 * 3600


@pytest.mark.parametrize("pattern", ["often", "every=0", "poisson=many", "bursts=5", "every=nan"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(CostError, match="is not an arrival pattern"):
        make_arrivals(pattern, hours=1, duration_s=1)


def test_a_pattern_that_makes_millions_is_refused() -> None:
    with pytest.raises(CostError, match="fewer hours"):
        make_arrivals("every=0.001", hours=10_000, duration_s=1)


def test_lines_with_impossible_figures_or_times_end_nothing() -> None:
    huge = "9" * 400
    lines = LOG.splitlines()
    printed = [
        lines[4].replace("30.00 ms", f"{huge} ms"),
        lines[4].replace("512 MB", f"{huge} MB"),
        JSON_LINE.replace("5.25", "1e308"),
        JSON_LINE.replace("128", "1e308"),
    ]
    assert len(lines) == 6 and read_records(printed) == []
    (record,) = read_records([lines[3].replace("2026-11-20T10", "2026-13-99T99")])
    assert (record.duration_ms, record.ended_s) == (20.1, None)
