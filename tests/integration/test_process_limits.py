"""Processes: an environment has at most 1,024, and zombies of idle environments do not count against others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Project, eventually
from thawd.environments.sandbox.memory import MAX_PROCESSES, MemoryLimiter
from thawd.environments.sandbox.process_limit import CountingLimiter, with_process_limits

pytestmark = pytest.mark.serial

CODE = """
    import errno, os, signal, time

    children = []

    def fork():
        pid = os.fork()
        if pid == 0:
            try:
                signal.pause()
            finally:
                os._exit(0)
        children.append(pid)

    def handler(event, context):
        kind, count = event
        if kind == "fork":
            for _ in range(count):
                try:
                    fork()
                except OSError as error:
                    return [len(children), error.errno == errno.EAGAIN]
        elif kind == "zombies":
            for _ in range(count):
                pid = os.fork()
                if pid == 0:
                    os._exit(0)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        elif kind == "orphans":
            for _ in range(count):
                pid = os.fork()
                if pid == 0:
                    if os.fork() == 0:
                        os._exit(0)
                    os._exit(0)
                os.waitpid(pid, 0)
        elif kind == "wait":
            deadline = time.monotonic() + count
            while time.monotonic() < deadline:
                time.sleep(0.01)
        return [len(children), False]
"""
APP = (
    '[functions.f]\nhandler = "app.handler"\ntimeout_s = 60\nmemory_mb = 3008\n[functions.g]\nhandler = "app.handler"\n'
)
WITHOUT_GROUPS = """
    from thawd.environments.sandbox import controllers, memory
    controllers.own_group = lambda controller: None
    memory.find_limiter = memory.MemoryLimiter
"""
PIDS = Path("/sys/fs/cgroup/pids")


@pytest.fixture
def forking(project: Project) -> Project:
    project.code(CODE)
    project.config(APP)
    return project


@pytest.fixture
def narrow() -> Iterator[Path]:
    """A cgroup with room for 150 processes."""
    group = PIDS / f"thawd-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "pids.max").write_text("150")
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no cgroup of version 1 with the pids controller may be written here: {error}")
    yield group
    eventually(lambda: not (group / "cgroup.procs").read_text(), what="the end of all processes")
    for inner in group.glob("*/"):
        inner.rmdir()
    group.rmdir()


def zombies_below(ancestor: int) -> int:
    """Return how many descendants of `ancestor` are dead and have not been waited for."""
    states: dict[int, tuple[str, int]] = {}  # state and parent of each process, by id
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            states[int(stat.parent.name)] = state, int(parent)
    found = 0
    for state, above in states.values():
        while above != ancestor and above in states:
            _, above = states[above]  # noqa: PLW2901 - up to the ancestor
        found += state == "Z" and above == ancestor
    return found


def test_by_a_cgroup_no_more_processes_can_be_started_and_the_environment_lives_on(forking: Project) -> None:
    if isinstance(with_process_limits(MemoryLimiter()), CountingLimiter):
        pytest.skip("no cgroup with the pids controller may be written here")
    with forking.up() as server:
        assert any("processes" in line or "cgroup v2" in line for line in server.output)
        assert server.invoke("f", ["wait", 0])[1] is None
        assert server.invoke("f", ["fork", 20])[1] is None
        answer, error = server.invoke("f", ["fork", MAX_PROCESSES + 50])
        assert error is None, answer
        assert answer[1], "one more could not be started"
        assert MAX_PROCESSES - 20 <= answer[0] <= MAX_PROCESSES
        assert server.invoke("f", ["wait", 0])[0][0] == answer[0], "the same environment"


def test_without_a_cgroup_an_environment_with_more_is_killed(forking: Project) -> None:
    forking.code(WITHOUT_GROUPS, "sitecustomize.py")
    with forking.up(environ={"PYTHONPATH": str(forking.root)}) as server:
        answer, error = server.invoke("f", ["fork", MAX_PROCESSES - 50])
        assert error is None, answer
        answer, error = server.invoke("f", ["fork", 100])
        for _ in range(10):  # the next count comes after 20 times as long as the last one took
            if error is None and answer[0]:
                answer, error = server.invoke("f", ["wait", 50])
        if error is None:
            assert answer == [0, False], "it was killed between two invocations"
        else:
            assert (error, "signal: killed" in answer["errorMessage"]) == ("Unhandled", True), answer
        assert server.invoke("f", ["wait", 0])[0] == [0, False], "another one serves"


def test_zombies_of_an_idle_environment_give_way_to_the_start_of_another(forking: Project, narrow: Path) -> None:
    forking.config(APP + '[functions.h]\nhandler = "app.handler"\nsnapshot = false\n')
    with forking.up(preexec_fn=lambda: (narrow / "cgroup.procs").write_text(str(os.getpid()))) as server:
        assert server.invoke("f", ["wait", 0])[1] is None
        room = 150 - int((narrow / "pids.current").read_text())
        server.invoke("f", ["zombies", room + 10])
        answer, error = server.invoke("h", ["wait", 0])
        assert error is None, answer
        assert server.function("f")["environments"].get("idle", 0) == 0
        assert server.invoke("f", ["wait", 0])[1] is None


def test_dead_processes_that_handlers_left_to_the_server_are_reaped_while_the_environment_lives(
    forking: Project,
) -> None:
    with forking.up() as server:
        assert server.invoke("f", ["orphans", 50])[1] is None
        eventually(lambda: zombies_below(server.process.pid) <= 5, what="the reaping of what it left")
        assert server.function("f")["environments"]["idle"] == 1
