"""Claims about spares with real processes: they differ from each other, run nothing early, and end with the server."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Project, Running, eventually, processes_of
from thawd.environments.starts.engine_files import Engine, NoEngineError

CODE = """
import os
import random
import signal
import threading
import time
import uuid

import snapshot_restore_py

NOTES = os.path.join(os.environ["NOTES"], "notes")

def note(text):
    with open(NOTES, "a") as file:
        file.write("%s %s\\n" % (text, os.getpid()))

@snapshot_restore_py.register_after_restore
def after():
    note("after")

if "ALARM" in os.environ:
    signal.signal(signal.SIGUSR1, lambda *_: note("signal"))
if "THREAD" in os.environ:
    threading.Thread(target=threading.Event().wait, daemon=True).start()

def handler(event, context):
    return [os.getpid(), random.random(), uuid.uuid4().hex, context.log_stream_name, time.time()]
"""


def _has_engine() -> bool:
    try:
        Engine.find()
    except NoEngineError:
        return False
    return True


pytestmark = pytest.mark.skipif(not _has_engine(), reason="there is no snapshot engine here")


def configure(project: Project, *, function: str = "", server: str = "spares = 4", environment: str = "") -> Path:
    project.code(CODE)
    (project.root / "thawd.toml").write_text(
        f'[server]\nport = 0\n{server}\n[functions.f]\nhandler = "app.handler"\nidle_timeout_s = 0\n{function}\n'
        f'[functions.f.environment]\nNOTES = "{project.root}"\n{environment}\n'
    )
    return project.root / "notes"


def notes(path: Path) -> list[tuple[str, int]]:
    if not path.exists():
        return []
    return [(what, int(pid)) for what, pid in (line.split() for line in path.read_text().splitlines())]


def spare_of(running: Running) -> int:
    """Return the process id of the spare, once it is the only process of the function."""

    def alone() -> int | None:
        shown = running.function("f")
        if any(shown["environments"].values()) or not shown["spare"]:
            return None
        found = processes_of(running.project.data)
        return found[0] if len(found) == 1 else None

    return int(eventually(alone, what="a spare that is alone"))


def test_a_spare_becomes_the_next_environment_and_each_is_its_own(project: Project) -> None:
    path = configure(project)
    with project.up() as running:
        assert not running.function("f")["spare"]
        answers: list[Any] = [running.invoke("f")[0]]
        for _ in range(4):
            spare = spare_of(running)
            assert ("after", spare) not in notes(path)  # hooks run when it becomes an environment
            answer, error = running.invoke("f")
            assert (answer[0], error) == (spare, None)
            assert ("after", spare) in notes(path)
            answers.append(answer)
        for column in range(5):
            assert len({answer[column] for answer in answers}) == 5
        spare_of(running)
    assert running.output[-1] == "stopped"


def test_a_spare_that_is_killed_costs_no_request(project: Project) -> None:
    configure(project)
    with project.up() as running:
        running.invoke("f")
        for _ in range(3):
            spare = spare_of(running)
            os.kill(spare, signal.SIGKILL)
            answer, error = running.invoke("f")
            assert (error, answer[0] == spare) == (None, False)


def test_no_signal_handler_runs_in_a_spare(project: Project) -> None:
    path = configure(project, environment='ALARM = "1"')
    with project.up() as running:
        running.invoke("f")
        spare = spare_of(running)
        os.kill(spare, signal.SIGUSR1)
        status = Path(f"/proc/{spare}/status").read_text()
        blocked = int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16)
        assert blocked & 1 << signal.SIGUSR1 - 1
        assert ("signal", spare) not in notes(path)
        assert running.invoke("f")[0][0] == spare
        eventually(lambda: ("signal", spare) in notes(path), what="the signal, once it is an environment")


def test_a_function_with_threads_of_its_own_has_no_spare(project: Project) -> None:
    configure(project, environment='THREAD = "1"')
    with project.up() as running:
        pids = set()
        for _ in range(3):
            pids.add(running.invoke("f")[0][0])
            eventually(lambda: not processes_of(project.data), what="the end of the environment, and no spare")
        assert len(pids) == 3
        shown = running.function("f")
        assert shown["spare"] is False
        assert shown["spare_refused"] == "Python threads of the function would run while the spare waits"


def test_a_spare_of_replaced_code_is_not_used(project: Project) -> None:
    configure(project)
    with project.up() as running:
        running.invoke("f")
        spare = spare_of(running)
        project.code(CODE.replace("os.getpid(), random", "'new', random"))
        os.kill(running.process.pid, signal.SIGHUP)
        eventually(lambda: running.invoke("f")[0][0] == "new", what="the new code")
        eventually(lambda: spare not in processes_of(project.data), what="the end of the old spare")


def test_without_spares_a_sleeping_function_has_no_process(project: Project) -> None:
    configure(project, server="spares = 0")
    with project.up() as running:
        running.invoke("f")
        eventually(lambda: not processes_of(project.data), what="the end of the environment")
        assert not running.function("f")["spare"]


WRITES = """
import resource
import time

PAGES = 256
MEMORY = bytearray(PAGES * 4096)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def handler(event, context):
    before = faults()
    for page in range(PAGES):
        MEMORY[page * 4096] += 1
    return [faults() - before, sum(MEMORY)]
"""


def test_a_spare_has_taken_the_page_faults_that_another_copy_took_in_its_first_invocation(project: Project) -> None:
    configure(project)
    project.code(WRITES)
    configuration = project.root / "thawd.toml"
    configuration.write_text(configuration.read_text().replace("idle_timeout_s = 0\n", "idle_timeout_s = 2\n"))
    with project.up() as running:
        first, _ = running.invoke("f")
        assert running.function("f")["starts"].keys() == {"thaw"}
        spare_of(running)
        second, _ = running.invoke("f")
        assert (first[1], second[1]) == (256, 256)
        assert first[0] >= 256
        assert second[0] < 64


def test_a_spare_waits_in_its_cgroup(project: Project) -> None:
    configure(project)
    with project.up() as running:
        if "cgroup" not in running.status()["memory_limit"]:
            pytest.skip("no cgroup may be written here")
        running.invoke("f")
        groups = Path(f"/proc/{spare_of(running)}/cgroup")
        eventually(lambda: "/thawd-" in groups.read_text(), what="the spare's move into its cgroup")
