"""When a snapshot is used and when not: the priming event, the self-test, and refusals."""

from __future__ import annotations

import re

import pytest

from thawd.snapshot.engine import unavailable

from .conftest import Project, eventually
from .frozen_app import APP, log, make, refused

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


@pytest.fixture
def app(project: Project) -> Project:
    """A project with one function."""
    return make(project)


def test_the_priming_event_runs_before_the_freeze_and_its_lines_are_marked(app: Project) -> None:
    app.code(
        """
        LOADED = []

        def handler(event, context):
            print("called with", event)
            LOADED.append(event)
            return len(LOADED)
        """
    )
    (app.root / "event.json").write_text('{"n": 1}')
    app.config(APP + 'prime = "event.json"\n')
    with app.up() as running:
        assert running.function("app")["start"] == "thaw", running.function("app")["start_reason"]
        assert running.invoke("app", {}) == (3, None)
        lines = [message for _, message in log(app)]
        at = next(n for n, line in enumerate(lines) if line.startswith("PRIME_START RequestId: "))
        assert lines[at + 1] == "called with {'n': 1}"
        assert re.fullmatch(r"PRIME_END RequestId: \S{36}\tDuration: \d+\.\d\d ms", lines[at + 2])


CHANGING = (
    "os.getpid()",
    "time.time()",
    "int(time.time() * 50)",
    "context.aws_request_id",
    "context.log_stream_name",
    "random.random()",
    "len(CALLS.append(1) or CALLS)",
)


def test_answers_that_cannot_always_be_the_same_are_no_reason_against_a_snapshot(project: Project) -> None:
    handlers = "".join(f"def f{n}(event, context):\n    return {answer}\n" for n, answer in enumerate(CHANGING))
    project.code(f"import os, random, time\nCALLS = []\n{handlers}")
    project.config("".join(f'[functions.f{n}]\nhandler = "app.f{n}"\nprime = {{}}\n' for n in range(len(CHANGING))))
    with project.up() as running:
        for n, answer in enumerate(CHANGING):
            function = running.function(f"f{n}")
            assert function["start"] == "thaw", (answer, function["start_reason"])


def test_a_copy_that_answers_otherwise_than_the_original_is_not_used(app: Project) -> None:
    app.code(
        """
        import os
        PID = os.getpid()

        def handler(event, context):
            return {"is the process that ran init": os.getpid() == PID}
        """
    )
    function, output = refused(app, options="prime = {}\n")
    assert function["start"] == "fork"
    assert "a copy's answer to the priming event differs from the original's" in function["snapshot"]["refused"]
    assert "true" in function["snapshot"]["refused"]
    assert "false" in function["snapshot"]["refused"]
    assert function["start_reason"] == function["snapshot"]["refused"]
    assert [line for line in output if "not thawed" in line] == [f"thawd: app: not thawed: {function['start_reason']}"]
    assert ["thawd", f"not thawed: {function['start_reason']}"] in log(app)
    assert not list((app.data / "snapshots").glob("*.img")), "an image that failed is deleted"


def test_a_copy_that_fails_at_the_priming_event_is_not_used(app: Project) -> None:
    app.code(
        """
        import os
        PID = os.getpid()

        def handler(event, context):
            if event.get("prime") and os.getpid() != PID:
                raise LookupError("I am a copy")
            return 1
        """
    )
    function, _ = refused(app, options="prime = { prime = true }\n")
    assert "LookupError" in function["snapshot"]["refused"]


FAILING = {
    "raise KeyError('x')": "KeyError: 'x'",
    "sys.exit(3)": "SystemExit: 3",
    "return object()": "Runtime.MarshalError",
    "os._exit(4)": "exit status 4",
    "os.kill(os.getpid(), 9)": "signal: killed",
    "time.sleep(100)": "the freeze took too long: stage priming",
}


@pytest.mark.parametrize("does", FAILING)
def test_a_priming_event_that_fails_leaves_the_function_serving(app: Project, does: str) -> None:
    app.code(
        f"""
        import os, sys, time

        def handler(event, context):
            if event.get("prime"):
                {does}
            return 1
        """
    )
    function, _ = refused(app, options=f"timeout_s = {1 if 'sleep' in does else 60}\nprime = {{ prime = true }}\n")
    assert FAILING[does] in function["snapshot"]["refused"]
    assert function["start"] == "fork"


REFUSED = {
    "an SQLite transaction": (
        """
        import sqlite3, tempfile
        DATABASE = sqlite3.connect(tempfile.mkdtemp() + "/d", isolation_level=None)
        DATABASE.execute("CREATE TABLE t (a)")
        DATABASE.execute("BEGIN IMMEDIATE")
        """,
        "the process holds a lock on a file",
        "cold",
    ),
    "a port of its own": (
        """
        import socket
        for port in range(20000, 30000):
            try:
                LISTENING = socket.create_server(("127.0.0.1", port))
                break
            except OSError:
                pass
        """,
        "a listening socket cannot be frozen",
        "cold",
    ),
    "a child process": (
        """
        import subprocess
        CHILD = subprocess.Popen(["sleep", "1000"])
        """,
        "child process",
        "cold",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_frozen_is_told_with_the_way_out_and_started_otherwise(app: Project, what: str) -> None:
    code, said, start = REFUSED[what]
    app.code(code)
    with (app.root / "app.py").open("a") as file:
        file.write("\ndef handler(event, context):\n    return 1\n")
    function, output = refused(app)
    assert said in function["snapshot"]["refused"]
    assert function["start"] == start
    assert [line for line in output if "not thawed" in line] == [
        f"thawd: app: not thawed: {function['snapshot']['refused']}"
    ]


def test_nothing_is_frozen_where_nobody_wants_it(app: Project) -> None:
    app.config(
        APP + '[functions.cold]\nhandler = "app.handler"\nsnapshot = false\n',
    )
    with app.up(environ={"THAWD_SNAPSHOTS": "off"}) as running:
        for name, start, why in (("app", "fork", 'snapshots = "off"'), ("cold", "cold", "snapshot = false")):
            running.invoke(name, {})
            function = running.function(name)
            assert (function["start"], function["start_reason"]) == (start, why)
            assert function["snapshot"] == {
                "ApplyOn": "None",
                "OptimizationStatus": "Off",
                "refused": why,
                "restore_p50_ms": None,
            }
            assert function["starts"].keys() == {start}
            assert function["fallbacks"] == 0
        assert not (app.data / "snapshots").exists()


def test_all_reasons_are_shown_the_first_cause_first(app: Project) -> None:
    app.code(
        """
        import subprocess, threading, time
        CHILD = subprocess.Popen(["sleep", "1000"])
        threading.Thread(target=time.sleep, args=(1000,), daemon=True, name="background").start()

        def handler(event, context):
            return 1
        """
    )
    app.config(APP)
    with app.up() as running:
        function = running.function("app")
        first, second = function["start_reasons"]
        assert (function["start"], first["start"], second["start"]) == ("cold", "thaw", "fork")
        assert "child process" in first["reason"]
        assert "background" in second["reason"]
        assert first["reason"] == function["snapshot"]["refused"]
        assert function["start_reason"] == f"not thawed: {first['reason']}; not forked: {second['reason']}"
        told = [line for line in running.output if line.startswith("thawd: app: not ")]
        assert told == [
            f"thawd: app: not thawed: {first['reason']}",
            f"thawd: app: not forked: {second['reason']}; environments are started cold",
        ]
        said = [line.removeprefix("thawd: app: ") for line in told]
        eventually(
            lambda: [text for stream, text in log(app) if stream == "thawd"] == said, what="the lines in the log"
        )
        status = app.command("status").stdout
        assert f"  starts by cold: not thawed: {first['reason']}; not forked: {second['reason']}\n" in status
    app.config(APP + "snapshot = false\n")
    with app.up() as running:
        assert running.function("app")["start_reason"] == "snapshot = false"
        assert [why["start"] for why in running.function("app")["start_reasons"]] == ["thaw", "fork"]
        assert "  starts by cold: not thawed, not forked: snapshot = false\n" in app.command("status").stdout
    app.config(APP)
    with app.up(environ={"THAWD_SNAPSHOTS": "off"}) as running:
        assert [line for line in running.output if line.startswith("thawd: app: not ")] == [
            f'thawd: app: not thawed: snapshots = "off"; not forked: {second["reason"]}; environments are started cold'
        ]
