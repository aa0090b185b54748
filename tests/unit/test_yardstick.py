"""The yardstick: which promises it checks, and that its report has the results."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from benchmarks import yardstick_report
from benchmarks.yardstick_report import Told, Workload, first_and_warm_ms, markdown, page

from thawd.bench.runs import Columns, LoadShape, Machine, Run
from thawd.bench.samples import STARTS

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(engine: str, *answers: tuple[str, float], wrong: int = 0) -> Run:
    """A run with `engine`: answers by start kind and latency. The last `wrong` of them are wrong."""
    count = len(answers)
    nothing: list[float | None] = [None] * count
    columns = Columns(
        intended_ms=[0.0] * count,
        waited_ms=[0.0] * count,
        latency_ms=[latency for _, latency in answers],
        outcome=[0] * (count - wrong) + [1] * wrong,
        outcomes=["ok", "HTTP 500"],
        start=[STARTS.index(kind) for kind, _ in answers],
        ready_ms=nothing,
        prepare_ms=nothing,
        handler_ms=nothing,
    )
    return Run(
        label=engine,
        target="f",
        url="http://127.0.0.1",
        engine=engine,
        begun_from="zero",
        state="none alive",
        load=LoadShape("closed", concurrency=1, requests=count),
        begun="2026-01-01T00:00:00+00:00",
        took_s=2.0,
        interrupted=False,
        columns=columns,
        examples={},
        moments=[],
        memory=[],
        late_ms={},
        notes=[],
        machine=Machine("one", 2, 1024, "Linux", "3.11", "0"),
    )


def workload(*runs: Run, **promises: Any) -> Workload:
    return Workload("w", {"title": "A title <b>", **promises}, runs)


def test_the_first_answer_is_the_slowest_of_those_started_and_warm_is_the_fastest() -> None:
    held = run("thaw", ("thaw", 120.0), ("thaw", 130.0), ("warm", 110.0), ("warm", 100.0))
    assert first_and_warm_ms(held) == (130.0, 100.0)
    assert first_and_warm_ms(run("thaw", ("warm", 1.0))) is None


@pytest.mark.parametrize(("slowest", "holds"), [(200.0, True), (201.0, False)])
def test_the_slowest_is_held_against_the_median_of_the_thawed_alone(slowest: float, holds: bool) -> None:
    thaw = run("thaw", ("thaw", slowest), ("warm", 100.0), ("warm", 100.0))
    cold = run("cold", ("cold", 9000.0), ("warm", 100.0), ("warm", 100.0))
    [judged] = workload(cold, thaw, slowest_over_median=2.0).judgements
    assert judged.holds is holds


@pytest.mark.parametrize(("thawed", "cold", "holds"), [(130, 400, [True, True]), (131, 400, [False, False])])
def test_first_answers_are_held_against_warm_ones_and_cold_starts(thawed: int, cold: int, holds: list[bool]) -> None:
    runs = run("cold", ("cold", cold), ("warm", 100)), run("thaw", ("thaw", thawed), ("warm", 100))
    judged = workload(*runs, first_over_warm=1.3, overhead_of_cold=10.0).judgements
    assert [one.holds for one in judged] == holds


def test_wrong_answers_do_not_hold() -> None:
    [judged] = workload(run("fork", ("fork", 1.0), ("warm", 1.0), wrong=1)).judgements
    assert not judged.holds
    assert "1 of 2" in judged.text


def test_starts_by_another_engine_than_was_wanted_are_told() -> None:
    one = workload(run("fork", ("fork", 2.0), ("cold", 9.0), ("warm", 1.0)))
    assert "fork: 1 answers came from environments that were started cold" in markdown(
        [one], {}, took_s=1, load_before=0
    )


def test_what_a_workload_tells_that_measures_itself_stands_in_both_forms() -> None:
    one = workload(run("thaw", ("thaw", 2.0), ("warm", 1.0)))
    for report in (markdown, page):
        text = report([one], {}, took_s=1, load_before=0, told=[Told("many models", "miss 1.9 times a hit", False)])
        assert all(word in text for word in ("many models", "miss 1.9 times a hit", "failed"))


def test_the_report_has_each_engine_the_reference_what_does_not_hold_and_how_busy_the_machine_was() -> None:
    # Given a workload with a reference and a promise that is not kept, and a workload that was left out
    reference = {"source": "a page", "rows": {"elsewhere": [1, 2, 3, 4, 5555]}}
    one = workload(
        run("cold", ("cold", 900.0), ("warm", 10.0)),
        run("thaw", ("thaw", 900.0), ("warm", 10.0), ("warm", 10.0)),
        slowest_over_median=2.0,
        reference=reference,
    )
    # When the report is made
    texts = [report([one], {"other": "no torch"}, took_s=60, load_before=99.0) for report in (markdown, page)]
    # Then both forms contain that
    for text in texts:
        assert all(word in text for word in ("cold", "thaw", "elsewhere", "5,555", "a page", "no torch"))
        assert "does not hold" in text
        assert "busy with other work" in text
    assert "<b>" not in texts[1].replace("A title &lt;b&gt;", "").partition("under load")[0]
    assert "| cold |" in texts[0]
    assert "busy" not in markdown([one], {}, took_s=60, load_before=0.0)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/yardstick.toml")), ids=lambda path: path.parent.name)
def test_what_an_example_asks_for_can_be_read(path: Path) -> None:
    asked = tomllib.loads(path.read_text())
    if "command" in asked:  # the workload measures itself
        assert (path.parent / asked["command"][0]).exists()
        return
    assert {"title", "target", "requests", "concurrency", "payload", "expect"} <= set(asked)
    for values in asked["reference"].get("rows", {}).values():
        assert len(values) == len(yardstick_report.COLUMNS)
    assert (path.parent / "run.py").exists()
    assert (path.parent / "README.md").exists()
