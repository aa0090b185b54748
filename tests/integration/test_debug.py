"""``thawd up --debug``: an editor's debugger, or pdb in the terminal, stops in the user's own file."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import socket
import termios
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import prestarted
from tests.debug_adapter import DebugClient
from tests.ports import quiet_port

from .conftest import Project, Running, eventually

HANDLER = """
LEVEL = 10

def handler(event, context):
    total = event["n"] + LEVEL
    return {"total": total, "left": context.get_remaining_time_in_millis()}
"""
CONFIG = '[functions.f]\nhandler = "app.handler"\ntimeout_s = 1\n'


def test_an_editor_stops_in_the_users_file_and_time_limits_are_held(project: Project) -> None:
    pytest.importorskip("debugpy")
    project.code(HANDLER)
    project.config(CONFIG)
    app, port = project.root / "app.py", quiet_port()
    line = 6
    assert "return" in app.read_text().splitlines()[line - 1]
    with (
        project.up("--debug", "f", "--debug-port", str(port)) as running,
        DebugClient(port) as editor,
        ThreadPoolExecutor(2) as threads,
    ):
        assert running.function("f")["start"] == "cold"
        assert "debugger" in running.function("f")["start_reason"]
        assert _announced(running, port) == 1
        assert editor.attach({app: [line]}) == [True]
        first = threads.submit(running.invoke, "f", {"n": 5})
        thread, frame = editor.stopped()
        assert (Path(frame["source"]["path"]), frame["line"]) == (app, line)
        assert editor.variables(frame)["total"] == "15"
        second = threads.submit(running.invoke, "f", {"n": 6})
        stopped_s = time.monotonic()
        eventually(lambda: time.monotonic() - stopped_s > 1.2, what="more time than the function's limit")
        assert not first.done()
        assert not second.done()
        app.write_text(HANDLER + "\n")
        running.until_said("app.py changed after the debugged process started")
        assert not any("building" in line for line in running.output)
        assert running.function("f")["environments"] == {"idle": 0, "busy": 1, "starting": 0}
        editor.request("continue", threadId=thread)
        answer, error = first.result()
        assert (answer["total"], error) == (15, None)
        assert answer["left"] > 3_600_000
        thread, _ = editor.stopped()
        editor.request("setBreakpoints", source={"path": str(app)}, breakpoints=[])
        editor.request("continue", threadId=thread)
        assert second.result()[0]["total"] == 16


def test_init_waits_for_an_editor_and_a_changed_file_is_debugged_again(project: Project) -> None:
    pytest.importorskip("debugpy")
    project.code(HANDLER)
    project.config(CONFIG)
    app, port = project.root / "app.py", quiet_port()
    arguments = ("--watch", "--debug", "f", "--debug-port", str(port), "--debug-wait")
    with project.up(*arguments, command=("up",)) as running, ThreadPoolExecutor(1) as threads:
        eventually(lambda: _announced(running, port) == 1, what="the line with the port")
        with DebugClient(port) as editor:
            assert editor.attach({app: [2]}) == [True]
            thread, frame = editor.stopped()
            assert frame["line"] == 2
            editor.request("setBreakpoints", source={"path": str(app)}, breakpoints=[])
            editor.request("continue", threadId=thread)
            assert running.invoke("f", {"n": 1})[0]["total"] == 11
            running.until_said("Ctrl-C stops")
        project.code(HANDLER.replace("10", "20"))
        eventually(lambda: _announced(running, port) == 2, what="the line with the port of the next environment")
        asked = threads.submit(running.invoke, "f", {"n": 1})
        with DebugClient(port) as editor:
            editor.attach({})
            assert asked.result()[0]["total"] == 21
        running.until_said("f: republished")


PDB = """
def handler(event, context):
    answer = 41
    breakpoint()
    answer += event["n"]
    return answer
"""


def test_breakpoint_opens_pdb_in_the_servers_terminal(project: Project) -> None:
    project.code(PDB)
    project.config(CONFIG)
    with _in_terminal(project) as (running, terminal, keys), ThreadPoolExecutor(1) as threads:
        mode = termios.tcgetattr(terminal)
        asked = threads.submit(running.invoke, "f", {"n": 1})
        assert "f stops at" in keys("")
        assert re.search(r"^42\r$", keys("p answer + 1\n"), re.MULTILINE)
        where = keys("w\n")
        assert "app.py(5)handler()" in where
        assert "/thawd/runtime/" not in where
        assert keys("\x1b[A\n").count("app.py(5)handler()") == 1  # the key "up" brings the last line back
        assert "Breakpoint 1" in keys("b 6\n")
        keys("answer = 7\n")
        assert "app.py(6)handler()" in keys("c\n")
        keys("c\n", end="\n")
        assert asked.result() == (8, None)

        asked = threads.submit(running.invoke, "f", {"n": 2})
        assert "app.py(5)handler()\r\n" in keys("")  # although pdb traces, because it has a breakpoint
        assert "Clear all breaks?" in keys("clear\n", end="? ")
        assert "Deleted breakpoint 1" in keys("y\n")
        keys("interact\n", end=">>> ")
        assert re.search(r"^84\r$", keys("print(answer + 43)\n", end=">>> "), re.MULTILINE)
        keys("\x04")
        assert "app.py(6)handler()" in keys("n\n")
        assert "--Return--" in keys("n\n")
        keys("n\n", end="\n")
        assert asked.result() == (43, None)
        assert "PYDEV DEBUGGER WARNING" not in _log(project)

        asked = threads.submit(running.invoke, "f", {"n": 3})
        keys("")
        running.process.send_signal(signal.SIGINT)
        running.until_said("Ctrl-C again ends it")
        running.process.send_signal(signal.SIGINT)
        running.process.wait()
        assert asked.exception() is not None or asked.result()[1] is not None
        assert termios.tcgetattr(terminal) == mode


def test_a_breakpoint_without_terminal_and_editor_is_passed_and_the_log_says_why(project: Project) -> None:
    project.code("def handler(event, context):\n    breakpoint()\n    return 1\n")
    project.config(CONFIG)
    with project.up("--debug", "f", "--debug-port", str(quiet_port())) as running:
        assert running.invoke("f", {}) == (1, None)
        assert not any("no debugger can stop it" in said for said in running.output)
        place = f"a breakpoint at {project.root}/app.py:2 did not stop"
        eventually(lambda: place in _log(project), what="the line in the log")  # lines are written every 50 ms


STOPS = """
import pdb

def one(event, context):
    pdb.set_trace()
    return 1

def two(event, context):
    breakpoint()
    return 2
"""


def test_without_debug_a_breakpoint_fails_with_a_line_that_says_how_to_stop_there(project: Project) -> None:
    project.code(STOPS)
    project.config('[functions.one]\nhandler = "app.one"\n[functions.two]\nhandler = "app.two"\n')
    with project.up() as running:
        for name in ("one", "two"):
            why = f"to stop here: thawd up --debug {name}"
            answer, error = running.invoke(name, {})
            assert error is not None
            assert answer["errorType"] == "BdbQuit"
            assert answer["errorMessage"].startswith(why)
            running.until_said("BdbQuit: to stop here: ")
            assert "refuse_breakpoint" not in str(answer["stackTrace"])


def test_pdb_set_trace_opens_the_same_prompt_as_breakpoint(project: Project) -> None:
    project.code(STOPS.replace("set_trace()", 'set_trace(header="look")').replace("def one", "def handler"))
    project.config(CONFIG)
    with _in_terminal(project) as (running, _, keys), ThreadPoolExecutor(1) as threads:
        asked = threads.submit(running.invoke, "f", {})
        assert "look\r\nthawd: f stops at" in keys("")
        keys("q\n", end="\n")
        answer, _ = asked.result()
        assert answer["errorMessage"] == "the debugger's user ended it"


def test_a_port_that_is_taken_is_refused_before_anything_starts(project: Project) -> None:
    project.code(HANDLER)
    project.config(CONFIG)
    with socket.create_server(("127.0.0.1", quiet_port())) as taken:
        port = taken.getsockname()[1]
        refused = project.command("up", "--debug", "f", "--debug-port", str(port))
    assert refused.returncode == 1
    assert f"--debug f: process {os.getpid()} (" in refused.stderr
    assert f"listens on port {port}, at which an editor would attach" in refused.stderr
    assert "choose another port: --debug-port " in refused.stderr
    assert "thawd serves" not in refused.stdout


def test_what_cannot_be_debugged_is_refused_with_a_way_out(project: Project) -> None:
    project.code(HANDLER)
    project.config(CONFIG)
    refused = project.command("up", "--debug", "F")
    assert refused.returncode == 1
    assert "there is no function F; did you mean f?" in refused.stderr
    assert "--debug-wait needs --debug" in project.command("up", "--debug-wait").stderr


def _announced(running: Running, port: int) -> int:
    """How often the server has said where an editor can attach; whoever attaches then is not refused."""
    return sum(f"at 127.0.0.1:{port} (debugpy)" in said for said in running.output)


def _log(project: Project) -> str:
    return "".join(file.read_text() for file in (project.data / "logs").iterdir() if file.is_file())


@contextmanager
def _in_terminal(project: Project) -> Iterator[tuple[Running, int, Callable[..., str]]]:
    """Run a server in a terminal. `keys` types, and returns what is shown until there is a prompt."""
    ours, theirs = pty.openpty()

    def keys(text: str, *, end: str = "(Pdb) ") -> str:
        os.write(ours, text.encode())
        return _until(ours, end)

    try:
        with project.up(
            *("--debug", "f", "--debug-port", str(quiet_port())),
            environ={prestarted.EXECUTE: "1", "TERM": "dumb"},  # a fork would have another standard input
            stdin=theirs,
        ) as running:
            yield running, theirs, keys
    finally:
        os.close(ours)
        os.close(theirs)


def _until(terminal: int, end: str) -> str:
    """What the terminal shows, read until it ends so."""
    text = ""
    while not text.endswith(end):
        assert select.select([terminal], [], [], 60)[0], f"the terminal shows {text!r}"
        text += os.read(terminal, 4096).decode()
    return text
