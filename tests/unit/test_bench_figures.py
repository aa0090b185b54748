"""Figures match the measurements: percentiles, starts, ratios with their bounds. Files and pages contain them."""

from __future__ import annotations

import csv
import itertools
import random
import re
import statistics
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from click.testing import CliRunner
from jinja2 import UndefinedError

from thawd.bench import comparison, plots
from thawd.bench.arrivals import arrivals, recorded
from thawd.bench.pages import document
from thawd.bench.plots import bars
from thawd.bench.report import Against, page
from thawd.bench.runs import Columns, LoadShape, Machine, Run, read_json, write_csv, write_json
from thawd.bench.samples import Timing, read_timing
from thawd.bench.summary import in_flight, summarise
from thawd.bench.text import lines_of, lines_of_comparison
from thawd.bench.watching import MemorySample, Moment
from thawd.cli.program import main
from thawd.errors import StoreError

MACHINE = Machine("a processor", 2, 4096, "Linux 6", "3.11", "0.1.0")


def made(latencies_ms: list[float], *, label: str = "it", **columns: Any) -> Run:
    """Make a run of requests, one after the other."""
    count = len(latencies_ms)
    begins = [sum(latencies_ms[:i]) for i in range(min(count, 50))] + [1000.0] * max(0, count - 50)
    held = Columns(
        **{
            "intended_ms": begins,
            "waited_ms": [0.0] * count,
            "latency_ms": latencies_ms,
            "outcome": [0] * count,
            "outcomes": ["ok", "HTTP 500"],
            "start": [4] * count,
            "ready_ms": [None] * count,
            "prepare_ms": [None] * count,
            "handler_ms": [1.0] * count,
            **columns,
        }
    )
    return Run(
        label=label,
        target="classify",
        url="http://127.0.0.1:1/",
        engine=None,
        begun_from=None,
        state="environments: none alive",
        load=LoadShape("closed", concurrency=1, requests=count),
        begun="2026-01-01T00:00:00+00:00",
        took_s=2.0,
        interrupted=False,
        columns=held,
        examples={"HTTP 500": "it <failed>"},
        moments=[Moment(0.0, 0, 0, 0, 0), Moment(1.0, 1, 2, 0, 0)],
        memory=[MemorySample(0.5, 10.0, 30.0), MemorySample(1.0, 20.0, 31.0)],
        late_ms={},
        notes=[],
        machine=MACHINE,
    )


def test_percentiles_of_known_latencies_come_out_to_three_digits() -> None:
    latencies = [float(value) for value in range(1, 1001)]
    random.Random(0).shuffle(latencies)
    told = summarise(made(latencies)).percentiles_ms
    expected = {"p50": 500, "p90": 900, "p95": 950, "p99": 990, "max": 1000, "mean": 500.5}
    assert told == pytest.approx(expected, rel=0.001)


@pytest.mark.parametrize("latency_ms", [0.05, 1.0, 352.0, 12_825.0, 900_000.0])
def test_any_latency_keeps_three_digits(latency_ms: float) -> None:
    assert summarise(made([latency_ms] * 3)).percentiles_ms["p99"] == pytest.approx(latency_ms, rel=0.001)


def test_wrong_answers_are_counted_and_have_no_part_in_percentiles() -> None:
    told = summarise(made([10.0] * 9 + [5000.0], outcome=[0] * 9 + [1]))
    assert (told.requests, told.errors, told.errors_by_kind) == (10, 1, {"HTTP 500": 1})
    assert told.percentiles_ms["max"] == 10
    assert told.rate_per_s == 4.5
    assert summarise(made([1.0], outcome=[1])).percentiles_ms == {}


def test_starts_are_told_by_kind_and_phase() -> None:
    run = made(
        [50.0, 60.0, 70.0, 5.0],
        start=[3, 3, 3, 4],
        ready_ms=[10.0, 20.0, 30.0, None],
        prepare_ms=[4.0, 5.0, 6.0, None],
        handler_ms=[7.0, 8.0, 9.0, 1.0],
    )
    thaw, warm = summarise(run).starts
    assert msgspec.to_builtins(thaw) == {
        "kind": "thaw", "count": 3, "latency_ms": 60.0, "ready_ms": 20.0, "spawn_ms": 15.0, "prepare_ms": 5.0,
        "handler_ms": 8.0,
    }  # fmt: skip
    assert (warm.kind, warm.count, warm.ready_ms, warm.handler_ms) == ("warm", 1, None, 1.0)


def test_what_there_was_at_once_is_told() -> None:
    run = made([10.0, 10.0, 10.0], intended_ms=[0.0, 5.0, 30.0], waited_ms=[0.0, 2.0, 0.0])
    assert in_flight(run.columns) == [(0, 1), (7, 2), (10, 1), (15, 0), (30, 1), (40, 0)]
    told = summarise(run)
    assert (told.most_in_flight, told.most_environments, told.memory_mib, told.server_mib) == (2, 3, 20.0, 31.0)


@pytest.mark.parametrize(
    ("header", "timing"),
    [
        (b"start;desc=thaw;dur=12.500, prepare;dur=1.250, handler;dur=3.000", Timing("thaw", 12.5, 1.25, 3.0)),
        (b"start;desc=warm, handler;dur=0.125", Timing("warm", None, None, 0.125)),
        (b"cdn;desc=hit, start;desc=odd, db;dur=1.2.3, handler;dur=.", Timing()),
        (b"", Timing()),
    ],
)
def test_what_the_server_tells_of_its_time_is_read(header: bytes, timing: Timing) -> None:
    assert read_timing(header) == timing


def test_a_comparison_of_like_with_like_holds_one_within_its_bounds_and_of_slower_with_faster_does_not() -> None:
    chance = random.Random(1)
    one = [chance.lognormvariate(3, 0.5) for _ in range(1000)]
    alike = comparison.compare(made(one), made(one[::-1]))
    assert [line.name for line in alike] == ["p50", "p90", "p95", "p99", "max", "requests/s"]
    for line in alike[:4]:
        assert line.low is not None and line.high is not None
        assert line.low < 1 < line.high
        assert line.low <= line.ratio <= line.high
    assert comparison.regressions(alike, above=1.0) == []
    slower = comparison.compare(made(one), made([1.5 * value for value in one]))
    assert [line.name for line in comparison.regressions(slower, above=1.2)] == ["p50", "p90", "p95", "p99"]
    assert all(line.ratio == pytest.approx(1.5) for line in slower[:5])
    assert comparison.compare(made(one), made([1.0], outcome=[1])) == []


def test_what_else_differs_between_two_runs_is_told() -> None:
    one = made([1.0, 2.0])
    assert comparison.differences(one, made([3.0, 4.0])) == []
    other = msgspec.structs.replace(
        one, target="other", engine="thaw", load=LoadShape("closed", concurrency=8, requests=2), interrupted=True
    )
    assert comparison.differences(one, other) == [
        "not the same targets: classify before, other after",
        "not the same loads: 2 requests, 1 at a time before, 2 requests, 8 at a time after",
        "not the same engines: not set before, thaw after",
        "the run after was ended by Ctrl-C",
    ]


def test_a_comparison_without_right_answers_says_that_there_is_none() -> None:
    failed = made([1.0], outcome=[1])
    told = list(lines_of_comparison(made([1.0]), failed, comparison.compare(made([1.0]), failed), (0, 1)))
    assert told[-1] == "  nothing to compare: one of the runs has no right answer"
    assert told[0] == "before  classify, it: 1 request, 0 wrong; 2026-01-01 00:00:00 UTC"


def test_bounds_are_those_of_a_bootstrap_by_drawing() -> None:
    chance = random.Random(2)
    values = sorted(chance.expovariate(1) for _ in range(80))
    drawn = [comparison._drawn(0.9, values, chance) for _ in range(4000)]
    by_hand = [sorted(chance.choices(values, k=80))[71] for _ in range(4000)]
    for share in (100, 1000, 2000, 3000, 3900):
        assert sorted(drawn)[share] == pytest.approx(sorted(by_hand)[share], rel=0.1)


def test_files_hold_what_was_measured(tmp_path: Path) -> None:
    run = made([10.0, 20.0], start=[3, 4], ready_ms=[5.0, None])
    write_json(tmp_path / "a.json", [run], [msgspec.to_builtins(summarise(run))])
    assert read_json(tmp_path / "a.json") == [run]
    write_csv(tmp_path / "a.csv", [run])
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert [(row["latency_ms"], row["outcome"], row["start"], row["ready_ms"]) for row in rows] == [
        ("10.0", "ok", "thaw", "5.0"),
        ("20.0", "ok", "warm", ""),
    ]
    for text in ("", "{}", '{"format": "thawd-bench-9", "runs": []}', '{"format": 1}'):
        (tmp_path / "b.json").write_text(text)
        with pytest.raises(StoreError, match=r"b\.json"):
            read_json(tmp_path / "b.json")


def test_the_histogram_can_be_read_by_others() -> None:
    from hdrh.histogram import HdrHistogram

    told = HdrHistogram.decode(summarise(made([1.0, 2.0, 3.0])).histogram)
    assert (told.total_count, told.get_value_at_percentile(100)) == (3, 3001)


def test_the_page_needs_nothing_else_and_shows_every_run_by_name() -> None:
    slow = made([10.0, 2000.0, 30.0], label="<b>cold", start=[1, 1, 4], ready_ms=[9.0, 9.0, None], outcome=[0, 0, 1])
    runs = [slow, made([1.0] * 5000, label="thawed"), made([1.0], label="none", outcome=[1])]
    text = page(runs, [summarise(run) for run in runs])
    assert "<script" not in text and "http-equiv" not in text
    assert not [word for word in ("src=", "href=", "url(", "@import") if word in text]
    assert "prefers-color-scheme:dark" in text
    assert "&lt;b&gt;cold" in text and "<b>cold" not in text
    assert "it &lt;failed&gt;" in text
    drawings = text.split("<svg")[1:]
    assert len(drawings) == 1 + 3 + 1 + 3
    for drawing in drawings:
        ET.fromstring("<svg" + drawing.partition("</svg>")[0] + "</svg>")
    assert len(text) < 200_000  # points that would cover each other are drawn only once


def test_a_page_of_two_runs_compared_has_their_ratios_and_what_else_differs() -> None:
    runs = [made([10.0, 20.0] * 50, label="a"), made([20.0, 40.0] * 50, label="b")]
    against = Against("a", "b", comparison.compare(*runs), ["not the same loads: <few>, many"])
    text = page(runs, [summarise(run) for run in runs], [against])
    assert ">Comparison<" in text
    assert "<td>p50</td><td>10</td><td>20</td><td>2.000</td>" in text
    assert "not the same loads: &lt;few&gt;, many" in text
    nothing = page(runs, [summarise(run) for run in runs], [Against("a", "b", [], [])])
    assert "There is nothing to compare" in nothing
    assert ">Comparison<" not in page(runs, [summarise(run) for run in runs])


def test_a_run_of_one_request_has_axes_that_tell_something() -> None:
    run = msgspec.structs.replace(made([250.0]), moments=[])
    text = page([run], [summarise(run)])
    assert "The one request was answered as expected." in text
    over_time = text[text.index("Latency over time, it") :]
    ticks = re.findall(
        r'class="tick"[^>]*text-anchor="(?:start|middle|end)">([0-9.]+)<', over_time[: over_time.index("</svg>")]
    )
    assert "0.25" in ticks


def test_a_table_of_many_runs_has_a_line_for_each() -> None:
    runs = [made([10.0, 20.0], label="cold"), made([1.0, 2.0], label="thaw", outcome=[0, 1])]
    lines = list(lines_of(runs, [summarise(run) for run in runs]))
    assert lines[0] == "classify: 2 requests, 1 at a time"
    assert next(line.split() for line in lines if line.startswith("  cold  "))[:6] == [
        "cold", "10", "20", "20", "20", "20",
    ]  # fmt: skip
    assert any("thaw: wrong: 1 time HTTP 500, first: it <failed>" in line for line in lines)


@pytest.mark.parametrize("largest", [0.0, 0.003, 1.0, 7.3, 10.0, 99.0, 12_825.0])
def test_scales_hold_all_values_and_have_few_ticks(largest: float) -> None:
    for scale in (plots.linear(largest), plots.logarithmic(largest / 1000, largest), plots.linear(largest, whole=True)):
        assert 0 <= scale.place(largest) <= 1.0001
        assert 2 <= len(scale.ticks) <= 12
        places = [scale.place(value) for value, _ in scale.ticks]
        assert places == sorted(places)


def test_arrivals_come_as_their_pattern_says() -> None:
    def times(pattern: str, **changes: Any) -> list[float]:
        given = {"rate_per_s": 100.0, "requests": 1000, "duration_s": None, "burst": 10, "seed": 1, **changes}
        return list(arrivals(pattern, **given))

    assert times("constant")[:3] == [0.0, 0.01, 0.02]
    assert times("constant", duration_s=0.055, requests=None) == pytest.approx([0, 0.01, 0.02, 0.03, 0.04, 0.05])
    bursts = times("bursts")
    assert bursts[:21] == pytest.approx([0.0] * 10 + [0.1] * 10 + [0.2])
    poisson = times("poisson", requests=10_000)
    gaps = [after - before for before, after in itertools.pairwise(poisson)]
    assert statistics.fmean(gaps) == pytest.approx(0.01, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.01, rel=0.05)
    assert poisson == times("poisson", requests=10_000) != times("poisson", requests=10_000, seed=2)


def test_recorded_arrivals_are_read_from_any_beginning(tmp_path: Path) -> None:
    file = tmp_path / "arrivals.csv"
    file.write_text("time,who\n# a comment\n1700000002.5,b\n1700000000.5,a\n\n1700000004.5\n")
    assert recorded(file) == [0.0, 2.0, 4.0]
    assert recorded(file, speed=4) == [0.0, 0.5, 1.0]
    for text, told in (
        ("1\nnoon\n", "line 2: 'noon'"),
        ("", "no arrival times"),
        ("1\nnan\n", "'nan'"),
        ("1\ninf\n", "'inf'"),
    ):
        file.write_text(text)
        with pytest.raises(StoreError, match=told):
            recorded(file)
    with pytest.raises(StoreError, match="cannot be read"):
        recorded(tmp_path / "none")


@pytest.mark.parametrize("command", [["bench", "work", "--html", "page.html"], ["tune", "work", "--html", "page.html"]])
def test_pages_without_their_library_are_refused_before_anything_is_measured(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thawd.toml").write_text('[functions.work]\ncode = "."\nhandler = "app.handler"\n')
    monkeypatch.setitem(sys.modules, "jinja2", None)

    done = CliRunner().invoke(main, command)

    assert done.exit_code == 1
    assert "HTML pages need jinja2" in done.output
    assert "pip install 'thawd[bench]', or leave out --html" in done.output
    assert not (tmp_path / "page.html").exists()


def test_a_template_that_is_given_too_little_fails() -> None:
    with pytest.raises(UndefinedError, match="title"):
        document("report.html", content="")


def test_text_of_drawings_is_escaped() -> None:
    drawn = bars([("<b>", [(1.0, "x")], "<i>")], title='"a" & b', unit="<u>")

    assert not {"<b>", "<i>", "<u>"} & set(re.findall(r"<\w>", drawn))
    assert "&#34;a&#34; &amp; b" in drawn
