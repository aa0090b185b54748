"""``thawd bench`` against real servers: private ones for each kind of start, and a running one.

It leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests import prestarted
from tests.integration.conftest import Project, eventually
from tests.unit.answering import OK, answering
from thawd.cli import bench as bench_commands
from thawd.gateway.lambda_api.invoke import InvokeApi

CODE = """
    import os, time, thawd

    loaded = [0] * 100_000

    def handler(event, context):
        if "Records" in event:
            thawd.bucket("uploads").write("noticed", b"")
        if event.get("fail"):
            raise ValueError("as asked for")
        if "version" in event:
            return {"statusCode": 200, "body": "by a route"}
        time.sleep(0.005)
        return {"pid": os.getpid(), "got": event}
"""
CONFIG = """
    [functions.work]
    handler = "app.handler"
    memory_mb = 256
    reserved_concurrency = 1

    [routes]
    "POST /jobs/{id}" = "work"

    [buckets.uploads]
    notify = [{ function = "work" }]
"""


@pytest.fixture
def work(project: Project) -> Project:
    """A project with a function, a route and a bucket with an object that no server has recorded yet."""
    project.code(CODE)
    project.config(CONFIG)
    (project.root / "uploads").mkdir()
    (project.root / "uploads" / "object.txt").write_text("mine")
    return project


def bench(project: Project, *arguments: str, exits: int = 0) -> tuple[dict[str, Any], str]:
    """Run `thawd bench` and return its document and its text."""
    # This does not use `Project.command`, which has a time limit: several servers are started, which takes long on a
    # slow machine.
    done = prestarted.run(
        [sys.executable, "-m", "thawd", "bench", *arguments, "--json", "out.json"],
        cwd=project.root, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == exits, done.stdout + done.stderr
    return json.loads((project.root / "out.json").read_text()), done.stdout


def starts(run: dict[str, Any]) -> dict[str, int]:
    """Return the number of answers by kind of start."""
    return {start["kind"]: start["count"] for start in run["summary"]["starts"]}


def test_each_engine_starts_environments_its_way_and_nothing_is_left(work: Project) -> None:
    engines = ("cold", "fork", "thaw", "provisioned")
    document, text = bench(
        work, "work", "-n", "24", "-C", "3", "--html", "out.html", "--csv", "out.csv",
        *(word for engine in engines for word in ("--engine", engine)),
    )  # fmt: skip
    runs = {run["label"]: run for run in document["runs"]}
    assert tuple(runs) == engines
    for engine in ("cold", "fork"):
        assert starts(runs[engine]).keys() == {engine, "warm"}, engine
    # Without snapshots (on machines other than x86-64 with glibc), a note says what replaced them. When restoring takes
    # long, one of three concurrent environments may be forked from a thawed copy.
    thawed = starts(runs["thaw"]).keys() - {"fork"}
    assert thawed == {"thaw", "warm"} or any(", not by thaw: " in note for note in runs["thaw"]["notes"])
    assert starts(runs["provisioned"]) == {"warm": 24}
    assert runs["provisioned"]["state"].startswith("environments: 3 idle")
    for engine, run in runs.items():
        told = run["summary"]
        assert (told["requests"], told["errors"]) == (24, 0)
        # There are at most as many environments as concurrent requests, whatever the configuration reserves.
        assert 1 <= told["most_environments"] <= 3
        assert told["memory_mib"] > 1 and told["server_mib"] > 1
        assert all(value >= 5 for value in run["columns"]["latency_ms"])
        assert engine in text
        for start in told["starts"]:
            assert start["handler_ms"] >= 5
            if start["kind"] != "warm":
                assert 0 < start["prepare_ms"] <= start["ready_ms"]
    assert "<svg" in (work.root / "out.html").read_text()
    assert len((work.root / "out.csv").read_text().splitlines()) == 1 + 4 * 24
    # Only the load invoked the function. The object in the bucket did not.
    assert [path.name for path in (work.root / "uploads").iterdir()] == ["object.txt"]
    assert [path.name for path in work.data.iterdir()] == ["environments"]


def test_a_route_begins_from_one_or_warm_on_a_private_server(work: Project) -> None:
    document, _ = bench(work, "/jobs/7", "-p", '{"a": 1}', "-n", "6", "--from", "one", "--expect-text", "by a route")
    (run,) = document["runs"]
    assert run["state"].startswith("environments: 1 idle")
    assert starts(run) == {"warm": 6}
    document, _ = bench(work, "work", "-n", "8", "-C", "2", "--from", "warm", "--environments", "1", "--engine", "cold")
    (run,) = document["runs"]
    assert starts(run) == {"warm": 8}
    assert run["summary"]["most_environments"] == 1
    assert run["notes"] == ["at most 1 environment for 2 requests in flight: some requests wait"]


def test_the_running_server_is_measured_as_it_is_and_told_of_only_who_asks(work: Project) -> None:
    work.config(CONFIG.replace("reserved_concurrency = 1", ""))
    with work.up() as running:
        document, text = bench(work, "work", "--rate", "200", "-n", "20", "-p", '{"n": 1}', "-p", '{"n": 2}')
        (run,) = document["runs"]
        assert run["summary"]["errors"] == 0
        assert "measured on the running server, which others may use at the same time" in run["notes"]
        assert sum(starts(run).values()) == 20
        assert run["late_ms"].keys() == {"p50", "p99", "max"}
        document, text = bench(work, "work", "-n", "4", "-p", '{"fail": 1}', exits=3)
        assert document["runs"][0]["summary"]["errors_by_kind"] == {"function Unhandled": 4}
        assert "wrong: 4 times function Unhandled, first:" in text and "as asked for" in text
        assert running.function("work")["errors"] >= 4
        done = work.command("bench", "nobody")
        assert done.returncode == 1
        assert "there is no function 'nobody'; functions: work" in done.stderr
        for path in ("/jobs/1", f"{InvokeApi.prefix}work{InvokeApi.suffix}"):
            for asked in (True, False):
                request = urllib.request.Request(
                    running.url + path, data=b"{}", headers={"X-Thawd-Timing": "1"} if asked else {}, method="POST"
                )
                with urllib.request.urlopen(request) as answer:
                    assert (answer.headers.get("server-timing") is not None) == asked


def test_a_server_with_access_keys_is_measured_with_signed_requests(work: Project) -> None:
    work.config(CONFIG.replace("reserved_concurrency = 1", ""))
    keys = {"THAWD_ACCESS_KEYS": "AKIALOCAL:a-long-secret"}
    with work.up(environ=keys):
        done = work.command("bench", "work", "-n", "4", env={**os.environ, **keys})
        assert done.returncode == 0, done.stderr
        assert work.command("bench", "work", "-n", "4").returncode == 3


def test_two_files_are_compared_and_a_regression_has_an_exit_status_of_its_own(work: Project) -> None:
    with answering(lambda _: OK) as server:
        for name in ("a", "b"):
            done = work.command("bench", server.url, "-n", "50", "--json", f"{name}.json")
            assert done.returncode == 0, done.stderr
    slower = json.loads((work.root / "b.json").read_text())
    columns = slower["runs"][0]["columns"]
    columns["latency_ms"] = [1000 * value for value in columns["latency_ms"]]
    (work.root / "b.json").write_text(json.dumps(slower))
    alike = work.command("bench", "--compare", "a.json", "a.json", "--fail-above", "1.2")
    assert alike.returncode == 0, alike.stdout + alike.stderr
    worse = work.command("bench", "--compare", "a.json", "b.json", "--fail-above", "1.2", "--html", "both.html")
    assert worse.returncode == 4
    assert "p50 is more than 1.2 times as high as in the first file, even at the lower bound" in worse.stdout
    assert "(a)" in (work.root / "both.html").read_text()
    assert work.command("bench", "--compare", "a.json", "b.json").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "name a TARGET"),
        (("ftp://elsewhere/",), "is neither the name of a function"),
        (("http://",), "is not a URL"),
        (("work", "-C", "2", "--rate", "5"), "--concurrency is for a closed loop"),
        (("work", "--pattern", "constant"), "--pattern has no effect without --rate"),
        (("http://127.0.0.1:1/", "--engine", "cold"), "work only for functions and routes of thawd"),
        (("http://127.0.0.1:1/",), "cannot be reached"),
        (("/nowhere",), "there is no route for GET /nowhere; the configuration has: POST /jobs/{id}"),
        (("nobody", "--engine", "cold"), "there is no function 'nobody'; functions: work"),
        (("work:live", "--engine", "cold"), "a private server has no versions or aliases: measure 'work'"),
        (("work", "--html", "none/at/all.html"), "none/at/all.html cannot be written"),
        (("work", "--arrivals", "none"), "cannot be read"),
        (("work", "-p", "@none"), "the payload none cannot be read: No such file or directory"),
        (("work", "-H", "no header"), "is not a header"),
        (("work", "-H", "X: \u2192"), "is not a header"),
        (("work", "--rate", "nan"), "must be finite"),
        (("work", "--environments", "2"), "--environments is for a private server"),
        (("work", "--fail-above", "1.1"), "--fail-above has no effect without --compare"),
        (("work", "--speed", "2"), "--speed has no effect without --arrivals"),
        (("work", "--compare", "a", "b"), "so TARGET has no effect"),
        (("work", "--json", "out", "--csv", "out"), "name the same file out"),
        (("work",), "no thawd server runs"),
    ],
)
def test_what_cannot_be_measured_is_told_in_a_line(
    work: Project, arguments: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work.root)
    done = CliRunner().invoke(bench_commands.bench, arguments)
    assert done.exit_code in (1, 2)
    assert told in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)


def test_a_private_server_that_cannot_serve_is_told_with_the_reason(work: Project) -> None:
    work.code("raise ImportError('no model here')")
    done = work.command("bench", "work", "-n", "2", "--engine", "cold")
    assert done.returncode == 3
    assert "no model here" in done.stdout
    work.code("def handler(event")
    work.config(CONFIG + '\n[functions.work.environment]\nA = "b"\n')
    assert work.command("bench", "work", "-n", "2", "--engine", "thaw").returncode in (1, 3)


def test_what_was_measured_is_told_though_a_later_engine_could_not_be(work: Project) -> None:
    work.code(
        """
        import os

        def handler(event, context):
            if os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"] != "on-demand" and event == 1:
                raise ValueError("not so")
            return os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"]
        """
    )
    document, text = bench(
        work, "work", "-n", "2", "-p", "1", "--warm-up", "1", "--engine", "cold", "--engine", "provisioned", exits=1
    )
    assert [run["label"] for run in document["runs"]] == ["cold"]
    assert "2 requests" in text


def test_credentials_in_an_address_are_sent_and_written_nowhere(work: Project) -> None:
    with answering(lambda _: OK) as server:
        address = server.url.replace("http://", "http://bob:hidden@")
        done = work.command("bench", address, "-n", "1", "--json", "out.json", "--html", "out.html")
    assert done.returncode == 0, done.stderr
    assert b"Authorization: Basic Ym9iOmhpZGRlbg==" in server.requests[0].head
    for told in (done.stdout, done.stderr, *(path.read_text() for path in work.root.glob("out.*"))):
        assert "hidden" not in told and "Ym9i" not in told


def test_a_private_server_ends_with_a_bench_that_is_killed_and_its_folder_goes_with_the_next(work: Project) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "thawd", "bench", "work", "--duration", "3600", "--engine", "thaw"],
        cwd=work.root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        pid = eventually(lambda: _announced(work), what="the private server")["pid"]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    eventually(lambda: _has_ended(pid), what="the private server's end")
    bench(work, "work", "-n", "1", "--engine", "cold")
    assert [path.name for path in work.data.iterdir()] == ["environments"]


def test_ctrl_c_ends_the_load_with_its_last_answers_and_what_was_measured_is_written(work: Project) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "thawd", "bench", "work", "--duration", "3600", "--from", "zero", "--json", "out.json"],
        cwd=work.root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        url = eventually(lambda: _announced(work), what="the private server")["url"]
        eventually(lambda: _served(url) >= 5, what="the load")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the signal goes to all processes of the command
        text, _ = process.communicate()
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + signal.SIGINT
    (run,) = json.loads((work.root / "out.json").read_text())["runs"]
    assert run["interrupted"]
    assert run["summary"]["errors"] == 0
    assert run["summary"]["requests"] >= 5
    assert "ended by Ctrl-C before all requests were sent" in text
    assert [path.name for path in work.data.iterdir()] == ["environments"]


def _announced(project: Project) -> dict[str, Any] | None:
    """Return what the private server wrote to its ready file, or None if that is missing or incomplete."""
    for ready in project.data.glob("bench-*/ready.json"):
        with contextlib.suppress(ValueError):
            document: dict[str, Any] = json.loads(ready.read_text())
            return document
    return None


def _served(url: str) -> int:
    with urllib.request.urlopen(f"{url}/_thawd/status") as answer:
        invocations = json.load(answer)["functions"]["work"]["invocations"]
    return sum(kind["count"] for kind in invocations.values())


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
