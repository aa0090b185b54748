"""The command line as its users meet it: the output of its commands, and never a traceback.

This includes odd names, closed pipes, full disks and Ctrl-C.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import prestarted, shell_programs

from .conftest import DEADLINE_S, ECHO, Project, Running, eventually

CODE = """
import thawd
def handler(event, context):
    for number in range(event.get("lines", 0)):
        print(f"line {number:07}")
    for key, item in event.get("put", {}).items():
        thawd.table("labels").put(key, item)
"""
CONFIG = """
log_max_mb = 1
[functions.app]
handler = "app.handler"
[functions.second]
handler = "app.handler"
[tables.labels]
"""
THAWD = [sys.executable, "-m", "thawd"]


@pytest.fixture
def served(project: Project) -> Iterator[Running]:
    project.code(CODE)
    project.config(CONFIG)
    with project.up() as running:
        yield running


def shell(project: Project, command: str) -> tuple[str, str, list[int]]:
    """Return output, errors and the exit statuses of all parts of a pipe."""
    program = shell_programs.command("thawd")
    script = f'thawd() {{ "{program}" "$@"; }}; {command}; echo "${{PIPESTATUS[*]}}" > statuses'
    done = subprocess.run(["bash", "-c", script], cwd=project.root, capture_output=True, text=True, timeout=DEADLINE_S)
    return done.stdout, done.stderr, [int(number) for number in (project.root / "statuses").read_text().split()]


def test_the_command_line_invokes_shows_logs_and_status(echo: Project) -> None:
    echo.code("def handler(event, context):\n    print('hello', event)\n    return 1 / event['x']\n")
    with echo.up():
        done = echo.command("invoke", "app", "-p", '{"x": 4}', "--tail")
        assert (done.returncode, done.stdout) == (0, "0.25\n")
        assert "hello {'x': 4}" in done.stderr
        done = echo.command("invoke", "app", "-p", '{"x": 0}')
        assert done.returncode == 3
        assert json.loads(done.stdout)["errorType"] == "ZeroDivisionError"
        assert echo.command("invoke", "nobody").returncode == 1
        assert "app: Active" in echo.command("status").stdout
        measured = re.search(r"app: Active; 1 idle, .* with ([0-9.]+) MiB; ", echo.command("status", "--memory").stdout)
        assert measured is not None
        assert 1 < float(measured[1]) < 100
        log = eventually(
            lambda: (text := echo.command("logs", "app").stdout).count("REPORT RequestId") == 2 and text, what="the log"
        )
        assert "hello {'x': 4}" in log
    done = echo.command("invoke", "app")
    assert done.returncode == 1
    assert "thawd up" in done.stderr


def test_logs_follow(echo: Project) -> None:
    with echo.up() as running:
        follower = prestarted.Popen(
            [sys.executable, "-m", "thawd", "logs", "app", "-f"], cwd=echo.root, stdout=subprocess.PIPE, text=True
        )
        assert follower.stdout is not None
        # Once it shows an existing line, the follower is known to read.
        assert "INIT_START" in follower.stdout.readline()
        running.invoke("app", {})
        lines = []
        while not any("REPORT RequestId" in line for line in lines):
            lines.append(follower.stdout.readline())
        follower.send_signal(signal.SIGINT)
        follower.stdout.close()
        assert follower.wait(DEADLINE_S) in (0, 1, -signal.SIGINT)
        assert any("START RequestId" in line for line in lines)


def test_check_finds_every_mistake(project: Project) -> None:
    (project.root / "thawd.toml").write_text(
        '[functions.a]\nhandler = "app"\nmemory_mb = 1\nmemroy = 2\n[routes]\n"GET /x" = "b"\n'
    )
    done = project.command("check")
    assert done.returncode == 1
    for key in ("functions.a.handler", "functions.a.memory_mb", "functions.a.memroy", "routes"):
        assert key in done.stderr
    project.code(ECHO)
    project.config('[functions.app]\nhandler = "app.handler"\n')
    done = project.command("check")
    summary = "thawd.toml: no mistakes; 1 function, 0 buckets, 0 routes, 0 tables"
    assert (done.returncode, done.stdout) == (0, f"{summary}\n  app: app.handler, Lambda handler\n")


def test_following_a_log_shows_every_line_once_across_quick_rotations(served: Running) -> None:
    count = 30_000  # three rotations: a reader that a busy machine delays still finds the rotated files
    command = [*THAWD, "logs", "app", "-f", "--raw"]
    errors = served.project.root / "errors"
    with errors.open("w") as stderr:
        follower = prestarted.Popen(command, cwd=served.project.root, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert follower.stdout is not None
    assert "INIT_START" in follower.stdout.readline()
    caller = threading.Thread(target=served.invoke, args=("app", {"lines": count}))
    caller.start()
    lines: list[str] = []
    while not (lines and lines[-1].startswith("REPORT")):
        lines.append(follower.stdout.readline())
    caller.join()
    follower.send_signal(signal.SIGINT)
    follower.stdout.close()
    assert follower.wait(DEADLINE_S) == 0
    assert errors.read_text() == ""
    assert [line for line in lines if line.startswith("line")] == [f"line {n:07}\n" for n in range(count)]


def test_a_name_that_no_function_has_is_told(served: Running) -> None:
    asked: list[tuple[str, str | bytes]] = [
        *((verb, "a/b?c#d") for verb in ("invoke", "logs", "table")),
        ("invoke", "a b"),
        ("logs", ".."),
        ("table", "é"),
        ("invoke", "a\nb"),
        ("logs", b"\xff"),
    ]
    for verb, name in asked:
        done = served.project.command(verb, name)  # type: ignore[arg-type]
        assert done.returncode == 1, done
        assert done.stderr.startswith("thawd: "), done


def test_logs_stay_in_their_folder(project: Project) -> None:
    project.code(CODE)
    project.config(CONFIG)
    (project.data / "logs").mkdir(parents=True)
    (project.data / "secret.log").write_text("secret\n")
    done = project.command("logs", "../secret")
    assert (done.returncode, done.stdout) == (1, "")
    assert "letters, digits, hyphens" in done.stderr


def test_a_server_that_is_not_thawd_is_told(project: Project) -> None:
    project.code(CODE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        (project.root / "thawd.toml").write_text('[functions.app]\nhandler = "app.handler"\n')
        named = {**os.environ, "THAWD_URL": f"http://127.0.0.1:{listener.getsockname()[1]}"}

        def answer() -> None:
            for said in (b"SSH-2.0-other\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        for verb in (["invoke", "app"], ["status"]):
            done = project.command(*verb, env=named)
            assert done.returncode == 1
            assert done.stderr.startswith("thawd: "), done.stderr
            assert "Traceback" not in done.stderr
        thread.join()


def test_the_key_of_an_item_cannot_be_taken_by_its_fields(served: Running) -> None:
    item = {"_key": 1, "_key_": 2, "key": 3, "key_": 4}
    served.invoke("app", {"put": {"real": item}})
    command = served.project.command
    row = json.loads(command("table", "labels", "--json").stdout)
    assert row == {"_key": "real", "_key_": 1, "_key__": 2, "key": 3, "key_": 4}
    (row,) = csv.DictReader(io.StringIO(command("table", "labels", "--csv").stdout))
    assert row == {"key": "real", "_key": "1", "_key_": "2", "key_": "3", "key__": "4"}
    header, values = (line.split() for line in command("table", "labels").stdout.splitlines())
    assert dict(zip(header, values, strict=True)) == row
    assert "_key_" in command("table", "--help").stdout


def test_line_breaks_and_control_characters_do_not_break_a_table(served: Running) -> None:
    items = {"a\nb": {"v": "x\r\n\x1b[31m\\"}, "é": {"v": "1\r2"}, "z": {"v\n": 'a "b", c\\n'}}
    served.invoke("app", {"put": items})
    project = served.project
    text = project.command("table", "labels").stdout
    assert [line.split() for line in text.split("\n")[:2]] == [["key", "v", "v\\n"], ["a\\nb", "x\\r\\n\\x1b[31m\\\\"]]
    assert len(text.splitlines()) == 4
    raw = prestarted.run([*THAWD, "table", "labels", "--csv"], cwd=project.root, capture_output=True, check=True).stdout
    rows = list(csv.reader(io.StringIO(raw.decode(), newline="")))
    assert rows == [
        ["key", "v", "v\n"],
        ["a\nb", "x\r\n\x1b[31m\\", ""],
        ["z", "", 'a "b", c\\n'],
        ["é", "1\r2", ""],
    ]
    # A terminal with another character set causes no failure, and JSON stays valid.
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert project.command("table", "labels", env=ascii_only).returncode == 0
    lines = project.command("table", "labels", "--json", env=ascii_only).stdout.splitlines()
    assert [json.loads(line)["_key"] for line in lines] == sorted(items, key=str.encode)


@pytest.mark.parametrize("place", ["nowhere/x/ready.json", ".", "app.py/ready.json"])
def test_a_ready_file_that_cannot_be_written_is_told_before_anything_starts(project: Project, place: str) -> None:
    project.code(CODE)
    project.config(CONFIG)
    done = project.command("up", "--ready-file", place)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "ready file" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not project.data.exists()


def test_a_start_that_fails_on_the_way_is_told_in_a_line(project: Project) -> None:
    project.code(CODE)
    project.config(CONFIG)
    (project.root / "ready.json.new").mkdir()  # occupies the temporary name of the ready file
    done = project.command("up", "--ready-file", "ready.json")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "ready.json" in done.stderr.splitlines()[-1]


def until_it_begins(up: subprocess.Popen[str], project: Project) -> None:
    """Wait until the interpreter runs thawd: before that, the interpreter itself handles an interrupt.

    Python catches SIGINT when it starts. thawd resets it to the default, so that it ends the process, while it imports.
    Source: proc(5), ``SigCgt``.
    """
    was_caught = False

    def begins() -> bool:
        nonlocal was_caught
        caught = int(Path(f"/proc/{up.pid}/status").read_text().partition("SigCgt:")[2].split()[0], 16)
        is_caught = bool(caught & 1 << signal.SIGINT - 1)
        begun = was_caught and not is_caught
        was_caught |= is_caught
        return begun or (project.data / "address.json").exists()

    while up.poll() is None and not begins():
        time.sleep(0.001)


def test_an_interrupt_at_any_moment_of_the_start_ends_it_quietly(project: Project) -> None:
    project.code(CODE)
    project.config(CONFIG)
    for delay_s in (0.0, 0.1, 0.2, 0.35, 0.55, 0.85):  # not for synchronisation: the test tries these moments
        (project.data / "address.json").unlink(missing_ok=True)
        up = subprocess.Popen([*THAWD, "up"], cwd=project.root, stdout=-1, stderr=-1, text=True)
        until_it_begins(up, project)
        time.sleep(delay_s)
        up.send_signal(signal.SIGINT)
        _, errors = up.communicate(timeout=DEADLINE_S)
        # It ends through the signal or with status 130; a shell shows 130 for both.
        assert up.returncode in (0, 130, -signal.SIGINT), (delay_s, errors)
        assert "Traceback" not in errors, delay_s


def test_an_interrupt_while_the_arguments_are_read_is_as_quiet(project: Project) -> None:
    script = (
        "import os, signal, sys, click; from thawd import __main__\n"
        "read = click.Group.parse_args\n"
        "click.Group.parse_args = lambda *given: os.kill(os.getpid(), signal.SIGINT) or read(*given)\n"
        "sys.argv = ['thawd', 'status']\n"
        "__main__.main()"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=project.root, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_reader_that_has_enough_ends_the_command_silently(served: Running) -> None:
    served.invoke("app", {"lines": 30_000, "put": {f"{n:05}": {"n": n} for n in range(50)}})
    eventually(lambda: "REPORT" in served.project.command("logs", "app", "-n", "1").stdout, what="the log")
    for command in (
        "thawd logs app -n 30000",
        "thawd logs app -n 30000 -f",
        "thawd table labels --csv",
        "thawd table labels",
        "thawd table labels --json",
        "thawd status",
        "thawd --help",
    ):
        shown, errors, statuses = shell(served.project, f"{command} | head -1")
        assert (len(shown.splitlines()), errors) == (1, ""), command
        assert statuses[0] in (0, 128 + signal.SIGPIPE), command


def test_a_full_disk_under_the_output_is_told(served: Running) -> None:
    for command in ("status", "logs app", "invoke app"):
        _, errors, statuses = shell(served.project, f"thawd {command} > /dev/full")
        assert statuses == [1]
        assert errors == "thawd: the output cannot be written: No space left on device\n"


def test_a_server_whose_terminal_is_gone_serves_on_and_stops_well(project: Project, tmp_path: Path) -> None:
    project.code(CODE)
    project.config(CONFIG)
    ready = tmp_path / "ready.json"
    up = prestarted.Popen(
        [*THAWD, "up", "--ready-file", str(ready)], cwd=project.root, stdout=-1, stderr=subprocess.STDOUT
    )
    assert up.stdout is not None
    up.stdout.close()
    eventually(ready.exists, what="the start")
    assert project.command("invoke", "app").stdout == "null\n"
    up.terminate()
    assert up.wait(DEADLINE_S) == 0


def test_status_reads_well(served: Running) -> None:
    served.invoke("app", {})
    served.invoke("app", {"lines": None})
    lines = served.project.command("status").stdout.splitlines()
    assert lines[0].startswith(served.url)
    (at,) = (n for n, line in enumerate(lines) if line.startswith("app: Active; 1 idle, 0 busy, 0 starting"))
    assert lines[at + 1].split() == ["count", "p50", "p99", "max"]
    assert lines[at + 2].split()[:3] == ["thaw", "start", "1"]
    assert len({len(line) for line in lines[at + 1 : at + 4]}) == 1
    assert "  1 error" in lines
    assert any(re.fullmatch(r"  snapshot [0-9a-f]{12}, [1-9]\d*\.\d MiB", line) for line in lines)
    assert any(line.startswith("second: Active; 0 idle") for line in lines)


def test_a_verb_that_asks_the_server_does_not_load_one_itself(project: Project) -> None:
    project.config("")
    command = [sys.executable, "-X", "importtime", "-m", "thawd", "status"]
    done = subprocess.run(command, cwd=project.root, capture_output=True, text=True)
    assert "start it with `thawd up" in done.stderr
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "thawd.cli.client" in loaded
    assert not {"thawd.server.serving", "thawd.environments", "thawd.scheduling", "uvicorn"} & loaded
