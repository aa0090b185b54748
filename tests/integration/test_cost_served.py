"""`thawd cost` and `thawd tune` with real functions, and a real server that keeps environments by a schedule."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Project, eventually

CODE = """
    import time

    def handler(event, context):
        end = time.thread_time() + event.get("work_s", 0) if isinstance(event, dict) else 0
        while time.thread_time() < end:
            pass
        return 1
"""
FUNCTION = '[functions.f]\nhandler = "app.handler"\nmemory_mb = 256\n'


def test_the_cost_of_a_function_is_worked_out_from_its_log(project: Project) -> None:
    project.code(CODE)
    project.config(FUNCTION + 'keep_alive = "histogram"\n')
    with project.up() as running:
        for _ in range(5):
            assert running.invoke("f", {}) == (1, None)
        eventually(
            lambda: project.command("logs", "f").stdout.count("REPORT RequestId") == 5, what="the log's five lines"
        )
        refused = project.command("cost", "f")
        assert refused.returncode == 1
        assert "only 5 invocations were measured" in refused.stderr
        assert "--few" in refused.stderr
        done = project.command("cost", "f", "--few", "--server", "100", "--arrivals", "log", "--json")
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert running.function("f")["keep_alive"] == {"policy": "histogram", "prewarm_s": 0.0, "keep_alive_s": 300.0}
        (measured,) = document["measured"]
        assert (measured["memory_mb"], measured["count"], measured["start_share"]) == (256, 5, 0.2)
        row = document["rows"][0]
        # A handler that does nothing is billed a few milliseconds: the price per request, and that of the duration with
        # 0.25 GB.
        assert row["first_ms"] is None
        expected = 0.2 + row["warm_ms"] * 1e6 / 1000 * 0.25 * 0.0000166667
        assert abs(row["per_million"] - expected) < 1e-4
        assert row["server_cheaper_from"] > 1e6
        assert [way["way"] for way in document["keeping_warm"]["ways"]] == ["fixed, 300 s", "histogram"]
        assert all(way["starts"] == 1 for way in document["keeping_warm"]["ways"])
    text = project.command("cost", "f", "--few", "--arch", "both").stdout
    assert "prices of 2026-09 in USD: https://aws.amazon.com/lambda/pricing/" in text
    assert "5 invocations measured, " in text
    assert " ms warm; 20.0% waited for a start" in text


def test_the_published_crossings_by_command(project: Project) -> None:
    done = project.command("cost", "--size", "1024:557", "--size", "2048:412", "--server", "208.80", "--json")
    crossings = [row["server_cheaper_from"] for row in json.loads(done.stdout)["rows"]]
    for found, published in zip(crossings, (22e6, 15e6), strict=True):
        assert abs(found / published - 1) < 0.03


def test_the_examples_of_the_page_print_what_it_shows(project: Project) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "cost.md").read_text().splitlines()
    commands = [line.strip() for line in page if line.startswith("    thawd cost ")]
    assert len(commands) == 2
    for command in commands:
        printed = project.command(*command.split()[1:]).stdout.splitlines()
        shown = [
            line for line in printed if " MB  x86_64     on demand" in line or " 300 s  " in line or "histogram" in line
        ]
        assert shown
        if "--pattern" in command:
            shown = [line for line in shown if "x86_64" not in line]
        for line in shown:
            assert f"    {line}" in page


def test_other_functions_of_a_shared_log_group_have_no_part_in_a_price(project: Project) -> None:
    project.code(CODE)
    shared = 'handler = "app.handler"\nlog_group = "/team/shared"\n'
    project.config(f"[functions.f]\n{shared}[functions.off]\n{shared}")
    with project.up() as running:
        for name, work_s in (("f", 0), ("off", 0.05)):
            for _ in range(3):
                assert running.invoke(name, {"work_s": work_s}) == (1, None)
    (f,), (off,) = (
        json.loads(project.command("cost", name, "--few", "--json").stdout)["measured"] for name in ("f", "off")
    )
    assert (f["count"], off["count"]) == (3, 3)
    assert f["warm_ms"] < 50 <= off["warm_ms"]


def test_a_price_without_the_init_that_some_wait_for_is_told_as_the_least(project: Project) -> None:
    printed = project.command("cost", "--size", "1024:100::50", "--starts", "10", "--server", "50").stdout
    on_demand, snapstart = (line for line in printed.splitlines() if " x86_64 " in line)
    assert "at least 1.87" in on_demand and "at most 26,785," in on_demand
    assert "at least" not in snapstart
    assert "at least" not in project.command("cost", "--size", "1024:100", "--server", "50").stdout
    pattern = ("cost", "--size", "1024:100", "--pattern", "every=1200")
    assert "at least" in project.command(*pattern).stdout
    assert "at least" not in project.command(*pattern[:2], "1024:100:900", *pattern[3:]).stdout


def test_a_week_is_a_week_though_nobody_comes_on_its_sunday(project: Project) -> None:
    def month(hours: int) -> float:
        asked = ("--size", "1024:1000:5000", "--pattern", "office=30", "--hours", str(hours), "--json")
        document = json.loads(project.command("cost", *asked).stdout)
        assert document["keeping_warm"]["hours"] == pytest.approx(hours)
        return float(document["keeping_warm"]["ways"][0]["lambda_month"])

    assert month(168) == pytest.approx(month(20 * 168), rel=0.1)


def test_what_cannot_be_worked_out_is_said_in_a_line(project: Project) -> None:
    project.config(FUNCTION)
    project.code(CODE)
    for arguments, said in (
        (["cost"], "there are no REPORT lines"),
        (["cost", "--size", "1"], "is not MEMORY:DURATION"),
        (["cost", "--size", "1024:5", "--pattern", "often"], "is not an arrival pattern"),
        (["cost", "--size", "1024:5", "--prices", "none.toml"], "cannot be read"),
        (["cost", "--report", "none.log"], "cannot be read"),
        (["cost", "g"], "there is no function 'g'"),
        (["tune", "g"], "there is no function 'g'"),
        (["tune", "f", "--memory", "64"], "from 128 to 10240"),
        (["tune", "f", "-p", "{"], "is not JSON"),
        (["tune", "f", "--html", "none/at/all.html"], "none/at/all.html cannot be written"),
        (
            ["tune", "f", "--memory", "128", "--runs", "1", "--no-cpu-limits", "-p", '{"work_s": "long"}'],
            "failed at every size",
        ),
    ):
        done = project.command(*arguments)
        assert done.returncode == 1, arguments
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_a_schedule_in_force_keeps_environments_from_the_start_on_and_a_reload_ends_it(project: Project) -> None:
    project.code(CODE)
    entry = '[[functions.f.provisioned_schedule]]\nschedule = "at(2026-01-01T00:00:00)"\ncount = 2\n'
    project.config(FUNCTION + "idle_timeout_s = 0\n" + entry)
    with project.up() as running:
        eventually(lambda: running.function("f")["environments"]["idle"] == 2, what="two environments")
        assert running.invoke("f", {}) == (1, None)
        assert set(running.function("f")["invocations"]) == {"warm"}
        project.config(FUNCTION + "idle_timeout_s = 0\n" + entry.replace("count = 2", "count = 1"))
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: running.function("f")["environments"]["idle"] == 1, what="one environment")
        project.config(FUNCTION + "idle_timeout_s = 0\n")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: running.function("f")["environments"]["idle"] == 0, what="none")


@pytest.mark.serial
def test_a_function_is_tuned_at_two_sizes_and_leaves_nothing(project: Project) -> None:
    project.code(CODE)
    project.config(FUNCTION)
    arguments = ("--memory", "128,1769", "--runs", "3", "--starts", "1", "-p", '{"work_s": 0.02}', "--no-cpu-limits")
    done = project.command("tune", "f", *arguments, "--html", "tuned.html", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    small, large = document["sizes"]
    assert (small["memory_mb"], large["memory_mb"]) == (128, 1769)
    for size in (small, large):
        assert size["failure"] is None
        assert size["measured"]["warm_ms"] >= 20
        assert size["measured"]["cold_ms"] > 20
        assert size["most_memory_mb"] > 0
    if document["limited"]:
        # 128 MB get 7 % of a CPU: 20 ms of work take 280 ms, however busy the machine is.
        assert small["measured"]["warm_ms"] > 150
    assert document["cheapest"] in (128, 1769)
    assert document["balanced"] in (128, 1769)
    page = (project.root / "tuned.html").read_text()
    assert "<svg" in page
    assert "cheapest" in page
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert not list(project.data.glob("tune-*"))


@pytest.mark.serial
def test_a_size_that_is_too_small_is_told_and_the_others_go_on(project: Project) -> None:
    project.code(
        """
        def handler(event, context):
            if context.memory_limit_in_mb == "128":
                raise MemoryError("too small")
            return 1
        """
    )
    project.config(FUNCTION + "snapshot = false\n")
    done = project.command(
        "tune", "f", "--memory", "128,256", "--runs", "1", "--starts", "0", "--no-cpu-limits", "--json"
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["sizes"][0]["failure"] == "the function failed: MemoryError: too small"
    assert document["cheapest"] == document["fastest"] == document["balanced"] == 256


@pytest.mark.serial
def test_ctrl_c_ends_a_tune_with_the_sizes_that_were_measured_and_leaves_nothing(project: Project) -> None:
    project.code(CODE)
    project.config(FUNCTION)
    process = subprocess.Popen(
        [sys.executable, "-m", "thawd", "tune", "f", "--memory", "128,256,512", "--starts", "0", "--runs", "200",
         "--no-cpu-limits", "--html", "tuned.html"],
        cwd=project.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("128 MB: ")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the signal goes to all processes of the command
        text, said = process.communicate()
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + signal.SIGINT, said
    assert "128 MB" in text
    assert "512 MB" not in text
    assert "ended by Ctrl-C" in said
    assert "<svg" in (project.root / "tuned.html").read_text()
    assert not list(project.data.glob("tune-*"))


def test_without_cgroup_a_tune_refuses_and_says_how(project: Project) -> None:
    project.code(CODE)
    project.config(FUNCTION)
    project.code(
        """
        from thawd.environments.sandbox import controllers, memory
        controllers.own_group = lambda controller: None
        memory.find_limiter = memory.MemoryLimiter
        """,
        "sitecustomize.py",
    )
    environ = {**os.environ, "PYTHONPATH": str(project.root)}
    done = project.command("tune", "f", "--memory", "128", "--runs", "1", "--starts", "0", env=environ)
    assert done.returncode == 1
    assert "cannot be limited to the CPU share" in done.stderr
    assert "--no-cpu-limits" in done.stderr
