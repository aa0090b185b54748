"""The server as a process: start, second start, reload, drain, stop, and what it says when something is in the way."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from .conftest import DEADLINE_S, Project, Running, eventually, processes_of

ECHO = """
import os
import time
VERSION = 1
def handler(event, context):
    if event.get("s"):
        time.sleep(event["s"])
    while "gate" in event and not os.path.exists(event["gate"]):
        time.sleep(0.005)
    return VERSION
"""


MODULES = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith(("site-packages", "src")))}


def unprivileged_python() -> str:
    """An interpreter of this version that other users may run: this one may lie in a folder of root's."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        probe = [python, "-c", "import thawd.server"]
        with contextlib.suppress(OSError):
            environ = {**os.environ, **MODULES}
            if subprocess.run(probe, env=environ, user=65534, group=65534, capture_output=True).returncode == 0:
                return python
    pytest.skip("no interpreter of this version that an unprivileged user may run")


def open_to_all(folder: Path) -> None:
    """Let other users into `folder`, which pytest has made."""
    within = [part for part in folder.parents if part.is_relative_to(tempfile.gettempdir())]
    for part in (folder, *within):
        with contextlib.suppress(PermissionError):
            part.chmod(part.stat().st_mode | 0o055)


@pytest.fixture
def echo(project: Project) -> Project:
    project.code(ECHO)
    project.config('[functions.app]\nhandler = "app.handler"\n')
    return project


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
            with contextlib.suppress(Exception):  # it may have no answer
                running.invoke("app", {"s": 25})

        thread = threading.Thread(target=ask)
        thread.start()
        eventually(lambda: running.function("app")["environments"]["busy"] == 1, what="the invocation")
        running.process.send_signal(signal.SIGINT)
        eventually(lambda: "stopping" in running.output, what="the word that it stops")
        assert running.stop(number=signal.SIGINT) == 0
        thread.join()


def test_sighup_publishes_changed_code_without_a_failed_request(echo: Project) -> None:
    with echo.up() as running:
        stop = threading.Event()
        answers: list[Any] = []

        def load() -> None:
            while not stop.is_set():
                answers.append(running.invoke("app", {}))

        threads = [threading.Thread(target=load) for _ in range(3)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(answers) > 10, what="answers")
        echo.code(ECHO.replace("VERSION = 1", "VERSION = 2"))
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: (2, None) in answers, what="an answer of the new version")
        stop.set()
        for thread in threads:
            thread.join()
        assert set(answers) == {(1, None), (2, None)}
        switched = [answer for answer, _ in answers]
        assert switched.count(1) >= 10
        assert running.invoke("app", {}) == (2, None)


def test_a_change_that_does_not_load_leaves_the_old_version_serving(echo: Project) -> None:
    with echo.up() as running:
        assert running.invoke("app", {}) == (1, None)
        echo.code("this is no Python")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "configuration reloaded" in running.output, what="the reload")
        assert running.invoke("app", {}) == (1, None)
        function = running.function("app")
        assert function["state"] == "Active"
        assert "invalid syntax" in function["reason"]


def test_a_broken_configuration_is_not_reloaded(echo: Project) -> None:
    with echo.up() as running:
        (echo.root / "thawd.toml").write_text("[functions.app\n")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: any("was not reloaded" in line for line in running.output), what="the word")
        assert running.invoke("app", {}) == (1, None)


def test_a_reload_adds_and_removes_functions(echo: Project) -> None:
    with echo.up() as running:
        echo.config('[functions.new]\nhandler = "app.handler"\n')
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "configuration reloaded" in running.output, what="the reload")
        assert running.invoke("new", {}) == (1, None)
        with pytest.raises(running.client().exceptions.ResourceNotFoundException):
            running.invoke("app", {})


def test_watching_publishes_when_code_changes(echo: Project) -> None:
    with echo.up("--watch") as running:
        assert running.invoke("app", {}) == (1, None)
        echo.code(ECHO.replace("VERSION = 1", "VERSION = 3"))
        eventually(lambda: running.invoke("app", {}) == (3, None), what="the new version")


def test_watching_sees_renamed_files_new_functions_and_replaced_folders(project: Project) -> None:
    def write(name: str, version: int) -> None:
        project.code(ECHO.replace("VERSION = 1", f"VERSION = {version}"), f"{name}/app.py")

    def configure(*names: str) -> None:
        """As most editors save: a new file, renamed into place."""
        project.config("".join(f'[functions.{n}]\nhandler = "app.handler"\ncode = "{n}"\n' for n in names))
        (project.root / "thawd.toml").rename(project.root / "saved")
        (project.root / "saved").rename(project.root / "thawd.toml")

    write("one", 1)
    configure("one")
    with project.up("--watch") as running:
        for names in (("one", "two"), ("one", "two", "three")):
            write(names[-1], 1)
            configure(*names)
            eventually(lambda names=names: names[-1] in running.status()["functions"], what=f"the function {names[-1]}")
        write("two", 2)
        eventually(lambda: running.invoke("two", {}) == (2, None), what="the change of a function added later")
        shutil.rmtree(project.root / "one")
        write("one", 3)
        eventually(lambda: running.invoke("one", {}) == (3, None), what="the replaced folder")
        write("one", 4)
        eventually(lambda: running.invoke("one", {}) == (4, None), what="a change in the replaced folder")


def test_a_data_folder_that_is_taken_away_stops_the_server(echo: Project) -> None:
    with echo.up() as running:
        while echo.data.exists():  # what is written meanwhile would end the first try
            shutil.rmtree(echo.data, ignore_errors=True)
        assert running.process.wait(DEADLINE_S) == 1
        running.until_said("was removed or replaced")


def test_more_reserved_than_the_machine_carries_is_told_at_the_start(echo: Project) -> None:
    echo.config('[functions.app]\nhandler = "app.handler"\nreserved_concurrency = 900\n')
    done = echo.command("up")
    assert done.returncode == 1
    assert "900 environments are reserved" in done.stderr
    assert "server.max_environments" in done.stderr


def test_a_running_version_never_sees_changed_files(echo: Project) -> None:
    echo.code(
        """
        def handler(event, context):
            import late
            return late.VALUE
        """
    )
    echo.code("VALUE = 1\n", "late.py")
    with echo.up() as running:
        echo.code("VALUE = 2\n", "late.py")
        assert running.invoke("app", {}) == (1, None)


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


def test_listening_beyond_loopback_needs_a_key_and_then_every_request_does(echo: Project) -> None:
    assert "key" in echo.command("up", "--host", "0.0.0.0").stderr
    with echo.up("--host", "0.0.0.0", environ={"THAWD_KEY": "open-sesame"}) as running:
        url = running.url.replace("0.0.0.0", "127.0.0.1") + "/_thawd/status"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url)
        with refused.value:
            assert refused.value.code == 403
        for header in ({"X-Api-Key": "open-sesame"}, {"Authorization": "Bearer open-sesame"}):
            with urllib.request.urlopen(urllib.request.Request(url, headers=header)) as answer:
                assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(url, headers={"X-Api-Key": "x"}))
        refused.value.close()
        assert "open-sesame" not in "\n".join(running.output)


def test_pages_of_other_origins_cannot_run_functions(echo: Project) -> None:
    with echo.up() as running:
        url = f"{running.url}/2015-03-31/functions/app/invocations"
        request = urllib.request.Request(url, data=b"{}", headers={"Origin": "https://evil.example"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        with refused.value:
            assert refused.value.code == 403
        request = urllib.request.Request(url, data=b"{}", headers={"Origin": running.url})
        with urllib.request.urlopen(request) as answer:
            assert answer.read() == b"1"


def test_metrics_are_in_prometheus_format(echo: Project) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    with echo.up() as running:
        running.invoke("app", {})
        with urllib.request.urlopen(f"{running.url}/metrics") as answer:
            families = {family.name for family in text_string_to_metric_families(answer.read().decode())}
    assert {"thawd_invocations_seconds", "thawd_starts_seconds", "thawd_errors", "thawd_environments"} <= families


def test_a_half_sent_request_and_rubbish_on_the_port_harm_nobody(echo: Project) -> None:
    with echo.up() as running:
        port = int(running.url.rpartition(":")[2])
        for data in (
            b"\x16\x03\x01\x00rubbish\r\n\r\n",
            b"POST /2015-03-31/functions/app/invocations HTTP/1.1\r\nHost",
        ):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(data)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(
                b"POST /2015-03-31/functions/app/invocations HTTP/1.1\r\n"
                b"Host: localhost\r\nContent-Length: 100\r\n\r\n{"
            )
        assert running.invoke("app", {}) == (1, None)


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
        log = eventually(
            lambda: (text := echo.command("logs", "app").stdout).count("REPORT RequestId") == 2 and text, what="the log"
        )
        assert "hello {'x': 4}" in log
    done = echo.command("invoke", "app")
    assert done.returncode == 1
    assert "thawd up" in done.stderr


def test_logs_follow(echo: Project) -> None:
    with echo.up() as running:
        follower = subprocess.Popen(
            [sys.executable, "-m", "thawd", "logs", "app", "-f"], cwd=echo.root, stdout=subprocess.PIPE, text=True
        )
        assert follower.stdout is not None
        # The follower is known to read once it has shown a line that is already there.
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
    assert (done.returncode, done.stdout) == (0, "thawd.toml: no mistakes; 1 function, 0 buckets, 0 routes, 0 tables\n")


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
        [sys.executable, "-m", "thawd", "up", "--ready-file", str(ready)], cwd=echo.root, stdout=subprocess.DEVNULL
    )
    eventually(lambda: processes_of(echo.data), what="the function's init")
    process.terminate()
    assert process.wait(DEADLINE_S) == 0
    assert not ready.exists()
    eventually(lambda: not processes_of(echo.data), what="the end of all processes")


def test_a_broken_change_keeps_the_files_of_the_version_that_serves(echo: Project) -> None:
    echo.code("def handler(event, context):\n    import late\n    return late.VALUE\n")
    echo.code("VALUE = 1\n", "late.py")
    with echo.up() as running:
        echo.code("this is no Python")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "configuration reloaded" in running.output, what="the reload")
        assert running.invoke("app", {}) == (1, None)


def test_bodies_under_way_are_bounded_together(echo: Project) -> None:
    """Given clients that announce large bodies and do not send them, others are told to come later, not starved."""
    echo.config('grace_s = 0.1\n[functions.app]\nhandler = "app.handler"\n')
    with echo.up() as running, contextlib.ExitStack() as open_connections:
        port = int(running.url.rpartition(":")[2])
        head = b"POST /2015-03-31/functions/app/invocations HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Length: 6000000\r\n\r\n{"
        for _ in range(60):
            connection = open_connections.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(head)
        large = json.dumps({"s": 0, "x": "x" * 5_000_000})
        client = running.client()
        eventually(lambda: status_of(client, large) == 429, what="a refusal")
        assert running.invoke("app", {}) == (1, None)


def status_of(client: Any, payload: str) -> int:
    try:
        answer = client.invoke(FunctionName="app", Payload=payload)
    except client.exceptions.TooManyRequestsException as error:
        return int(error.response["ResponseMetadata"]["HTTPStatusCode"])
    return int(answer["StatusCode"])


def test_a_function_that_damaged_its_own_code_is_mended_by_a_reload(echo: Project) -> None:
    echo.code(
        """
        import os

        def handler(event, context):
            if event.get("destroy"):
                os.unlink("late.py")
                os._exit(1)
            import late
            return late.VALUE
        """
    )
    echo.code("VALUE = 5\n", "late.py")
    with echo.up() as running:
        running.invoke("app", {"destroy": True})
        assert running.invoke("app", {})[1] == "Unhandled"
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "configuration reloaded" in running.output, what="the reload")
        assert running.invoke("app", {}) == (5, None)


def test_a_function_removed_while_it_is_being_published_leaves_nothing(echo: Project) -> None:
    echo.code("import time\ntime.sleep(3)\ndef handler(event, context):\n    return 1\n", "slow.py")
    echo.code("def handler(event, context):\n    return 1\n", "quick.py")
    echo.config('[functions.quick]\nhandler = "quick.handler"\n')
    with echo.up() as running:
        echo.config('[functions.quick]\nhandler = "quick.handler"\n[functions.slow]\nhandler = "slow.handler"\n')
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "slow" in running.status()["functions"], what="the slow function's publication")
        echo.config('[functions.quick]\nhandler = "quick.handler"\n')
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "slow" not in running.status()["functions"], what="its removal")
        eventually(lambda: running.output.count("configuration reloaded") == 2, what="both reloads")
        eventually(
            lambda: not processes_of(echo.data), what="no process of it, nor of the one that is thawed when needed"
        )
        assert running.invoke("quick", {}) == (1, None)


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
    gate.touch()
    with project.up() as running:
        eventually(lambda: not waits_of(running, "queued", "leased"), what="the end of the event")
        assert waits_of(running, "dead") == 0
        ids = log.read_text().split()
        assert len(ids) == 2
        assert len(set(ids)) == 1
