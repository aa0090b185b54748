"""The server as a process: starts, stops, kills, and its messages when it cannot start."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.privileges import MODULES, open_to_all, unprivileged_python

from .conftest import DEADLINE_S, ECHO, Project, Running, eventually, processes_of


def test_the_start_tells_what_is_served_and_where(project: Project) -> None:
    project.code(ECHO)
    project.config(
        """
        [functions.app]
        handler = "app.handler"
        [buckets.uploads]
        notify = [{ function = "app" }]
        [routes]
        "POST /classify" = "app"
        [tables.labels]
        """
    )
    with project.up() as running:
        said = "\n".join(running.output)
        assert f"thawd serves {running.url}" in said
        for name in ("app", "uploads", "POST /classify", "labels"):
            assert name in said
    assert running.output[-1] == "stopped"


def test_a_second_start_on_the_same_port_says_so_and_the_first_serves_on(echo: Project, tmp_path: Path) -> None:
    with echo.up() as running:
        port = running.url.rpartition(":")[2]
        done = echo.command("up", "--port", port, env={**os.environ, "THAWD_DATA": str(tmp_path / "other")})
        assert done.returncode == 1
        assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
        assert "--port" in done.stderr
        assert running.invoke("app", {}) == (1, None)


def test_a_second_server_on_the_same_data_folder_is_refused(echo: Project) -> None:
    with echo.up() as running:
        done = echo.command("up", "--port", "0")
        assert done.returncode == 1
        assert f"another thawd (process {running.process.pid}) uses the data folder" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lets_what_runs_finish(echo: Project, number: signal.Signals) -> None:
    with echo.up() as running:
        answers: list[Any] = []
        gate = echo.root / "gate"
        thread = threading.Thread(target=lambda: answers.append(running.invoke("app", {"gate": str(gate)})))
        thread.start()
        eventually(lambda: running.function("app")["environments"]["busy"] == 1, what="the invocation")
        running.process.send_signal(number)
        running.until_said("stopping")
        gate.touch()
        assert running.process.wait(DEADLINE_S) == 0
        thread.join()
        assert answers == [(1, None)]


def test_a_stop_ends_what_outlasts_the_grace_period_and_leaves_no_process(echo: Project) -> None:
    echo.config('grace_s = 0.5\n[functions.app]\nhandler = "app.handler"\n')
    with echo.up() as running:
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(running.invoke("app", {"s": 25})))
        thread.start()
        eventually(lambda: running.function("app")["environments"]["busy"] == 1, what="the invocation")
        assert running.stop() == 0
        thread.join()
        assert answers[0][1] == "Unhandled"
        assert answers[0][0]["errorMessage"].endswith("signal: killed")
        assert not processes_of(echo.data)


def test_a_second_signal_stops_at_once(echo: Project) -> None:
    with echo.up() as running:

        def ask() -> None:
            with contextlib.suppress(Exception):  # there may be no answer
                running.invoke("app", {"s": 25})

        thread = threading.Thread(target=ask)
        thread.start()
        eventually(lambda: running.function("app")["environments"]["busy"] == 1, what="the invocation")
        running.process.send_signal(signal.SIGINT)
        eventually(lambda: "stopping" in running.output, what="the word that it stops")
        assert running.stop(number=signal.SIGINT) == 0
        thread.join()


def test_a_data_folder_that_is_taken_away_stops_the_server(echo: Project) -> None:
    with echo.up() as running:
        while echo.data.exists():  # a file written meanwhile makes rmtree stop, so repeat it
            shutil.rmtree(echo.data, ignore_errors=True)
        assert running.process.wait(DEADLINE_S) == 1
        running.until_said("was removed or replaced")


def test_more_reserved_than_the_machine_carries_is_told_at_the_start(echo: Project) -> None:
    echo.config('[functions.app]\nhandler = "app.handler"\nreserved_concurrency = 900\n')
    done = echo.command("up")
    assert done.returncode == 1
    assert "the configuration needs 900 environments" in done.stderr
    assert "server.max_environments" in done.stderr


def test_accepted_events_survive_a_kill_of_the_server(project: Project) -> None:
    project.code(
        """
        import time, thawd
        def handler(event, context):
            time.sleep(0.2)
            thawd.table("done").put(str(event["n"]), {})
        """
    )
    project.config('[functions.app]\nhandler = "app.handler"\n[tables.done]\n')
    with project.up() as running:
        client = running.client()
        for number in range(30):
            client.invoke(FunctionName="app", InvocationType="Event", Payload=json.dumps({"n": number}))
        running.process.kill()
        running.process.wait()
    with project.up() as running:
        eventually(lambda: count(running, "done") == 30, what="all rows")


def count(running: Running, table: str) -> int:
    with urllib.request.urlopen(f"{running.url}/_thawd/tables/{table}", timeout=30) as answer:
        return int(json.loads(answer.read())["count"])


def test_a_table_file_that_is_no_database_fails_its_callers_alone(project: Project) -> None:
    project.code(
        """
        import thawd
        def handler(event, context):
            thawd.table(event["table"]).put("k", {"a": 1})
            return thawd.table(event["table"]).get("k")
        """
    )
    project.config('[functions.app]\nhandler = "app.handler"\n[tables.good]\n[tables.bad]\n')
    (project.data / "tables").mkdir(parents=True)
    (project.data / "tables" / "bad.db").write_text("this is a letter, not a database, " * 50)
    with project.up() as running:
        document, error = running.invoke("app", {"table": "bad"})
        assert error == "Unhandled"
        assert document["errorType"] == "ServiceError"
        assert "bad.db" in document["errorMessage"]
        assert running.invoke("app", {"table": "good"}) == ({"a": 1}, None)
        document, _ = running.invoke("app", {"table": "nobody"})
        assert "good" in document["errorMessage"]
    assert project.command("table", "bad").returncode == 1
    assert (project.data / "tables" / "bad.db").read_text().startswith("this is a letter")


def test_a_read_only_data_folder_is_told_at_once(echo: Project, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    become: dict[str, Any] = {}
    python = sys.executable
    if os.geteuid() == 0:
        python = unprivileged_python()
        become = {"user": 65534, "group": 65534, "extra_groups": []}
        open_to_all(tmp_path)
    done = subprocess.run(
        [python, "-m", "thawd", "up", "--port", "0"],
        cwd=echo.root,
        env={**os.environ, **MODULES, "THAWD_DATA": str(locked / "data")},
        capture_output=True,
        text=True,
        **become,
    )
    assert done.returncode == 1, done.stderr
    assert f"the data folder {locked / 'data'} cannot be written" in done.stderr
    assert "THAWD_DATA" in done.stderr


def test_a_missing_interpreter_and_impossible_requirements_fail_their_function_alone(project: Project) -> None:
    project.code(ECHO)
    (project.root / "requirements.txt").write_text("--no-index\nno-such-package-anywhere\n")
    project.config(
        """
        [functions.good]
        handler = "app.handler"
        [functions.nopython]
        handler = "app.handler"
        python = "/nowhere/python"
        [functions.norequirements]
        handler = "app.handler"
        requirements = "requirements.txt"
        """
    )
    with project.up() as running:
        assert running.invoke("good", {}) == (1, None)
        assert "/nowhere/python" in running.function("nopython")["reason"]
        assert "no-such-package-anywhere" in running.function("norequirements")["reason"]
        for name in ("nopython", "norequirements"):
            with pytest.raises(running.client().exceptions.ResourceNotReadyException):
                running.invoke(name, {})


def test_the_server_runs_as_an_unprivileged_user(echo: Project, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("already unprivileged")
    python = unprivileged_python()
    open_to_all(tmp_path)
    os.chown(echo.root, 65534, 65534)
    with echo.up(environ=MODULES, python=python, user=65534, group=65534, extra_groups=[]) as running:
        assert running.invoke("app", {}) == (1, None)
        assert running.status()["memory_limit"]


def test_a_stop_during_a_long_start_ends_at_once(echo: Project) -> None:
    echo.code("import time\ntime.sleep(100)\n")
    ready = echo.root / "ready.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "thawd", "up", "--ready-file", str(ready), "--ready-when", "published"],
        cwd=echo.root,
        stdout=subprocess.DEVNULL,
    )
    eventually(lambda: processes_of(echo.data), what="the function's init")
    process.terminate()
    assert process.wait(DEADLINE_S) == 0
    assert not ready.exists()
    eventually(lambda: not processes_of(echo.data), what="the end of all processes")


WAITS = """
import pathlib
import time

def waits(event, context):
    with open(event["log"], "a") as log:
        log.write(context.aws_request_id + chr(10))
    while not pathlib.Path(event["until"]).exists():
        time.sleep(0.01)
"""


def waits_of(running: Running, *states: str) -> int:
    return sum(int(running.function("waits")[state]) for state in states)


@pytest.mark.parametrize("signals", [1, 2], ids=["patience-ends", "told-twice"])
def test_an_event_that_a_stop_ends_has_not_failed_and_runs_again(project: Project, signals: int) -> None:
    project.code(WAITS)
    project.config(f"""
        grace_s = {0.2 if signals == 1 else 60}

        [functions.waits]
        handler = "app.waits"
        timeout_s = 600
        maximum_retry_attempts = 0
    """)
    log, gate = project.root / "log", project.root / "gate"
    with project.up() as running:
        payload = json.dumps({"log": str(log), "until": str(gate)})
        running.client().invoke(FunctionName="waits", InvocationType="Event", Payload=payload)
        eventually(lambda: log.exists() and log.read_text(), what="the beginning of the event")
        running.process.terminate()
        eventually(lambda: "stopping" in running.output, what="the word that it stops")
        if signals == 2:
            running.process.terminate()
        assert running.process.wait(DEADLINE_S) == 0
    assert "waits Invoke, queued failed (runs again after the next start)" in "\n".join(running.output)
    gate.touch()
    with project.up() as running:
        eventually(lambda: not waits_of(running, "queued", "leased"), what="the end of the event")
        assert waits_of(running, "dead") == 0
        ids = log.read_text().split()
        assert len(ids) == 2
        assert len(set(ids)) == 1
